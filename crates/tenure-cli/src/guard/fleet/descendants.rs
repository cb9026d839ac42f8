//! The walk over all processes below a member's guard: it stops and kills commands, and finds the commands of which no process
//! is left.

use std::collections::BTreeSet;

use rustix::process::Signal;

use super::super::process_tree::{reap_orphans, spared, unspared_children};
use super::super::procfs;
use super::super::protocol::GuardReport;
use super::GuardState;
use super::attribution::ProcessOwner;

/// After this many signals to its group, every process of a command that can be killed with the group is dead.
const MAX_GROUP_KILLS: u32 = 2;

impl GuardState {
    /// Sends SIGTERM and SIGKILL to the given commands, and removes the commands of which no process is left. Returns whether
    /// there were any.
    pub(super) fn check_processes(
        &mut self,
        mut to_terminate: BTreeSet<u32>,
        to_kill: BTreeSet<u32>,
    ) -> bool {
        let now = self.clock.now();
        self.walk_needed = false;
        let mut ended = BTreeSet::new();
        for (id, command) in &mut self.commands {
            if command.has_ended() {
                ended.insert(*id);
                if !command.schedule.is_stopping() {
                    // The processes that it left get the usual time to end too.
                    command.schedule.stop(now + command.schedule.stop_within());
                    command.schedule.due(now);
                    to_terminate.insert(*id);
                }
            }
            let Some(running) = &mut command.running else { continue };
            if to_kill.contains(id) {
                running.kills += 1;
                running.tree.signal(Signal::KILL, &mut self.failures);
            } else if to_terminate.contains(id) {
                running.tree.signal(Signal::TERM, &mut self.failures);
                running.tree.signal(Signal::CONT, &mut self.failures);
            }
            for failure in self.failures.take() {
                self.refused.push((*id, failure));
            }
        }
        if self.start.is_none() {
            reap_orphans();
        } else {
            // An ended child could be the command that is being started; it must keep its process number until the start is
            // complete.
            self.walk_needed = true;
        }
        if ended.is_empty() && to_terminate.is_empty() && to_kill.is_empty() {
            return false;
        }
        let any_ends = !ended.is_empty() || !to_kill.is_empty();
        let left = self.walk(&ended, &to_terminate, &to_kill, any_ends);
        let Some(left) = left else {
            self.walk_needed = true;
            return false;
        };
        let gone: BTreeSet<u32> = ended.difference(&left).copied().collect();
        self.remove_gone(&gone);
        !gone.is_empty()
    }

    /// One walk over all processes. Returns the commands of which processes are left; `None` when the walk is inconclusive.
    fn walk(
        &mut self,
        ended: &BTreeSet<u32>,
        to_terminate: &BTreeSet<u32>,
        to_kill: &BTreeSet<u32>,
        any_ends: bool,
    ) -> Option<BTreeSet<u32>> {
        self.attribute_start();
        let me = procfs::me();
        let (attribution, commands, failures) =
            (&mut self.attribution, &self.commands, &mut self.failures);
        let (refused, environments) = (&mut self.refused, &mut self.environments);
        let (mut left, mut conclusive) = (BTreeSet::new(), true);
        // Signalling a group succeeds if one of its processes can be signalled. A process that survives two such signals is
        // signalled by itself.
        let killed_with_its_group = |id: &u32, group: i32| {
            let running = commands.get(id).and_then(|command| command.running.as_ref());
            running.is_some_and(|running| {
                let main = running.tree.main().as_raw_nonzero().get();
                running.kills <= MAX_GROUP_KILLS && main == group
            })
        };
        // Spared children that are not commands: their owners reap them.
        let mut others = spared().clone();
        others.retain(|pid| !attribution.is_main(*pid));
        attribution.begin_walk();
        environments.begin_walk();
        let walked = procfs::walk(
            |pid| others.contains(&pid),
            |process, descendants| {
                let owner = attribution.owner_of(process, || environments.read(process));
                let mut signal = |signal, concerned: &mut dyn Iterator<Item = u32>| {
                    if process.ended {
                        return;
                    }
                    let sent = procfs::signal_if_child_of(descendants, process.pid, signal);
                    if let Err(error) = sent
                        && let Some(failure) = failures.signal(process, error)
                    {
                        refused.extend(concerned.map(|id| (id, failure.clone())));
                    }
                };
                match owner {
                    ProcessOwner::Main(id) => {
                        if to_kill.contains(&id) && !killed_with_its_group(&id, process.group) {
                            signal(Signal::KILL, &mut std::iter::once(id));
                        }
                    }
                    ProcessOwner::Of(id) => {
                        left.insert(id);
                        let mut it = std::iter::once(id);
                        if to_kill.contains(&id) && !killed_with_its_group(&id, process.group) {
                            signal(Signal::KILL, &mut it);
                        } else if to_terminate.contains(&id) && process.parent == me {
                            signal(Signal::TERM, &mut it);
                            signal(Signal::CONT, &mut it);
                        }
                    }
                    ProcessOwner::Unsettled => conclusive = false,
                    ProcessOwner::Stray => {
                        conclusive = false;
                        if any_ends {
                            // No ending command counts as gone while the stray exists.
                            signal(Signal::KILL, &mut to_kill.union(ended).copied());
                        }
                    }
                }
            },
        );
        if let Err(error) = &walked
            && let Some(failure) = failures.incomplete(error)
        {
            refused.extend(to_kill.union(ended).map(|id| (*id, failure.clone())));
        }
        // New failures are in `refused` already, with the commands that they concern.
        failures.take();
        // A process that has become a child of the guard meanwhile was not examined.
        conclusive &= unspared_children().is_ok_and(|unknown| {
            unknown.iter().all(|pid| attribution.has_found(pid.as_raw_nonzero().get()))
        });
        // Zombies that the walk has found must not affect the next walk.
        if self.start.is_none() {
            self.walk_needed |= reap_ended_orphans();
        }
        (conclusive && walked.is_ok()).then_some(left)
    }

    fn remove_gone(&mut self, gone: &BTreeSet<u32>) {
        for id in gone {
            let Some(command) = self.commands.get_mut(id) else { continue };
            let Some(mut running) = command.running.take() else { continue };
            if let Some(ended) = running.tree.ended() {
                let asked_to_stop = running.asked_to_stop.unwrap_or(false);
                self.reports.push((*id, GuardReport::Gone { ended, asked_to_stop }));
            }
            running.tree.reap_main();
            if !self.holds.contains_key(id) {
                self.commands.remove(id);
            }
        }
        self.attribution.remove(gone);
    }
}

/// Reaps the orphans that have ended. Returns whether there were any.
fn reap_ended_orphans() -> bool {
    let number = || unspared_children().map_or(0, |unknown| unknown.len());
    let before = number();
    before > 0 && {
        reap_orphans();
        number() < before
    }
}
