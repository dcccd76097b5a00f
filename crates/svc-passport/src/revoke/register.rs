//! The register of revocations: rows of the database, which say what is revoked, and leaves of a verifiable log, which
//! commit to the rows.
//!
//! A row is written before its leaf. A crash between the two leaves rows without leaves; the next start appends them,
//! because they carry the signature of this service. Every other difference is refused: rows that were deleted, changed
//! or added, and a database or log that is older than the other one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_auth::{RevocationView, revocation_log};
use ron_files::Disk;
use ron_kernel::{DiskWatch, SharedRandom};
use ron_proto::Timestamp;
use ron_proto::passport::{RevocationEvent, RevocationPage};
use ron_service::log_host::asker::compare as contradicted;
use ron_service::log_host::cosign::Witnesses;
use ron_tlog::append::Archiver;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Ed25519NoteSigner, NoteSignature, NoteSigner as _, VerifierKey};
use ron_tlog::{AppendError, CheckpointError, Log, LogOptions, LogReader, OpenError, ReadError};

use super::PAGE_MAX;
use super::draft::{Draft, EPOCH_FIRST};
use super::recorded::Recorded;
use super::shared::{SharedPlace, SharedRegister};
use super::store::{RevocationStore, Row, StoreFailed};
use crate::lists::ListRow;

/// Name of the log's directory in the data directory.
pub const LOG_DIR: &str = "revocations";
/// Maximum events that one commit records, and so the maximum rows without leaves that a crash leaves behind.
pub const BATCH_MAX: usize = 256;

/// Database and log do not belong together, or one of them cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterRefused {
    #[error("the revocation log is refused: {0}")]
    Log(#[from] OpenError),
    #[error("the revocation log is refused: {0}; {HELP}")]
    Witness(String),
    #[error("the revocation log cannot be read: {0}")]
    Read(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreFailed),
    #[error(
        "passport.db has no revocation event {event}, but the revocation log has {leaves} leaves: rows were deleted, or the \
         file was replaced by an older one; {HELP}"
    )]
    Missing { event: u64, leaves: u64 },
    #[error(
        "revocation event {event} of passport.db is not what its leaf in the revocation log commits to: the row or the log \
         was changed; {HELP}"
    )]
    Changed { event: u64 },
    #[error(
        "passport.db has revocation event {event}, but the revocation log ends before it and this service did not sign it: \
         the row was added, or the log was replaced by an older one; {HELP}"
    )]
    Added { event: u64 },
    #[error(
        "passport.db has revocation events, but there is no revocation log: its directory was removed; {HELP}"
    )]
    NoLog,
    #[error("the end of the revocation log cannot be written: {0}")]
    Unfinished(String),
    #[error(
        "passport.db has revocations of an issuer with a log in files: move them to the database with `ron issuer migrate`, end a move that \
         was interrupted with --resume, or give a node of an issuer with log.url another data_dir"
    )]
    OwnRows,
    #[error(
        "this node's copy of the revocation log is refused: {0}; remove what its directory `revocations` has but `checkpoint` and `log.meta`: the database has all of it"
    )]
    Copy(String),
}

const HELP: &str = "restore passport.db and the revocation log together (runbook revocation-log)";

/// Owned by the revoker thread after start.
pub struct Register {
    store: RevocationStore,
    journal: Journal,
    watch: Option<DiskWatch>,
}

/// Where the events are.
enum Journal {
    /// Rows of the store, and leaves in files.
    Files(Box<Files>),
    /// A log in an engine, which other nodes write too.
    Shared(Box<SharedRegister>),
}

/// The log in files, and what signs its checkpoints and rows.
struct Files {
    log: Log,
    signer: Arc<Ed25519NoteSigner>,
    random: SharedRandom,
}

/// Where the log is, and how it is opened.
pub struct LogPlace<'a> {
    pub disk: Arc<dyn Disk>,
    pub dir: &'a Path,
    /// Signs checkpoints and rows; its name is the log's origin.
    pub signer: Arc<Ed25519NoteSigner>,
    /// Heads that the log must extend.
    pub known: Vec<Checkpoint>,
    /// Asked what they remember of the log before it is written.
    pub witnesses: Option<&'a mut Witnesses>,
    pub random: SharedRandom,
    /// Directory for archived segments.
    pub archive_dir: Option<PathBuf>,
}

impl Register {
    /// Opens the log, checks every row against its leaf, and completes what a crash interrupted. The view is that of all
    /// recorded events.
    pub fn open(
        store: RevocationStore,
        place: LogPlace<'_>,
    ) -> Result<(Self, RevocationView), RegisterRefused> {
        let signer = place.signer;
        let mut options = LogOptions::new(signer.name()).verified_by(signer.verifier().clone());
        options.known_heads = place.known;
        options.random = place.random.clone();
        options.archive_dir = place.archive_dir;
        let mut log = Log::open(place.disk, place.dir, options)?;
        if log.recovery().created && store.last()? > 0 {
            return Err(RegisterRefused::NoLog);
        }
        if let Some(witnesses) = place.witnesses {
            contradicted(witnesses, &log.reader()).map_err(RegisterRefused::Witness)?;
        }
        let (mut view, unlogged) = compare(&store, &log.reader(), signer.verifier())?;
        let unfinished = |e: &dyn std::fmt::Display| RegisterRefused::Unfinished(e.to_string());
        if !unlogged.is_empty() {
            tracing::info!(
                service = "svc-passport",
                event = "revocations_completed",
                count = unlogged.len()
            );
            log.append(&leaves(&unlogged)).map_err(|e| unfinished(&e))?;
            view = applied(view, unlogged).map_err(|event| RegisterRefused::Missing {
                event,
                leaves: log.size(),
            })?;
        }
        log.publish_checkpoint(&*signer)
            .map_err(|e| unfinished(&e))?;
        let files = Files {
            log,
            signer,
            random: place.random,
        };
        let register = Self {
            store,
            journal: Journal::Files(Box::new(files)),
            watch: None,
        };
        Ok((register, view))
    }

    /// Opens this node of an issuer whose log is in an engine. The store has what is this node's alone.
    pub fn open_shared(
        store: RevocationStore,
        place: SharedPlace<'_>,
    ) -> Result<(Self, RevocationView), RegisterRefused> {
        if store.last()? > 0 {
            return Err(RegisterRefused::OwnRows);
        }
        let opened = SharedRegister::open(place);
        let (shared, view) = opened.map_err(|e| RegisterRefused::Copy(e.to_string()))?;
        let register = Self {
            store,
            journal: Journal::Shared(Box::new(shared)),
            watch: None,
        };
        Ok((register, view))
    }

    /// Has calls of the log to its disk watched from now on.
    pub fn watch_disk(&mut self, watch: DiskWatch) {
        self.watch = Some(watch);
    }

    pub fn store(&self) -> &RevocationStore {
        &self.store
    }

    /// The right to archive segments of the log, for another thread.
    pub fn archiver(&self) -> Archiver {
        match &self.journal {
            Journal::Files(files) => files.log.archiver(),
            Journal::Shared(shared) => shared.archiver(),
        }
    }

    pub fn reader(&self) -> LogReader {
        match &self.journal {
            Journal::Files(files) => files.log.reader(),
            Journal::Shared(shared) => shared.reader(),
        }
    }

    /// True once a commit has failed: changes are refused.
    pub fn poisoned(&self) -> bool {
        let log = match &self.journal {
            Journal::Files(files) => files.log.poisoned(),
            Journal::Shared(shared) => shared.poisoned(),
        };
        self.store.poisoned() || log
    }

    /// Makes up to [`BATCH_MAX`] events durable behind the event `after`, the last in force, under a checkpoint. After an error of a log in
    /// files they may be found recorded at the next start.
    pub fn record(
        &mut self,
        drafts: &[Draft<'_>],
        now_ms: u64,
        after: u64,
    ) -> Result<Vec<RevocationEvent>, StoreFailed> {
        match &mut self.journal {
            Journal::Files(files) => files.record(&self.store, self.watch.as_ref(), drafts, now_ms),
            Journal::Shared(shared) => shared.record(drafts, now_ms, after),
        }
    }

    /// Stores cosignatures with the checkpoint `text`, if it is still the newest.
    pub fn cosigned(&mut self, text: &str, lines: &[NoteSignature]) -> Result<(), StoreFailed> {
        let stored = match &mut self.journal {
            Journal::Files(files) => files.log.add_signatures(text, lines),
            Journal::Shared(shared) => shared.add_signatures(text, lines),
        };
        match stored {
            // The newer one is being cosigned.
            Err(CheckpointError::Superseded) => Ok(()),
            stored => Ok(stored.map(drop)?),
        }
    }

    /// Opens a status list under a number that no other has, on no node.
    pub fn open_list(&self, kid: &str, epoch: u64, now_s: u64) -> Result<ListRow, StoreFailed> {
        let of_node = match &self.journal {
            Journal::Files(_) => 0,
            Journal::Shared(shared) => shared.draw(),
        };
        self.store.open_list(kid, epoch, now_s, of_node)
    }

    /// The events after a number that other nodes have recorded. Files have no other writer.
    pub fn follow(&mut self, after: u64) -> Result<Vec<RevocationEvent>, StoreFailed> {
        match &mut self.journal {
            Journal::Files(_) => Ok(Vec::new()),
            Journal::Shared(shared) => shared.follow(after),
        }
    }

    /// Up to `limit` events before a number, newest first, with what the feed does not show.
    pub fn recorded(&self, before: u64, limit: usize) -> Result<Vec<Recorded>, StoreFailed> {
        if let Journal::Shared(shared) = &self.journal {
            return shared.recorded(before, limit);
        }
        let rows = self.store.rows_before(before, limit)?.into_iter();
        let recorded = rows.map(|row| Recorded {
            event: row.event,
            actor: row.actor,
            reason: row.reason,
        });
        Ok(recorded.collect())
    }

    /// Up to [`PAGE_MAX`] events after a number, with the checkpoint that covers all. `last` is the number of the last event in
    /// force: after a failure of the log the database may have rows without leaves.
    pub fn page(
        &self,
        after: u64,
        last: u64,
        current_epoch: u64,
    ) -> Result<RevocationPage, StoreFailed> {
        if let Journal::Shared(shared) = &self.journal {
            return shared.page(after, last, current_epoch);
        }
        let most = last.saturating_sub(after).min(PAGE_MAX as u64);
        let rows = self.store.rows(after, most as usize)?;
        let checkpoint = self.reader().checkpoint();
        let next = rows.last().map_or(after, |row| row.event.seq);
        Ok(RevocationPage {
            events: rows.into_iter().map(|row| row.event).collect(),
            next,
            current_epoch,
            checkpoint: checkpoint.map_or_else(String::new, |note| note.to_string()),
        })
    }
}

impl Files {
    /// Rows, leaves, and a checkpoint that covers them.
    fn record(
        &mut self,
        store: &RevocationStore,
        watch: Option<&DiskWatch>,
        drafts: &[Draft<'_>],
        now_ms: u64,
    ) -> Result<Vec<RevocationEvent>, StoreFailed> {
        if self.log.poisoned() {
            return Err(AppendError::Poisoned.into());
        }
        let next = self.log.size() + 1;
        let rows = drafts.iter().zip(next..);
        let rows: Vec<Row> = rows
            .map(|(draft, seq)| self.row(draft, seq, now_ms))
            .collect::<Result<_, _>>()?;
        store.append(&rows)?;
        let events: Vec<RevocationEvent> = rows.into_iter().map(|row| row.event).collect();
        let (log, signer) = (&mut self.log, &*self.signer);
        let mut write = || -> Result<(), StoreFailed> {
            log.append(&leaves(&events))?;
            log.publish_checkpoint(signer)?;
            Ok(())
        };
        match watch {
            Some(watch) => watch.call(write),
            None => write(),
        }?;
        Ok(events)
    }

    fn row(&self, draft: &Draft<'_>, seq: u64, now_ms: u64) -> Result<Row, StoreFailed> {
        let by_salt = self.random.bytes();
        let event = RevocationEvent {
            seq,
            ts: Timestamp(now_ms),
            revoked: draft.revoked.clone(),
            salt: self
                .random
                .bytes::<{ revocation_log::SALT_BYTES }>()
                .to_vec()
                .into(),
            by: revocation_log::by(&by_salt, draft.actor, draft.reason),
        };
        let row = Row {
            sig: Vec::new(),
            event,
            actor: draft.actor.to_owned(),
            reason: draft.reason.to_owned(),
            by_salt,
        };
        signed(row, &self.signer)
    }
}

/// A row with this service's signature.
pub fn signed(row: Row, signer: &Ed25519NoteSigner) -> Result<Row, StoreFailed> {
    let sig = signer.sign(&signed_bytes(&row.event));
    let sig = sig.map_err(|e| StoreFailed::Row(e.to_string()))?;
    Ok(Row { sig, ..row })
}

/// Whether this service wrote the event's row.
pub fn is_own(row: &Row, key: &VerifierKey) -> bool {
    key.verify(&signed_bytes(&row.event), &row.sig)
}

/// The signed bytes of a row; no note has this form.
fn signed_bytes(event: &RevocationEvent) -> Vec<u8> {
    let mut bytes = format!("ron-revocation-row/v1 {}\0", event.seq).into_bytes();
    bytes.extend(revocation_log::leaf(event));
    bytes
}

fn leaves(events: &[RevocationEvent]) -> Vec<Vec<u8>> {
    events.iter().map(revocation_log::leaf).collect()
}

/// The view after further events; the error is the number of the first that is missing.
fn applied(mut view: RevocationView, events: Vec<RevocationEvent>) -> Result<RevocationView, u64> {
    let page = RevocationPage {
        next: events.last().map_or(view.after(), |event| event.seq),
        events,
        current_epoch: view.epoch().max(EPOCH_FIRST),
        checkpoint: String::new(),
    };
    match view.apply(&page, true, 0) {
        Ok(()) => Ok(view),
        Err(_) => Err(view.after() + 1),
    }
}

/// Checks all rows: the view of those with a leaf, and the events without one, which this service has signed.
pub fn compare(
    store: &RevocationStore,
    log: &LogReader,
    key: &VerifierKey,
) -> Result<(RevocationView, Vec<RevocationEvent>), RegisterRefused> {
    let head = log.head();
    let (size, root) = (head.size, head.root);
    let mut view = RevocationView::unchecked();
    let mut unlogged = Vec::new();
    let missing = |event| RegisterRefused::Missing {
        event,
        leaves: size,
    };
    let mut read = 0;
    loop {
        let rows = store.rows(read, PAGE_MAX)?;
        let last = rows.len() < PAGE_MAX;
        read = rows.last().map_or(read, |row| row.event.seq);
        let (logged, rest): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| row.event.seq <= size);
        let logged = logged.into_iter().map(|row| row.event).collect();
        view = applied(view, logged).map_err(missing)?;
        for row in rest {
            let expected = size + 1 + unlogged.len() as u64;
            let own = row.event.seq == expected && is_own(&row, key);
            if !own || unlogged.len() >= BATCH_MAX {
                return Err(RegisterRefused::Added {
                    event: row.event.seq,
                });
            }
            unlogged.push(row.event);
        }
        if last {
            break;
        }
    }
    if view.after() < size {
        return Err(missing(view.after() + 1));
    }
    if view.root() != root {
        return Err(RegisterRefused::Changed {
            event: first_changed(store, log, size)?,
        });
    }
    Ok((view, unlogged))
}

/// The first of `size` events whose leaf is not that of its row.
fn first_changed(
    store: &RevocationStore,
    log: &LogReader,
    size: u64,
) -> Result<u64, RegisterRefused> {
    let mut read = 0;
    while read < size {
        for row in store.rows(read, PAGE_MAX)? {
            read = row.event.seq;
            if log.entry(read - 1)? != revocation_log::leaf(&row.event) {
                return Ok(read);
            }
        }
    }
    Ok(size)
}

impl From<AppendError> for StoreFailed {
    fn from(e: AppendError) -> Self {
        Self::Log(e.to_string())
    }
}

impl From<CheckpointError> for StoreFailed {
    fn from(e: CheckpointError) -> Self {
        Self::Log(e.to_string())
    }
}
