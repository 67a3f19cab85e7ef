//! See `loch_fuzz::memory`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::memory(bytes));
