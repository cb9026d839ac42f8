//! PURE: detects a command that would run the name of a shard as shell code.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Programs whose operand after `-c` is shell code.
const SHELLS: &[&str] = &[
    "sh", "ash", "bash", "csh", "dash", "fish", "hush", "ksh", "ksh93", "lksh", "mksh", "oksh",
    "pdksh", "posh", "rbash", "rksh", "tcsh", "yash", "zsh",
];
/// Programs that pass the argument after `-c` to a shell, at any position.
const USER_SWITCHERS: &[&str] = &["runuser", "su"];
/// Long options of shells that take the next argument as their value.
const OPTIONS_WITH_VALUE: &[&[u8]] = &[b"--emulate", b"--init-file", b"--rcfile"];

/// The shell whose code contains a shard according to `has_shard`. The shell may be at any position of the command: also with
/// a path, or after `env`, `nice` or `busybox`.
pub(super) fn shell_with_shard(
    command: &[OsString],
    has_shard: impl Fn(&OsStr) -> bool,
) -> Option<&str> {
    command.iter().enumerate().find_map(|(at, program)| {
        let name = Path::new(program).file_name()?.to_str()?;
        let arguments = &command[at + 1..];
        let code = if SHELLS.contains(&name) {
            shells_code(arguments)
        } else if USER_SWITCHERS.contains(&name) {
            switchers_code(arguments)
        } else {
            None
        };
        code.filter(|code| has_shard(code)).map(|_| name)
    })
}

/// The first operand, if one of the options before it is `-c`.
fn shells_code(arguments: &[OsString]) -> Option<&OsStr> {
    let mut has_code = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_bytes() {
            b"-" | b"--" => return rest.next().filter(|_| has_code).map(OsString::as_os_str),
            b"--command" => return rest.next().map(OsString::as_os_str),
            long if long.starts_with(b"--command=") => return Some(argument),
            long if long.starts_with(b"--") => {
                if OPTIONS_WITH_VALUE.contains(&long) {
                    rest.next();
                }
            }
            [sign @ (b'-' | b'+'), letters @ ..] => {
                has_code |= *sign == b'-' && letters.contains(&b'c');
                // `-o pipefail`, also as `-eo pipefail`.
                if matches!(letters.last(), Some(b'o' | b'O')) {
                    rest.next();
                }
            }
            _ => return has_code.then_some(argument),
        }
    }
    None
}

fn switchers_code(arguments: &[OsString]) -> Option<&OsStr> {
    let takes_code = |argument: &OsStr| match argument.as_bytes() {
        b"--command" | b"--session-command" => true,
        [b'-', letters @ ..] => !letters.starts_with(b"-") && letters.ends_with(b"c"),
        _ => false,
    };
    let glued = |argument: &OsStr| {
        let bytes = argument.as_bytes();
        bytes.starts_with(b"--command=") || bytes.starts_with(b"--session-command=")
    };
    let at = arguments.iter().position(|argument| takes_code(argument) || glued(argument))?;
    let code = if glued(&arguments[at]) { at } else { at + 1 };
    arguments.get(code).map(OsString::as_os_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &[&str]) -> Option<String> {
        let command: Vec<OsString> = line.iter().map(OsString::from).collect();
        let has_shard = |argument: &OsStr| argument.to_string_lossy().contains("{}");
        shell_with_shard(&command, has_shard).map(str::to_owned)
    }

    #[test]
    fn the_code_of_a_shell_is_found() {
        for (shell, line) in [
            ("sh", &["sh", "-c", "poll {}"][..]),
            ("bash", &["/usr/bin/bash", "-c", "poll '{}'"]),
            ("dash", &["dash", "-ec", "poll {}", "name"]),
            ("bash", &["bash", "-e", "-o", "pipefail", "-c", "poll {} | tee log"]),
            ("bash", &["bash", "-euo", "pipefail", "-c", "poll {}"]),
            ("bash", &["bash", "-lc", "poll {}"]),
            ("bash", &["bash", "--norc", "--rcfile", "x", "-c", "poll {}"]),
            ("bash", &["bash", "-c", "-e", "poll {}"]),
            ("zsh", &["zsh", "-c", "--", "poll {}"]),
            ("ksh", &["ksh", "+e", "-c", "poll {}"]),
            ("fish", &["fish", "--command", "poll {}"]),
            ("fish", &["fish", "--command=poll {}"]),
            ("sh", &["busybox", "sh", "-c", "poll {}"]),
            ("sh", &["/bin/busybox", "sh", "-c", "poll {}"]),
            ("sh", &["env", "sh", "-c", "poll {}"]),
            ("sh", &["/usr/bin/env", "-i", "A=b", "/bin/sh", "-c", "poll {}"]),
            ("bash", &["nice", "-n", "5", "timeout", "9", "bash", "-c", "poll {}"]),
            ("su", &["su", "-", "app", "-c", "poll {}"]),
            ("su", &["su", "-lc", "poll {}", "app"]),
            ("runuser", &["runuser", "-u", "app", "--command=poll {}"]),
        ] {
            assert_eq!(found(line).as_deref(), Some(shell), "{line:?}");
        }
    }

    #[test]
    fn a_shard_that_stays_an_argument_is_left_alone() {
        for line in [
            &["./poll", "{}"][..],
            &["sh", "-c", "poll \"$TENURE_SHARD\""],
            &["sh", "-c", "poll \"$1\"", "sh", "{}"],
            &["sh", "poll.sh", "{}"],
            &["sh", "poll.sh", "-c", "{}"],
            &["bash", "-o", "pipefail", "poll.sh", "{}"],
            &["bash", "-", "{}"],
            &["sh", "-c"],
            &["sh"],
            &["./poll", "-c", "{}"],
            &["su", "app", "{}"],
            &["env", "SHARD={}", "./poll"],
            &[],
        ] {
            assert_eq!(found(line), None, "{line:?}");
        }
    }
}
