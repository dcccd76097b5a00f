//! The Rust files of the workspace, parsed, with the code that only tests compile told from the rest.

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::TokenTree;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, Meta};

use crate::root;

pub struct Source {
    /// From the root of the workspace.
    pub path: String,
    pub text: String,
    /// Lines of the code that goes into a program: items that only tests compile are empty lines, comments are cut.
    /// All of them are empty in a file of tests.
    pub code: Vec<String>,
    tests: Vec<RangeInclusive<usize>>,
    pub is_test: bool,
}

impl Source {
    /// Its syntax tree. Parsed by each caller, because a tree cannot be shared between threads.
    pub fn parsed(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|e| panic!("{}: {e}", self.path))
    }

    /// The crate it belongs to, for files below `crates/` and `bin/`.
    pub fn krate(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or("")
    }

    /// Whether only tests compile this line (from 1).
    pub fn tested(&self, line: usize) -> bool {
        self.is_test || self.tests.iter().any(|range| range.contains(&line))
    }
}

/// All files below these directories, in the order of their paths.
pub fn sources(under: &[&str]) -> Vec<&'static Source> {
    static ALL: LazyLock<Vec<Source>> = LazyLock::new(read_all);
    let below = |source: &&Source| {
        let first = source.path.split('/').next();
        under.iter().any(|dir| first == Some(*dir))
    };
    let found: Vec<_> = ALL.iter().filter(below).collect();
    assert!(found.len() > 5, "no sources below {under:?}");
    found
}

/// Reads the tree once for all rules.
fn read_all() -> Vec<Source> {
    let mut paths = Vec::new();
    for dir in [
        "benches", "bin", "crates", "examples", "fuzz", "models", "tests", "xtask",
    ] {
        walk(&root().join(dir), &mut paths);
    }
    paths.sort();
    let (mut all, declarations): (Vec<Source>, Vec<Vec<Declared>>) =
        paths.iter().map(|path| read(path)).unzip();
    // A module of tests may declare more of them: until nothing is added.
    let mut test_modules = BTreeSet::new();
    loop {
        let before = test_modules.len();
        for (source, declared) in all.iter().zip(&declarations) {
            let of_tests = declared.iter().filter(|d| d.for_tests || source.is_test);
            test_modules.extend(of_tests.map(|d| d.dir.clone()));
        }
        for source in &mut all {
            let module = module_dir(Path::new(&source.path));
            if module.ancestors().any(|dir| test_modules.contains(dir)) {
                source.is_test = true;
                source.code.iter_mut().for_each(String::clear);
            }
        }
        if test_modules.len() == before {
            break;
        }
    }
    all
}

fn walk(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && name != "node_modules" && name != "dist" {
                walk(&path, into);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path);
        }
    }
}

fn read(path: &Path) -> (Source, Vec<Declared>) {
    let text = fs::read_to_string(path).unwrap();
    let name = path.strip_prefix(root()).unwrap().display().to_string();
    let file = syn::parse_file(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut finder = TestItems(Vec::new());
    finder.visit_file(&file);
    let tests = finder.0;
    let code = text.lines().enumerate().map(|(at, line)| {
        if tests.iter().any(|range| range.contains(&(at + 1))) {
            String::new()
        } else {
            without_comment(line)
        }
    });
    let of_tests = ["/tests/", "/examples/", "/benches/"];
    let is_test = only_in_tests(&file.attrs) || of_tests.iter().any(|dir| name.contains(dir));
    let declared = declared(Path::new(&name), &file);
    let source = Source {
        code: if is_test { Vec::new() } else { code.collect() },
        is_test,
        path: name,
        tests,
        text,
    };
    (source, declared)
}

/// Line comments away, so that prose may name what code may not.
fn without_comment(line: &str) -> String {
    match line.find("//") {
        Some(at) if !line[..at].contains('"') => line[..at].to_owned(),
        _ => line.to_owned(),
    }
}

/// Whether attributes leave the code to tests: `cfg(test)`, `cfg(all(test, ...))`.
pub fn only_in_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let Meta::List(list) = &attr.meta else {
            return false;
        };
        let mut tokens = list.tokens.clone().into_iter();
        let first = tokens.next();
        let is_test = |tree: &TokenTree| matches!(tree, TokenTree::Ident(word) if word == "test");
        let all_of = matches!(&first, Some(TokenTree::Ident(word)) if word == "all");
        list.path.is_ident("cfg")
            && match (first, tokens.next()) {
                (Some(tree), None) => is_test(&tree),
                (Some(_), Some(TokenTree::Group(group))) if all_of => {
                    group.stream().into_iter().any(|tree| is_test(&tree))
                }
                _ => false,
            }
    })
}

/// Lines of items that only tests compile.
struct TestItems(Vec<RangeInclusive<usize>>);

impl TestItems {
    fn note(&mut self, attrs: &[Attribute], spanned: &impl Spanned) -> bool {
        let found = only_in_tests(attrs);
        if found {
            let span = spanned.span();
            self.0.push(span.start().line..=span.end().line);
        }
        found
    }
}

impl<'ast> Visit<'ast> for TestItems {
    fn visit_item(&mut self, item: &'ast Item) {
        let attrs: &[Attribute] = match item {
            Item::Const(i) => &i.attrs,
            Item::Enum(i) => &i.attrs,
            Item::Fn(i) => &i.attrs,
            Item::Impl(i) => &i.attrs,
            Item::Macro(i) => &i.attrs,
            Item::Mod(i) => &i.attrs,
            Item::Static(i) => &i.attrs,
            Item::Struct(i) => &i.attrs,
            Item::Trait(i) => &i.attrs,
            Item::Type(i) => &i.attrs,
            Item::Use(i) => &i.attrs,
            _ => &[],
        };
        if !self.note(attrs, item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !self.note(&item.attrs, item) {
            visit::visit_impl_item_fn(self, item);
        }
    }
}

/// The directory that holds the files of a file's own modules.
pub fn module_dir(path: &Path) -> PathBuf {
    let stem = path.file_stem().unwrap();
    let parent = path.parent().unwrap();
    if stem == "lib" || stem == "main" || stem == "mod" {
        parent.to_owned()
    } else {
        parent.join(stem)
    }
}

/// A module that is declared in one file and stands in another.
struct Declared {
    /// The directory of its own modules.
    dir: PathBuf,
    for_tests: bool,
}

/// The modules that a file declares.
fn declared(path: &Path, file: &syn::File) -> Vec<Declared> {
    let mut found = Vec::new();
    for item in &file.items {
        let Item::Mod(ItemMod {
            attrs,
            ident,
            content: None,
            ..
        }) = item
        else {
            continue;
        };
        let named = attrs.iter().find_map(|attr| match &attr.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => Some(&pair.value),
            _ => None,
        });
        let dir = match named {
            Some(syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(file),
                ..
            })) => module_dir(&path.parent().unwrap().join(file.value())),
            _ => module_dir(path).join(ident.to_string()),
        };
        let for_tests = only_in_tests(attrs);
        found.push(Declared { dir, for_tests });
    }
    found
}

/// The holes that an earlier checker had: code after a test module declared on top, and code inside of one.
#[test]
fn test_items_alone_are_left_out() {
    let text = "#[cfg(test)]\nmod tests;\nfn product() {}\n#[cfg(all(test, loom))]\nmod models {\n    fn model() {}\n}\n\
                impl A {\n    #[cfg(test)]\n    fn probe() {}\n    fn used() {}\n}\n#[cfg(not(test))]\nfn real() {}\n";
    let mut finder = TestItems(Vec::new());
    finder.visit_file(&syn::parse_file(text).unwrap());
    assert_eq!(finder.0, [1..=2, 4..=7, 9..=10]);
}
