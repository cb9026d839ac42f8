//! F46: a command that becomes root under a leader that is not root. Only root can kill it, and the log reports that.
//!
//! The trial is root, the leader and its guard run as an ordinary user, and the command is a copy of `setpriv` with the
//! set-user-id bit, which becomes root permanently.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::trial;
use tenure_rig::servers::Scratch;
use tenure_rig::stderr_faults::turns;
use tenure_rig::system::election_trial::TIMEOUT;
use tenure_rig::system::processes::{children, is_there, marked, signal};
use tenure_rig::system::time::{pause, poll_until};
use tenure_rig::system::trial_directory::{TenureProcess, TrialDirectory};
use tenure_rig::system::trial_store::StoreKind;

const USER: u32 = 65534;
const REFUSED: &str = ", uid 0): Operation not permitted";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (work, name) in [(Work::Run, "run"), (Work::Fleet, "fleet")] {
        for (fault, what) in [
            (Fault::Kill, "the_leader_is_killed"),
            (Fault::Freeze, "the_leader_is_frozen"),
            (Fault::Guard, "the_guard_is_killed"),
        ] {
            let name = format!("kill_refused::{name}::{what}::file");
            trials.push(trial(name, StoreKind::File, move || refused(work, fault)));
        }
    }
    let able = becomes_root();
    let only_if_able = |trial: Trial| match able {
        true => trial,
        false => {
            let needs = "needs root, setpriv, and a file system that allows set-user-id";
            trial.with_kind(needs.to_owned()).with_ignored_flag(true)
        }
    };
    trials.into_iter().map(only_if_able).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Run,
    Fleet,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
    Guard,
}

/// Whether this machine has what this trial needs.
fn becomes_root() -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let scratch = Scratch::in_memory();
    let Some(helper) = helper(scratch.path()) else { return false };
    let mut command = as_user();
    command.arg(helper).args(["--reuid", "0", "--clear-groups", "id", "-ru"]);
    command.output().is_ok_and(|output| output.stdout == b"0\n")
}

/// A program in a directory that every user may read: becomes root, and then runs its arguments.
fn helper(directory: &Path) -> Option<PathBuf> {
    let helper = directory.join("become-root");
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).ok()?;
    copy(Path::new("/usr/bin/setpriv"), &helper)?;
    std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o4755)).ok()?;
    Some(helper)
}

/// By another process: while this process writes a file, a concurrent trial may fork, and the file cannot be executed while
/// that child has it open.
fn copy(from: &Path, to: &Path) -> Option<()> {
    let copied = Command::new("cp").args([from, to]).status().ok()?;
    copied.success().then_some(())
}

fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command
}

fn refused(work: Work, fault: Fault) {
    for _ in 0..turns(1) {
        one_turn(work, fault);
    }
}

fn one_turn(work: Work, fault: Fault) {
    let room = TrialDirectory::new();
    let mut leader = Leader::start(room, work);
    let (guard, command) = leader.guard_and_command();
    let pid = leader.actor().pid();
    let busy = match fault {
        Fault::Kill => {
            signal(pid, Signal::KILL);
            guard
        }
        Fault::Freeze => {
            signal(pid, Signal::STOP);
            leader.expect_lines(&format!("cannot kill process {command} (sleep{REFUSED}"), 1);
            signal(pid, Signal::CONT);
            pid
        }
        Fault::Guard => {
            signal(guard, Signal::KILL);
            pid
        }
    };
    // One line of the guard if only the guard logs it, two if the leader does too.
    let lines = if fault == Fault::Freeze { 2 } else { 1 };
    leader.expect_lines(&format!("cannot kill process {command} (sleep{REFUSED}"), lines);
    if fault != Fault::Kill {
        leader.expect_lines("the command is not stopped: cannot kill process", 1);
    }
    let used = processor_time(busy);
    pause(Duration::from_secs(3));
    let used = processor_time(busy) - used;
    // It used to be more than half of all the time.
    let check = |holds: bool, what: &str| {
        if !holds {
            leader.room.fail(&format!("{what}:\n{}", leader.log()));
        }
    };
    check(used < Duration::from_millis(300), &format!("{used:?} of 3 s"));
    check(is_there(command), "the command lives");
    let waits = fault == Fault::Guard || is_there(guard);
    check(waits, "the guard waits for the end of the command");
    leader.expect_lines(&format!("cannot kill process {command} "), lines);
    let printed = leader.log();
    let claims = ["ended the command", "ended its commands", "released", "every command"];
    check(!claims.iter().any(|claim| printed.contains(claim)), "it claims what is not so");
    leader.expect_lines("runs as another user, and only root may kill it", 1);
    // The trial is root and may kill it.
    signal(command, Signal::KILL);
    let ended = match (work, fault) {
        (Work::Run, Fault::Kill) => "the leader's process died: ended the command and released",
        (Work::Fleet, Fault::Kill) => "the member's process died: ended its commands and released",
        (Work::Run, Fault::Freeze) => "Lost leadership: ",
        (Work::Fleet, Fault::Freeze) => "Lease released: ",
        (Work::Run, Fault::Guard) => "the guard died: ended the command",
        (Work::Fleet, Fault::Guard) => "the guard is gone, and with it every command",
    };
    leader.expect_lines(ended, 1);
}

/// A leader that runs as an ordinary user. It is killed with all its descendants when it is dropped.
struct Leader {
    // Dropped before the room, which is needed to clean up.
    actors: Vec<TenureProcess>,
    room: TrialDirectory,
}

impl Leader {
    fn start(room: TrialDirectory, work: Work) -> Leader {
        let helper = helper(room.path()).unwrap();
        // In a directory that the user may read, wherever this program was built.
        let program = room.path().join("tenure");
        let built = room.command();
        copy(Path::new(built.get_program()), &program).unwrap();
        let home = room.path().join("home");
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
        let mut command = as_user();
        command.arg(program).args(["--store", &format!("file:{}/store", home.display())]);
        match work {
            Work::Run => command.args(["run", "job"]),
            Work::Fleet => command.args(["fleet", "run", "job", "--shards", "s"]),
        };
        command.args(["--node-id", "a", "--lease-duration", "1s", "--"]).arg(helper);
        command.args(["--reuid", "0", "--clear-groups", "sleep", "1000"]);
        for (name, value) in built.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(home);
        let actors = vec![room.start("a", command, None)];
        Leader { actors, room }
    }

    fn actor(&self) -> &TenureProcess {
        &self.actors[0]
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.room.log_of("a")).unwrap_or_default()
    }

    /// Waits until `lines` lines of the log contain these words, and checks that there are no more.
    fn expect_lines(&self, words: &str, lines: usize) {
        let count = || self.log().lines().filter(|line| line.contains(words)).count();
        let found = poll_until(TIMEOUT, || (count() >= lines).then_some(()));
        if found.is_none() || count() > lines {
            self.room.fail(&format!("not {lines} × {words:?}:\n{}", self.log()));
        }
    }

    fn guard_and_command(&mut self) -> (u32, u32) {
        let pid = self.actor().pid();
        let is_root = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.contains("Name:\tsleep\n") && status.contains("Uid:\t0\t0\t0\t0\n")
        };
        let found = poll_until(TIMEOUT, || {
            let guard = *children(pid).first()?;
            let command = *children(guard).first()?;
            is_root(command).then_some((guard, command))
        });
        found.unwrap_or_else(|| {
            let all = marked(self.room.mark());
            let all = tenure_rig::system::processes::described(&all);
            self.room.fail(&format!("the command does not run:\n{all}\n{}", self.log()))
        })
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.room.clear(&mut self.actors);
    }
}

/// The processor time that a process has used up to now.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let words: Vec<u64> = {
        let rest = stat.rsplit_once(") ").unwrap().1;
        rest.split(' ').skip(11).take(2).map(|word| word.parse().unwrap()).collect()
    };
    // In hundredths of a second, in every kernel configuration.
    Duration::from_millis(10 * words.iter().sum::<u64>())
}
