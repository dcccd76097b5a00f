//! The offline check: every leaf of a log directory is read, proved against the signed checkpoint
//! and decided again, and every reversal is compared with the entry that it names. It takes no lock and
//! writes nothing, so it works on a copy and beside a running ledger.

use std::path::{Path, PathBuf};

use ron_proto::ledger::Event;
use ron_tlog::VerifierKey;

use crate::answers::{self, LogEntry};
use crate::core::{AssetRow, State, read_genesis};
use crate::engine::decode_entry;
pub use crate::fault::Fault;
use crate::replay::{Replay, ReplayError};
use crate::reversals::Reversals;

/// Totals of one asset of a verified ledger, in minor units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssetTotal {
    pub asset: String,
    pub issued: u128,
    pub burned: u128,
    /// The sum of all balances; equals issued - burned.
    pub circulating: u128,
}

/// Contents of a log that was verified completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub origin: String,
    /// Entries, without the genesis record.
    pub entries: u64,
    /// Root over all leaves.
    pub root: [u8; 32],
    /// Leaves that the signed checkpoint covers; later ones are consistent but not signed yet.
    pub checkpoint_size: u64,
    pub accounts: u64,
    pub keys: u64,
    /// Entries of which a memo, metadata or a reference was erased. The private records of all
    /// others are the ones that their leaves were written with.
    pub erased: u64,
    pub assets: Vec<AssetTotal>,
    /// Bytes after the last whole batch: a write in progress, or torn and never acknowledged.
    pub tail_bytes: u64,
    /// Oddities that do not concern the entries.
    pub notes: Vec<String>,
}

/// The log directory: `dir` itself, or `dir/log` of a ledger's data directory.
pub fn log_dir(dir: &Path) -> PathBuf {
    let inner = dir.join("log");
    if inner.is_dir() {
        inner
    } else {
        dir.to_owned()
    }
}

/// Verifies the ledger in `dir` (its data directory or its log) against the pinned key. `progress`
/// receives the leaves done and the number that the checkpoint covers.
pub fn verify_dir(
    dir: &Path,
    vkey: &VerifierKey,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, Fault> {
    check(dir, vkey, None, progress)
}

/// Like [`verify_dir`], and passes every entry to `show`. The entries are trustworthy only once the
/// whole log is verified: use them after the report is returned. An error of `show` ends the check.
pub fn verify_each(
    dir: &Path,
    vkey: &VerifierKey,
    show: &mut dyn FnMut(Event) -> Result<(), String>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, Fault> {
    check(dir, vkey, Some(show), progress)
}

/// Called with every entry.
type Show<'a> = &'a mut dyn FnMut(Event) -> Result<(), String>;

fn check(
    dir: &Path,
    vkey: &VerifierKey,
    mut show: Option<Show<'_>>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, Fault> {
    let mut replay = Replay::new();
    let mut genesis: Option<String> = None;
    let mut faulty: Option<ReplayError> = None;
    let mut erased = 0;
    let mut reversals = Reversals::default();
    let mut on_entry = |index: u64, bytes: &[u8], private: &[u8]| -> Result<(), String> {
        if index == 0 {
            let origin = read_genesis(bytes)
                .map_err(|_| "the log does not begin with a ledger's genesis record".to_owned())?;
            genesis = Some(origin.to_owned());
            return Ok(());
        }
        let texts = replay.leaf(index, bytes, private).map_err(|e| {
            faulty = Some(e.clone());
            e.why
        })?;
        erased += u64::from(texts.any());
        reversals
            .note(index, bytes, private)
            .map_err(|e| e.to_string())?;
        let Some(show) = &mut show else { return Ok(()) };
        let (leaf, hash) = decode_entry(index, bytes, private).map_err(|e| e.to_string())?;
        show(answers::event(LogEntry::of(&leaf, hash)))
    };
    let checked = ron_tlog::verify_dir(&log_dir(dir), vkey, &mut on_entry, progress);
    let checked = match checked {
        Ok(v) => v,
        // Entries are decided in groups; the replay knows which one is at fault.
        Err(e) => {
            return Err(match faulty {
                Some(g) => Fault::Entry {
                    seq: g.seq,
                    why: g.why,
                },
                None => Fault::Whole(e.to_string()),
            });
        }
    };
    if genesis.as_ref() != Some(&checked.origin) {
        return Err(Fault::Whole(format!(
            "the genesis record is not that of {}",
            checked.origin
        )));
    }
    let (state, keys) = replay.finish().map_err(|e| Fault::Entry {
        seq: e.seq,
        why: e.why,
    })?;
    if state.seq() + 1 != checked.size {
        return Err(Fault::Whole(format!(
            "{} entries were decided, the log has {} leaves",
            state.seq(),
            checked.size
        )));
    }
    reversals.check(&log_dir(dir), &state)?;
    Ok(Report {
        erased,
        ..report(checked, &state, keys.len())
    })
}

fn report(checked: ron_tlog::Verified, state: &State, keys: usize) -> Report {
    let total = |a: &AssetRow| AssetTotal {
        asset: a.name.to_string(),
        issued: a.issued,
        burned: a.burned,
        circulating: a.circulating(),
    };
    Report {
        origin: checked.origin,
        entries: state.seq(),
        root: checked.root,
        checkpoint_size: checked.checkpoint_size,
        accounts: state.account_count() as u64,
        keys: keys as u64,
        erased: 0,
        assets: state.assets().iter().map(total).collect(),
        tail_bytes: checked.tail_bytes,
        notes: checked.notes,
    }
}
