//! What a member and its guard say to each other: many words in one packet, because each is short and there are thousands.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use super::super::log::Log;
use super::super::protocol::{HoldProof, MOST};

/// The first packet. Credentials come this way only.
#[derive(Serialize, Deserialize)]
pub(super) struct ManySetup {
    /// With its password, if it has one.
    pub(super) store: String,
    /// The fleet.
    pub(super) name: String,
    /// The member.
    pub(super) candidate: String,
    pub(super) stop_within_ms: u64,
    /// The member's process.
    pub(super) leader: i32,
    pub(super) log: Log,
}

/// What the guard is told. Moments are nanoseconds on the boot clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum GuardMessage {
    /// The member holds this lease: its own membership if there is no shard.
    Hold { id: u32, hold: HoldProof, shard: Option<String>, deadline: u64 },
    /// Start the command of that shard.
    Run { id: u32, argv: Vec<Argument> },
    /// Leases were renewed; a deadline of 0 was refused.
    Deadlines(Vec<(u32, u64)>),
    /// Stop that command; kill it at this moment.
    Stop { id: u32, kill_at: u64 },
    /// Pass on a signal to all commands.
    Signal(i32),
    /// That hold is over, and there is nothing to give back.
    Forget { id: u32 },
    /// Answer with this number: all that came before was received.
    Acknowledge(u64),
    /// With a file beside it: its lock says that the member lives, and what inherits it lives on in the member's place.
    Live,
    /// The member needs no guard any more.
    Dismissed,
}

/// One argument of a command. Most are text, and cost as much as they are long.
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

/// Puts words into packets, in order, as few as they fit in. A word that fits in none is left out, and its place returned.
pub(super) fn pack(words: &[impl Serialize]) -> (Vec<Vec<u8>>, Vec<usize>) {
    let (mut packets, mut too_long) = (Vec::new(), Vec::new());
    let mut packet: Vec<u8> = Vec::new();
    for (place, word) in words.iter().enumerate() {
        let word = serde_json::to_vec(word).unwrap_or_default();
        // With a bracket or a comma before it, and a bracket behind it.
        if word.is_empty() || word.len() + 2 > MOST {
            too_long.push(place);
            continue;
        }
        if packet.len() + word.len() + 2 > MOST {
            packets.push(closed(&mut packet));
        }
        packet.push(if packet.is_empty() { b'[' } else { b',' });
        packet.extend(word);
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
    fn many_words_are_few_packets_and_keep_their_order() {
        let words: Vec<GuardMessage> =
            (0..10_000).map(|id| GuardMessage::Stop { id, kill_at: u64::MAX }).collect();
        let (packets, too_long) = pack(&words);
        assert!(packets.len() < 12 && too_long.is_empty(), "{} packets", packets.len());
        assert!(packets.iter().all(|packet| packet.len() <= MOST));
        assert_eq!(unpacked(&packets), words);
        assert_eq!(pack(&[] as &[GuardMessage]), (vec![], vec![]));
    }

    #[test]
    fn a_thousand_deadlines_are_one_packet() {
        let deadlines = (0..1_000).map(|id| (u32::MAX - id, u64::MAX)).collect();
        assert_eq!(pack(&[GuardMessage::Deadlines(deadlines)]).0.len(), 1);
    }

    #[test]
    fn what_fits_in_no_packet_is_left_out_and_said() {
        let run =
            |id, length| GuardMessage::Run { id, argv: vec![Argument::Text("x".repeat(length))] };
        let words = [run(1, 10), run(2, MOST), run(3, MOST - 40)];
        let (packets, too_long) = pack(&words);
        assert_eq!(too_long, [1]);
        assert_eq!(unpacked(&packets), [words[0].clone(), words[2].clone()]);
    }

    #[test]
    fn arguments_that_are_no_text_arrive_as_they_are() {
        let argv = [OsString::from("ä b"), OsString::from_vec(vec![b'x', 0xff, b'y'])];
        let word =
            GuardMessage::Run { id: 1, argv: argv.iter().cloned().map(Argument::from).collect() };
        let Some(GuardMessage::Run { argv: read, .. }) = unpacked(&pack(&[word]).0).pop() else {
            panic!()
        };
        assert_eq!(read.into_iter().map(OsString::from).collect::<Vec<_>>(), argv);
    }
}
