//! The storage of segments: the part of a disk that a log needs.

/// A disk did not do what it was asked to do. Whatever the reason, the log that gets this error
/// stops for good: after a failed fsync nobody knows which bytes are on the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} log segment {segment} failed: {reason}")]
pub struct StorageError {
    /// The failed action, as a participle.
    pub what: &'static str,
    /// The segment.
    pub segment: u64,
    /// The disk's error.
    pub reason: String,
}

/// Numbered segments of bytes. A segment only grows.
///
/// # Promises
/// * Synced bytes are there after the process died or the host lost its power.
/// * Appended bytes are there after the process died. After the host lost its power any part of the
///   bytes that were not synced may be missing, not only the end, and any bytes may stand in their
///   place.
/// * [`Storage::create`] and [`Storage::remove`] are durable when they return.
/// * Between [`Storage::create`] and [`Storage::seal`] no failure to write is lost: a sync that
///   succeeds says that **all** appended bytes are on the disk.
///
/// # No promise
/// * If a process reads a segment that another process made, it reads the bytes that were appended,
///   not the bytes that are on the disk. The part that was not synced may be missing after the host
///   lost its power *whatever is synced until then*: the disk may have refused it when no process
///   was there to learn of it, and since then it counts as written. So only the process that made a
///   segment appends to it and syncs it.
pub trait Storage {
    /// The numbers of all segments, in ascending order.
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
    /// The disk's errors; an existing segment is an error.
    fn create(&mut self, segment: u64) -> Result<(), StorageError>;

    /// Appends to a segment. Does not wait for the disk.
    ///
    /// # Errors
    /// The disk's errors; a segment that this storage has not made, or that is sealed, is an error.
    fn append(&mut self, segment: u64, bytes: &[u8]) -> Result<(), StorageError>;

    /// Begins to make durable the bytes that a segment has now, and does not wait for that. One
    /// sync at a time.
    ///
    /// # Errors
    /// As [`Storage::append`].
    fn begin_sync(&mut self, segment: u64) -> Result<(), StorageError>;

    /// Whether the sync that was begun last has ended.
    ///
    /// # Errors
    /// The disk's errors, also those of the sync.
    fn is_synced(&mut self) -> Result<bool, StorageError>;

    /// Makes durable the bytes that a segment has now, and waits for that.
    ///
    /// # Errors
    /// As [`Storage::append`].
    fn sync(&mut self, segment: u64) -> Result<(), StorageError>;

    /// As [`Storage::sync`]; after that no bytes are appended to the segment.
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
