//! See `loch_fuzz::region_header`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::region_header(bytes));
