//! See `loch_fuzz::entry`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::entry(bytes));
