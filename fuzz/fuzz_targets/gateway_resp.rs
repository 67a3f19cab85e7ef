//! See `loch_fuzz::gateway_resp`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::gateway_resp(bytes));
