//! See `loch_fuzz::tcp_agent`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::tcp_agent(bytes));
