//! The console's metrics reader: compared with a plain reference reader, and with its own borrowed
//! parts. Also with the page cut after any byte, as a broken connection would leave it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ron_fuzz::metrics::run(data));
