//! Tests of the machine with a manual clock: which effects it produces at which moment.

use super::*;
use crate::lease::{Answer, Grant, Release};
use crate::lease::{Ended, Holder, Lineage, Note, StoreTime};
use crate::store::Change;
use crate::store::{Grade, Limits};
use crate::timing::TimingOptions;

pub(super) const START: Moment = Moment::from_nanos(1_000_000_000_000);

/// A machine with a manual clock, and the effects of its last step.
pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) now: Moment,
    pub(super) effects: Vec<Effect>,
}

impl Bench {
    pub(super) fn new(options: &TimingOptions) -> Self {
        Self::with_rank(options, 0)
    }

    fn with_rank(options: &TimingOptions, rank: u32) -> Self {
        Self::configured(options, |config| config.rank = rank)
    }

    pub(super) fn configured(
        options: &TimingOptions,
        configure: impl FnOnce(&mut MachineConfig),
    ) -> Self {
        let timing = Timing::new(options, &Limits::new(Grade::B)).unwrap();
        let (name, id) = (Name::new("n").unwrap(), CandidateId::new("me").unwrap());
        let mut config = MachineConfig::new(name, id, timing, 7);
        configure(&mut config);
        Bench { machine: Machine::new(config, START), now: START, effects: Vec::new() }
    }

    /// Sends `event` to the machine at `ms` after the start.
    pub(super) fn at(&mut self, ms: u64, event: Input) -> &[Effect] {
        self.now = START + Duration::from_millis(ms);
        self.effects.clear();
        self.machine.step(self.now, event, &mut self.effects);
        &self.effects
    }

    pub(super) fn claim(&self) -> (RequestId, Nonce) {
        match self.effects.last() {
            Some(Effect::Acquire(request, nonce, _)) => (*request, *nonce),
            _ => panic!("expected a claim, not {:?}", self.effects),
        }
    }

    pub(super) fn renewal(&self) -> RequestId {
        match &self.effects[..] {
            [Effect::Renew(request, _)] => *request,
            other => panic!("expected a renewal, not {other:?}"),
        }
    }

    /// Claims at 0 ms and is granted `token` at `ms`.
    pub(super) fn granted(&mut self, ms: u64, token: u64) -> &[Effect] {
        self.at(0, Input::Woke);
        let (request, nonce) = self.claim();
        self.at(ms, Input::Acquired(request, Ok(Answer::Held(grant(token, nonce)))))
    }

    pub(super) fn wakes_at(&self) -> u64 {
        let at = self.machine.wake_at().expect("it wants to be woken");
        u64::try_from(at.since(START).as_millis()).unwrap()
    }
}

pub(super) fn grant(token: u64, nonce: Nonce) -> Grant {
    let token = Token::new(token).unwrap();
    Grant {
        hold: Hold {
            name: Name::new("n").unwrap(),
            candidate: CandidateId::new("me").unwrap(),
            nonce,
            token,
        },
        lineage: Lineage { origin: token, before: Ended::Nothing },
        checkpoint: None,
        store_time: None,
        wait: None,
        counts_from: None,
    }
}

pub(super) fn taken(token: u64, left_ms: u64) -> Box<Lease> {
    let token = Token::new(token).unwrap();
    Box::new(Lease {
        name: Name::new("n").unwrap(),
        holder: Some(Holder { id: "other".to_owned(), nonce: Some(Nonce::from_bits(9)) }),
        token: Some(token),
        ttl: Duration::from_secs(4),
        left: Duration::from_millis(left_ms),
        since: None,
        note: Note::default(),
        next: None,
        lineage: Some(Lineage { origin: token, before: Ended::Nothing }),
        checkpoint: None,
        store_time: Some(StoreTime(1)),
        wait: None,
        history: Vec::new(),
    })
}

pub(super) fn lead_of(effects: &[Effect]) -> &TermStart {
    let lead = effects.iter().find_map(|effect| match effect {
        Effect::Lead(lead) => Some(&**lead),
        _ => None,
    });
    lead.unwrap_or_else(|| panic!("expected a term, not {effects:?}"))
}

pub(super) fn end_of(effects: &[Effect]) -> &TermEnd {
    let end = effects.iter().find_map(|effect| match effect {
        Effect::End(ending) => Some(ending),
        _ => None,
    });
    end.unwrap_or_else(|| panic!("expected the end of a term, not {effects:?}"))
}

pub(super) fn released(effects: &[Effect]) -> &Release {
    let release = effects.iter().find_map(|effect| match effect {
        Effect::Release(_, release) => Some(release),
        _ => None,
    });
    release.unwrap_or_else(|| panic!("expected a release, not {effects:?}"))
}

#[test]
fn the_deadline_counts_from_before_the_request_was_sent() {
    let mut bench = Bench::new(&TimingOptions::default());
    let lead = lead_of(bench.granted(300, 1));
    assert_eq!(lead.deadline, START + Duration::from_millis(3_596));
    assert_eq!(bench.wakes_at(), 1_333);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    let extended = bench.at(1_700, Input::Renewed(request, Ok(Answer::Held(()))));
    assert_eq!(extended, [Effect::Extend(START + Duration::from_millis(1_400 + 3_596))]);
}

#[test]
fn the_deadline_of_a_grant_under_a_shared_session_counts_from_its_keepalive() {
    for (counts_from, deadline) in
        [(START.before(Duration::from_secs(1)), 2_596), (START + Duration::from_secs(9), 3_596)]
    {
        let mut bench = Bench::new(&TimingOptions::default());
        bench.at(0, Input::Woke);
        let (request, nonce) = bench.claim();
        let grant = Grant { counts_from: Some(counts_from), ..grant(1, nonce) };
        let lead = lead_of(bench.at(300, Input::Acquired(request, Ok(Answer::Held(grant)))));
        assert_eq!(lead.deadline, START + Duration::from_millis(deadline));
    }
}

#[test]
fn a_success_after_the_time_to_stop_revives_nothing() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    // Nothing ran in between: the answer arrived in time, but was not processed.
    let effects = bench.at(2_800, Input::Renewed(request, Ok(Answer::Held(()))));
    assert_eq!(end_of(effects).reason, EndReason::Paused(Duration::from_millis(1_400)));
    assert_eq!(bench.machine.phase(), Phase::Resigning);
    assert_eq!(bench.machine.wake_at(), None, "it waits for the work");
}

#[test]
fn an_answer_to_an_abandoned_request_is_ignored() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let first = bench.renewal();
    bench.at(1_900, Input::Woke); // The attempt has timed out.
    assert!(matches!(bench.effects[..], [Effect::Unreachable(_)]));
    let again = bench.wakes_at();
    bench.at(again + 1, Input::Woke);
    assert_ne!(bench.renewal(), first);
    assert_eq!(bench.at(again + 2, Input::Renewed(first, Ok(Answer::Held(())))), []);
}

#[test]
fn renewals_that_keep_failing_end_the_term_before_the_deadline() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    let mut tries = 0;
    loop {
        let at = bench.wakes_at();
        bench.at(at + 1, Input::Woke);
        match &bench.effects[..] {
            [Effect::Renew(request, _)] => {
                tries += 1;
                let error = Error::unavailable("down");
                let request = *request;
                bench.at(at + 1, Input::Renewed(request, Err(error)));
            }
            _ => break,
        }
    }
    let ending = end_of(&bench.effects);
    assert!(matches!(ending.reason, EndReason::Unreachable(_)), "{ending:?}");
    assert!(bench.now >= START + Duration::from_millis(2_796), "not earlier than necessary");
    assert!(bench.now < ending.deadline);
    assert!(tries >= 2, "{tries} tries");
}

#[test]
fn a_grace_period_ends_the_term_sooner() {
    let grace = Some(Duration::from_millis(500));
    let mut bench = Bench::new(&TimingOptions { grace, ..TimingOptions::default() });
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    bench.at(1_410, Input::Renewed(request, Err(Error::unavailable("down"))));
    let effects = bench.at(1_901, Input::Woke);
    assert!(matches!(end_of(effects).reason, EndReason::Unreachable(_)));
}

#[test]
fn a_refusal_ends_the_term_at_once_and_leaves_no_time_to_stop() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    let effects = bench.at(1_401, Input::Renewed(request, Ok(Answer::Taken(taken(2, 4_000)))));
    let ending = end_of(effects);
    assert_eq!(ending.reason, EndReason::Refused(Some("other".to_owned())));
    assert_eq!(ending.deadline, Moment::PAST);
    // Nothing to release: another candidate holds the lease.
    assert!(bench.at(1_500, Input::WorkEnded).iter().all(|a| !matches!(a, Effect::Release(..))));
}

#[test]
fn a_resigning_leader_renews_until_its_work_has_ended_and_then_releases() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    let next = CandidateId::new("heir").unwrap();
    let effects = bench.at(500, Input::Requested(Request::Resign(Some(next.clone()))));
    assert_eq!(end_of(effects).reason, EndReason::Asked);
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::Release(..))));
    bench.at(1_400, Input::Woke);
    let request = bench.renewal();
    bench.at(1_401, Input::Renewed(request, Ok(Answer::Held(()))));
    let release = released(bench.at(2_000, Input::WorkEnded));
    assert_eq!(release.next, Some(next));
    assert_eq!(release.hold.token, Token::new(1).unwrap());
}

#[test]
fn the_nonce_is_kept_while_unanswered_and_new_after_an_answer() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, first) = bench.claim();
    bench.at(5, Input::Acquired(request, Err(Error::unavailable("lost reply"))));
    let again = bench.wakes_at();
    bench.at(again + 1, Input::Woke);
    let (request, second) = bench.claim();
    assert_eq!(first, second);
    bench.at(again + 2, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    let next_poll = bench.wakes_at();
    assert!(
        (again + 4_003..again + 4_030).contains(&next_poll),
        "at the known expiry: {next_poll}"
    );
    bench.at(next_poll + 1, Input::Woke);
    assert_ne!(bench.claim().1, second);
}

#[test]
fn a_lease_freed_while_a_claim_is_in_flight_is_claimed_again() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    let name = Name::new("n").unwrap();
    bench.at(1, Input::Changed(Change::Freed { name, next: None }));
    // The answer is older than the change.
    bench.at(2, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    bench.claim();
}

#[test]
fn other_candidates_wait_for_a_named_successor() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
    let name = Name::new("n").unwrap();
    let next = Some(CandidateId::new("heir").unwrap());
    bench.at(100, Input::Changed(Change::Freed { name: name.clone(), next }));
    assert_eq!(bench.wakes_at(), 600);
    let next = Some(CandidateId::new("me").unwrap());
    bench.at(200, Input::Changed(Change::Freed { name, next }));
    bench.claim();
}

#[test]
fn a_grant_after_stop_is_released() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, nonce) = bench.claim();
    bench.at(1, Input::Stop);
    assert_ne!(bench.machine.phase(), Phase::Stopped, "the claim is still in flight");
    released(bench.at(2, Input::Acquired(request, Ok(Answer::Held(grant(1, nonce))))));
    let Effect::Release(request, _) = bench.effects[bench.effects.len() - 1].clone() else {
        panic!("the release comes last: {:?}", bench.effects)
    };
    bench.at(3, Input::Released(request, Ok(())));
    assert_eq!(bench.machine.phase(), Phase::Stopped);
}

#[test]
fn a_term_of_a_store_that_went_back_in_time_is_not_led() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    let (request, _) = bench.claim();
    bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(50, 10)))));
    bench.at(20, Input::Woke);
    let (request, nonce) = bench.claim();
    let effects = bench.at(21, Input::Acquired(request, Ok(Answer::Held(grant(50, nonce)))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Warn(_))));
    released(effects);
}

#[test]
fn a_failed_release_is_retried_until_the_lease_expires() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(10, Input::Requested(Request::Resign(None)));
    released(bench.at(20, Input::WorkEnded));
    let mut tries = 1;
    while bench.machine.phase() == Phase::Resigning {
        let at = bench.wakes_at();
        bench.at(at + 1, Input::Woke);
        tries += usize::from(matches!(bench.effects[..], [Effect::Release(..)]));
    }
    assert!(tries > 3, "{tries}");
    assert!(bench.now >= START + Duration::from_millis(3_000));
}

#[test]
fn a_higher_rank_number_claims_a_free_lease_slightly_later() {
    for (rank, wait) in [(0, 0), (1, 50), (3, 150), (5, 250), (99, 250)] {
        let mut bench = Bench::with_rank(&TimingOptions::default(), rank);
        let answer = match bench.at(0, Input::Woke) {
            [Effect::Observe(request)] if rank > 0 => {
                Input::Observed(*request, Ok(Some(*taken(1, 4_000))))
            }
            _ => Input::Acquired(bench.claim().0, Ok(Answer::Taken(taken(1, 4_000)))),
        };
        bench.at(1, answer);
        let name = Name::new("n").unwrap();
        bench.at(100, Input::Changed(Change::Freed { name, next: None }));
        if wait == 0 {
            bench.claim();
        } else {
            assert_eq!(bench.wakes_at(), 100 + wait, "rank {rank}");
        }
    }
}

#[test]
fn the_known_candidates_except_the_last_holder_decide_the_rank() {
    let rival = |id: &str, priority| (CandidateId::new(id).unwrap(), priority);
    // 'other' holds the lease that becomes free.
    for (others, wait) in [
        (vec![rival("other", 9)], 0),
        (vec![rival("other", 9), rival("b", 1)], 50),
        (vec![rival("b", 1), rival("c", 2), rival("d", 2)], 100),
        (vec![rival("b", 0), rival("c", -1)], 0),
    ] {
        let mut bench = Bench::new(&TimingOptions::default());
        bench.at(0, Input::Woke);
        let (request, _) = bench.claim();
        bench.at(1, Input::Acquired(request, Ok(Answer::Taken(taken(1, 4_000)))));
        assert_eq!(bench.at(50, Input::Rivals(Arc::new(OtherCandidates { own: 0, others }))), []);
        let name = Name::new("n").unwrap();
        bench.at(100, Input::Changed(Change::Freed { name, next: None }));
        if wait == 0 {
            bench.claim();
        } else {
            assert_eq!(bench.wakes_at(), 100 + wait);
        }
    }
}

#[test]
fn an_unwanted_or_drained_candidate_observes_and_does_not_claim() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Wanted(false));
    assert!(matches!(bench.effects[..], [Effect::Observe(_)]), "{:?}", bench.effects);
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Requested(Request::Drain));
    assert!(matches!(bench.effects[..], [Effect::Observe(_)]), "{:?}", bench.effects);
    // It does not hurry for a free lease either.
    let mut free = *taken(1, 0);
    free.holder = None;
    let Effect::Observe(request) = bench.effects[0] else { panic!("{:?}", bench.effects) };
    bench.at(2, Input::Observed(request, Ok(Some(free))));
    // The retry period, up to a hundredth early: polls of one process are aligned.
    assert_eq!(bench.wakes_at(), 4_000);
    bench.at(10, Input::Requested(Request::Undrain));
    bench.claim();
}

#[test]
fn a_candidate_undrained_during_an_observation_claims_after_it() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Requested(Request::Drain));
    let Effect::Observe(request) = bench.effects[0] else { panic!("{:?}", bench.effects) };
    bench.at(1, Input::Requested(Request::Undrain));
    assert!(bench.effects.is_empty(), "the answer comes first: {:?}", bench.effects);
    bench.at(2, Input::Observed(request, Ok(None)));
    bench.claim();
}

#[test]
fn other_candidates_claim_first_after_a_resign_even_if_the_work_stops_slowly() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 1);
    bench.at(10, Input::Resign(None));
    let released = bench.at(1_000, Input::WorkEnded).to_vec();
    let request = released.iter().find_map(|effect| match effect {
        Effect::Release(request, _) => Some(*request),
        _ => None,
    });
    bench.at(1_001, Input::Released(request.unwrap(), Ok(())));
    assert_eq!(bench.wakes_at(), 1_500);
    let after_hint = bench.at(1_002, Input::Changed(Change::Look)).to_vec();
    assert!(after_hint.is_empty(), "{after_hint:?}");
    assert!(matches!(bench.at(1_500, Input::Woke), [Effect::Acquire(..)]));
}

#[test]
fn a_passive_observer_trusts_granted_hints_without_reading_the_lease() {
    let granted = |token, holder| Change::Granted {
        name: Name::new("n").unwrap(),
        token: Token::new(token).unwrap(),
        holder: Some(CandidateId::new(holder).unwrap()),
    };
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Wanted(false));
    let Effect::Observe(request) = bench.effects[0] else { panic!("{:?}", bench.effects) };
    bench.at(2, Input::Observed(request, Ok(None)));
    let wakes = bench.wakes_at();
    bench.at(10, Input::Changed(granted(9, "b")));
    assert_eq!(bench.effects, [Effect::HolderChanged(Some("b".to_owned()), true)]);
    assert_eq!(bench.wakes_at(), wakes, "it polls at the same time as before");
    bench.at(11, Input::Changed(granted(8, "c")));
    assert_eq!(bench.effects, [], "a late hint is older");
    // It wants to know how the term of a holder that it has observed ended.
    let Some(Effect::Observe(request)) = bench.at(wakes, Input::Woke).first().cloned() else {
        panic!("{:?}", bench.effects)
    };
    let seen = *taken(9, 3_000);
    bench.at(wakes + 2, Input::Observed(request, Ok(Some(seen))));
    bench.at(wakes + 10, Input::Changed(granted(10, "c")));
    assert_eq!(bench.wakes_at(), wakes + 30);
    bench.at(12, Input::Wanted(true));
    bench.claim();
}

#[test]
fn a_hint_that_overtakes_the_answer_to_a_release_is_not_lost() {
    let granted = |token, holder| Change::Granted {
        name: Name::new("n").unwrap(),
        token: Token::new(token).unwrap(),
        holder: Some(CandidateId::new(holder).unwrap()),
    };
    let mut bench = Bench::new(&TimingOptions::default());
    bench.granted(1, 9);
    bench.at(10, Input::Wanted(false));
    let release = bench.at(11, Input::WorkEnded).iter().find_map(|effect| match effect {
        Effect::Release(request, _) => Some(*request),
        _ => None,
    });
    bench.at(12, Input::Changed(granted(9, "me")));
    assert_eq!(bench.effects, [], "its own term");
    bench.at(13, Input::Changed(granted(10, "b")));
    assert_eq!(bench.effects, [Effect::HolderChanged(Some("b".to_owned()), true)]);
    bench.at(14, Input::Released(release.unwrap(), Ok(())));
    let lost = |effect: &Effect| matches!(effect, Effect::HolderChanged(..));
    assert!(!bench.effects.iter().any(lost), "{:?}", bench.effects);
}

#[test]
fn a_different_ttl_is_warned_about_once() {
    let mut bench = Bench::new(&TimingOptions::default());
    bench.at(0, Input::Woke);
    for (number, warns) in [(0, true), (1, false)] {
        let (request, _) = bench.claim();
        let other = Lease { ttl: Duration::from_secs(9), ..*taken(5, 9_000) };
        let answer = Ok(Answer::Taken(Box::new(other)));
        let at = number * 4_100;
        let effects = bench.at(at + 1, Input::Acquired(request, answer));
        let warned = effects.iter().any(|effect| matches!(effect, Effect::Warn(_)));
        assert_eq!(warned, warns, "{effects:?}");
        bench.at(at + 4_050, Input::Woke);
    }
}
