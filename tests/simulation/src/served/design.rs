//! The options that a seed draws for an engine, and facts of each engine that the tests need.

use loch_engines::log::{Logging, MemoryStorage};
use loch_engines::region::TableParams;
use loch_engines::serve::Tuning;

use super::memory::Memory;
use super::script::{Client, Plain, Program};
use super::setting::Setting;

/// A process that does what no client of its engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// A client that names another session than its own in its requests, with the largest possible
    /// number.
    Liar,
    /// A process that sends datagrams in the name of a client whose secret it does not know.
    Forger,
}

/// An engine under test, with all that a seed decides of it.
pub trait Design {
    /// The cluster, the declaration of its table, and the clients' work.
    fn setting(&self) -> &Setting;

    /// Makes the table smaller than any that can be declared.
    fn shrink(&self, _: &mut TableParams) {}

    /// The numbers of a worker that no declaration sets.
    fn tuning(&self) -> Tuning {
        Tuning::default()
    }

    /// The kind of process that is hostile in some runs.
    fn hostile(&self) -> Option<Hostile> {
        None
    }

    /// The log of a node's worker that starts.
    fn log(&self, _node: u16, _random: &dyn Fn() -> u64) -> Option<Logging<MemoryStorage>> {
        None
    }

    /// Whether workers end because their disks fail.
    fn disks_fail(&self) -> bool {
        false
    }

    /// Memory for the entries of a worker that starts.
    fn lines(&self, _lines: u32, _seed: u64) -> Memory {
        unreachable!("the engine's workers have no lines")
    }

    /// The work of a client.
    fn program(&self, client: Client) -> Box<dyn Program> {
        Box::new(Plain(client))
    }

    /// A key.
    fn key_name(&self, key: u64) -> Vec<u8> {
        format!("key-{key}").into_bytes()
    }

    /// The worker, out of so many, whose own memory holds the key's value, in a table whose keys
    /// are hashed with this seed. `None`: the test does not know, and any worker that dies may have
    /// held it.
    fn owner(&self, _seed: u64, _key: &[u8], _workers: u32) -> Option<u32> {
        None
    }

    /// The drawn options that are not part of the setting, for the reader of a failure.
    fn told(&self) -> String {
        String::new()
    }
}
