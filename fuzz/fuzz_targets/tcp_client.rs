//! See `loch_fuzz::tcp_client`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::tcp_client(bytes));
