//! What other programs do to the keys of a lease, and what they see of them.

use redis::Value;
use tenure::{Name, Token};

use super::history::{Garbage, NAMES, NameIndex, Operation};
use super::model::Visible;
use super::replay::Replay;

const TOKEN_END: u64 = 1 << 53;

/// The type, value and expiry of the visible key of each name, then whether its companion exists, and its expiry.
const READ_KEYS: &str = "local found = {} \
    for i, key in ipairs(KEYS) do \
      local kind = redis.call('TYPE', key).ok \
      found[i] = { kind, kind == 'string' and redis.call('GET', key) or false, \
        redis.call('PEXPIRETIME', key) } \
    end \
    return found";

impl Replay<'_> {
    pub(crate) fn foreign_operation(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::SetKey { name, value, only_if_absent, expires_in } => {
                let (name, value) = (self.names[*name].clone(), value.bytes());
                let time = expires_in.unwrap_or(0).to_string();
                let mut words = vec![b"SET".as_slice(), name.as_str().as_bytes(), &value];
                if *only_if_absent {
                    words.push(b"NX");
                }
                if expires_in.is_some() {
                    words.extend([b"PX", time.as_bytes()]);
                }
                self.server.run(&words);
                self.model.set_key(&name, value, *only_if_absent, *expires_in);
            }
            Operation::ExpireKey { name, expires_in } => {
                let name = self.names[*name].clone();
                match expires_in {
                    Some(time) => self.run(&format!("PEXPIRE {name} {time}")),
                    None => self.run(&format!("PERSIST {name}")),
                };
                self.model.expire_key(&name, *expires_in);
            }
            Operation::DeleteKey { name } => {
                let name = self.names[*name].clone();
                self.run(&format!("DEL {name}"));
                self.model.delete_key(&name);
            }
            Operation::Corrupt { name, garbage: Garbage::List } => {
                let name = self.names[*name].clone();
                self.run(&format!("DEL {name}"));
                self.run(&format!("RPUSH {name} x"));
                self.model.corrupt_key(&name);
            }
            Operation::DeleteCompanion { name }
            | Operation::DeleteBoth { name }
            | Operation::Corrupt { name, .. }
            | Operation::NearLastToken { name, .. } => {
                self.compare_garbage(*name)?;
                self.replace_companion(*name, operation);
            }
            other => unreachable!("{other:?} is a call of the store"),
        }
        Ok(())
    }

    fn replace_companion(&mut self, index: NameIndex, operation: &Operation) {
        let name = self.names[index].clone();
        self.dumps[index] = None;
        if let Operation::Corrupt { garbage, .. } = operation {
            let key = companion(&name);
            if self.model.keys(&name).garbage {
                self.run(&format!("DEL {key}"));
            }
            match garbage {
                Garbage::Format => _ = self.run(&format!("HSET {key} v 3")),
                Garbage::Token => _ = self.run(&format!("HSET {key} v 2 token {TOKEN_END}")),
                Garbage::Half => {
                    self.run(&format!("DEL {key}"));
                    self.run(&format!("HSET {key} v 2"));
                }
                Garbage::Text | Garbage::List => _ = self.run(&format!("SET {key} garbage")),
            }
            self.run(&format!("PERSIST {key}"));
            self.dumps[index] = Some(self.dump(&key));
            return self.model.corrupt_companion(&name);
        }
        self.run(&format!("DEL {}", companion(&name)));
        self.model.delete_companion(&name);
        if let Operation::DeleteCompanion { .. } = operation {
            return;
        }
        self.run(&format!("DEL {name}"));
        self.model.delete_key(&name);
        if let Operation::NearLastToken { below, .. } = operation {
            let token = TOKEN_END - below;
            let record = format!(
                "HSET {} v 2 origin {token} token {token} leads_from _ candidate _ nonce _ ttl 0 \
                 until 0 since 0 saved _ before _ next _ note _",
                companion(&name)
            );
            let words = record.split(' ').map(|word| if word == "_" { "" } else { word });
            let words: Vec<&[u8]> = words.map(str::as_bytes).collect();
            self.server.run(&words);
            self.model.set_token(&name, Token::new(token).unwrap());
        }
    }

    fn run(&mut self, words: &str) -> Value {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.server.run(&words)
    }

    /// What is under `key`. The order of a hash's fields means nothing, and a restart of the server changes it.
    fn dump(&mut self, key: &str) -> Value {
        if self.run(&format!("TYPE {key}")) != Value::SimpleString("hash".into()) {
            return self.run(&format!("DUMP {key}"));
        }
        let fields = self.run(&format!("HGETALL {key}"));
        let Value::Array(fields) = fields else { panic!("fields and values, not {fields:?}") };
        let mut fields: Vec<String> = fields.chunks(2).map(|field| format!("{field:?}")).collect();
        fields.sort_unstable();
        Value::BulkString(fields.join(" ").into())
    }

    /// Garbage is left as it is.
    fn compare_garbage(&mut self, index: NameIndex) -> Result<(), String> {
        let Some(before) = self.dumps[index].take() else { return Ok(()) };
        let key = companion(&self.names[index]);
        let after = self.dump(&key);
        if after == before { Ok(()) } else { Err(format!("the garbage in {key} was changed")) }
    }

    /// What every Redis client sees: the visible keys, and which companions are there until when.
    pub(crate) fn compare_keys(&mut self) -> Result<(), String> {
        let companions = self.names.each_ref().map(companion);
        let mut words = vec!["EVAL", READ_KEYS, "6"];
        for (name, companion) in self.names.iter().zip(&companions) {
            words.extend([name.as_str(), companion.as_str()]);
        }
        let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        let found = self.server.run(&words);
        let Value::Array(found) = found else { return Err(format!("a list, not {found:?}")) };
        for (index, keys) in found.chunks(2).enumerate() {
            let name = &self.names[index];
            let wanted = self.model.keys(name);
            let visible = shown_key(wanted.visible.as_ref());
            if keys[0] != visible {
                return Err(format!("{name} is {:?} and should be {visible:?}", keys[0]));
            }
            let exists = wanted.garbage || self.model.has_record(name);
            let expiry = match wanted.forgotten_at {
                _ if !exists => -2,
                at => expiry(at),
            };
            let Value::Array(companion) = &keys[1] else { return Err(format!("{:?}", keys[1])) };
            if companion[2] != Value::Int(expiry) {
                let found = &companion[2];
                return Err(format!("tenure:{{{name}}} expires at {found:?}, not {expiry}"));
            }
        }
        (0..NAMES.len()).try_for_each(|index| self.compare_garbage(index))
    }
}

fn companion(name: &Name) -> String {
    format!("tenure:{{{name}}}")
}

fn expiry(at: Option<u64>) -> i64 {
    at.map_or(-1, |at| i64::try_from(at).expect("a time"))
}

/// A visible key as [`READ_KEYS`] returns it.
fn shown_key(visible: Option<&Visible>) -> Value {
    let (kind, value, at) = match visible {
        None => ("none", Value::Nil, -2),
        Some(Visible { value: None, expires_at }) => ("list", Value::Nil, expiry(*expires_at)),
        Some(Visible { value: Some(value), expires_at }) => {
            ("string", Value::BulkString(value.clone()), expiry(*expires_at))
        }
    };
    Value::Array(vec![Value::BulkString(kind.into()), value, Value::Int(at)])
}
