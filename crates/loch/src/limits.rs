//! Every bound of this crate, in one place.

use std::time::Duration;

pub use loch_engines::limits::{
    DATA_TABLE_BYTES_MAX, KEY_BYTES_MAX, NODES_MAX, TABLE_NAME_BYTES_MAX, TABLES_MAX,
    VALUE_BYTES_DEFAULT, VALUE_BYTES_MAX, WORKERS_MAX,
};

/// Bytes of a node's name.
pub const NODE_NAME_BYTES_MAX: usize = 48;

/// Bytes of a socket's path: what the operating system's address holds, less the final zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Session slots of a node: an incarnation has 24 bits of counter, and a slot 64 bytes.
pub const SESSIONS_MAX: u32 = 1 << 16;

/// Bytes of one message of the handshake. The longest is the welcome to a cluster of
/// [`NODES_MAX`] nodes.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

/// Connections a node holds open; whoever comes after that waits in the listener's queue.
pub const CONNECTIONS_MAX: usize = 16 << 10;

/// Connections that wait to be accepted.
pub const BACKLOG: i32 = 1024;

/// Bytes read from a connection at a time.
pub const READ_BYTES: usize = 4 << 10;

/// Memory of a node that is not told otherwise.
pub const NODE_BYTES_DEFAULT: u64 = 256 << 20;

/// Session slots of a node that is not told otherwise.
pub const SESSIONS_DEFAULT: u32 = 1024;

/// Operations that `get_many` and `put_many` overlap, unless the table is told otherwise.
pub const LANES_DEFAULT: usize = 16;

/// Operations that a table can be told to overlap.
pub const LANES_MAX: usize = 4096;

/// A buffer longer than this is not kept for the next `get_into`.
pub const KEPT_BUF_BYTES_MAX: usize = 1 << 20;

/// Clients of each node that can have a table open which workers serve, unless it is told
/// otherwise.
pub const SERVED_SESSIONS_DEFAULT: u32 = 64;

/// Operations of a client in one kv-direct packet, unless it is told otherwise.
pub const BATCH_DEFAULT: usize = 256;

/// A pilaf log is replaced by a snapshot when it has grown by so many bytes.
pub const PILAF_COMPACT_BYTES: u64 = 256 << 20;

/// How long a worker looks for work before it offers its processor to others in between.
pub const WORKER_SPIN: Duration = Duration::from_micros(20);

/// How long it looks before it sleeps.
pub const WORKER_AWAKE: Duration = Duration::from_micros(500);

/// How long it sleeps first, in microseconds; doubles.
pub const WORKER_SLEEP_MIN_US: u64 = 50;

/// The longest that it sleeps, in microseconds, unless the node is told otherwise.
pub const WORKER_SLEEP_MAX_US_DEFAULT: u64 = 1000;

/// A worker may not be told to sleep longer than this, in microseconds.
pub const WORKER_SLEEP_MAX_US: u64 = 1_000_000;

/// Turns of a busy worker between two looks at whether it is wanted for something else.
pub const WORKER_TURNS: u32 = 64;

/// How long a client waits for a reply before it sends its request again, in microseconds; doubles.
/// On shared memory nothing gets lost, but for what a worker had not taken when it died.
pub const RESEND_US: u64 = 2_000;
/// The same over a network, where connections break and datagrams get lost, but rarely.
pub const RESEND_NETWORK_US: u64 = 20_000;

/// Polls that a client waits for a reply before it offers its processor to others in between.
pub const PATIENT_POLLS: u32 = 200;

/// How long a table waits for the workers to tell what they have.
pub const INSPECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How many broken invariants a node tells of, and bytes of each.
pub const TOLD_MAX: usize = 64;
/// Bytes of each.
pub const TOLD_BYTES_MAX: usize = 256;

/// Pause before a neighbour that is not there is called again; doubles up to
/// [`NEIGHBOUR_PAUSE_MAX`].
pub const NEIGHBOUR_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause.
pub const NEIGHBOUR_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long connecting waits for nodes that are not up yet.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an operation goes on after it first had to start over.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Whoever asks to wait longer waits this long.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a table that is dropped waits for its node to take note.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause before a node that was not there is tried again; doubles up to [`RETRY_PAUSE_MAX`].
pub const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two tries.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(50);

/// How long a node waits for another that is starting on the same socket at this moment.
pub const SOCKET_LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a node waits for its region's last owner, who may be about to be gone.
pub const REGION_LOCK_TIMEOUT: Duration = Duration::from_millis(500);

/// Bytes of a secret that nodes share.
pub const SECRET_BYTES_MIN: usize = 16;
/// The longest secret.
pub const SECRET_BYTES_MAX: usize = 4096;

/// How long somebody at a node's control port has to prove that he is a node, and which one.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many at a time may be at that.
pub const HANDSHAKES_MAX: usize = 64;
/// How many of them may come from one address that is no node's. A node dials once at a time.
pub const HANDSHAKES_PER_SOURCE: usize = 4;
/// Of what others can cause at will one line of a kind is logged in such a time.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// How long a node waits until another has taken its call and said who it is.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a node waits for another to do what it asked.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a node waits for connections to end before it answers that they have not yet, so that
/// it can be asked for something else meanwhile.
pub const FENCE_PATIENCE: Duration = Duration::from_millis(250);
/// Pause before a node is asked again for connections that had not ended.
pub const FENCE_PAUSE: Duration = Duration::from_millis(250);
/// How long a node that stops waits for its clients' connections to end.
pub const CLOSE_ENDING_MAX: Duration = Duration::from_secs(60);
/// How long a node waits for another to let a connection in: memory that was never lent before is
/// registered first, 100 ms a gigabyte.
pub const ADMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a client asks again for a connection to a node that could not be reached.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Between two signs of life of a node that has nothing to ask.
pub const PING_INTERVAL: Duration = Duration::from_secs(2);
/// A link on which nothing came for so long is closed.
pub const LINK_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Pause before a node that cannot be reached is dialed again; doubles up to [`REDIAL_PAUSE_MAX`].
pub const REDIAL_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two dials.
pub const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the connections of a node's clients are kept when nothing is heard of the node.
pub const HOME_SILENCE_MAX: Duration = Duration::from_secs(600);

/// A node that is away for so long is named in the log if dead sessions wait for it.
pub const AWAY_MAX: Duration = Duration::from_secs(60);
/// Processes that a node was before the one that it is, and by which it is known to be two.
pub const PROCESSES_REMEMBERED: usize = 64;

/// Clients in one message between nodes: each takes up to a hundred bytes.
pub const CALLERS_MAX: usize = 512;
/// Clients of a node that live: its sessions, and readers.
pub const LIVING_MAX: usize = 1 << 20;

/// The shortest time between two scrubs.
pub const SCRUB_INTERVAL: Duration = Duration::from_secs(2);
/// A scrub whose grace period did not pass is repeated after a time that doubles up to this.
pub const SCRUB_RETRY_MAX: Duration = Duration::from_secs(8);
/// How long a scrub waits for clients that are in the middle of an operation, in microseconds, for
/// each data table.
pub const SCRUB_WAIT_US: u64 = 100_000;

/// Functions that can be registered with a table.
#[cfg(feature = "functions")]
pub const FUNCTIONS_MAX: usize = 64;

/// Bytes of a function's module.
#[cfg(feature = "functions")]
pub const FUNCTION_MODULE_BYTES_MAX: usize = 1 << 20;

/// Pages of a function's memory, 64 KiB each: what the Rust compiler makes begins with 17.
#[cfg(feature = "functions")]
pub const FUNCTION_MEMORY_PAGES_MAX: u32 = 64;

/// Elements of a function's table, which is where indirect calls go through.
#[cfg(feature = "functions")]
pub const FUNCTION_TABLE_ELEMENTS_MAX: usize = 4096;

/// Bytes of a function's stack: a part of the stack of whoever calls it.
#[cfg(feature = "functions")]
pub const FUNCTION_STACK_BYTES: usize = 256 << 10;

/// Fuel of a function that is called, in instructions.
#[cfg(feature = "functions")]
pub const FUNCTION_FUEL_BASE: u64 = 100_000;

/// Fuel of a function for each element.
#[cfg(feature = "functions")]
pub const FUNCTION_FUEL_PER_ELEMENT: u64 = 1_000;

/// Fuel of a call on any number of elements: so long, a few tenths of a second, it can keep a
/// processor from its other clients.
#[cfg(feature = "functions")]
pub const FUNCTION_FUEL_MAX: u64 = 200_000_000;
