//! Where Drop does not run (SIGKILL, Ctrl-C) the kernel closes our end of a pipe, and this process does the rest.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use super::place::DISK;
use super::{freezer, processes};

pub(crate) struct Undertaker(Child);

impl Undertaker {
    pub(crate) fn new(mark: &str, directory: &Path) -> Undertaker {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["undertaker", mark]).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Undertaker(command.process_group(0).spawn().unwrap())
    }
}

impl Drop for Undertaker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Inside that process.
pub(crate) fn play(mark: &str, directory: &Path) -> ExitCode {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // What is frozen does not even die.
    freezer::thaw(mark);
    processes::exterminate(mark);
    freezer::remove(mark);
    let _ = Command::new("umount").args(["-q", "-l"]).arg(directory.join(DISK)).status();
    let _ = std::fs::remove_dir_all(directory);
    ExitCode::SUCCESS
}
