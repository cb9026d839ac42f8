//! Child processes: this test program, started again in a role.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use tenure::store::Store;
use tenure::store::file::FileStore;
use tenure::{Answer, Checkpoint, Clock, Result};
use tenure_rig::system::history::padded_line;

use crate::fixture::{LONG, acquire, claim, claim_ending_with_process, hold, open, release, renew};

/// The environment variable that names the role.
pub(crate) const ROLE: &str = "TENURE_TEST_ROLE";
const STORE: &str = "TENURE_TEST_STORE";

/// A process in a role, killed when dropped. Its output is read line by line.
pub(crate) struct ChildProcess {
    pub(crate) process: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl ChildProcess {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("started");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        ChildProcess { process, stdout }
    }

    /// The next line; `None` when the process has ended.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.stdout.read_line(&mut line).expect("text");
        (count > 0).then(|| line.trim().to_owned())
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// This program in `role`, on `store`.
pub(crate) fn command(role: &str, store: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("we are a file"));
    command.env(ROLE, role).env(STORE, store);
    command
}

/// Runs `role` until it ends.
pub(crate) fn run(role: &str, store: &Path, environment: &[(&str, &str)]) {
    let mut command = command(role, store);
    command.envs(environment.iter().copied());
    assert!(command.status().expect("started").success(), "{role}");
}

/// Runs inside the child process.
pub(crate) fn run_role(role: &str) {
    let path = PathBuf::from(std::env::var_os(STORE).expect("which store"));
    // One thread for the store, so that a tracer that counts its system calls counts them all.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.expect("a runtime").block_on(async {
        if role == "umask" {
            let umask = std::env::var("UMASK").expect("which umask");
            let umask = u32::from_str_radix(&umask, 8).expect("octal");
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        }
        let store = match open(&path).await {
            Ok(store) => store,
            Err(error) => return print_line(format!("open {:?}", error.kind())),
        };
        match role {
            "umask" => drop(hold(&store, &claim_ending_with_process("child", LONG)).await),
            "mortal" => hold_and_sleep(&store, true).await,
            "immortal" => hold_and_sleep(&store, false).await,
            "parent" => hold_with_inheriting_child(&store).await,
            "participants" => crate::leftovers::hold_participant_leases(&store).await,
            "cycle" => cycle(&store).await,
            "contend" => contend(&store, &path).await,
            other => panic!("no role {other}"),
        }
    });
}

fn print_line(line: impl std::fmt::Display) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody listens");
}

async fn hold_and_sleep(store: &FileStore, ends: bool) {
    let claim = if ends { claim_ending_with_process("child", LONG) } else { claim("child", LONG) };
    print_line(hold(store, &claim).await.token);
    Clock::boot().sleep(LONG).await;
}

/// Holds a lease, and lets a program inherit the liveness file.
async fn hold_with_inheriting_child(store: &FileStore) {
    hold(store, &claim_ending_with_process("child", LONG)).await;
    let live = store.liveness().expect("it was claimed");
    fcntl_setfd(live.as_fd(), FdFlags::empty()).expect("inheritable");
    let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("started");
    print_line(child.id());
    // This process is killed long before.
    let _ = child.wait();
}

/// Runs every operation once and prints one line per result.
async fn cycle(store: &FileStore) {
    let claim = claim_ending_with_process("child", LONG);
    let hold = match acquire(store, &claim).await {
        Ok(Answer::Held(grant)) => grant.hold,
        Ok(Answer::Taken(_)) => return print_line("taken"),
        Err(error) => return print_line(format!("acquire {:?}", error.kind())),
    };
    print_line(format!("held {}", hold.token));
    let report = |what: &str, outcome: Result<()>| match outcome {
        Ok(()) => print_line(format!("{what} done")),
        Err(error) => print_line(format!("{what} {:?}", error.kind())),
    };
    report("renew", renew(store, &hold).await.map(|answer| assert!(answer.is_held())));
    let checkpoint = Checkpoint::new("here").expect("short");
    let saved = store.save(&hold, 1, &checkpoint).await;
    report("save", saved.map(|answer| assert!(answer.is_held())));
    report("release", release(store, &hold).await);
}

/// Leads repeatedly, and logs the start and end of each term.
async fn contend(store: &FileStore, path: &Path) {
    let clock = Clock::boot();
    let log = path.with_file_name("log");
    let mut log = std::fs::File::options().append(true).open(log).expect("a log");
    let mut write = |line: String| log.write_all(padded_line(&line).as_bytes()).expect("written");
    let id = format!("c{}", std::process::id());
    loop {
        let claim = claim_ending_with_process(&id, Duration::from_millis(300));
        let before = clock.now();
        let Ok(Answer::Held(grant)) = acquire(store, &claim).await else {
            clock.sleep(Duration::from_millis(1)).await;
            continue;
        };
        let token = grant.hold.token;
        // Only while this process certainly holds it, as an election would.
        let deadline = before + Duration::from_millis(250);
        if clock.now() < deadline {
            write(format!("begin {token}"));
            clock.sleep(Duration::from_millis(2)).await;
            if clock.now() < deadline {
                write(format!("end {token}"));
            }
        }
        let _ = release(store, &grant.hold).await;
    }
}
