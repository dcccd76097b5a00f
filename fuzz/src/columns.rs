//! Arrow streams and Parquet files of usage: any bytes are read or refused, with bounded memory. The
//! first byte says which.

use std::sync::Arc;

use ron_proto::rewarder::ImportKind;
use svc_rewarder::inputs::import::{Format, Input, Options, import_inputs};

/// More than a small file can honestly hold.
const ROWS_MAX: u64 = 100_000;

/// Tries one input.
pub fn run(data: &[u8]) {
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
}
