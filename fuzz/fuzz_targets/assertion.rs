//! Client assertions: what authenticates a client is signed by it, for this issuer and time, and counts once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::assertion::run(data));
