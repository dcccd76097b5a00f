//! Streams of pipelined requests, in pieces: scanner, head parser and body decoder compared with
//! the reference, which reads the whole stream at once.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::request::run(data));
