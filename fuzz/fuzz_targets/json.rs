//! Strict JSON: compared with a reference reader, with serde_json, and with its own output.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::json::run(data));
