//! The HTTP server of a candidate or of a fleet member: status, events, metrics, and control.
//!
//! The server has its own thread and runtime: no client can delay the work, nor the renewals, which run on a third thread.
//! Handlers read what this process already knows. Requests that need the store (`/leases`, `/fleet`) run on another thread
//! over separate connections, and all clients share one cached read.
//!
//! One server answers for either a candidate of an election or a member of a fleet. Only [`participant`] knows which.
//!
//! | file | what it holds |
//! |---|---|
//! | `options` | `--http` and related options |
//! | `listener` | the port, opened at the start |
//! | `server` | the thread, the accept loop, the limits of clients |
//! | `connection` | one connection, and whether its client reads |
//! | `auth` | which requests are accepted: Host, Origin, the control secret |
//! | `routes` | the paths and their handlers |
//! | `response` | responses and errors |
//! | `participant` | a candidate or a member, as the handlers use it |
//! | `status` | `/status` and `/leader`: bodies, how long answers are valid, statistics of runs |
//! | `events` | `/events`: the recent events and the subscribers |
//! | `metrics` | `/metrics` |
//! | `control` | `/resign`, `/drain`, `/undrain` |
//! | `cached_read` | `/leases` and `/fleet`: reads of the store that all clients share |
//!
//! `GET /status` crosses five of them: `routes`, `auth`, `participant`, `status`, `response`.

mod auth;
mod cached_read;
mod connection;
mod control;
mod events;
mod listener;
mod metrics;
mod options;
mod participant;
mod response;
mod routes;
mod server;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use listener::Listener;
pub(crate) use options::{AnswerArgs, HttpArgs, Listen};
pub(crate) use participant::{HttpCandidate, HttpMember};
pub(crate) use server::{HttpLimits, HttpServer};
pub(crate) use status::{LastRun, RunStats};
