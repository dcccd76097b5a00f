//! Links between pages lead somewhere, headings included.

use std::fs;
use std::path::{Path, PathBuf};

use ron_tests::workspace;

/// Every Markdown file of the project, in order.
pub fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(&workspace(), &mut found);
    found.sort();
    assert!(found.len() > 40, "{found:?}");
    found
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !matches!(name, "target" | "node_modules") && !name.starts_with('.') {
            walk(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Makes an anchor of a heading as forges do: lower case, spaces to dashes, no punctuation.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn has_heading(page: &Path, wanted: &str) -> bool {
    let text = fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| line.trim_start_matches('#'))
        .any(|heading| anchor(heading) == wanted)
}

#[test]
fn links_between_pages_lead_somewhere() {
    if crate::updating() {
        return; // other tests are writing the pages
    }
    let mut dead = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for target in targets {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") || file.starts_with("mailto:") || file.contains(' ') {
                continue;
            }
            let to = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let named =
                || to.extension().is_none_or(|end| end != "md") || has_heading(&to, heading);
            if !to.exists() || (!heading.is_empty() && !named()) {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// A bar in a cell would end the cell, also inside of code; it is written `\|`.
#[test]
fn rows_of_tables_have_as_many_cells_as_their_heads() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let (mut cells, mut code) = (None, false);
        for (n, line) in text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            if code || !line.starts_with('|') {
                cells = None;
                continue;
            }
            let here = line.replace("\\|", "").matches('|').count();
            if *cells.get_or_insert(here) != here {
                wrong.push(format!("{}:{}: {line}", page.display(), n + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
