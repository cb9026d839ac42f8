//! The steps of one planner. Whole fleets are tested in `tests/fleet_simulation`.

mod different_lists;

use super::*;

const NONE: [ShardNumber; 0] = [];
const TTL: Duration = Duration::from_secs(10);

fn id(id: &str) -> CandidateId {
    CandidateId::new(id).expect("an id")
}

fn names(many: usize) -> Vec<Shard> {
    (0..many).map(|at| Shard::new(&format!("s{at:05}")).expect("a shard")).collect()
}

/// A planner and a simulated clock. [`PlannerHarness::advance`] calls the planner whenever it wants to be woken.
struct PlannerHarness {
    planner: Planner,
    now: Moment,
}

impl PlannerHarness {
    /// The member `a`, which has observed nothing.
    fn new() -> Self {
        PlannerHarness {
            planner: Planner::new(id("a"), TTL),
            now: Moment::from_nanos(1_000_000_000_000),
        }
    }

    /// It is a member with these others, has observed these shards, and has claimed its share.
    fn member_with(others: &[&str], shards: usize) -> Self {
        let mut harness = PlannerHarness::new();
        harness.planner.membership_acquired(harness.now);
        harness.members(others);
        harness.list(&names(shards), &[]);
        harness.answer(1..=shards as ShardNumber);
        harness.advance(Duration::from_secs(1));
        harness
    }

    fn members(&mut self, others: &[&str]) {
        let member = |other: &&str| (id(other), self.state(false));
        let members = others.iter().chain(&["a"]).map(member).collect();
        self.planner.members(self.now, members);
    }

    /// A member that lists the same shards.
    fn state(&self, drained: bool) -> MemberState {
        MemberState { drained, list: self.planner.list().clone() }
    }

    fn list(&mut self, shards: &[Shard], paused: &[&str]) -> Vec<PlanStep> {
        let mut steps = Vec::new();
        let paused = |shard: &Shard| paused.contains(&shard.as_str());
        self.planner.shards(self.now, shards, paused, &mut steps);
        // The other members read the same list.
        let members: BTreeMap<CandidateId, MemberState> = self
            .planner
            .observed_members()
            .map(|(id, state)| (id.clone(), self.state(state.drained)))
            .collect();
        if !members.is_empty() {
            self.planner.members(self.now, members);
        }
        steps
    }

    fn answer(&mut self, numbers: impl IntoIterator<Item = ShardNumber>) {
        for number in numbers {
            self.planner.answered(self.now, number);
        }
    }

    /// The store has granted its claims of these shards.
    fn lead(&mut self, numbers: impl IntoIterator<Item = ShardNumber>) {
        for number in numbers {
            self.planner.owner(self.now, number, Some("a"), true);
            self.planner.answered(self.now, number);
            self.set_phase(number, Phase::Leading);
        }
    }

    fn set_phase(&mut self, number: ShardNumber, phase: Phase) -> Vec<PlanStep> {
        let mut steps = Vec::new();
        self.planner.phase_changed(self.now, number, phase, &mut steps);
        steps
    }

    /// Advances the clock and returns all steps until then.
    fn advance(&mut self, time: Duration) -> Vec<PlanStep> {
        let (until, mut steps) = (self.now + time, Vec::new());
        for _ in 0..10_000 {
            self.planner.act(self.now, &mut steps);
            match self.planner.wake_at() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => {
                    self.now = until;
                    return steps;
                }
            }
        }
        panic!("it wants to be woken over and over");
    }
}

fn claims(steps: &[PlanStep]) -> Vec<ShardNumber> {
    let claim = |step: &PlanStep| match step {
        PlanStep::Claim(number) => Some(*number),
        _ => None,
    };
    steps.iter().filter_map(claim).collect()
}

/// The released shards, their next owners and the reasons.
fn releases(steps: &[PlanStep]) -> Vec<(ShardNumber, Option<&str>, Reason)> {
    let release = |step| match step {
        &PlanStep::Release(number, ref next, reason) => {
            Some((number, next.as_ref().map(CandidateId::as_str), reason))
        }
        _ => None,
    };
    steps.iter().filter_map(release).collect()
}

#[test]
fn nothing_is_claimed_before_it_is_a_member_and_has_observed_everything() {
    let second = Duration::from_secs(1);
    let mut harness = PlannerHarness::new();
    let added = harness.list(&names(2), &[]);
    assert!(matches!(added[..], [PlanStep::Add(1, _), PlanStep::Add(2, _)]), "{added:?}");
    harness.members(&[]);
    harness.answer([1]);
    assert_eq!(harness.advance(second), [], "it is not a member");
    harness.planner.membership_acquired(harness.now);
    assert_eq!(harness.advance(second), [], "one shard was not observed");
    harness.answer([2]);
    assert_eq!(claims(&harness.advance(second)), [1, 2]);

    let mut harness = PlannerHarness::new();
    harness.planner.membership_acquired(harness.now);
    harness.list(&names(2), &[]);
    harness.answer([1, 2]);
    assert_eq!(harness.advance(second), [], "it has not observed the members");
    harness.members(&[]);
    assert_eq!(claims(&harness.advance(second)), [1, 2]);
}

#[test]
fn members_that_start_together_observe_each_other_before_one_claims_all() {
    let mut harness = PlannerHarness::new();
    harness.members(&[]);
    harness.list(&names(10), &[]);
    harness.answer(1..=10);
    harness.planner.membership_acquired(harness.now);
    assert_eq!(harness.advance(FIRST_PLAN_DELAY / 2), []);
    harness.members(&["b"]);
    assert_eq!(claims(&harness.advance(Duration::from_secs(1))).len(), 5);
}

#[test]
fn claims_in_flight_are_limited_and_the_rest_is_queued() {
    let mut harness = PlannerHarness::new();
    harness.planner.membership_acquired(harness.now);
    harness.members(&[]);
    harness.list(&names(MAX_CLAIMS_IN_FLIGHT + 10), &[]);
    harness.answer(1..=MAX_CLAIMS_IN_FLIGHT as ShardNumber + 10);
    let first = claims(&harness.advance(Duration::from_secs(1)));
    assert_eq!(first.len(), MAX_CLAIMS_IN_FLIGHT);
    harness.lead(first.iter().copied().take(7));
    assert_eq!(claims(&harness.advance(Duration::from_millis(1))).len(), 7);
    harness.lead(first.iter().copied().skip(7));
    assert_eq!(claims(&harness.advance(Duration::from_millis(1))).len(), 3);
}

#[test]
fn a_member_above_its_share_releases_shards_to_the_planned_members() {
    let mut harness = PlannerHarness::member_with(&[], 6);
    harness.lead(1..=6);
    harness.members(&["b", "c"]);
    let steps = harness.advance(Duration::from_secs(1));
    let left = releases(&steps);
    assert_eq!(left.len(), 4, "{steps:?}");
    for next in ["b", "c"] {
        assert_eq!(left.iter().filter(|(_, to, _)| *to == Some(next)).count(), 2);
    }
    assert!(left.iter().all(|(.., reason)| *reason == Reason::Rebalance));
    // A release in progress is not started again.
    for (number, ..) in &left {
        harness.set_phase(*number, Phase::Resigning);
    }
    assert_eq!(harness.advance(Duration::from_secs(1)), []);
}

#[test]
fn a_paused_shard_is_released_without_a_next_owner_and_claimed_again_when_resumed() {
    let mut harness = PlannerHarness::member_with(&["b"], 2);
    harness.lead([1]);
    harness.planner.owner(harness.now, 2, Some("b"), true);
    harness.list(&names(2), &["s00000"]);
    assert_eq!(releases(&harness.advance(Duration::from_secs(1))), [(1, None, Reason::Paused)]);
    harness.planner.owner(harness.now, 1, None, true);
    harness.set_phase(1, Phase::Waiting);
    assert_eq!(harness.advance(3 * TTL), []);
    assert_eq!(harness.planner.coverage(harness.now).unowned, 0, "a paused shard needs no owner");
    harness.list(&names(2), &[]);
    assert_eq!(claims(&harness.advance(Duration::from_secs(1))), [1]);
}

#[test]
fn a_drained_member_releases_all_shards_and_claims_none() {
    let mut harness = PlannerHarness::member_with(&["b"], 2);
    let mine = if harness.planner.entries[&1].wanted { 1 } else { 2 };
    harness.lead([mine]);
    let states = [(id("a"), harness.state(true)), (id("b"), harness.state(false))];
    harness.planner.members(harness.now, BTreeMap::from(states));
    let steps = harness.advance(Duration::from_millis(200));
    assert_eq!(releases(&steps), [(mine, Some("b"), Reason::Drain)]);
    harness.set_phase(mine, Phase::Resigning);
    assert_eq!(harness.advance(Duration::from_secs(1)), [], "its work is ending");
    harness.planner.owner(harness.now, mine, None, true);
    harness.set_phase(mine, Phase::Waiting);
    assert_eq!(
        claims(&harness.advance(5 * TTL)),
        NONE,
        "not even a shard that no other member claims"
    );
}

#[test]
fn a_shard_that_is_listed_again_while_its_work_ends_is_added_again_after_that() {
    let mut harness = PlannerHarness::member_with(&[], 1);
    harness.lead([1]);
    assert_eq!(harness.list(&[], &[]), [PlanStep::Remove(1, Reason::Removed)]);
    harness.set_phase(1, Phase::Resigning);
    assert_eq!(harness.list(&names(1), &[]), [], "its last work has not ended");
    assert_eq!(harness.advance(TTL), []);
    let steps = harness.set_phase(1, Phase::Stopped);
    assert!(matches!(steps[..], [PlanStep::Add(2, _)]), "{steps:?}");
    harness.answer([2]);
    assert_eq!(claims(&harness.advance(Duration::from_secs(1))), [2]);
    // A shard that stays removed is forgotten.
    assert_eq!(harness.list(&[], &[]), [PlanStep::Remove(2, Reason::Removed)]);
    assert_eq!(harness.set_phase(2, Phase::Stopped), []);
    assert_eq!(harness.planner.numbers().count(), 0);
    assert_eq!(harness.planner.coverage(harness.now), Coverage::default());
}

#[test]
fn a_shard_that_stays_free_for_a_ttl_is_adopted_and_kept_against_the_share() {
    let mut harness = PlannerHarness::member_with(&["b"], 4);
    let mine: Vec<ShardNumber> = (1..=4).filter(|at| harness.planner.entries[at].wanted).collect();
    assert_eq!(mine.len(), 2);
    harness.lead(mine);
    assert_eq!(claims(&harness.advance(TTL - 2 * Duration::from_secs(1))), NONE, "they are for b");
    let adopted = claims(&harness.advance(2 * TTL));
    assert_eq!(adopted.len(), 2);
    harness.lead(adopted.clone());
    // Two of the four are planned for b. The shards that were not adopted are released first, and no other for a while after
    // that.
    let steps = harness.advance(TTL / 2);
    let left = releases(&steps);
    assert!(left.len() == 2 && left.iter().all(|(number, ..)| !adopted.contains(number)));
    for (number, ..) in &left {
        harness.planner.owner(harness.now, *number, Some("b"), true);
        harness.set_phase(*number, Phase::Waiting);
    }
    assert_eq!(harness.advance(20 * TTL), [], "as it should be");
}

#[test]
fn adopted_shards_above_the_share_are_rarely_offered_again() {
    let mut harness = PlannerHarness::member_with(&["b"], 2);
    let first = if harness.planner.entries[&1].wanted { 1 } else { 2 };
    let other = 3 - first;
    harness.lead([first]);
    // `b` claims neither, so both are adopted in the end, one after the other.
    let (mut offered, until) = (0, harness.now + 400 * TTL);
    while harness.now < until {
        for step in harness.advance(TTL / 4) {
            match step {
                PlanStep::Claim(number) => harness.lead([number]),
                PlanStep::Release(number, next, _) => {
                    assert_eq!(next, Some(id("b")));
                    offered += 1;
                    harness.planner.owner(harness.now, number, None, true);
                    harness.set_phase(number, Phase::Waiting);
                }
                step => panic!("{step:?}"),
            }
        }
    }
    assert!((2..=20).contains(&offered), "{offered} times in 400 TTLs");
    // Another member acquires it: then it counts like any other shard.
    harness.planner.owner(harness.now, other, Some("b"), true);
    assert_eq!(harness.planner.entries[&other].adoptions, 0);
}

#[test]
fn a_shard_that_stays_free_makes_it_plan_again() {
    let mut harness = PlannerHarness::member_with(&["b"], 2);
    let mine = if harness.planner.entries[&1].wanted { 1 } else { 2 };
    harness.lead([mine]);
    harness.planner.owner(harness.now, 3 - mine, Some("b"), true);
    assert_eq!(harness.advance(TTL), []);
    assert_eq!(harness.planner.wake_at(), None, "all is as planned");
    harness.planner.owner(harness.now, 3 - mine, None, true);
    assert!(harness.planner.wake_at().is_some_and(|at| at <= harness.now + TTL));
    assert_eq!(harness.planner.coverage(harness.now).free, 1);
    harness.advance(TTL - Duration::from_secs(1));
    assert_eq!(harness.planner.coverage(harness.now).unowned, 0);
    assert_eq!(claims(&harness.advance(2 * TTL)), [3 - mine]);
    assert_eq!(harness.planner.unowned(harness.now, 5).len(), 1);
}

#[test]
fn a_member_without_its_membership_lease_releases_all_shards_and_claims_none() {
    let mut harness = PlannerHarness::member_with(&["b"], 8);
    let mine: Vec<ShardNumber> = (1..=8).filter(|at| harness.planner.entries[at].wanted).collect();
    harness.lead(mine[1..].iter().copied());
    harness.planner.membership_lost(harness.now, Reason::Expired);
    let steps = harness.advance(Duration::ZERO);
    let left = releases(&steps);
    assert_eq!(left.len(), 3);
    assert!(left.iter().all(|(_, next, reason)| *next == Some("b") && *reason == Reason::Expired));
    assert!(steps.contains(&PlanStep::Withdraw(mine[0])), "and does not campaign: {steps:?}");
    assert_eq!(claims(&harness.advance(5 * TTL)), NONE);
    harness.planner.membership_acquired(harness.now);
    assert!(!claims(&harness.advance(5 * TTL)).is_empty(), "it is back");
}

#[test]
fn a_shard_whose_lease_cannot_be_read_is_not_planned_and_is_reported() {
    let mut harness = PlannerHarness::new();
    harness.planner.membership_acquired(harness.now);
    harness.members(&[]);
    harness.list(&names(2), &[]);
    harness.answer([1]);
    harness.planner.broken(harness.now, 2);
    assert_eq!(claims(&harness.advance(2 * TTL)), [1]);
    assert!(harness.planner.unowned(harness.now, 5).iter().any(|shard| shard.as_str() == "s00001"));
    harness.answer([2]);
    assert_eq!(
        claims(&harness.advance(Duration::from_secs(1))),
        [2],
        "an operator has repaired it"
    );
}

#[test]
fn shards_that_were_free_while_there_was_no_member_are_shared_and_not_adopted() {
    let mut harness = PlannerHarness::new();
    harness.members(&["b", "c"]);
    harness.list(&names(9), &[]);
    harness.answer(1..=9);
    // The store was down or in its start-up wait: there was no member.
    harness.advance(TTL * 5);
    harness.planner.membership_acquired(harness.now);
    let steps = harness.advance(Duration::from_secs(1));
    assert_eq!(claims(&steps).len(), 3, "its share, and no more: {steps:?}");
}

#[test]
fn a_shard_whose_work_ended_by_itself_is_neither_claimed_twice_nor_released() {
    let second = Duration::from_secs(1);
    let mut harness = PlannerHarness::member_with(&[], 2);
    harness.lead([1, 2]);
    assert_eq!(harness.advance(second), []);
    // The application has released shard 1, so the machine releases the lease. It campaigns on its own after a pause.
    harness.set_phase(1, Phase::Resigning);
    harness.planner.owner(harness.now, 1, None, false);
    harness.set_phase(1, Phase::Waiting);
    assert_eq!(harness.planner.coverage(harness.now).free, 1);
    assert_eq!(harness.advance(second), [], "the machine campaigns still");
    harness.lead([1]);
    assert_eq!(harness.advance(second), []);
    assert_eq!(harness.planner.coverage(harness.now).mine, 2);
}
