//! Other processes: this program again, in a role.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use tenure::store::Store;
use tenure::store::file::FileStore;
use tenure::{Answer, Checkpoint, Clock, Result};

use crate::fixture::{LONG, acquire, claim, hold, mortal, open, release, renew};

/// The environment variable that says which.
pub(crate) const ROLE: &str = "TENURE_TEST_ROLE";
const STORE: &str = "TENURE_TEST_STORE";

/// A process in a role, killed when dropped. What it says is read line by line.
pub(crate) struct Other {
    pub(crate) process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Other {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("started");
        let said = BufReader::new(process.stdout.take().expect("piped"));
        Other { process, said }
    }

    /// The next line; `None` when it has ended.
    pub(crate) fn says(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.said.read_line(&mut line).expect("text");
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

impl Drop for Other {
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

/// Plays `role` to its end.
pub(crate) fn run(role: &str, store: &Path, environment: &[(&str, &str)]) {
    let mut command = command(role, store);
    command.envs(environment.iter().copied());
    assert!(command.status().expect("started").success(), "{role}");
}

/// Inside the other process.
pub(crate) fn play(role: &str) {
    let path = PathBuf::from(std::env::var_os(STORE).expect("which store"));
    // One thread for the store, so that whoever counts its system calls counts them all.
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
            Err(error) => return say(format!("open {:?}", error.kind())),
        };
        match role {
            "umask" => drop(hold(&store, &mortal("child", LONG)).await),
            "mortal" => stay(&store, true).await,
            "immortal" => stay(&store, false).await,
            "parent" => with_heir(&store).await,
            "participants" => crate::leftovers::participate(&store).await,
            "cycle" => cycle(&store).await,
            "contend" => contend(&store, &path).await,
            other => panic!("no role {other}"),
        }
    });
}

fn say(line: impl std::fmt::Display) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody listens");
}

async fn stay(store: &FileStore, ends: bool) {
    let claim = if ends { mortal("child", LONG) } else { claim("child", LONG) };
    say(hold(store, &claim).await.token);
    Clock::boot().sleep(LONG).await;
}

/// Holds, and lets a program inherit the file that says so.
async fn with_heir(store: &FileStore) {
    hold(store, &mortal("child", LONG)).await;
    let live = store.liveness().expect("it was claimed");
    fcntl_setfd(live.as_fd(), FdFlags::empty()).expect("inheritable");
    let mut heir = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("started");
    say(heir.id());
    // We are killed long before.
    let _ = heir.wait();
}

/// Every verb once, each outcome a line.
async fn cycle(store: &FileStore) {
    let claim = mortal("child", LONG);
    let hold = match acquire(store, &claim).await {
        Ok(Answer::Held(grant)) => grant.hold,
        Ok(Answer::Taken(_)) => return say("taken"),
        Err(error) => return say(format!("acquire {:?}", error.kind())),
    };
    say(format!("held {}", hold.token));
    let tell = |what: &str, outcome: Result<()>| match outcome {
        Ok(()) => say(format!("{what} done")),
        Err(error) => say(format!("{what} {:?}", error.kind())),
    };
    tell("renew", renew(store, &hold).await.map(|answer| assert!(answer.is_held())));
    let checkpoint = Checkpoint::new("here").expect("short");
    let saved = store.save(&hold, 1, &checkpoint).await;
    tell("save", saved.map(|answer| assert!(answer.is_held())));
    tell("release", release(store, &hold).await);
}

/// Leads again and again, and writes down when.
async fn contend(store: &FileStore, path: &Path) {
    let clock = Clock::boot();
    let log = path.with_file_name("log");
    let mut log = std::fs::File::options().append(true).open(log).expect("a log");
    let id = format!("c{}", std::process::id());
    loop {
        let claim = mortal(&id, Duration::from_millis(300));
        let before = clock.now();
        let Ok(Answer::Held(grant)) = acquire(store, &claim).await else {
            clock.sleep(Duration::from_millis(1)).await;
            continue;
        };
        let token = grant.hold.token;
        // Only while it is certainly ours, as an election would.
        let deadline = before + Duration::from_millis(250);
        if clock.now() < deadline {
            log.write_all(format!("begin {token}\n").as_bytes()).expect("written");
            clock.sleep(Duration::from_millis(2)).await;
            if clock.now() < deadline {
                log.write_all(format!("end {token}\n").as_bytes()).expect("written");
            }
        }
        let _ = release(store, &grant.hold).await;
    }
}
