//! Generated parts of a page: `<!-- generated: NAME -->` up to `<!-- /generated -->`, and `<!--
//! excerpt: FILE#PART -->` up to `<!-- /excerpt -->`, which contains the lines between `// part:
//! PART` and `// end` of the file.

use std::fs;

use ron_tests::workspace;

use crate::{UPDATE, links, updating};

/// The regions of a kind in a page: name, and the byte range between the two comments.
fn regions(page: &str, kind: &str) -> Vec<(String, std::ops::Range<usize>)> {
    let (open, close) = (format!("<!-- {kind}: "), format!("<!-- /{kind} -->"));
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = page[at..].find(&open) {
        let name_at = at + begin + open.len();
        let name_end = name_at + page[name_at..].find(" -->\n").expect("a closed comment");
        let inside = name_end + " -->\n".len();
        let end = inside + page[inside..].find(&close).expect("a region has an end");
        found.push((page[name_at..name_end].to_owned(), inside..end));
        at = end;
    }
    found
}

/// Every region of `kind` in docs/`name` must contain the text that `make` returns for its name;
/// returns the names.
pub fn check(name: &str, kind: &str, mut make: impl FnMut(&str) -> Option<String>) -> Vec<String> {
    let path = workspace().join("docs").join(name);
    let page = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let found = regions(&page, kind);
    let mut new = page.clone();
    for (region, range) in found.iter().rev() {
        let text = make(region).unwrap_or_else(|| panic!("docs/{name}: nothing makes {region}"));
        new.replace_range(range.clone(), &format!("{}\n", text.trim_end()));
    }
    if updating() {
        fs::write(&path, new).unwrap();
    } else {
        assert!(
            new == page,
            "docs/{name} is out of date ({kind} parts); {UPDATE}"
        );
    }
    found.into_iter().map(|(region, _)| region).collect()
}

/// The part `name` of a source, as a block of Rust.
fn excerpt(place: &str) -> Option<String> {
    let (file, part) = place.split_once('#')?;
    let source = fs::read_to_string(workspace().join(file)).ok()?;
    let begin = format!("// part: {part}\n");
    let (_, rest) = source.split_once(&begin)?;
    let (inside, _) = rest.split_once("// end\n")?;
    Some(format!("```rust\n{}\n```", inside.trim_end()))
}

#[test]
fn excerpts_are_what_the_sources_say() {
    let docs = workspace().join("docs");
    let mut seen = 0;
    for page in links::pages() {
        let Ok(name) = page.strip_prefix(&docs) else {
            continue;
        };
        seen += check(name.to_str().unwrap(), "excerpt", excerpt).len();
    }
    assert!(seen >= 8, "{seen} excerpts");
}

#[test]
fn a_region_is_found_by_its_comments() {
    let page = "a\n<!-- generated: x y -->\nold\n<!-- /generated -->\nb\n";
    let found = regions(page, "generated");
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].0.as_str(), &page[found[0].1.clone()]),
        ("x y", "old\n")
    );
    assert!(regions(page, "excerpt").is_empty());
}
