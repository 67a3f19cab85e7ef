//! Values that tell which operation wrote them, to the last byte.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes of the number at the start.
const NUMBER_BYTES: usize = 8;

/// The key's name.
pub fn name_of(writer: usize, key: usize) -> Vec<u8> {
    format!("{writer}/{key}").into_bytes()
}

/// Lengths of values, drawn evenly; the last one is long enough to be read in two steps. Few, for a
/// client leases memory for each size by the megabyte, and it is not the lack of it that is tested.
const LENGTHS: [usize; 12] = [8, 64, 64, 64, 64, 64, 100, 200, 200, 200, 1000, 20_000];

/// The value that operation `number` of a key's writer writes.
pub fn value_of(writer: usize, key: usize, number: u64) -> Vec<u8> {
    let seed = (writer as u64) << 56 | (key as u64) << 40 | number;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut value = vec![0; LENGTHS[random.random_range(0..LENGTHS.len())]];
    random.fill_bytes(&mut value);
    value[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    value
}

/// The number of the operation that wrote a value; none if no operation did.
pub fn number_of(writer: usize, key: usize, value: &[u8]) -> Option<u64> {
    let (number, _) = value.split_first_chunk::<NUMBER_BYTES>()?;
    let number = u64::from_le_bytes(*number);
    (value == value_of(writer, key, number)).then_some(number)
}
