//! The seeds of fuzz targets, and random changes of them, in process: what `cargo xtask fuzz` does for longer.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "../../fuzz/src/assertion.rs"]
mod assertion;
#[path = "../../fuzz/src/form.rs"]
mod form;
#[path = "../../fuzz/src/kms.rs"]
mod kms;
#[path = "../../fuzz/src/token.rs"]
mod token;

use ron_tests::Draws;

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
fn tokens_statements_and_proofs() {
    replay("token", token::run);
}
