//! What others learn while the node prepares its memory: lines in its log if it takes long, and the
//! replies to clients.
//!
//! A node listens before its memory is there, so that no other node takes its socket. Until the
//! server begins, a thread accepts every connection, says that the node prepares, and closes the
//! connection. The client tries again for as long as it has time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::listener::Listener;
use super::server::StopSwitch;
use crate::limits::FRAME_BYTES_MAX;
use crate::session::wire::{self, Code, Refused, Reply};
use crate::{Error, Result};
use loch_engines::size::InWords;

/// How long a client has to say hello. After that it is answered all the same.
const HELLO_TIMEOUT: Duration = Duration::from_millis(100);

/// A line tells of the progress each time that this has passed.
const PROGRESS_EVERY_S: u64 = 2;

/// How far the memory is prepared.
pub(super) struct Progress {
    bytes: u64,
    begun: Instant,
    /// The seconds after `begun` from which on the next line is due.
    due_s: AtomicU64,
}

impl Progress {
    /// Begins with none of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, begun: Instant::now(), due_s: AtomicU64::new(PROGRESS_EVERY_S) }
    }

    /// The time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Logs that `done` bytes are prepared, if a line is due.
    pub fn tell(&self, done: u64) {
        if self.is_due(self.begun.elapsed().as_secs()) {
            let percent = (done as u128 * 100 / self.bytes.max(1) as u128) as u64;
            let all = InWords(self.bytes);
            tracing::info!("the node prepares its memory: {percent} % of {all} is ready");
        }
    }

    /// Returns to one thread, once a period, that a line is due.
    fn is_due(&self, elapsed_s: u64) -> bool {
        let due = self.due_s.load(Ordering::Relaxed);
        let next = elapsed_s + PROGRESS_EVERY_S;
        elapsed_s >= due
            && self.due_s.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Runs `work`, which prepares `bytes` of memory, and answers clients meanwhile.
///
/// # Errors
/// The errors of `work`; [`Error::Os`] if the system has no descriptor to end the thread with.
pub(super) fn serve_refusals<T>(
    listener: &Listener,
    bytes: u64,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = StopSwitch::new().map_err(Error::os("make an event for", listener.path()))?;
    std::thread::scope(|scope| {
        scope.spawn(|| answer(listener, bytes, &done));
        let _done = EndOnDrop(&done);
        work()
    })
}

/// Ends the thread, even if the work panics.
struct EndOnDrop<'a>(&'a StopSwitch);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn answer(listener: &Listener, bytes: u64, done: &StopSwitch) {
    let text = format!("it prepares its memory ({}): try again, or wait longer", InWords(bytes));
    let refusal = wire::encode(&Reply::Refused(Refused::new(Code::Preparing, text)));
    loop {
        let mut fds = [
            PollFd::new(&listener.fd, PollFlags::IN),
            PollFd::from_borrowed_fd(done.event(), PollFlags::IN),
        ];
        // The server that follows sees and reports errors of the listener.
        let is_over = poll(&mut fds, None).is_err() || !fds[1].revents().is_empty();
        if is_over {
            return;
        }
        // One client for each look at `done`: clients that keep coming do not hold up the node.
        if let Ok(Some(stream)) = listener.accept() {
            let mut stream = UnixStream::from(stream);
            let _ = refuse(&mut stream, &refusal);
        }
    }
}

/// Refuses a client. A client that sends nothing is refused after a time-out.
fn refuse(stream: &mut UnixStream, refusal: &[u8]) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    // Bytes that are unread when the connection is closed would make the kernel drop the reply.
    let mut hello = [0; FRAME_BYTES_MAX];
    let _ = stream.read(&mut hello);
    stream.write_all(refusal)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::session::connection::Connection;

    #[test]
    fn a_start_of_more_than_two_seconds_tells_of_its_progress_every_two_seconds() {
        let progress = Progress::new(16 << 30);
        let due: Vec<u64> = (0..9).filter(|second| progress.is_due(*second)).collect();
        assert_eq!(due, [2, 4, 6, 8]);
        assert!(!progress.is_due(8), "another thread has told of it");
        let late = Progress::new(16 << 30);
        assert!(late.is_due(7) && !late.is_due(8) && late.is_due(9), "one line for a long step");
    }

    #[test]
    fn a_client_that_comes_while_a_node_prepares_is_told_so() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = Listener::open(&socket).unwrap();
        let attach = || {
            let begun = Instant::now();
            let failed = Connection::open(&socket, false, begun, Duration::from_secs(60));
            (failed.err().map(|error| error.to_string()), begun.elapsed())
        };
        let told = serve_refusals(&listener, 3 << 30, || {
            // A client that says nothing does not delay others for long, and is answered too.
            let mut silent = UnixStream::connect(&socket).unwrap();
            let told = attach();
            assert!(silent.read(&mut [0; FRAME_BYTES_MAX]).unwrap() > 0);
            Ok(told)
        });
        let (told, after) = told.unwrap();
        let told = told.expect("there is no node yet");
        assert!(told.contains("it prepares its memory (3GiB)"), "{told}");
        assert!(after < Duration::from_secs(30), "{after:?}");
    }

    #[test]
    fn clients_that_keep_coming_do_not_hold_up_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = Listener::open(&socket).unwrap();
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let silent = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(20);
                let mut clients = Vec::new();
                while !has_begun.load(Ordering::Relaxed) && Instant::now() < until {
                    clients.push(UnixStream::connect(&socket).unwrap());
                    std::thread::sleep(HELLO_TIMEOUT / 4);
                }
                has_begun.load(Ordering::Relaxed)
            });
            let work = || {
                std::thread::sleep(2 * HELLO_TIMEOUT);
                Ok(())
            };
            serve_refusals(&listener, 1 << 30, work).unwrap();
            has_begun.store(true, Ordering::Relaxed);
            assert!(silent.join().unwrap(), "the node begins while clients come");
        });
    }
}
