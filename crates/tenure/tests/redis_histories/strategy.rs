//! Random histories, and how a failing one is shrunk: first steps are left out, then those that remain are made simpler.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::{NewTree, ValueTree};
use proptest::test_runner::{Reason, TestRunner};

use super::history::{
    Boundary, CANDIDATES, ClaimStep, ForeignValue, Garbage, HoldChange, HoldChoice, NAMES,
    NameIndex, Operation, Pause, ReleaseStep, Step, WaitChoice,
};

/// The fewest steps of a history. Every step is at least one call of the store whose answer is compared.
pub(crate) const MIN_STEPS: usize = 40;
const MAX_STEPS: usize = 60;

/// Histories with or without restarts of the server.
#[derive(Debug)]
pub(crate) struct Histories {
    step: BoxedStrategy<Step>,
}

impl Histories {
    pub(crate) fn new(restarts: bool) -> Self {
        Histories { step: step(restarts) }
    }
}

impl Strategy for Histories {
    type Tree = HistoryTree;
    type Value = Vec<Step>;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let count = (MIN_STEPS..=MAX_STEPS).new_tree(runner)?.current();
        let steps = (0..count).map(|_| self.step.new_tree(runner));
        Ok(HistoryTree {
            steps: steps.collect::<Result<Vec<_>, Reason>>()?,
            remaining: (0..count).collect(),
            shrinking: Shrinking::Removal { at: 0, many: count / 2 },
            removed: Vec::new(),
        })
    }
}

/// A history that can be shrunk below the length at which histories are generated.
pub(crate) struct HistoryTree {
    steps: Vec<Box<dyn ValueTree<Value = Step>>>,
    /// The steps that are still part of the history.
    remaining: Vec<usize>,
    shrinking: Shrinking,
    /// The steps that were removed last.
    removed: Vec<usize>,
}

/// What is tried next.
#[derive(Clone, Copy)]
enum Shrinking {
    /// To remove this many of the remaining steps, from this one on.
    Removal { at: usize, many: usize },
    /// To make this one of the remaining steps simpler.
    Simplification { at: usize },
}

impl ValueTree for HistoryTree {
    type Value = Vec<Step>;

    fn current(&self) -> Vec<Step> {
        self.remaining.iter().map(|&step| self.steps[step].current()).collect()
    }

    fn simplify(&mut self) -> bool {
        loop {
            match self.shrinking {
                Shrinking::Removal { at, many } if many > 0 && at < self.remaining.len() => {
                    let end = self.remaining.len().min(at + many);
                    self.removed = self.remaining.drain(at..end).collect();
                    return true;
                }
                Shrinking::Removal { many: 0 | 1, .. } => {
                    self.shrinking = Shrinking::Simplification { at: 0 };
                }
                Shrinking::Removal { many, .. } => {
                    self.shrinking = Shrinking::Removal { at: 0, many: many / 2 };
                }
                Shrinking::Simplification { at } => {
                    let Some(&step) = self.remaining.get(at) else { return false };
                    if self.steps[step].simplify() {
                        return true;
                    }
                    self.shrinking = Shrinking::Simplification { at: at + 1 };
                }
            }
        }
    }

    fn complicate(&mut self) -> bool {
        match self.shrinking {
            // What has just failed again did not fail this time: there is nothing to restore.
            Shrinking::Removal { .. } if self.removed.is_empty() => false,
            Shrinking::Removal { at, many } => {
                self.remaining.splice(at..at, self.removed.drain(..));
                self.shrinking = Shrinking::Removal { at: at + many, many };
                true
            }
            Shrinking::Simplification { at } => {
                if self.steps[self.remaining[at]].complicate() {
                    return true;
                }
                self.shrinking = Shrinking::Simplification { at: at + 1 };
                self.simplify()
            }
        }
    }
}

fn name() -> impl Strategy<Value = NameIndex> {
    prop_oneof![3 => Just(0), 1 => Just(1), 2 => Just(NAMES.len() - 1)]
}

fn candidate() -> impl Strategy<Value = usize> {
    0..CANDIDATES.len()
}

/// Whole milliseconds and others, from the shortest to the longest.
fn ttl_micros() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => select(vec![5_000_000, 30_000_000]),
        2 => select(vec![1_000, 1_500_500, 999_999]),
        1 => select(vec![3_600_000_000, 86_400_000_000]),
    ]
}

fn pause() -> impl Strategy<Value = Pause> {
    let boundary = select(vec![Boundary::Term, Boundary::Key, Boundary::Wait]);
    prop_oneof![
        20 => Just(Pause::None),
        4 => select(vec![1, 500, 1_000, 4_000]).prop_map(Pause::Millis),
        4 => (name(), boundary, -1..=1_i64).prop_map(|(n, b, offset)| Pause::Until(n, b, offset)),
        1 => (name(), -1..=1_i64).prop_map(|(n, offset)| Pause::Until(n, Boundary::Companion, offset)),
    ]
}

fn claim() -> impl Strategy<Value = ClaimStep> {
    let wait = prop_oneof![
        6 => Just(WaitChoice::Usual),
        1 => Just(WaitChoice::Unusual),
        2 => select(vec![3_000_000, 7_000_500]).prop_map(WaitChoice::AtLeast),
    ];
    let keeps_history = prop_oneof![4 => Just(true), 1 => Just(false)];
    let note = select(vec!["", "http://c0:8080", "caf\u{e9}"]);
    (name(), candidate(), 1..=3_u128, ttl_micros(), note, wait, keeps_history).prop_map(
        |(name, candidate, nonce, ttl_micros, note, wait, keeps_history)| ClaimStep {
            name,
            candidate,
            nonce,
            ttl_micros,
            note,
            wait,
            keeps_history,
        },
    )
}

fn hold() -> impl Strategy<Value = HoldChoice> {
    let age = prop_oneof![6 => Just(0), 1 => Just(1), 1 => Just(2)];
    let change = prop_oneof![
        12 => Just(HoldChange::Nothing),
        1 => Just(HoldChange::Candidate),
        1 => Just(HoldChange::Nonce),
        1 => Just(HoldChange::LowerToken),
        1 => Just(HoldChange::HigherToken),
    ];
    (name(), age, change).prop_map(|(name, age, change)| HoldChoice { name, age, change })
}

fn release() -> impl Strategy<Value = ReleaseStep> {
    (hold(), proptest::option::of(candidate())).prop_map(|(hold, next)| ReleaseStep { hold, next })
}

/// The items of a batch are independent, also those about the same name.
fn batch<S: Strategy>(item: S) -> impl Strategy<Value = Vec<S::Value>> {
    proptest::collection::vec(item, 1..=3)
}

/// What candidates and operators ask of the store.
fn store_call() -> impl Strategy<Value = Operation> {
    let numbers = select(vec![0, 1, 2, 10, 9_007_199_254_740_993, u64::MAX]);
    let checkpoint = select(vec!["", "row 1", "row 2"]);
    prop_oneof![
        16 => batch(claim()).prop_map(Operation::Acquire),
        7 => (batch(hold()), ttl_micros())
            .prop_map(|(holds, ttl_micros)| Operation::Renew { holds, ttl_micros }),
        6 => batch(release()).prop_map(Operation::Release),
        5 => (hold(), numbers, checkpoint)
            .prop_map(|(hold, number, checkpoint)| Operation::Save { hold, number, checkpoint }),
        3 => (name(), any::<bool>()).prop_map(|(name, now)| Operation::Revoke { name, now }),
        2 => Just(Operation::ObservePrefix),
    ]
}

/// What other programs do to the keys.
fn foreign_call() -> impl Strategy<Value = Operation> {
    let value = prop_oneof![
        4 => candidate().prop_map(ForeignValue::Candidate),
        1 => select(vec![ForeignValue::Empty, ForeignValue::Bytes, ForeignValue::Long]),
    ];
    // As long as the terms, so that some keys look exactly like one of Tenure's.
    let expires_in = || proptest::option::weighted(0.8, select(vec![1_000, 5_000, 30_000]));
    let garbage =
        vec![Garbage::List, Garbage::Text, Garbage::Half, Garbage::Format, Garbage::Token];
    prop_oneof![
        4 => (name(), value, any::<bool>(), expires_in()).prop_map(
            |(name, value, only_if_absent, expires_in)| Operation::SetKey {
                name,
                value,
                only_if_absent,
                expires_in
            }
        ),
        2 => (name(), expires_in())
            .prop_map(|(name, expires_in)| Operation::ExpireKey { name, expires_in }),
        7 => name().prop_map(|name| Operation::DeleteKey { name }),
        1 => name().prop_map(|name| Operation::DeleteCompanion { name }),
        1 => (name(), select(garbage))
            .prop_map(|(name, garbage)| Operation::Corrupt { name, garbage }),
        3 => name().prop_map(|name| Operation::DeleteBoth { name }),
        1 => (name(), 1..=3_u64)
            .prop_map(|(name, below)| Operation::NearLastToken { name, below }),
    ]
}

fn step(restarts: bool) -> BoxedStrategy<Step> {
    let operation = prop_oneof![
        30 => store_call(),
        6 => foreign_call(),
        u32::from(restarts) * 3 => Just(Operation::Restart),
    ];
    (pause(), operation).prop_map(|(pause, operation)| Step { pause, operation }).boxed()
}
