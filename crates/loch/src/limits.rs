//! All bounds of this crate.

use std::time::Duration;

pub use loch_engines::limits::{
    DATA_TABLE_BYTES_MAX, GRAIN_BYTES, KEY_BYTES_MAX, NODES_MAX, PINS_MAX, TABLE_NAME_BYTES_MAX,
    TABLES_MAX, VALUE_BYTES_DEFAULT, VALUE_BYTES_MAX, WORKERS_MAX,
};

/// The longest name of a node, in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 48;

/// The longest path of a socket: the operating system's address without the final zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The most session slots of a node: an incarnation has 24 bits of counter, and a slot 64 bytes.
pub const SESSIONS_MAX: u32 = 1 << 16;

/// Steps of a scan that a client does for a page, if they find few keys: a page is then a bounded
/// part of the table.
pub const SCAN_PAGE_STEPS: u32 = 16;

/// The longest message of the handshake: the page of a scan that has the longest key, whose bytes
/// are two characters each, behind as many others as a page has. The welcome to a cluster of
/// [`NODES_MAX`] nodes is shorter.
pub const FRAME_BYTES_MAX: usize = 256 << 10;

/// The most connections that a node holds open. Later ones wait in the listener's queue.
pub const CONNECTIONS_MAX: usize = 16 << 10;

/// The connections that can wait to be accepted.
pub const BACKLOG: i32 = 1024;

/// The bytes that are read from a connection at a time.
pub const READ_BYTES: usize = 4 << 10;

/// The memory of a node by default.
pub const NODE_BYTES_DEFAULT: u64 = 256 << 20;

/// The most threads of a node's agent.
pub const AGENT_THREADS_MAX: u16 = 64;

/// The session slots of a node by default.
pub const SESSIONS_DEFAULT: u32 = 1024;

/// The keys at which `contains_prefix` looks at a time: as many as go in one batch.
pub const PREFIX_KEYS: usize = loch_engines::limits::BATCH_KEYS;

/// The operations that `get_many` and `put_many` overlap by default.
pub const LANES_DEFAULT: usize = 16;

/// The most operations that a table can be told to overlap.
pub const LANES_MAX: usize = 4096;

/// A buffer longer than this is not kept for the next `get_into`.
pub const KEPT_BUF_BYTES_MAX: usize = 1 << 20;

/// The clients of each node that can have a table with workers open, by default.
pub const SERVED_SESSIONS_DEFAULT: u32 = 64;

/// The operations of a client in one kv-direct packet, by default.
pub const BATCH_DEFAULT: usize = 256;

/// A pilaf log is replaced by a snapshot when it has grown by this many bytes.
pub const PILAF_COMPACT_BYTES: u64 = 256 << 20;

/// The first sleep of a worker that its clients wake; while nobody wakes it, the next ones double.
pub const WORKER_REST: Duration = Duration::from_millis(100);
/// The longest of these sleeps. It only bounds the harm if a client dies while it wakes the worker.
pub const WORKER_REST_MAX: Duration = Duration::from_secs(1);
/// Every sleep of a worker with a log, which has to be written at some time.
pub const WORKER_REST_WITH_LOG: Duration = Duration::from_millis(10);

/// The first sleep of a worker that nobody wakes, in microseconds; the next ones double.
pub const WORKER_SLEEP_MIN_US: u64 = 50;

/// The longest sleep of a worker by default, in microseconds.
pub const WORKER_SLEEP_MAX_US_DEFAULT: u64 = 1000;

/// The longest sleep that a worker may be configured to have, in microseconds.
pub const WORKER_SLEEP_MAX_US: u64 = 1_000_000;

/// The turns of a busy worker after which its host looks for something else to do.
pub const WORKER_TURNS: u32 = 64;

/// How long a client waits for a reply before it sends its request again, in microseconds; doubles.
/// On shared memory only requests get lost that a worker had not taken when it died.
pub const RESEND_US: u64 = 2_000;
/// The same over a network, where connections break and datagrams get lost, but rarely.
pub const RESEND_NETWORK_US: u64 = 20_000;

/// The polls that a client makes for a reply before it yields its processor between two polls.
pub const PATIENT_POLLS: u32 = 200;

/// How long a table waits for the reports of workers.
pub const INSPECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The most broken invariants that a node reports.
pub const TOLD_MAX: usize = 64;
/// The longest description of a broken invariant, in bytes.
pub const TOLD_BYTES_MAX: usize = 256;

/// The pause before a node that is down is connected to again; doubles up to
/// [`NEIGHBOUR_PAUSE_MAX`].
pub const NEIGHBOUR_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
pub const NEIGHBOUR_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long connecting waits for nodes that are not up yet.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an operation goes on after it first had to start over.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time that a caller can choose to wait; longer times are cut to it.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a dropped table waits for its node's answer.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before a node that was down is tried again; doubles up to [`RETRY_PAUSE_MAX`].
pub const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two tries.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// How long a node waits for another node that is just starting on the same socket.
pub const SOCKET_LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a node waits for the region's last owner, which may be about to end.
pub const REGION_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// The shortest secret that nodes share, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;
/// The longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 4096;

/// How long the other side of a control connection has to prove which node it is.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections that have not proven this yet.
pub const HANDSHAKES_MAX: usize = 64;
/// The most of them from one address that is no node's. A node dials once at a time.
pub const HANDSHAKES_PER_SOURCE: usize = 4;

/// How long a probe may READ.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// The bytes at the beginning of a node's memory that a probe may READ.
pub const PROBE_BYTES: u64 = 1 << 20;

/// How long a node waits until another has accepted its link and said hello.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node waits for the answer to a request.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a node waits for connections to end before it answers that they have not ended. It can
/// execute other requests after that.
pub const FENCE_PATIENCE: Duration = Duration::from_millis(250);
/// The pause before a node is asked again for connections that had not ended.
pub const FENCE_PAUSE: Duration = Duration::from_millis(250);
/// How long a node that stops waits for its clients' connections to end.
pub const CLOSE_ENDING_MAX: Duration = Duration::from_secs(60);
/// How long a node waits for another to let a connection in. Memory that was never lent before is
/// registered first, which takes 100 ms a gigabyte.
pub const ADMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before a client asks again for a connection to a node that could not be reached;
/// doubles up to [`RECONNECT_PAUSE_MAX`].
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause: a node that is back is found within it.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long an operation waits for a try to connect to a node that has been lost for longer than
/// an operation may take. On hosts that are not overloaded a try takes milliseconds, if the node is
/// there.
pub const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// The time between two pings of a node that has nothing to ask.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A link is closed when nothing came over it for this time.
pub const LINK_SILENCE_MAX: Duration = Duration::from_secs(10);
/// The pause before a node that cannot be reached is dialed again; doubles up to
/// [`REDIAL_PAUSE_MAX`].
pub const REDIAL_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two dials.
pub const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the connections of a node's clients are kept when the node is silent.
pub const HOME_SILENCE_MAX: Duration = Duration::from_secs(600);

/// If dead sessions wait for a node that is away for this time, the log names the node.
pub const AWAY_MAX: Duration = Duration::from_secs(60);
/// The earlier processes of a node that are remembered, to detect that two processes are one node.
pub const PROCESSES_REMEMBERED: usize = 64;

/// The clients in one message between nodes; each takes up to a hundred bytes.
pub const CALLERS_MAX: usize = 512;
/// The most living clients of a node: its sessions and readers.
pub const LIVING_MAX: usize = 1 << 20;

/// The shortest time between two scrubs.
pub const SCRUB_INTERVAL: Duration = Duration::from_secs(2);
/// A scrub is followed by a pause of so many times its length: ten per cent of a core.
pub const SCRUB_TIMES: u32 = 9;
/// The longest sleep of a scrubber that waits for its bell. A client that dies while it rings wakes
/// nobody.
pub const SLEEP_MAX: Duration = Duration::from_secs(30);
/// The longest pause before a scrub is repeated whose grace period did not pass; the pause doubles.
pub const SCRUB_RETRY_MAX: Duration = Duration::from_secs(8);
/// How long a scrub waits, for each data table, for clients that are in the middle of an operation,
/// in microseconds.
pub const SCRUB_WAIT_US: u64 = 100_000;

/// The pause after a walk for what has expired that has removed something. A walk that removes
/// nothing doubles the pause, and so does a look that finds a table without values that expire.
pub const EXPIRY_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two such walks. Values that have expired and that nobody touches keep
/// their memory for about as long, and for as long as a walk takes.
pub const EXPIRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// A walk that finds nothing works for one part of so many of its time: two per cent of a core.
pub const EXPIRY_TIMES_IDLE: u32 = 50;
/// The same while it removes values: ten per cent of a core.
pub const EXPIRY_TIMES_BUSY: u32 = 10;

/// The most functions that can be registered with a table.
pub const FUNCTIONS_MAX: usize = 64;

/// The longest module of a function, in bytes.
pub const FUNCTION_MODULE_BYTES_MAX: usize = 1 << 20;

/// The most memory of a function, in pages of 64 KiB. A module of the Rust compiler begins with 17.
pub const FUNCTION_MEMORY_PAGES_MAX: u32 = 64;

/// The most elements of a function's table, through which indirect calls go.
pub const FUNCTION_TABLE_ELEMENTS_MAX: usize = 4096;

/// The bytes of a function's stack, which is a part of the caller's stack.
pub const FUNCTION_STACK_BYTES: usize = 256 << 10;

/// The fuel of a call, in instructions.
pub const FUNCTION_FUEL_BASE: u64 = 100_000;

/// The fuel of a call for each element.
pub const FUNCTION_FUEL_PER_ELEMENT: u64 = 1_000;

/// The most fuel of a call on any number of elements. Such a call keeps a processor from its other
/// clients for a few tenths of a second.
pub const FUNCTION_FUEL_MAX: u64 = 200_000_000;
