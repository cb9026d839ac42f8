//! The sidecar of the work: the HTTP server, the presence, the heartbeats, and the reader of the other candidates.

use std::sync::Arc;
use std::time::Duration;

use tenure::presence::{Presence, PresentCandidate, present};
use tenure::store::StoreExt as _;
use tenure::timing::Timing;
use tenure::{Clock, Election, Name, Result, Store};
use tokio::task::JoinHandle;

use super::config::{RunConfig, RunKind};
use super::messages::RunMessages;
use super::run_reporter::RunReporter;
use crate::args::Args;
use crate::http::{AnswerArgs, HttpArgs, HttpCandidate, HttpLimits, HttpServer, Listen, Listener};
use crate::schedule::ScheduleCheckpoint;

/// A presence outlives its process by at most this many leases.
const PRESENCE_LEASES: u32 = 3;

/// How many times per TTL the candidates are read while that matters: see [`read_again_after`].
const READS_PER_TTL: u32 = 4;

/// Opens the port before anything else starts, so that a port already in use is reported at once.
pub(crate) fn open_listener(
    args: &Args,
    http: &HttpArgs,
    listen: Option<Listen>,
) -> Result<Option<Listener>> {
    let name = "TENURE_HTTP_HOST";
    let in_file = args.settings.env_file.get(name).map(|host| host.value.clone());
    let host = std::env::var(name).ok().or(in_file);
    Listener::open(http, listen, host.as_deref())
}

/// Everything that runs beside the work, until it is stopped.
pub(super) struct Sidecar {
    server: Option<HttpServer>,
    instance: Option<Arc<HttpCandidate>>,
    presence: Option<Arc<PresentCandidate>>,
    /// Shows the state of the candidate in its presence.
    presence_task: Option<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Sidecar {
    pub(super) fn start(
        config: &RunConfig<'_>,
        listener: Option<Listener>,
        election: &Arc<Election>,
        store: &Arc<dyn Store>,
        timing: &Timing,
        (run_reporter, messages): (&RunReporter, &RunMessages),
    ) -> Result<Sidecar> {
        let url = listener.as_ref().map(url).unwrap_or_default();
        let mut sidecar = Sidecar {
            server: None,
            instance: None,
            presence: None,
            presence_task: None,
            tasks: Vec::new(),
        };
        if !config.service.no_presence && store.limits().presence {
            let ttl = timing.ttl.saturating_mul(PRESENCE_LEASES).min(store.limits().max_ttl);
            let presence = Presence::new(&config.name, &config.id, ttl)
                .url(&url)
                .priority(config.priority)
                .state(election.status().state);
            let presence = Arc::new(presence.launch(Arc::clone(store))?);
            let (shown, election) = (Arc::clone(&presence), Arc::clone(election));
            sidecar.presence_task =
                Some(tokio::spawn(async move { shown.follow(&election).await }));
            sidecar.presence = Some(presence);
        }
        if let Some(listener) = listener {
            let answer_for = match config.kind {
                RunKind::Work { .. } => None,
                RunKind::Serve { answer_for } => {
                    Some(AnswerArgs { answer_for }.answer_for(timing.ttl)?)
                }
            };
            let instance =
                HttpCandidate::new(Arc::clone(election), Arc::clone(&run_reporter.0), answer_for);
            let server =
                HttpServer::start(listener, Arc::clone(&instance), store, HttpLimits::default())?;
            sidecar.server = Some(server);
            sidecar.instance = Some(instance);
        }
        if sidecar.presence.is_some() || sidecar.instance.is_some() {
            let reader = PresenceReader {
                // Without its own presence this candidate has no rank.
                election: sidecar.presence.as_ref().map(|_| Arc::clone(election)),
                instance: sidecar.instance.clone(),
                name: config.name.clone(),
                store: Arc::clone(store),
                run_reporter: run_reporter.clone(),
            };
            sidecar.tasks.push(tokio::spawn(reader.read_repeatedly(timing.ttl)));
        }
        if let Some(every) = config.heartbeat {
            sidecar.tasks.push(tokio::spawn(log_heartbeats(
                Arc::clone(election),
                messages.clone(),
                every,
            )));
        }
        Ok(sidecar)
    }

    pub(super) fn instance(&self) -> Option<&Arc<HttpCandidate>> {
        self.instance.as_ref()
    }

    /// Stops everything but the presence, which stays visible until the lease is released.
    pub(super) fn stop_services(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
        self.instance = None;
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    pub(super) async fn leave(self) {
        if let Some(presence_task) = self.presence_task {
            presence_task.abort();
        }
        if let Some(presence) = self.presence {
            presence.leave().await;
        }
    }
}

/// The URL under which other machines reach this server, as far as it is known.
pub(crate) fn url(listener: &Listener) -> String {
    let address = listener.address();
    match listener.is_open_to_others() && address.ip().is_unspecified() {
        false => format!("http://{address}"),
        // The server listens on every address of this machine, which others know by its host name.
        true => {
            let system = rustix::system::uname();
            format!("http://{}:{}", system.nodename().to_string_lossy(), address.port())
        }
    }
}

/// Reads the store repeatedly: the other candidates, and for HTTP the checkpoint that the leader has saved.
struct PresenceReader {
    election: Option<Arc<Election>>,
    instance: Option<Arc<HttpCandidate>>,
    name: Name,
    store: Arc<dyn Store>,
    run_reporter: RunReporter,
}

impl PresenceReader {
    async fn read_repeatedly(self, ttl: Duration) {
        let clock = Clock::boot();
        let (mut reads, mut priorities_differ) = (0, false);
        loop {
            if self.store.limits().presence
                && let Ok(nodes) = present(&*self.store, &self.name).await
            {
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

    /// Shows the runs that the leader has saved. The leader itself has newer data.
    async fn show_runs(&self, instance: &HttpCandidate) {
        if !instance.is_leader()
            && let Ok(Some(lease)) = self.store.observe_one(&self.name).await
            && let Some(checkpoint) = lease.checkpoint
            && let Ok(checkpoint) = ScheduleCheckpoint::read(Some(checkpoint.as_bytes()))
            && !instance.is_leader()
        {
            self.run_reporter.show(checkpoint.as_ref());
        }
    }
}

/// How long a candidate pauses after the given number of reads before it reads the candidates again. A candidate that `waits`
/// reads more often at first, because candidates that start together have not announced themselves at the first read; and where
/// priorities differ, because a new candidate should count soon after its start. The leader does not use the priorities of
/// others.
fn read_again_after(ttl: Duration, reads: u32, waits: bool, priorities_differ: bool) -> Duration {
    match waits && (reads < READS_PER_TTL || priorities_differ) {
        true => ttl / READS_PER_TTL,
        false => ttl,
    }
}

async fn log_heartbeats(election: Arc<Election>, messages: RunMessages, every: Duration) {
    let clock = Clock::boot();
    let mut next = clock.now() + every;
    loop {
        clock.sleep_until(next).await;
        let status = election.status();
        messages.heartbeat(&status);
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
