//! The queue of log lines to stderr, written by a separate thread: a reader that does not read (a pager, a full pipe) must not
//! stop a renewal.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The most lines in the queue; further lines are lost.
const MAX_QUEUED_LINES: usize = 1024;
/// How long the queue waits at the end for the reader to take what is left.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub(crate) struct LogQueue {
    lines: SyncSender<QueueItem>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum QueueItem {
    Line(Vec<u8>),
    End,
}

/// Starts the writing thread.
pub(crate) fn start() -> (LogQueue, LineWriter) {
    let (lines, inbox) = sync_channel::<QueueItem>(MAX_QUEUED_LINES);
    let (finished, done) = sync_channel(1);
    let write_lines = move || {
        while let Ok(QueueItem::Line(line)) = inbox.recv() {
            // If stderr is gone, the error cannot be reported.
            let _ = io::stderr().write_all(&line);
        }
        let _ = finished.send(());
    };
    let thread = std::thread::Builder::new().name("tenure-log".to_owned()).spawn(write_lines).ok();
    (LogQueue { lines: lines.clone(), done, thread }, LineWriter(lines))
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        // A queue that is full because its reader does not read is not waited for.
        if self.thread.is_some() && self.lines.try_send(QueueItem::End).is_ok() {
            let _: Result<(), RecvTimeoutError> = self.done.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// A handle that puts log lines into the queue.
#[derive(Clone, Debug)]
pub(crate) struct LineWriter(SyncSender<QueueItem>);

impl LineWriter {
    /// Queues one line, with its newline. Never blocks; if the queue is full, the line is lost.
    pub(crate) fn send(&self, line: Vec<u8>) {
        let _ = self.0.try_send(QueueItem::Line(line));
    }
}

/// One line, sent when it is complete.
pub(crate) struct QueuedLine<'a>(&'a LineWriter, Vec<u8>);

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = QueuedLine<'a>;

    fn make_writer(&'a self) -> QueuedLine<'a> {
        QueuedLine(self, Vec::new())
    }
}

impl Write for QueuedLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for QueuedLine<'_> {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.1);
        if !line.is_empty() {
            self.0.send(line);
        }
    }
}
