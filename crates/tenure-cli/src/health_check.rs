//! The command of `--health`: runs it once, and returns the reason if it fails.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Command, ExitStatus, Stdio};

use crate::process::ProcessGroup;
use tenure::{CandidateId, Name};
use tokio::net::unix::pipe::Receiver;

use crate::{child_env, output};

/// How many bytes of the end of stderr are kept to find its last line.
const TAIL_BYTES: usize = 4096;
/// How many characters of that line are shown.
const MAX_SHOWN_CHARS: usize = 100;

/// Runs `line` in a shell; if it fails, the error has the exit code and the last line of stderr.
///
/// # Cancellation
/// Dropping this kills the command and its process group.
pub(crate) async fn run(line: &str, name: &Name, candidate: &CandidateId) -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    child_env::set(&mut command, name, candidate, None);
    command.arg("-c").arg(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let cannot = |error: std::io::Error| format!("cannot be run: {error}");
    let mut group = ProcessGroup::spawn(&mut command).map_err(cannot)?;
    let (_, stderr) = group.take_output();
    let stderr = stderr.map(|stderr| Receiver::from_owned_fd(OwnedFd::from(stderr)));
    let stderr = stderr.transpose().map_err(cannot)?;
    let mut tail = Vec::new();
    {
        let mut ended = pin!(group.ended());
        let mut open = stderr.is_some();
        loop {
            tokio::select! {
                ended = &mut ended => {
                    ended.map_err(cannot)?;
                    break;
                }
                more = read(stderr.as_ref(), &mut tail), if open => open = more,
            }
        }
    }
    // What it wrote before it ended is in the pipe; a process that it left is not waited for.
    while let Some(stderr) = &stderr
        && read_available(stderr, &mut tail)
    {}
    let status = group.reap().map_err(cannot)?;
    if status.success() {
        return Ok(());
    }
    let last = last_line(&tail);
    let colon = if last.is_empty() { "" } else { ": " };
    Err(format!("{}{colon}{last}", shown(status)))
}

/// Waits for more of stderr; `false` at its end.
async fn read(stderr: Option<&Receiver>, tail: &mut Vec<u8>) -> bool {
    let Some(stderr) = stderr else { return false };
    if stderr.readable().await.is_err() {
        return false;
    }
    let mut piece = [0; TAIL_BYTES];
    match stderr.try_read(&mut piece) {
        Ok(0) => false,
        Ok(length) => {
            push(tail, &piece[..length]);
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Reads what is in the pipe now; `false` when it is empty.
fn read_available(stderr: &Receiver, tail: &mut Vec<u8>) -> bool {
    let mut piece = [0; TAIL_BYTES];
    match stderr.try_read(&mut piece) {
        Ok(length) if length > 0 => {
            push(tail, &piece[..length]);
            true
        }
        _ => false,
    }
}

fn push(tail: &mut Vec<u8>, piece: &[u8]) {
    tail.extend_from_slice(piece);
    let excess = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..excess);
}

fn last_line(tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(tail);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    output::printable(&last.chars().take(MAX_SHOWN_CHARS).collect::<String>())
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(line: &str) -> Result<(), String> {
        let (name, id) = (Name::new("job").unwrap(), CandidateId::new("a").unwrap());
        run(line, &name, &id).await
    }

    #[tokio::test]
    async fn a_failure_has_the_exit_code_and_the_last_line_of_stderr() {
        assert_eq!(check("echo fine >&2; exit 0").await, Ok(()));
        assert_eq!(check("exit 3").await, Err("exit 3".to_owned()));
        let lines = "echo first >&2; echo 'disk is full' >&2; echo >&2; exit 1";
        assert_eq!(check(lines).await, Err("exit 1: disk is full".to_owned()));
        let misspelt = check("no-such-command-here").await.unwrap_err();
        assert!(misspelt.starts_with("exit 127: "), "{misspelt}");
        assert!(misspelt.contains("no-such-command-here"), "{misspelt}");
        assert_eq!(check("kill -9 $$").await, Err("killed by signal 9".to_owned()));
    }

    #[tokio::test]
    async fn a_process_left_behind_with_stderr_open_is_not_waited_for() {
        let mark = std::env::temp_dir().join(format!("tenure-health-{}", tenure::Nonce::random()));
        let line = format!(
            "(sleep 5; : > {}; sleep 1; rm {}) & echo late >&2; exit 2",
            mark.display(),
            mark.display()
        );
        assert_eq!(check(&line).await, Err("exit 2: late".to_owned()));
        assert!(!mark.exists(), "the result came after the background process had ended");
    }

    #[tokio::test]
    async fn much_output_is_read_and_only_the_end_is_kept() {
        let line = "head -c 1000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo end >&2; exit 1";
        assert_eq!(check(line).await, Err("exit 1: end".to_owned()));
        let tail = check("printf 'a\\033[2Jb' >&2; exit 1").await;
        assert_eq!(tail, Err("exit 1: a\\u{1b}[2Jb".to_owned()));
    }
}
