//! Bodies of the KMS's Vault Transit routes, and the DER of their signatures.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::transit::run(data));
