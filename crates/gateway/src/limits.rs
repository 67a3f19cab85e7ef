//! The bounds of a gateway.

use std::time::Duration;

/// Requests of a connection that are executed together.
pub const BATCH_REQUESTS: usize = 128;
/// Bytes of answers that a batch of GETs brings at a time, about.
pub const BATCH_BYTES: usize = 64 << 10;
/// A connection with so many bytes of answers is given to the system before it goes on.
pub const OUTPUT_BYTES: usize = 64 << 10;
/// A value of so many bytes is sent from where it is.
pub const LONG_BYTES: usize = 32 << 10;
/// Bytes that a gateway keeps for clients that take their answers slowly.
pub const COPIES_BYTES_MAX: usize = 32 << 20;
/// Bytes of them that may be answers to clients which go on asking and take none.
pub const UNTAKEN_BYTES_MAX: usize = COPIES_BYTES_MAX / 2;
/// Bytes of other answers that clients have not taken, of all clients. When there are as many, no
/// command is executed that may bring a long answer which is nowhere else.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Bytes that commands have for values they work on. A command that needs more gets it alone.
pub const WORK_BYTES_MAX: usize = 192 << 20;
/// A command on a value has memory for as many copies: the value, what it becomes, and an answer.
pub const WORK_COPIES: usize = 3;
/// Long values, up to so many bytes together or one that is longer, are worked on by a thread
/// between two looks at its sockets.
pub const STEP_BYTES: usize = 1 << 20;
/// Shorter ones, as many bytes together, beside these.
pub const SHORT_STEP_BYTES: usize = STEP_BYTES / 8;
/// Bytes of a pattern of keys: one that names each byte of the longest key has half as many.
pub const PATTERN_BYTES_MAX: usize = 256 << 10;
/// Steps of a match between two looks at the time.
pub const MATCH_STEPS: usize = 50_000;
/// Keys of long values that a thread knows.
pub const LONGS_MAX: usize = 1 << 14;
/// Work without an end in sight lets others go on after this time.
pub const SLICE: Duration = Duration::from_millis(1);
/// Bytes that a thread reads from a connection at a time.
pub const READ_BYTES: usize = 128 << 10;
/// Buffers for longer requests that a thread keeps.
pub const LONG_BUFFERS: usize = 8;
/// Bytes of such a buffer, at most.
pub const LONG_BUFFER_BYTES_MAX: usize = 2 << 20;
/// How often it reads in a turn, if a request is that long.
pub const READS_A_TURN: usize = 8;
/// How often it executes what has come, or goes on with an answer: each time 64 KiB of answers or
/// a batch of requests, about, or one long value.
pub const ROUNDS_A_TURN: usize = 16;
/// Connections that a thread serves side by side, and commands of one connection.
pub const LANES: usize = 32;
/// Connections that a thread serves side by side with those that wait for somebody, without those
/// that rest until another thread wakes this one, or wait for memory or others' long steps.
pub const TURNS_MAX: usize = 256;
/// Arguments of a request, and bytes of one argument: as in Redis.
pub const ARGUMENTS_MAX: usize = 1 << 20;
/// Bytes of an argument, as in Redis (`proto-max-bulk-len`).
pub const ARGUMENT_BYTES_MAX: usize = 512 << 20;
/// Bytes of a request on one line, and of a line that announces a length.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a password, at least: shorter ones are guessed within hours.
pub const PASSWORD_BYTES_MIN: usize = 8;
/// Bytes of a password, at most: clients send it before anything else.
pub const PASSWORD_BYTES_MAX: usize = 1024;
/// Arguments of a request before a password was given, and bytes of one of them: as in Redis.
pub const STRANGER_ARGUMENTS_MAX: usize = 10;
/// Bytes of such an argument.
pub const STRANGER_BYTES_MAX: usize = 16 << 10;
/// Bytes of such a request.
pub const STRANGER_REQUEST_BYTES_MAX: usize = 20 << 10;
/// How long a client may be connected before it gives the password.
pub const LOGIN_TIME: Duration = Duration::from_secs(10);
/// Of the places for clients, one of so many is for those that have not given it yet.
pub const STRANGERS_PART: usize = 4;
/// After a wrong password a client is not served for this time.
pub const GUESS_PAUSE: Duration = Duration::from_millis(250);
/// The most clients, as in Redis.
pub const CLIENTS_MAX: usize = 10_000;
/// Descriptors that are no clients', of a gateway with its first address for `/metrics`, of each
/// further address, and of each thread.
pub const OTHER_DESCRIPTORS: usize = 64;
/// Cursors of scans under way that a gateway remembers.
pub const CURSORS_MAX: usize = 4096;
/// For so long an update is tried again, if others keep changing the value.
pub const UPDATE_TIME: Duration = Duration::from_secs(5);
/// Bytes of a key of memcached.
pub const MEMCACHED_KEY_BYTES: usize = 250;
/// Bytes of a line of memcached's protocol that is no list of keys.
pub const MEMCACHED_LINE_BYTES: usize = 2048;
/// Bytes of a line of memcached's protocol that is a list of keys.
pub const MEMCACHED_LIST_BYTES: usize = 4 << 20;
/// Commands that a transaction can have.
pub const QUEUED_MAX: usize = 100_000;
/// Bytes of them, and of watched keys.
pub const QUEUED_BYTES_MAX: usize = 64 << 20;
/// Bytes of the transactions of all clients, without those that each may have in any case.
pub const QUEUED_ALL_BYTES_MAX: usize = 96 << 20;
/// Bytes that a transaction may have in any case.
pub const QUEUED_FREE_BYTES: usize = 8 << 10;
/// Keys that a client watches.
pub const WATCHED_MAX: usize = 10_000;
/// Bytes of a client's name, and of the name and the version of its library.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of keys that KEYS has found, about. If there are more, it is an error.
pub const KEYS_BYTES_MAX: usize = 192 << 20;
/// If there are more than these, one client's KEYS at a time goes on.
pub const KEYS_FREE_BYTES: usize = 1 << 20;
/// Bytes of their answers. When there are as many, no command is executed any more.
pub const EXEC_BYTES_MAX: usize = 64 << 20;
/// Bytes of a request, as in Redis (`client-query-buffer-limit`).
pub const REQUEST_BYTES_MAX: usize = 1 << 30;
/// Bytes of requests of which a part has come, of all clients. Whoever finds no room for all of a
/// request is not read from until there is; a request that is longer has room alone.
pub const REQUESTS_BYTES_MAX: usize = 160 << 20;
/// Bytes of a request that have room in any case.
pub const REQUEST_FREE_BYTES: usize = 16 << 10;
/// How often a connection that waits for room looks for it.
pub const REST: Duration = Duration::from_millis(10);
/// How long it waits.
pub const ROOM_TIME: Duration = Duration::from_secs(60);
/// In this time a request comes whole, and in a second more for each MiB, while others wait for the
/// room that it has. Otherwise its connection ends.
pub const REQUEST_TIME: Duration = Duration::from_secs(20);
/// Reservations for values that come, of a thread.
pub const RESERVATIONS_MAX: usize = 32;
/// How long such a reservation lives: while it does, others may wait for memory.
pub const RESERVATION_TIME: Duration = Duration::from_millis(20);
/// Connections to `/metrics` at a time.
pub const HTTP_CLIENTS_MAX: usize = 16;
/// How long such a connection lasts.
pub const HTTP_CLIENT_TIME: Duration = Duration::from_secs(10);
/// Clients that a thread accepts at a listener before it goes on with the others.
pub const ACCEPTS_A_LOOK: usize = 64;
/// How long nobody is accepted after there were no descriptors left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a gateway that stops goes on answering what has come.
pub const DRAIN_TIME: Duration = Duration::from_secs(2);
/// How long a client that has ended its side is served without taking an answer.
pub const PARTING_TIME: Duration = Duration::from_secs(5);
