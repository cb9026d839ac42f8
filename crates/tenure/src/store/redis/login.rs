//! Logs in: one pipeline of commands on a new stream.
//!
//! The replies are read here and not by the `redis` crate. A server that refuses the client certificate says so only after the
//! TLS handshake, and a server with too many clients says so and closes the connection: its reply is read even if writing has
//! failed.

use std::io;

use redis::{Cmd, ErrorKind, Parser, RedisError, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connect::Io;
use super::protocol_probe;
use super::server_info::{self, ServerInfo};
use super::settings::RedisSettings;
use crate::error::{Error, Result};
use crate::store::endpoint::Credentials;

/// The maximum size of all replies in bytes: more is not an answer to a log-in.
const MAX_REPLY_BYTES: usize = 1 << 20;

/// Why a log-in failed.
pub(super) enum LoginError {
    /// The server refused it, or the connection was lost within an answer.
    Answered(Error),
    /// The server closed the connection before it said anything. It may be shutting down, or it speaks TLS.
    Unanswered(Error),
}

/// Logs in, checks whether the server is ready (a server that is loading answers PING with LOADING), and reads its state if
/// `examine` is set.
pub(super) async fn log_in(
    stream: &mut dyn Io,
    settings: &RedisSettings,
    credentials: Option<&Credentials>,
    examine: bool,
) -> Result<ServerInfo, LoginError> {
    let mut commands = Vec::new();
    commands.extend(credentials.map(|credentials| ("AUTH", auth(credentials))));
    if settings.database != 0 {
        commands.push(("SELECT", redis::cmd("SELECT").arg(settings.database).to_owned()));
    }
    commands.push(("PING", redis::cmd("PING")));
    let required: Vec<&str> = commands.iter().map(|(name, _)| *name).collect();
    let examination = examine.then(server_info::commands).into_iter().flatten();
    let commands: Vec<Cmd> =
        commands.into_iter().map(|(_, command)| command).chain(examination).collect();
    let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
    let written = async {
        stream.write_all(&packed).await?;
        stream.flush().await
    };
    let written = written.await;
    let mut replies = Replies::default();
    let failure = replies.read(stream, commands.len()).await.err();
    let password = credentials.map(Credentials::password);
    for (command, reply) in required.iter().zip(&replies.values) {
        reply.clone().extract_error().map_err(|error| {
            LoginError::Answered(settings.login_error(command, &error, password))
        })?;
    }
    match failure {
        None => Ok(ServerInfo::new(replies.values.split_off(required.len()))),
        Some(Failure::NotRedis(error)) => {
            let is_tls = settings.tls.is_none() && protocol_probe::is_tls(&replies.bytes);
            Err(LoginError::Answered(match is_tls {
                true => settings.speaks_tls(),
                false => settings.call_error(&error, password).error,
            }))
        }
        Some(Failure::Lost(_)) if !replies.bytes.is_empty() => Err(LoginError::Answered(
            Error::unavailable(format!("the connection to {settings} was lost within an answer")),
        )),
        Some(Failure::Lost(error)) if settings.tls.is_some() => {
            Err(LoginError::Answered(settings.insecure(&error)))
        }
        Some(Failure::Lost(error)) => {
            let error = settings.call_error(&written.err().unwrap_or(error).into(), None).error;
            let message = format!("{error}, before it said anything");
            Err(LoginError::Unanswered(Error::new(error.kind(), message)))
        }
    }
}

fn auth(credentials: &Credentials) -> Cmd {
    let mut auth = redis::cmd("AUTH");
    if let Some(user) = credentials.user() {
        auth.arg(user);
    }
    auth.arg(credentials.password().expose());
    auth
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
