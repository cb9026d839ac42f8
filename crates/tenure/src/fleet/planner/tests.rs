//! What a steward orders, step by step; whole fleets of them are in `tests/fleet_simulation`.

mod lists;

use super::*;

const NONE: [ShardNumber; 0] = [];
const TTL: Duration = Duration::from_secs(10);

fn id(id: &str) -> CandidateId {
    CandidateId::new(id).expect("an id")
}

fn names(many: usize) -> Vec<Shard> {
    (0..many).map(|at| Shard::new(&format!("s{at:05}")).expect("a shard")).collect()
}

/// A steward and the time; it is asked often enough.
struct Desk {
    steward: Planner,
    now: Moment,
}

impl Desk {
    /// The member `a`, which knows of nothing.
    fn new() -> Self {
        Desk { steward: Planner::new(id("a"), TTL), now: Moment::from_nanos(1_000_000_000_000) }
    }

    /// It is a member with these others, has seen these shards, and has claimed what it should.
    fn seated(others: &[&str], shards: usize) -> Self {
        let mut desk = Desk::new();
        desk.steward.seated(desk.now);
        desk.members(others);
        desk.list(&names(shards), &[]);
        desk.answers(1..=shards as ShardNumber);
        desk.waits(Duration::from_secs(1));
        desk
    }

    fn members(&mut self, others: &[&str]) {
        let member = |other: &&str| (id(other), self.state(false));
        let members = others.iter().chain(&["a"]).map(member).collect();
        self.steward.members(self.now, members);
    }

    /// A member that lists the same shards.
    fn state(&self, drained: bool) -> MemberState {
        MemberState { drained, list: self.steward.list().clone() }
    }

    fn list(&mut self, shards: &[Shard], paused: &[&str]) -> Vec<PlanStep> {
        let mut orders = Vec::new();
        let paused = |shard: &Shard| paused.contains(&shard.as_str());
        self.steward.shards(self.now, shards, paused, &mut orders);
        // The others read the same list.
        let members: BTreeMap<CandidateId, MemberState> = self
            .steward
            .observed_members()
            .map(|(id, state)| (id.clone(), self.state(state.drained)))
            .collect();
        if !members.is_empty() {
            self.steward.members(self.now, members);
        }
        orders
    }

    fn answers(&mut self, numbers: impl IntoIterator<Item = ShardNumber>) {
        for number in numbers {
            self.steward.answered(self.now, number);
        }
    }

    /// Its claim of these has been granted.
    fn leads(&mut self, numbers: impl IntoIterator<Item = ShardNumber>) {
        for number in numbers {
            self.steward.owner(self.now, number, Some("a"), true);
            self.steward.answered(self.now, number);
            self.moves(number, Phase::Leading);
        }
    }

    fn moves(&mut self, number: ShardNumber, phase: Phase) -> Vec<PlanStep> {
        let mut orders = Vec::new();
        self.steward.moved(self.now, number, phase, &mut orders);
        orders
    }

    /// All that is ordered meanwhile.
    fn waits(&mut self, time: Duration) -> Vec<PlanStep> {
        let (until, mut orders) = (self.now + time, Vec::new());
        for _ in 0..10_000 {
            self.steward.act(self.now, &mut orders);
            match self.steward.wake_at() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => {
                    self.now = until;
                    return orders;
                }
            }
        }
        panic!("it wants to be woken over and over");
    }
}

fn claims(orders: &[PlanStep]) -> Vec<ShardNumber> {
    let claim = |order: &PlanStep| match order {
        PlanStep::Claim(number) => Some(*number),
        _ => None,
    };
    orders.iter().filter_map(claim).collect()
}

/// Those it gives away, and to whom.
fn leaves(orders: &[PlanStep]) -> Vec<(ShardNumber, Option<&str>, Reason)> {
    let leave = |order| match order {
        &PlanStep::Leave(number, ref next, reason) => {
            Some((number, next.as_ref().map(CandidateId::as_str), reason))
        }
        _ => None,
    };
    orders.iter().filter_map(leave).collect()
}

#[test]
fn nothing_is_claimed_before_it_is_a_member_and_knows_everything() {
    let second = Duration::from_secs(1);
    let mut desk = Desk::new();
    let added = desk.list(&names(2), &[]);
    assert!(matches!(added[..], [PlanStep::Add(1, _), PlanStep::Add(2, _)]), "{added:?}");
    desk.members(&[]);
    desk.answers([1]);
    assert_eq!(desk.waits(second), [], "it is no member");
    desk.steward.seated(desk.now);
    assert_eq!(desk.waits(second), [], "one of them was not looked at");
    desk.answers([2]);
    assert_eq!(claims(&desk.waits(second)), [1, 2]);

    let mut desk = Desk::new();
    desk.steward.seated(desk.now);
    desk.list(&names(2), &[]);
    desk.answers([1, 2]);
    assert_eq!(desk.waits(second), [], "it has not seen who else is there");
    desk.members(&[]);
    assert_eq!(claims(&desk.waits(second)), [1, 2]);
}

#[test]
fn those_that_start_together_see_each_other_before_one_takes_all() {
    let mut desk = Desk::new();
    desk.members(&[]);
    desk.list(&names(10), &[]);
    desk.answers(1..=10);
    desk.steward.seated(desk.now);
    assert_eq!(desk.waits(FIRST_LOOK_AROUND / 2), []);
    desk.members(&["b"]);
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))).len(), 5);
}

#[test]
fn so_many_claims_are_under_way_and_the_rest_waits_its_turn() {
    let mut desk = Desk::new();
    desk.steward.seated(desk.now);
    desk.members(&[]);
    desk.list(&names(CLAIMS + 10), &[]);
    desk.answers(1..=CLAIMS as ShardNumber + 10);
    let first = claims(&desk.waits(Duration::from_secs(1)));
    assert_eq!(first.len(), CLAIMS);
    desk.leads(first.iter().copied().take(7));
    assert_eq!(claims(&desk.waits(Duration::from_millis(1))).len(), 7);
    desk.leads(first.iter().copied().skip(7));
    assert_eq!(claims(&desk.waits(Duration::from_millis(1))).len(), 3);
}

#[test]
fn one_that_has_too_many_gives_them_to_whom_they_are_planned_for() {
    let mut desk = Desk::seated(&[], 6);
    desk.leads(1..=6);
    desk.members(&["b", "c"]);
    let orders = desk.waits(Duration::from_secs(1));
    let left = leaves(&orders);
    assert_eq!(left.len(), 4, "{orders:?}");
    for next in ["b", "c"] {
        assert_eq!(left.iter().filter(|(_, to, _)| *to == Some(next)).count(), 2);
    }
    assert!(left.iter().all(|(.., reason)| *reason == Reason::Rebalance));
    // And once is enough.
    for (number, ..) in &left {
        desk.moves(*number, Phase::Resigning);
    }
    assert_eq!(desk.waits(Duration::from_secs(1)), []);
}

#[test]
fn a_paused_shard_is_given_to_nobody_and_claimed_again_when_it_goes_on() {
    let mut desk = Desk::seated(&["b"], 2);
    desk.leads([1]);
    desk.steward.owner(desk.now, 2, Some("b"), true);
    desk.list(&names(2), &["s00000"]);
    assert_eq!(leaves(&desk.waits(Duration::from_secs(1))), [(1, None, Reason::Paused)]);
    desk.steward.owner(desk.now, 1, None, true);
    desk.moves(1, Phase::Waiting);
    assert_eq!(desk.waits(3 * TTL), []);
    assert_eq!(desk.steward.coverage(desk.now).unowned, 0, "nobody should own it");
    desk.list(&names(2), &[]);
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))), [1]);
}

#[test]
fn a_drained_member_gives_away_all_it_has_and_takes_nothing() {
    let mut desk = Desk::seated(&["b"], 2);
    let mine = if desk.steward.entries[&1].wanted { 1 } else { 2 };
    desk.leads([mine]);
    let states = [(id("a"), desk.state(true)), (id("b"), desk.state(false))];
    desk.steward.members(desk.now, BTreeMap::from(states));
    let orders = desk.waits(Duration::from_millis(200));
    assert_eq!(leaves(&orders), [(mine, Some("b"), Reason::Drain)]);
    desk.moves(mine, Phase::Resigning);
    assert_eq!(desk.waits(Duration::from_secs(1)), [], "its work is ending");
    desk.steward.owner(desk.now, mine, None, true);
    desk.moves(mine, Phase::Waiting);
    assert_eq!(claims(&desk.waits(5 * TTL)), NONE, "not even what nobody else takes");
}

#[test]
fn a_shard_that_is_named_again_while_its_work_ends_is_begun_anew_after_that() {
    let mut desk = Desk::seated(&[], 1);
    desk.leads([1]);
    assert_eq!(desk.list(&[], &[]), [PlanStep::Drop(1, Reason::Removed)]);
    desk.moves(1, Phase::Resigning);
    assert_eq!(desk.list(&names(1), &[]), [], "its last work has not ended");
    assert_eq!(desk.waits(TTL), []);
    let orders = desk.moves(1, Phase::Stopped);
    assert!(matches!(orders[..], [PlanStep::Add(2, _)]), "{orders:?}");
    desk.answers([2]);
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))), [2]);
    // And one that stays away is forgotten.
    assert_eq!(desk.list(&[], &[]), [PlanStep::Drop(2, Reason::Removed)]);
    assert_eq!(desk.moves(2, Phase::Stopped), []);
    assert_eq!(desk.steward.numbers().count(), 0);
    assert_eq!(desk.steward.coverage(desk.now), Coverage::default());
}

#[test]
fn a_shard_nobody_takes_is_adopted_after_a_ttl_and_kept_against_the_share() {
    let mut desk = Desk::seated(&["b"], 4);
    let mine: Vec<ShardNumber> = (1..=4).filter(|at| desk.steward.entries[at].wanted).collect();
    assert_eq!(mine.len(), 2);
    desk.leads(mine);
    assert_eq!(claims(&desk.waits(TTL - 2 * Duration::from_secs(1))), NONE, "they are for b");
    let adopted = claims(&desk.waits(2 * TTL));
    assert_eq!(adopted.len(), 2);
    desk.leads(adopted.clone());
    // Two of the four are for b; those it may know of are offered first, and none for a while after that.
    let orders = desk.waits(TTL / 2);
    let left = leaves(&orders);
    assert!(left.len() == 2 && left.iter().all(|(number, ..)| !adopted.contains(number)));
    for (number, ..) in &left {
        desk.steward.owner(desk.now, *number, Some("b"), true);
        desk.moves(*number, Phase::Waiting);
    }
    assert_eq!(desk.waits(20 * TTL), [], "as it should be");
}

#[test]
fn more_adopted_shards_than_its_share_are_offered_again_seldom() {
    let mut desk = Desk::seated(&["b"], 2);
    let first = if desk.steward.entries[&1].wanted { 1 } else { 2 };
    let other = 3 - first;
    desk.leads([first]);
    // `b` knows of neither, so both are adopted in the end, one after the other.
    let (mut offered, until) = (0, desk.now + 400 * TTL);
    while desk.now < until {
        for order in desk.waits(TTL / 4) {
            match order {
                PlanStep::Claim(number) => desk.leads([number]),
                PlanStep::Leave(number, next, _) => {
                    assert_eq!(next, Some(id("b")));
                    offered += 1;
                    desk.steward.owner(desk.now, number, None, true);
                    desk.moves(number, Phase::Waiting);
                }
                order => panic!("{order:?}"),
            }
        }
    }
    assert!((2..=20).contains(&offered), "{offered} times in 400 TTLs");
    // Somebody takes it: then it is as good as any other.
    desk.steward.owner(desk.now, other, Some("b"), true);
    assert_eq!(desk.steward.entries[&other].adoptions, 0);
}

#[test]
fn a_shard_that_stays_free_makes_it_plan_again() {
    let mut desk = Desk::seated(&["b"], 2);
    let mine = if desk.steward.entries[&1].wanted { 1 } else { 2 };
    desk.leads([mine]);
    desk.steward.owner(desk.now, 3 - mine, Some("b"), true);
    assert_eq!(desk.waits(TTL), []);
    assert_eq!(desk.steward.wake_at(), None, "all is as planned");
    desk.steward.owner(desk.now, 3 - mine, None, true);
    assert!(desk.steward.wake_at().is_some_and(|at| at <= desk.now + TTL));
    assert_eq!(desk.steward.coverage(desk.now).free, 1);
    desk.waits(TTL - Duration::from_secs(1));
    assert_eq!(desk.steward.coverage(desk.now).unowned, 0);
    assert_eq!(claims(&desk.waits(2 * TTL)), [3 - mine]);
    assert_eq!(desk.steward.unowned(desk.now, 5).len(), 1);
}

#[test]
fn whoever_is_no_member_any_more_leaves_all_it_has_and_claims_nothing() {
    let mut desk = Desk::seated(&["b"], 8);
    let mine: Vec<ShardNumber> = (1..=8).filter(|at| desk.steward.entries[at].wanted).collect();
    desk.leads(mine[1..].iter().copied());
    desk.steward.unseated(desk.now, Reason::Expired);
    let orders = desk.waits(Duration::ZERO);
    let left = leaves(&orders);
    assert_eq!(left.len(), 3);
    assert!(left.iter().all(|(_, next, reason)| *next == Some("b") && *reason == Reason::Expired));
    assert!(orders.contains(&PlanStep::Rest(mine[0])), "and does not campaign: {orders:?}");
    assert_eq!(claims(&desk.waits(5 * TTL)), NONE);
    desk.steward.seated(desk.now);
    assert!(!claims(&desk.waits(5 * TTL)).is_empty(), "it is back");
}

#[test]
fn a_shard_whose_lease_cannot_be_read_is_in_nobodys_plan_and_reported() {
    let mut desk = Desk::new();
    desk.steward.seated(desk.now);
    desk.members(&[]);
    desk.list(&names(2), &[]);
    desk.answers([1]);
    desk.steward.broken(desk.now, 2);
    assert_eq!(claims(&desk.waits(2 * TTL)), [1]);
    assert!(desk.steward.unowned(desk.now, 5).iter().any(|shard| shard.as_str() == "s00001"));
    desk.answers([2]);
    assert_eq!(claims(&desk.waits(Duration::from_secs(1))), [2], "somebody has mended it");
}

#[test]
fn what_was_free_while_nobody_could_take_it_is_not_adopted_but_dealt_out() {
    let mut desk = Desk::new();
    desk.members(&["b", "c"]);
    desk.list(&names(9), &[]);
    desk.answers(1..=9);
    // A store that was young, or down: nobody was a member.
    desk.waits(TTL * 5);
    desk.steward.seated(desk.now);
    let orders = desk.waits(Duration::from_secs(1));
    assert_eq!(claims(&orders).len(), 3, "its share, and no more: {orders:?}");
}
