//! The offline check: everything about the log that can be verified with its directory and its
//! verifier key alone. Takes no lock and writes nothing, so it also works on a live log.

use std::collections::BTreeMap;
use std::path::Path;

use ron_tlog::append::{Disk, OsDisk, verify_on as verify_log};
use ron_tlog::note::VerifierKey;

use super::leaf::{Leaf, OK, Op};
use super::writer::Counters;

/// What a verified log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Leaves verified.
    pub size: u64,
    /// RFC 6962 root over them.
    pub root: [u8; 32],
    /// Leaves covered by the newest signed checkpoint.
    pub checkpoint_size: u64,
    /// Time of the first leaf, Unix milliseconds.
    pub first_ts: Option<u64>,
    /// Time of the last leaf, Unix milliseconds.
    pub last_ts: Option<u64>,
    /// Leaves by operation.
    pub ops: BTreeMap<&'static str, u64>,
    /// Leaves by key.
    pub keys: BTreeMap<String, KeyOps>,
}

/// What happened with one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOps {
    /// Signatures made.
    pub signatures: u64,
    /// Versions made.
    pub versions: u64,
    /// Refused or failed operations.
    pub refused: u64,
}

/// What is wrong with a log, and at which leaf where one can be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", index.map_or_else(String::new, |i| format!("leaf {i}: ")))]
pub struct AuditError {
    /// The leaf.
    pub index: Option<u64>,
    /// What is wrong with it.
    pub why: String,
}

/// Verifies the log in `dir` against `vkey` (`name+hash+base64`): tree, checkpoint signature and
/// root, canonical leaves, per-key counters without a gap, times and store versions that only
/// grow. `progress(done, total)` is called now and then.
pub fn verify_dir(
    dir: &Path,
    vkey: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<AuditReport, AuditError> {
    verify_on(&OsDisk, dir, vkey, &|| false, progress)
}

/// As [`verify_dir`] on any disk; ends early with an error once `stop` says so.
pub fn verify_on(
    disk: &dyn Disk,
    dir: &Path,
    vkey: &str,
    stop: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<AuditReport, AuditError> {
    let vkey = VerifierKey::parse(vkey.trim()).map_err(|e| AuditError {
        index: None,
        why: format!("the verifier key: {e}"),
    })?;
    let mut check = LeafCheck::default();
    let mut on_entry = |_: u64, bytes: &[u8]| -> Result<(), String> {
        if stop() {
            return Err("the verification was stopped".into());
        }
        check.take(bytes)
    };
    let verified = verify_log(
        disk,
        dir,
        std::slice::from_ref(&vkey),
        &mut on_entry,
        progress,
    )
    .map_err(|e| AuditError {
        index: e.index,
        why: e.why,
    })?;
    let mut report = check.report;
    report.size = verified.size;
    report.root = verified.root;
    report.checkpoint_size = verified.checkpoint_size;
    Ok(report)
}

/// Checks leaves in order, wherever they come from: canonical, counters without a gap, times and store versions that only grow.
#[derive(Clone, Debug, Default)]
pub struct LeafCheck {
    /// What they said so far.
    pub report: AuditReport,
    counters: Counters,
}

impl LeafCheck {
    /// Takes the next leaf, or says what is wrong with it.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let leaf = Leaf::parse(bytes)?;
        self.counters.follow(&leaf)?;
        self.report.take(&leaf);
        self.report.size += 1;
        Ok(())
    }
}

impl AuditReport {
    fn take(&mut self, leaf: &Leaf) {
        self.first_ts.get_or_insert(leaf.ts);
        self.last_ts = Some(leaf.ts);
        *self.ops.entry(leaf.op.as_str()).or_default() += 1;
        let Some(key) = leaf.key.as_ref().filter(|_| leaf.key_op_counter.is_some()) else {
            return;
        };
        let ops = self.keys.entry(key.clone()).or_default();
        match leaf.op {
            _ if leaf.result != OK => ops.refused += 1,
            Op::Sign => ops.signatures += 1,
            _ => ops.versions += 1,
        }
    }
}
