//! The server as clients meet it: a real election or fleet, real sockets, requests byte for byte.

mod control;
mod crew;
mod events;
mod hostile;
mod member;
mod reading;
mod store;
mod support;

pub(super) use support::Folder;
