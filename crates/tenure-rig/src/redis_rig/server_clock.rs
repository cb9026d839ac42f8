//! The wall clock of a private server, set by the test: histories with hours in them need no waiting, and every time that the
//! server reports is known exactly.
//!
//! A small library is compiled and preloaded into the server (`server_clock.c`). It reads the time from a file that the server
//! has mapped and that this module writes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::servers::Scratch;

const SOURCE: &str = include_str!("server_clock.c");
const COMPILER: &str = "cc";

/// The message if there is no C compiler.
pub const COMPILER_HINT: &str = "no C compiler: cc builds the clock of the server";

/// Whether this machine has the C compiler that [`ServerClock::new`] needs.
pub fn has_compiler() -> bool {
    let version = Command::new(COMPILER).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// A clock that only the test moves.
pub struct ServerClock {
    file: File,
    scratch: Scratch,
}

impl ServerClock {
    /// Builds the library. The clock shows `micros` since the Unix epoch.
    pub fn new(micros: u64) -> Self {
        let scratch = Scratch::in_memory();
        let source = scratch.path().join("server_clock.c");
        std::fs::write(&source, SOURCE).expect("a private directory");
        let output = Command::new(COMPILER)
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o"])
            .arg(scratch.path().join("server_clock.so"))
            .arg(source)
            .output()
            .expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let file = File::create(scratch.path().join("clock")).expect("a private directory");
        let clock = ServerClock { file, scratch };
        clock.set(micros);
        clock
    }

    /// Sets the time that the server reads from now on.
    pub fn set(&self, micros: u64) {
        self.file.write_all_at(&micros.to_ne_bytes(), 0).expect("it has been made for this");
    }

    /// What `env` needs before the server's program.
    pub(super) fn environment(&self) -> [String; 2] {
        let path = |file| self.scratch.path().join(file).display().to_string();
        [
            format!("LD_PRELOAD={}", path("server_clock.so")),
            format!("TENURE_TEST_CLOCK={}", path("clock")),
        ]
    }
}
