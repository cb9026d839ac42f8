//! The processes of the demo: starts, signals and reaps each by its own process id, and reads its messages.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Clock, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::protocol::{NodeConfig, NodeMessage};

/// How often to try to freeze a process at a moment at which it holds no lock.
const FREEZE_ATTEMPTS: u32 = 500;

/// One process of the demo.
struct DemoProcess {
    config: NodeConfig,
    child: Child,
    /// Open as long as the demo runs: when it closes, the process exits.
    stdin: Option<ChildStdin>,
    ended: Option<ExitStatus>,
    /// The port of its HTTP server, once the process has reported it.
    port: Option<u16>,
}

/// All processes of the demo.
pub(super) struct DemoProcesses {
    processes: Vec<DemoProcess>,
    messages: mpsc::UnboundedReceiver<(usize, NodeMessage)>,
    /// Kept for processes that are restarted.
    sender: mpsc::UnboundedSender<(usize, NodeMessage)>,
    /// The flags before `demo-node` on the command line.
    flags: Vec<String>,
}

impl DemoProcesses {
    pub(super) fn new(flags: Vec<String>) -> DemoProcesses {
        let (sender, messages) = mpsc::unbounded_channel();
        DemoProcesses { processes: Vec::new(), messages, sender, flags }
    }

    /// Starts one more process.
    pub(super) async fn start(&mut self, config: NodeConfig) -> Result<()> {
        let process = self.spawn(self.processes.len(), config).await?;
        self.processes.push(process);
        Ok(())
    }

    /// Restarts a process that has ended.
    pub(super) async fn restart(&mut self, which: usize) -> Result<()> {
        let config = self.processes[which].config.clone();
        self.processes[which] = self.spawn(which, config).await?;
        Ok(())
    }

    async fn spawn(&self, which: usize, config: NodeConfig) -> Result<DemoProcess> {
        let failed =
            |error: std::io::Error| Error::denied(format!("cannot start a process: {error}"));
        let mut child = Command::new(own_executable().map_err(failed)?)
            .args(&self.flags)
            .arg("demo-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl+C on the terminal must reach only the demo itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            let config_json = serde_json::to_string(&config)
                .map_err(|error| Error::invalid(format!("the plan cannot be written: {error}")))?;
            stdin.write_all(format!("{config_json}\n").as_bytes()).await.map_err(failed)?;
        }
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(read_messages(which, stdout, self.sender.clone()));
        }
        Ok(DemoProcess { config, child, stdin, ended: None, port: None })
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn id(&self, which: usize) -> &str {
        &self.processes[which].config.id
    }

    /// The process id; `None` once the process was reaped.
    pub(super) fn pid(&self, which: usize) -> Option<u32> {
        self.processes[which].child.id()
    }

    /// The port that the process was told to use.
    pub(super) fn requested_port(&self, which: usize) -> u16 {
        self.processes[which].config.port
    }

    /// The port of its HTTP server.
    pub(super) fn port(&self, which: usize) -> Option<u16> {
        self.processes[which].port
    }

    /// Records the port that the process reported; a restarted process uses the same port.
    pub(super) fn set_port(&mut self, which: usize, port: u16) {
        let process = &mut self.processes[which];
        (process.config.port, process.port) = (port, Some(port));
    }

    /// The next message of any process.
    pub(super) async fn next_message(&mut self) -> (usize, NodeMessage) {
        match self.messages.recv().await {
            Some(message) => message,
            // Unreachable: `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Sends a signal. A process keeps its id until it is reaped, so no other process can receive the signal.
    pub(super) fn signal(&self, which: usize, signal: Signal) {
        let pid = self.pid(which).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid
            && let Err(errno) = kill_process(pid, signal)
        {
            tracing::warn!("cannot signal {}: {errno}", self.id(which));
        }
    }

    /// Freezes a process while it does not hold the lock of a lease in a directory store. The kernel drops such a lock only when
    /// its process dies, so no process could lead until the frozen one resumes. Only a guard could end that.
    pub(super) async fn freeze(&self, which: usize) {
        for _ in 0..FREEZE_ATTEMPTS {
            self.signal(which, Signal::STOP);
            let Some(pid) = self.pid(which) else { return };
            while !is_stopped(pid) {
                Clock::boot().sleep(Duration::from_micros(200)).await;
            }
            if !holds_name_lock(pid) {
                return;
            }
            self.signal(which, Signal::CONT);
            Clock::boot().sleep(Duration::from_millis(2)).await;
        }
        self.signal(which, Signal::STOP);
    }

    /// Waits for the end of a process, and returns its exit status.
    pub(super) async fn reap(&mut self, which: usize) -> Result<ExitStatus> {
        let process = &mut self.processes[which];
        if let Some(status) = process.ended {
            return Ok(status);
        }
        let waited = process.child.wait().await;
        let status =
            waited.map_err(|error| Error::denied(format!("cannot wait for a process: {error}")))?;
        process.ended = Some(status);
        process.stdin = None;
        Ok(status)
    }

    /// Kills every process that is left, also a frozen one.
    pub(super) async fn kill_all(&mut self) {
        for which in 0..self.len() {
            if self.processes[which].ended.is_none() {
                self.signal(which, Signal::KILL);
            }
        }
        for which in 0..self.len() {
            if let Err(error) = self.reap(which).await {
                tracing::warn!("{}: {error}", self.id(which));
            }
        }
    }
}

/// The path of this program; works also if its file was replaced since the start.
pub(super) fn own_executable() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
}

async fn read_messages(
    which: usize,
    stdout: ChildStdout,
    sender: mpsc::UnboundedSender<(usize, NodeMessage)>,
) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            // The receiver is gone when the demo is over.
            Ok(message) => _ = sender.send((which, message)),
            Err(error) => tracing::warn!("a process of the demo said {line:?}: {error}"),
        }
    }
    let _ = sender.send((which, NodeMessage::Gone));
}

/// Whether every thread of a process is stopped. A process that is gone counts as stopped.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may contain any character.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['R', 'S', 'D']))
    })
}

/// Whether a process holds a lock on a file in a directory `locks`, where a directory store has the locks of its leases.
fn holds_name_lock(pid: u32) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let info = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        let file = Path::new("/proc").join(pid.to_string()).join("fd").join(descriptor.file_name());
        let in_locks =
            |file: PathBuf| file.parent().is_some_and(|parent| parent.ends_with("locks"));
        info.contains("FLOCK") && std::fs::read_link(file).is_ok_and(in_locks)
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    #[test]
    fn only_a_held_lock_of_a_lease_counts() {
        let directory = std::env::temp_dir().join(format!("tenure-freeze-{}", std::process::id()));
        let files = ["locks/job.lock", "live/process"].map(|file| {
            let path = directory.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::File::create(path).unwrap()
        });
        let me = std::process::id();
        flock(&files[1], FlockOperation::LockExclusive).unwrap();
        assert!(
            !holds_name_lock(me),
            "a process holds the lock of its liveness as long as it runs"
        );
        flock(&files[0], FlockOperation::LockExclusive).unwrap();
        assert!(holds_name_lock(me));
        flock(&files[0], FlockOperation::Unlock).unwrap();
        assert!(!holds_name_lock(me));
        assert!(!is_stopped(me));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
