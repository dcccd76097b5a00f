//! Standard terms: words that only this project used for them do not come back, neither in prose nor in names.

use std::fs;
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use crate::tree::{Source, sources};
use crate::{report, root};

/// Words that stand nowhere, in prose or code, and the terms to use.
const WORDS: [(&[&str], &str); 8] = [
    (&["flight", "flights"], "in-flight request"),
    (&["landed", "lands", "landing"], "complete, finish"),
    (&["lane", "lanes"], "shard, queue"),
    (&["news"], "event, notification"),
    (
        &["stranger", "strangers"],
        "third party, unauthenticated client",
    ),
    (&["anew"], "again"),
    (&["mend", "mends", "mended", "mending"], "repair, fix"),
    (&["storey", "storeys"], "layer"),
];

/// Words that are no part of a name in a program, because prose needs them in other meanings.
const NAMES: [(&[&str], &str); 4] = [
    (&["tell", "tells", "told"], "notify, report, answer"),
    (&["look", "looks", "looked"], "poll, probe, find"),
    (&["silence", "silences"], "poll failure"),
    (&["away"], "unavailable"),
];

/// Names of types that are no nouns.
const TYPES: [&str; 17] = [
    "Done", "Found", "Given", "Gone", "Got", "Held", "Kept", "Landed", "Left", "Made", "Said",
    "Seen", "Taken", "Told", "What", "Who", "Why",
];

/// Files that may use words of [`WORDS`] and [`NAMES`], and why.
const EXCEPTIONS: [(&str, &[&str], &str); 5] = [
    (
        "crates/ron-crypto/src/kdf.rs",
        &["lane", "lanes"],
        "a parameter of Argon2",
    ),
    (
        "crates/svc-admin/ui/src/layout.ts",
        &["lane", "lanes"],
        "lines beside each other in a drawing",
    ),
    (
        "crates/svc-admin/ui/src/topology.tsx",
        &["lane"],
        "lines beside each other in a drawing",
    ),
    (
        "docs/CONTRIBUTING.md",
        &["flight", "lands"],
        "the example of what is wrong",
    ),
    ("tests/tidy/language.rs", &[], "the list itself"),
];

fn is_exception(path: &str, word: &str) -> bool {
    let listed = |words: &[&str]| words.is_empty() || words.contains(&word);
    EXCEPTIONS
        .iter()
        .any(|(exception, words, _)| *exception == path && listed(words))
}

/// The words of a text with the words before them: parts of identifiers count, also of `CamelCase`.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for c in line.chars() {
        let starts =
            !before.is_ascii_alphabetic() || before.is_ascii_lowercase() && c.is_ascii_uppercase();
        if c.is_ascii_alphabetic() {
            if starts {
                words.push(String::new());
            }
            words
                .last_mut()
                .expect("a word was begun")
                .push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words
}

/// The term to use in place of the first word of `line` that `list` has.
fn private<'a>(list: &'a [(&[&str], &str)], line: &str) -> Option<(String, &'a str)> {
    let words = words(line);
    (0..words.len()).find_map(|at| {
        let word = words[at].as_str();
        let (_, instead) = list.iter().find(|(private, _)| private.contains(&word))?;
        let after = |before| at > 0 && words[at - 1] == before;
        let before = |after| words.get(at + 1).is_some_and(|next| next == after);
        let standard = match word {
            "flight" => after("in"),
            "look" | "looks" | "looked" => before("up") || before("like"),
            _ => false,
        };
        (!standard).then(|| (word.to_owned(), *instead))
    })
}

fn prose_and_code() -> Vec<String> {
    let out = Command::new("git")
        .arg("ls-files")
        .current_dir(root())
        .output()
        .unwrap();
    let names = String::from_utf8(out.stdout).unwrap();
    let ours = |name: &&str| {
        let end = name.rsplit('.').next().unwrap_or("");
        ["rs", "md", "toml", "py", "sh", "ts", "tsx", "css"].contains(&end)
    };
    names.lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn private_words_stay_away() {
    let mut found = Vec::new();
    for name in prose_and_code() {
        let Ok(text) = fs::read_to_string(root().join(&name)) else {
            continue;
        };
        for (n, line) in text.lines().enumerate() {
            let Some((word, instead)) = private(&WORDS, line) else {
                continue;
            };
            if !is_exception(&name, &word) {
                found.push(format!("{name}:{}: {word} (use: {instead})", n + 1));
            }
        }
    }
    report("a private word", "a reader knows the standard term", &found);
}

/// The identifiers of a program, with their lines.
fn names(tokens: TokenStream, source: &Source, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => names(group.stream(), source, found),
            TokenTree::Ident(name) => {
                let line = name.span().start().line;
                if let Some((word, instead)) = private(&NAMES, &name.to_string())
                    && !source.tested(line)
                    && !is_exception(&source.path, &word)
                {
                    found.push(format!("{}:{line}: {name} (use: {instead})", source.path));
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Declared types, with their lines.
struct Types<'a>(&'a Source, Vec<String>);

impl Types<'_> {
    fn note(&mut self, name: &syn::Ident) {
        if TYPES.iter().any(|word| name == word) {
            let line = name.span().start().line;
            self.1.push(format!("{}:{line}: {name}", self.0.path));
        }
    }
}

impl<'ast> Visit<'ast> for Types<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.note(&item.ident);
    }
    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.note(&item.ident);
    }
    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.note(&item.ident);
    }
    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.note(&item.ident);
        visit::visit_item_trait(self, item);
    }
    fn visit_trait_item_type(&mut self, item: &'ast syn::TraitItemType) {
        self.note(&item.ident);
    }
}

#[test]
fn names_are_standard_terms() {
    let mut found = Vec::new();
    for source in sources(&["bin", "crates", "xtask"]) {
        names(source.text.parse().unwrap(), source, &mut found);
    }
    report(
        "a private word in a name",
        "a reader knows the standard term",
        &found,
    );
    let mut found = Vec::new();
    for source in sources(&[
        "benches", "bin", "crates", "examples", "fuzz", "models", "tests", "xtask",
    ]) {
        let mut types = Types(source, Vec::new());
        types.visit_file(&source.parsed());
        found.append(&mut types.1);
    }
    report(
        "a type whose name is no noun",
        "a type is a thing that a reader can look up",
        &found,
    );
}

#[test]
fn words_are_found_in_names_and_the_standard_term_is_not() {
    let first = |line| private(&WORDS, line).map(|(word, _)| word);
    for line in [
        "in-flight",
        "in_flight",
        "InFlight",
        "inflight",
        "islands",
        "planes",
        "amended",
    ] {
        assert_eq!(first(line), None, "{line}");
    }
    for line in ["a flight", "flight_of", "MaxFlights: 1", "FLIGHTS"] {
        assert!(first(line).is_some(), "{line}");
    }
}
