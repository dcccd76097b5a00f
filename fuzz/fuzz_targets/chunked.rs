//! The chunked decoder, fed in pieces, compared with the reference.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::chunked::run(data));
