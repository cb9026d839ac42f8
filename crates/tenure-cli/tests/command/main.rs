//! The real binary, as people and programs meet it: exit codes, text, JSON, and what it leaves behind.

mod demo;
mod doctor;
mod secrets;
mod support;
mod usage;
