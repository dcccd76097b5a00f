//! The documents agree with the tree: generated parts with the code, excerpts with the sources, names and links with
//! files. `RON_UPDATE_DOCS=1` regenerates generated parts and excerpts.

#![allow(clippy::unwrap_used)]

mod api;
mod commands;
mod concurrency;
mod events;
mod keys;
mod links;
mod packaging;
mod regions;
mod running;
mod schema;
mod site;
mod testing;

use std::fs;

use ron_service::config::render_markdown;
use ron_services::SERVICES;
use ron_tests::workspace;

/// The command that regenerates the documents; part of every failure message.
const UPDATE: &str = "regenerate it with: cargo build --release && RON_UPDATE_DOCS=1 cargo test --release -p ron-tests --test docs";

fn updating() -> bool {
    std::env::var_os("RON_UPDATE_DOCS").is_some()
}

/// A file of `docs/` must hold exactly `text`.
fn compare(name: &str, text: &str) {
    let path = workspace().join("docs").join(name);
    if updating() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/{name} differs from what the code generates; {UPDATE}"
    );
}

#[test]
fn configuration_pages_are_what_the_tables_say() {
    for service in SERVICES {
        compare(
            &format!("config/{}.md", service.name()),
            &format!(
                "# Configuration of {}\n\n{}",
                service.name(),
                render_markdown(service.table)
            ),
        );
    }
}
