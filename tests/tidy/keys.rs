//! Configuration keys.

use crate::report;
use crate::tree::{Source, sources};

/// The fields of the `settings!` structs of a file, each a key, with their lines.
fn fields(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let macros = source.code.iter().any(|line| line.contains("settings! {"));
    let rows = source.code.iter().enumerate().filter(move |_| macros);
    rows.filter_map(|(at, line)| {
        let (key, field) = line.trim().split_once("\" => ")?;
        let (field, _type) = field.split_once(": ")?;
        key.starts_with('"').then_some((at + 1, field))
    })
}

/// Whether `.field` stands in a line, not followed by more of a name.
fn reads(line: &str, field: &str) -> bool {
    line.match_indices(field).any(|(at, _)| {
        let after = line[at + field.len()..].chars().next();
        line[..at].ends_with('.') && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn every_configuration_key_is_read() {
    let all = sources(&["crates", "bin"]);
    let mut keys = 0;
    let mut unread = Vec::new();
    for source in &all {
        for (line, field) in fields(source) {
            keys += 1;
            let read = |other: &&Source| other.code.iter().any(|line| reads(line, field));
            if !all.iter().copied().any(|other| read(&other)) {
                unread.push(format!("{}:{line}: {field}", source.path));
            }
        }
    }
    assert!(keys > 100, "the keys were not found: {keys}");
    report(
        "a configuration key that nothing reads",
        "a key without effect misleads operators",
        &unread,
    );
}
