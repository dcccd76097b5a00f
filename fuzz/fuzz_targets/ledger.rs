//! Sequences of ledger operations: the core and the reference model agree. Also arbitrary bytes as
//! a leaf or as an image.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::ledger::run(data));
