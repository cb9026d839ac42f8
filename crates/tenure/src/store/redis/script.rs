//! The Lua scripts and how they are called: by EVALSHA, up to a thousand names per call, a few calls in flight at once.

use std::fmt::Display;
use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use super::keys::KeyPrefix;
use super::reply::ScriptReply;
use super::session::Session;
use crate::error::{Error, Result};
use crate::lease::Name;
use crate::store::batches::in_batches;

/// The maximum number of names in one call, and [`Limits::max_batch`](crate::store::Limits::max_batch) of this store. The
/// server does nothing else meanwhile: about 15 ms for an acquire of this size, 7 ms for a renewal.
pub(super) const MAX_BATCH: usize = 1_000;
/// The maximum number of calls in flight: enough to keep the server busy, but few enough that a renewal behind a long acquire
/// on the same connection waits no longer than on another connection.
const MAX_IN_FLIGHT: usize = 2;

/// A script and the hash under which the server caches it.
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

/// The set of all names, so that a prefix needs no scan of the key space.
pub(super) const INDEX_KEY: &str = "tenure:index";

/// The ephemeral leases, ordered by the time at which their terms end.
pub(super) const PRESENCE_KEY: &str = "tenure:presence";

/// What was observed of the server itself: since when it has lost nothing.
pub(super) const SERVER_KEY: &str = "tenure:server";

/// A script with its keys and arguments. The keys are without the prefix of the store, which [`Call::send`] adds.
pub(super) struct Call {
    script: &'static Script,
    keys: ScriptArgs,
    /// The names of the leases, whose keys come after the others.
    leases: ScriptArgs,
    arguments: ScriptArgs,
}

/// Arguments in one contiguous buffer, because a call has thousands.
#[derive(Default)]
struct ScriptArgs {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ScriptArgs {
    fn push(&mut self, argument: &[u8]) {
        self.bytes.extend_from_slice(argument);
        self.ends.push(self.bytes.len());
    }

    fn show(&mut self, value: impl Display) {
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.bytes, "{value}");
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.bytes[begin..end])
    }
}

impl Call {
    pub(super) fn new(script: &'static Script) -> Self {
        let [keys, leases, arguments] = Default::default();
        Call { script, keys, leases, arguments }
    }

    pub(super) fn key(&mut self, key: &str) -> &mut Self {
        self.keys.push(key.as_bytes());
        self
    }

    /// The two keys of a lease.
    pub(super) fn lease(&mut self, name: &Name) -> &mut Self {
        self.leases.push(name.as_str().as_bytes());
        self
    }

    pub(super) fn argument(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        self.arguments.push(argument.as_ref());
        self
    }

    /// An argument as its `Display` text.
    pub(super) fn shown(&mut self, argument: impl Display) -> &mut Self {
        self.arguments.show(argument);
        self
    }

    /// Sends the call in one round trip: the first time on a connection with the script in full, later with its hash. There is
    /// a second round trip only if the server has lost its scripts since.
    pub(super) async fn send(&self, link: &Session) -> Result<ScriptReply> {
        let keys = link.keys();
        let in_full = || self.command("EVAL", self.script.code, keys);
        let answer = if link.knows_script(&self.script.hash) {
            match link.send(self.command("EVALSHA", &self.script.hash, keys)).await {
                Err(call_error) if call_error.no_script => {
                    link.forget_scripts();
                    link.send(in_full()).await
                }
                answer => answer,
            }
        } else {
            link.send(in_full()).await
        };
        match answer.map_err(|call_error| call_error.error)? {
            Value::Array(items) => Ok(ScriptReply::new(items, keys.clone())),
            _ => Err(Error::unavailable(
                "Redis answered a script of ours with something else than a list",
            )),
        }
    }

    fn command(&self, command_name: &str, script: &str, keys: &KeyPrefix) -> Cmd {
        let mut command = redis::cmd(command_name);
        command.arg(script).arg(self.keys.ends.len() + 2 * self.leases.ends.len());
        let prefix = keys.as_str().as_bytes();
        let mut joined = Vec::new();
        let mut add_key = |parts: &[&[u8]]| {
            joined.clear();
            parts.iter().for_each(|part| joined.extend_from_slice(part));
            command.arg(&joined[..]);
        };
        for key in self.keys.iter() {
            add_key(&[prefix, key]);
        }
        for name in self.leases.iter() {
            add_key(&[prefix, name]);
            add_key(&keys.companion_parts(name));
        }
        for argument in self.arguments.iter() {
            command.arg(argument);
        }
        command
    }
}

/// Calls a script for all of `items`, in batches, and returns the answers in their order.
pub(super) async fn call_in_batches<I: Sync, T: Send>(
    link: &Session,
    items: &[I],
    call: impl Fn(&[I]) -> Call + Sync,
    read: impl Fn(&mut ScriptReply, &I) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    let (call, read) = (&call, &read);
    in_batches(items, MAX_BATCH, MAX_IN_FLIGHT, |items| async move {
        let mut reply = call(items).send(link).await?;
        Ok(items.iter().map(|item| read(&mut reply, item)).collect())
    })
    .await
}

/// Whole milliseconds, rounded up: a lease that ended earlier than its holder assumes would allow two leaders.
pub(super) fn millis(ttl: Duration) -> u128 {
    ttl.as_nanos().div_ceil(1_000_000)
}
