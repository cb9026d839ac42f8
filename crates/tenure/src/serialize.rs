//! The serialized form of the library's values (feature `serde`), in one place. Fields are spelled as in the command's JSON
//! (docs/CLI.md) where that has the same fact, and the chapter [`docs::observability`](crate::docs::observability) lists them.
//!
//! Every struct is taken apart without `..`: a field that is added must be given a name here, or be left out on purpose.
//! Nonces and checkpoints are left out: a nonce is part of the proof of a hold, and a checkpoint belongs to the application.

mod event;
mod fleet_event;
mod status;

use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::election::CandidateState;
use crate::error::{Error, Kind};
use crate::fleet;
use crate::fleet::Shard;
use crate::lease::{
    CandidateId, Ended, Name, Note, PastTermOutcome, StartupWait, Token, WaitReason,
};
use crate::machine::{EndReason, Phase};
use crate::metrics::RenewalFailure;
use crate::store::{Grade, Verdict, Visibility};

/// As text: a label, or a checked name.
macro_rules! serialize_as_str {
    ($($named:ty),* $(,)?) => {
        $(impl Serialize for $named {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        })*
    };
}

serialize_as_str!(
    CandidateId,
    CandidateState,
    EndReason,
    Ended,
    Grade,
    Kind,
    Name,
    Note,
    PastTermOutcome,
    Phase,
    RenewalFailure,
    Shard,
    Verdict,
    Visibility,
    WaitReason,
    fleet::Reason,
);

/// As a number: a token is below 2^53, so every language reads it exactly.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// `{"kind":"denied","message":"…"}`, as in the errors of the command.
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Error", 2)?;
        fields.serialize_field("kind", &self.kind())?;
        fields.serialize_field("message", &self.to_string())?;
        fields.end()
    }
}

/// `{"startsInMs":4000,"startReason":"restarted"}`, as in the status.
impl Serialize for StartupWait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StartupWait { left, reason } = self;
        let mut fields = serializer.serialize_struct("StartupWait", 2)?;
        fields.serialize_field("startsInMs", &millis_rounded_up(*left))?;
        fields.serialize_field("startReason", reason)?;
        fields.end()
    }
}

/// Whole milliseconds, rounded down: for a validity, which must not seem longer than it is.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, rounded up: for a wait, which is not over before it is.
fn millis_rounded_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
