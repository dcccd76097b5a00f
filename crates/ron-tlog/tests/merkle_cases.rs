//! Runs every proof case of testdata/merkle, valid and hostile, against the verifiers.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ron_crypto::hash::sha256;
use ron_tlog::tree::{Hash, verify_consistency, verify_inclusion};
use serde_json::Value;

/// The hash under a name; `None` when it is not 32 bytes, which our types refuse before any check.
fn hash(case: &Value, name: &str) -> Option<Hash> {
    let text = case[name].as_str().unwrap_or_default();
    let bytes = STANDARD.decode(text).expect("cases are base64");
    bytes.try_into().ok()
}

/// The root under a name. Roots of another length are mapped to hashes: equal roots stay equal,
/// different ones different.
fn some_root(case: &Value, name: &str) -> Hash {
    hash(case, name).unwrap_or_else(|| {
        let text = case[name].as_str().unwrap_or_default();
        sha256(format!("root of another length: {text}").as_bytes())
    })
}

fn number(case: &Value, name: &str) -> u64 {
    case[name].as_u64().expect("a number")
}

/// `None` when a proof hash is not 32 bytes, which our parser refuses before any check.
fn hashes(case: &Value) -> Option<Vec<Hash>> {
    let lines = case["proof"].as_array().map_or(&[][..], Vec::as_slice);
    let decode = |h: &Value| {
        STANDARD
            .decode(h.as_str().expect("text"))
            .expect("cases are base64")
    };
    lines.iter().map(|h| decode(h).try_into().ok()).collect()
}

fn files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("testdata is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|e| e == "json") {
            into.push(path);
        }
    }
}

fn check(kind: &str, accepts: impl Fn(&Value, &[Hash]) -> bool) {
    let mut paths = Vec::new();
    files(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("testdata/merkle")
            .join(kind),
        &mut paths,
    );
    let mut valid = 0;
    for path in &paths {
        let text = std::fs::read(path).expect("readable");
        let case: Value = serde_json::from_slice(&text).expect("JSON");
        let expected = !case["wantErr"].as_bool().expect("a verdict");
        let accepted = hashes(&case).is_some_and(|proof| accepts(&case, &proof));
        assert_eq!(accepted, expected, "{}", path.display());
        valid += usize::from(expected);
    }
    assert!(
        paths.len() >= 90 && valid >= 5,
        "{} cases, {valid} valid",
        paths.len()
    );
}

#[test]
fn inclusion_cases() {
    check("inclusion", |case, proof| {
        let (Some(leaf), Some(root)) = (hash(case, "leafHash"), hash(case, "root")) else {
            return false;
        };
        let (index, size) = (number(case, "leafIdx"), number(case, "treeSize"));
        verify_inclusion(&leaf, index, size, proof, &root).is_ok()
    });
}

#[test]
fn consistency_cases() {
    check("consistency", |case, proof| {
        let (old, new) = (some_root(case, "root1"), some_root(case, "root2"));
        let (from, to) = (number(case, "size1"), number(case, "size2"));
        verify_consistency(from, to, proof, &old, &new).is_ok()
    });
}
