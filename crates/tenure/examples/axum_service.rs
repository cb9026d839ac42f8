//! A complete HTTP service with axum, of which one instance runs a job: probes, status, metrics, and a clean shutdown.
//!
//! In two terminals: `cargo run -p tenure --example axum_service -- --port 3001`, and the same with `--port 3002`. One instance
//! appends a line to the journal every second. End it with Ctrl-C, SIGTERM or `kill -9`, or freeze it with Ctrl-Z: the other
//! instance continues with the next number. `curl localhost:3001/status` shows which instance leads; `--help` lists the options.
//! `tests/axum_service.rs` does all this to three instances under load.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 503 if this process is stuck and should be restarted |
//! | `/readyz` | 503 before the store has answered once, and during the shutdown |
//! | `/leader` | 200 on the leader, otherwise 503: for routing, it grants no right |
//! | `/status` | the state of this instance, as JSON |
//! | `/metrics` | the same for Prometheus, and the durations and errors of renewals |

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::json;
use tenure::{Clock, Election, Histogram, Leadership, Saved, Token};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

const HELP: &str = "\
An HTTP service of which one instance runs a job.

Usage: axum_service [OPTIONS]

  --store URL      the store of the lease     [env: TENURE_STORE]  [default: file:]
  --port PORT      on 127.0.0.1; 0: any free  [env: PORT]          [default: 3000]
  --id ID          the id of this instance    [env: INSTANCE_ID]   [default: HOSTNAME-PID-RANDOM]
  --journal FILE   where the job writes       [env: JOURNAL]       [default: target/axum-service.journal]
  --every MS       the time between two runs  [env: EVERY_MS]      [default: 1000]
  --ttl MS         the length of the lease    [env: TTL_MS]        [default: 4000]
  --help           print this help
";

/// The name of the election: the same in every instance.
const NAME: &str = "demo:axum-service";

/// A process whose renewals or whose job are this late is stuck.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// How long open requests may take during the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// It divides the size of a page, so the kernel appends a line whole or not at all, even if this process is killed.
const LINE_BYTES: usize = 128;

fn main() -> ExitCode {
    run(std::env::args().skip(1))
}

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> ExitCode {
    let options = match Options::parse(arguments) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("axum_service: {message}; --help lists the options");
            return ExitCode::from(2);
        }
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("axum_service: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(options: Options) -> Result<(), Box<dyn Error>> {
    // Before anything is started: until then, a signal ends the process at once.
    let (mut term, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = TcpListener::bind(("127.0.0.1", options.port)).await?;
    let address = listener.local_addr()?;
    let store = tenure::open(&options.store).await?;
    let mut builder = Election::builder(NAME)
        .note(&format!("http://{address}"))
        .ttl(options.ttl)
        // The job runs in this process, and starts nothing that outlives it.
        .ends_with_process(true);
    if let Some(id) = &options.id {
        builder = builder.id(id);
    }
    // It returns at once, so that the probes answer while the store is down.
    let election = Arc::new(builder.launch(store)?);
    let service = Arc::new(Service {
        journal: Journal::open(&options.journal, election.candidate_id().as_str())?,
        election: election.clone(),
        every: options.every,
        runs: AtomicU64::new(0),
        has_answer: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
    });

    let (stop_server, server_stops) = oneshot::channel::<()>();
    let server = axum::serve(listener, routes(service.clone())).with_graceful_shutdown(async {
        let _ = server_stops.await;
    });
    let mut server = tokio::spawn(server.into_future());
    let mut job = election.spawn_lead({
        let service = service.clone();
        move |leadership| service.clone().job(leadership)
    });
    println!("{} listens on http://{address}", election.candidate_id());

    let outcome: Result<(), Box<dyn Error>> = tokio::select! {
        _ = term.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        error = service.refusal() => Err(error.into()),
        // The job ends by itself only if it cannot work here. Then another instance should lead.
        ended = &mut job => Err(match ended {
            Ok(Some(error)) => error.into(),
            Ok(None) => "the election has ended".into(),
            Err(panic) => panic.into(),
        }),
        ended = &mut server => Err(match ended {
            Ok(Ok(())) => "the server has ended".into(),
            Ok(Err(error)) => error.into(),
            Err(panic) => panic.into(),
        }),
    };

    // Not ready from now on: the load balancer sends no new requests.
    service.stopping.store(true, Ordering::Relaxed);
    // Notifies the job, waits until it has ended, and releases the lease: another instance leads at once.
    election.stop().await;
    // The server answers until here, so that the probes show the shutdown.
    let _ = stop_server.send(());
    if !server.is_finished() && tokio::time::timeout(SHUTDOWN_TIMEOUT, server).await.is_err() {
        eprintln!("axum_service: requests were still open after {SHUTDOWN_TIMEOUT:?}");
    }
    outcome
}

/// What the handlers and the job share.
struct Service {
    election: Arc<Election>,
    journal: Journal,
    every: Duration,
    /// The number of the last run of this instance.
    runs: AtomicU64,
    /// The store has answered once.
    has_answer: AtomicBool,
    stopping: AtomicBool,
}

impl Service {
    /// The work of the leader. It returns only if the journal cannot be written.
    async fn job(self: Arc<Self>, leadership: Leadership) -> io::Error {
        // The last leader saved the number of its last run.
        let saved = leadership.checkpoint().map(|saved| String::from_utf8_lossy(saved.as_bytes()));
        let mut runs = saved.and_then(|saved| saved.parse().ok()).unwrap_or(0);
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Immediately before the effect: since the last check this process may have been frozen.
            if leadership.should_stop() {
                // `lead` drops this work at the next tick, and calls it again in the next term.
                continue;
            }
            if let Err(error) = self.journal.append(leadership.token()) {
                return error;
            }
            runs += 1;
            self.runs.store(runs, Ordering::Relaxed);
            match leadership.save(runs.to_string()).await {
                Ok(Saved::Kept) => {}
                Ok(Saved::Lost) => eprintln!("run {runs} was not saved: the term is over"),
                // It may or may not have been saved. The next run saves a greater number.
                Err(error) => eprintln!("run {runs}: {error}"),
            }
        }
    }

    /// Returns if the store answers that an operator must act first, as [`ElectionBuilder::start`] would. Otherwise this
    /// instance is ready from the first answer on. A store that is unreachable later does not make it unready: its requests do
    /// not need the store, and all instances would be unready at the same time.
    ///
    /// [`ElectionBuilder::start`]: tenure::ElectionBuilder::start
    async fn refusal(&self) -> tenure::Error {
        match self.election.answered().await {
            Err(error) => error,
            Ok(()) => {
                self.has_answer.store(true, Ordering::Relaxed);
                std::future::pending().await
            }
        }
    }
}

/// The resource of the job: a file with one line for each run.
struct Journal {
    file: File,
    instance: String,
    clock: Clock,
}

impl Journal {
    fn open(path: &PathBuf, instance: &str) -> io::Result<Journal> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Journal { file, instance: instance.to_owned(), clock: Clock::boot() })
    }

    /// Appends a line with the token of the term, in one call. A file cannot compare tokens, but a reader of the journal can:
    /// `examples/fenced_worker.rs` shows a resource that refuses an older token itself.
    fn append(&self, token: Token) -> io::Result<()> {
        let (now, pid) = (self.clock.now().as_nanos(), std::process::id());
        let text = format!("{now} {token} {pid} {}", self.instance);
        let line = format!("{text:<width$}\n", width = LINE_BYTES - 1);
        if line.len() != LINE_BYTES {
            return Err(io::Error::other(format!("the id '{}' is too long", self.instance)));
        }
        (&self.file).write_all(line.as_bytes())
    }
}

fn routes(service: Arc<Service>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/leader", get(leader))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .with_state(service)
}

type Shared = State<Arc<Service>>;

/// For a probe that restarts the process. Losing the leadership or the store is no reason for a restart.
async fn healthz(State(service): Shared) -> impl IntoResponse {
    let pulse = service.election.pulse();
    let stopping = service.stopping.load(Ordering::Relaxed);
    match () {
        () if pulse.ended && !stopping => unavailable("no thread renews any more".to_owned()),
        () if pulse.late > MAX_DELAY => unavailable(format!("renewals are {:?} late", pulse.late)),
        () if pulse.overrun > MAX_DELAY => {
            unavailable(format!("the job is {:?} past its deadline", pulse.overrun))
        }
        () => (StatusCode::OK, "ok\n".to_owned()),
    }
}

/// For a load balancer.
async fn readyz(State(service): Shared) -> impl IntoResponse {
    match () {
        () if service.stopping.load(Ordering::Relaxed) => unavailable("shutting down".to_owned()),
        () if !service.has_answer.load(Ordering::Relaxed) => {
            unavailable("the store has not answered yet".to_owned())
        }
        () => (StatusCode::OK, "ready\n".to_owned()),
    }
}

fn unavailable(reason: String) -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, reason + "\n")
}

/// True when it is computed. The job does not rely on it.
async fn leader(State(service): Shared) -> impl IntoResponse {
    let status = service.election.status();
    let code = if status.is_leader { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "isLeader": status.is_leader,
        "currentLeader": status.current_leader,
        "token": status.token.map(Token::get),
        "validForMs": millis(status.valid_for),
    });
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string())
}

async fn status(State(service): Shared) -> impl IntoResponse {
    let status = service.election.status();
    let body = json!({
        "name": status.name.as_str(),
        "candidateId": status.candidate_id.as_str(),
        "isLeader": status.is_leader,
        "state": status.state.as_str(),
        "currentLeader": status.current_leader,
        "token": status.token.map(Token::get),
        "validForMs": millis(status.valid_for),
        "handles": status.handles,
        "transitions": status.transitions,
        "runs": service.runs.load(Ordering::Relaxed),
        "store": status.store,
        "storeGrade": status.store_grade.to_string(),
        "storeReachable": status.store_reachable,
        "lastError": status.last_error.map(|error| error.to_string()),
    });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The text format of Prometheus.
async fn metrics(State(service): Shared) -> impl IntoResponse {
    let (status, renewals) = (service.election.status(), service.election.renewals());
    let mut text = String::new();
    let gauges = [
        ("tenure_is_leader", f64::from(u8::from(status.is_leader))),
        ("tenure_deadline_seconds", status.valid_for.as_secs_f64()),
        ("tenure_store_reachable", f64::from(u8::from(status.store_reachable == Some(true)))),
    ];
    for (name, value) in gauges {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
    }
    let runs = service.runs.load(Ordering::Relaxed);
    let counters = [("tenure_transitions_total", status.transitions), ("job_runs_total", runs)];
    for (name, value) in counters {
        let _ = writeln!(text, "# TYPE {name} counter\n{name} {value}");
    }
    histogram(&mut text, "tenure_renew_seconds", &renewals.durations);
    let errors = [
        ("unavailable", renewals.unavailable),
        ("refused", renewals.refused),
        ("denied", renewals.denied),
        ("corrupt", renewals.corrupt),
        ("other", renewals.other),
    ];
    let name = "tenure_renew_failures_total";
    let _ = writeln!(text, "# TYPE {name} counter");
    for (cause, count) in errors {
        let _ = writeln!(text, "{name}{{cause=\"{cause}\"}} {count}");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// In this format, each bucket also counts all smaller values.
fn histogram(text: &mut String, name: &str, histogram: &Histogram) {
    let _ = writeln!(text, "# TYPE {name} histogram");
    let mut up_to = 0;
    for (bound, count) in histogram.buckets() {
        up_to += count;
        let _ = writeln!(text, "{name}_bucket{{le=\"{}\"}} {up_to}", bound.as_secs_f64());
    }
    let Histogram { count, sum, .. } = histogram;
    let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", sum.as_secs_f64());
}

struct Options {
    store: String,
    port: u16,
    id: Option<String>,
    journal: PathBuf,
    every: Duration,
    ttl: Duration,
}

impl Options {
    /// An argument takes precedence over the environment. `None`: help was asked for.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let variables = ["TENURE_STORE", "PORT", "INSTANCE_ID", "JOURNAL", "EVERY_MS", "TTL_MS"];
        let names = ["--store", "--port", "--id", "--journal", "--every", "--ttl"];
        let mut values = variables.map(|variable| std::env::var(variable).ok());
        while let Some(argument) = arguments.next() {
            if argument == "--help" {
                return Ok(None);
            }
            let at = names.iter().position(|name| *name == argument);
            let at = at.ok_or_else(|| format!("unknown option '{argument}'"))?;
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
            values[at] = Some(value);
        }
        let [store, port, id, journal, every, ttl] = values;
        let duration = |name: &str, value: Option<String>, default: u64| {
            let millis = value.map_or(Ok(default), |value| value.parse());
            match millis {
                Ok(millis @ 1..) => Ok(Duration::from_millis(millis)),
                _ => Err(format!("{name} needs a number of milliseconds, at least 1")),
            }
        };
        let port = port.map_or(Ok(3000), |port| port.parse());
        Ok(Some(Options {
            store: store.unwrap_or_else(|| "file:".to_owned()),
            port: port.map_err(|_| "--port needs a number up to 65535".to_owned())?,
            id,
            journal: journal.unwrap_or_else(|| "target/axum-service.journal".to_owned()).into(),
            every: duration("--every", every, 1_000)?,
            ttl: duration("--ttl", ttl, 4_000)?,
        }))
    }
}
