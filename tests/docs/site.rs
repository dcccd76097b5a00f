//! The site that mdbook makes from docs/: SUMMARY.md has every page once, and every link of the built pages leads
//! somewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use ron_tests::workspace;

use crate::links::pages;
use crate::{regions, updating};

/// The pages of docs/, as SUMMARY.md names them.
fn of_the_site() -> BTreeSet<String> {
    let docs = workspace().join("docs");
    let pages = pages().into_iter().filter_map(|page| {
        let name = page.strip_prefix(&docs).ok()?.to_str().unwrap().to_owned();
        (name != "SUMMARY.md").then_some(name)
    });
    pages.collect()
}

#[test]
fn the_summary_has_every_page_once() {
    let summary = fs::read_to_string(workspace().join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1);
    let links: Vec<_> = links
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect();
    let listed: BTreeSet<_> = links.iter().cloned().collect();
    assert_eq!(listed.len(), links.len(), "a page twice in docs/SUMMARY.md");
    let pages = of_the_site();
    let lost: Vec<_> = pages.difference(&listed).collect();
    assert!(
        lost.is_empty(),
        "docs/SUMMARY.md lacks {lost:?}: no reader of the site finds them"
    );
    let gone: Vec<_> = listed.difference(&pages).collect();
    assert!(gone.is_empty(), "docs/SUMMARY.md names {gone:?}");
}

#[test]
fn the_site_is_built_and_its_links_lead_somewhere() {
    if updating() {
        return; // other tests are writing the pages
    }
    let line = xtask::command().get_matches_from(["xtask", "site"]);
    if let Err(failure) = xtask::run(&line) {
        panic!("{failure}");
    }
}

#[test]
fn the_list_of_decisions_is_that_of_the_files() {
    let pages = of_the_site();
    let records = pages.iter().filter_map(|page| {
        let file = page.strip_prefix("adr/")?;
        file.starts_with('0').then_some(file)
    });
    let mut list = String::new();
    for file in records {
        let text = fs::read_to_string(workspace().join("docs/adr").join(file)).unwrap();
        let heading = text.lines().next().unwrap().trim_start_matches("# ");
        let (number, title) = heading.split_once(": ").expect("`# 0001: Title`");
        let _ = writeln!(list, "- [{number}]({file}): {title}");
    }
    regions::check("adr/README.md", "generated", |part| {
        (part == "decisions").then(|| list.clone())
    });
}
