//! Finds out whether a server speaks plaintext or TLS, so that an error can name a mismatch between the URL and the server.
//!
//! Neither side notices a mismatch by itself. A plaintext server waits for the end of what it parses as a line in the TLS
//! ClientHello. A TLS server closes a connection that begins with anything else, as a server that is shutting down would.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The types of the TLS records that a server may begin with: alert and handshake.
const FIRST_RECORDS: [u8; 2] = [0x15, 0x16];

/// A ClientHello of TLS 1.2 without extensions. A server answers with its part of the handshake, or with an alert.
const CLIENT_HELLO: [u8; 58] = {
    let mut hello = [0; 58];
    // The record: handshake, TLS 1.0 as the compatible version, 53 bytes.
    (hello[0], hello[1], hello[2], hello[4]) = (0x16, 0x03, 0x01, 53);
    // The message: ClientHello, 49 bytes, TLS 1.2. A random of zeros and an empty session id follow.
    (hello[5], hello[8], hello[9], hello[10]) = (0x01, 49, 0x03, 0x03);
    // Four cipher suites: ECDHE with ECDSA and RSA, AES-GCM with 128 and 256 bits.
    hello[45] = 8;
    (hello[46], hello[47], hello[48], hello[49]) = (0xc0, 0x2b, 0xc0, 0x2c);
    (hello[50], hello[51], hello[52], hello[53]) = (0xc0, 0x2f, 0xc0, 0x30);
    // One compression method: none. No extensions.
    hello[54] = 1;
    hello
};

/// Whether the server answers a plaintext PING.
pub(super) async fn speaks_plaintext(mut stream: TcpStream) -> bool {
    let mut answer = Vec::new();
    let asked = async {
        stream.write_all(b"PING\r\n").await?;
        while !answer.contains(&b'\n') && answer.len() < 512 {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    let has_answer = asked.await.is_ok() && matches!(answer.first(), Some(b'+' | b'-'));
    // Some servers say on their TLS port in plaintext that they expect TLS.
    has_answer && !answer.windows(3).any(|word| word == b"TLS")
}

/// Whether the server answers a TLS ClientHello with TLS.
pub(super) async fn speaks_tls(mut stream: TcpStream) -> bool {
    let mut answer = [0; 2];
    let asked = async {
        stream.write_all(&CLIENT_HELLO).await?;
        stream.read_exact(&mut answer).await
    };
    asked.await.is_ok() && is_tls(&answer)
}

/// Whether `bytes` are the beginning of what a TLS server says first.
pub(super) fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [kind, 0x03, ..] if FIRST_RECORDS.contains(kind))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn the_client_hello_has_the_lengths_it_states() {
        let length =
            |at: usize| usize::from(CLIENT_HELLO[at]) << 8 | usize::from(CLIENT_HELLO[at + 1]);
        assert_eq!(length(3), CLIENT_HELLO.len() - 5);
        assert_eq!(length(7), CLIENT_HELLO.len() - 9);
        // Version, random, session id, cipher suites, compression, extensions.
        assert_eq!(2 + 32 + 1 + (2 + length(44)) + 2 + 2, length(7));
    }

    /// Whether a server that says `answer` speaks plaintext, and whether it speaks TLS.
    async fn spoken(answer: &'static [u8]) -> [bool; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut question = [0; 64];
                assert!(stream.read(&mut question).await.unwrap() >= 6);
                stream.write_all(answer).await.unwrap();
            }
        });
        let connect = async || TcpStream::connect(address).await.unwrap();
        let spoken = [speaks_plaintext(connect().await).await, speaks_tls(connect().await).await];
        server.await.unwrap();
        spoken
    }

    #[tokio::test]
    async fn the_protocol_of_a_server_is_recognised_by_its_answer() {
        for answer in [&b"+PONG\r\n"[..], b"-NOAUTH Authentication required.\r\n", b"-ERR\r\n"] {
            assert_eq!(spoken(answer).await, [true, false]);
        }
        for answer in [&b"\x15\x03\x03\x00\x02\x02\x28"[..], b"\x16\x03\x03\x00\x7a"] {
            assert_eq!(spoken(answer).await, [false, true]);
        }
        for answer in [&b""[..], b"HTTP/1.1 400\r\n", b"-ERR Bad TLS header\r\n", b"\x15\x01"] {
            assert_eq!(spoken(answer).await, [false, false]);
        }
    }
}
