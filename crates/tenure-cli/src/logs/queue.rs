//! Lines on their way to stderr, written by a thread of their own: whoever does not read them (a pager, a full pipe) must
//! not stop a renewal.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// So many lines wait to be read; what comes then is lost.
const MOST: usize = 1024;
/// At our end a reader gets so long to take what is there.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub(crate) struct Queue {
    lines: SyncSender<Word>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Word {
    Line(Vec<u8>),
    End,
}

/// Starts the thread that writes.
pub(crate) fn start() -> (Queue, Lines) {
    let (lines, inbox) = sync_channel::<Word>(MOST);
    let (finished, done) = sync_channel(1);
    let writes = move || {
        while let Ok(Word::Line(line)) = inbox.recv() {
            // Nothing is left to tell it to if stderr is gone.
            let _ = io::stderr().write_all(&line);
        }
        let _ = finished.send(());
    };
    let thread = std::thread::Builder::new().name("tenure-log".to_owned()).spawn(writes).ok();
    (Queue { lines: lines.clone(), done, thread }, Lines(lines))
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A queue that is full and not read is not waited for.
        if self.thread.is_some() && self.lines.try_send(Word::End).is_ok() {
            let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(PATIENCE);
        }
    }
}

/// Where log lines go.
#[derive(Clone, Debug)]
pub(crate) struct Lines(SyncSender<Word>);

impl Lines {
    /// Queues one line, with its newline. Never waits; a line that finds the queue full is lost.
    pub(crate) fn send(&self, line: Vec<u8>) {
        let _ = self.0.try_send(Word::Line(line));
    }
}

/// One line, sent when it is whole.
pub(crate) struct OneLine<'a>(&'a Lines, Vec<u8>);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = OneLine<'a>;

    fn make_writer(&'a self) -> OneLine<'a> {
        OneLine(self, Vec::new())
    }
}

impl Write for OneLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for OneLine<'_> {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.1);
        if !line.is_empty() {
            self.0.send(line);
        }
    }
}
