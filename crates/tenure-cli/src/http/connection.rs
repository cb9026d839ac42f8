//! One connection: since when its client has not read the response, and since when the server waits for a request on it.
//!
//! A client that stops reading would keep its connection, and the data written for it, for as long as it likes. A timer for
//! each connection would mean two thousand timers, so each connection records since when it is blocked, and the server checks
//! all of them periodically.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tenure::{Clock, Moment};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// In an atomic that holds a moment: there is none.
const NOT_SET: u64 = 0;

/// Since when a connection has unread output, if it has any.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadSince(Arc<AtomicU64>);

impl UnreadSince {
    /// Whether the client has not read for longer than `limit`.
    pub(super) fn longer_than(&self, limit: Duration, now: Moment) -> bool {
        let since = self.0.load(Ordering::Relaxed);
        since != NOT_SET && now.since(Moment::from_nanos(since)) > limit
    }

    /// Whether some output is not written yet.
    pub(super) fn is_unread(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NOT_SET
    }
}

/// Since when a connection waits for a complete request; not set while a request is in flight.
#[derive(Clone, Debug)]
pub(super) struct IdleSince(Arc<AtomicU64>);

impl IdleSince {
    pub(super) fn new(now: Moment) -> IdleSince {
        IdleSince(Arc::new(AtomicU64::new(now.as_nanos())))
    }

    /// `None` while a request is in flight.
    pub(super) fn since(&self) -> Option<Moment> {
        let since = self.0.load(Ordering::Relaxed);
        (since != NOT_SET).then_some(Moment::from_nanos(since))
    }

    /// A request has arrived. It is in flight until the returned value is dropped.
    pub(super) fn request(&self, clock: &Clock) -> InFlight {
        self.0.store(NOT_SET, Ordering::Relaxed);
        InFlight { idle: self.clone(), clock: clock.clone() }
    }
}

/// A request that is being answered.
pub(super) struct InFlight {
    idle: IdleSince,
    clock: Clock,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.idle.0.store(self.clock.now().as_nanos(), Ordering::Relaxed);
    }
}

/// A response body that keeps its request in flight until it has been written. What the client has not read by then is in the
/// connection's buffer, and [`UnreadSince`] records it.
pub(super) struct ResponseBody {
    pub(super) body: Body,
    pub(super) _in_flight: InFlight,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that records whether its client reads.
pub(super) struct Connection {
    stream: TcpStream,
    clock: Clock,
    unread: UnreadSince,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, clock: Clock, unread: UnreadSince) -> Connection {
        Connection { stream, clock, unread }
    }

    fn record_progress<T>(&self, written: Poll<T>) -> Poll<T> {
        let UnreadSince(since) = &self.unread;
        if written.is_ready() {
            since.store(NOT_SET, Ordering::Relaxed);
        } else if since.load(Ordering::Relaxed) == NOT_SET {
            since.store(self.clock.now().as_nanos(), Ordering::Relaxed);
        }
        written
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_progress(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.record_progress(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
