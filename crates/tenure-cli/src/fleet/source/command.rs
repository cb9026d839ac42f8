//! Shards that a shell command prints, one per line.
//!
//! The command runs in its own process [group](ProcessGroup). The group is killed when the shell has ended, when the timeout
//! has passed, or when the read is cancelled.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::io::Errno;
use tenure::fleet::source::{LineParser, Shards, Source};
use tenure::supervise::run_blocking;
use tenure::{Error, Result};
use tokio::net::unix::pipe::Receiver;

use crate::process::ProcessGroup;

/// How long the command may run.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much of the end of stderr is kept for the error message.
const MAX_STDERR_BYTES: usize = 4096;
const MAX_SHOWN_CHARS: usize = 200;
/// The largest capacity of a pipe for an unprivileged user.
const MAX_PIPE_BYTES: usize = 1 << 20;
/// The prefix of the environment variables that configure Tenure.
const ENV_PREFIX: &str = "TENURE_";

#[derive(Debug)]
pub(super) struct CommandSource {
    line: String,
    limit: Duration,
}

impl CommandSource {
    pub(super) fn new(line: &str) -> Result<Self> {
        if line.trim().is_empty() || line.contains('\0') {
            return Err(Error::invalid(
                "a command that prints shards is a line for the shell, without NUL and not empty",
            ));
        }
        Ok(CommandSource { line: line.to_owned(), limit: TIMEOUT })
    }

    fn failed(&self, how: &str, tail: &StderrTail) -> Error {
        let last = tail.last_line();
        let says = if last.is_empty() { String::new() } else { format!(": {last}") };
        Error::unavailable(format!("{} {how}{says}", self.shown()))
    }

    async fn run(&self, tail: &mut StderrTail) -> Result<Shards> {
        let io = |tail: &StderrTail, error: &io::Error| {
            self.failed(&format!("cannot be run ({error})"), tail)
        };
        let line = self.line.clone();
        let mut group = run_blocking(move || spawn(&line)).await?.map_err(|e| io(tail, &e))?;
        let (out, err) = pipes(&mut group).map_err(|e| io(tail, &e))?;
        let mut lines = LineParser::default();
        let wrong = |error: Error| Error::new(error.kind(), format!("{}: {error}", self.shown()));
        let (mut out_open, mut err_open) = (true, true);
        {
            let mut ended = std::pin::pin!(group.ended());
            loop {
                tokio::select! {
                    piece = next_piece(&out), if out_open => match piece.map_err(|e| io(tail, &e))? {
                        Some(piece) => lines.push(&piece).map_err(wrong)?,
                        None => out_open = false,
                    },
                    piece = next_piece(&err), if err_open => match piece.map_err(|e| io(tail, &e))? {
                        Some(piece) => tail.push(&piece),
                        None => err_open = false,
                    },
                    ended = &mut ended => {
                        ended.map_err(|e| io(tail, &e))?;
                        break;
                    }
                }
            }
        }
        if let Err(error) = group.kill() {
            // The output of the command counts nevertheless.
            tracing::warn!("{} has left processes that cannot be killed: {error}", self.shown());
        }
        // All output of the shell is in the pipes now. Another process may still hold the other end; the read does not wait for
        // it.
        lines.push(&read_available(&out)).map_err(wrong)?;
        tail.push(&read_available(&err));
        let status = group.reap().map_err(|e| io(tail, &e))?;
        if !status.success() {
            return Err(self.failed(&describe_exit(status), tail));
        }
        run_blocking(move || lines.finish()).await?.map_err(wrong)
    }
}

#[async_trait]
impl Source for CommandSource {
    async fn read(&self) -> Result<Shards> {
        let mut tail = StderrTail::default();
        match tokio::time::timeout(self.limit, Box::pin(self.run(&mut tail))).await {
            Ok(read) => read,
            Err(_) => {
                let how = format!("did not end within {:?} and was killed", self.limit);
                Err(self.failed(&how, &tail))
            }
        }
    }

    fn hints(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }

    fn shown(&self) -> String {
        format!("the command '{}'", shortened(&self.line))
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(signal)) => format!("died of signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

/// Escapes the text for display, and shortens it.
fn shortened(text: &str) -> String {
    let short: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{}{more}", short.escape_debug())
}

/// The end of what the command has written to stderr.
#[derive(Default)]
struct StderrTail(Vec<u8>);

impl StderrTail {
    fn push(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
        let over = self.0.len().saturating_sub(MAX_STDERR_BYTES);
        self.0.drain(..over);
    }

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        shortened(text.trim().lines().next_back().unwrap_or_default().trim())
    }
}

/// Reads the next piece; `None` at the end.
async fn next_piece(pipe: &Receiver) -> io::Result<Option<Vec<u8>>> {
    loop {
        pipe.readable().await?;
        let mut piece = Vec::with_capacity(1 << 16);
        match pipe.try_read_buf(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(piece)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads what is in the pipe, without waiting. Asks the kernel, not the runtime, which may not have been notified yet.
fn read_available(pipe: &Receiver) -> Vec<u8> {
    let (mut all, mut size) = (vec![0; MAX_PIPE_BYTES], 0);
    // A process that has left the group may still be writing: read no more than a full pipe.
    while size < MAX_PIPE_BYTES {
        match rustix::io::read(pipe.as_fd(), &mut all[size..]) {
            Ok(more) if more > 0 => size += more,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => break,
        }
    }
    all.truncate(size);
    all
}

/// Starts the shell.
fn spawn(line: &str) -> io::Result<ProcessGroup> {
    let mut command = std::process::Command::new("/bin/sh");
    command.arg("-c").arg(line);
    // The command does not inherit Tenure's configuration: the URL of a store may contain a password.
    let is_config = |name: &OsString| name.as_encoded_bytes().starts_with(ENV_PREFIX.as_bytes());
    for name in std::env::vars_os().map(|(name, _)| name).filter(is_config) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ProcessGroup::spawn(&mut command)
}

/// Its stdout and stderr.
fn pipes(group: &mut ProcessGroup) -> io::Result<(Receiver, Receiver)> {
    let missing = || io::Error::other("it has no output");
    let (out, err) = group.take_output();
    let out = Receiver::from_owned_fd(out.ok_or_else(missing)?.into())?;
    let err = Receiver::from_owned_fd(err.ok_or_else(missing)?.into())?;
    Ok((out, err))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::{Clock, Kind};

    async fn read(line: &str) -> Result<Shards> {
        CommandSource::new(line).unwrap().read().await
    }

    fn names(shards: &Shards) -> Vec<&str> {
        shards.shards().iter().map(|shard| shard.as_str()).collect()
    }

    #[tokio::test]
    async fn a_million_lines_are_read_in_time() {
        let shards = read("seq -f 'tenant-%.0f' 1000000").await.unwrap();
        assert_eq!(shards.shards().len(), 1_000_000);
    }

    #[tokio::test]
    async fn the_printed_lines_are_shards() {
        let shards =
            read("printf 'b\\n# no\\n\\na b\\r\\nb\\nlast'; echo noise >&2").await.unwrap();
        assert_eq!(names(&shards), ["a b", "b", "last"]);
        assert_eq!(names(&read("true").await.unwrap()), [""; 0]);
        assert_eq!(names(&read("cat; echo in").await.unwrap()), ["in"], "there is no input");
    }

    #[tokio::test]
    async fn a_failing_command_reports_its_error_and_its_output_is_ignored() {
        for (line, says) in [
            (
                "echo a; echo first >&2; echo 'no such table' >&2; exit 3",
                "exited with 3: no such table",
            ),
            ("echo a; kill -9 $$", "died of signal 9"),
            ("echo a; false", "the command 'echo a; false' exited with 1"),
            ("/no/such/program", "exited with 127: "),
            ("printf '\\033[2J\\200' >&2; exit 1", "\\u{1b}[2J\u{fffd}"),
        ] {
            let error = read(line).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            assert!(error.to_string().contains(says), "{line}: {error}");
        }
        for line in ["", "  ", "a\0b"] {
            assert_eq!(CommandSource::new(line).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[tokio::test]
    async fn a_command_that_prints_too_much_is_stopped() {
        let error = read("head -c 1100000000 /dev/zero").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("more than a GiB"), "{error}");
    }

    /// Whether the process is running. A zombie is not.
    fn lives(pid: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }

    async fn ends(pid: &str) -> bool {
        let clock = Clock::boot();
        let give_up = clock.now() + Duration::from_secs(5);
        while lives(pid) && clock.now() < give_up {
            clock.sleep(Duration::from_millis(5)).await;
        }
        !lives(pid)
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_its_child_processes() {
        let limit = Duration::from_millis(300);
        let line = "sleep 1000 & echo $! >&2; sleep 1000";
        let command = CommandSource { line: line.to_owned(), limit };
        let error = command.read().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        let (says, pid) =
            error.to_string().rsplit_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(says.ends_with("did not end within 300ms and was killed"), "{error}");
        assert!(ends(&pid).await, "{pid}");
    }

    #[tokio::test]
    async fn background_processes_are_killed_without_waiting() {
        let shards = read("sleep 1000 & echo $!").await.unwrap();
        assert!(ends(names(&shards)[0]).await);
    }

    #[tokio::test]
    async fn a_process_that_leaves_the_group_does_not_delay_the_read() {
        let line = "setsid sh -c 'echo $$; exec >/dev/null; exec timeout 20 yes >&2' & sleep 0.2; echo end";
        let shards = read(line).await.unwrap();
        let escaped = names(&shards)[0].to_owned();
        assert_eq!(names(&shards)[1..], ["end"]);
        // SIGPIPE ends it, because its pipe has no reader any more.
        assert!(ends(&escaped).await);
    }

    #[tokio::test]
    async fn a_cancelled_read_kills_the_command() {
        let directory = std::env::temp_dir().join(format!("tenure-command-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("pid");
        let line =
            format!("echo $$ > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 1000", path.display());
        let source = CommandSource::new(&line).unwrap();
        let reading = tokio::spawn(async move { source.read().await });
        let clock = Clock::boot();
        let pid = loop {
            if let Ok(pid) = std::fs::read_to_string(&path) {
                break pid.trim().to_owned();
            }
            clock.sleep(Duration::from_millis(5)).await;
        };
        assert!(lives(&pid));
        reading.abort();
        assert!(ends(&pid).await);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
