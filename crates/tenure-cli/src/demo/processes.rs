//! The processes of the demo: started, signalled, listened to, and reaped, each by its own id.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::protocol::{NodeMessage, Plan};

/// One process.
struct DemoProcess {
    plan: Plan,
    child: Child,
    /// Open as long as we live: its end is the process's end.
    stdin: Option<ChildStdin>,
    ended: Option<ExitStatus>,
    /// Where it answers over HTTP, once it has said so.
    port: Option<u16>,
}

/// All of them.
pub(super) struct DemoProcesses {
    players: Vec<DemoProcess>,
    words: mpsc::UnboundedReceiver<(usize, NodeMessage)>,
    /// Kept for those that are started again.
    heard: mpsc::UnboundedSender<(usize, NodeMessage)>,
    /// What stands before `demo-node` on the command line.
    flags: Vec<String>,
}

impl DemoProcesses {
    pub(super) fn new(flags: Vec<String>) -> DemoProcesses {
        let (heard, words) = mpsc::unbounded_channel();
        DemoProcesses { players: Vec::new(), words, heard, flags }
    }

    /// Starts one more process.
    pub(super) async fn start(&mut self, plan: Plan) -> Result<()> {
        let player = self.player(self.players.len(), plan).await?;
        self.players.push(player);
        Ok(())
    }

    /// Starts one anew, after it has ended.
    pub(super) async fn restart(&mut self, which: usize) -> Result<()> {
        let plan = self.players[which].plan.clone();
        self.players[which] = self.player(which, plan).await?;
        Ok(())
    }

    async fn player(&self, which: usize, plan: Plan) -> Result<DemoProcess> {
        let failed =
            |error: std::io::Error| Error::denied(format!("cannot start a process: {error}"));
        let mut child = Command::new(ourselves().map_err(failed)?)
            .args(&self.flags)
            .arg("demo-node")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl+C on the terminal is for us alone.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            let orders = serde_json::to_string(&plan)
                .map_err(|error| Error::invalid(format!("the plan cannot be written: {error}")))?;
            stdin.write_all(format!("{orders}\n").as_bytes()).await.map_err(failed)?;
        }
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(listen(which, stdout, self.heard.clone()));
        }
        Ok(DemoProcess { plan, child, stdin, ended: None, port: None })
    }

    pub(super) fn len(&self) -> usize {
        self.players.len()
    }

    pub(super) fn id(&self, which: usize) -> &str {
        &self.players[which].plan.id
    }

    /// Its process id; none once it was reaped.
    pub(super) fn pid(&self, which: usize) -> Option<u32> {
        self.players[which].child.id()
    }

    /// The port that it was given.
    pub(super) fn wanted(&self, which: usize) -> u16 {
        self.players[which].plan.port
    }

    /// The port it answers on.
    pub(super) fn port(&self, which: usize) -> Option<u16> {
        self.players[which].port
    }

    /// It has said where it answers, and is to be found there again when it is started anew.
    pub(super) fn answers(&mut self, which: usize, port: u16) {
        let player = &mut self.players[which];
        (player.plan.port, player.port) = (port, Some(port));
    }

    /// The next thing that one of them says.
    pub(super) async fn word(&mut self) -> (usize, NodeMessage) {
        match self.words.recv().await {
            Some(word) => word,
            // We hold a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// Sends a signal. Its process id is its own until it is reaped, so nobody else is hit.
    pub(super) fn signal(&self, which: usize, signal: Signal) {
        let pid = self.pid(which).and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid
            && let Err(errno) = kill_process(pid, signal)
        {
            tracing::warn!("cannot signal {}: {errno}", self.id(which));
        }
    }

    /// Waits for its end, and gives how it ended.
    pub(super) async fn reap(&mut self, which: usize) -> Result<ExitStatus> {
        let player = &mut self.players[which];
        if let Some(status) = player.ended {
            return Ok(status);
        }
        let waited = player.child.wait().await;
        let status =
            waited.map_err(|error| Error::denied(format!("cannot wait for a process: {error}")))?;
        player.ended = Some(status);
        player.stdin = None;
        Ok(status)
    }

    /// Ends whoever is left, at once; a frozen one too.
    pub(super) async fn end(&mut self) {
        for which in 0..self.len() {
            if self.players[which].ended.is_none() {
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

/// The program we are; also if its file was replaced since we were started.
pub(super) fn ourselves() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { PathBuf::from("/proc/self/exe") })
}

async fn listen(
    which: usize,
    stdout: ChildStdout,
    heard: mpsc::UnboundedSender<(usize, NodeMessage)>,
) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            // Nobody listens when the demo is over.
            Ok(word) => _ = heard.send((which, word)),
            Err(error) => tracing::warn!("a process of the demo said {line:?}: {error}"),
        }
    }
    let _ = heard.send((which, NodeMessage::Gone));
}
