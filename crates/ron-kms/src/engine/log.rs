//! Opens the log at start and checks that it is complete and unchanged, and that it agrees with the key store,
//! with the copies of its checkpoint and with its witnesses.

use std::sync::Arc;

use ron_custody::store::{KeyStore, LogIdentity};
use ron_files::Dir;
use ron_kernel::{Deadline, SharedClock, SharedRandom};
use ron_proto::receipt::LogReceipt;
use ron_service::log_host::asker::compare;
use ron_service::log_host::cosign::Witnesses;
use ron_tlog::append::{Archiver, Checkpointer, EngineLog, Log, LogOptions, LogReader, ReadError};
use ron_tlog::checkpoint::Checkpoint;

use super::distrust::{Distrust, failure, of_open, tampered};
use super::shared::{self, EngineSessions};
use crate::audit::engine_writer::{AppendEnd, EngineWriter};
use crate::audit::health::Fault;
use crate::audit::leaf::{Draft, LEAF_BYTES_MAX, Leaf, Op};
use crate::audit::ring::{LogRing, keep_chain, open_checkpoint};
use crate::audit::writer::{AuditWriter, Counters, LeafMaker, StateFile};
use crate::metrics::Metrics;
use crate::replay::Answered;
use crate::settings::Settings;
use crate::work::lifecycle::complete::{complete_change, complete_log_key};

/// The writer of the log, wherever that is.
pub enum LogWriter {
    Files(Box<AuditWriter>),
    Engine(Box<EngineWriter>),
}

impl LogWriter {
    /// Appends one leaf; returns its index.
    pub fn append(&mut self, draft: Draft) -> Result<u64, String> {
        match self {
            Self::Files(writer) => {
                let done = writer.append(std::iter::once(draft));
                done.map_err(|e| e.to_string())
            }
            Self::Engine(writer) => {
                let done = writer.append_by(&draft, Deadline::within(shared::START_WAIT));
                done.map_err(|e| e.to_string())
            }
        }
    }

    fn set_store_version(&mut self, version: u64) {
        match self {
            Self::Files(writer) => writer.set_store_version(version),
            Self::Engine(writer) => writer.set_store_version(version),
        }
    }
}

/// A log that passed all checks.
pub struct OpenedLog {
    pub writer: LogWriter,
    pub checkpointer: Checkpointer,
    pub reader: LogReader,
    /// The newest operation whose answer the journal must have.
    pub answered: Option<Answered>,
    pub archiver: Archiver,
}

/// Directories and names of the copies of the checkpoint: one beside the log's directory, which detects a rollback of the log alone, and
/// one in `audit.anchor_dir`, which detects a rollback of the whole data directory.
pub fn anchors(settings: &Settings, top: &Dir, origin: &str) -> Vec<(Dir, String)> {
    let name: String = origin
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let beside = settings.data_dir.iter();
    let beside = beside.map(|_| (top.clone(), ANCHOR_BESIDE.to_owned()));
    let apart = settings.keys.anchor_dir.iter();
    let apart = apart.map(|dir| {
        let dir = Dir::new(top.disk().clone(), dir);
        (dir, format!("{name}.checkpoint"))
    });
    beside.chain(apart).collect()
}

/// The copy of the checkpoint inside the data directory.
pub const ANCHOR_BESIDE: &str = "audit.checkpoint";

/// Maximum bytes of a copy.
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// The file beside the log that keeps its counters between starts.
const COUNTERS: &str = "counters.json";

/// The inputs of [`open`] besides the store.
pub struct OpenWith<'a> {
    /// The directory of the log.
    pub dir: &'a Dir,
    /// The copies of the checkpoint.
    pub anchors: &'a [(Dir, String)],
    pub settings: &'a Settings,
    pub clock: SharedClock,
    pub random: &'a SharedRandom,
    pub metrics: Arc<Metrics>,
    /// The witnesses, which remember earlier heads of this log.
    pub witnesses: Option<&'a mut Witnesses>,
    pub ring: &'a LogRing,
    /// The sessions with the log in an engine; `None` for one in files.
    pub shared: Option<EngineSessions<'a>>,
}

impl OpenWith<'_> {
    fn options(&self, identity: &LogIdentity) -> Result<LogOptions, Distrust> {
        let mut options = LogOptions::new(&identity.origin);
        options.verifiers = self.ring.view().chain().keys().to_vec();
        options.entry_bytes_max = LEAF_BYTES_MAX;
        options.random = self.random.clone();
        options
            .archive_dir
            .clone_from(&self.settings.keys.archive.dir);
        for (dir, name) in self.anchors {
            let head = anchored(dir, name, identity)?;
            // The log must extend every stored head: a shorter one was cut or rolled back.
            options.known_heads.extend(head);
        }
        Ok(options)
    }
}

/// The log, opened where it is.
enum Opened {
    Files(Box<Log>),
    Engine(Box<EngineLog>, AppendEnd),
}

impl Opened {
    fn open(
        dir: &Dir,
        options: LogOptions,
        shared: Option<EngineSessions<'_>>,
    ) -> Result<Self, Distrust> {
        let Some(sessions) = shared else {
            let log = Log::open(dir.disk().clone(), dir.path(), options);
            return Ok(Self::Files(Box::new(log.map_err(|e| of_open(&e))?)));
        };
        let end = AppendEnd {
            within: sessions.within,
            stop: sessions.stop.clone(),
        };
        let log = shared::claim(dir, options, sessions)?;
        Ok(Self::Engine(Box::new(log), end))
    }

    fn reader(&self) -> LogReader {
        match self {
            Self::Files(log) => log.reader(),
            Self::Engine(log, _) => log.reader(),
        }
    }

    fn archiver(&self) -> Archiver {
        match self {
            Self::Files(log) => log.archiver(),
            Self::Engine(log, _) => log.archiver(),
        }
    }

    fn take_checkpointer(&mut self) -> Option<Checkpointer> {
        match self {
            Self::Files(log) => log.take_checkpointer(),
            Self::Engine(log, _) => log.take_checkpointer(),
        }
    }

    fn writer(self, leaves: LeafMaker) -> LogWriter {
        match self {
            Self::Files(log) => LogWriter::Files(Box::new(AuditWriter::new(*log, leaves))),
            Self::Engine(log, end) => {
                LogWriter::Engine(Box::new(EngineWriter::new(*log, leaves, end)))
            }
        }
    }
}

/// Opens the log, compares it with the store, the copies of its checkpoint and the witnesses, completes a change that
/// a crash interrupted, writes the start leaf and a first checkpoint.
pub fn open(with: OpenWith<'_>, store: &mut KeyStore) -> Result<OpenedLog, Distrust> {
    let identity = store.log().clone();
    let options = with.options(&identity)?;
    let OpenWith {
        dir,
        settings,
        clock,
        metrics,
        witnesses,
        ring,
        shared,
        ..
    } = with;
    let mut log = Opened::open(dir, options, shared)?;
    if matches!(log, Opened::Engine(..)) {
        read_after_claim(store, &identity)?;
    }
    let reader = log.reader();
    if let Some(note) = reader.checkpoint() {
        open_checkpoint(&identity, &note).map_err(|e| tampered(format!("the checkpoint: {e}")))?;
    }
    compare_births(store, reader.size_durable())?;
    if let Some(witnesses) = witnesses {
        compare(witnesses, &reader).map_err(tampered)?;
    }
    let on_disk = settings.data_dir.is_some();
    let state = on_disk.then(|| StateFile {
        dir: dir.clone(),
        name: COUNTERS,
        key: store.counters_key(),
    });
    let counters = recount(&reader, state.as_ref(), store.version())?;
    let answered = counters.answered.clone();
    let checkpointer = log
        .take_checkpointer()
        .ok_or_else(|| failure("the log has no checkpointer"))?;
    let archiver = log.archiver();
    let mut writer = log.writer(LeafMaker::new(counters, state, clock, metrics));
    // After all comparisons, which must see the log as it was found, and before the start leaf.
    complete_interrupted(Some(&mut writer), &reader, store)?;
    ring.replace(store.log()).map_err(failure)?;
    if on_disk {
        keep_chain(dir, &ring.view().chain())
            .map_err(|e| failure(format!("the keys of the audit log cannot be written: {e}")))?;
    }
    // The store may be ahead of the log: a `note` key's checkpoint is remembered before its leaf is written.
    writer.set_store_version(store.version());
    let context = format!(
        "version {} backend {}",
        env!("CARGO_PKG_VERSION"),
        settings.backend.as_str()
    );
    append(&mut writer, Draft::service(Op::Start, &context))?;
    name_peers(&mut writer, store)?;
    let mut opened = OpenedLog {
        writer,
        checkpointer,
        reader,
        answered,
        archiver,
    };
    opened
        .checkpointer
        .publish_by(|| ring.signers())
        .map_err(|e| failure(format!("the first checkpoint cannot be written: {e}")))?;
    Ok(opened)
}

/// Opens a log in files and compares it with the store and with the copies of its checkpoint, as a start does, and changes neither.
/// Returns the newest operation whose answer is remembered.
pub fn examine(
    dir: &Dir,
    anchors: &[(Dir, String)],
    store: &KeyStore,
) -> Result<Option<Answered>, Distrust> {
    let identity = store.log();
    let chain = identity.chain().map_err(failure)?;
    let mut options = LogOptions::new(&identity.origin);
    options.verifiers = chain.keys().to_vec();
    options.entry_bytes_max = LEAF_BYTES_MAX;
    for (dir, name) in anchors {
        options.known_heads.extend(anchored(dir, name, identity)?);
    }
    let log = Log::open(dir.disk().clone(), dir.path(), options).map_err(|e| of_open(&e))?;
    let reader = log.reader();
    compare_births(store, reader.size_durable())?;
    let state = StateFile {
        dir: dir.clone(),
        name: COUNTERS,
        key: store.counters_key(),
    };
    let counters = recount(&reader, Some(&state), store.version())?;
    Ok(counters.answered)
}

/// Opens the log of a backup and compares it with the keys, as a start does. A change that was under way is completed when its leaf is
/// there; nothing is written to the log. Returns its end, to which also the leaves belong that no checkpoint covers.
pub fn close(dir: &Dir, store: &mut KeyStore) -> Result<Checkpoint, Distrust> {
    let identity = store.log().clone();
    let chain = identity.chain().map_err(failure)?;
    let mut options = LogOptions::new(&identity.origin);
    options.verifiers = chain.keys().to_vec();
    options.entry_bytes_max = LEAF_BYTES_MAX;
    let log = Log::open(dir.disk().clone(), dir.path(), options).map_err(|e| of_open(&e))?;
    let reader = log.reader();
    compare_births(store, reader.size_durable())?;
    complete_interrupted(None, &reader, store)?;
    let head = reader.head();
    Ok(Checkpoint {
        origin: identity.origin,
        size: head.size,
        root: head.root,
    })
}

/// Reads the keys again once no earlier process of this node writes its log: such a process may have made changes, with their leaves,
/// after this one had read them.
fn read_after_claim(store: &mut KeyStore, before: &LogIdentity) -> Result<(), Distrust> {
    let unavailable = |why: String| Distrust {
        fault: Fault::Unavailable,
        why,
    };
    store.refresh().map_err(|e| unavailable(e.to_string()))?;
    if store.log().keys.len() != before.keys.len() {
        let why = "an earlier process of this node has rotated the key of the audit log meanwhile: start again";
        return Err(unavailable(why.to_owned()));
    }
    Ok(())
}

/// Completes the changes of keys, of the log's key and of the issuer policy that a crash interrupted. Without a writer their leaves have to
/// be there.
fn complete_interrupted(
    mut writer: Option<&mut LogWriter>,
    reader: &LogReader,
    store: &mut KeyStore,
) -> Result<(), Distrust> {
    complete_pending(writer.as_deref_mut(), reader, store)?;
    complete_pending_key(writer.as_deref_mut(), reader, store)?;
    complete_pending_policy(writer, reader, store)
}

/// Names the logs of the other nodes, before this node's first result: every log of the installation is found from this one.
fn name_peers(writer: &mut LogWriter, store: &KeyStore) -> Result<(), Distrust> {
    for peer in store.peer_logs() {
        let key = peer.verifier().map_err(failure)?;
        append(writer, Draft::service(Op::PeerLog, &key.to_string()))?;
    }
    Ok(())
}

fn append(writer: &mut LogWriter, draft: Draft) -> Result<u64, Distrust> {
    writer
        .append(draft)
        .map_err(|e| failure(format!("the audit log cannot be written: {e}")))
}

/// The head in a copy of the checkpoint, which the log must extend; `None` when there is no copy yet.
fn anchored(dir: &Dir, name: &str, identity: &LogIdentity) -> Result<Option<Checkpoint>, Distrust> {
    let shown = dir.file(name);
    let shown = shown.display();
    let text = match dir.read_small(name, NOTE_BYTES_MAX) {
        Ok(Some(text)) => text,
        Ok(None) => {
            return match dir.create() {
                Ok(()) => Ok(None),
                Err(error) => Err(failure(format!(
                    "the checkpoint is to be copied to {}: {error}",
                    dir.path().display()
                ))),
            };
        }
        Err(error) => return Err(failure(format!("{shown}: {error}"))),
    };
    let text = String::from_utf8_lossy(&text);
    open_checkpoint(identity, &text)
        .map(Some)
        .map_err(|e| tampered(format!("the checkpoint copy {shown}: {e}")))
}

/// Checks that the log holds the leaf of every key version: a log that is too short was replaced or cut.
fn compare_births(store: &KeyStore, size: u64) -> Result<(), Distrust> {
    let index = store.index();
    let youngest = index
        .keys
        .values()
        .flat_map(|k| k.versions.iter())
        .filter(|version| *version.log == *store.log().origin)
        .map(|version| version.birth)
        .chain(store.log().keys.iter().filter_map(|k| k.birth))
        .chain(store.policy_birth())
        .max();
    match youngest {
        Some(birth) if birth >= size => Err(tampered(format!(
            "the audit log has {size} leaves, but a key was recorded in leaf {birth}: leaves were removed or the log was replaced"
        ))),
        _ => Ok(()),
    }
}

/// The counters at the end of the log: from the state file beside it and the leaves since. Refuses a log that records a
/// later version of the store than it has.
fn recount(
    reader: &LogReader,
    kept: Option<&StateFile>,
    store_version: u64,
) -> Result<Counters, Distrust> {
    let size = reader.size_durable();
    let mut counters = kept.and_then(StateFile::read).unwrap_or_default();
    if counters.log_size > size {
        return Err(tampered(format!(
            "the audit log has {size} leaves, but it had {} at the last stop: leaves were removed",
            counters.log_size
        )));
    }
    let from = counters.log_size;
    scan(reader, from, size, |leaf| {
        counters.follow(leaf).map(|()| false)
    })?;
    if counters.store_version > store_version {
        return Err(tampered(format!(
            "the key store is at version {store_version}, but the audit log records version {}: the store was replaced by an older copy",
            counters.store_version
        )));
    }
    Ok(counters)
}

/// Parses leaves `from..to`; ends early when `visit` returns true, with the index of that leaf.
fn scan(
    reader: &LogReader,
    from: u64,
    to: u64,
    mut visit: impl FnMut(&Leaf) -> Result<bool, String>,
) -> Result<Option<u64>, Distrust> {
    enum End {
        Found(u64),
        Bad(Distrust),
    }
    impl From<ReadError> for End {
        fn from(error: ReadError) -> Self {
            Self::Bad(tampered(format!("the audit log: {error}")))
        }
    }
    let outcome = reader.entries(from..to, |index: u64, bytes: &[u8]| {
        match Leaf::parse(bytes).and_then(|leaf| visit(&leaf)) {
            Ok(false) => Ok(()),
            Ok(true) => Err(End::Found(index)),
            Err(why) => Err(End::Bad(tampered(format!("audit leaf {index}: {why}")))),
        }
    });
    match outcome {
        Ok(()) => Ok(None),
        Err(End::Found(index)) => Ok(Some(index)),
        Err(End::Bad(distrust)) => Err(distrust),
    }
}

/// Completes a change that was committed to the store but whose leaf was not known to be durable: finds its leaf, or
/// writes it now, and makes the version visible.
fn complete_pending(
    writer: Option<&mut LogWriter>,
    reader: &LogReader,
    store: &mut KeyStore,
) -> Result<(), Distrust> {
    let pending = store.pending().map_err(|e| failure(e.to_string()))?;
    let Some(pending) = pending else {
        return Ok(());
    };
    let draft = Draft::parse(&pending.leaf).map_err(|e| tampered(format!("the outbox: {e}")))?;
    let op = draft.op;
    let since = (pending.log_size, pending.version_before);
    let receipt = born(writer, reader, store, since, draft)?;
    let leaf = receipt.index;
    complete_change(store, &pending, op, &receipt).map_err(|e| failure(e.to_string()))?;
    tracing::info!(event = "interrupted_change_settled", leaf);
    Ok(())
}

/// Completes a rotation of the log's own key whose leaf was not known to be durable.
fn complete_pending_key(
    writer: Option<&mut LogWriter>,
    reader: &LogReader,
    store: &mut KeyStore,
) -> Result<(), Distrust> {
    let pending = store.pending_log_key();
    let Some(pending) = pending.map_err(|e| failure(e.to_string()))? else {
        return Ok(());
    };
    let draft = Draft::parse(&pending.leaf);
    let draft = draft.map_err(|e| tampered(format!("the leaf of a log key: {e}")))?;
    let since = (pending.log_size, pending.version_before);
    let receipt = born(writer, reader, store, since, draft.clone())?;
    let leaf = receipt.index;
    complete_log_key(store, pending.number, receipt, &draft).map_err(|e| failure(e.to_string()))?;
    tracing::info!(event = "interrupted_rotation_settled", leaf);
    Ok(())
}

/// Completes the adoption of an issuer policy whose leaf was not known to be durable.
fn complete_pending_policy(
    writer: Option<&mut LogWriter>,
    reader: &LogReader,
    store: &mut KeyStore,
) -> Result<(), Distrust> {
    let pending = store.pending_policy();
    let Some(pending) = pending.map_err(|e| failure(e.to_string()))? else {
        return Ok(());
    };
    let draft = Draft::parse(&pending.leaf);
    let draft = draft.map_err(|e| tampered(format!("the leaf of the issuer policy: {e}")))?;
    let since = (pending.log_size, pending.version_before);
    let leaf = born(writer, reader, store, since, draft)?.index;
    store
        .complete_policy(leaf)
        .map_err(|e| failure(e.to_string()))?;
    tracing::info!(event = "interrupted_policy_settled", leaf);
    Ok(())
}

/// The receipt of an interrupted change's leaf: found among the leaves from `since.0`, the log size before the change, or
/// written now. `since.1` is the store version before the change.
fn born(
    writer: Option<&mut LogWriter>,
    reader: &LogReader,
    store: &KeyStore,
    since: (u64, u64),
    mut draft: Draft,
) -> Result<LogReceipt, Distrust> {
    let (log_size, version_before) = since;
    let found = scan(reader, log_size, reader.size_durable(), |seen| {
        Ok(seen.op_id == draft.op_id
            && seen.key == draft.key
            && seen.version == draft.version
            && seen.op == draft.op
            && seen.result == draft.result)
    })?;
    let index = match (found, writer) {
        (Some(index), _) => index,
        (None, Some(writer)) => {
            writer.set_store_version(version_before);
            draft.store_version_after = Some(store.version());
            append(writer, draft)?
        }
        (None, None) => {
            return Err(failure(format!(
                "a change of a key ({}) was under way when the backup was taken, and its leaf is not there: use another backup",
                draft.op.as_str()
            )));
        }
    };
    Ok(LogReceipt {
        log: store.log().origin.clone(),
        index,
    })
}
