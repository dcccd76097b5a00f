//! The console's metrics reader: compared with a plain reference reader, and with its own borrowed
//! parts. Also with the page cut after any byte, as a broken connection would leave it.
#![no_main]

#[path = "../../crates/svc-admin/src/promtext/mod.rs"]
#[allow(dead_code)]
mod promtext;

use libfuzzer_sys::fuzz_target;
use promtext::{Item, Labels, Reader, label};
use ron_fuzz::metrics::{Row, bits, read};

fn ours(page: &[u8]) -> (Vec<Row>, u64) {
    let mut reader = Reader::new(page);
    let mut rows = Vec::new();
    for item in reader.by_ref() {
        let Item::Sample(sample) = item else { continue };
        let labels: Vec<(String, String)> = Labels::new(sample.labels)
            .map(|(name, value)| (name.to_owned(), value.into_owned()))
            .collect();
        // A lookup by name returns the first label of that name.
        for (name, _) in &labels {
            let first = labels.iter().find(|(other, _)| other == name);
            assert_eq!(
                label(sample.labels, name).as_deref(),
                first.map(|(_, v)| v.as_str())
            );
        }
        // The key is a slice of the line: name, optional space, optional label block.
        let rest = sample
            .key
            .strip_prefix(sample.name)
            .expect("the key begins with the name");
        let block = rest.trim_start_matches([' ', '\t']);
        assert!(
            block.is_empty() || block == format!("{{{}}}", sample.labels),
            "{}",
            sample.key
        );
        rows.push(Row {
            name: sample.name.to_owned(),
            labels,
            value: bits(sample.value),
            timestamp: sample.timestamp.map(bits),
        });
    }
    (rows, reader.skipped())
}

fuzz_target!(|data: &[u8]| {
    let whole = ours(data);
    assert_eq!(whole, read(data));
    // A torn page gives the same samples up to its last whole line.
    let torn = &data[..data.len() / 2];
    let lines = torn
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let (before, _) = ours(&torn[..lines]);
    assert!(whole.0.starts_with(&before));
});
