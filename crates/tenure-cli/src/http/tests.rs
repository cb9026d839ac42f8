//! Tests of the server from a client's view: a real election or fleet, real sockets, requests byte for byte.

mod control;
mod counting_store;
mod events;
mod hostile;
mod member;
mod member_fixture;
mod status;
mod support;

pub(super) use support::Folder;
