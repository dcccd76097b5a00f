//! Documents agree with the project: generated parts with the code, excerpts with the sources,
//! names with the tree, links with files. `RON_UPDATE_DOCS=1` rewrites generated parts and
//! excerpts.

#![allow(clippy::unwrap_used)]

mod api;
mod commands;
mod concurrency;
mod keys;
mod links;
mod regions;
mod running;
mod schema;
mod testing;

use std::fs;

use ron_kernel::Topology;
use ron_service::config::render_markdown;
use ron_service::{Start, Table};
use ron_tests::workspace;

/// A service as its crate defines it.
#[derive(Clone, Copy)]
struct Service {
    table: &'static Table,
    topology: &'static Topology,
    start: Start,
}

impl Service {
    fn name(self) -> &'static str {
        self.table.service
    }
}

macro_rules! services {
    ($($krate:ident),*) => {
        [$(Service {
            table: &$krate::config::TABLE,
            topology: &$krate::topology::TOPOLOGY,
            start: $krate::start,
        }),*]
    };
}

const SERVICES: [Service; 6] = services!(
    ron_kms,
    svc_passport,
    ron_ledger,
    svc_wallet,
    svc_rewarder,
    svc_admin
);

/// How to rewrite the documents; part of every failure.
const UPDATE: &str = "write it anew with: cargo build --release && RON_UPDATE_DOCS=1 cargo test --release -p ron-tests --test docs";

fn updating() -> bool {
    std::env::var_os("RON_UPDATE_DOCS").is_some()
}

/// A file of `docs/` must contain exactly `text`.
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
        "docs/{name} is not what the code says; {UPDATE}"
    );
}

#[test]
fn configuration_pages_are_what_the_tables_say() {
    for service in SERVICES {
        compare(
            &format!("config/{}.md", service.name()),
            &render_markdown(service.table),
        );
    }
}
