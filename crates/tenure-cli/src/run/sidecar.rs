//! What goes on beside the work: HTTP, presence, heartbeats, and what is shown there.

use std::sync::Arc;
use std::time::Duration;

use tenure::presence::{Presence, PresentCandidate, present};
use tenure::store::Scope;
use tenure::timing::Timing;
use tenure::{Clock, Election, Name, Result, Store};
use tokio::task::JoinHandle;

use super::board::CandidateCount;
use super::config::{RunConfig, RunKind};
use super::messages::RunMessages;
use crate::args::Args;
use crate::http::{AnswerArgs, HttpArgs, HttpCandidate, HttpLimits, HttpServer, Listen, Listener};
use crate::schedule::ScheduleCheckpoint;

/// A presence outlives its process by so many leases at most.
const PRESENCE_LEASES: u32 = 3;

/// How often in a TTL the candidates are read while that matters: see [`read_again_after`].
const READS_PER_TTL: u32 = 4;

/// Opens the port before anything begins: one that is taken is a mistake to hear of at once.
pub(crate) fn door(
    args: &Args,
    http: &HttpArgs,
    listen: Option<Listen>,
) -> Result<Option<Listener>> {
    let name = "TENURE_HTTP_HOST";
    let in_file = args.settings.env_file.get(name).map(|host| host.value.clone());
    let host = std::env::var(name).ok().or(in_file);
    Listener::open(http, listen, host.as_deref())
}

/// All of it, until it is ended.
pub(super) struct Sidecar {
    server: Option<HttpServer>,
    instance: Option<Arc<HttpCandidate>>,
    presence: Option<Arc<PresentCandidate>>,
    /// Shows the state of the candidate in its presence.
    following: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Sidecar {
    pub(super) fn start(
        plan: &RunConfig<'_>,
        door: Option<Listener>,
        election: &Arc<Election>,
        store: &Arc<dyn Store>,
        timing: &Timing,
        (board, lines): (&CandidateCount, &RunMessages),
    ) -> Result<Sidecar> {
        let url = door.as_ref().map(url).unwrap_or_default();
        let mut service = Sidecar {
            server: None,
            instance: None,
            presence: None,
            following: None,
            tasks: Vec::new(),
        };
        if !plan.service.no_presence {
            let ttl = timing.ttl.saturating_mul(PRESENCE_LEASES).min(store.limits().max_ttl);
            let presence = Presence::new(&plan.name, &plan.id, ttl)
                .url(&url)
                .priority(plan.priority)
                .state(election.status().state);
            let presence = Arc::new(presence.launch(Arc::clone(store))?);
            let (shown, election) = (Arc::clone(&presence), Arc::clone(election));
            service.following = Some(tokio::spawn(async move { shown.follow(&election).await }));
            service.presence = Some(presence);
        }
        if let Some(door) = door {
            let answer_for = match plan.kind {
                RunKind::Work { .. } => None,
                RunKind::Serve { answer_for } => {
                    Some(AnswerArgs { answer_for }.answer_for(timing.ttl)?)
                }
            };
            let instance =
                HttpCandidate::new(Arc::clone(election), Arc::clone(&board.0), answer_for);
            let server =
                HttpServer::start(door, Arc::clone(&instance), store, HttpLimits::default())?;
            service.server = Some(server);
            service.instance = Some(instance);
        }
        if service.presence.is_some() || service.instance.is_some() {
            let others = PresenceReader {
                // Without a presence of its own this candidate has no rank.
                election: service.presence.as_ref().map(|_| Arc::clone(election)),
                instance: service.instance.clone(),
                name: plan.name.clone(),
                store: Arc::clone(store),
                board: board.clone(),
            };
            service.tasks.push(tokio::spawn(others.read_repeatedly(timing.ttl)));
        }
        if let Some(every) = plan.heartbeat {
            service.tasks.push(tokio::spawn(beat(Arc::clone(election), lines.clone(), every)));
        }
        Ok(service)
    }

    pub(super) fn instance(&self) -> Option<&Arc<HttpCandidate>> {
        self.instance.as_ref()
    }

    /// Ends everything but the presence, which is seen until the lease is given back.
    pub(super) fn hush(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
        self.instance = None;
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    pub(super) async fn leave(self) {
        if let Some(following) = self.following {
            following.abort();
        }
        if let Some(presence) = self.presence {
            presence.leave().await;
        }
    }
}

/// Where others reach us, as far as we know it.
pub(crate) fn url(door: &Listener) -> String {
    let address = door.address();
    match door.is_open_to_others() && address.ip().is_unspecified() {
        false => format!("http://{address}"),
        // On every address of this machine; others know it by its name.
        true => {
            let system = rustix::system::uname();
            format!("http://{}:{}", system.nodename().to_string_lossy(), address.port())
        }
    }
}

/// What is read from the store now and then: the other candidates, and for HTTP what the leader has saved.
struct PresenceReader {
    election: Option<Arc<Election>>,
    instance: Option<Arc<HttpCandidate>>,
    name: Name,
    store: Arc<dyn Store>,
    board: CandidateCount,
}

impl PresenceReader {
    async fn read_repeatedly(self, ttl: Duration) {
        let clock = Clock::boot();
        let (mut reads, mut priorities_differ) = (0, false);
        loop {
            if let Ok(nodes) = present(&*self.store, &self.name).await {
                priorities_differ = nodes.windows(2).any(|two| two[0].priority != two[1].priority);
                if let Some(election) = &self.election {
                    election.set_candidates(&nodes);
                }
                if let Some(instance) = &self.instance {
                    instance.set_candidates(nodes);
                }
            }
            if let Some(instance) = &self.instance {
                self.show_runs(instance).await;
            }
            reads = u32::min(reads + 1, READS_PER_TTL);
            let waits = self.election.as_ref().is_some_and(|election| !election.is_leader());
            clock.sleep(read_again_after(ttl, reads, waits, priorities_differ)).await;
        }
    }

    /// Shows the runs that the leader has saved. The leader itself knows them better.
    async fn show_runs(&self, instance: &HttpCandidate) {
        if !instance.is_leader()
            && let Ok(mut leases) = self.store.observe(&Scope::name(&self.name)).await
            && let Some(Ok(lease)) = leases.pop()
            && let Some(checkpoint) = lease.checkpoint
            && let Ok(ledger) = ScheduleCheckpoint::read(Some(checkpoint.as_bytes()))
            && !instance.is_leader()
        {
            self.board.show(ledger.as_ref());
        }
    }
}

/// How long after the last of so many reads of the candidates a candidate that `waits` reads them again. Candidates that start
/// together have not announced themselves at the first read, and where priorities differ a candidate should count soon after
/// it has started. The leader has no use for the priorities of others.
fn read_again_after(ttl: Duration, reads: u32, waits: bool, priorities_differ: bool) -> Duration {
    match waits && (reads < READS_PER_TTL || priorities_differ) {
        true => ttl / READS_PER_TTL,
        false => ttl,
    }
}

async fn beat(election: Arc<Election>, lines: RunMessages, every: Duration) {
    let clock = Clock::boot();
    let mut next = clock.now() + every;
    loop {
        clock.sleep_until(next).await;
        let status = election.status();
        lines.beat(&status);
        next = next.max(clock.now().before(every)) + every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_reads_the_candidates_more_often_after_the_start_and_where_priorities_differ() {
        let ttl = Duration::from_secs(4);
        let pauses = |waits, differ| {
            [1, 3, 4].map(|reads| read_again_after(ttl, reads, waits, differ).as_secs())
        };
        assert_eq!(pauses(true, false), [1, 1, 4]);
        assert_eq!(pauses(true, true), [1, 1, 1]);
        assert_eq!(pauses(false, true), [4, 4, 4]);
    }
}
