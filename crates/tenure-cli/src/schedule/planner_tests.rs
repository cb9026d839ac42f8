//! Leaders change, clocks disagree, saves fail: no slot begins twice.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::planner::ClockAhead;
use super::*;

const HOUR: u64 = 3_600_000;
/// The start of the tests: 2025-06-18T15:00:00Z.
const T: u64 = 1_750_258_800_000;

fn every(ms: u64) -> Schedule {
    Schedule::Every(ms)
}

fn daily() -> Schedule {
    Schedule::cron("0 2 * * *", Some("UTC")).unwrap()
}

fn policy(missed: Missed, interrupted: Interrupted) -> Policy {
    Policy { missed, interrupted, once: None }
}

fn once(process_start: u64) -> Policy {
    Policy { once: Some(process_start), ..Policy::default() }
}

/// Begins the slot that is due at `now`.
fn begin(planner: &mut SchedulePlanner, now: u64) -> Slot {
    let ScheduleStep::Begin(slot) = planner.step(now) else { panic!("{planner:?}") };
    let draft = planner.draft(slot, "a", now);
    planner.begun(draft);
    slot
}

/// The checkpoint of a term that has run the slot of `now`.
fn left(schedule: &Schedule, now: u64, outcome: RunOutcome) -> Option<ScheduleCheckpoint> {
    let mut planner = SchedulePlanner::new(schedule.clone(), once(now), None);
    begin(&mut planner, now);
    if outcome != RunOutcome::Running {
        planner.ended(outcome, None, now + 1);
    }
    Some(planner.checkpoint().clone())
}

fn wait(until: u64) -> ScheduleStep {
    ScheduleStep::Wait { until: Some(until) }
}

#[test]
fn the_first_leader_of_all_begins_at_once_or_as_cron_does() {
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), None);
    assert_eq!(planner.step(T + 2_000), ScheduleStep::Begin(Slot { at: T, number: 350_051_760 }));
    let mut planner = SchedulePlanner::new(daily(), Policy::default(), None);
    assert_eq!(planner.step(T), wait(T + 11 * HOUR));
    // So that its successor knows which slots were waited for.
    let known = planner.unsaved().cloned();
    assert_eq!(known.as_ref().unwrap().count, 0);
    let mut planner = SchedulePlanner::new(daily(), Policy::default(), known);
    assert_eq!(begin(&mut planner, T + 12 * HOUR).at, T + 11 * HOUR);
    let mut planner = SchedulePlanner::new(daily(), once(T), None);
    assert_eq!(begin(&mut planner, T).at, T - 13 * HOUR);
}

#[test]
fn a_count_of_mock_is_continued() {
    let counted = ScheduleCheckpoint::read(Some(b"{\"count\":41}")).unwrap();
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), counted);
    begin(&mut planner, T);
    assert_eq!(planner.checkpoint().count, 42);
}

#[test]
fn after_a_run_the_next_slot_is_waited_for() {
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), None);
    begin(&mut planner, T);
    assert_eq!(planner.step(T + 1_000), wait(T + 5_000));
    planner.ended(RunOutcome::Failed, Some("exit code 3".to_owned()), T + 1_500);
    let run = planner.unsaved().unwrap().last_run.clone().unwrap();
    assert_eq!((run.outcome, run.ended_at), (RunOutcome::Failed, Some(T + 1_500)));
    planner.saved();
    assert_eq!(planner.unsaved(), None);
    assert_eq!(planner.step(T + 1_500), wait(T + 5_000));
    assert_eq!(begin(&mut planner, T + 5_000).number, 350_051_761);
    assert_eq!(planner.checkpoint().count, 2);
}

#[test]
fn slots_that_come_during_a_run_are_skipped_for_good() {
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), None);
    begin(&mut planner, T);
    let slot = Slot { at: T + 10_000, number: 350_051_762 };
    assert_eq!(planner.step(T + 12_000), ScheduleStep::Skip { slot, slots: 2 });
    assert_eq!(planner.step(T + 12_000), wait(T + 15_000));
    planner.ended(RunOutcome::Ok, None, T + 13_000);
    assert_eq!(planner.step(T + 13_000), wait(T + 15_000));
    assert_eq!((planner.checkpoint().skipped, planner.checkpoint().missed), (2, 0));
    // The next leader does not run them either.
    let known = planner.checkpoint().clone();
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), Some(known));
    assert_eq!(planner.step(T + 14_000), wait(T + 15_000));
}

#[test]
fn of_the_missed_slots_the_newest_is_run_or_none() {
    let checkpoint = left(&every(5_000), T, RunOutcome::Ok);
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), checkpoint.clone());
    assert_eq!(begin(&mut planner, T + 21_000).at, T + 20_000);
    assert_eq!(planner.checkpoint().missed, 3);
    let skip = policy(Missed::Skip, Interrupted::Report);
    let mut planner = SchedulePlanner::new(every(5_000), skip, checkpoint);
    assert_eq!(planner.step(T + 21_000), wait(T + 25_000));
    assert_eq!(planner.unsaved().unwrap().missed, 4);
    // A slot that comes during the term is run, even a little late.
    assert_eq!(begin(&mut planner, T + 25_700).at, T + 25_000);
    assert_eq!(planner.checkpoint().missed, 4);
}

#[test]
fn an_interrupted_run_is_reported_once() {
    let checkpoint = left(&every(5_000), T, RunOutcome::Running);
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), checkpoint.clone());
    let run = checkpoint.unwrap().last_run.unwrap();
    assert_eq!(planner.step(T + 3_000), ScheduleStep::Interrupted(run));
    let saved = planner.unsaved().unwrap().clone();
    assert_eq!(saved.last_run.as_ref().unwrap().outcome, RunOutcome::Interrupted);
    assert_eq!(planner.step(T + 3_000), wait(T + 5_000));
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), Some(saved));
    assert_eq!(planner.step(T + 4_000), wait(T + 5_000));
}

#[test]
fn a_draft_that_may_have_been_kept_is_not_undone() {
    let checkpoint = left(&every(5_000), T, RunOutcome::Running);
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), checkpoint);
    assert!(matches!(planner.step(T + 5_000), ScheduleStep::Interrupted(_)));
    let ScheduleStep::Begin(slot) = planner.step(T + 5_000) else { panic!("{planner:?}") };
    let draft = planner.draft(slot, "a", T + 5_000);
    assert_eq!((draft.count, planner.unsaved()), (2, None));
    // Another draft, the same or a newer one: the count is the same.
    assert_eq!(planner.step(T + 9_000), ScheduleStep::Begin(slot));
    assert_eq!(planner.draft(slot, "a", T + 9_000).count, 2);
    let ScheduleStep::Begin(slot) = planner.step(T + 10_000) else { panic!("{planner:?}") };
    assert_eq!(planner.draft(slot, "a", T + 10_000).count, 2);
}

#[test]
fn a_rerun_is_a_new_run_of_the_same_slot() {
    let checkpoint = left(&every(5_000), T, RunOutcome::Running);
    let rerun = policy(Missed::RunOnce, Interrupted::Rerun);
    let mut planner = SchedulePlanner::new(every(5_000), rerun, checkpoint);
    assert!(matches!(planner.step(T + 11_000), ScheduleStep::Interrupted(_)));
    assert_eq!(begin(&mut planner, T + 11_000), Slot { at: T, number: 350_051_760 });
    assert_eq!((planner.checkpoint().count, planner.checkpoint().missed), (2, 2));
    planner.ended(RunOutcome::Ok, None, T + 12_000);
    // One run makes up for everything.
    assert_eq!(planner.step(T + 12_000), wait(T + 15_000));
}

#[test]
fn a_changed_schedule_continues_after_the_old_one() {
    for rerun in [Interrupted::Report, Interrupted::Rerun] {
        let rerun = policy(Missed::RunOnce, rerun);
        // The numbers of the two schedules are unrelated.
        for (old, new, next) in [
            (every(5_000), every(60_000), T + 60_000),
            (every(60_000), every(5_000), T + 5_000),
            (every(1), daily(), T + 11 * HOUR),
            (daily(), every(5_000), T),
        ] {
            let mut planner = SchedulePlanner::new(new, rerun, left(&old, T, RunOutcome::Running));
            assert!(matches!(planner.step(T + 1_000), ScheduleStep::Interrupted(_)));
            if rerun.interrupted == Interrupted::Rerun {
                assert!(begin(&mut planner, T + 1_000).at <= T);
                planner.ended(RunOutcome::Ok, None, T + 2_000);
            }
            match planner.step(T + 2_000) {
                ScheduleStep::Wait { until } => assert_eq!(until, Some(next.max(T + 5_000))),
                ScheduleStep::Begin(slot) => assert_eq!(slot.at, next),
                step => panic!("{step:?}"),
            }
        }
    }
}

#[test]
fn a_clock_that_is_behind_waits_and_one_that_was_far_ahead_is_reported() {
    let checkpoint = left(&every(5_000), T + 30_000, RunOutcome::Ok);
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), checkpoint);
    assert_eq!(planner.step(T), wait(T + 35_000));
    let checkpoint = left(&every(5_000), T + 2 * HOUR, RunOutcome::Ok);
    let mut planner = SchedulePlanner::new(every(5_000), Policy::default(), checkpoint);
    let ahead = ClockAhead {
        by: Some("a".to_owned()),
        settled_to: T + 2 * HOUR,
        idle_ms: Some(2 * HOUR + 5_000),
    };
    assert_eq!(planner.step(T), ScheduleStep::Ahead(ahead));
    assert_eq!(planner.step(T), wait(T + 2 * HOUR + 5_000));
    begin(&mut planner, T + 2 * HOUR + 5_000);
}

#[test]
fn once_means_the_slot_of_the_process_start() {
    let day = every(24 * HOUR);
    let mut planner = SchedulePlanner::new(day.clone(), once(T), None);
    begin(&mut planner, T + HOUR);
    assert_eq!(planner.step(T + HOUR), ScheduleStep::Wait { until: None });
    // However long it waits for the lease.
    assert_eq!(planner.step(T + 100 * HOUR), ScheduleStep::Wait { until: None });
    planner.ended(RunOutcome::Failed, None, T + 100 * HOUR);
    assert_eq!(planner.step(T + 100 * HOUR), ScheduleStep::Done);
    let known = planner.checkpoint().clone();
    // However long one candidate has waited for the other.
    let mut planner = SchedulePlanner::new(day.clone(), once(T + 3_000), Some(known.clone()));
    assert_eq!(planner.step(T + 100 * HOUR), ScheduleStep::Done);
    let mut planner = SchedulePlanner::new(day, once(T + 24 * HOUR), Some(known));
    begin(&mut planner, T + 24 * HOUR);
}

#[test]
fn once_reruns_an_interrupted_slot_only_with_rerun_and_for_its_own_slot() {
    let day = every(24 * HOUR);
    let checkpoint = left(&day, T, RunOutcome::Running);
    for (interrupted, process_start, runs) in [
        (Interrupted::Report, T + HOUR, false),
        (Interrupted::Rerun, T + HOUR, true),
        (Interrupted::Report, T + 24 * HOUR, true),
        (Interrupted::Rerun, T + 24 * HOUR, true),
    ] {
        let policy = Policy { once: Some(process_start), interrupted, ..Policy::default() };
        let mut planner = SchedulePlanner::new(day.clone(), policy, checkpoint.clone());
        assert!(matches!(planner.step(process_start), ScheduleStep::Interrupted(_)));
        match planner.step(process_start) {
            ScheduleStep::Begin(slot) => assert!(runs && Some(slot) == day.current(process_start)),
            step => assert!(!runs && step == ScheduleStep::Done),
        }
    }
}

/// The events of a group of nodes.
#[derive(Clone, Debug)]
enum NodeEvent {
    Time(u64),
    /// The leader is lost in any state, and this node leads.
    Leads(usize),
    /// The clock of a node is set to this offset.
    Set(usize, i64),
    /// The run of the leader ends.
    Ends,
    /// The leader takes a step, and its next save has this result.
    TakesStep(SimulatedSave),
}

#[derive(Clone, Copy, Debug)]
enum SimulatedSave {
    Kept,
    /// Kept, and the leader is lost before it has started anything.
    KeptAndGone,
    /// Kept, but the response was lost.
    KeptUnknown,
    /// Not kept, and the response was lost.
    Dropped,
}

fn node_events() -> impl Strategy<Value = Vec<NodeEvent>> {
    let save = prop_oneof![
        12 => Just(SimulatedSave::Kept),
        1 => Just(SimulatedSave::KeptAndGone),
        1 => Just(SimulatedSave::KeptUnknown),
        1 => Just(SimulatedSave::Dropped),
    ];
    let one = prop_oneof![
        4 => (0..9_000_u64).prop_map(NodeEvent::Time),
        1 => (0..200_000_u64).prop_map(NodeEvent::Time),
        1 => (0..4_usize).prop_map(NodeEvent::Leads),
        1 => (0..4_usize, skew()).prop_map(|(node, skew)| NodeEvent::Set(node, skew)),
        3 => Just(NodeEvent::Ends),
        8 => save.prop_map(NodeEvent::TakesStep),
    ];
    proptest::collection::vec(one, 1..200)
}

fn policies() -> impl Strategy<Value = Policy> {
    let missed = prop_oneof![Just(Missed::RunOnce), Just(Missed::Skip)];
    let interrupted = prop_oneof![Just(Interrupted::Report), Just(Interrupted::Rerun)];
    (missed, interrupted).prop_map(|(missed, interrupted)| policy(missed, interrupted))
}

/// A lease, its checkpoint, and the runs that were really started.
struct ScheduleSimulation {
    schedule: Schedule,
    policy: Policy,
    skews: [i64; 4],
    time: u64,
    stored: Option<String>,
    leader: Option<(usize, SchedulePlanner)>,
    started: Vec<Slot>,
    counts: Vec<u64>,
}

impl ScheduleSimulation {
    fn new(schedule: Schedule, policy: Policy, skews: [i64; 4]) -> ScheduleSimulation {
        let (leader, started, counts) = (None, Vec::new(), Vec::new());
        ScheduleSimulation {
            schedule,
            policy,
            skews,
            time: T,
            stored: None,
            leader,
            started,
            counts,
        }
    }

    fn read(&self) -> Option<ScheduleCheckpoint> {
        ScheduleCheckpoint::read(self.stored.as_deref().map(str::as_bytes)).unwrap()
    }

    fn keep(stored: &mut Option<String>, checkpoint: &ScheduleCheckpoint, counts: &mut Vec<u64>) {
        *stored = Some(checkpoint.to_json());
        counts.push(checkpoint.count);
    }

    fn apply(&mut self, what: &NodeEvent) {
        match *what {
            NodeEvent::Time(ms) => self.time += ms,
            NodeEvent::Set(node, skew) => self.skews[node] = skew,
            NodeEvent::Leads(node) => {
                let planner = SchedulePlanner::new(self.schedule.clone(), self.policy, self.read());
                self.leader = Some((node, planner));
            }
            NodeEvent::Ends => {
                if let Some((_, planner)) = &mut self.leader {
                    planner.ended(RunOutcome::Ok, None, self.time);
                }
            }
            NodeEvent::TakesStep(save) => self.step(save),
        }
    }

    fn step(&mut self, save: SimulatedSave) {
        let Some((node, planner)) = &mut self.leader else { return };
        let now = self.time.saturating_add_signed(self.skews[*node]);
        let step = planner.step(now);
        let ScheduleStep::Begin(slot) = step else {
            if let Some(checkpoint) = planner.unsaved()
                && matches!(save, SimulatedSave::Kept)
            {
                Self::keep(&mut self.stored, checkpoint, &mut self.counts);
                planner.saved();
            }
            return;
        };
        let draft = planner.draft(slot, "other", now);
        if !matches!(save, SimulatedSave::Dropped) {
            Self::keep(&mut self.stored, &draft, &mut self.counts);
        }
        match save {
            SimulatedSave::Kept => {
                planner.begun(draft);
                self.started.push(slot);
            }
            SimulatedSave::KeptAndGone => self.leader = None,
            SimulatedSave::KeptUnknown | SimulatedSave::Dropped => {}
        }
    }
}

fn skew() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => -3_000..3_000_i64,
        1 => -7_200_000..7_200_000_i64,
    ]
}

fn skews() -> impl Strategy<Value = [i64; 4]> {
    [skew(), skew(), skew(), skew()]
}

fn work() -> impl Strategy<Value = Schedule> {
    prop_oneof![
        3 => (1..60_000_u64).prop_map(Schedule::Every),
        1 => Just(Schedule::cron("* * * * *", Some("Europe/Berlin")).unwrap()),
        1 => Just(Schedule::cron("*/10 * * * * *", Some("UTC")).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_slot_begins_twice(
        schedule in work(), policy in policies(), skews in skews(), all in node_events(),
    ) {
        let mut simulation = ScheduleSimulation::new(schedule, policy, skews);
        for what in &all {
            simulation.apply(what);
            prop_assert!(simulation.stored.as_ref().is_none_or(|text| text.len() <= 4096));
        }
        let distinct: BTreeSet<Slot> = simulation.started.iter().copied().collect();
        if policy.interrupted == Interrupted::Report {
            prop_assert_eq!(distinct.len(), simulation.started.len(), "{:?}", simulation.started);
        }
        // The same or newer, never older.
        prop_assert!(simulation.started.is_sorted(), "{:?}", simulation.started);
        prop_assert!(simulation.counts.is_sorted(), "{:?}", simulation.counts);
        prop_assert!(simulation.started.len() as u64 <= simulation.counts.last().copied().unwrap_or(0));
    }

    /// Begun, skipped or missed: each slot is counted as exactly one of them.
    #[test]
    fn every_slot_is_counted_once(
        period in 1_000..60_000_u64, missed in policies(), skews in skews(), all in node_events(),
    ) {
        let policy = policy(missed.missed, Interrupted::Report);
        let mut simulation = ScheduleSimulation::new(every(period), policy, skews);
        // The first slot is saved for certain here: a leader that got no response for it would restart the count.
        simulation.apply(&NodeEvent::Leads(0));
        simulation.apply(&NodeEvent::TakesStep(SimulatedSave::Kept));
        let first = simulation.started[0].number;
        for what in &all {
            simulation.apply(what);
            let checkpoint = simulation.read().unwrap();
            let settled = checkpoint.settled_to.unwrap() / period;
            let counted = checkpoint.count + checkpoint.skipped + checkpoint.missed;
            prop_assert_eq!(counted, settled - first + 1, "{:?}", checkpoint);
        }
    }

    #[test]
    fn without_faults_every_slot_begins(
        schedule in work(), seed in 0..HOUR, takes in 1..900_u64, changes in 0..5_usize,
    ) {
        // With shorter periods a run of one second would not end in time.
        prop_assume!(!matches!(schedule, Schedule::Every(..1_000)));
        let mut now = T + seed;
        let mut planner = SchedulePlanner::new(schedule.clone(), Policy::default(), None);
        let mut begun = Vec::new();
        while begun.len() < 40 {
            match planner.step(now) {
                ScheduleStep::Begin(slot) => {
                    let draft = planner.draft(slot, "a", now);
                    planner.begun(draft);
                    begun.push(slot);
                    now += takes;
                    planner.ended(RunOutcome::Ok, None, now);
                    // Another leader takes over in between.
                    if begun.len() % 10 < changes {
                        let text = planner.unsaved().unwrap().to_json();
                        let read = ScheduleCheckpoint::read(Some(text.as_bytes())).unwrap();
                        planner = SchedulePlanner::new(schedule.clone(), Policy::default(), read);
                    }
                }
                ScheduleStep::Wait { until } => now = until.unwrap(),
                step => prop_assert!(false, "{step:?}"),
            }
        }
        for pair in begun.windows(2) {
            prop_assert_eq!(schedule.next(pair[0].at), Some(pair[1]));
        }
        prop_assert_eq!(planner.checkpoint().count, 40);
        prop_assert_eq!((planner.checkpoint().missed, planner.checkpoint().skipped), (0, 0));
    }

    /// The crontab line: cron starts it on every host when that host's own clock shows `minute`.
    #[test]
    fn one_crontab_line_is_one_run(
        minute in 0..1_440_u64,
        skews in proptest::collection::vec(-3_000..3_000_i64, 2..5),
        delays in proptest::collection::vec(0..2_000_u64, 5),
        takes in prop_oneof![Just(2_000_u64), Just(60_000), Just(100 * HOUR)],
        cron in any::<bool>(),
    ) {
        let schedule = if cron { daily() } else { every(24 * HOUR) };
        let shown = T / (24 * HOUR) * 24 * HOUR + minute * 60_000;
        // In the order in which they get the lease: each waits for the one before.
        let mut nodes: Vec<(u64, i64)> = skews
            .iter()
            .zip(&delays)
            .map(|(skew, delay)| (shown.saturating_add_signed(-skew) + delay, *skew))
            .collect();
        nodes.sort_unstable();
        let (mut free, mut runs, mut checkpoint) = (0, 0, None);
        for (started, skew) in nodes {
            let clock = |time: u64| time.saturating_add_signed(skew);
            let leads = started.max(free);
            let mut planner = SchedulePlanner::new(schedule.clone(), once(clock(started)), checkpoint);
            if let ScheduleStep::Begin(slot) = planner.step(clock(leads)) {
                let draft = planner.draft(slot, "a", clock(leads));
                planner.begun(draft);
                runs += 1;
                free = leads + takes;
                planner.ended(RunOutcome::Ok, None, clock(free));
            }
            prop_assert_eq!(planner.step(clock(free)), ScheduleStep::Done);
            checkpoint = Some(planner.checkpoint().clone());
        }
        prop_assert_eq!(runs, 1);
    }
}
