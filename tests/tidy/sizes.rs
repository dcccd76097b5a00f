//! Files and functions stay small enough to be read.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ExprMatch, ImplItemFn, ItemFn, Signature};

use crate::report;
use crate::tree::{Source, sources};

const FILE_LINES_MAX: usize = 600;
/// Lines of a function without its longest `match`: a long exhaustive match reads better whole.
const FN_LINES_MAX: usize = 70;
const MAIN_LINES_MAX: usize = 80;

/// Files that may be longer than [`FILE_LINES_MAX`]; this list only shrinks.
const LONG_FILES: &[&str] = &["crates/ron-proto/src/rewarder.rs"];
/// How many functions may be longer than [`FN_LINES_MAX`]; this number only shrinks.
const LONG_FUNCTIONS_MAX: usize = 5;

#[test]
fn files_stay_small() {
    let mut long = Vec::new();
    for s in sources(&["crates", "bin", "xtask"]) {
        let lines = s.text.lines().count();
        if lines > FILE_LINES_MAX && !LONG_FILES.contains(&s.path.as_str()) {
            long.push(format!("{}: {lines} lines", s.path));
        }
        if s.path.starts_with("bin/") && s.path.ends_with("/main.rs") && lines > MAIN_LINES_MAX {
            long.push(format!(
                "{}: {lines} lines, main files have at most {MAIN_LINES_MAX}",
                s.path
            ));
        }
    }
    report(
        &format!("files over {FILE_LINES_MAX} lines"),
        "split them by what they are about",
        &long,
    );
}

#[test]
fn functions_stay_small() {
    let mut found = Vec::new();
    for source in sources(&["crates", "bin", "xtask"]) {
        let mut functions = Functions {
            source,
            long: Vec::new(),
        };
        functions.visit_file(&source.parsed());
        found.append(&mut functions.long);
    }
    assert!(
        found.len() <= LONG_FUNCTIONS_MAX,
        "functions over {FN_LINES_MAX} lines: {} where {LONG_FUNCTIONS_MAX} are allowed\n  {}",
        found.len(),
        found.join("\n  ")
    );
}

fn lines(spanned: &impl Spanned) -> usize {
    let span = spanned.span();
    span.end().line - span.start().line
}

struct Functions<'a> {
    source: &'a Source,
    long: Vec<String>,
}

impl Functions<'_> {
    fn check(&mut self, signature: &Signature, block: &Block) {
        let line = signature.span().start().line;
        if self.source.tested(line) {
            return;
        }
        let mut matches = LongestMatch(0);
        matches.visit_block(block);
        let whole = block.span().end().line - line;
        if whole - matches.0 > FN_LINES_MAX {
            let name = &signature.ident;
            self.long.push(format!(
                "{}:{line}: {name}, {whole} lines",
                self.source.path
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.check(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.check(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

struct LongestMatch(usize);

impl<'ast> Visit<'ast> for LongestMatch {
    fn visit_expr_match(&mut self, expr: &'ast ExprMatch) {
        self.0 = self.0.max(lines(expr));
    }
}
