//! Values that tell which operation wrote them, to the last byte.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Bytes of the number at the start.
const NUMBER_BYTES: usize = 8;

/// The key's name.
pub fn name_of(writer: usize, key: usize) -> Vec<u8> {
    format!("{writer}/{key}").into_bytes()
}

/// Which lengths values have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lengths {
    /// One of a few; the longest is read in two steps.
    Few,
    /// Any up to some thousand bytes. A client leases memory for each class of lengths, and small
    /// nodes run out of it.
    Many,
    /// [`ONE`]: all memory is of one class, and short of it are those that have few slabs of it.
    One,
}

/// Bytes of values that are all as long.
pub const ONE: usize = 2000;

const FEW: [usize; 12] = [8, 64, 64, 64, 64, 64, 100, 200, 200, 200, 1000, 20_000];
const LONGEST_OF_MANY: usize = 3000;

/// The value that operation `number` of a key's writer writes.
pub fn value_of(lengths: Lengths, writer: usize, key: usize, number: u64) -> Vec<u8> {
    let seed = (writer as u64) << 56 | (key as u64) << 40 | number;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let len = match lengths {
        Lengths::Few => FEW[random.random_range(0..FEW.len())],
        Lengths::One => ONE,
        Lengths::Many => random.random_range(NUMBER_BYTES..LONGEST_OF_MANY),
    };
    let mut value = vec![0; len];
    random.fill_bytes(&mut value);
    value[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number of the operation that wrote a value; none if no operation did.
pub fn number_of(lengths: Lengths, writer: usize, key: usize, value: &[u8]) -> Option<u64> {
    let (number, _) = value.split_first_chunk::<NUMBER_BYTES>()?;
    let number = u64::from_le_bytes(*number);
    (value == value_of(lengths, writer, key, number)).then_some(number)
}
