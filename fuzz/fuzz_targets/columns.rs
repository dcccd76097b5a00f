//! Arrow streams and Parquet files of usage: any bytes are read or refused, with bounded memory. The
//! first byte says which.
#![no_main]

use std::sync::{Arc, Once};

use libfuzzer_sys::fuzz_target;
use ron_proto::rewarder::ImportKind;
use svc_rewarder::inputs::import::{Format, Input, Options, import_inputs};

/// More than a small file can honestly hold.
const ROWS_MAX: u64 = 100_000;

/// The libraries panic at some hostile files, which the readers catch; the fuzzer's hook would end the
/// process before. A panic that they do not catch still ends it.
static CAUGHT: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    CAUGHT.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    let Some((which, file)) = data.split_first() else {
        return;
    };
    let input = if which & 1 == 0 {
        Input::Stream(Format::Arrow, file)
    } else {
        Input::Parquet(Arc::new(file.to_vec()))
    };
    let options = Options {
        rows_max: ROWS_MAX,
        ..Options::in_memory(ImportKind::Totals)
    };
    if let Ok(sealed) = import_inputs([input], options) {
        assert!(sealed.info().accounts <= ROWS_MAX);
    }
});
