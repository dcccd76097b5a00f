//! The offline check: everything that can be verified about the log with its directory and its
//! verifier key alone. Takes no lock and writes nothing, so it also works on a live log.

use std::collections::BTreeMap;
use std::path::Path;

use ron_crypto::hash::sha256;
use ron_files::{Disk, OsDisk};
use ron_tlog::append::{Visited, verify_on as verify_log, verify_present as present_log};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use ron_tlog::rotation::{KeyChain, Rotation};
use ron_tlog::{Verified, VerifyError};

use super::leaf::{Leaf, NO_MATCH, OK, Op};
use super::ring::kept_keys;
use super::writer::Counters;

/// Summary of a verified log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub size: u64,
    /// RFC 6962 root over them.
    pub root: [u8; 32],
    /// Leaves covered by the newest signed checkpoint.
    pub checkpoint_size: u64,
    /// Time of the first leaf, Unix milliseconds.
    pub first_ts: Option<u64>,
    /// Time of the last leaf, Unix milliseconds.
    pub last_ts: Option<u64>,
    pub ops: BTreeMap<&'static str, u64>,
    pub keys: BTreeMap<String, KeyOps>,
    /// Rotations of the log's own key.
    pub log_key_rotations: u64,
    /// The logs of other nodes with the same keys, by origin, each with the verifier key that was named last.
    pub peer_logs: BTreeMap<String, VerifierKey>,
}

/// Counts of one key's leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOps {
    pub signatures: u64,
    pub versions: u64,
    /// Refused or failed operations.
    pub refused: u64,
}

/// What is wrong with a log, and at which leaf if one can be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", index.map_or_else(String::new, |i| format!("leaf {i}: ")))]
pub struct AuditError {
    pub index: Option<u64>,
    /// What is wrong with it.
    pub why: String,
}

/// Verifies the log in `dir` against `vkey` (`name+hash+base64`) or a later key that the chain beside the log derives from it:
/// tree, checkpoint signature and root, canonical leaves, per-key counters without a gap, times and store versions that only
/// grow, rotations that follow each other. `progress(done, total)` is called repeatedly.
pub fn verify_dir(
    dir: &Path,
    vkey: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<AuditReport, AuditError> {
    let whole = |why| AuditError { index: None, why };
    let pin =
        VerifierKey::parse(vkey.trim()).map_err(|e| whole(format!("the verifier key: {e}")))?;
    let keys = kept_keys(dir, &pin).map_err(whole)?;
    verify_on(&OsDisk, dir, &keys, &|| false, progress)
}

/// As [`verify_dir`] on any disk and with all `keys` that are trusted; ends early with an error once `stop` returns true.
pub fn verify_on(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
    stop: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<AuditReport, AuditError> {
    let mut check = LeafCheck::default();
    let mut on_entry = |_: u64, bytes: &[u8], _: &[u8]| check.take_unless(stop, bytes);
    let verified = verify_log(disk, dir, keys, &mut on_entry, progress)?;
    check.conclude(verified, keys)
}

/// As [`verify_on`] without the leaves in archived segments, of which the hashes are taken from the index files. Counts of keys begin
/// behind them.
pub fn verify_present(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
    stop: &dyn Fn() -> bool,
) -> Result<AuditReport, AuditError> {
    let mut check = LeafCheck::default();
    let mut visit = |visited: Visited<'_>| match visited {
        Visited::Entry(_, bytes, _) => check.take_unless(stop, bytes),
        Visited::Archived(after) => {
            check.pass_over(after);
            Ok(())
        }
    };
    let verified = present_log(disk, dir, keys, &mut visit)?;
    check.conclude(verified, keys)
}

impl From<VerifyError> for AuditError {
    fn from(error: VerifyError) -> Self {
        Self {
            index: error.index,
            why: error.why,
        }
    }
}

/// Checks leaves in order, wherever they come from: canonical, counters without a gap, times and store versions that only grow,
/// rotations of the log's key that follow each other.
#[derive(Clone, Debug, Default)]
pub struct LeafCheck {
    /// Summary of the leaves so far.
    pub report: AuditReport,
    counters: Counters,
    /// The chain of rotations so far; `rotated_at` has the index of each one's leaf.
    chain: Option<KeyChain>,
    rotated_at: Vec<u64>,
}

impl LeafCheck {
    fn take_unless(&mut self, stop: &dyn Fn() -> bool, bytes: &[u8]) -> Result<(), String> {
        if stop() {
            return Err("the verification was stopped".into());
        }
        self.take(bytes)
    }

    /// The leaves before `index` are not taken.
    fn pass_over(&mut self, index: u64) {
        self.report.size = index;
        self.counters.pass_over(index);
    }

    fn conclude(self, verified: Verified, keys: &[VerifierKey]) -> Result<AuditReport, AuditError> {
        self.signed_in_time(&verified.checkpoint, keys)
            .map_err(|why| AuditError { index: None, why })?;
        let mut report = self.report;
        report.size = verified.size;
        report.root = verified.root;
        report.checkpoint_size = verified.checkpoint_size;
        Ok(report)
    }

    /// Checks the next leaf and adds it to the report.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let leaf = Leaf::parse(bytes)?;
        self.counters.follow(&leaf)?;
        if leaf.op == Op::RotateLogKey && leaf.result == OK {
            self.rotate(&leaf)?;
        }
        if leaf.op == Op::PeerLog {
            let key = VerifierKey::parse(leaf.context.as_deref().unwrap_or_default());
            let key = key.map_err(|e| format!("its context is no verifier key: {e}"))?;
            self.report.peer_logs.insert(key.name().to_owned(), key);
        }
        self.report.take(&leaf);
        self.report.size += 1;
        Ok(())
    }

    fn rotate(&mut self, leaf: &Leaf) -> Result<(), String> {
        let note = leaf.context.as_deref().unwrap_or_default();
        let rotation = Rotation::open(note).map_err(|e| e.to_string())?;
        let first = rotation.old.clone();
        let chain = self.chain.get_or_insert_with(|| KeyChain::new(first));
        chain.push(note).map_err(|e| e.to_string())?;
        let public = hex::encode(sha256(rotation.new.public()));
        if leaf.version != Some(rotation.number)
            || leaf.output_sha256.as_ref() != Some(&public)
            || rotation.size > self.report.size
        {
            return Err("its fields do not match the rotation statement in it".into());
        }
        self.rotated_at.push(self.report.size);
        self.report.log_key_rotations += 1;
        Ok(())
    }

    /// Once all leaves were taken: the checkpoint `note`, which one of the trusted `keys` has signed, must be signed by the key
    /// that was in use at its size, or by a later one. An old key alone cannot vouch for what came after it.
    pub fn signed_in_time(&self, note: &str, keys: &[VerifierKey]) -> Result<(), String> {
        let Some(chain) = &self.chain else {
            return Ok(());
        };
        let chain = chain.keys();
        let checkpoint = Checkpoint::read_unverified(note, None).map_err(|e| e.to_string())?;
        let size = checkpoint.size;
        // The number of rotations below the checkpoint is the index of the key that was in use.
        let due = self.rotated_at.iter().filter(|at| **at < size).count();
        // The chain in the leaves is trusted from the first trusted key on; a trusted key that the leaves do not
        // name is newer than all of them.
        let trusted = chain.iter().position(|key| keys.contains(key));
        let led = trusted.map_or(&[][..], |at| &chain[at.max(due)..]);
        let later = keys.iter().filter(|key| !chain.contains(key));
        let accepted: Vec<VerifierKey> = led.iter().chain(later).cloned().collect();
        Checkpoint::open(note, &accepted, None)
            .map(drop)
            .map_err(|e| {
                let id = chain[due].key_id();
                format!(
                    "the checkpoint covers {size} leaves, and key {id:08x} was in use by then: {e}"
                )
            })
    }
}

impl AuditReport {
    /// Signatures of all keys.
    pub fn signatures(&self) -> u64 {
        self.keys.values().map(|key| key.signatures).sum()
    }

    fn take(&mut self, leaf: &Leaf) {
        self.first_ts.get_or_insert(leaf.ts);
        self.last_ts = Some(leaf.ts);
        *self.ops.entry(leaf.op.as_str()).or_default() += 1;
        let Some(key) = leaf.key.as_ref().filter(|_| leaf.key_op_counter.is_some()) else {
            return;
        };
        let ops = self.keys.entry(key.clone()).or_default();
        if leaf.result != OK && leaf.result != NO_MATCH {
            ops.refused += 1;
        } else if leaf.op == Op::Sign {
            ops.signatures += 1;
        } else if leaf.op.makes_version() {
            // The number, not a count: a rotation to a version that waited names it a second time.
            ops.versions = ops.versions.max(leaf.version.unwrap_or(0).into());
        }
    }
}
