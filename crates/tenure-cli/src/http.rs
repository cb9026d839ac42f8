//! What an instance tells over HTTP, and what it lets itself be told.
//!
//! The server has a thread and a runtime of its own: whatever clients do, neither the work nor, on a third thread, the
//! renewals wait for it. Handlers read what is known here. What needs the store (`/leases`, `/fleet`) is done beside them,
//! over connections of its own, and one reading serves everybody.
//!
//! One server answers for either of two: a candidate of an election, or a member of a fleet. Only [`subject`] knows which.
//!
//! ```text
//! options   --http and what belongs to it      server      the thread, the connections, their limits
//! door      the port, before anything begins   connection  one connection, and whether its client still reads
//! secret    who may steer                      gate        who may ask at all: Host and Origin
//! subject   whom we answer for                 routes      which path means what
//! instance  what is known of a candidate       member      what is known of a member
//! answers   until when we have said yes        control     resign, drain, undrain
//! work      what the work last did             news        /events: what happened, for those who listen
//! status    the body of a candidate's /status  told        and in which words
//! aside     the thread that needs the store    reading     one reading for all
//! leases    /leases                            fleet       /fleet
//! tally     what only adds up                  metrics     /metrics
//! limits    how much of us anybody may have    reply       how answers and refusals look
//! ```

mod auth;
mod cached_read;
mod candidate;
mod connection;
mod control;
mod events;
mod fleet;
mod histogram;
mod leadership_time;
mod leases;
mod limits;
mod listener;
mod member;
mod metrics;
mod options;
mod participant;
mod response;
mod routes;
mod run_stats;
mod secret;
mod server;
mod status;
mod store_thread;
#[cfg(test)]
mod tests;
mod told;
mod validity;

pub(crate) use candidate::HttpCandidate;
pub(crate) use limits::HttpLimits;
pub(crate) use listener::Listener;
pub(crate) use member::HttpMember;
pub(crate) use options::{AnswerArgs, HttpArgs, Listen};
pub(crate) use run_stats::{LastRun, RunStats};
pub(crate) use server::HttpServer;
