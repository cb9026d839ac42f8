//! The addresses of a host name, for every store that is a server.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::endpoint::Host;
use crate::blocking;

/// How long a lookup may take before the addresses of an earlier lookup are used.
const KNOWN_ADDRESSES_AFTER: Duration = Duration::from_millis(300);

/// The addresses of `host`. If its name is an IP address, there is no lookup.
pub(super) async fn lookup_addresses(Host { name, port }: Host) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let resolve = move || (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
    blocking::run(resolve).await.map_err(io::Error::other)?
}

/// The result of a lookup. An [`io::Error`] cannot be cloned; its kind and text can.
type Lookup = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// The cached addresses of the host name.
///
/// A lookup runs in its own task, at most one at a time: a resolver whose first server is dead answers after several seconds,
/// maybe after the connection attempt that started the lookup has ended. The next attempt uses that answer.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// The result of the last successful lookup.
    known: Mutex<Vec<SocketAddr>>,
    in_flight: Mutex<Option<watch::Receiver<Option<Lookup>>>>,
}

impl Addresses {
    /// The result of a lookup, or earlier addresses if there are any and the lookup fails or takes too long.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let mut lookup = self.start_or_join(lookup);
        let answer = async move {
            match lookup.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(Ok(addresses))) => Ok(addresses.clone()),
                Ok(Some(Err((kind, text)))) => Err(io::Error::new(*kind, text.clone())),
                _ => Err(io::Error::other("the lookup of its address ended early")),
            }
        };
        let known = locked(&self.known).clone();
        if known.is_empty() {
            return answer.await;
        }
        match tokio::time::timeout(KNOWN_ADDRESSES_AFTER, answer).await {
            Ok(Ok(addresses)) => Ok(addresses),
            _ => Ok(known),
        }
    }

    fn start_or_join(
        self: &Arc<Self>,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> watch::Receiver<Option<Lookup>> {
        let mut in_flight = locked(&self.in_flight);
        // The channel of a lookup whose runtime has ended is closed.
        if let Some(running) = in_flight.as_ref().filter(|running| running.has_changed().is_ok()) {
            return running.clone();
        }
        let (sender, receiver) = watch::channel(None);
        *in_flight = Some(receiver.clone());
        let addresses = Arc::clone(self);
        tokio::spawn(async move {
            let answer = lookup.await.map_err(|error| (error.kind(), error.to_string()));
            if let Ok(found) = &answer {
                locked(&addresses.known).clone_from(found);
            }
            *locked(&addresses.in_flight) = None;
            sender.send_replace(Some(answer));
        });
        receiver
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// F45: the first name server is dead, so every lookup takes longer than a connection attempt.
    #[tokio::test]
    async fn a_lookup_outlives_its_callers_and_serves_the_next_one() {
        let addresses = Arc::new(Addresses::default());
        let (answer, answered) = oneshot::channel::<()>();
        let slow = async move {
            answered.await.map_err(io::Error::other)?;
            Ok(vec![address(1)])
        };
        let limit = Duration::from_millis(20);
        assert!(tokio::time::timeout(limit, addresses.resolve(slow)).await.is_err());
        // A second lookup is not started beside the first.
        let second = addresses.resolve(async { panic!("a lookup is in flight") });
        assert!(tokio::time::timeout(limit, second).await.is_err());
        answer.send(()).unwrap();
        while locked(&addresses.known).is_empty() {
            tokio::task::yield_now().await;
        }
        // From now on a lookup that does not answer costs a short time only.
        assert_eq!(addresses.resolve(pending()).await.unwrap(), [address(1)]);
        let third = addresses.resolve(async { panic!("a lookup is in flight") });
        assert_eq!(third.await.unwrap(), [address(1)]);
    }

    #[tokio::test]
    async fn a_failed_lookup_falls_back_to_known_addresses() {
        let addresses = Arc::new(Addresses::default());
        let fail = || async { Err(io::Error::other("no such name")) };
        assert_eq!(addresses.resolve(fail()).await.unwrap_err().to_string(), "no such name");
        addresses.resolve(async { Ok(vec![address(1)]) }).await.unwrap();
        assert_eq!(addresses.resolve(fail()).await.unwrap(), [address(1)]);
        let moved = addresses.resolve(async { Ok(vec![address(2)]) }).await.unwrap();
        assert_eq!(moved, [address(2)], "an answer in time counts");
    }
}
