//! What a `note` key may say as the policy note of an issuer: services trust the keys that it lists, and refuse every
//! note with a lower version from then on.

use std::collections::BTreeMap;

use ron_custody::index::{Key, KeyIndex};
use ron_custody::keys::note::{self, Progress};
use ron_custody::keys::payload::Payload;
use ron_custody::{Cause, Refusal};
use ron_kernel::RankedMutex;
use ron_proto::kms::PayloadPolicy;
use ron_proto::values::Kid;

use crate::topology::NOTES_LOCK;

fn refuse(why: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal::new(Cause::PayloadRefused, why))
}

/// The issuer and the text, if this is the policy note of an issuer.
fn policy_note<'a>(key: &'a Key, payload: &'a Payload) -> Option<(&'a str, &'a [u8])> {
    let (PayloadPolicy::Note(policy), Payload::Message(text)) = (&key.payload, payload) else {
        return None;
    };
    Some((note::issuer_of(policy)?, text))
}

/// Refuses a policy note unless it lists only keys of this store that sign the tokens of the note's issuer that the issuer
/// policy allows, and names the policy in force here.
pub fn vouched(index: &KeyIndex, key: &Key, payload: &Payload) -> Result<(), Refusal> {
    let Some((issuer, text)) = policy_note(key, payload) else {
        return Ok(());
    };
    // An issuer that was moved has keys for each of its names; its notes are signed under the first for good.
    let names: Vec<&str> = std::iter::once(issuer).chain(note::names(text)).collect();
    let ours = |kid: &str| {
        let mut names = names.iter();
        names.any(|name| index.issues(&key.kid.tenant, name, kid))
    };
    if !note::listed_keys(text).all(ours) {
        return refuse(
            "the note lists a key that signs no tokens of this issuer here: each must be a version of a key of the same \
             tenant whose payload policy is jwt with that iss, or another name in the note, and issuer_policy",
        );
    }
    let in_force = |(version, hash): (u64, &str)| {
        let policy = index.policy.as_ref().map(|policy| &policy.signed);
        policy.is_some_and(|p| p.policy.version == version && p.hash.to_string() == hash)
    };
    if !note::named_policy(text).is_some_and(in_force) {
        return refuse(
            "the note names another issuer policy than the one in force here, whose signature was checked; its line must be \
             `policy <version> <hash>` (`GET /v1/kms/issuer_policy`)",
        );
    }
    Ok(())
}

/// What the last policy note of each key stated. Kept until the process ends: an issuer that was restored from a backup,
/// or that has a new revocation log, is taken up with a restart of this service.
pub struct SignedNotes(RankedMutex<BTreeMap<Kid, Progress>>);

impl SignedNotes {
    /// No note was signed yet.
    pub fn new() -> Self {
        Self(RankedMutex::new(&NOTES_LOCK, BTreeMap::new()))
    }

    /// Remembers a policy note that is about to be signed. Refuses one that goes back behind the last one or names another
    /// revocation log.
    pub fn pass(&self, key: &Key, payload: &Payload) -> Result<(), Refusal> {
        let Some((_, text)) = policy_note(key, payload) else {
            return Ok(());
        };
        let Some(next) = Progress::of(text) else {
            return refuse(
                "a policy note has one line `version <number>`, and at most one of `epoch <number>` and `revocations <key>`",
            );
        };
        let mut signed = self.0.lock();
        let last = signed.get(&key.kid);
        if let Err(what) = last.map_or(Ok(()), |last| last.may_be_followed_by(&next)) {
            return refuse(format!(
                "the {what} of the note does not follow that of the last note that this key has signed. If the issuer was restored \
                 from a backup or has a new revocation log, restart ron-kms; otherwise another program uses its credential"
            ));
        }
        signed.insert(key.kid.clone(), next);
        Ok(())
    }
}
