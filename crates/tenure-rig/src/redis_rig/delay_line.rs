//! A network with high latency to the server: every byte arrives later, in both directions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{Clock, Moment};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The delay in each direction: a round trip takes 300 ms.
pub const ONE_WAY: Duration = Duration::from_millis(150);

/// A TCP proxy that delays every byte by the same time. Its connections end with it.
pub struct DelayLine {
    port: u16,
    accepted: Arc<AtomicUsize>,
    // Dropping it aborts the task that accepts, and with it all connections.
    _accepting: JoinSet<()>,
}

impl DelayLine {
    pub async fn start(server: u16, one_way: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(client, server, one_way));
            }
        });
        DelayLine { port, accepted, _accepting: accepting }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of connections made through it.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn serve(client: TcpStream, server: u16, one_way: Duration) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The kernel accepts without a delay. On a real network the client sends its first byte one round trip later.
    let established = Clock::boot().now() + 2 * one_way;
    tokio::join!(
        carry(from_client, to_server, one_way, established),
        carry(from_server, to_client, one_way, established),
    );
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    one_way: Duration,
    established: Moment,
) {
    let clock = Clock::boot();
    let (sender, mut queue) = mpsc::unbounded_channel::<(Moment, Vec<u8>)>();
    let read = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let arrives = clock.now().max(established) + one_way;
            if sender.send((arrives, buffer[..count].to_vec())).is_err() {
                break;
            }
        }
        drop(sender);
    };
    let write = async {
        while let Some((arrives, bytes)) = queue.recv().await {
            clock.sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
