//! The offline check: every leaf of a log directory is read, proved against the signed checkpoint
//! and decided again, and every reversal is compared with the entry that it names. It takes no lock and
//! writes nothing, so it works on a copy and beside a running ledger.

use std::path::{Path, PathBuf};

use ron_proto::ledger::Event;
use ron_tlog::VerifierKey;
use ron_tlog::tree::leaf_hash;

use crate::answers::{self, LogEntry};
use crate::core::{AssetRow, State, read_genesis};
pub use crate::fault::Fault;
use crate::replay::{Feed, Replay, ReplayError, read_beside};
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
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Report, Fault> {
    check(dir, vkey, None, progress)
}

/// Like [`verify_dir`], and passes every entry to `show`. The entries are trustworthy only once the
/// whole log is verified: use them after the report is returned. An error of `show` ends the check.
pub fn verify_each(
    dir: &Path,
    vkey: &VerifierKey,
    show: &mut dyn FnMut(Event) -> Result<(), String>,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Report, Fault> {
    check(dir, vkey, Some(show), progress)
}

/// Called with every entry.
type Show<'a> = &'a mut dyn FnMut(Event) -> Result<(), String>;

fn check(
    dir: &Path,
    vkey: &VerifierKey,
    mut show: Option<Show<'_>>,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<Report, Fault> {
    let log = log_dir(dir);
    let mut replay = Replay::new();
    let mut erased = 0;
    let mut reversals = Reversals::default();
    let (read, decided) = read_beside(
        |feed| read_log(&log, vkey, feed, progress),
        |read| {
            erased += u64::from(read.leaf.op.erased().any());
            reversals.note(&read.leaf);
            if let Some(show) = &mut show {
                let hash = leaf_hash(read.bytes());
                let event = answers::event(LogEntry::of(&read.leaf, hash));
                show(event).map_err(Fault::Whole)?;
            }
            replay.add(read).map_err(Fault::from)
        },
    )
    .map_err(|e| Fault::Whole(format!("a thread cannot be started: {e}")))?;
    // Entries are decided in groups, on another thread than they are read: what that found is earlier.
    decided?;
    let (checked, genesis) = read?;
    if genesis.as_ref() != Some(&checked.origin) {
        return Err(Fault::Whole(format!(
            "the genesis record is not that of {}",
            checked.origin
        )));
    }
    let (state, keys) = replay.finish()?;
    if state.seq() + 1 != checked.size {
        return Err(Fault::Whole(format!(
            "{} entries were decided, the log has {} leaves",
            state.seq(),
            checked.size
        )));
    }
    reversals.check(&log, &state)?;
    Ok(Report {
        erased,
        ..report(checked, &state, keys.len())
    })
}

/// Checks the log and passes its leaves on; returns the origin in its genesis record too.
fn read_log(
    log: &Path,
    vkey: &VerifierKey,
    feed: &mut Feed<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(ron_tlog::Verified, Option<String>), Fault> {
    let mut genesis: Option<String> = None;
    let mut faulty: Option<ReplayError> = None;
    let mut on_entry = |index: u64, bytes: &[u8], private: &[u8]| -> Result<(), String> {
        if index == 0 {
            let origin = read_genesis(bytes)
                .map_err(|_| "the log does not begin with a ledger's genesis record".to_owned())?;
            genesis = Some(origin.to_owned());
            return Ok(());
        }
        feed.leaf(index, bytes, private).map_err(|e| {
            faulty = Some(e.clone());
            e.why
        })
    };
    let checked = ron_tlog::verify_dir(log, vkey, &mut on_entry, progress);
    match (checked, faulty) {
        (Ok(checked), _) => Ok((checked, genesis)),
        (Err(_), Some(faulty)) => Err(faulty.into()),
        (Err(e), None) => Err(Fault::Whole(e.to_string())),
    }
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
