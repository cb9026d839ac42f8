//! The scripts, and how they are called: EVALSHA, a thousand names at a time, a few calls under way
//! at once.

use std::sync::LazyLock;
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use redis::{Cmd, Value};

use super::connection::Link;
use super::reply::Reply;
use crate::error::{Error, Result};
use crate::lease::Name;

/// Names in one call. The server does nothing else meanwhile: about 15 ms at this size.
pub(super) const BATCH: usize = 1_000;
/// Calls under way at once: enough to keep the server busy, few enough that none waits long for its
/// answer.
const UNDER_WAY: usize = 4;

/// A script and the name under which the server keeps it.
pub(super) struct Script {
    code: &'static str,
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {$(
        pub(super) static $name: Script = Script {
            code: concat!(include_str!("prelude.lua"), "\n", include_str!($file)),
            hash: LazyLock::new(|| redis::Script::new($name.code).get_hash().to_owned()),
        };
    )*};
}

scripts! {
    ACQUIRE = "acquire.lua";
    RENEW = "renew.lua";
    RELEASE = "release.lua";
    SAVE = "save.lua";
    REVOKE = "revoke.lua";
    OBSERVE = "observe.lua";
    INDEX = "index.lua";
}

/// The set of all names, so that a prefix is looked up and not searched for.
pub(super) const INDEX_KEY: &str = "tenure:index";

/// What is known of the server itself: since when it has forgotten nothing.
pub(super) const SERVER_KEY: &str = "tenure:server";

/// Where the rest of a lease lies: in the same hash slot as the lease.
pub(super) fn companion(name: &Name) -> String {
    format!("tenure:{{{name}}}")
}

/// A script with its keys and arguments.
pub(super) struct Call {
    script: &'static Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn new(script: &'static Script) -> Self {
        Call { script, keys: Vec::new(), arguments: Vec::new() }
    }

    pub(super) fn key(&mut self, key: &str) -> &mut Self {
        self.keys.push(key.to_owned());
        self
    }

    /// The two keys of a lease.
    pub(super) fn lease(&mut self, name: &Name) -> &mut Self {
        self.keys.push(name.to_string());
        self.keys.push(companion(name));
        self
    }

    pub(super) fn argument(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_vec());
        self
    }

    /// One round trip; a second one only where the server does not know the script yet.
    pub(super) async fn send(&self, link: &Link) -> Result<Reply> {
        let answer = match link.send(&self.command("EVALSHA", &self.script.hash)).await {
            Err(trouble) if trouble.no_script => {
                link.send(&self.command("EVAL", self.script.code)).await
            }
            answer => answer,
        };
        match answer.map_err(|trouble| trouble.error)? {
            Value::Array(items) => Ok(Reply::new(items)),
            _ => Err(Error::unavailable(
                "Redis answered a script of ours with something else than a list",
            )),
        }
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for argument in &self.arguments {
            command.arg(argument);
        }
        command
    }
}

/// Calls a script for all of `items`, and answers in their order.
///
/// What a call that failed was about is unknown item by item, unless all of them failed.
pub(super) async fn in_batches<I: Sync, T: Send>(
    link: &Link,
    items: &[I],
    call: impl Fn(&[I]) -> Call + Sync,
    read: impl Fn(&mut Reply, &I) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    let mut chunks = items.chunks(BATCH);
    let mut under_way = FuturesOrdered::new();
    let mut answers = Vec::with_capacity(items.len());
    let (mut answered, mut failure) = (false, None);
    loop {
        while under_way.len() < UNDER_WAY
            && let Some(chunk) = chunks.next()
        {
            under_way.push_back(batch(link, chunk, &call, &read));
        }
        match under_way.next().await {
            Some((_, Ok(batch))) => {
                answered = true;
                answers.extend(batch);
            }
            Some((size, Err(error))) => {
                answers.extend((0..size).map(|_| Err(error.clone())));
                failure.get_or_insert(error);
            }
            None => break,
        }
    }
    match failure {
        Some(error) if !answered => Err(error),
        _ => Ok(answers),
    }
}

/// One call, from its making to the reading of its answers; and how many it was about.
async fn batch<I, T>(
    link: &Link,
    items: &[I],
    call: &impl Fn(&[I]) -> Call,
    read: &impl Fn(&mut Reply, &I) -> Result<T>,
) -> (usize, Result<Vec<Result<T>>>) {
    let answers = match call(items).send(link).await {
        Ok(mut reply) => Ok(items.iter().map(|item| read(&mut reply, item)).collect()),
        Err(error) => Err(error),
    };
    (items.len(), answers)
}

/// Whole milliseconds, rounded up: a lease that ended earlier than its holder believes would be two
/// leaders.
pub(super) fn millis(ttl: Duration) -> String {
    ttl.as_nanos().div_ceil(1_000_000).to_string()
}
