//! Where the leases of a trial live: a private directory, or a private server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group};

use super::proxy::Proxy;
use super::servers::{self, Scratch, Server, free_port};
use super::time::runtime;

pub(crate) const SERVER: &str = "redis-7";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory in memory.
    File,
    /// A directory on a small file system of its own.
    Disk,
    Redis,
    /// Redis, each contender behind a cable of its own.
    Cabled,
}

impl Kind {
    /// Why it cannot be had here.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Kind::File => None,
            Kind::Disk => {
                let root = rustix::process::geteuid().is_root();
                (!root).then(|| "needs root, to mount".to_owned())
            }
            Kind::Redis | Kind::Cabled if !cfg!(feature = "redis") => {
                Some("built without redis".to_owned())
            }
            Kind::Redis | Kind::Cabled => {
                let found = servers::find(SERVER, "redis-server");
                found.is_none().then(|| servers::how_to_get(SERVER))
            }
        }
    }

    pub(crate) fn is_server(self) -> bool {
        matches!(self, Kind::Redis | Kind::Cabled)
    }
}

pub(crate) enum Place {
    Directory { path: PathBuf, disk: Option<Disk> },
    Redis { server: Server, port: u16, cables: Vec<Proxy> },
}

impl Place {
    pub(crate) fn open(kind: Kind, scratch: &Path, contenders: usize) -> Place {
        match kind {
            Kind::File => Place::Directory { path: scratch.join("store"), disk: None },
            Kind::Disk => {
                let disk = Disk::mount(&scratch.join("disk"));
                Place::Directory { path: disk.0.join("store"), disk: Some(disk) }
            }
            Kind::Redis | Kind::Cabled => {
                let port = free_port();
                let text = port.to_string();
                let words = "--bind 127.0.0.1 --dir . --appendonly yes --appendfsync always";
                let arguments = ["--port", &text, "--save", ""].into_iter().chain(words.split(' '));
                let program = servers::find(SERVER, "redis-server").unwrap();
                let started =
                    Server::start(Scratch::in_memory(), program, arguments, async || answers(port));
                let server = runtime().block_on(started).unwrap();
                let cables = if kind == Kind::Cabled { contenders } else { 0 };
                let cables = (0..cables).map(|_| Proxy::start(port)).collect();
                Place::Redis { server, port, cables }
            }
        }
    }

    /// For the judge, who is never cut off.
    pub(crate) fn url(&self) -> String {
        match self {
            Place::Directory { path, .. } => format!("file:{}", path.display()),
            Place::Redis { port, .. } => redis(*port),
        }
    }

    /// For one of the contenders.
    pub(crate) fn url_for(&self, contender: usize) -> String {
        match self {
            Place::Redis { cables, .. } if !cables.is_empty() => redis(cables[contender].port()),
            _ => self.url(),
        }
    }

    pub(crate) fn cable(&self, contender: usize) -> &Proxy {
        match self {
            Place::Redis { cables, .. } => &cables[contender],
            Place::Directory { .. } => panic!("no cable leads to a directory"),
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        match self {
            Place::Directory { disk: Some(disk), .. } => disk,
            _ => panic!("no disk of its own"),
        }
    }

    fn server(&self) -> (&Server, u16) {
        match self {
            Place::Redis { server, port, .. } => (server, *port),
            Place::Directory { .. } => panic!("no server"),
        }
    }

    /// Away with the directory, and back.
    pub(crate) fn carry(&self, away: bool) {
        let Place::Directory { path, .. } = self else { panic!("no directory") };
        let elsewhere = path.with_file_name("elsewhere");
        let (from, to) = if away { (path, &elsewhere) } else { (&elsewhere, path) };
        std::fs::rename(from, to).unwrap();
    }

    pub(crate) fn signal_server(&self, signal: Signal) {
        kill_process_group(self.server().0.pid().unwrap(), signal).unwrap();
    }

    pub(crate) fn kill_server(&self) {
        self.signal_server(Signal::KILL);
        runtime().block_on(self.server().0.stop()).unwrap();
    }

    pub(crate) fn start_server_again(&self) {
        let (server, port) = self.server();
        runtime().block_on(server.start_again(async || answers(port))).unwrap();
    }

    /// A question to the bare server, without us: how far away it is.
    pub(crate) fn ping(&self) -> Option<TcpStream> {
        match self {
            Place::Redis { port, .. } => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).ok(),
            Place::Directory { .. } => None,
        }
    }
}

/// A young server would hold everybody back for a while: with quarantine we would test nothing else.
fn redis(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/0?quarantine=0s")
}

fn answers(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let _ = server.set_read_timeout(Some(Duration::from_millis(500)));
    asked(&mut server)
}

/// One PING and its answer; one that is still loading says something else.
pub(crate) fn asked(server: &mut TcpStream) -> bool {
    let mut answer = [0; 7];
    server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && answer == *b"+PONG\r\n"
}

/// A small file system of its own, unmounted at the end.
pub(crate) struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path) -> Disk {
        std::fs::create_dir(path).unwrap();
        let disk = Disk(path.to_owned());
        disk.run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]));
        disk
    }

    fn run(&self, command: &mut Command) {
        let status = command.arg(&self.0).status().unwrap();
        assert!(status.success(), "{command:?}: {status}");
    }

    /// Read-only, or not.
    pub(crate) fn protect(&self, protect: bool) {
        let option = if protect { "remount,ro" } else { "remount,rw" };
        // A file open for writing just now forbids it; a moment later there is none.
        let done = super::time::look(Duration::from_secs(5), || {
            let status = Command::new("mount").args(["-o", option]).arg(&self.0).output().unwrap();
            status.status.success().then_some(())
        });
        done.expect("remounted");
    }

    pub(crate) fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        let mut size = 1 << 20;
        while size > 0 {
            if file.write_all(&vec![0; size]).is_err() {
                size /= 2;
            }
        }
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
