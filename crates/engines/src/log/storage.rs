//! Where segments are kept: what a log needs of a disk, and no more.

/// A disk that did not do what it was asked. Whatever the reason, the log that hears of it stops
/// for good: after a failed fsync nobody knows what is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} log segment {segment} failed: {reason}")]
pub struct StorageError {
    /// What was to be done, as a participle.
    pub what: &'static str,
    /// The segment.
    pub segment: u64,
    /// What the disk said.
    pub reason: String,
}

/// Numbered segments of bytes that only grow.
///
/// # Promises
/// * What was synced is there after the process died or the host lost its power.
/// * What was appended is there after the process died; after the host lost its power any part of
///   what was not synced may be missing, not only its end, and anything may stand in its place.
/// * [`Storage::create`] and [`Storage::remove`] are durable when they return.
/// * Between [`Storage::create`] and [`Storage::seal`] no failure to write is lost: a sync that
///   succeeds says that **all** that was appended is on the disk.
///
/// # No promise
/// * What a process reads of a segment that it has not made is what was appended, not what is on
///   the disk. The part that was not synced may be missing after the host lost its power *whatever
///   is synced until then*: the disk may have refused it when nobody was there to be told, and
///   since then it counts as written. So only the process that made a segment appends to it and
///   syncs it.
pub trait Storage {
    /// The segments there are, in ascending order.
    ///
    /// # Errors
    /// The disk's.
    fn segments(&mut self) -> Result<Vec<u64>, StorageError>;

    /// All bytes of a segment.
    ///
    /// # Errors
    /// The disk's.
    fn read(&mut self, segment: u64) -> Result<Vec<u8>, StorageError>;

    /// Makes an empty segment, and opens it to be appended to.
    ///
    /// # Errors
    /// The disk's; one that exists is an error.
    fn create(&mut self, segment: u64) -> Result<(), StorageError>;

    /// Appends to a segment. Does not wait for the disk.
    ///
    /// # Errors
    /// The disk's; a segment that this storage has not made, or that is sealed, is an error.
    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Begins to make durable what a segment holds by now, and does not wait for it. One at a time.
    ///
    /// # Errors
    /// As [`Storage::append`].
    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError>;

    /// Whether the sync that was begun last is over.
    ///
    /// # Errors
    /// The disk's, of the sync too.
    fn is_synced(&mut self) -> Result<bool, StorageError>;

    /// Makes durable what a segment holds by now, and waits for it.
    ///
    /// # Errors
    /// As [`Storage::append`].
    fn sync(&mut self, segment: u64) -> Result<(), StorageError>;

    /// As [`Storage::sync`], and nothing is appended to the segment any more.
    ///
    /// # Errors
    /// As [`Storage::append`].
    fn seal(&mut self, segment: u64) -> Result<(), StorageError>;

    /// Removes a segment.
    ///
    /// # Errors
    /// The disk's.
    fn remove(&mut self, segment: u64) -> Result<(), StorageError>;
}
