//! Crates depend downwards, on nothing with an async runtime, and on nothing without a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use crate::{report, root};

/// Our crates and their layers.
const LAYERS: &[(&str, u8)] = &[
    ("ron-proto", 0),
    ("ron-sim", 0),
    ("ron-kernel", 0),
    ("ron-crypto", 1),
    ("ron-files", 2),
    ("ron-tlog", 3),
    ("ron-http", 3),
    ("ron-auth", 4),
    ("ron-client", 4),
    ("ron-pg", 4),
    ("ron-pkcs11", 5),
    ("ron-service", 5),
    ("ron-custody", 6),
    ("ron-kms", 6),
    ("svc-passport", 6),
    ("ron-ledger", 6),
    ("svc-wallet", 6),
    ("svc-rewarder", 6),
    ("svc-admin", 6),
    ("ron-services", 7),
];

/// The uses within a layer: the operations use the keys; the kernel uses the simulator, under `cfg(sim)` alone.
const WITHIN_A_LAYER: [(&str, &str); 2] = [("ron-kms", "ron-custody"), ("ron-kernel", "ron-sim")];

/// What `cargo metadata` says of the workspace, with all features.
static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let out = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--all-features",
            "--locked",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}");
    serde_json::from_slice(&out.stdout).expect("cargo metadata is JSON")
});

fn packages() -> &'static [Value] {
    METADATA["packages"].as_array().expect("packages")
}

/// Members of the workspace.
fn members() -> impl Iterator<Item = &'static Value> {
    let ids = METADATA["workspace_members"].as_array().expect("members");
    packages().iter().filter(move |p| ids.contains(&p["id"]))
}

#[test]
fn dependencies_point_down_only() {
    let layers: BTreeMap<_, _> = LAYERS.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for package in members() {
        let name = package["name"].as_str().unwrap();
        let Some(layer) = layers.get(name) else {
            continue;
        };
        seen += 1;
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            // Tests of a crate may use any other.
            if let Some(other_layer) = layers.get(other)
                && dependency["kind"] != "dev"
                && other_layer >= layer
                && !WITHIN_A_LAYER.contains(&(name, other))
            {
                wrong.push(format!(
                    "{name} (layer {layer}) depends on {other} (layer {other_layer})"
                ));
            }
        }
    }
    assert_eq!(seen, LAYERS.len(), "a crate of the list is missing");
    let crates = fs::read_dir(root().join("crates")).unwrap().count();
    assert_eq!(crates, LAYERS.len(), "a crate is missing in the list");
    report(
        "a crate depends only on lower layers, never on a crate of its own",
        "services speak HTTP through ron-client, so that each can be run, tested and replaced alone",
        &wrong,
    );
}

/// The simulator can be taken over by itself, and is in no program.
#[test]
fn the_simulator_stands_alone() {
    let mut wrong = Vec::new();
    for package in members() {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            let tests = dependency["kind"] == "dev";
            if name == "ron-sim" && !tests {
                wrong.push(format!("ron-sim depends on {other}"));
            }
            if other == "ron-sim" && !tests && dependency["target"] != "cfg(sim)" {
                wrong.push(format!("{name} depends on ron-sim without `cfg(sim)`"));
            }
        }
    }
    report(
        "the simulator has no dependencies, and programs do not have it",
        "it replaces a function of the C library in what links it, and others should be able to use it alone",
        &wrong,
    );
}

#[test]
fn no_async_runtime_is_in_the_tree() {
    let names: BTreeSet<&str> = packages()
        .iter()
        .filter_map(|p| p["name"].as_str())
        .collect();
    assert!(names.contains("ron-kernel"), "the metadata is not ours");
    let forbidden = [
        "tokio",
        "async-std",
        "smol",
        "async-executor",
        "async-io",
        "futures-executor",
        "postgres",
        "hyper",
        "monoio",
        "glommio",
        "may",
        "actix-rt",
    ];
    let found: Vec<_> = forbidden
        .iter()
        .filter(|f| names.contains(**f))
        .map(ToString::to_string)
        .collect();
    report(
        "an async runtime in the tree",
        "every thread here is a named thread that drains",
        &found,
    );
}

/// What the page says a crate is for must hold of the manifests: of tests alone, of a feature, or of programs.
#[test]
fn every_dependency_has_its_line_and_the_line_is_true() {
    let page = fs::read_to_string(root().join("docs/adr/dependencies.md")).unwrap();
    let purpose: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let name = cells.next()?.trim().trim_end_matches('`');
            Some((name, cells.next()?.trim()))
        })
        .collect();
    // Name to whether a library or binary links it, and whether it does so without a feature.
    let mut used: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    for package in members() {
        // Tests, load generators and xtask are members of their own, whose dependencies no program has.
        let for_tests = ["tests", "benches", "models", "xtask"].iter().any(|dir| {
            let manifest = package["manifest_path"].as_str().unwrap();
            manifest.starts_with(&format!("{}/{dir}/", root().display()))
        });
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            // A model checker is in no program: it takes the place of the machine's primitives in models.
            let checker = ["cfg(loom)", "cfg(shuttle)", "cfg(sim)"]
                .iter()
                .any(|cfg| dependency["target"] == *cfg);
            let linked = dependency["kind"].is_null() && !for_tests && !checker;
            let always = linked && dependency["optional"] == false;
            let entry = used.entry(name).or_default();
            *entry = (entry.0 || linked, entry.1 || always);
        }
    }
    let mut wrong = Vec::new();
    for (name, (linked, always)) in &used {
        if LAYERS.iter().any(|(ours, _)| ours == name)
            || name.starts_with("ron-")
            || *name == "xtask"
        {
            continue;
        }
        let Some(purpose) = purpose.get(name) else {
            wrong.push(format!("{name} has no line"));
            continue;
        };
        let says_tests = purpose.contains("tests only") || purpose.contains("never in a binary");
        let says_feature = purpose.contains("(feature ");
        if says_tests == *linked {
            wrong.push(format!(
                "{name}: in programs: {linked}, but the line says: {purpose}"
            ));
        } else if *linked && says_feature == *always {
            wrong.push(format!(
                "{name}: without a feature: {always}, but the line says: {purpose}"
            ));
        }
    }
    for name in purpose.keys().filter(|name| !used.contains_key(*name)) {
        wrong.push(format!("{name} has a line and no user"));
    }
    report(
        "docs/adr/dependencies.md and the manifests disagree",
        "each dependency has a reason and a keeper, and a reader believes the page",
        &wrong,
    );
}
