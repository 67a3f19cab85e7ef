//! See `loch_fuzz::gateway_memcached`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| loch_fuzz::gateway_memcached(bytes));
