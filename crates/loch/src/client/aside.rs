//! Work that makes its thread wait, on a thread of its own: the lanes of the caller go on
//! meanwhile.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use loch_fabric::Fabric;
use loch_fabric::limits::LANES_PAUSE_US_MAX;

use crate::{Error, Result};

/// The first pause of a lane that waits for such work, in microseconds; the next ones double.
const PAUSE_US: u64 = 10;
/// The longest one: the thread may sleep during it.
const PAUSE_US_MAX: u64 = LANES_PAUSE_US_MAX + 1;

/// Work under way on a thread of its own. The work goes on if this is dropped.
pub(super) struct Aside<T> {
    outcome: Receiver<Result<T>>,
}

impl<T: Send + 'static> Aside<T> {
    /// Begins it.
    ///
    /// # Errors
    /// [`Error::Os`] if the process cannot have another thread.
    pub fn begin(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (sender, outcome) = mpsc::channel();
        // The receiver may be gone.
        let run = move || drop(sender.send(work()));
        let thread = std::thread::Builder::new().name("loch-aside".into()).spawn(run);
        thread.map_err(Error::os("start a thread of", Path::new("this process")))?;
        Ok(Self { outcome })
    }

    /// The outcome, if there is one.
    pub fn take(&self) -> Option<Result<T>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => has_panicked(),
        }
    }

    /// Has the calling thread wait for the outcome until that time.
    pub fn wait(&self, until: Instant) -> Option<Result<T>> {
        let left = until.saturating_duration_since(Instant::now());
        match self.outcome.recv_timeout(left.max(Duration::from_millis(1))) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => has_panicked(),
        }
    }
}

fn has_panicked() -> ! {
    panic!("a thread that worked for this one has panicked");
}

/// Does work on a thread of its own, and waits for its outcome in a lane.
///
/// # Errors
/// Those of the work, and [`Error::Os`].
pub(super) async fn aside<T: Send + 'static>(
    fabric: &impl Fabric,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (work, mut pause_us) = (Aside::begin(work)?, PAUSE_US);
    loop {
        if let Some(outcome) = work.take() {
            return outcome;
        }
        fabric.pause(pause_us).await;
        pause_us = (2 * pause_us).min(PAUSE_US_MAX);
    }
}
