//! Configuration keys in the documents exist in the tables: in blocks of TOML, which some service must accept, and in
//! sentences, as in `audit.origin`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ron_service::Config;
use ron_tests::workspace;

use crate::SERVICES;
use crate::links::pages;

/// Endings of file names: `audit.json` would otherwise look like a key of the group `audit`.
const ENDINGS: [&str; 16] = [
    "bin", "blob", "json", "jsonl", "key", "keys", "md", "meta", "policy", "py", "rs", "sh", "sig",
    "token", "toml", "vkey",
];
/// A caveat of passports that looks like a key of the group `pq`.
const CAVEAT: &str = "pq.fallback";

/// Every dotted key of every service.
fn known() -> BTreeSet<&'static str> {
    let rows = SERVICES.iter().flat_map(|service| service.table.rows());
    rows.map(|key| key.name).collect()
}

/// The word of a code span that is written like a key of a known group.
fn key_of<'a>(span: &'a str, groups: &BTreeSet<&str>) -> Option<&'a str> {
    let word = span.split([' ', '=']).next()?;
    let word = word.trim_end_matches(".*");
    let plain =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let dotted = word.contains('.') && word.split('.').all(plain);
    let (group, _) = word.split_once('.')?;
    let file = word
        .rsplit('.')
        .next()
        .is_some_and(|end| ENDINGS.contains(&end));
    (dotted && groups.contains(group) && !file && word != CAVEAT).then_some(word)
}

/// If no service accepts a block of TOML: the shortest list of unknown keys.
fn refused(text: &str) -> Option<String> {
    let unknown = SERVICES.iter().map(|service| {
        let file = Some((Path::new("page.toml"), text));
        let problems = match Config::load(service.table, file, &|_| None, &[]) {
            Ok(_) => Vec::new(),
            Err(problems) => problems,
        };
        let texts = problems.iter().map(ToString::to_string);
        let unknown: Vec<_> = texts
            .filter(|why| why.contains("not a known key") || why.contains("TOML"))
            .collect();
        unknown.join("; ")
    });
    unknown
        .min_by_key(String::len)
        .filter(|why| !why.is_empty())
}

/// Blocks of a language in a page.
fn blocks<'a>(page: &'a str, tag: &'a str) -> impl Iterator<Item = &'a str> {
    let parts = page.split("```").skip(1).step_by(2);
    parts.filter_map(move |part| part.strip_prefix(tag)?.strip_prefix('\n'))
}

#[test]
fn keys_in_the_documents_are_keys() {
    let known = known();
    let groups: BTreeSet<&str> = known
        .iter()
        .filter_map(|key| key.split_once('.').map(|(group, _)| group))
        .collect();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in pages() {
        let shown = path
            .strip_prefix(workspace())
            .unwrap()
            .display()
            .to_string();
        // Generated pages hold names of other things; a changelog names keys that existed at its time.
        let skipped = [
            "CHANGELOG.md",
            "docs/api/",
            "docs/concurrency/",
            "docs/config/",
        ];
        if skipped.iter().any(|start| shown.starts_with(start)) {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        // A Cargo manifest is no configuration of a service, nor is the file of the PKCS#11 module, whose own test reads it.
        let others = ["[package]", "# /etc/ron/pkcs11.toml"];
        let configurations = blocks(&page, "toml");
        for text in configurations.filter(|text| !others.iter().any(|at| text.starts_with(at))) {
            seen += 1;
            wrong.extend(refused(text).map(|why| format!("{shown}: {why}")));
        }
        let spans = page
            .lines()
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for word in spans.filter_map(|span| key_of(span, &groups)) {
            seen += 1;
            let group = format!("{word}.");
            if !known.contains(word) && !known.iter().any(|key| key.starts_with(&group)) {
                wrong.push(format!("{shown}: `{word}` is no configuration key"));
            }
        }
    }
    assert!(seen > 25, "only {seen} keys were seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_misspelt_key_is_found() {
    assert!(refused("[audit]\norigin = \"a\"\n").is_none());
    assert!(refused("[audit]\norigni = \"a\"\n").is_some());
    let groups = BTreeSet::from(["audit"]);
    assert_eq!(key_of("audit.origni = 1", &groups), Some("audit.origni"));
    assert_eq!(key_of("audit.rs", &groups), None);
    assert_eq!(key_of("seal.orign", &groups), None, "no such group");
}
