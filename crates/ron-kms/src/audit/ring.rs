//! The keys that sign checkpoints: the newest key of the log and, for `audit.log_key_overlap` after a rotation, the keys before
//! it, so that verifiers accept that pin either key.
//!
//! **Invariant.** A key is added here before the leaf that records it is appended, and the signing thread loads the keys after
//! it has read the head. So a checkpoint that covers that leaf always carries the new key's line; a checkpoint without it was
//! signed by someone who has only an old key.

use std::path::Path;

use ron_custody::store::{LogIdentity, LogKey};
use ron_custody::store::{LogSigner, SecondSigner};
use ron_files::Dir;
use ron_kernel::{SharedClock, Snapshot};
use ron_service::log_host::KeyView;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{NoteSigner, SignFailed, VerifierKey};
use ron_tlog::rotation::{CHAIN_BYTES_MAX, KeyChain};

use crate::settings::InForce;

/// Maximum keys that sign at a time: a note has room for 64 lines, which witnesses need too.
pub const SIGNING_MAX: usize = 8;

/// The present keys of the log.
pub struct LogRing {
    identity: Snapshot<LogIdentity>,
    view: KeyView,
    settings: InForce,
    second: bool,
    clock: SharedClock,
}

impl LogRing {
    /// Signs with the keys of `identity`, each until `audit.log_key_overlap` after its successor was made; `audit.ml_dsa` adds
    /// ML-DSA-44 lines.
    pub fn new(
        identity: LogIdentity,
        settings: InForce,
        clock: SharedClock,
    ) -> Result<Self, String> {
        let view = KeyView::new(identity.chain()?);
        Ok(Self {
            identity: Snapshot::new(identity),
            view,
            second: settings.with(|settings| settings.keys.ml_dsa),
            settings,
            clock,
        })
    }

    /// Replaces the keys after a rotation.
    pub fn replace(&self, identity: &LogIdentity) -> Result<(), String> {
        let chain = identity.chain()?;
        self.identity.store(identity.clone());
        self.view.show(chain);
        Ok(())
    }

    /// The verifier keys that the HTTP routes serve.
    pub fn view(&self) -> &KeyView {
        &self.view
    }

    /// The keys that sign now: the newest first, then those in their overlap.
    pub fn signing(&self) -> Vec<LogKey> {
        let now = self.clock.unix_ms();
        let overlap = self.settings.with(|settings| settings.keys.log_key_overlap);
        let overlap = u64::try_from(overlap.as_millis()).unwrap_or(u64::MAX);
        self.identity.with(|identity| {
            let keys = &identity.keys;
            let signs = |at: usize| {
                let next = keys.get(at + 1);
                next.is_none_or(|next| now < next.created.0.saturating_add(overlap))
            };
            let all = (0..keys.len()).rev().filter(|at| signs(*at));
            all.map(|at| keys[at].clone()).collect()
        })
    }

    /// The signers of a checkpoint now. Must be called after the head of the log was read, see the invariant above.
    pub fn signers(&self) -> Result<Vec<Box<dyn NoteSigner>>, SignFailed> {
        let origin = self.identity.with(|identity| identity.origin.clone());
        let mut all: Vec<Box<dyn NoteSigner>> = Vec::new();
        let keys = self.signing();
        for key in &keys {
            all.push(Box::new(LogSigner::new(&origin, key).map_err(SignFailed)?));
        }
        for key in keys.iter().filter(|_| self.second) {
            let second = SecondSigner::new(&origin, key, self.clock.clone());
            all.push(Box::new(second.map_err(SignFailed)?));
        }
        Ok(all)
    }

    /// The verifier key line of the newest key's second signature; `None` while `audit.ml_dsa` is off.
    pub fn second_vkey(&self) -> Option<String> {
        let line = self.identity.with(|identity| {
            SecondSigner::verifier_of(&identity.origin, identity.newest())
                .map(|key| key.to_string())
        });
        line.ok().filter(|_| self.second)
    }
}

/// Opens a checkpoint of this log. It must be signed by the newest key whose leaf it covers, or by a later key.
pub fn open_checkpoint(identity: &LogIdentity, note: &str) -> Result<Checkpoint, String> {
    let chain = identity.chain()?;
    let origin = Some(identity.origin.as_str());
    let checkpoint = Checkpoint::open(note, chain.keys(), origin).map_err(|e| e.to_string())?;
    let covered = |key: &&LogKey| key.birth.is_some_and(|birth| birth < checkpoint.size);
    let due = identity.keys.iter().rfind(covered);
    // The first key has no leaf: it applies until the leaf of another one is covered.
    let due = &chain.keys()[due.map_or(0, |key| key.number as usize - 1)];
    let by_due = Checkpoint::open(note, std::slice::from_ref(due), origin);
    let newer = &chain.keys()[chain
        .keys()
        .iter()
        .position(|k| k == due)
        .map_or(0, |at| at + 1)..];
    // A later key is accepted too: a key signs before its leaf is durable, and without an overlap it signs alone.
    match by_due.or_else(|e| Checkpoint::open(note, newer, origin).map_err(|_| e)) {
        Ok(checkpoint) => Ok(checkpoint),
        Err(error) => Err(format!(
            "it has {} leaves, and key {} was in use by then: {error}",
            checkpoint.size,
            due.key_id()
        )),
    }
}

/// The file beside the log with its chain of keys; it exists once the key was rotated.
pub const CHAIN_FILE: &str = "log.keys";

/// Writes the chain beside the log, whose directory `dir` is, unless the file holds it already or there was no rotation.
pub fn keep_chain(dir: &Dir, chain: &KeyChain) -> std::io::Result<()> {
    let text = chain.to_string();
    let old = dir.read_small(CHAIN_FILE, CHAIN_BYTES_MAX as u64);
    let same = old.is_ok_and(|old| old.as_deref() == Some(text.as_bytes()));
    if chain.rotations().is_empty() || same {
        return Ok(());
    }
    dir.write(CHAIN_FILE, text.as_bytes())
}

/// The pinned key and the keys that succeed it, in order, by the chain beside the log in `dir`.
pub fn kept_keys(dir: &Path, pin: &VerifierKey) -> Result<Vec<VerifierKey>, String> {
    let path = dir.join(CHAIN_FILE);
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    match std::fs::metadata(&path) {
        Ok(meta) if meta.len() > CHAIN_BYTES_MAX as u64 => return Err(named(&"it is too long")),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![pin.clone()]),
        Err(e) => return Err(named(&e)),
    }
    let text = std::fs::read_to_string(&path).map_err(|e| named(&e))?;
    let chain = KeyChain::parse(&text).map_err(|e| named(&e))?;
    let led = chain.since(pin);
    led.map(<[VerifierKey]>::to_vec)
        .ok_or_else(|| named(&"the pinned key is not a key of this log"))
}
