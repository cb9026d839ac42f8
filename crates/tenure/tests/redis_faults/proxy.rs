//! A small proxy between the store and its server that delays replies, cuts them off, or redirects to another server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use tenure_rig::redis_rig::pause;

pub(crate) struct Proxy {
    port: u16,
    faults: Arc<Faults>,
    /// The server's port; `None` while the proxy refuses connections.
    server: watch::Sender<Option<u16>>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Faults {
    delay_millis: AtomicU64,
    /// How many bytes of replies, over all connections, may still pass.
    bytes: AtomicUsize,
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let faults = Arc::new(Faults::default());
        faults.bytes.store(usize::MAX, Ordering::SeqCst);
        let shared = Arc::clone(&faults);
        let (server, mut target) = watch::channel(Some(server));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Some(server) = *target.borrow_and_update() else { continue };
                let (shared, mut changed) = (Arc::clone(&shared), target.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = serve(client, server, shared) => {}
                        _ = changed.changed() => {}
                    }
                });
            }
        });
        Proxy { port, faults, server, accepting }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Closes every connection; new connections go to another server, or are refused.
    pub(crate) fn redirect_to(&self, server: Option<u16>) {
        self.server.send_replace(server);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Delays all replies from now on by this time.
    pub(crate) fn delay_replies(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).expect("a short delay");
        self.faults.delay_millis.store(millis, Ordering::SeqCst);
    }

    /// Closes the connection that carries replies after this many bytes.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.faults.bytes.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, server: u16, faults: Arc<Faults>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let replies = async {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            pause(Duration::from_millis(faults.delay_millis.load(Ordering::SeqCst))).await;
            let allowed = faults.bytes.load(Ordering::SeqCst);
            let passed = read.min(allowed);
            if allowed != usize::MAX {
                faults.bytes.fetch_sub(passed, Ordering::SeqCst);
            }
            if to_client.write_all(&buffer[..passed]).await.is_err() || passed < read {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}
