//! The messages between leader and guard, and the socket pair that carries them.
//!
//! One packet is one message. A sender never blocks: a peer that does not read counts as dead.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure::{CandidateId, Hold, Moment, Name, Nonce, Result, Token};
use tokio::io::unix::AsyncFd;

use super::log::Log;
use super::process_tree::ProcessExit;

/// The longest message. A longer packet is truncated on receipt and is no valid message.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// The most files one message carries: the command's stdin, and the file whose lock shows that the leader lives.
const MAX_FILES: usize = 2;

/// The first message to the guard: its configuration. Credentials are sent only this way: other users can read arguments and
/// environment.
#[derive(Serialize, Deserialize)]
pub(crate) struct GuardSetup {
    /// The store's URL, with its password if it has one.
    pub(crate) store: String,
    #[serde(flatten)]
    hold: HoldProof,
    deadline: u64,
    pub(crate) stop_within_ms: u64,
    pub(crate) on_lose: Option<String>,
    /// The leader's process number.
    pub(crate) leader: i32,
    pub(crate) log: Log,
}

/// A hold in its serialized form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HoldProof {
    name: String,
    candidate: String,
    nonce: String,
    token: u64,
}

impl From<&Hold> for HoldProof {
    fn from(hold: &Hold) -> HoldProof {
        HoldProof {
            name: hold.name.to_string(),
            candidate: hold.candidate.to_string(),
            nonce: hold.nonce.to_string(),
            token: hold.token.get(),
        }
    }
}

impl TryFrom<&HoldProof> for Hold {
    type Error = tenure::Error;

    fn try_from(proof: &HoldProof) -> Result<Hold> {
        let nonce = Nonce::parse(&proof.nonce)
            .ok_or_else(|| tenure::Error::invalid("a nonce is 32 hexadecimal digits"))?;
        let (name, candidate) = (Name::stored(&proof.name)?, CandidateId::new(&proof.candidate)?);
        Ok(Hold::new(name, candidate, nonce, Token::new(proof.token)?))
    }
}

impl GuardSetup {
    pub(crate) fn new(
        store: &str,
        hold: &Hold,
        deadline: Moment,
        stop_within_ms: u64,
    ) -> GuardSetup {
        GuardSetup {
            store: store.to_owned(),
            hold: HoldProof::from(hold),
            deadline: deadline.as_nanos(),
            stop_within_ms,
            on_lose: None,
            leader: rustix::process::getpid().as_raw_nonzero().get(),
            log: Log::TEXT,
        }
    }

    /// The lease that the guard releases when the leader is dead.
    pub(crate) fn hold(&self) -> Result<Hold> {
        Hold::try_from(&self.hold)
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline)
    }
}

/// Every later message to the guard: an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GuardOrder {
    /// The lease was renewed: the deadline in nanoseconds on the boot clock; 0 when the renewal was refused. The guard
    /// acknowledges the number.
    Deadline { nanos: u64, number: u64 },
    /// Stop the command; kill it at this moment.
    Stop(u64),
    /// Forward a signal to the command.
    Signal(i32),
    /// The leader knows that no process is left, and releases the lease itself.
    Dismissed,
}

/// A message from the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardReport {
    /// The command could not be started, with the reason.
    Failed(String),
    /// No process of the command is left.
    Gone {
        ended: ProcessExit,
        /// The command was asked to stop, and has not ended by itself.
        asked_to_stop: bool,
    },
    /// A process of the command could not be killed and keeps running: which one, and the reason.
    CannotKill(String),
    /// The guard has received the deadline with this number, and all earlier ones.
    Acknowledged(u64),
}

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct GuardSocket(AsyncFd<OwnedFd>);

/// Creates a socket pair: the caller's end, and the end that becomes the guard's stdin.
pub(crate) fn socket_pair() -> io::Result<(GuardSocket, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (leader_end, guard_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((GuardSocket::over(leader_end)?, guard_end))
}

impl GuardSocket {
    pub(crate) fn over(socket: OwnedFd) -> io::Result<GuardSocket> {
        Ok(GuardSocket(async_fd(socket)?))
    }

    /// Sends without blocking, or fails.
    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send(self.0.get_ref().as_fd(), &serde_json::to_vec(message)?, files)
    }

    /// Waits for room in the socket, and sends.
    ///
    /// # Cancellation
    /// When this is dropped, either the whole message was sent or nothing of it.
    pub(crate) async fn send_when_writable(
        &self,
        message: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        loop {
            let mut ready = self.0.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| send(socket.as_fd(), message, files)) {
                return sent;
            }
        }
    }

    /// The next message. `None` when the other end is closed, or the packet is no valid message.
    pub(crate) async fn receive<M: DeserializeOwned>(&self) -> Option<M> {
        self.receive_with_files().await.map(|(message, _)| message)
    }

    /// A message that has arrived already; the outer `None` if none has. The inner value is that of
    /// [`GuardSocket::receive_with_files`].
    pub(crate) fn take<M: DeserializeOwned>(&self) -> Option<Option<(M, Vec<OwnedFd>)>> {
        match receive(self.0.get_ref().as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            received => Some(received.ok().and_then(parse)),
        }
    }

    /// The next message and the files that came with it.
    pub(crate) async fn receive_with_files<M: DeserializeOwned>(
        &self,
    ) -> Option<(M, Vec<OwnedFd>)> {
        loop {
            let mut ready = self.0.readable().await.ok()?;
            match ready.try_io(|socket| receive(socket.as_fd())) {
                Ok(received) => return received.ok().and_then(parse),
                Err(_not_yet) => {}
            }
        }
    }
}

fn parse<M: DeserializeOwned>(
    (bytes, files): (Vec<u8>, Vec<OwnedFd>),
) -> Option<(M, Vec<OwnedFd>)> {
    Some((serde_json::from_slice(&bytes).ok()?, files))
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect(),
        _ => Vec::new(),
    });
    let files = files.collect();
    // An empty packet is the end of the stream: no peer sends one.
    if received.bytes == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    bytes.truncate(received.bytes);
    Ok((bytes, files))
}

/// Registers a descriptor with the runtime.
///
/// Deprecated because a type could give out another descriptor than it owns. An `OwnedFd` cannot, and the replacement is
/// an `unsafe fn`.
#[allow(deprecated)]
pub(crate) fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_runtime(test: impl Future<Output = ()>) {
        crate::runtime().unwrap().block_on(test);
    }

    #[test]
    fn messages_files_and_the_close_arrive() {
        in_runtime(async {
            let (leader_end, guard_end) = socket_pair().unwrap();
            let guard_end = GuardSocket::over(guard_end).unwrap();
            let deadline = GuardOrder::Deadline { nanos: 7, number: 1 };
            leader_end.send(&deadline, &[]).unwrap();
            leader_end.send(&GuardOrder::Signal(15), &[io::stdin().as_fd()]).unwrap();
            assert_eq!(guard_end.receive().await, Some(deadline));
            let (order, files) = guard_end.receive_with_files::<GuardOrder>().await.unwrap();
            assert_eq!((order, files.len()), (GuardOrder::Signal(15), 1));
            assert!(guard_end.take::<GuardOrder>().is_none(), "nothing has come");
            leader_end.send(&GuardOrder::Dismissed, &[]).unwrap();
            assert_eq!(guard_end.take::<GuardOrder>().unwrap().unwrap().0, GuardOrder::Dismissed);
            drop(leader_end);
            assert!(guard_end.take::<GuardOrder>().unwrap().is_none());
            assert_eq!(guard_end.receive::<GuardOrder>().await, None);
        });
    }

    #[test]
    fn sending_to_a_peer_that_does_not_read_fails_at_once() {
        in_runtime(async {
            let (leader_end, _guard_end) = socket_pair().unwrap();
            let send =
                |number| leader_end.send(&GuardOrder::Deadline { nanos: 7, number }, &[]).err();
            let full = (0..1_000_000).find_map(send);
            assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
        });
    }

    #[test]
    fn an_invalid_message_counts_as_the_end() {
        in_runtime(async {
            let (leader_end, guard_end) = socket_pair().unwrap();
            let guard_end = GuardSocket::over(guard_end).unwrap();
            leader_end.send(&"hello", &[]).unwrap();
            assert_eq!(guard_end.receive::<GuardOrder>().await, None);
        });
    }

    #[test]
    fn a_hold_survives_serialization() {
        let (name, id) = (Name::new("a").unwrap(), CandidateId::new("b").unwrap());
        let hold = Hold::new(name, id, Nonce::random(), Token::new(7).unwrap());
        let setup = GuardSetup::new("file:/x", &hold, Moment::from_nanos(9), 800);
        let text = serde_json::to_string(&setup).unwrap();
        let read: GuardSetup = serde_json::from_str(&text).unwrap();
        assert_eq!(read.hold().unwrap(), hold);
        assert_eq!(read.deadline(), Moment::from_nanos(9));
    }
}
