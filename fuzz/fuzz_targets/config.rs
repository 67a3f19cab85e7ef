//! See `loch_fuzz::config`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::config(bytes));
