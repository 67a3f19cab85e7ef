//! Every bound of the fabric, in one place.

#![cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "most are those of verbs"))]

use std::time::Duration;

/// READs that one doorbell may carry: the largest number of candidate buckets of a key.
pub const DOORBELL_READS_MAX: usize = 4;

/// Words of one READ of a bucket.
pub const BUCKET_WORDS_MAX: usize = 4;

/// Words of one READ whose result is returned by value: a cache line.
pub const READ_WORDS_MAX: usize = 8;

/// The bytes that shared memory and RDMA bring in the time of a round trip.
pub const ROUND_TRIP_BYTES: usize = 4096;

/// The bytes that TCP brings in the time of a round trip, which takes its ends some ten
/// microseconds, and a data centre's network more.
pub const TCP_ROUND_TRIP_BYTES: usize = 64 << 10;

/// Bytes of the longest WRITE over TCP that is copied when it is posted: a packet of some dozens of
/// short operations. A client that would have more than [`TCP_UNAWAITED_BYTES_MAX`] of them waiting
/// at a node that takes nothing sends the request again later.
pub(crate) const TCP_INLINE_BYTES: usize = 4096;

/// Bytes of one READ or WRITE.
pub const TRANSFER_BYTES_MAX: usize = 1 << 31;

/// Regions an endpoint can reach: the data table identifier of an index entry has eight bits.
pub const REGIONS_MAX: usize = 256;

/// Cache lines a posted READ prefetches on `shm`; beyond them the hardware's stream prefetcher is
/// ahead of any hint.
pub const PREFETCH_LINES_MAX: usize = 16;

/// Bytes of a cache line.
pub const CACHE_LINE_BYTES: usize = 64;

/// The longest pause that leaves the other lanes of a thread their turns: during a longer one the
/// thread of `shm` sleeps.
pub const LANES_PAUSE_US_MAX: u64 = 500;

/// Ranges of a region that one connection may have rights to: a few for each table.
pub const GRANTS_MAX: usize = 4096;

/// Time to wait for an acknowledgement, as an exponent: `4.096 us << 15` is 134 ms. Cards wait up
/// to four times that. So with [`RETRY_COUNT`] a vanished peer is noticed after a second, and after
/// four at the latest; a peer that only stood still for half a second is not given up.
pub(crate) const TIMEOUT_EXPONENT: u8 = 15;

/// How often a packet is sent again before the connection is given up. Seven is the maximum, but
/// Soft-RoCE takes it for "for ever", which seven means for a receiver that is not ready.
pub(crate) const RETRY_COUNT: u8 = 6;

/// A connection that awaits a completion is given up when none has come for this time, which is
/// twice the time after which a card must report that the peer is gone. Soft-RoCE may never report
/// it: when a port goes down its completions can be lost, while the connection seems ready to send.
pub(crate) const STALL_US_MAX: u64 =
    2 * 4 * (RETRY_COUNT as u64 + 1) * ((4096 << TIMEOUT_EXPONENT) / 1000);

/// How often a request is sent again if the peer was not ready for it. Only a card that must page
/// memory in refuses one-sided verbs in this way; seven would mean for ever.
pub(crate) const RNR_RETRY_COUNT: u8 = 6;

/// The pause before such a request is sent again, as a code: 12 is 640 us.
pub(crate) const MIN_RNR_TIMER: u8 = 12;

/// Routers that a packet may pass.
pub(crate) const HOP_LIMIT: u8 = 64;

/// GIDs of a port that are looked at; their indexes have eight bits where packets name them.
pub(crate) const GID_ENTRIES_MAX: i32 = 255;

/// READs and atomics that one connection has under way at a time, if the cards allow it.
pub(crate) const RD_ATOMIC_MAX: u8 = 16;

/// Work requests of a connection's send queue. A longer queue would hide no more latency: a card
/// serves a connection's requests one after the other.
pub(crate) const SEND_QUEUE_WRS: u32 = 128;

/// Completions of an endpoint's queue, which bounds the work requests of all its connections.
pub(crate) const COMPLETIONS_MAX: u32 = 4096;

/// Bytes that a work request is asked to carry in itself: a note of a cache line with room to
/// spare. More would make every place of the send queue larger.
pub(crate) const INLINE_BYTES_WANTED: u32 = 128;

/// Entries of a completion queue that never gets any completion.
pub(crate) const PASSIVE_COMPLETIONS: u32 = 16;

/// The smallest piece of memory that is worth a registration of its own, so that several threads
/// can register.
pub(crate) const REGISTER_BYTES_MIN: u64 = 1 << 30;

/// Threads that register memory: pinning pages does not get faster with more.
pub(crate) const REGISTER_THREADS_MAX: usize = 8;

/// Bytes of an endpoint's buffers, by class: for words, for values of usual size, and for the
/// pieces that long transfers are cut into.
pub(crate) const SLOT_BYTES: [usize; 3] = [64, 4096, 65536];

/// How many there are of each: together a huge page. The long ones keep a link of 200 Gbit/s busy
/// for 40 us, which is many round trips.
pub(crate) const SLOT_COUNTS: [usize; 3] = [2048, 224, 16];

/// One of this many work requests in a row is signaled: a quarter of the send queue.
pub(crate) const SIGNAL_EVERY: u32 = SEND_QUEUE_WRS / 4;

/// Completions taken at a time.
pub(crate) const COMPLETION_BATCH: usize = 32;

/// Polls without a completion after which the processor is offered to others: some 10 us, a few
/// round trips of a fast network.
pub(crate) const EMPTY_POLLS_MAX: u32 = 200;

/// How long an unreliable WRITE that has left may still be on its way. No completion tells when it
/// arrives. This is an assumption about networks: their switches drop packets that they cannot pass
/// on in milliseconds.
pub(crate) const UNRELIABLE_LINGER_US: u64 = 100_000;

/// Datagrams that have arrived and wait to be taken; further ones are lost.
pub(crate) const RECEIVES: usize = 256;

/// Datagrams that can be on their way to the card.
pub(crate) const SENDS: usize = 128;

/// Polls for a free send buffer before a datagram is lost: a card needs microseconds.
pub(crate) const SEND_POLLS_MAX: u32 = 1_000_000;

/// Hosts to which one thread's datagrams remember the way. Beyond that all ways are looked up
/// again.
pub(crate) const WAYS_MAX: usize = 4096;

/// How long a thread waits before it looks again for the way to a host that was not found.
pub(crate) const WAY_RETRY: Duration = Duration::from_secs(5);

/// Bytes of the longest message through a mailbox: an InfiniBand MTU, as on the other backends.
pub const MAIL_MESSAGE_BYTES_MAX: usize = 4096;

/// Senders that one mailbox can have rings for.
pub const MAIL_SENDERS_MAX: u32 = 1 << 16;

/// Bytes of a mailbox's ring: the least is room for one of the longest messages, the most is more
/// than any sender has under way to one receiver.
pub const MAIL_RING_BYTES: std::ops::RangeInclusive<u32> = 8192..=1 << 24;

/// Peers that the messages of one thread know.
pub const MAIL_PEERS_MAX: usize = 1 << 16;

/// How long a thread that waits for others spins if nobody else needs its core. After that it
/// yields between two looks.
pub(crate) const WAIT_SPIN: Duration = Duration::from_micros(20);
/// How long such a thread looks before it sleeps.
pub(crate) const WAIT_AWAKE: Duration = Duration::from_micros(500);
/// A yield that is shorter gave the core to nobody: two switches between threads take longer.
pub(crate) const YIELD_SHORT: Duration = Duration::from_micros(2);
/// A yield that is longer gave the core to a thread that does not give it back: a client or a
/// worker waits sooner.
pub(crate) const YIELD_LONG: Duration = Duration::from_micros(1000);
/// How long after such a yield the thread does not yield again.
pub(crate) const YIELD_TRY_AGAIN: Duration = Duration::from_millis(100);
/// The longest first sleep of a thread after it was awake.
pub(crate) const NAP: Duration = Duration::from_millis(1);
/// The longest sleep of a thread whose lanes all wait for others. Lanes have times at which they do
/// something by themselves, as a client that sends a request again.
pub(crate) const LANES_SLEEP_MAX: Duration = Duration::from_millis(1);
/// The nap of a thread that is no lanes' executor, each time one of its tasks pauses.
pub(crate) const TASK_NAP: Duration = Duration::from_micros(100);

/// Bytes of the longest READ whose aligned words are whole on every fabric: each was in memory at
/// one moment. Of a longer READ, as of a value, a word may be torn. Over TCP such a READ goes
/// straight from the region to the socket, which costs a third less than a copy before that; for
/// shorter ones the copy costs less.
pub const WHOLE_WORDS_BYTES_MAX: usize = 64 << 10;

/// Bytes that a connection over TCP receives at a time, and that it may hold while it waits.
pub(crate) const TCP_CHUNK_BYTES: usize = 128 << 10;

/// Bytes of the longest records that an encrypted connection sends, with length and tag. A record
/// can be opened when all of it has come, and is in the first cache of a processor until then.
pub(crate) const TCP_RECORD_BYTES: usize = 16 << 10;

/// WRITEs from this length on go straight from the socket into the region, READs straight into
/// their buffers. A copy of a shorter one costs less than a system call of its own.
pub const TCP_STRAIGHT_BYTES_MIN: usize = 16 << 10;

/// Bytes that a connection moves in one turn, each way.
pub(crate) const TCP_TURN_BYTES: usize = 1 << 20;

/// Events that a thread of an agent takes at a time.
pub(crate) const TCP_EVENTS: usize = 256;

/// How long a client that was let in may take to connect.
pub(crate) const TCP_TOKEN_LIFE: Duration = Duration::from_secs(30);

/// How long a connection may take to say who it is.
pub(crate) const TCP_HELLO_PATIENCE: Duration = Duration::from_secs(4);

/// Connections of a thread that have not said who they are, and no more than one in
/// [`TCP_STRANGERS_DESCRIPTORS`] of the descriptors that the process may have.
pub(crate) const TCP_STRANGERS_MAX: usize = 1024;

/// See [`TCP_STRANGERS_MAX`].
pub(crate) const TCP_STRANGERS_DESCRIPTORS: usize = 4;

/// So many of them give way at a time if a thread has all that it may have.
pub(crate) const TCP_STRANGERS_GIVE_WAY: usize = 32;

/// The connections to a port that can wait to be accepted, if the system allows it
/// (`net.core.somaxconn`).
pub(crate) const TCP_BACKLOG: i32 = 4096;

/// The connections that a thread accepts before others have their turns.
pub(crate) const TCP_ACCEPTS_PER_TURN: usize = 64;

/// How long no connection is accepted when the system has no descriptors left.
pub(crate) const TCP_ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of requests that nobody awaits and that wait to be sent to a node over TCP. Beyond that a
/// node takes no more of them. The number of lanes bounds all other requests.
pub(crate) const TCP_UNAWAITED_BYTES_MAX: u64 = 1 << 20;

/// Bytes of messages that wait in a mailbox over TCP, beyond which the connections with more wait.
pub(crate) const TCP_MAILBOX_BYTES_MAX: usize = 4 << 20;

/// How long a connection waits for a worker whose mailbox is full.
pub(crate) const TCP_MAILBOX_PAUSE: Duration = Duration::from_millis(1);

/// Bytes that workers have pushed to a client that takes nothing, beside those that its reply slots
/// hold. What does not fit is lost.
pub(crate) const TCP_PUSHED_BYTES_MAX: usize = 256 << 10;

/// Bytes of messages that a client over TCP has received and not looked at.
pub(crate) const TCP_ARRIVED_BYTES_MAX: usize = 4 << 20;

/// Requests without answers in a row, after which one with an answer follows: it says that they are
/// over.
pub(crate) const TCP_UNANSWERED_MAX: u32 = 64;

/// How long requests wait for others that leave with them.
pub(crate) const TCP_COMPANY_WAIT: Duration = Duration::from_micros(10);

/// How often a client that waits for messages without lanes looks for them.
pub(crate) const TCP_LISTEN_EVERY: Duration = Duration::from_micros(5);

/// How often a client looks whether connections at which nobody waits broke.
pub(crate) const TCP_LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long a node may be silent while something is under way on a connection. Then the connection
/// is given up, as one over verbs is.
pub(crate) const TCP_SILENCE_MAX: Duration = Duration::from_secs(3);

/// The time in which one line is logged of each kind of line that other hosts can cause.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);
