//! Counts the instructions of an operation, path by path, and holds them to bounds: unlike a time,
//! a count does not depend on what else the machine does, so a hot path that gets longer fails the
//! build.
//!
//! * `loch-instructions check` compares with `bounds.txt`: exit code 1 if a path is over its bound.
//! * `loch-instructions set` writes that file anew, with bounds a few per cent above the counts. A
//!   change that makes a path shorter, or has a good reason to make it longer, commits that.
//!
//! Both run this program again, as `loch-instructions paths`, under valgrind's callgrind, which
//! counts inside of [`measured`] only and writes a file at each end of it. So only the operations
//! count, and one process does for all paths.
#![forbid(unsafe_code)]

mod bounds;
mod counting;
mod nessie;
mod served;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Records of every table. Few, so that the caches of every machine hold them; instructions are
/// the same.
const RECORDS: u64 = 1000;
/// Operations that are counted: enough that what happens once in a while is a small part.
const OPS: usize = 32 * 100;
const VALUE: [u8; 64] = [7; 64];

/// A path, ready to be measured.
struct Path {
    name: String,
    run: Run,
}

type Key = [u8; 16];
/// Does an operation on each key.
type Run = Box<dyn FnMut(&[Key])>;
/// The same, on a table.
type Operations<T> = fn(&T, &[Key]);

fn key_of(record: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&record.to_le_bytes());
    key[8..].copy_from_slice(&record.wrapping_mul(0xD6E8_FEB8_6659_FD93).to_le_bytes());
    key
}

/// Keys in an order that no path can know.
fn trace(len: usize) -> Vec<Key> {
    let scattered = |step: u64| step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (1..=len as u64).map(|step| key_of(scattered(step) % RECORDS)).collect()
}

/// What is counted. Callgrind knows it by its name.
#[inline(never)]
fn measured(run: &mut dyn FnMut(&[Key]), keys: &[Key]) {
    run(keys);
}

/// Measures all paths, one after the other, and prints the name of each.
fn paths() {
    let keys = trace(2 * OPS);
    for mut path in nessie::paths().into_iter().chain(served::paths()) {
        // Buffers have grown, and slabs are leased.
        (path.run)(&keys[OPS..]);
        measured(&mut *path.run, &keys[..OPS]);
        println!("{}", path.name);
    }
}

fn main() -> Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        Some("paths") => paths(),
        Some("check") => return bounds::check(&counting::counts()?),
        Some("set") => bounds::set(&counting::counts()?)?,
        _ => bail!("usage: loch-instructions check | set"),
    }
    Ok(ExitCode::SUCCESS)
}
