//! Shared by the tests of the log on disk: a signer, entries by index, and opening with short
//! segments.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use ron_crypto::sign::Ed25519Key;
use ron_files::Disk;
use ron_kernel::SeededRandom;
use ron_tlog::append::verify_on;
use ron_tlog::{
    Ed25519NoteSigner, Log, LogOptions, OpenError, Record, Verified, VerifierKey, VerifyError,
};

pub const ORIGIN: &str = "log.example/test";

pub fn signer() -> Ed25519NoteSigner {
    Ed25519NoteSigner::new(ORIGIN, Ed25519Key::from_seed(&[42; 32])).expect("a legal name")
}

pub fn key() -> VerifierKey {
    signer().verifier().clone()
}

pub fn dir() -> &'static Path {
    Path::new("/log")
}

/// The entry of an index: length and content depend on the index.
pub fn entry(index: u64) -> Vec<u8> {
    let mut bytes = format!("entry {index} ").into_bytes();
    bytes.resize(bytes.len() + (index % 97) as usize, (index % 251) as u8);
    bytes
}

/// The private part at an index; every third record has none.
pub fn private(index: u64) -> Vec<u8> {
    vec![(index % 253) as u8; (index % 3 * 40) as usize]
}

pub struct TestRecord {
    leaf: Vec<u8>,
    private: Vec<u8>,
}

impl Record for TestRecord {
    fn leaf(&self) -> &[u8] {
        &self.leaf
    }

    fn private(&self) -> &[u8] {
        &self.private
    }
}

pub fn entries(from: u64, n: u64) -> Vec<TestRecord> {
    let one = |index| TestRecord {
        leaf: entry(index),
        private: private(index),
    };
    (from..from + n).map(one).collect()
}

pub fn options() -> LogOptions {
    LogOptions {
        segment_entries: 256,
        random: Arc::new(SeededRandom::new(5)),
        ..LogOptions::new(ORIGIN).verified_by(key())
    }
}

pub fn open(disk: &(impl Disk + Clone + 'static)) -> Result<Log, OpenError> {
    Log::open(Arc::new(disk.clone()), dir(), options())
}

/// A log of `n` entries in batches of 7, a checkpoint every 50 entries or so and one at the end.
pub fn fill(log: &mut Log, n: u64) {
    while log.size() < n {
        let at = log.size();
        let first = log.append(&entries(at, 7.min(n - at))).expect("appends");
        assert_eq!(first, at);
        if at % 50 < 7 {
            log.publish_checkpoint(&signer()).expect("publishes");
        }
    }
    log.publish_checkpoint(&signer()).expect("publishes");
}

/// Verifies and compares every entry.
pub fn verify(disk: &dyn Disk) -> Result<Verified, VerifyError> {
    let mut seen = 0;
    let verified = verify_on(
        disk,
        dir(),
        &[key()],
        &mut |index, leaf, beside| {
            assert_eq!(index, seen, "entries come in order");
            seen += 1;
            if leaf == entry(index) && beside == private(index) {
                Ok(())
            } else {
                Err("not the entry that was appended".into())
            }
        },
        &mut |_, _| (),
    )?;
    assert_eq!(verified.size, seen);
    Ok(verified)
}
