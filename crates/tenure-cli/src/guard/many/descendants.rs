//! Looks at everything that runs below the guard of a member: asks, kills, and sees of which command nothing is left.

use std::collections::BTreeSet;

use rustix::process::Signal;

use super::super::process_tree::{reap_orphans, spared, unknown};
use super::super::procfs;
use super::super::protocol::GuardReport;
use super::GuardState;
use super::attribution::Owner;

/// So many signals to its group are enough for a command whose processes can all be killed.
const GROUP_KILLS: u32 = 2;

impl GuardState {
    /// Asks and kills, sees who has ended and what is left, and buries those of whom nothing is. Whether there were any.
    pub(super) fn look(&mut self, mut asked: BTreeSet<u32>, killed: BTreeSet<u32>) -> bool {
        let now = self.clock.now();
        self.stirred = false;
        let mut ended = BTreeSet::new();
        for (id, ward) in &mut self.wards {
            if ward.has_ended() {
                ended.insert(*id);
                if !ward.fuse.burnt() {
                    // What it has left behind has the usual time to follow.
                    ward.fuse.stop(now + ward.fuse.stop_within());
                    ward.fuse.due(now);
                    asked.insert(*id);
                }
            }
            let Some(running) = &mut ward.running else { continue };
            if killed.contains(id) {
                running.kills += 1;
                running.tree.signal(Signal::KILL, &mut self.failures);
            } else if asked.contains(id) {
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
            // It could be the command that is being started, and its number must stay its own until that is known.
            self.stirred = true;
        }
        if ended.is_empty() && asked.is_empty() && killed.is_empty() {
            return false;
        }
        let any_ends = !ended.is_empty() || !killed.is_empty();
        let left = self.walk(&ended, &asked, &killed, any_ends);
        let Some(left) = left else {
            self.stirred = true;
            return false;
        };
        let gone: BTreeSet<u32> = ended.difference(&left).copied().collect();
        self.bury(&gone);
        !gone.is_empty()
    }

    /// One walk over all that runs. What is left of which command; `None` when it is not clear.
    fn walk(
        &mut self,
        ended: &BTreeSet<u32>,
        asked: &BTreeSet<u32>,
        killed: &BTreeSet<u32>,
        any_ends: bool,
    ) -> Option<BTreeSet<u32>> {
        self.find_start();
        let me = procfs::me();
        let (kin, wards, failures) = (&mut self.kin, &self.wards, &mut self.failures);
        let (refused, environments) = (&mut self.refused, &mut self.environments);
        let (mut left, mut clear) = (BTreeSet::new(), true);
        // A group takes a signal if one of its processes does. What still runs after two of them is killed by itself.
        let killed_with_its_group = |id: &u32, group: i32| {
            let running = wards.get(id).and_then(|ward| ward.running.as_ref());
            running.is_some_and(|running| {
                let main = running.tree.main().as_raw_nonzero().get();
                running.kills <= GROUP_KILLS && main == group
            })
        };
        // Those that others look after, and not we ourselves.
        let mut others = spared().clone();
        others.retain(|pid| !kin.is_main(*pid));
        kin.begin();
        environments.begin_walk();
        let walked = procfs::walk(
            |pid| others.contains(&pid),
            |process, ours| {
                let whose = kin.whose(process, || environments.read(process));
                let mut signal = |signal, concerned: &mut dyn Iterator<Item = u32>| {
                    if process.ended {
                        return;
                    }
                    let sent = procfs::signal_if_child_of(ours, process.pid, signal);
                    if let Err(error) = sent
                        && let Some(failure) = failures.signal(process, error)
                    {
                        refused.extend(concerned.map(|id| (id, failure.clone())));
                    }
                };
                match whose {
                    Owner::Main(id) => {
                        if killed.contains(&id) && !killed_with_its_group(&id, process.group) {
                            signal(Signal::KILL, &mut std::iter::once(id));
                        }
                    }
                    Owner::Of(id) => {
                        left.insert(id);
                        let mut it = std::iter::once(id);
                        if killed.contains(&id) && !killed_with_its_group(&id, process.group) {
                            signal(Signal::KILL, &mut it);
                        } else if asked.contains(&id) && process.parent == me {
                            signal(Signal::TERM, &mut it);
                            signal(Signal::CONT, &mut it);
                        }
                    }
                    Owner::Unsettled => clear = false,
                    Owner::Stray => {
                        clear = false;
                        if any_ends {
                            // None of those that are ending is gone beside it.
                            signal(Signal::KILL, &mut killed.union(ended).copied());
                        }
                    }
                }
            },
        );
        if let Err(error) = &walked
            && let Some(failure) = failures.unseen(error)
        {
            refused.extend(killed.union(ended).map(|id| (*id, failure.clone())));
        }
        // What is new is in `refused`, with the commands that it concerns.
        failures.take();
        // Whoever has become our child meanwhile has not been asked.
        clear &= unknown().is_ok_and(|unknown| {
            unknown.iter().all(|pid| kin.has_found(pid.as_raw_nonzero().get()))
        });
        // What the walk has seen dead must not be in the way of the next.
        if self.start.is_none() {
            self.stirred |= left_dead();
        }
        (clear && walked.is_ok()).then_some(left)
    }

    fn bury(&mut self, gone: &BTreeSet<u32>) {
        for id in gone {
            let Some(ward) = self.wards.get_mut(id) else { continue };
            let Some(mut running) = ward.running.take() else { continue };
            if let Some(ended) = running.tree.ended() {
                let told = running.told.unwrap_or(false);
                self.reports.push((*id, GuardReport::Gone { ended, told }));
            }
            running.tree.bury();
            if !self.holds.contains_key(id) {
                self.wards.remove(id);
            }
        }
        self.kin.remove(gone);
    }
}

/// Reaps the orphans that have ended; whether there were any.
fn left_dead() -> bool {
    let number = || unknown().map_or(0, |unknown| unknown.len());
    let before = number();
    before > 0 && {
        reap_orphans();
        number() < before
    }
}
