//! Generated documents equal what is committed; `RON_UPDATE_DOCS=1` writes them anew.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use ron_kernel::Topology;
use ron_service::config::render_markdown;
use ron_service::{Table, topology_faults};
use ron_tests::workspace;

fn tables() -> [(&'static Table, &'static Topology); 6] {
    [
        (&ron_kms::config::TABLE, &ron_kms::topology::TOPOLOGY),
        (
            &svc_passport::config::TABLE,
            &svc_passport::topology::TOPOLOGY,
        ),
        (&ron_ledger::config::TABLE, &ron_ledger::topology::TOPOLOGY),
        (&svc_wallet::config::TABLE, &svc_wallet::topology::TOPOLOGY),
        (
            &svc_rewarder::config::TABLE,
            &svc_rewarder::topology::TOPOLOGY,
        ),
        (&svc_admin::config::TABLE, &svc_admin::topology::TOPOLOGY),
    ]
}

fn compare(name: &str, text: &str) {
    let path = workspace().join("docs").join(name);
    if std::env::var_os("RON_UPDATE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/{name} is not what the code says; write it anew with: RON_UPDATE_DOCS=1 cargo test --release -p ron-tests --test docs"
    );
}

#[test]
fn configuration_pages_are_what_the_tables_say() {
    for (table, _) in tables() {
        compare(
            &format!("config/{}.md", table.service),
            &render_markdown(table),
        );
    }
}

#[test]
fn the_topology_page_is_what_the_tables_say() {
    let mut text = "# Threads, queues and locks\n\nGenerated from the tables that the services are built from.\n\n".to_owned();
    for (_, topology) in tables() {
        text.push_str(&topology.to_markdown());
        text.push('\n');
        let faults = topology_faults(topology);
        assert!(
            faults.is_empty(),
            "{}: {}",
            topology.service,
            faults.join("; ")
        );
    }
    compare("topology.md", &text);
}

/// Every Markdown file of the project.
fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !matches!(name, "target" | "node_modules") && !name.starts_with('.') {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut found = Vec::new();
    pages(&workspace(), &mut found);
    assert!(found.len() > 20, "{found:?}");
    let mut dead = Vec::new();
    for page in &found {
        let text = fs::read_to_string(page).unwrap();
        let targets = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for target in targets {
            let file = target.split('#').next().unwrap();
            let foreign = file.contains("://") || file.starts_with("mailto:") || file.contains(' ');
            if !file.is_empty() && !foreign && !page.parent().unwrap().join(file).exists() {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}
