//! See `loch_fuzz::wire`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::wire(bytes));
