//! See `loch_fuzz::functions`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::functions(bytes));
