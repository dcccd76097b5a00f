//! Forms of the OAuth endpoints: what is accepted is written again and read as the same fields.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::form::run(data));
