//! See `loch_fuzz::kv_direct_packet`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::kv_direct_packet(bytes));
