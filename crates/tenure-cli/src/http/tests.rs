//! Tests of the server from a client's view: a real election or fleet, real sockets, requests byte for byte.

mod candidate_fixture;
mod control;
mod counting_store;
mod events;
mod hostile_clients;
mod member;
mod member_fixture;
mod status;
