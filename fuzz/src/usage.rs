//! CSV and NDJSON files of usage. Any bytes are read or refused, the same with little memory as with much; what is read
//! is sealed, and its rows in any order, format and kind seal to the same bytes. The first byte says which.

use std::fmt::Write as _;
use std::sync::Arc;

use ron_files::{Dir, MemoryDisk};
use ron_proto::rewarder::ImportKind;
use svc_rewarder::calculus::Usage as _;
use svc_rewarder::inputs::import::{Format, Options, Spill, import};
use svc_rewarder::inputs::snapshot::Sealed;

/// Few enough rows that they do not fit: every import of some rows is sorted on the disk.
const LITTLE: usize = 256;

fn sealed(format: Format, file: &[u8], kind: ImportKind, spill: bool) -> Result<Sealed, String> {
    let spill = spill.then(|| Spill {
        memory: LITTLE,
        dir: Dir::new(Arc::new(MemoryDisk::default()), "/spill"),
    });
    let options = Options {
        spill,
        ..Options::in_memory(kind)
    };
    import([(format, file)], options).map_err(|(_, error)| error.to_string())
}

/// Every row of a snapshot, the last account first, zeros included.
fn rows(snapshot: &Sealed, format: Format) -> String {
    let metrics = snapshot.metric_names();
    let mut text = match format {
        Format::Csv => "account,metric,amount\n".to_owned(),
        _ => String::new(),
    };
    for row in (0..snapshot.accounts()).rev() {
        let block = snapshot.block(row, 1).expect("in memory");
        let account = std::str::from_utf8(block.account(0)).expect("an account");
        for (at, metric) in metrics.iter().enumerate() {
            let amount = block.amount(0, at);
            let line = match format {
                Format::Csv => writeln!(text, "{account},{metric},{amount}"),
                _ => writeln!(
                    text,
                    r#"{{"account":"{account}","metric":"{metric}","amount":"{amount}"}}"#
                ),
            };
            line.expect("a string");
        }
    }
    text
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let Some((which, file)) = data.split_first() else {
        return;
    };
    let (format, other) = if which & 1 == 0 {
        (Format::Csv, Format::Ndjson)
    } else {
        (Format::Ndjson, Format::Csv)
    };
    let kind = if which & 2 == 0 {
        ImportKind::Totals
    } else {
        ImportKind::Events
    };
    let read = sealed(format, file, kind, false);
    let spilled = sealed(format, file, kind, true);
    let id = |read: &Result<Sealed, String>| read.as_ref().map(Sealed::cid).map_err(Clone::clone);
    assert_eq!(id(&read), id(&spilled), "memory changes the result");
    let Ok(snapshot) = read else {
        return;
    };
    let bytes = snapshot.bytes().expect("in memory").into_owned();
    let parsed = Sealed::parse(bytes).expect("what an import seals is canonical");
    assert_eq!(parsed.cid(), snapshot.cid());
    for (format, kind) in [(format, ImportKind::Events), (other, ImportKind::Totals)] {
        let again = sealed(format, rows(&snapshot, format).as_bytes(), kind, false);
        assert_eq!(id(&again), Ok(snapshot.cid()), "{format:?} as {kind:?}");
    }
}
