//! Every bound of the fabric, in one place.

/// READs that one doorbell may carry: the most candidate buckets a key has.
pub const DOORBELL_READS_MAX: usize = 4;

/// Words of one READ of a bucket.
pub const BUCKET_WORDS_MAX: usize = 4;

/// Words of one READ whose result is returned by value: a cache line.
pub const READ_WORDS_MAX: usize = 8;

/// Bytes of one READ or WRITE.
pub const TRANSFER_BYTES_MAX: usize = 1 << 31;

/// Regions an endpoint can reach: the data table identifier of an index entry has eight bits.
pub const REGIONS_MAX: usize = 256;

/// Cache lines a posted READ prefetches on `shm`; beyond them the hardware's stream prefetcher is
/// ahead of any hint.
pub const PREFETCH_LINES_MAX: usize = 16;

/// Bytes of a cache line.
pub const CACHE_LINE_BYTES: usize = 64;
