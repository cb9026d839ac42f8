//! What an instance tells over HTTP, and what it lets itself be told.
//!
//! The server has a thread and a runtime of its own: whatever clients do, neither the work nor, on a third thread, the
//! renewals wait for it. Handlers read what is known here. The one that needs the store (`/leases`) has a connection of
//! its own, and one reading serves everybody.
//!
//! ```text
//! options   --http and what belongs to it      server      the thread, the connections, their limits
//! door      the port, before anything begins   connection  one connection, and whether its client still reads
//! secret    who may steer                      gate        who may ask at all: Host and Origin
//! instance  what is known                      routes      which path means what
//! answers   until when we have said yes        control     resign, drain, undrain
//! work      what the work last did             news        /events: what happened, for those who listen
//! status    the body of /status                leases      /leases: one reading for all
//! tally     what only adds up                  metrics     /metrics
//! limits    how much of us anybody may have    reply       how answers and refusals look
//! ```

mod answers;
mod connection;
mod control;
mod door;
mod gate;
mod histogram;
mod instance;
mod leases;
mod limits;
mod metrics;
mod news;
mod options;
mod reply;
mod routes;
mod secret;
mod server;
mod status;
mod tally;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use door::Door;
pub(crate) use instance::Instance;
pub(crate) use limits::Limits;
pub(crate) use options::{AnswerArgs, HttpArgs, Listen};
pub(crate) use server::Server;
pub(crate) use work::{LastRun, Work};
