//! HTTP for tests: a client for the command's server, and a server that the command polls.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub code: u16,
    pub body: String,
}

impl HttpResponse {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Sends `METHOD PATH` with these header lines; `None` if there is no answer.
pub fn request(port: u16, line: &str, headers: &str) -> Option<HttpResponse> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some(HttpResponse { code, body: body.to_owned() })
}

pub fn get(port: u16, path: &str) -> Option<HttpResponse> {
    request(port, &format!("GET {path}"), "")
}

/// The body of `/status`, if there is an answer.
pub fn status(port: u16) -> Option<Value> {
    get(port, "/status").map(|answer| answer.json())
}

pub fn leads(port: u16) -> bool {
    status(port).is_some_and(|status| status["isLeader"] == true)
}

/// A server to poll: each path answers in its own way, and the requests are recorded.
pub struct PollTarget {
    pub port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl PollTarget {
    /// `/ok` is 200, `/bad` 500, `/elsewhere` 302, and `/slow` never answers.
    pub fn start() -> PollTarget {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = heads.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for client in listener.incoming().flatten() {
                let head = head(&client);
                let answer = match head.split(' ').nth(1) {
                    Some("/ok") => "200 OK",
                    Some("/bad") => "500 Oh",
                    Some("/elsewhere") => "302 Found\r\nLocation: /ok",
                    _ => {
                        held.push(client);
                        continue;
                    }
                };
                kept.lock().unwrap().push(head);
                let answer =
                    format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                let _ = (&client).write_all(answer.as_bytes());
            }
        });
        PollTarget { port, heads }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The heads of all requests that were answered.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn head(client: &TcpStream) -> String {
    let mut head = String::new();
    let mut lines = BufReader::new(client);
    while lines.read_line(&mut head).is_ok_and(|read| read > 2) {}
    head
}
