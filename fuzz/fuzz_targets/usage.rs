//! CSV and NDJSON files of usage: any bytes are read or refused, and what is read has one sealed form.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::usage::run(data));
