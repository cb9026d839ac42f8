//! PURE: whose a process is, where many commands run under one guard.
//!
//! A process that loses its parent becomes the guard's child, and its parent no longer says where it came from. So, in this
//! order: it is whose it was when it was seen before; whose its parent is; whose group or session it is in; and of the
//! command whose shard and token stand in its environment. One of which nothing of this can be said is nobody's: it may be
//! anybody's, and no command counts as gone beside it.

use std::collections::{BTreeSet, HashMap};

use super::super::procfs::ProcessInfo;

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A command itself.
    Main(u32),
    /// What came of one.
    Of(u32),
    /// Nobody's so far: in the middle of an exec there is no environment, so it is looked at once more.
    Unsettled,
    /// Nobody's.
    Stray,
}

/// What is known of everybody.
#[derive(Debug, Default)]
pub(super) struct Attribution {
    /// The commands, by their process.
    mains: HashMap<i32, u32>,
    /// The commands, by what stands in their environment: shard and token.
    marks: HashMap<(Vec<u8>, Vec<u8>), u32>,
    /// When it was started and whose it was, of everybody who was found in the last walk.
    before: HashMap<i32, (u64, Option<u32>)>,
    /// The same of the walk that is under way.
    found: HashMap<i32, (u64, Option<u32>)>,
}

impl Attribution {
    /// A command runs.
    pub(super) fn add(&mut self, id: u32, main: i32, shard: &str, token: &str) {
        self.mains.insert(main, id);
        self.marks.insert((shard.into(), token.into()), id);
    }

    /// Nothing of these is left.
    pub(super) fn remove(&mut self, gone: &BTreeSet<u32>) {
        self.mains.retain(|_, id| !gone.contains(id));
        self.marks.retain(|_, id| !gone.contains(id));
    }

    pub(super) fn is_main(&self, pid: i32) -> bool {
        self.mains.contains_key(&pid)
    }

    /// Everybody is looked at anew; parents have to come before their children.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.found);
    }

    /// Whether it was found in this walk.
    pub(super) fn has_found(&self, pid: i32) -> bool {
        self.found.contains_key(&pid)
    }

    pub(super) fn whose(
        &mut self,
        process: &ProcessInfo,
        environment: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Owner {
        let ProcessInfo { pid, started, .. } = *process;
        let before = self.before.get(&pid).filter(|(then, _)| *then == started);
        let before = before.map(|(_, whose)| *whose);
        let main = self.mains.get(&pid).copied();
        let whose = main
            .or_else(|| before.flatten())
            .or_else(|| self.found.get(&process.parent)?.1)
            .or_else(|| self.mains.get(&process.group).copied())
            .or_else(|| self.mains.get(&process.session).copied())
            .or_else(|| self.marked(&environment()?));
        self.found.insert(pid, (started, whose));
        match (main, whose, before) {
            (Some(id), _, _) => Owner::Main(id),
            (None, Some(id), _) => Owner::Of(id),
            (None, None, Some(_)) => Owner::Stray,
            (None, None, None) => Owner::Unsettled,
        }
    }

    fn marked(&self, environment: &[u8]) -> Option<u32> {
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

    /// A runs as 10, B as 20, both known.
    fn kin() -> Attribution {
        let mut kin = Attribution::default();
        kin.add(A, 10, "a b", "7");
        kin.add(B, 20, "ü", "8");
        kin
    }

    /// What one walk over these makes of each, if nobody has an environment.
    fn walk(kin: &mut Attribution, processes: &[ProcessInfo]) -> Vec<Owner> {
        kin.begin();
        processes.iter().map(|process| kin.whose(process, || None)).collect()
    }

    #[test]
    fn who_descends_from_a_command_is_its_own_whatever_its_group_and_session() {
        let mut kin = kin();
        let all = [process(10, GUARD, 10), process(11, 10, 11), process(12, 11, 12)];
        assert_eq!(walk(&mut kin, &all), [Owner::Main(A), Owner::Of(A), Owner::Of(A)]);
    }

    #[test]
    fn an_orphan_is_known_by_its_group() {
        let mut kin = kin();
        let all = [process(10, GUARD, 10), process(15, GUARD, 20), process(16, 15, 16)];
        assert_eq!(walk(&mut kin, &all), [Owner::Main(A), Owner::Of(B), Owner::Of(B)]);
    }

    #[test]
    fn an_orphan_is_known_by_its_environment() {
        let mut kin = kin();
        let of = |kin: &mut Attribution, text: &str| {
            kin.begin();
            kin.whose(&process(15, GUARD, 15), || Some(text.as_bytes().to_vec()))
        };
        assert_eq!(of(&mut kin, "X=1\0TENURE_TOKEN=8\0TENURE_SHARD=ü\0"), Owner::Of(B));
        kin.begin();
        let not = ["TENURE_TOKEN=7\0TENURE_SHARD=ü\0", "TENURE_SHARD=ü\0", "XTENURE_TOKEN=8\0", ""];
        for text in not {
            let mut kin = self::kin();
            assert_eq!(of(&mut kin, text), Owner::Unsettled, "{text}");
        }
    }

    #[test]
    fn who_was_seen_with_its_family_is_known_when_it_has_lost_it() {
        let mut kin = kin();
        walk(&mut kin, &[process(10, GUARD, 10), process(11, 10, 11)]);
        let orphan = process(11, GUARD, 11);
        assert_eq!(walk(&mut kin, &[orphan]), [Owner::Of(A)]);
        let stranger = ProcessInfo { started: 6, ..orphan };
        assert_eq!(walk(&mut kin, &[stranger]), [Owner::Unsettled], "the number is another's now");
    }

    #[test]
    fn nobodys_is_a_stray_at_the_second_look() {
        let mut kin = kin();
        let stray = process(15, GUARD, 15);
        assert_eq!(walk(&mut kin, &[stray]), [Owner::Unsettled]);
        assert_eq!(walk(&mut kin, &[stray]), [Owner::Stray]);
        assert_eq!(walk(&mut kin, &[stray, process(16, 15, 16)]), [Owner::Stray, Owner::Unsettled]);
    }

    #[test]
    fn of_a_command_that_is_gone_nobody_is_known() {
        let mut kin = kin();
        kin.remove(&BTreeSet::from([A]));
        assert_eq!(walk(&mut kin, &[process(15, GUARD, 10)]), [Owner::Unsettled]);
        assert_eq!(walk(&mut kin, &[process(16, GUARD, 20)]), [Owner::Of(B)]);
    }
}
