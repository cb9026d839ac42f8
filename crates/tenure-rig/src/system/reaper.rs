//! A process that cleans up where Drop does not run (SIGKILL, Ctrl-C): the kernel closes the test's end of a pipe, and this
//! process kills what the trial has left.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use super::trial_store::DISK;
use super::{freezer, processes};

pub struct CleanupProcess(Child);

impl CleanupProcess {
    pub fn new(mark: &str, directory: &Path) -> CleanupProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["undertaker", mark]).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        CleanupProcess(command.process_group(0).spawn().unwrap())
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs inside the cleaning process.
pub fn clean_up(mark: &str, directory: &Path) -> ExitCode {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    // Frozen processes do not die.
    freezer::thaw(mark);
    processes::kill_marked(mark);
    freezer::remove(mark);
    let _ = Command::new("umount").args(["-q", "-l"]).arg(directory.join(DISK)).status();
    let _ = std::fs::remove_dir_all(directory);
    ExitCode::SUCCESS
}
