//! The seeds of fuzz targets, and random changes of them, in process: what `cargo xtask fuzz` does for longer.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../../fuzz/src/assertion.rs"]
mod assertion;
#[path = "../../fuzz/src/chunked.rs"]
mod chunked;
#[path = "../../fuzz/src/form.rs"]
mod form;
#[path = "../../fuzz/src/host.rs"]
mod host;
#[path = "../../fuzz/src/http.rs"]
mod http;
#[path = "../../fuzz/src/json.rs"]
mod json;
#[path = "../../fuzz/src/kms.rs"]
mod kms;
#[path = "../../fuzz/src/ledger.rs"]
mod ledger;
#[path = "../../fuzz/src/metrics.rs"]
mod metrics;
#[path = "../../fuzz/src/paths.rs"]
mod paths;
#[path = "../../fuzz/src/pieces.rs"]
mod pieces;
#[path = "../../fuzz/src/request.rs"]
mod request;
#[path = "../../fuzz/src/routing.rs"]
mod routing;
#[path = "../../fuzz/src/token.rs"]
mod token;
#[path = "../../fuzz/src/transit.rs"]
mod transit;
#[path = "../../fuzz/src/unpack.rs"]
mod unpack;
#[path = "../../fuzz/src/usage.rs"]
mod usage;

use ron_tests::Draws;
use svc_admin::promtext;

/// Changes a byte, removes bytes, or repeats some.
fn changed(draws: &mut Draws, mut bytes: Vec<u8>) -> Vec<u8> {
    let mut below = |n: usize| draws.below(n as u64) as usize;
    let from = below(bytes.len() + 1);
    let (to, byte) = (
        from + below(bytes.len() - from + 1).min(16),
        below(256) as u8,
    );
    match below(4) {
        0 if from < bytes.len() => bytes[from] = byte,
        1 => drop(bytes.drain(from..to)),
        2 => {
            let again = bytes[from..to].to_vec();
            bytes.splice(from..from, again);
        }
        _ => bytes.insert(from, byte),
    }
    bytes
}

fn replay(target: &str, run: fn(&[u8])) {
    let corpus = ron_tests::workspace().join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(corpus).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    for seed in &seeds {
        run(seed);
    }
    let mut draws = Draws::seeded();
    for _ in 0..ron_tests::number("RON_INPUTS", 300) {
        let mut input = seeds[draws.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=draws.below(4) {
            input = changed(&mut draws, input);
        }
        run(&input);
    }
}

#[test]
fn client_assertions() {
    replay("assertion", assertion::run);
}

#[test]
fn forms() {
    replay("form", form::run);
}

#[test]
fn bodies_of_the_kms() {
    replay("kms", kms::run);
}

#[test]
fn bodies_of_the_vault_transit_routes() {
    replay("transit", transit::run);
}

#[test]
fn streams_of_requests() {
    replay("request", request::run);
}

#[test]
fn chunked_bodies() {
    replay("chunked", chunked::run);
}

#[test]
fn paths_and_routes() {
    replay("routing", routing::run);
}

#[test]
fn compressed_bodies() {
    replay("unpack", unpack::run);
}

#[test]
fn strict_json() {
    replay("json", json::run);
}

#[test]
fn pages_of_metrics() {
    replay("metrics", metrics::run);
}

#[test]
fn operations_leaves_and_images_of_the_ledger() {
    replay("ledger", ledger::run);
}

#[test]
fn tokens_statements_and_proofs() {
    replay("token", token::run);
}

#[test]
fn files_of_usage() {
    replay("usage", usage::run);
}

#[test]
fn every_target_has_seeds_and_a_test_here() {
    let list = |path: &str| {
        let files = std::fs::read_dir(ron_tests::workspace().join(path)).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_string_lossy().into_owned()
        };
        files.map(name).collect::<std::collections::BTreeSet<_>>()
    };
    let targets = list("fuzz/fuzz_targets");
    assert_eq!(targets, list("fuzz/corpus"));
    for target in targets {
        // The readers of columns need a feature; svc-rewarder's own test replays these.
        let here = include_str!("main.rs").contains(&format!("replay(\"{target}\""));
        assert!(here || target == "columns", "{target}");
    }
}
