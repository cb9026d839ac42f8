//! The messages from a member to its guard. Many messages share one packet, because each is short and there are thousands.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use super::super::log::Log;
use super::super::protocol::{HoldProof, MAX_MESSAGE_BYTES};

/// The first packet: the configuration. Credentials are sent only this way.
#[derive(Serialize, Deserialize)]
pub(super) struct ManySetup {
    /// The store's URL, with its password if it has one.
    pub(super) store: String,
    /// The fleet's name.
    pub(super) name: String,
    /// The member's id.
    pub(super) candidate: String,
    pub(super) stop_within_ms: u64,
    /// The member's process number.
    pub(super) leader: i32,
    pub(super) log: Log,
}

/// A message to the guard. Moments are nanoseconds on the boot clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum GuardMessage {
    /// The member holds this lease; without a shard it is the membership lease.
    Hold { id: u32, hold: HoldProof, shard: Option<String>, deadline: u64 },
    /// Start the command of that shard.
    Run { id: u32, argv: Vec<Argument> },
    /// Leases were renewed; a deadline of 0 means that the renewal was refused.
    Deadlines(Vec<(u32, u64)>),
    /// Stop that command; kill it at this moment.
    Stop { id: u32, kill_at: u64 },
    /// Forward a signal to all commands.
    Signal(i32),
    /// That hold is over, and there is nothing to release.
    Forget { id: u32 },
    /// Acknowledge this number: everything sent before it was received.
    Acknowledge(u64),
    /// Sent with a file whose lock shows that the member lives. A command that inherits the file keeps the lock after the
    /// member's death.
    Live,
    /// The member needs no guard any more.
    Dismissed,
}

/// One argument of a command. Most are text, which is serialized at about its own length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Argument {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<OsString> for Argument {
    fn from(argument: OsString) -> Argument {
        match argument.into_string() {
            Ok(text) => Argument::Text(text),
            Err(argument) => Argument::Bytes(argument.as_bytes().to_vec()),
        }
    }
}

impl From<Argument> for OsString {
    fn from(argument: Argument) -> OsString {
        match argument {
            Argument::Text(text) => text.into(),
            Argument::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

/// Packs messages into as few packets as possible, in order. A message that fits in no packet is left out, and its index is
/// returned.
pub(super) fn pack(messages: &[impl Serialize]) -> (Vec<Vec<u8>>, Vec<usize>) {
    let (mut packets, mut too_long) = (Vec::new(), Vec::new());
    let mut packet: Vec<u8> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let message = serde_json::to_vec(message).unwrap_or_default();
        // Each message needs a bracket or a comma before it, and a bracket after it.
        if message.is_empty() || message.len() + 2 > MAX_MESSAGE_BYTES {
            too_long.push(index);
            continue;
        }
        if packet.len() + message.len() + 2 > MAX_MESSAGE_BYTES {
            packets.push(closed(&mut packet));
        }
        packet.push(if packet.is_empty() { b'[' } else { b',' });
        packet.extend(message);
    }
    if !packet.is_empty() {
        packets.push(closed(&mut packet));
    }
    (packets, too_long)
}

fn closed(packet: &mut Vec<u8>) -> Vec<u8> {
    packet.push(b']');
    std::mem::take(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(packets: &[Vec<u8>]) -> Vec<GuardMessage> {
        packets
            .iter()
            .flat_map(|packet| serde_json::from_slice::<Vec<GuardMessage>>(packet))
            .flatten()
            .collect()
    }

    #[test]
    fn many_messages_fit_in_few_packets_and_keep_their_order() {
        let messages: Vec<GuardMessage> =
            (0..10_000).map(|id| GuardMessage::Stop { id, kill_at: u64::MAX }).collect();
        let (packets, too_long) = pack(&messages);
        assert!(packets.len() < 12 && too_long.is_empty(), "{} packets", packets.len());
        assert!(packets.iter().all(|packet| packet.len() <= MAX_MESSAGE_BYTES));
        assert_eq!(unpacked(&packets), messages);
        assert_eq!(pack(&[] as &[GuardMessage]), (vec![], vec![]));
    }

    #[test]
    fn a_thousand_deadlines_fit_in_one_packet() {
        let deadlines = (0..1_000).map(|id| (u32::MAX - id, u64::MAX)).collect();
        assert_eq!(pack(&[GuardMessage::Deadlines(deadlines)]).0.len(), 1);
    }

    #[test]
    fn a_message_that_fits_in_no_packet_is_reported() {
        let run =
            |id, length| GuardMessage::Run { id, argv: vec![Argument::Text("x".repeat(length))] };
        let messages = [run(1, 10), run(2, MAX_MESSAGE_BYTES), run(3, MAX_MESSAGE_BYTES - 40)];
        let (packets, too_long) = pack(&messages);
        assert_eq!(too_long, [1]);
        assert_eq!(unpacked(&packets), [messages[0].clone(), messages[2].clone()]);
    }

    #[test]
    fn arguments_that_are_not_utf8_arrive_unchanged() {
        let argv = [OsString::from("ä b"), OsString::from_vec(vec![b'x', 0xff, b'y'])];
        let message =
            GuardMessage::Run { id: 1, argv: argv.iter().cloned().map(Argument::from).collect() };
        let Some(GuardMessage::Run { argv: read, .. }) = unpacked(&pack(&[message]).0).pop() else {
            panic!()
        };
        assert_eq!(read.into_iter().map(OsString::from).collect::<Vec<_>>(), argv);
    }
}
