//! The operations of the client of a table, over any network.

use std::pin::Pin;

use loch_engines::EngineError;
use loch_engines::nessie::CheckReport;
use loch_engines::operation::{Batch, Done, Operation, Outcome, PutOptions};
use loch_engines::registry::Operating;
use loch_fabric::Buf;

use super::counters::Counters;
use super::in_place::InPlace;
use super::scanning::{ScanPlace, Scanned};
use crate::{Error, Result, Usage};

/// The future of a look at a whole table.
pub(crate) type Looking<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// The operations of the client of a table.
pub(crate) trait Operations: Send {
    /// As [`Kv::execute`](loch_engines::Kv::execute).
    fn execute<'a>(
        &'a self,
        key: &'a [u8],
        operation: Operation<'a>,
        buf: Buf,
    ) -> Operating<'a, Done>;

    /// As [`Kv::shares`](loch_engines::Kv::shares).
    fn shares(&self, is_read: bool) -> bool;

    /// As [`Kv::execute_many`](loch_engines::Kv::execute_many).
    fn execute_many<'a>(
        &'a self,
        batch: Batch<'a>,
        done: &'a mut dyn FnMut(usize, Outcome<'_>),
    ) -> Operating<'a, ()>;

    /// Reserves memory for a value of `len` bytes. Returns `None` if the engine has no entries that
    /// are written in place.
    fn reserve<'a: 'k, 'k>(
        &'a self,
        key: &'k [u8],
        len: usize,
        options: PutOptions,
    ) -> Operating<'k, Option<Box<dyn InPlace + 'a>>>;

    /// As [`Table::scan_page`](crate::Table::scan_page).
    fn scan<'a>(&'a self, from: &'a ScanPlace, prefix: &'a [u8]) -> Looking<'a, Scanned>;

    /// As [`Table::check`](crate::Table::check).
    fn check(&self) -> Looking<'_, CheckReport>;

    /// As [`Table::usage`](crate::Table::usage).
    fn usage(&self) -> Looking<'_, Vec<Usage>>;

    /// As [`Table::counters`](crate::Table::counters).
    fn counters(&self) -> Counters;

    /// As [`Table::bytes_carried`](crate::Table::bytes_carried).
    fn bytes_carried(&self) -> Option<[u64; 2]>;

    /// Wall-clock time in milliseconds since the Unix epoch.
    fn wall_ms(&self) -> u64;

    /// Makes an error of the engine one of this crate, with the facts of the table and its nodes.
    fn explain(&self, error: EngineError) -> Error;

    /// Gives up all memory that the client holds.
    fn detach(&self) -> Operating<'_, ()>;
}
