//! KV-Direct: a processor that stands between the network and host memory executes every operation
//! (kv-direct §3).
//!
//! # How it works
//! Keys are divided among *processors* by their hash; a node has one or more ([`key`]). A client
//! packs operations into packets (`packet`), and WRITEs each into a request slot of the processor
//! that owns the keys. The processor unpacks it, admits the operations to its *reservation station*
//! ([`station`]), and executes up to 256 of them at a time; what depends on an operation under way
//! waits in the station and is executed on the value that it leaves, without a look at memory. Results
//! go back in one packet, in the order of the request.
//!
//! Host memory is an array of 64-byte lines which only the processor reads and writes, through the
//! [memory access engine](memory), where every access is counted. A part of it is the *hash index*
//! (`slab`), whose free entries the processor shares with a daemon on the host.
//!
//! Values can be vectors of numbers: updates, reductions and filters (`vector`) with functions that are
//! built in, or that users registered.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`key`] | from a key to its processor, bucket, and secondary hash |
//! | [`operation`] | what can be asked, and what is answered |
//! | [`memory`] | host memory: lines, DMA, counts |
//! | [`vector`] | functions on the elements of a value |
//! | [`packet`] | many operations in one packet, and their replies: bytes |
//! | [`bucket`] | a line of the hash index |
//! | [`item`] | the bytes of an entry, inline and in a slab |
//! | [`slab`] | the slab allocator: free memory, shared with the host's daemon |
//! | [`storage`] | looks up, stores and removes entries |
//!
//! # Linearization points
//! An operation takes effect when the processor executes it: at its lookup if it changes nothing,
//! else when it hands its WRITE of the bucket to the memory access engine, or, executed by data
//! forwarding, when the station's copy of the value changes. All are between its call and its return,
//! and one processor executes all operations on a key, in the order in which it admitted them.

pub mod bucket;
pub mod item;
pub mod key;
pub mod memory;
pub mod operation;
pub mod packet;
pub mod slab;
pub mod station;
pub mod storage;
pub mod vector;
