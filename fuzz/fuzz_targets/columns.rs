//! Arrow streams and Parquet files of usage: any bytes are read or refused, with bounded memory. The
//! first byte says which.
#![no_main]

use std::sync::Once;

use libfuzzer_sys::fuzz_target;

/// The libraries panic at some hostile files, which the readers catch; the fuzzer's hook would end the
/// process before. A panic that they do not catch still ends it.
static CAUGHT: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    CAUGHT.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    ron_fuzz::columns::run(data);
});
