//! The memory that a table of small values takes: a node is filled until it refuses more.

use loch::{ByteSize, Cluster, EmbeddedConfig, Error, ErrorKind};
use loch_bench::error::BenchError;
use loch_bench::report::put_out;

/// Enough that what a table has once is a small part of it.
const MEMORY_BYTES: u64 = 256 << 20;
const KEY_BYTES: u64 = 16;
const VALUE: [u8; 64] = [7; 64];

/// Prints how many times the bytes of its keys and values a full node of nessie has.
///
/// # Errors
/// If there is no memory for a node.
pub fn print() -> Result<(), BenchError> {
    let records = fill().map_err(|error| BenchError::usage(format!("fill a node: {error}")))?;
    let bytes = records * (KEY_BYTES + VALUE.len() as u64);
    let times = MEMORY_BYTES as f64 / bytes as f64;
    put_out(format!("{times:.3}\n").as_bytes()).map_err(BenchError::os("print"))
}

/// The number of values for which there was room.
fn fill() -> Result<u64, Error> {
    let config =
        EmbeddedConfig { memory: ByteSize::new(MEMORY_BYTES), ..EmbeddedConfig::default() };
    let table = Cluster::embedded(config)?.table("default")?;
    let mut records = 0;
    loop {
        match table.put(&u128::from(records).to_le_bytes(), &VALUE) {
            Ok(_) => records += 1,
            Err(error) if error.kind() == ErrorKind::NoRoom => return Ok(records),
            Err(error) => return Err(error),
        }
    }
}
