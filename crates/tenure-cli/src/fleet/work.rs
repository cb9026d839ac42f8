//! The work of a shard: a command, an HTTP poll or a mock, and how often it runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tenure::fleet::Shard;
use tenure::{Error, Result};

use super::options::FleetWorkArgs;
use super::shell_code::shell_with_shard;
use crate::open_files;
use crate::run::{GivenWork, HttpPoll};

/// The placeholder for the shard in commands and URLs.
const PLACEHOLDER: &str = "{}";
/// The default period of work that is not a command.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The validated work of `tenure fleet run`, the same for every shard.
pub(super) struct FleetWork {
    pub(super) kind: WorkKind,
    /// `None`: the work runs for as long as this member owns the shard.
    pub(super) every: Option<Duration>,
    /// The greatest number of concurrent runs; `None`: no limit.
    pub(super) concurrency: Option<u32>,
}

pub(super) enum WorkKind {
    Command(Vec<OsString>),
    Get { client: Arc<HttpPoll>, url: String },
    Mock,
}

impl FleetWork {
    pub(super) fn new(work: &FleetWorkArgs) -> Result<FleetWork> {
        let FleetWorkArgs { task, every, .. } = work;
        if *every == Some(Duration::ZERO) {
            return Err(Error::invalid("--every must not be zero: give a period like 5s"));
        }
        let kind = match task.given()? {
            None => {
                return Err(Error::invalid(
                    "nothing to run: type the command behind '--', as in 'tenure fleet run NAME -- CMD {}', \
                     or give --get URL, or --mock to see a fleet without any work",
                ));
            }
            Some(GivenWork::Command(command)) => WorkKind::Command(command.to_vec()),
            Some(GivenWork::Get(url)) => {
                // Any shard name leaves the URL valid, so one example is enough to check it.
                let example = with_shard(url, "shard").unwrap_or_default();
                let client = HttpPoll::new(&example, task.timeout())?;
                // If idle connections were kept, there would be one for each shard.
                let client =
                    if shard_is_in_host(url) { client.without_connection_reuse()? } else { client };
                WorkKind::Get { client: Arc::new(client), url: url.to_owned() }
            }
            Some(GivenWork::Mock) => WorkKind::Mock,
        };
        let every = every.or(task.command.is_empty().then_some(DEFAULT_POLL_INTERVAL));
        if work.concurrency.is_some() && every.is_none() {
            return Err(Error::invalid(
                "--concurrency is about work that comes again and again: give --every too, or leave it out",
            ));
        }
        let concurrency = match kind {
            WorkKind::Get { .. } => Some(max_concurrent_polls(work.concurrency)),
            WorkKind::Command(_) | WorkKind::Mock => work.concurrency,
        };
        Ok(FleetWork { kind, every, concurrency })
    }

    /// The shell that would run the name of a shard as code.
    pub(super) fn shell_with_shard(&self) -> Option<&str> {
        match &self.kind {
            WorkKind::Command(command) => shell_with_shard(command, has_shard),
            WorkKind::Get { .. } | WorkKind::Mock => None,
        }
    }

    /// Whether the work does not mention the shard, so that it is the same for every shard.
    pub(super) fn ignores_the_shard(&self) -> bool {
        let uses = |argument: &OsString| {
            has_shard(argument) || argument.to_string_lossy().contains("TENURE_SHARD")
        };
        match &self.kind {
            WorkKind::Command(command) => !command.iter().skip(1).any(uses),
            WorkKind::Get { url, .. } => !url.contains(PLACEHOLDER),
            WorkKind::Mock => false,
        }
    }
}

/// The limit of concurrent polls: as many as requested, but few enough to leave file descriptors for the store.
fn max_concurrent_polls(wanted: Option<u32>) -> u32 {
    let most = open_files::for_polls(open_files::limit());
    wanted.unwrap_or(u32::MAX).min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Whether the shard is part of the URL's host, so that each shard is polled on its own host.
fn shard_is_in_host(url: &str) -> bool {
    let host = |shard| Url::parse(&with_shard(url, shard)?).ok()?.host_str().map(str::to_owned);
    host("a") != host("b")
}

fn has_shard(argument: &OsStr) -> bool {
    argument.as_bytes().windows(PLACEHOLDER.len()).any(|window| window == PLACEHOLDER.as_bytes())
}

/// The command for one shard: every `{}` in the arguments is replaced.
pub(super) fn command_for(command: &[OsString], shard: &Shard) -> Vec<OsString> {
    let argument = |argument: &OsString| {
        let mut rest = argument.as_bytes();
        let mut bytes = Vec::with_capacity(rest.len());
        while let Some(at) =
            rest.windows(PLACEHOLDER.len()).position(|window| window == PLACEHOLDER.as_bytes())
        {
            bytes.extend_from_slice(&rest[..at]);
            bytes.extend_from_slice(shard.as_str().as_bytes());
            rest = &rest[at + PLACEHOLDER.len()..];
        }
        bytes.extend_from_slice(rest);
        OsString::from_vec(bytes)
    };
    // The program is not replaced: the name of a shard never selects what is run.
    let (program, arguments) = command.split_at(command.len().min(1));
    program.iter().cloned().chain(arguments.iter().map(argument)).collect()
}

/// The URL for one shard. The shard's name is percent-encoded, so that it is exactly one segment or value of the URL; `None`
/// for a name that cannot be one.
pub(super) fn with_shard(url: &str, shard: &str) -> Option<String> {
    // Even percent-encoded, dot segments change the path.
    if matches!(shard, "." | "..") {
        return None;
    }
    let mut piece = String::with_capacity(shard.len());
    for byte in shard.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => {
                piece.push(char::from(byte));
            }
            _ => piece.push_str(&format!("%{byte:02X}")),
        }
    }
    Some(url.replace(PLACEHOLDER, &piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_replaced_also_inside_an_argument() {
        let command: Vec<OsString> =
            ["{}/poll", "--id={}", "{}{}", "{", "}"].map(OsString::from).into();
        let shard = Shard::new("a b").unwrap();
        let expected = ["{}/poll", "--id=a b", "a ba b", "{", "}"];
        assert_eq!(command_for(&command, &shard), expected.map(OsString::from));
    }

    #[test]
    fn a_shard_in_the_host_is_detected() {
        assert!(shard_is_in_host("http://{}.example/poll") && shard_is_in_host("https://{}/"));
        assert!(!shard_is_in_host("http://host/{}") && !shard_is_in_host("http://host/?shard={}"));
    }

    #[test]
    fn a_hostile_name_stays_one_piece_of_the_url() {
        let url = "http://host/v1/{}/poll";
        for (shard, expected) in [
            ("tenant-7", Some("http://host/v1/tenant-7/poll")),
            ("../x?y#z", Some("http://host/v1/..%2Fx%3Fy%23z/poll")),
            ("ü", Some("http://host/v1/%C3%BC/poll")),
            ("{}", Some("http://host/v1/%7B%7D/poll")),
            (".", None),
            ("..", None),
        ] {
            assert_eq!(with_shard(url, shard).as_deref(), expected);
        }
    }
}
