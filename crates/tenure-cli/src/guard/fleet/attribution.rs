//! PURE: process attribution: which command a process belongs to, where many commands run under one guard.
//!
//! A process that loses its parent becomes the guard's child, and its parent no longer tells its origin. So these rules apply,
//! in this order. The process belongs to the command that it belonged to when it was observed before; to its parent's command;
//! to the command whose group or session it is in; to the command whose shard and token are in its environment. A process to
//! which no rule applies has no known owner: it may belong to any command, and no command counts as gone while it exists.

use std::collections::{BTreeSet, HashMap};

use super::super::procfs::ProcessInfo;

/// The command that a process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessOwner {
    /// The process is the command itself.
    Main(u32),
    /// The process descends from the command.
    Of(u32),
    /// No owner is known yet. During an exec a process has no environment, so it is examined once more.
    Unsettled,
    /// No owner is known at the second examination.
    Stray,
}

/// The known owners of all processes.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    /// The commands, by process number.
    mains: HashMap<i32, u32>,
    /// The commands, by shard and token, as in their environment.
    marks: HashMap<(Vec<u8>, Vec<u8>), u32>,
    /// For every process that was found in the last walk: when it was started, and its owner.
    before: HashMap<i32, (u64, Option<u32>)>,
    /// The same for the current walk.
    found: HashMap<i32, (u64, Option<u32>)>,
}

impl Attribution {
    /// Adds a running command.
    pub(super) fn add(&mut self, id: u32, main: i32, shard: &str, token: &str) {
        self.mains.insert(main, id);
        self.marks.insert((shard.into(), token.into()), id);
    }

    /// Removes commands of which no process is left.
    pub(super) fn remove(&mut self, gone: &BTreeSet<u32>) {
        self.mains.retain(|_, id| !gone.contains(id));
        self.marks.retain(|_, id| !gone.contains(id));
    }

    pub(super) fn is_main(&self, pid: i32) -> bool {
        self.mains.contains_key(&pid)
    }

    /// Begins a walk. In a walk, parents have to come before their children.
    pub(super) fn begin_walk(&mut self) {
        self.before = std::mem::take(&mut self.found);
    }

    /// Whether the process was found in this walk.
    pub(super) fn has_found(&self, pid: i32) -> bool {
        self.found.contains_key(&pid)
    }

    pub(super) fn owner_of(
        &mut self,
        process: &ProcessInfo,
        environment: impl FnOnce() -> Option<Vec<u8>>,
    ) -> ProcessOwner {
        let ProcessInfo { pid, started, .. } = *process;
        let before = self.before.get(&pid).filter(|(then, _)| *then == started);
        let before = before.map(|(_, owner)| *owner);
        let main = self.mains.get(&pid).copied();
        let owner = main
            .or_else(|| before.flatten())
            .or_else(|| self.found.get(&process.parent)?.1)
            .or_else(|| self.mains.get(&process.group).copied())
            .or_else(|| self.mains.get(&process.session).copied())
            .or_else(|| self.owner_by_environment(&environment()?));
        self.found.insert(pid, (started, owner));
        match (main, owner, before) {
            (Some(id), _, _) => ProcessOwner::Main(id),
            (None, Some(id), _) => ProcessOwner::Of(id),
            (None, None, Some(_)) => ProcessOwner::Stray,
            (None, None, None) => ProcessOwner::Unsettled,
        }
    }

    fn owner_by_environment(&self, environment: &[u8]) -> Option<u32> {
        let value = |name: &[u8]| {
            let mut variables = environment.split(|byte| *byte == 0);
            variables.find_map(|variable| variable.strip_prefix(name))
        };
        let (shard, token) = (value(b"TENURE_SHARD=")?, value(b"TENURE_TOKEN=")?);
        self.marks.get(&(shard.to_vec(), token.to_vec())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: i32 = 1;
    const A: u32 = 70;
    const B: u32 = 71;

    fn process(pid: i32, parent: i32, group: i32) -> ProcessInfo {
        ProcessInfo { pid, parent, group, session: group, started: 5, ended: false }
    }

    /// A runs as process 10, B as process 20.
    fn attribution() -> Attribution {
        let mut attribution = Attribution::default();
        attribution.add(A, 10, "a b", "7");
        attribution.add(B, 20, "ü", "8");
        attribution
    }

    /// The owners that one walk over these processes finds, if no environment can be read.
    fn walk(attribution: &mut Attribution, processes: &[ProcessInfo]) -> Vec<ProcessOwner> {
        attribution.begin_walk();
        processes.iter().map(|process| attribution.owner_of(process, || None)).collect()
    }

    #[test]
    fn a_descendant_belongs_to_its_command_in_any_group_and_session() {
        let mut attribution = attribution();
        let all = [process(10, GUARD, 10), process(11, 10, 11), process(12, 11, 12)];
        assert_eq!(
            walk(&mut attribution, &all),
            [ProcessOwner::Main(A), ProcessOwner::Of(A), ProcessOwner::Of(A)]
        );
    }

    #[test]
    fn an_orphan_is_attributed_by_its_group() {
        let mut attribution = attribution();
        let all = [process(10, GUARD, 10), process(15, GUARD, 20), process(16, 15, 16)];
        assert_eq!(
            walk(&mut attribution, &all),
            [ProcessOwner::Main(A), ProcessOwner::Of(B), ProcessOwner::Of(B)]
        );
    }

    #[test]
    fn an_orphan_is_attributed_by_its_environment() {
        let mut attribution = attribution();
        let of = |attribution: &mut Attribution, text: &str| {
            attribution.begin_walk();
            attribution.owner_of(&process(15, GUARD, 15), || Some(text.as_bytes().to_vec()))
        };
        assert_eq!(
            of(&mut attribution, "X=1\0TENURE_TOKEN=8\0TENURE_SHARD=ü\0"),
            ProcessOwner::Of(B)
        );
        attribution.begin_walk();
        let not = ["TENURE_TOKEN=7\0TENURE_SHARD=ü\0", "TENURE_SHARD=ü\0", "XTENURE_TOKEN=8\0", ""];
        for text in not {
            let mut attribution = self::attribution();
            assert_eq!(of(&mut attribution, text), ProcessOwner::Unsettled, "{text}");
        }
    }

    #[test]
    fn a_process_keeps_its_owner_after_its_parents_died() {
        let mut attribution = attribution();
        walk(&mut attribution, &[process(10, GUARD, 10), process(11, 10, 11)]);
        let orphan = process(11, GUARD, 11);
        assert_eq!(walk(&mut attribution, &[orphan]), [ProcessOwner::Of(A)]);
        let stranger = ProcessInfo { started: 6, ..orphan };
        assert_eq!(
            walk(&mut attribution, &[stranger]),
            [ProcessOwner::Unsettled],
            "the number is another's now"
        );
    }

    #[test]
    fn a_process_without_owner_is_a_stray_in_the_second_walk() {
        let mut attribution = attribution();
        let stray = process(15, GUARD, 15);
        assert_eq!(walk(&mut attribution, &[stray]), [ProcessOwner::Unsettled]);
        assert_eq!(walk(&mut attribution, &[stray]), [ProcessOwner::Stray]);
        assert_eq!(
            walk(&mut attribution, &[stray, process(16, 15, 16)]),
            [ProcessOwner::Stray, ProcessOwner::Unsettled]
        );
    }

    #[test]
    fn a_removed_command_owns_no_process() {
        let mut attribution = attribution();
        attribution.remove(&BTreeSet::from([A]));
        assert_eq!(walk(&mut attribution, &[process(15, GUARD, 10)]), [ProcessOwner::Unsettled]);
        assert_eq!(walk(&mut attribution, &[process(16, GUARD, 20)]), [ProcessOwner::Of(B)]);
    }
}
