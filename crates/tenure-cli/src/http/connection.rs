//! One connection, and since when its client has not read what we have for it.
//!
//! A client that stops reading would keep its connection, and what is written for it, for as long as it likes. One timer
//! for each would be two thousand timers, so each notes when it got stuck, and the server looks through them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure::{Clock, Moment};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// When a connection got stuck; never, if it is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Stuck(Arc<AtomicU64>);

impl Stuck {
    /// Whether the client has not read for longer than `limit`.
    pub(super) fn longer_than(&self, limit: Duration, now: Moment) -> bool {
        let since = Moment::from_nanos(self.0.load(Ordering::Relaxed));
        since != Moment::NEVER && now.since(since) > limit
    }
}

/// A connection that notes whether its client reads.
pub(super) struct Connection {
    stream: TcpStream,
    clock: Clock,
    stuck: Stuck,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, clock: Clock, stuck: Stuck) -> Connection {
        Connection { stream, clock, stuck }
    }

    fn noted<T>(&self, written: Poll<T>) -> Poll<T> {
        let Stuck(since) = &self.stuck;
        if written.is_ready() {
            since.store(Moment::NEVER.as_nanos(), Ordering::Relaxed);
        } else if since.load(Ordering::Relaxed) == Moment::NEVER.as_nanos() {
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
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.noted(written)
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
