//! The server as clients meet it: a real election, real sockets, requests byte for byte.

mod control;
mod events;
mod hostile;
mod reading;
mod store;
mod support;

pub(super) use support::Folder;
