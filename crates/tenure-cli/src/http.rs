//! The HTTP server of a candidate or of a fleet member: status, events, metrics, and control.
//!
//! The server has its own thread and runtime: no client can delay the work, nor the renewals, which run on a third thread.
//! Handlers read what this process already knows. Requests that need the store (`/leases`, `/fleet`) run on another thread
//! over separate connections, and all clients share one cached read.
//!
//! One server answers for either a candidate of an election or a member of a fleet. Only [`participant`] knows which.
//!
//! ```text
//! options          --http and related options        server       the thread, the connections, their limits
//! listener         the port, opened at the start     connection   one connection, and whether its client reads
//! secret           who may use control               auth         which requests are accepted: Host and Origin
//! participant      a candidate or a member           routes       the paths and their handlers
//! candidate        the state of a candidate          member       the state of a member
//! validity         how long answers are valid        control      resign, drain, undrain
//! run_stats        statistics of the runs            events       /events: the event log and its subscribers
//! status           the body of a candidate's status  event_body   the names and bodies of events
//! store_thread     the thread that uses the store    cached_read  one read of the store for all clients
//! leases           /leases                           fleet        /fleet
//! leadership_time  time with and without a leader    metrics      /metrics
//! histogram        durations by class                response     responses and errors
//! limits           what clients may use
//! ```

mod auth;
mod cached_read;
mod candidate;
mod connection;
mod control;
mod event_body;
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
mod validity;

pub(crate) use candidate::HttpCandidate;
pub(crate) use limits::HttpLimits;
pub(crate) use listener::Listener;
pub(crate) use member::HttpMember;
pub(crate) use options::{AnswerArgs, HttpArgs, Listen};
pub(crate) use run_stats::{LastRun, RunStats};
pub(crate) use server::HttpServer;
