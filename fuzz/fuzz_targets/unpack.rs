//! Compressed bodies: a compressed body is decompressed up to the cap and not beyond it; arbitrary
//! bytes are refused or stay below the cap.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::unpack::run(data));
