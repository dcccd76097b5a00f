//! The state of a witness: for each log the last checkpoint it cosigned, one file each, replaced
//! atomically and durable before the cosignature leaves. It has one owner: deciding and storing is
//! one step because only one thread does both.
//!
//! ```text
//! <dir>/<sha256 of the origin, hex>.checkpoint    the checkpoint with the log's signatures and ours
//! <dir>/<sha256 of the origin, hex>.keys          the chain of the log's keys, once it has rotated its key
//! <dir>/lock                                      held by the process that cosigns
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_crypto::hash::sha256;

use crate::checkpoint::Checkpoint;
use crate::cosignature::Cosigner;
use crate::note::{NOTE_BYTES_MAX, Note, NoteSignature, VerifierKey};
use crate::rotation::{CHAIN_BYTES_MAX, KeyChain};
use crate::witness::{AddCheckpoint, Refusal, admit, follows};
use ron_files::{Disk, DiskLock, read_small, write_atomic};

/// Why a checkpoint was not cosigned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CosignError {
    /// A rule forbids it; nothing was stored.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The disk failed: no checkpoint is cosigned until the store is opened again.
    #[error(
        "the checkpoint cannot be stored: {0}; nothing is cosigned until the witness is started again"
    )]
    Io(std::io::Error),
    #[error("an earlier write failed; start the witness again")]
    Poisoned,
}

/// A checkpoint that was cosigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cosigned {
    pub checkpoint: Checkpoint,
    pub line: NoteSignature,
    /// The stored note: the log's signatures and ours.
    pub note: Arc<str>,
}

/// A checkpoint that follows the stored one and may be cosigned.
pub(crate) struct Decided {
    checkpoint: Checkpoint,
    /// With the log's signatures.
    note: Note,
}

/// The state of a witness.
#[derive(Debug)]
pub struct WitnessStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    cosigner: Cosigner,
    /// The configured keys of the logs.
    keys: Vec<VerifierKey>,
    /// Chains of rotated keys that start from them, by origin.
    chains: BTreeMap<String, KeyChain>,
    last: BTreeMap<String, (Checkpoint, Arc<str>)>,
    poisoned: bool,
    _lock: Box<dyn DiskLock>,
}

/// The name under which monitors request a log: lower-case hex of the SHA-256 of its origin.
pub fn origin_hash(origin: &str) -> String {
    hex::encode(sha256(origin.as_bytes()))
}

fn keys_name(origin: &str) -> String {
    format!("{}.keys", origin_hash(origin))
}

fn file_name(origin: &str) -> String {
    format!("{}.checkpoint", origin_hash(origin))
}

impl WitnessStore {
    /// Opens or makes the state in `dir` for the logs whose keys are `keys` (a key's name is its
    /// log's origin). A file that this witness has not cosigned, or that belongs to another log, is
    /// refused.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cosigner: Cosigner,
        keys: Vec<VerifierKey>,
    ) -> Result<Self, String> {
        let io = |e: std::io::Error| format!("{}: {e}", dir.display());
        disk.create_dir_all(dir).map_err(io)?;
        let lock = disk.lock(&dir.join("lock")).map_err(io)?;
        let lock = lock.ok_or_else(|| format!("{} is used by another witness", dir.display()))?;
        let mut last = BTreeMap::new();
        for key in &keys {
            let path = dir.join(file_name(key.name()));
            let bytes = read_small(&*disk, &path, NOTE_BYTES_MAX as u64).map_err(io)?;
            let Some(bytes) = bytes else { continue };
            let text = String::from_utf8(bytes).map_err(|e| e.to_string());
            let kept = text.and_then(|text| {
                let note = Note::parse(&text).map_err(|e| e.to_string())?;
                let checkpoint = Checkpoint::read_unverified(&text, Some(key.name()));
                let checkpoint = checkpoint.map_err(|e| e.to_string())?;
                if cosigner.verifier().find(&note).is_none() {
                    return Err("it was not cosigned by this witness".into());
                }
                Ok((checkpoint, text.into()))
            });
            let kept = kept.map_err(|why| {
                format!(
                    "{}: {why}. Restore the file; without it this witness could sign two histories",
                    path.display()
                )
            })?;
            last.insert(key.name().to_owned(), kept);
        }
        let chains = read_chains(&*disk, dir, &keys)?;
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            cosigner,
            keys,
            chains,
            last,
            poisoned: false,
            _lock: lock,
        })
    }

    pub fn cosigner(&self) -> &Cosigner {
        &self.cosigner
    }

    /// The stored note of each log that was cosigned, by [`origin_hash`].
    pub fn notes(&self) -> BTreeMap<String, Arc<str>> {
        let one = |(origin, (_, note)): (&String, &(Checkpoint, Arc<str>))| {
            (origin_hash(origin), Arc::clone(note))
        };
        self.last.iter().map(one).collect()
    }

    /// The last checkpoint cosigned for a log.
    pub fn last(&self, origin: &str) -> Option<&Checkpoint> {
        self.last.get(origin).map(|(checkpoint, _)| checkpoint)
    }

    /// Decides on a request; if its checkpoint follows the last one, makes the checkpoint durable
    /// and cosigns it at `time_s` (seconds since 1970). When this returns `Ok`, the checkpoint
    /// survives a crash.
    pub fn add(&mut self, request: &AddCheckpoint, time_s: u64) -> Result<Cosigned, CosignError> {
        let decided = self.decide(request)?;
        self.keep(decided, time_s)
    }

    /// Whether a request follows the stored checkpoint. The decision is valid until another
    /// checkpoint is stored.
    pub(crate) fn decide(&self, request: &AddCheckpoint) -> Result<Decided, CosignError> {
        if self.poisoned {
            return Err(CosignError::Poisoned);
        }
        let (checkpoint, note) = admit(request, &self.accepted())?;
        let last = self.last.get(&checkpoint.origin);
        follows(request, &checkpoint, last.map(|(c, _)| c))?;
        Ok(Decided { checkpoint, note })
    }

    /// Makes a decided checkpoint durable and cosigns it.
    pub(crate) fn keep(&mut self, decided: Decided, time_s: u64) -> Result<Cosigned, CosignError> {
        let Decided {
            checkpoint,
            mut note,
        } = decided;
        let line = self.cosigner.cosign(&note.text, time_s.max(1));
        let line = line.ok_or_else(|| Refusal::Malformed("its origin is too long".into()))?;
        note.signatures.push(line.clone());
        let text: Arc<str> = note.to_string().into();
        // Stored before the cosignature is returned: otherwise a crash could lead to two signed
        // histories.
        let name = file_name(&checkpoint.origin);
        if let Err(e) = write_atomic(&*self.disk, &self.dir, &name, text.as_bytes()) {
            self.poisoned = true;
            return Err(CosignError::Io(e));
        }
        let kept = (checkpoint.clone(), Arc::clone(&text));
        self.last.insert(checkpoint.origin.clone(), kept);
        Ok(Cosigned {
            checkpoint,
            line,
            note: text,
        })
    }

    /// The mutant: decides on several requests before it stores any of them, which must not happen.
    #[cfg(mutant = "batch")]
    pub fn add_together(
        &mut self,
        requests: &[AddCheckpoint],
        time_s: u64,
    ) -> Vec<Result<Cosigned, CosignError>> {
        let decided: Vec<_> = requests.iter().map(|r| self.decide(r)).collect();
        let keep = |d: Result<Decided, CosignError>| d.and_then(|d| self.keep(d, time_s));
        decided.into_iter().map(keep).collect()
    }

    /// The keys of which one must have signed a checkpoint: for a log with a known chain its newest
    /// key and the configured keys that are not in the chain; for any other log all configured
    /// keys.
    fn accepted(&self) -> Vec<VerifierKey> {
        let chain_of = |key: &VerifierKey| self.chains.get(key.name());
        let given = self.keys.iter();
        let apart = given.filter(|key| chain_of(key).is_none_or(|c| c.since(key).is_none()));
        let newest = self.chains.values().map(KeyChain::newest);
        apart.chain(newest).cloned().collect()
    }

    /// Stores the chain of a log's keys durably: it must contain a key that is configured for that
    /// log, and extend the known chain. From then on only its newest key is accepted. Returns the
    /// number of keys; a chain without new keys is accepted as well.
    pub fn learn(&mut self, text: &str) -> Result<usize, CosignError> {
        if self.poisoned {
            return Err(CosignError::Poisoned);
        }
        let chain = KeyChain::parse(text).map_err(|e| Refusal::Malformed(e.to_string()))?;
        let origin = chain.origin().to_owned();
        if !self.keys.iter().any(|key| key.name() == origin) {
            return Err(Refusal::UnknownLog(origin).into());
        }
        if !contains_known_key(&chain, &self.keys) {
            let why = "the chain does not begin at or pass a key that was given for the log";
            return Err(Refusal::Forbidden(why.into()).into());
        }
        let keys = chain.keys().len();
        // An older or equal chain changes nothing; a chain that forks from the known one is
        // refused.
        match self.chains.get(&origin) {
            Some(known) if known.extends(&chain) => return Ok(keys),
            Some(known) if !chain.extends(known) => {
                return Err(Refusal::OtherKeys(origin).into());
            }
            _ => {}
        }
        let name = keys_name(&origin);
        if let Err(e) = write_atomic(&*self.disk, &self.dir, &name, chain.to_string().as_bytes()) {
            self.poisoned = true;
            return Err(CosignError::Io(e));
        }
        self.chains.insert(origin, chain);
        Ok(keys)
    }

    /// True once a write has failed: no further checkpoint is cosigned.
    pub fn poisoned(&self) -> bool {
        self.poisoned
    }
}

/// Whether the chain contains one of the configured keys.
fn contains_known_key(chain: &KeyChain, given: &[VerifierKey]) -> bool {
    given.iter().any(|key| chain.since(key).is_some())
}

/// The chains in `dir`, each of which must contain a configured key.
fn read_chains(
    disk: &dyn Disk,
    dir: &Path,
    keys: &[VerifierKey],
) -> Result<BTreeMap<String, KeyChain>, String> {
    let mut chains = BTreeMap::new();
    for key in keys {
        let path = dir.join(keys_name(key.name()));
        let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let bytes = read_small(disk, &path, CHAIN_BYTES_MAX as u64).map_err(|e| named(&e))?;
        let Some(bytes) = bytes else { continue };
        let text = String::from_utf8(bytes).map_err(|e| named(&e))?;
        let chain = KeyChain::parse(&text).map_err(|e| named(&e))?;
        if chain.origin() != key.name() || !contains_known_key(&chain, keys) {
            return Err(named(
                &"it does not lead on from a key that was given for the log",
            ));
        }
        chains.insert(key.name().to_owned(), chain);
    }
    Ok(chains)
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::note::Ed25519NoteSigner;
    use crate::tree::{Frontier, leaf_hash};
    use ron_files::{CrashMode, FaultKind, SimDisk};

    fn log() -> Ed25519NoteSigner {
        Ed25519NoteSigner::new("log.example", Ed25519Key::from_seed(&[1; 32])).expect("name")
    }

    fn open(disk: &SimDisk) -> Result<WitnessStore, String> {
        let cosigner = Cosigner::new("w.example", Ed25519Key::from_seed(&[2; 32])).expect("name");
        let keys = vec![log().verifier().clone()];
        WitnessStore::open(Arc::new(disk.clone()), Path::new("/w"), cosigner, keys)
    }

    /// A request for the checkpoint of size `new`, as the log itself would make it.
    fn request(reader: &crate::append::LogReader, old: u64, new: u64) -> AddCheckpoint {
        let proof = if old == 0 {
            Vec::new()
        } else {
            reader.consistency(old, new).expect("there")
        };
        let checkpoint = Checkpoint {
            origin: "log.example".into(),
            size: new,
            root: reader.root_at(new).expect("there"),
        };
        AddCheckpoint {
            old,
            proof,
            checkpoint: checkpoint.sign(&[&log()]).expect("signs"),
        }
    }

    fn tree(n: u64) -> crate::append::Log {
        let options = crate::append::LogOptions::new("log.example");
        let mut log = crate::append::Log::open(Arc::new(SimDisk::new()), Path::new("/l"), options)
            .expect("opens");
        let entries: Vec<String> = (0..n).map(|i| i.to_string()).collect();
        log.append(&entries).expect("appends");
        log
    }

    #[test]
    fn it_remembers_over_restarts_and_refuses_a_changed_memory() {
        let (disk, log) = (SimDisk::new(), tree(20));
        let reader = log.reader();
        let mut witness = open(&disk).expect("opens");
        assert!(open(&disk).is_err(), "in use");
        let first = witness.add(&request(&reader, 0, 7), 100).expect("cosigns");
        assert_eq!(
            witness
                .cosigner()
                .verifier()
                .verify(&Note::parse(&first.note).expect("a note").text, &first.line),
            Some(100)
        );
        drop(witness);
        let mut witness = open(&disk).expect("opens");
        assert_eq!(witness.last("log.example").map(|c| c.size), Some(7));
        let refused = witness
            .add(&request(&reader, 0, 9), 101)
            .expect_err("stale");
        assert!(
            matches!(refused, CosignError::Refused(Refusal::OldSize(7))),
            "{refused}"
        );
        witness.add(&request(&reader, 7, 20), 102).expect("cosigns");
        let mut frontier = Frontier::new();
        (0..20_u64).for_each(|i| frontier.push(leaf_hash(i.to_string().as_bytes())));
        assert_eq!(
            witness.last("log.example").map(|c| c.root),
            Some(frontier.root())
        );
        drop(witness);
        let name = Path::new("/w").join(file_name("log.example"));
        let good = String::from_utf8(disk.peek(&name).expect("there")).expect("text");
        disk.poke(
            &name,
            Some(good.replacen("\n20\n", "\n19\n", 1).into_bytes()),
        );
        assert!(open(&disk).expect_err("changed").contains("cosigned"));
    }

    /// The witness follows a log that rotates its key; a second history of keys is refused, also
    /// after a restart.
    #[test]
    fn it_follows_the_keys_of_a_log_and_only_one_history_of_them() {
        use crate::note::NoteSigner as _;
        use crate::rotation::Rotation;
        let by = |seed: u8| {
            Ed25519NoteSigner::new("log.example", Ed25519Key::from_seed(&[seed; 32])).expect("name")
        };
        let push = |chain: &mut KeyChain, old: u8, new: u8| {
            let rotation = Rotation {
                number: chain.keys().len() as u32 + 1,
                size: 7,
                time_ms: 5,
                old: by(old).verifier().clone(),
                new: by(new).verifier().clone(),
                second: None,
            };
            let note = rotation.sign(&by(old), &by(new)).expect("signs");
            chain.push(&note).expect("follows");
        };
        let first = KeyChain::new(by(1).verifier().clone());
        let (mut second, mut fork) = (first.clone(), first.clone());
        push(&mut second, 1, 3);
        push(&mut fork, 1, 4);
        let mut third = second.clone();
        push(&mut third, 3, 5);
        let (disk, log) = (SimDisk::new(), tree(20));
        let reader = log.reader();
        let signed = |old: u64, new: u64, seeds: &[u8]| {
            let mut request = request(&reader, old, new);
            let mut note = Note::parse(&request.checkpoint).expect("a note");
            note.signatures = seeds
                .iter()
                .map(|seed| NoteSignature {
                    name: "log.example".into(),
                    key_id: by(*seed).key_id(),
                    signature: by(*seed).sign(note.text.as_bytes()).expect("signs"),
                })
                .collect();
            request.checkpoint = note.to_string();
            request
        };
        let status = |refused: Result<_, CosignError>| match refused {
            Ok(_) => 200,
            Err(CosignError::Refused(refusal)) => refusal.status(),
            Err(_) => 503,
        };
        let mut witness = open(&disk).expect("opens");
        let add = |witness: &mut WitnessStore, old, new, seeds: &[u8]| {
            status(witness.add(&signed(old, new, seeds), 9).map(|_| 0))
        };
        assert_eq!(
            add(&mut witness, 0, 3, &[1, 3]),
            200,
            "in the overlap the old key is enough"
        );
        assert_eq!(
            add(&mut witness, 3, 4, &[3]),
            403,
            "the chain is not known yet"
        );
        assert_eq!(
            status(witness.learn(&KeyChain::new(by(3).verifier().clone()).to_string())),
            403
        );
        assert_eq!(status(witness.learn("x\n")), 400);
        assert_eq!(witness.learn(&second.to_string()).expect("learns"), 2);
        assert_eq!(
            add(&mut witness, 3, 4, &[1]),
            403,
            "the old key is no longer accepted"
        );
        assert_eq!(add(&mut witness, 3, 4, &[3]), 200);
        assert_eq!(status(witness.learn(&fork.to_string())), 409);
        assert_eq!(witness.learn(&first.to_string()).expect("nothing new"), 1);
        drop(witness);
        let mut witness = open(&disk).expect("opens");
        assert_eq!(
            status(witness.learn(&fork.to_string())),
            409,
            "it remembers"
        );
        assert_eq!(witness.learn(&third.to_string()).expect("learns"), 3);
        assert_eq!(add(&mut witness, 4, 5, &[3]), 403);
        assert_eq!(add(&mut witness, 4, 5, &[5]), 200);
        drop(witness);
        let name = Path::new("/w").join(keys_name("log.example"));
        disk.poke(&name, Some(b"other\n".to_vec()));
        assert!(open(&disk).expect_err("changed").contains(".keys"));
    }

    /// A power failure at every operation: an answered checkpoint is never lost, and no older one
    /// replaces it.
    #[test]
    fn no_crash_loses_an_answered_checkpoint() {
        let log = tree(40);
        let reader = log.reader();
        let mut crashes = 0;
        for kind in [FaultKind::PowerOff, FaultKind::Io, FaultKind::NoSpace] {
            for mode in [
                CrashMode::LoseAll,
                CrashMode::KeepAll,
                CrashMode::TearLast(9),
                CrashMode::HoleInLast(0),
            ] {
                for after in 1..30 {
                    let disk = SimDisk::new();
                    let mut witness = open(&disk).expect("opens");
                    disk.fail_after(after, kind);
                    let (mut answered, mut asked) = (0, 0);
                    for new in [3, 8, 9, 20, 40] {
                        asked = new;
                        match witness.add(&request(&reader, answered, new), 50 + new) {
                            Ok(_) => answered = new,
                            Err(CosignError::Io(_)) => {
                                let again = witness.add(&request(&reader, answered, new), 99);
                                assert!(matches!(again, Err(CosignError::Poisoned)));
                                break;
                            }
                            Err(other) => panic!("{other}"),
                        }
                    }
                    crashes += u32::from(answered < 40);
                    drop(witness);
                    disk.crash(mode);
                    let witness = open(&disk).expect("opens after a crash");
                    let kept = witness.last("log.example").map_or(0, |c| c.size);
                    assert!(
                        kept == answered || kept == asked,
                        "{kind:?} {mode:?} {after}: {answered} answered, {kept} kept"
                    );
                }
            }
        }
        assert!(crashes > 100, "{crashes}");
    }
}
