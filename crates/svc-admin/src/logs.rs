//! Reads the heads of the fleet's verifiable logs and checks what one observer can check: the
//! signature against the pinned key, the witnesses' signatures, and, with the log's own tiles, that
//! it only grew since the last accepted head. That head is kept across restarts of the console.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Timestamp;
use ron_proto::admin::{LogConsistency, LogHead, LogHeads, LogVerdict, LogWitness};
use ron_proto::b64;
use ron_tlog::checkpoint::{Checkpoint, CheckpointFault};
use ron_tlog::note::{Note, NoteError, VerifierKey};
use ron_tlog::rotation::KeyChain;
use ron_tlog::tile::{TILE_HEIGHT, TILE_WIDTH, TilePath, partial_width};
use ron_tlog::tree::{HashReader, consistency_proof, node_hash, verify_consistency};

use crate::audit::SharedAudit;
use crate::fleet::Fleet;
use crate::kept::SeenHead;
use crate::settings::LogSpec;

/// Time between two rounds.
const PACE: Duration = Duration::from_secs(10);
/// Timeout for reading one head.
const READ: Duration = Duration::from_secs(2);
/// Timeout for the tiles of one proof.
const PROVE: Duration = Duration::from_secs(4);

type Hash = [u8; 32];

pub type Heads = Snapshot<LogHeads>;

/// The reader of the adm-logs thread.
#[derive(Debug)]
pub struct LogWatch {
    client: Arc<HttpClient>,
    clock: SharedClock,
    audit: SharedAudit,
    /// The last accepted head of each log; only this reader's thread writes it.
    bases: Snapshot<BTreeMap<String, SeenHead>>,
}

impl LogWatch {
    /// A reader that starts with the heads `seen` before the restart.
    pub fn new(
        client: Arc<HttpClient>,
        clock: SharedClock,
        audit: SharedAudit,
        seen: Vec<SeenHead>,
    ) -> Self {
        let bases = seen.into_iter().map(|head| (head.id.clone(), head));
        Self {
            client,
            clock,
            audit,
            bases: Snapshot::new(bases.collect()),
        }
    }

    /// The body of the thread: reads all heads periodically, and `beside` after them. The first round starts after a moment,
    /// when the logs have had time to start.
    pub fn run(&self, fleet: &Fleet, heads: &Heads, beside: impl Fn(), ctx: &ThreadCtx) {
        let mut wait = Duration::from_secs(1);
        while !ctx.shutdown.wait(Deadline::within(wait)) {
            self.tick(fleet, heads);
            beside();
            wait = PACE;
        }
    }

    /// Reads and checks every head once.
    pub fn tick(&self, fleet: &Fleet, heads: &Heads) {
        let before = heads.load();
        let mut bases = (*self.bases.load()).clone();
        let mut logs = Vec::new();
        let roster = fleet.roster();
        for node in &roster.nodes {
            let (id, Some(log)) = (&node.spec.id, &node.spec.log) else {
                continue;
            };
            let read = self.read(log);
            let prove = |old, new| self.prove(log, old, new);
            let keys = || self.keys(log);
            let inputs = HeadInputs {
                id,
                log,
                keys: &keys,
                last: before.logs.iter().find(|head| head.id == *id),
                base: bases.get(id),
                now: Timestamp(self.clock.unix_ms()),
            };
            let (head, believed) = judge_head(&inputs, read, &prove);
            if let Some(base) = believed.filter(|base| bases.get(id) != Some(base)) {
                // Stored at every change, so that a fork is detected across a restart of the
                // console as well.
                self.audit.keep_head(base.clone());
                bases.insert(id.clone(), base);
            }
            logs.push(head);
        }
        self.bases.store(bases);
        heads.store(LogHeads {
            as_of: Timestamp(self.clock.unix_ms()),
            logs,
        });
    }

    fn read(&self, log: &LogSpec) -> Result<String, String> {
        let url = format!("{}/checkpoint", log.base_url);
        let body = get(&self.client, &url, Deadline::within(READ))?;
        String::from_utf8(body).map_err(|_| "not text".to_owned())
    }

    /// The published chain of the log's keys.
    fn keys(&self, log: &LogSpec) -> Result<KeyChain, String> {
        let url = format!("{}/keys", log.base_url);
        let body = get(&self.client, &url, Deadline::within(READ))?;
        let text = String::from_utf8(body).map_err(|_| "not text".to_owned())?;
        KeyChain::parse(&text).map_err(|error| error.to_string())
    }

    fn prove(&self, log: &LogSpec, old: u64, new: u64) -> Result<Vec<Hash>, String> {
        let tiles = Tiles {
            client: &self.client,
            base_url: &log.base_url,
            size: new,
            deadline: Deadline::within(PROVE),
            held: RefCell::default(),
        };
        consistency_proof(&tiles, old, new)
    }
}

fn get(client: &HttpClient, url: &str, deadline: Deadline) -> Result<Vec<u8>, String> {
    let reply = client
        .call(Call::get(url, deadline))
        .map_err(|error| error.detail)?;
    if !reply.is_success() {
        return Err(format!("answered {}", reply.status));
    }
    Ok(reply.body)
}

/// The tiles of a log, fetched as a proof needs them.
struct Tiles<'a> {
    client: &'a HttpClient,
    base_url: &'a str,
    size: u64,
    deadline: Deadline,
    held: RefCell<BTreeMap<TilePath, Vec<Hash>>>,
}

impl Tiles<'_> {
    fn tile(&self, path: TilePath, width: usize) -> Result<Vec<Hash>, String> {
        if let Some(tile) = self.held.borrow().get(&path) {
            return Ok(tile.clone());
        }
        let url = format!("{}/{path}", self.base_url);
        let body = get(self.client, &url, self.deadline)?;
        let (hashes, rest) = body.as_chunks::<32>();
        if hashes.len() != width || !rest.is_empty() {
            return Err(format!("{path} has the wrong length"));
        }
        self.held.borrow_mut().insert(path, hashes.to_vec());
        Ok(hashes.to_vec())
    }
}

impl HashReader for Tiles<'_> {
    type Error = String;

    fn node(&self, level: u32, index: u64) -> Result<Hash, String> {
        let tile_level = u8::try_from(level / TILE_HEIGHT).map_err(|_| "too high".to_owned())?;
        let above = level % TILE_HEIGHT;
        let first = index << above;
        let tile_index = first / TILE_WIDTH;
        let at_level = self.size >> (u32::from(tile_level) * TILE_HEIGHT);
        let width = if (tile_index + 1) * TILE_WIDTH <= at_level {
            256
        } else {
            partial_width(tile_level, self.size)
        };
        let path = TilePath::Hashes {
            level: tile_level,
            index: tile_index,
            width,
        };
        let tile = self.tile(path, usize::from(width))?;
        let start = (first % TILE_WIDTH) as usize;
        let leaves = tile
            .get(start..start + (1 << above))
            .ok_or_else(|| format!("{path} is too short"))?;
        let mut row = leaves.to_vec();
        while row.len() > 1 {
            row = row
                .chunks_exact(2)
                .map(|pair| node_hash(&pair[0], &pair[1]))
                .collect();
        }
        Ok(row[0])
    }
}

/// The inputs of a head's check.
pub struct HeadInputs<'a> {
    pub id: &'a str,
    pub log: &'a LogSpec,
    /// Fetches the chain of the log's keys, in case the pinned one has not signed.
    pub keys: &'a dyn Fn() -> Result<KeyChain, String>,
    /// The head shown before.
    pub last: Option<&'a LogHead>,
    /// The last accepted head.
    pub base: Option<&'a SeenHead>,
    pub now: Timestamp,
}

/// Fetches the hashes that prove one size to be a prefix of another.
pub type Prove<'a> = &'a dyn Fn(u64, u64) -> Result<Vec<Hash>, String>;

/// Checks one head. Returns the head to show and, if it is accepted, the head to compare with from
/// now on.
pub fn judge_head(
    inputs: &HeadInputs<'_>,
    read: Result<String, String>,
    prove: Prove<'_>,
) -> (LogHead, Option<SeenHead>) {
    let note = match read {
        Ok(note) => note,
        Err(why) => return (unread(inputs, LogVerdict::Unreachable, why), None),
    };
    let (checkpoint, verdict, reason) =
        match check_signature(&note, inputs.log.vkey.as_deref(), inputs.keys) {
            Ok(checked) => checked,
            Err(why) => return (unread(inputs, LogVerdict::Failed, why), None),
        };
    let witnesses = match check_witnesses(&note, &inputs.log.witnesses) {
        Ok(witnesses) => witnesses,
        Err(why) => return (unread(inputs, LogVerdict::Failed, why), None),
    };
    let root = b64::std(&checkpoint.root);
    let consistency = match compare(inputs.base, &checkpoint, &root, prove) {
        Ok(consistency) => consistency,
        Err(why) => {
            let head = unread(inputs, LogVerdict::Failed, why);
            return (
                LogHead {
                    consistency: LogConsistency::Broken,
                    ..head
                },
                None,
            );
        }
    };
    let same = inputs
        .last
        .filter(|l| l.size == Some(checkpoint.size) && l.root.as_deref() == Some(root.as_str()));
    // A head without a proof is shown, but does not become the base: the next head is compared with
    // the last proven one.
    let believed = (consistency != LogConsistency::NotProven).then(|| SeenHead {
        id: inputs.id.to_owned(),
        size: checkpoint.size,
        root: root.clone(),
    });
    let head = LogHead {
        id: inputs.id.to_owned(),
        origin: Some(checkpoint.origin),
        size: Some(checkpoint.size),
        root: Some(root),
        verdict,
        reason,
        read_at: Some(inputs.now),
        unchanged_since: same.map_or(Some(inputs.now), |l| l.unchanged_since),
        // The proof of a head stays valid while the head does not change.
        consistency: match (same, consistency) {
            (Some(l), LogConsistency::Unchanged) if l.consistency == LogConsistency::Proven => {
                LogConsistency::Proven
            }
            (_, other) => other,
        },
        compared_with: match same {
            Some(l) if consistency == LogConsistency::Unchanged => l.compared_with,
            _ => inputs.base.map(|base| base.size),
        },
        witnesses,
    };
    (head, believed)
}

/// The head to show when the current one is not accepted: the last accepted one, with the reason.
fn unread(inputs: &HeadInputs<'_>, verdict: LogVerdict, reason: String) -> LogHead {
    let last = inputs.last;
    LogHead {
        id: inputs.id.to_owned(),
        origin: last.and_then(|l| l.origin.clone()),
        size: last.and_then(|l| l.size).or(inputs.base.map(|b| b.size)),
        root: last
            .and_then(|l| l.root.clone())
            .or(inputs.base.map(|b| b.root.clone())),
        verdict,
        reason,
        read_at: last.and_then(|l| l.read_at),
        unchanged_since: last.and_then(|l| l.unchanged_since),
        consistency: last.map_or(LogConsistency::First, |l| l.consistency),
        compared_with: last.and_then(|l| l.compared_with),
        witnesses: last.map_or_else(Vec::new, |l| l.witnesses.clone()),
    }
}

/// How the head continues the accepted one; an error means that it does not.
fn compare(
    base: Option<&SeenHead>,
    head: &Checkpoint,
    root: &str,
    prove: Prove<'_>,
) -> Result<LogConsistency, String> {
    let Some(base) = base else {
        return Ok(LogConsistency::First);
    };
    if head.size < base.size {
        return Err(format!(
            "the log shrank from {} to {} entries",
            base.size, head.size
        ));
    }
    if head.size == base.size {
        return if root == base.root {
            Ok(LogConsistency::Unchanged)
        } else {
            Err(format!(
                "two different roots for {} entries: the log was forked",
                base.size
            ))
        };
    }
    // The empty log is a prefix of every log, so there is nothing to prove.
    if base.size == 0 {
        return Ok(LogConsistency::First);
    }
    let old_root = b64::from_std_array::<32>(&base.root);
    let (Ok(proof), Ok(old_root)) = (prove(base.size, head.size), old_root) else {
        return Ok(LogConsistency::NotProven);
    };
    match verify_consistency(base.size, head.size, &proof, &old_root, &head.root) {
        Ok(()) => Ok(LogConsistency::Proven),
        Err(fault) => Err(format!(
            "the log of {} entries does not continue the one of {}: {fault}",
            head.size, base.size
        )),
    }
}

/// Which of the configured witnesses signed; a wrong signature of one of them is an error.
fn check_witnesses(note: &str, vkeys: &[String]) -> Result<Vec<LogWitness>, String> {
    let note = Note::parse(note).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    for vkey in vkeys {
        let key = VerifierKey::parse(vkey).map_err(|error| format!("log_witnesses: {error}"))?;
        let name = key.name().to_owned();
        let known = |s: &&ron_tlog::note::NoteSignature| s.name == name && s.key_id == key.key_id();
        let signed = note.signatures.iter().any(|s| known(&s));
        if signed {
            note.verify(&[key]).map_err(|error| error.to_string())?;
        }
        out.push(LogWitness { name, signed });
    }
    Ok(out)
}

fn check_signature(
    note: &str,
    vkey: Option<&str>,
    keys: &dyn Fn() -> Result<KeyChain, String>,
) -> Result<(Checkpoint, LogVerdict, String), String> {
    let Some(vkey) = vkey else {
        let head = Checkpoint::read_unverified(note, None).map_err(|error| error.to_string())?;
        return Ok((
            head,
            LogVerdict::Unverified,
            "no log_vkey is configured for this log".to_owned(),
        ));
    };
    let key = VerifierKey::parse(vkey).map_err(|error| format!("log_vkey: {error}"))?;
    let words = format!("signed by {}", key.name());
    let opened = match Checkpoint::open(note, std::slice::from_ref(&key), None) {
        // The log may have rotated its key: the pinned one leads to the new one by signatures of
        // both.
        Err(CheckpointFault::Note(NoteError::Unverified)) => {
            let chain = keys().map_err(|why| format!("not signed by log_vkey; its keys: {why}"))?;
            Checkpoint::open(note, chain.since(&key).unwrap_or_default(), None)
        }
        opened => opened,
    };
    let head = opened.map_err(|error| error.to_string())?;
    Ok((head, LogVerdict::Verified, words))
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
