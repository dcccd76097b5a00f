//! The tree of routes compared with the reference, on a table with every kind of overlap.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::routing::run(data));
