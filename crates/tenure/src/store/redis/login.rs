//! Logs in: one pipeline of commands on a new stream.
//!
//! The replies are read here and not by the `redis` crate. A server that refuses the client certificate says so only after the
//! TLS handshake, and a server with too many clients says so and closes the connection: its reply is read even if writing has
//! failed.

use std::io;

use redis::{Cmd, ErrorKind, Parser, RedisError, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connect::Io;
use super::server_info::{self, ServerInfo};
use super::settings::RedisSettings;
use crate::error::{Error, Kind, Result};
use crate::store::endpoint::Secret;

/// The maximum size of all replies in bytes: more is not an answer to a log-in.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Logs in, checks whether the server is ready (a server that is loading answers PING with LOADING), and reads its state if
/// `examine` is set.
pub(super) async fn log_in(
    stream: &mut dyn Io,
    settings: &RedisSettings,
    password: Option<&Secret>,
    examine: bool,
) -> Result<ServerInfo> {
    let mut commands = credentials(settings, password);
    if settings.database != 0 {
        commands.push(redis::cmd("SELECT").arg(settings.database).to_owned());
    }
    commands.push(redis::cmd("PING"));
    let required = commands.len();
    if examine {
        commands.extend(server_info::commands());
    }
    let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
    let written = async {
        stream.write_all(&packed).await?;
        stream.flush().await
    };
    let written = written.await;
    let mut replies = Replies::default();
    let failure = replies.read(stream, commands.len()).await.err();
    let explain = |error: &RedisError| settings.call_error(error, password).error;
    for reply in replies.values.iter().take(required) {
        reply.clone().extract_error().map_err(|error| explain(&error))?;
    }
    match failure {
        None => Ok(ServerInfo::new(replies.values.split_off(required))),
        Some(Failure::NotRedis(error)) => Err(explain(&error)),
        Some(Failure::Lost(_)) if !replies.bytes.is_empty() => Err(Error::unavailable(format!(
            "the connection to {settings} was lost within an answer"
        ))),
        Some(Failure::Lost(error)) if settings.tls.is_some() => Err(settings.insecure(&error)),
        Some(Failure::Lost(error)) => Err(lost_before_any_answer(settings, written.err(), error)),
    }
}

fn lost_before_any_answer(
    settings: &RedisSettings,
    writing: Option<io::Error>,
    reading: io::Error,
) -> Error {
    let error = settings.call_error(&writing.unwrap_or(reading).into(), None).error;
    match error.kind() {
        Kind::Unavailable => {
            let hint = "before it said anything. If it wants TLS, write rediss://";
            Error::unavailable(format!("{error}, {hint}"))
        }
        _ => error,
    }
}

fn credentials(settings: &RedisSettings, password: Option<&Secret>) -> Vec<Cmd> {
    let Some(password) = password else { return Vec::new() };
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = &settings.user {
        auth.arg(user);
    }
    auth.arg(password.expose());
    vec![auth]
}

/// Why not all replies arrived.
enum Failure {
    Lost(io::Error),
    NotRedis(RedisError),
}

/// The replies received so far.
#[derive(Default)]
struct Replies {
    bytes: Vec<u8>,
    values: Vec<Value>,
}

impl Replies {
    async fn read(&mut self, stream: &mut dyn Io, count: usize) -> Result<(), Failure> {
        loop {
            let read = stream.read_buf(&mut self.bytes).await.map_err(Failure::Lost)?;
            self.parse(count)?;
            if self.values.len() == count {
                return Ok(());
            }
            if read == 0 {
                return Err(Failure::Lost(io::ErrorKind::UnexpectedEof.into()));
            }
            if self.bytes.len() > MAX_REPLY_BYTES {
                return Err(Failure::Lost(io::Error::other("its answer does not end")));
            }
        }
    }

    /// Parses all bytes again: they are few, and arrive in few pieces.
    fn parse(&mut self, count: usize) -> Result<(), Failure> {
        let (mut parser, mut rest) = (Parser::new(), &self.bytes[..]);
        self.values.clear();
        while self.values.len() < count {
            match parser.parse_value(&mut rest) {
                Ok(value) => self.values.push(value),
                Err(error) if is_incomplete(&error) => return Ok(()),
                Err(error) => return Err(Failure::NotRedis(error)),
            }
        }
        Ok(())
    }
}

fn is_incomplete(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Io || error.to_string().contains("end of input")
}
