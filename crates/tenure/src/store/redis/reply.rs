//! Parses the replies of the scripts strictly: anything unexpected is Corrupt, never a lease.

use std::time::Duration;

use redis::Value;

use super::keys::KeyPrefix;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Ended, Grant, Holder, Lease, Lineage, Name, Nonce,
    Note, PastTerm, StartupWait, StoreTime, Token, WaitReason,
};
use crate::store::codec::parse_past_term;
use crate::store::record::{older_save, unknown_lease};

/// The maximum number of bytes of a foreign holder's value that are shown.
const MAX_FOREIGN_ID_BYTES: usize = 256;

/// The reply to one call: the server's clock, then one item for each request.
pub(super) struct ScriptReply {
    head: String,
    clock: Option<StoreTime>,
    items: std::vec::IntoIter<Value>,
    keys: KeyPrefix,
}

impl ScriptReply {
    pub(super) fn new(items: Vec<Value>, keys: KeyPrefix) -> Self {
        let mut items = items.into_iter();
        let head = items.next().and_then(|value| text(value).ok()).unwrap_or_default();
        ScriptReply { clock: head.parse().ok().map(StoreTime), head, items, keys }
    }

    /// A page of the index, and how it ended.
    pub(super) fn names(self) -> (String, Vec<String>) {
        (self.head, self.items.filter_map(|value| text(value).ok()).collect())
    }

    /// The next item, or why it cannot be used. `None` is the short form of a positive answer.
    fn item(&mut self, name: &Name) -> Result<Option<ReplyItem>> {
        let mut fields = match self.items.next() {
            Some(Value::Int(1)) => return Ok(None),
            Some(Value::Array(fields)) => fields.into_iter(),
            _ => {
                let left_out = format!("Redis left out the answer about '{name}'");
                return Err(Error::unavailable(left_out));
            }
        };
        let lines = bytes(fields.next().unwrap_or_default())?;
        let (checkpoint, history) =
            (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let mut item = ReplyItem::new(lines, checkpoint, history);
        if item.is("corrupt") {
            return Err(self.corrupt(name, &String::from_utf8_lossy(item.rest())));
        }
        Ok(Some(item))
    }

    /// The same where the short form is not a valid answer.
    fn full_item(&mut self, name: &Name) -> Result<ReplyItem> {
        self.item(name)?.ok_or_else(|| self.corrupt(name, &unreadable().to_string()))
    }

    fn lease(&self, item: ReplyItem, name: &Name) -> Result<Lease> {
        let lease = item.lease(name, self.clock);
        lease.map_err(|reason| self.corrupt(name, &reason.to_string()))
    }

    fn corrupt(&self, name: &Name, reason: &str) -> Error {
        let (key, companion) = (self.keys.lease(name), self.keys.companion(name));
        Error::corrupt(format!(
            "what lies under '{key}' in Redis is not a lease of ours: {reason}. It was left as it \
             is; once no program relies on it, delete the keys '{key}' and '{companion}'"
        ))
    }

    pub(super) fn claimed(&mut self, claim: &Claim) -> Result<Answer<Grant>> {
        let clock = self.clock;
        let mut item = self.full_item(&claim.name)?;
        if !item.is("held") {
            return Ok(Answer::Taken(Box::new(self.lease(item, &claim.name)?)));
        }
        let read = |item: &mut ReplyItem| {
            Ok(Grant {
                hold: claim.held_in(item.token()?),
                lineage: Lineage { origin: item.token()?, before: item.ended()? },
                store_time: clock,
                wait: item.wait()?,
                checkpoint: item.checkpoint()?,
                counts_from: None,
            })
        };
        // The candidate may well hold the lease, but it cannot prove it.
        let grant = read(&mut item)
            .map_err(|reason: Error| self.corrupt(&claim.name, &reason.to_string()))?;
        Ok(Answer::Held(grant))
    }

    pub(super) fn kept(&mut self, name: &Name) -> Result<Answer> {
        match self.item(name)? {
            None => Ok(Answer::Held(())),
            Some(item) => Ok(Answer::Taken(Box::new(self.lease(item, name)?))),
        }
    }

    pub(super) fn saved(&mut self, name: &Name, number: u64) -> Result<Answer> {
        match self.item(name)? {
            None => Ok(Answer::Held(())),
            Some(mut item) if item.is("older") => Err(older_save(name, number, item.number()?)),
            Some(item) => Ok(Answer::Taken(Box::new(self.lease(item, name)?))),
        }
    }

    pub(super) fn done(&mut self, name: &Name) -> Result<()> {
        self.item(name).map(drop)
    }

    pub(super) fn revoked(&mut self, name: &Name) -> Result<Lease> {
        let item = self.full_item(name)?;
        let known = item.is("lease");
        let lease = self.lease(item, name)?;
        if known {
            return Ok(lease);
        }
        Err(Error::invalid(match lease.holder {
            None => format!("there is no lease '{name}' to revoke"),
            Some(_) => format!(
                "'{name}' was set by another program, not by Tenure: there is \
                 nothing to revoke; to take it away, delete the key"
            ),
        }))
    }

    /// `None` if the name was never used.
    pub(super) fn observed(&mut self, name: &Name) -> Result<Option<Lease>> {
        let item = self.full_item(name)?;
        let lease = self.lease(item, name)?;
        Ok((lease.holder.is_some() || lease.token.is_some()).then_some(lease))
    }
}

/// One item, line by line. The first line is its tag.
struct ReplyItem {
    lines: Vec<u8>,
    /// The length of the first line.
    tag: usize,
    /// How many bytes of the lines were read.
    read: usize,
    checkpoint: Value,
    history: Value,
}

impl ReplyItem {
    fn new(lines: Vec<u8>, checkpoint: Value, history: Value) -> Self {
        let mut item = ReplyItem { lines, tag: 0, read: 0, checkpoint, history };
        item.tag = item.line().len();
        item
    }

    fn is(&self, tag: &str) -> bool {
        self.lines[..self.tag] == *tag.as_bytes()
    }

    fn lease(mut self, name: &Name, clock: Option<StoreTime>) -> Result<Lease> {
        let held = match self.line() {
            b"none" => return Ok(unknown_lease(name)),
            kind => kind != b"free",
        };
        self.fields(name, held, clock)
    }

    fn fields(&mut self, name: &Name, held: bool, clock: Option<StoreTime>) -> Result<Lease> {
        let nonce = self.optional(|text| Nonce::parse(text).ok_or_else(unreadable))?;
        let mut lease = Lease {
            name: name.clone(),
            holder: None,
            token: self.optional(token)?,
            ttl: Duration::from_micros(self.number()?),
            left: Duration::from_micros(self.number()?),
            since: self.optional(|text| text.parse().map_err(|_| unreadable()))?,
            note: Note::new(self.text()?)?,
            next: self.optional(CandidateId::new)?,
            lineage: self.lineage()?,
            wait: self.wait()?,
            checkpoint: self.checkpoint()?,
            store_time: clock,
            history: self.history()?,
        };
        if held {
            let id = self.rest();
            let id =
                String::from_utf8_lossy(&id[..id.len().min(MAX_FOREIGN_ID_BYTES)]).into_owned();
            lease.holder = Some(Holder { id, nonce });
        }
        Ok(lease)
    }

    fn lineage(&mut self) -> Result<Option<Lineage>> {
        let origin = self.optional(token)?;
        let before = self.ended()?;
        Ok(origin.map(|origin| Lineage { origin, before }))
    }

    /// The bytes that were not read yet.
    fn rest(&mut self) -> &[u8] {
        let from = std::mem::replace(&mut self.read, self.lines.len());
        &self.lines[from..]
    }

    /// The next line; an empty one if there is none left, which most fields do not accept.
    fn line(&mut self) -> &[u8] {
        let rest = &self.lines[self.read..];
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        self.read = (self.read + line.len() + 1).min(self.lines.len());
        line
    }

    fn text(&mut self) -> Result<&str> {
        std::str::from_utf8(self.line()).map_err(|_| unreadable())
    }

    /// A field that may be empty.
    fn optional<T>(&mut self, read: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
        let text = self.text()?;
        if text.is_empty() { Ok(None) } else { read(text).map(Some) }
    }

    fn number(&mut self) -> Result<u64> {
        self.text()?.parse().map_err(|_| unreadable())
    }

    fn token(&mut self) -> Result<Token> {
        token(self.text()?)
    }

    fn ended(&mut self) -> Result<Ended> {
        let ended = self.text()?;
        if ended.is_empty() {
            return Ok(Ended::Nothing);
        }
        let (kind, term) = ended.split_once(' ').ok_or_else(unreadable)?;
        let token = token(term)?;
        match kind {
            "released" => Ok(Ended::Released(token)),
            "expired" => Ok(Ended::Expired(token)),
            _ => Err(unreadable()),
        }
    }

    /// A start-up wait: microseconds and the reason, or nothing.
    fn wait(&mut self) -> Result<Option<StartupWait>> {
        self.optional(|text| {
            let (left, reason) = text.split_once(' ').ok_or_else(unreadable)?;
            let left = Duration::from_micros(left.parse().map_err(|_| unreadable())?);
            let reason = WaitReason::parse(reason).ok_or_else(unreadable)?;
            Ok(StartupWait { left, reason })
        })
    }

    /// The terms that ended: a first line, then a line for each.
    fn history(&mut self) -> Result<Vec<PastTerm>> {
        let history = match std::mem::take(&mut self.history) {
            Value::Nil => return Ok(Vec::new()),
            value => text(value)?,
        };
        let terms = history.lines().skip(1);
        terms.map(|line| parse_past_term(line).ok_or_else(unreadable)).collect()
    }

    fn checkpoint(&mut self) -> Result<Option<Checkpoint>> {
        match std::mem::take(&mut self.checkpoint) {
            Value::Nil => Ok(None),
            value => Checkpoint::new(bytes(value)?).map(Some),
        }
    }
}

fn token(text: &str) -> Result<Token> {
    Token::new(text.parse().map_err(|_| unreadable())?)
}

fn unreadable() -> Error {
    Error::corrupt("a field of it cannot be read")
}

pub(super) fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(unreadable()),
    }
}

pub(super) fn text(value: Value) -> Result<String> {
    String::from_utf8(bytes(value)?).map_err(|_| unreadable())
}
