//! What the scripts answer, read strictly: anything unexpected is Corrupt, never a lease.

use std::time::Duration;

use redis::Value;

use super::script::companion;
use crate::error::{Error, Result};
use crate::lease::{
    Answer, CandidateId, Checkpoint, Claim, Ended, Grant, Holder, Lease, Lineage, Name, Nonce,
    Note, StoreTime, Token,
};
use crate::store::memory::{never_seen, older_save};

/// More of a stranger's value is not shown.
const STRANGER_MAX: usize = 256;

/// The answer to one call: the server's clock, then one item for each question.
pub(super) struct Reply {
    head: String,
    clock: Option<StoreTime>,
    items: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(super) fn new(items: Vec<Value>) -> Self {
        let mut items = items.into_iter();
        let head = items.next().and_then(|value| text(value).ok()).unwrap_or_default();
        Reply { clock: head.parse().ok().map(StoreTime), head, items }
    }

    /// A page of the index, and how it ended.
    pub(super) fn names(self) -> (String, Vec<String>) {
        (self.head, self.items.filter_map(|value| text(value).ok()).collect())
    }

    /// The next item, or why there is none to use.
    fn item(&mut self, name: &Name) -> Result<Item> {
        let Some(Value::Array(fields)) = self.items.next() else {
            return Err(Error::unavailable(format!("Redis left out the answer about '{name}'")));
        };
        let mut item = Item { fields: fields.into_iter(), tag: String::new() };
        item.tag = item.text()?;
        if item.tag == "corrupt" {
            return Err(corrupt(name, &item.text()?));
        }
        Ok(item)
    }

    pub(super) fn claimed(&mut self, claim: &Claim) -> Result<Answer<Grant>> {
        let clock = self.clock;
        let mut item = self.item(&claim.name)?;
        if item.tag != "held" {
            return Ok(Answer::Taken(Box::new(item.lease(&claim.name, clock)?)));
        }
        let read = |item: &mut Item| {
            Ok(Grant {
                hold: claim.held_in(item.token()?),
                lineage: Lineage { origin: item.token()?, before: item.ended()? },
                store_time: clock,
                quarantine: Duration::from_millis(item.number()?),
                checkpoint: item.checkpoint()?,
            })
        };
        // The lease may well be ours, but not one we could prove.
        let grant = read(&mut item).map_err(|why: Error| corrupt(&claim.name, &why.to_string()))?;
        Ok(Answer::Held(grant))
    }

    pub(super) fn kept(&mut self, name: &Name) -> Result<Answer> {
        let clock = self.clock;
        let item = self.item(name)?;
        match item.tag.as_str() {
            "held" => Ok(Answer::Held(())),
            _ => Ok(Answer::Taken(Box::new(item.lease(name, clock)?))),
        }
    }

    pub(super) fn saved(&mut self, name: &Name, number: u64) -> Result<Answer> {
        let clock = self.clock;
        let mut item = self.item(name)?;
        match item.tag.as_str() {
            "held" => Ok(Answer::Held(())),
            "older" => Err(older_save(name, number, item.number()?)),
            _ => Ok(Answer::Taken(Box::new(item.lease(name, clock)?))),
        }
    }

    pub(super) fn done(&mut self, name: &Name) -> Result<()> {
        self.item(name).map(drop)
    }

    pub(super) fn revoked(&mut self, name: &Name) -> Result<Lease> {
        let clock = self.clock;
        let item = self.item(name)?;
        if item.tag == "lease" {
            return item.lease(name, clock);
        }
        let lease = item.lease(name, clock)?;
        Err(Error::invalid(match lease.holder {
            None => format!("there is no lease '{name}' to revoke"),
            Some(_) => format!(
                "'{name}' was set by somebody else's program, not by a lease of ours: there is \
                 nothing to revoke; to take it away, delete the key"
            ),
        }))
    }

    /// `None` where the name was never used.
    pub(super) fn observed(&mut self, name: &Name) -> Result<Option<Lease>> {
        let clock = self.clock;
        let item = self.item(name)?;
        let lease = item.lease(name, clock)?;
        Ok((lease.holder.is_some() || lease.token.is_some()).then_some(lease))
    }
}

fn corrupt(name: &Name, why: &str) -> Error {
    Error::corrupt(format!(
        "what lies under '{name}' in Redis is not a lease of ours: {why}. It was left as it is; \
         once nobody counts on it, delete the keys '{name}' and '{}'",
        companion(name)
    ))
}

/// One item, field by field.
struct Item {
    tag: String,
    fields: std::vec::IntoIter<Value>,
}

impl Item {
    fn lease(mut self, name: &Name, clock: Option<StoreTime>) -> Result<Lease> {
        let kind = self.text()?;
        if kind == "none" {
            return Ok(never_seen(name));
        }
        self.fields(name, &kind, clock).map_err(|why| corrupt(name, &why.to_string()))
    }

    fn fields(&mut self, name: &Name, kind: &str, clock: Option<StoreTime>) -> Result<Lease> {
        let mut id = self.bytes()?;
        let nonce = self.optional(|text| Nonce::parse(text).ok_or(unreadable()))?;
        id.truncate(STRANGER_MAX);
        let id = String::from_utf8_lossy(&id).into_owned();
        Ok(Lease {
            name: name.clone(),
            holder: (kind != "free").then_some(Holder { id, nonce }),
            token: self.optional(|text| Token::new(text.parse().map_err(|_| unreadable())?))?,
            ttl: Duration::from_micros(self.number()?),
            left: Duration::from_micros(self.number()?),
            since: self.optional(|text| text.parse().map_err(|_| unreadable()))?,
            note: Note::new(&self.text()?)?,
            next: self.optional(CandidateId::new)?,
            lineage: self.lineage()?,
            checkpoint: self.checkpoint()?,
            store_time: clock,
        })
    }

    fn lineage(&mut self) -> Result<Option<Lineage>> {
        let origin = self.optional(|text| Token::new(text.parse().map_err(|_| unreadable())?))?;
        let before = self.ended()?;
        Ok(origin.map(|origin| Lineage { origin, before }))
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        bytes(self.fields.next().unwrap_or_default())
    }

    fn text(&mut self) -> Result<String> {
        text(self.fields.next().unwrap_or_default())
    }

    /// A field that may be empty.
    fn optional<T>(&mut self, read: impl FnOnce(&str) -> Result<T>) -> Result<Option<T>> {
        let text = self.text()?;
        if text.is_empty() { Ok(None) } else { read(&text).map(Some) }
    }

    fn number(&mut self) -> Result<u64> {
        self.text()?.parse().map_err(|_| unreadable())
    }

    fn token(&mut self) -> Result<Token> {
        Token::new(self.number()?)
    }

    fn ended(&mut self) -> Result<Ended> {
        let ended = self.text()?;
        if ended.is_empty() {
            return Ok(Ended::Nothing);
        }
        let (kind, token) = ended.split_once(' ').ok_or_else(unreadable)?;
        let token = Token::new(token.parse().map_err(|_| unreadable())?)?;
        match kind {
            "released" => Ok(Ended::Released(token)),
            "expired" => Ok(Ended::Expired(token)),
            _ => Err(unreadable()),
        }
    }

    fn checkpoint(&mut self) -> Result<Option<Checkpoint>> {
        match self.fields.next() {
            Some(Value::Nil) => Ok(None),
            value => Checkpoint::new(bytes(value.unwrap_or_default())?).map(Some),
        }
    }
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
