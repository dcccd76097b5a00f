//! `docs/ops/events.md`: the table of kinds, and that each of them is published.

use std::fmt::Write as _;
use std::path::Path;

use ron_proto::events::EventKind;
use ron_tests::workspace;

use crate::regions;

#[test]
fn the_table_of_events_is_what_the_code_says() {
    let found = regions::check("ops/events.md", "generated", |part| {
        (part == "kinds").then(kinds)
    });
    assert_eq!(found, ["kinds"]);
}

fn kinds() -> String {
    let mut out = String::from(
        "| kind | published by | `reason` | `number` | meaning |\n|---|---|---|---|---|\n",
    );
    for kind in EventKind::ALL {
        let [from, reason, number, meaning] = kind.row();
        let word = kind.as_str();
        let _ = writeln!(
            out,
            "| `{word}` | {from} | {reason} | {number} | {meaning} |"
        );
    }
    out
}

/// A kind that nothing publishes does not exist.
#[test]
fn every_kind_is_published_by_the_services_of_its_row() {
    for kind in EventKind::ALL {
        let [from, ..] = kind.row();
        let crates = if from == "all" { "ron-service" } else { from };
        for name in crates.split(", ") {
            let source = workspace().join("crates").join(name).join("src");
            let variant = format!("EventKind::{kind:?}");
            assert!(
                names(&source, &variant),
                "{name} does not publish {variant}"
            );
        }
    }
}

/// Whether a source below `dir`, files of tests aside, has this variant.
fn names(dir: &Path, variant: &str) -> bool {
    std::fs::read_dir(dir).unwrap().flatten().any(|entry| {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let stem = stem.expect("a name in UTF-8");
        if path.is_dir() {
            return stem != "tests" && names(&path, variant);
        }
        if path.extension().is_none_or(|e| e != "rs") || stem.ends_with("tests") {
            return false;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // `NotReady` is no `NotReadyCleared`.
        let mut found = text.split(variant).skip(1);
        found.any(|rest| !rest.starts_with(char::is_alphanumeric))
    })
}
