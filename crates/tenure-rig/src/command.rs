//! [`Sandbox`]: runs the command in a private directory, isolated from the user's settings.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tenure::{Clock, Nonce};

/// The variables that configure a whole instance, in addition to `TENURE_` variables.
const INSTANCE_VARIABLES: [&str; 5] =
    ["REDIS_URL", "PORT", "REDIS_LOCK_KEY", "REDIS_LOCK_TTL", "POLL_INTERVAL"];

/// The longest life of a sandbox: many times what the longest test needs on a busy machine.
const MAX_LIFETIME: Duration = Duration::from_secs(240);

/// A private directory for the processes that a test starts: their TMPDIR, HOME and working directory. Removed on drop.
///
/// After `MAX_LIFETIME` all processes in it are killed. So no test waits forever: a test that reads from a process or waits
/// for its end notices the death, and shows the output so far.
pub struct Sandbox {
    path: PathBuf,
    /// Dropping it ends the thread that waits for the end of the lifetime.
    _watchdog_stop: Sender<()>,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        let path = std::env::temp_dir().join(format!("tenure-test-{}", Nonce::random()));
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let (watchdog_stop, ended) = std::sync::mpsc::channel();
        let here = path.clone();
        std::thread::spawn(move || {
            if ended.recv_timeout(MAX_LIFETIME) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "{} has lasted for {MAX_LIFETIME:?}: all in it are killed",
                    here.display()
                );
                kill_all(&here);
            }
        });
        Sandbox { path, _watchdog_stop: watchdog_stop }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that only its owner can write, regardless of the umask.
    pub fn put(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path
    }

    /// The file to which the work appends a line for each run.
    pub fn marks(&self) -> PathBuf {
        self.path.join("marks")
    }

    pub fn marked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.marks()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// `tenure ARGS`, without any settings of the user.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(crate::tenure_program());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("TENURE_") || INSTANCE_VARIABLES.contains(&&*text) {
                command.env_remove(name);
            }
        }
        // Settings are read from the home directory and from the working directory.
        command.current_dir(&self.path).env("HOME", &self.path);
        command.args(args).env("TMPDIR", &self.path).stdin(Stdio::null());
        command
    }

    /// `tenure run NAME --node-id ID ARGS` on the directory `leases` of this sandbox.
    pub fn candidate(&self, name: &str, id: &str, args: &[&str]) -> Command {
        let mut command = self.command(&["run", name, "--node-id", id]);
        command.env("TENURE_LOCK_DIR", self.path.join("leases")).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> CommandResult {
        CommandResult::new(self.command(args).output().unwrap())
    }

    pub fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The processes that were started in this sandbox and still exist.
    pub fn processes(&self) -> Vec<PathBuf> {
        processes_of(&self.path)
    }

    /// The processes of this sandbox whose arguments start with these words.
    pub fn running(&self, words: &[&str]) -> Vec<PathBuf> {
        let is = |process: &PathBuf| {
            let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let mut arguments = line.split(|byte| *byte == 0).skip(1);
            words.iter().all(|word| arguments.next() == Some(word.as_bytes()))
        };
        self.processes().into_iter().filter(is).collect()
    }

    pub fn assert_nothing_left(&self) {
        assert_eq!(self.processes(), Vec::<PathBuf>::new(), "processes left behind");
        let files: Vec<_> = std::fs::read_dir(&self.path).unwrap().flatten().collect();
        assert!(files.is_empty(), "files left behind: {files:?}");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A test that failed leaves no process behind.
        kill_all(&self.path);
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn processes_of(sandbox: &Path) -> Vec<PathBuf> {
    let mark = format!("TMPDIR={}", sandbox.display());
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let in_sandbox = |path: &PathBuf| {
        let environ = std::fs::read(path.join("environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    all.filter(in_sandbox).collect()
}

/// Kills the processes of this sandbox until none is left: a killed process may have just started another.
fn kill_all(sandbox: &Path) {
    loop {
        let left = processes_of(sandbox);
        if left.is_empty() {
            return;
        }
        for process in left {
            let pid = process.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        pause(Duration::from_millis(20));
    }
}

/// The result of a command that has ended.
pub struct CommandResult {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandResult {
    pub fn new(output: Output) -> CommandResult {
        CommandResult {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub fn exits(&self, code: i32) -> &CommandResult {
        let CommandResult { stdout, stderr, .. } = self;
        assert_eq!(self.code, Some(code), "stdout:\n{stdout}\nstderr:\n{stderr}");
        self
    }

    #[track_caller]
    pub fn says(&self, text: &str) -> &CommandResult {
        assert!(self.stdout.contains(text), "no {text:?} in stdout:\n{}", self.stdout);
        self
    }

    #[track_caller]
    pub fn complains(&self, text: &str) -> &CommandResult {
        assert!(self.stderr.contains(text), "no {text:?} in stderr:\n{}", self.stderr);
        self
    }

    /// The stdout, parsed as one JSON object.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

pub fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// From now on the process cannot open any file, until the returned limit is restored.
pub fn deny_open_files(pid: u32) -> Rlimit {
    set_file_limit(pid, Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) })
}

/// Sets the limit of open files of a process; returns the limit before.
pub fn set_file_limit(pid: u32, files: Rlimit) -> Rlimit {
    prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, files).unwrap()
}

/// The body of `/status` on this local port; `None` if there is no answer.
pub fn status(port: u16) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let request = "GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    Some(serde_json::from_str(body).unwrap())
}

/// Far longer than any expected event takes, also on a busy machine.
const EVENTUALLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `done`.
#[track_caller]
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    within(EVENTUALLY_TIMEOUT, what, done);
}

/// Polls until `done`, for at most `limit`.
#[track_caller]
pub fn within(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let clock = Clock::boot();
    let end = clock.now() + limit;
    while !done() {
        assert!(clock.now() < end, "it never came to this: {what}");
        pause(Duration::from_millis(20));
    }
}

pub fn pause(time: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Clock::boot().sleep(time));
}
