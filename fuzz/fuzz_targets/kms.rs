//! Request bodies of the KMS, of every kind: what is accepted is written again and read as the same,
//! and nothing but an object is accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::kms::run(data));
