//! Comments say something, and public items are public because somebody uses them.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{ImplItemFn, ItemFn, Visibility};

use crate::report;
use crate::tree::{Source, sources};

#[test]
fn every_file_says_what_it_is_for() {
    let missing: Vec<_> = sources(&["crates", "bin", "tests", "benches", "xtask"])
        .into_iter()
        .filter(|s| !s.text.starts_with("//!"))
        .map(|s| s.path.clone())
        .collect();
    report(
        "a file without a `//!` line at its top",
        "a reader should guess the file from the symptom",
        &missing,
    );
}

#[test]
fn doc_comments_say_more_than_names() {
    // In `bin`, `benches` and `xtask` they are help texts of the command line, in ron-proto descriptions
    // of the APIs; a route, a name in code, a number or a unit is worth a line of its own.
    let says = |line: &str| {
        let units = ["second", "bytes", "kib", "minor unit", "length"];
        let text = line.to_lowercase();
        line.contains(|c: char| c == '`' || c == '[' || c.is_ascii_digit())
            || units.iter().any(|unit| text.contains(unit))
    };
    let mut found = Vec::new();
    let all = sources(&["crates", "tests"]);
    for source in all.iter().filter(|s| s.krate() != "ron-proto") {
        let is_doc = |line: &str| line == "///" || line.starts_with("/// ");
        let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let beside = |other: Option<usize>| {
                other
                    .and_then(|at| lines.get(at))
                    .is_some_and(|line| is_doc(line))
            };
            let alone = !beside(at.checked_sub(1)) && !beside(Some(at + 1));
            let words = line.split(|c: char| !c.is_alphanumeric());
            if is_doc(line)
                && alone
                && !says(line)
                && words.filter(|word| !word.is_empty()).count() <= 3
            {
                found.push(format!("{}:{}: {line}", source.path, at + 1));
            }
        }
    }
    report(
        "a doc comment of three words or fewer",
        "it repeats the name; say the unit, the bounds, the errors, the caller, or say nothing",
        &found,
    );
}

/// Public functions of libraries, with where they are.
struct PublicFunctions<'a> {
    source: &'a Source,
    found: Vec<(String, String)>,
}

impl PublicFunctions<'_> {
    fn note(&mut self, vis: &Visibility, name: &syn::Ident) {
        let line = name.span().start().line;
        if matches!(vis, Visibility::Public(_)) && !self.source.tested(line) {
            let place = format!("{}:{line}", self.source.path);
            self.found.push((name.to_string(), place));
        }
    }
}

impl<'ast> Visit<'ast> for PublicFunctions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.note(&item.vis, &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.note(&item.vis, &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }
}

/// By names alone: a function whose name stands once in the whole tree has no caller.
#[test]
fn no_public_function_is_unused() {
    let all = sources(&[
        "crates", "bin", "tests", "benches", "examples", "fuzz", "models",
    ]);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for source in &all {
        for line in source.text.lines() {
            let code = line.split("//").next().unwrap_or("");
            for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                *seen.entry(word).or_default() += 1;
            }
        }
    }
    let mut found = Vec::new();
    for source in all.iter().filter(|s| s.path.starts_with("crates/")) {
        let mut functions = PublicFunctions {
            source,
            found: Vec::new(),
        };
        functions.visit_file(&source.parsed());
        for (name, place) in functions.found {
            if seen.get(name.as_str()).copied().unwrap_or(0) < 2 {
                found.push(format!("{place}: {name}"));
            }
        }
    }
    report(
        "a public function that nothing calls",
        "`pub` means used by another crate; delete it",
        &found,
    );
}
