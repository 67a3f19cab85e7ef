//! The thread that syncs one file at a time.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use super::files::Handle;

/// The thread, and its last job.
#[derive(Debug)]
pub(super) struct Syncer<H> {
    jobs: Option<Sender<H>>,
    results: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<()>>,
    /// The segment whose sync has begun and not ended.
    under_way: Option<u64>,
}

impl<H: Handle> Syncer<H> {
    pub fn start() -> io::Result<Self> {
        let (jobs, work) = channel::<H>();
        let (done, results) = channel();
        let syncs = move || {
            for file in work {
                if done.send(file.sync_data()).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("loch-log-sync".into()).spawn(syncs)?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread), under_way: None })
    }

    /// Begins to sync a segment's file.
    ///
    /// # Panics
    /// If a sync is under way.
    pub fn begin(&mut self, segment: u64, file: H) -> io::Result<()> {
        assert!(self.under_way.is_none(), "one sync at a time");
        let jobs = self.jobs.as_ref().expect("it is taken when this is dropped");
        jobs.send(file).map_err(|_| gone())?;
        self.under_way = Some(segment);
        Ok(())
    }

    /// The segment whose sync was begun and has not been seen to end.
    pub fn under_way(&self) -> Option<u64> {
        self.under_way
    }

    /// The result of the sync that is under way. Returns `None` if it has not ended.
    pub fn ended(&mut self) -> Option<io::Result<()>> {
        let result = match self.results.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(gone()),
            Ok(result) => result,
        };
        self.under_way = None;
        Some(result)
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that syncs is gone")
}

impl<H> Drop for Syncer<H> {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // The thread ends with its last job, whose result is not needed.
            let _ = thread.join();
        }
    }
}
