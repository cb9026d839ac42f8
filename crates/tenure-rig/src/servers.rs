//! Real servers for tests: finds them, starts them on free ports in private directories, and always stops them at the end.
//!
//! `scripts/servers KIND` puts them at `$TENURE_SERVERS/KIND/bin/PROGRAM`.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use tenure::Clock;

/// How long a server may take to answer its first probe, and to stop.
const SERVER_TIMEOUT: Duration = Duration::from_secs(30);

/// The program of a kind of server, if it is on this machine.
pub fn find(kind: &str, program: &str) -> Option<PathBuf> {
    let servers = match std::env::var_os("TENURE_SERVERS") {
        Some(servers) if !servers.is_empty() => PathBuf::from(servers),
        _ => std::env::home_dir()?.join(".cache/tenure/servers"),
    };
    let path = servers.join(kind).join("bin").join(program);
    path.is_file().then_some(path)
}

/// The message if [`find`] finds no server.
pub fn install_hint(kind: &str) -> String {
    format!("no server: scripts/servers {kind} gets it")
}

/// A port that no process listens on. It is below the ports that the kernel gives to outgoing connections, so that no
/// connection takes it before the server does.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let outgoing = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    let count = u32::from(outgoing.unwrap_or(32_768_u16).max(FIRST + 1_000) - FIRST);
    // Test programs that run at the same time begin at different ports.
    let start = std::process::id().wrapping_mul(7_919);
    loop {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = FIRST + u16::try_from(offset).expect("it is below the number of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A private directory, removed with everything in it when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory in the system's temporary directory.
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// An empty directory in memory, if the machine has one: for servers that fsync every write, whose answers would otherwise
    /// wait for other writes to the machine's disk.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::within(memory) } else { Self::new() }
    }

    /// An empty directory in `parent`: for a test that depends on the file system.
    pub fn within(parent: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("tenure-test-{}-{count}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Scratch(path),
                // Left by an earlier process with the same pid.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A private server: its process group and its directory end with this value.
pub struct Server {
    program: PathBuf,
    arguments: Vec<OsString>,
    running: Mutex<Option<ServerProcess>>,
    // After `running`: fields are dropped in this order, and the server uses the directory until it has ended.
    scratch: Scratch,
}

impl Server {
    /// Starts `program` in `scratch`, and returns when `probe` reports that it answers.
    pub async fn start(
        scratch: Scratch,
        program: PathBuf,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
        probe: impl AsyncFn() -> bool,
    ) -> Result<Server, String> {
        let server = Server {
            program,
            arguments: arguments.into_iter().map(Into::into).collect(),
            running: Mutex::default(),
            scratch,
        };
        server.start_again(probe).await?;
        Ok(server)
    }

    /// Its directory, which is also its working directory.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Its pid while it runs, to pause or kill it.
    pub fn pid(&self) -> Option<Pid> {
        self.running().as_ref().map(|running| running.pid)
    }

    /// Asks the server to stop, and returns when it has ended.
    pub async fn stop(&self) -> Result<(), String> {
        let Some(mut running) = self.running().take() else {
            return Ok(());
        };
        let _ = kill_process_group(running.pid, Signal::TERM);
        let ended = async || matches!(running.child.try_wait(), Ok(Some(_)));
        // A server that does not end is killed when `running` is dropped.
        wait_until(ended).await.map_err(|()| self.error_with_log("does not stop"))
    }

    /// Starts the server with the same arguments and the data in its directory.
    pub async fn start_again(&self, probe: impl AsyncFn() -> bool) -> Result<(), String> {
        let running = ServerProcess::spawn(&self.program, &self.arguments, self.directory());
        let running =
            running.map_err(|error| self.error_with_log(&format!("does not start: {error}")))?;
        *self.running() = Some(running);
        let ready = async || self.has_ended() || probe().await;
        let waited = wait_until(ready).await;
        if self.has_ended() {
            return Err(self.error_with_log("ended at once"));
        }
        waited.map_err(|()| self.error_with_log("does not answer"))
    }

    fn has_ended(&self) -> bool {
        let mut running = self.running();
        let child = running.as_mut().map(|running| running.child.try_wait());
        !matches!(child, Some(Ok(None)))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<ServerProcess>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The error message, with the end of the server's own output.
    fn error_with_log(&self, what: &str) -> String {
        let log = std::fs::read(self.directory().join(LOG)).unwrap_or_default();
        let end = &log[log.len().saturating_sub(2000)..];
        let (program, end) = (self.program.display(), String::from_utf8_lossy(end));
        format!("{program} {what}; its last words:\n{end}")
    }
}

/// The file in the server's directory that gets its output.
const LOG: &str = "output.log";

/// A process group and the process that kills it if this one cannot.
struct ServerProcess {
    child: Child,
    pid: Pid,
    cleanup_process: Child,
}

impl ServerProcess {
    fn spawn(program: &Path, arguments: &[OsString], directory: &Path) -> std::io::Result<Self> {
        let log = File::options().append(true).create(true).open(directory.join(LOG))?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Its own process group: this process handles Ctrl-C at the terminal, and the server's children end with the group.
            .process_group(0)
            .spawn()?;
        match cleanup_process(child.id(), directory) {
            Ok(cleanup_process) => {
                Ok(ServerProcess { pid: Pid::from_child(&child), child, cleanup_process })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }
}

/// If Drop does not run (SIGKILL, Ctrl-C), the kernel closes this process's end of a pipe, and this shell kills the group.
fn cleanup_process(group: u32, directory: &Path) -> std::io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", r#"read -r _; kill -s KILL -- "-$1"; rm -rf -- "$2""#, "sh"])
        .arg(group.to_string())
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // First the cleanup process: once the server is reaped, another process may get its pid.
        let _ = self.cleanup_process.kill();
        let _ = self.cleanup_process.wait();
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Polls until `done`, with a timeout.
async fn wait_until(mut done: impl AsyncFnMut() -> bool) -> Result<(), ()> {
    let clock = Clock::boot();
    let end = clock.now() + SERVER_TIMEOUT;
    while !done().await {
        if clock.now() >= end {
            return Err(());
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A test on a private server.
pub type Test = (&'static str, fn() -> LocalBoxFuture<'static, ()>);

/// Named tests of async functions.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), || {
            Box::pin($name()) as futures_util::future::LocalBoxFuture<'static, ()>
        })),*]
    };
}

/// Runs tests that need a server of this kind and take up to `limit` each. They are ignored if something is missing, as `hint`
/// says, and fail if `TENURE_REQUIRE_STORES` requires the server.
pub fn run_tests(kind: &str, hint: Option<String>, tests: &[Test], limit: Duration) -> ExitCode {
    let required = std::env::var("TENURE_REQUIRE_STORES").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "all" || word == kind);
    let trial = |&(name, test): &Test| {
        let missing = hint.clone();
        let trial = Trial::test(name, move || {
            if let Some(hint) = missing {
                return Err(hint.into());
            }
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(async {
                tokio::time::timeout(limit, test()).await.map_err(|_| "not done in time")
            })?;
            Ok(())
        });
        match &hint {
            Some(hint) if !required => trial.with_kind(hint).with_ignored_flag(true),
            _ => trial,
        }
    };
    libtest_mimic::run(&Arguments::from_args(), tests.iter().map(trial).collect()).exit_code()
}

/// Trials of this module: a server must not outlive its owner.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("servers::end_with_their_value", end_with_their_value),
        Trial::test("servers::end_with_their_owner", end_with_their_owner),
        Trial::test("servers::say_why_they_do_not_start", say_why_they_do_not_start),
    ]
}

/// A shell in the place of a server: it writes a file that shows that it runs, and starts a child.
async fn shell(script: &str) -> Result<Server, String> {
    let scratch = Scratch::new();
    let ready = scratch.path().join("ready");
    let probe = async || ready.exists();
    Server::start(scratch, "/bin/sh".into(), ["-c", script], probe).await
}

const WAITING_SCRIPT: &str = "sleep 1000 & echo $! >child; mv child ready; wait";

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    // A zombie that its new parent has not reaped yet does not run any more.
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn end_with_their_value() -> Result<(), Failed> {
    runtime()?.block_on(async {
        let server = shell(WAITING_SCRIPT).await?;
        let directory = server.directory().to_owned();
        let child = std::fs::read_to_string(directory.join("ready"))?;
        let pid = server.pid().ok_or("it runs")?.to_string();
        assert!(is_running(&pid) && is_running(&child), "both run");
        server.stop().await?;
        assert!(server.pid().is_none() && !is_running(&pid), "it stops when asked");
        std::fs::remove_file(directory.join("ready"))?;
        server.start_again(async || directory.join("ready").exists()).await?;
        let child = std::fs::read_to_string(directory.join("ready"))?;
        assert!(is_running(&child), "it runs again");
        // As in a trial that fails.
        let panicked = std::thread::spawn(move || {
            let _server = server;
            std::panic::resume_unwind(Box::new("a trial fails"));
        });
        assert!(panicked.join().is_err());
        wait_until(async || !is_running(&child)).await.map_err(|()| "its child still runs")?;
        assert!(!directory.exists(), "{} is left", directory.display());
        Ok(())
    })
}

fn end_with_their_owner() -> Result<(), Failed> {
    runtime()?.block_on(async {
        let server = shell(WAITING_SCRIPT).await?;
        let directory = server.directory().to_owned();
        let child = std::fs::read_to_string(directory.join("ready"))?;
        // As the kernel does when this process is killed: its end of the pipe is closed.
        let pipe =
            server.running().as_mut().and_then(|running| running.cleanup_process.stdin.take());
        drop(pipe.ok_or("the cleanup process has a pipe")?);
        let gone = async || !is_running(&child) && !directory.exists();
        wait_until(gone).await.map_err(|()| "the cleanup process has left something")?;
        Ok(())
    })
}

fn say_why_they_do_not_start() -> Result<(), Failed> {
    runtime()?.block_on(async {
        let Err(why) = shell("echo no such option >&2; exit 3").await else {
            return Err("a server that ended has not started".into());
        };
        assert!(why.contains("ended at once") && why.contains("no such option"), "{why}");
        Ok(())
    })
}
