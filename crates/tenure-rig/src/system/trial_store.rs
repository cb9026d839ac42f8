//! The store of a trial: a private directory, or a private server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process_group};

use super::proxy::Proxy;
use super::time::runtime;
use crate::etcd_rig::{self, ETCD, EtcdMember};
use crate::servers::{self, Scratch, Server, free_port};

pub const SERVER: &str = "redis-7";
/// The mount point of a private file system, in the directory of a trial.
pub const DISK: &str = "disk";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// A directory in memory.
    File,
    /// A directory on a small private file system, in memory.
    Disk,
    /// A directory on a file system in a file, which can fail as a disk does.
    Image,
    Redis,
    /// Redis, each candidate behind a proxy of its own.
    Cabled,
    Etcd,
    /// etcd, each candidate behind a proxy of its own.
    EtcdCabled,
}

impl StoreKind {
    /// The reason why this store is not available here.
    pub fn missing(self) -> Option<String> {
        match self {
            StoreKind::File => None,
            StoreKind::Disk => (!is_root()).then(|| "needs root, to mount".to_owned()),
            StoreKind::Image => {
                let able = is_root()
                    && Path::new("/dev/loop-control").exists()
                    && Command::new("mkfs.ext4").arg("-V").output().is_ok();
                (!able).then(|| "needs root, loop devices and mkfs.ext4".to_owned())
            }
            StoreKind::Redis | StoreKind::Cabled => {
                let found = servers::find(SERVER, "redis-server");
                found.is_none().then(|| servers::install_hint(SERVER))
            }
            StoreKind::Etcd | StoreKind::EtcdCabled => etcd_rig::missing(ETCD),
        }
    }

    pub fn is_server(self) -> bool {
        !matches!(self, StoreKind::File | StoreKind::Disk | StoreKind::Image)
    }

    /// The part of a trial's name.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::File | StoreKind::Disk | StoreKind::Image => "file",
            StoreKind::Redis | StoreKind::Cabled => "redis",
            StoreKind::Etcd | StoreKind::EtcdCabled => "etcd",
        }
    }

    /// The shortest TTL for trials in which a lease has to expire.
    pub fn short_ttl(self) -> Duration {
        match self {
            StoreKind::Etcd | StoreKind::EtcdCabled => Duration::from_secs(2),
            _ => Duration::from_secs(1),
        }
    }

    /// How long after its TTL the server frees a lease at the latest.
    pub fn expiry_delay(self) -> Duration {
        match self {
            // It looks for expired leases twice a second.
            StoreKind::Etcd | StoreKind::EtcdCabled => Duration::from_secs(1),
            _ => Duration::ZERO,
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub enum TrialStore {
    Directory { path: PathBuf, disk: Option<Disk> },
    Redis { server: Server, port: u16, cables: Vec<Proxy> },
    Etcd { member: EtcdMember, cables: Vec<Proxy> },
}

impl TrialStore {
    pub fn open(kind: StoreKind, scratch: &Path, contenders: usize) -> TrialStore {
        match kind {
            StoreKind::File => TrialStore::Directory { path: scratch.join("store"), disk: None },
            StoreKind::Disk | StoreKind::Image => {
                let image = (kind == StoreKind::Image).then(|| scratch.join("image"));
                let disk = Disk::new(scratch.join(DISK), image);
                TrialStore::Directory { path: disk.path.join("store"), disk: Some(disk) }
            }
            StoreKind::Redis | StoreKind::Cabled => {
                let port = free_port();
                let text = port.to_string();
                let words = "--bind 127.0.0.1 --dir . --appendonly yes --appendfsync always";
                let arguments = ["--port", &text, "--save", ""].into_iter().chain(words.split(' '));
                let program = servers::find(SERVER, "redis-server").unwrap();
                let started =
                    Server::start(Scratch::in_memory(), program, arguments, async || answers(port));
                let server = runtime().block_on(started).unwrap();
                let cables = cables(kind == StoreKind::Cabled, contenders, port);
                TrialStore::Redis { server, port, cables }
            }
            StoreKind::Etcd | StoreKind::EtcdCabled => {
                let member = runtime().block_on(EtcdMember::start(ETCD)).unwrap();
                let cables = cables(kind == StoreKind::EtcdCabled, contenders, member.port);
                TrialStore::Etcd { member, cables }
            }
        }
    }

    /// The URL for the judge, which is never cut off.
    pub fn url(&self) -> String {
        match self {
            TrialStore::Directory { path, .. } => format!("file:{}", path.display()),
            TrialStore::Redis { port, .. } => redis(*port),
            TrialStore::Etcd { member, .. } => member.url(),
        }
    }

    /// The URL for a candidate.
    pub fn url_for(&self, contender: usize) -> String {
        match self {
            TrialStore::Redis { cables, .. } if !cables.is_empty() => {
                redis(cables[contender].port())
            }
            TrialStore::Etcd { cables, .. } if !cables.is_empty() => {
                format!("etcd://127.0.0.1:{}", cables[contender].port())
            }
            _ => self.url(),
        }
    }

    pub fn cable(&self, contender: usize) -> &Proxy {
        match self {
            TrialStore::Redis { cables, .. } | TrialStore::Etcd { cables, .. } => {
                &cables[contender]
            }
            TrialStore::Directory { .. } => panic!("no cable leads to a directory"),
        }
    }

    pub fn disk(&self) -> &Disk {
        match self {
            TrialStore::Directory { disk: Some(disk), .. } => disk,
            _ => panic!("no disk of its own"),
        }
    }

    fn server(&self) -> &Server {
        match self {
            TrialStore::Redis { server, .. } => server,
            TrialStore::Etcd { member, .. } => &member.server,
            TrialStore::Directory { .. } => panic!("no server"),
        }
    }

    /// The etcd server of this trial.
    pub fn etcd(&self) -> &EtcdMember {
        match self {
            TrialStore::Etcd { member, .. } => member,
            _ => panic!("no etcd"),
        }
    }

    /// The path of a directory store, and the path that it is moved to.
    pub fn paths(&self) -> Option<[PathBuf; 2]> {
        let TrialStore::Directory { path, .. } = self else { return None };
        Some([path.clone(), path.with_file_name("elsewhere")])
    }

    /// Moves the directory away, or back.
    pub fn move_directory(&self, away: bool) {
        let [path, elsewhere] = self.paths().expect("a directory");
        if away {
            return std::fs::rename(path, elsewhere).unwrap();
        }
        // A process that opened the store meanwhile has made an empty one. No candidate may have led in it.
        if let Ok(leases) = std::fs::read_dir(path.join("leases")) {
            assert_eq!(leases.count(), 0, "a candidate led in another directory");
            std::fs::remove_dir_all(&path).unwrap();
        }
        std::fs::rename(elsewhere, path).unwrap();
    }

    pub fn signal_server(&self, signal: Signal) {
        kill_process_group(self.server().pid().unwrap(), signal).unwrap();
    }

    pub fn kill_server(&self) {
        self.signal_server(Signal::KILL);
        runtime().block_on(self.server().stop()).unwrap();
    }

    pub fn start_server_again(&self) {
        match self {
            TrialStore::Redis { server, port, .. } => {
                runtime().block_on(server.start_again(async || answers(*port))).unwrap();
            }
            TrialStore::Etcd { member, .. } => runtime().block_on(member.start_again()),
            TrialStore::Directory { .. } => panic!("no server"),
        }
    }

    /// Deletes all data.
    pub fn flush(&self) {
        self.send(&["FLUSHALL"]);
    }

    /// Sends commands over one connection; the server must accept each of them.
    pub fn send(&self, commands: &[&str]) {
        let mut server = BufReader::new(self.ping().expect("a server that answers"));
        for command in commands {
            server.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            server.read_line(&mut answer).unwrap();
            assert!(!answer.is_empty() && !answer.starts_with('-'), "{command}: {answer}");
        }
    }

    /// A plain connection to the server, without Tenure: measures its latency.
    pub fn ping(&self) -> Option<TcpStream> {
        match self {
            TrialStore::Redis { port, .. } => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).ok(),
            TrialStore::Etcd { .. } | TrialStore::Directory { .. } => None,
        }
    }
}

/// A proxy for each candidate, if there are any.
fn cables(cabled: bool, contenders: usize, port: u16) -> Vec<Proxy> {
    let count = if cabled { contenders } else { 0 };
    (0..count).map(|_| Proxy::start(port)).collect()
}

fn redis(port: u16) -> String {
    format!("redis://127.0.0.1:{port}/0")
}

pub fn answers(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let _ = server.set_read_timeout(Some(Duration::from_millis(500)));
    asked(&mut server)
}

/// One PING and its reply; a server that is still loading replies otherwise.
pub fn asked(server: &mut TcpStream) -> bool {
    let mut answer = [0; 7];
    server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && answer == *b"+PONG\r\n"
}

/// A small private file system, unmounted at the end.
pub struct Disk {
    path: PathBuf,
    image: Option<PathBuf>,
}

impl Disk {
    fn new(path: PathBuf, image: Option<PathBuf>) -> Disk {
        std::fs::create_dir(&path).unwrap();
        if let Some(image) = &image {
            std::fs::File::create_new(image).unwrap().set_len(4 << 20).unwrap();
            run(Command::new("mkfs.ext4").arg("-q").arg(image));
        }
        let disk = Disk { path, image };
        disk.mount();
        disk
    }

    fn mount(&self) {
        let mut mount = Command::new("mount");
        match &self.image {
            Some(image) => run(mount.args(["-o", "loop"]).args([image, &self.path])),
            None => {
                mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs"]);
                run(mount.arg(&self.path));
            }
        }
    }

    /// Makes it read-only as the kernel does when a disk fails. An ordinary remount is refused while files are open.
    pub fn fail(&self) {
        run(Command::new("mount").args(["-o", "remount,abort"]).arg(&self.path));
    }

    /// Makes it writable again. No process may use it meanwhile.
    pub fn repair(&self) {
        run(Command::new("umount").arg(&self.path));
        self.mount();
    }

    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.path.join("filler")).unwrap();
        let mut size = 1 << 20;
        while size > 0 {
            if file.write_all(&vec![0; size]).is_err() {
                size /= 2;
            }
        }
    }

    pub fn make_room(&self) {
        std::fs::remove_file(self.path.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Runs a program, which must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
