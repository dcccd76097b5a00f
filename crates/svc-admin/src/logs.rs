//! Reads the heads of the fleet's verifiable logs and checks what one observer can check: the signature against the
//! pinned key, the witnesses' signatures, and, from the log's own tiles, that it only grew since the last head that
//! was believed. That head outlives a restart of the console.

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

use crate::audit::{SeenHead, SharedAudit};
use crate::config::LogSpec;
use crate::fleet::Fleet;

/// Time between two looks at the heads.
const PACE: Duration = Duration::from_secs(10);
/// Time for one head to be read.
const READ: Duration = Duration::from_secs(2);
/// Time for the tiles of one proof.
const PROVE: Duration = Duration::from_secs(4);

type Hash = [u8; 32];

/// Where readers find the heads.
pub type Heads = Snapshot<LogHeads>;

/// Watches the logs of the fleet.
#[derive(Debug)]
pub struct LogWatch {
    client: Arc<HttpClient>,
    clock: SharedClock,
    audit: SharedAudit,
    /// The last head of each log that was believed; its own thread is the only writer.
    bases: Snapshot<BTreeMap<String, SeenHead>>,
}

impl LogWatch {
    /// A watch that remembers `seen` from before.
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

    /// The body of the thread: reads all heads by pace. The first look comes after a moment, when the logs had
    /// time to start.
    pub fn run(&self, fleet: &Fleet, heads: &Heads, ctx: &ThreadCtx) {
        let mut wait = Duration::from_secs(1);
        while !ctx.shutdown.wait(Deadline::within(wait)) {
            self.tick(fleet, heads);
            wait = PACE;
        }
    }

    /// Reads and judges every head once.
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
            let look = Look {
                id,
                log,
                keys: &keys,
                last: before.logs.iter().find(|head| head.id == *id),
                base: bases.get(id),
                now: Timestamp(self.clock.unix_ms()),
            };
            let (head, believed) = judge_head(&look, read, &prove);
            if let Some(base) = believed.filter(|base| bases.get(id) != Some(base)) {
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

/// What a head is judged by.
pub struct Look<'a> {
    pub id: &'a str,
    pub log: &'a LogSpec,
    /// Fetches the chain of the log's keys, where the pinned one has not signed.
    pub keys: &'a dyn Fn() -> Result<KeyChain, String>,
    /// What was shown before.
    pub last: Option<&'a LogHead>,
    /// The last head that was believed.
    pub base: Option<&'a SeenHead>,
    pub now: Timestamp,
}

/// Fetches the hashes that prove one size to be a prefix of another.
pub type Prove<'a> = &'a dyn Fn(u64, u64) -> Result<Vec<Hash>, String>;

/// Judges one head. Returns what to show, and the head to compare with from now on when this one is believed.
pub fn judge_head(
    look: &Look<'_>,
    read: Result<String, String>,
    prove: Prove<'_>,
) -> (LogHead, Option<SeenHead>) {
    let note = match read {
        Ok(note) => note,
        Err(why) => return (unread(look, LogVerdict::Unreachable, why), None),
    };
    let (checkpoint, verdict, reason) =
        match check_signature(&note, look.log.vkey.as_deref(), look.keys) {
            Ok(checked) => checked,
            Err(why) => return (unread(look, LogVerdict::Failed, why), None),
        };
    let witnesses = match check_witnesses(&note, &look.log.witnesses) {
        Ok(witnesses) => witnesses,
        Err(why) => return (unread(look, LogVerdict::Failed, why), None),
    };
    let root = b64::std(&checkpoint.root);
    let consistency = match compare(look.base, &checkpoint, &root, prove) {
        Ok(consistency) => consistency,
        Err(why) => {
            let head = unread(look, LogVerdict::Failed, why);
            return (
                LogHead {
                    consistency: LogConsistency::Broken,
                    ..head
                },
                None,
            );
        }
    };
    let same = look
        .last
        .filter(|l| l.size == Some(checkpoint.size) && l.root.as_deref() == Some(root.as_str()));
    let believed = (consistency != LogConsistency::NotProven).then(|| SeenHead {
        id: look.id.to_owned(),
        size: checkpoint.size,
        root: root.clone(),
    });
    let head = LogHead {
        id: look.id.to_owned(),
        origin: Some(checkpoint.origin),
        size: Some(checkpoint.size),
        root: Some(root),
        verdict,
        reason,
        read_at: Some(look.now),
        unchanged_since: same.map_or(Some(look.now), |l| l.unchanged_since),
        // A head that was proven once stays proven while it does not change.
        consistency: match (same, consistency) {
            (Some(l), LogConsistency::Unchanged) if l.consistency == LogConsistency::Proven => {
                LogConsistency::Proven
            }
            (_, other) => other,
        },
        compared_with: match same {
            Some(l) if consistency == LogConsistency::Unchanged => l.compared_with,
            _ => look.base.map(|base| base.size),
        },
        witnesses,
    };
    (head, believed)
}

/// What is shown when the present head is not believed: the last one that was, and why.
fn unread(look: &Look<'_>, verdict: LogVerdict, reason: String) -> LogHead {
    let last = look.last;
    LogHead {
        id: look.id.to_owned(),
        origin: last.and_then(|l| l.origin.clone()),
        size: last.and_then(|l| l.size).or(look.base.map(|b| b.size)),
        root: last
            .and_then(|l| l.root.clone())
            .or(look.base.map(|b| b.root.clone())),
        verdict,
        reason,
        read_at: last.and_then(|l| l.read_at),
        unchanged_since: last.and_then(|l| l.unchanged_since),
        consistency: last.map_or(LogConsistency::FirstLook, |l| l.consistency),
        compared_with: last.and_then(|l| l.compared_with),
        witnesses: last.map_or_else(Vec::new, |l| l.witnesses.clone()),
    }
}

/// How the head continues the one that was believed; an error says that it does not.
fn compare(
    base: Option<&SeenHead>,
    head: &Checkpoint,
    root: &str,
    prove: Prove<'_>,
) -> Result<LogConsistency, String> {
    let Some(base) = base else {
        return Ok(LogConsistency::FirstLook);
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
    if base.size == 0 {
        return Ok(LogConsistency::FirstLook);
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
        // The log may have a new key by now: the pinned one leads to it by signatures of both.
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
mod tests {
    use super::*;
    use ron_crypto::sign::Ed25519Key;
    use ron_tlog::note::Ed25519NoteSigner;
    use ron_tlog::tree::{Frontier as Tree, leaf_hash};

    fn signer(name: &str, seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new(name, Ed25519Key::from_seed(&[seed; 32])).expect("a valid name")
    }

    fn unpublished() -> Result<KeyChain, String> {
        Err("answered 404".into())
    }

    /// A log whose key was rotated: the pinned key leads to the one that signs, and no other does.
    #[test]
    fn a_pinned_key_leads_to_the_key_that_signs_now() {
        use ron_tlog::rotation::Rotation;
        let by = |seed| signer("log.example/a", seed);
        let rotation = Rotation {
            number: 2,
            size: 1,
            time_ms: 1,
            old: by(1).verifier().clone(),
            new: by(2).verifier().clone(),
            second: None,
        };
        let mut chain = KeyChain::new(rotation.old.clone());
        let statement = rotation.sign(&by(1), &by(2)).expect("signs");
        chain.push(&statement).expect("follows");
        let note = |seed| note(seed, 3, 0, false).expect("signs");
        let check = |pin: u8, seed: u8, published: Result<KeyChain, String>| {
            let vkey = by(pin).verifier().to_string();
            check_signature(&note(seed), Some(&vkey), &|| published.clone()).map(|c| c.1)
        };
        let verified = Ok(LogVerdict::Verified);
        assert_eq!(check(1, 1, unpublished()), verified);
        assert_eq!(check(1, 2, Ok(chain.clone())), verified);
        assert!(check(1, 2, unpublished()).is_err_and(|why| why.contains("404")));
        assert!(
            check(1, 3, Ok(chain.clone())).is_err(),
            "signed by somebody else"
        );
        assert!(
            check(3, 2, Ok(chain.clone())).is_err(),
            "pinned to somebody else"
        );
        assert!(check(2, 1, Ok(chain)).is_err(), "back to the old key");
    }

    /// The log's head at `size`; `fork` changes its first entry.
    fn note(seed: u8, size: u64, fork: u8, witness: bool) -> Result<String, String> {
        let checkpoint = Checkpoint {
            origin: "log.example/a".into(),
            size,
            root: tree(size, fork).root(),
        };
        let (log, eye) = (signer("log.example/a", seed), signer("eye.example", 9));
        let note = if witness {
            checkpoint.sign(&[&log, &eye])
        } else {
            checkpoint.sign(&[&log])
        };
        Ok(note.expect("signs"))
    }

    fn leaves(size: u64, fork: u8) -> Vec<Hash> {
        let entry = |n| if n == 0 { vec![fork] } else { vec![n as u8, 1] };
        (0..size).map(|n| leaf_hash(&entry(n))).collect()
    }

    fn tree(size: u64, fork: u8) -> Tree {
        let mut tree = Tree::new();
        leaves(size, fork)
            .into_iter()
            .for_each(|leaf| tree.push(leaf));
        tree
    }

    struct Leaves(Vec<Hash>);

    impl HashReader for Leaves {
        type Error = String;
        fn node(&self, level: u32, index: u64) -> Result<Hash, String> {
            if level == 0 {
                return self.0.get(index as usize).copied().ok_or_else(String::new);
            }
            let (l, r) = (
                self.node(level - 1, index * 2)?,
                self.node(level - 1, index * 2 + 1)?,
            );
            Ok(node_hash(&l, &r))
        }
    }

    fn log(pinned: bool, witness: bool) -> LogSpec {
        let vkey = signer("log.example/a", 1).verifier().to_string();
        let eye = signer("eye.example", 9).verifier().to_string();
        LogSpec {
            base_url: String::new(),
            vkey: pinned.then_some(vkey),
            witnesses: if witness { vec![eye] } else { Vec::new() },
        }
    }

    #[test]
    fn heads_are_judged() {
        let prove = |old, new| consistency_proof(&Leaves(leaves(new, 0)), old, new);
        let judge = |log: &LogSpec, last: Option<&LogHead>, base: Option<&SeenHead>, ms, read| {
            let look = Look {
                id: "k",
                log,
                keys: &unpublished,
                last,
                base,
                now: Timestamp(ms),
            };
            judge_head(&look, read, &prove)
        };
        let pinned = log(true, false);
        let (first, base) = judge(&pinned, None, None, 1, note(1, 5, 0, false));
        assert_eq!((first.verdict, first.size), (LogVerdict::Verified, Some(5)));
        assert_eq!(first.consistency, LogConsistency::FirstLook);
        let base = base.expect("believed");
        let (same, _) = judge(&pinned, Some(&first), Some(&base), 2, note(1, 5, 0, false));
        assert_eq!(same.consistency, LogConsistency::Unchanged);
        assert_eq!(
            (same.read_at, same.unchanged_since),
            (Some(Timestamp(2)), Some(Timestamp(1)))
        );
        let (grown, next) = judge(&pinned, Some(&first), Some(&base), 3, note(1, 9, 0, false));
        assert_eq!(
            grown.consistency,
            LogConsistency::Proven,
            "{}",
            grown.reason
        );
        assert_eq!(grown.compared_with, Some(5));
        assert_eq!(next.map(|base| base.size), Some(9));

        let check = |log: &LogSpec, read, verdict, words: &str| {
            let (got, believed) = judge(log, Some(&first), Some(&base), 3, read);
            assert_eq!(got.verdict, verdict, "{got:?}");
            assert!(got.reason.contains(words), "{words:?} in {got:?}");
            let good = matches!(verdict, LogVerdict::Verified | LogVerdict::Unverified);
            assert_eq!(
                believed.is_some(),
                good,
                "only good heads are compared with"
            );
        };
        check(&pinned, note(2, 9, 0, false), LogVerdict::Failed, "");
        check(
            &log(false, false),
            note(1, 9, 0, false),
            LogVerdict::Unverified,
            "no log_vkey",
        );
        check(
            &pinned,
            note(1, 4, 0, false),
            LogVerdict::Failed,
            "shrank from 5 to 4",
        );
        check(&pinned, note(1, 5, 1, false), LogVerdict::Failed, "forked");
        check(
            &pinned,
            note(1, 9, 1, false),
            LogVerdict::Failed,
            "does not continue",
        );
        check(
            &pinned,
            Err("answered 404".into()),
            LogVerdict::Unreachable,
            "404",
        );
        check(&pinned, Ok("hello".into()), LogVerdict::Failed, "");
        let (lost, _) = judge(&pinned, Some(&first), Some(&base), 3, Err("x".into()));
        assert_eq!(lost.size, Some(5), "the last good head stays");
    }

    #[test]
    fn growth_without_tiles_is_not_called_proven() {
        let base = SeenHead {
            id: "k".into(),
            size: 5,
            root: b64::std(&tree(5, 0).root()),
        };
        let spec = log(true, false);
        let look = Look {
            id: "k",
            log: &spec,
            keys: &unpublished,
            last: None,
            base: Some(&base),
            now: Timestamp(1),
        };
        let (head, believed) = judge_head(&look, note(1, 9, 0, false), &|_, _| Err("404".into()));
        assert_eq!(head.consistency, LogConsistency::NotProven);
        assert_eq!(believed, None, "the old head stays the measure");
    }

    #[test]
    fn witnesses_are_named_with_what_they_signed() {
        let spec = log(true, true);
        let look = Look {
            id: "k",
            log: &spec,
            keys: &unpublished,
            last: None,
            base: None,
            now: Timestamp(1),
        };
        let signed = |read| judge_head(&look, read, &|_, _| Ok(Vec::new())).0.witnesses;
        let want = |signed| {
            vec![LogWitness {
                name: "eye.example".into(),
                signed,
            }]
        };
        assert_eq!(signed(note(1, 5, 0, true)), want(true));
        assert_eq!(signed(note(1, 5, 0, false)), want(false));
    }
}
