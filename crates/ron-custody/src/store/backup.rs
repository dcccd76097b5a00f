//! One key with its history as a sealed text, and the key that a restore makes of it.
//!
//! ```text
//! text     "ron-kms-backup:v1:" | base64url of: nonce 12 | AES-256-GCM under a key of the seal key | tag 16
//! sealed   length u32 | facts of the key as canonical JSON
//!          then per version, from the first: created u64 (unix ms) | public key u16 + bytes | private key u16 + bytes
//! ```
//! Numbers are big-endian; a private key of no bytes was destroyed before the backup. The sealing key comes from the seal key
//! by HKDF-SHA-256 without a salt, so every store with the same seal key opens the text, and nothing else does.

use std::collections::BTreeMap;

use ron_crypto::SecretBytes;
use ron_kernel::Random;
use ron_proto::kms::{BACKUP_BYTES_MAX, KeyPolicy, KeyState, PayloadPolicy, Period};
use ron_proto::values::{Kid, TagName, TagValue, Timestamp};
use ron_proto::{b64, jcs, strict};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::change::{Change, Erase};
use super::meta::Meta;
use super::record::NewVersion;
use super::seal::RecordName;
use super::{KeyStore, StoreError};
use crate::backend::Custody;
use crate::index::not_active;
use crate::keys::{PublicKey, SecretKey};
use crate::{Cause, Refusal};

const PREFIX: &str = "ron-kms-backup:v1:";

/// What a backup says of a key beside its versions. Members that are added later are absent while they hold their default.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    pub key: Kid,
    pub payload: PayloadPolicy,
    pub exportable: bool,
    pub imported: bool,
    pub retired: bool,
    pub deletion_allowed: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    pub min_verify: u32,
    pub min_wrap: u32,
    pub min_available: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<Period>,
    /// Without it a restored key would be free for all callers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<KeyPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagValue>,
}

/// A backup whose seal was right.
pub struct Backup {
    pub facts: Facts,
    versions: Vec<KeptVersion>,
}

struct KeptVersion {
    created: Timestamp,
    public: Vec<u8>,
    /// `None` when it was destroyed.
    secret: Option<SecretBytes>,
}

impl Backup {
    /// Number of versions; the last one becomes the head.
    pub fn head(&self) -> u32 {
        self.versions.len() as u32
    }
}

/// Why there is no backup.
pub enum BackupError {
    Refusal(Refusal),
    Store(StoreError),
}

impl From<Refusal> for BackupError {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<StoreError> for BackupError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk()?;
    let (bytes, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *rest = behind;
    Some(bytes)
}

impl KeyStore {
    /// The key and its versions up to the head as a sealed text. Refused for keys whose secrets are destroyed or in a device, and
    /// for keys of notes, whose restored copy could sign a checkpoint that contradicts a later one.
    pub fn backup(&mut self, kid: &Kid, random: &dyn Random) -> Result<String, BackupError> {
        let meta = self.known(kid)?.clone();
        let refuse = |detail: &str| Err(Refusal::new(Cause::Unsupported, detail).into());
        if meta.destroyed {
            return Err(not_active(KeyState::Destroyed).into());
        }
        if meta.is_held_by_device() {
            return refuse("a device holds this key: back it up with the tools of the device");
        }
        if matches!(meta.payload, PayloadPolicy::Note(_)) {
            return refuse(
                "the checkpoints that this key signs may only grow, which a restored copy would not know: back up the whole store",
            );
        }
        let facts = Facts {
            key: kid.clone(),
            payload: meta.payload.clone(),
            exportable: meta.exportable,
            imported: meta.imported,
            retired: meta.retired,
            deletion_allowed: meta.deletion_allowed,
            derived: meta.derived,
            min_verify: meta.min_verify,
            min_wrap: meta.min_wrap,
            min_available: meta.min_available,
            rotate_every: meta.rotation.map(|rotation| rotation.every),
            policy: meta.access.policy.clone(),
            description: meta.labels.description.clone(),
            tags: meta.labels.tags.clone(),
        };
        let facts = jcs::to_vec(&facts).expect("facts hold strings and integers only");
        // Never moved while it grows, so that no copy of a secret stays behind.
        let mut plain = Zeroizing::new(Vec::with_capacity(2 * BACKUP_BYTES_MAX));
        plain.extend_from_slice(&(facts.len() as u32).to_be_bytes());
        plain.extend_from_slice(&facts);
        for number in 1..=meta.head {
            let version = self.records.get(kid).and_then(|record| {
                let row = record.versions.get(number as usize - 1)?;
                Some(row.version.clone())
            });
            let version = version.ok_or_else(|| Refusal::quarantined(kid, number))?;
            if version.damaged {
                return Err(Refusal::quarantined(kid, number).into());
            }
            plain.extend_from_slice(&version.created.0.to_be_bytes());
            put(&mut plain, version.public.raw());
            if number < meta.min_available {
                put(&mut plain, &[]);
            } else {
                let secret = self.reopen(kid, number)?;
                let secret = secret.ok_or_else(|| Refusal::quarantined(kid, number))?;
                put(&mut plain, secret.expose());
            }
            if plain.len() > BACKUP_BYTES_MAX {
                let detail = format!(
                    "the versions of this key have more than {BACKUP_BYTES_MAX} bytes: destroy old ones (`ron kms destroy --below-version`), or back up the whole store"
                );
                return Err(Refusal::new(Cause::TooLarge, detail).into());
            }
        }
        let sealed = self.sealer.seal_backup(&plain, random);
        Ok(format!("{PREFIX}{}", b64::url(&sealed)))
    }

    /// Opens what [`KeyStore::backup`] made.
    pub fn open_backup(&self, text: &str) -> Result<Backup, Refusal> {
        self.opened(text.trim()).ok_or_else(|| {
            Refusal::new(
                Cause::WrappedRefused,
                "the backup does not open: it was changed, or made under another seal key than that of this store",
            )
        })
    }

    fn opened(&self, text: &str) -> Option<Backup> {
        let sealed = b64::from_url(text.strip_prefix(PREFIX)?).ok()?;
        let plain = self.sealer.open_backup(&sealed)?;
        let (length, rest) = plain.expose().split_first_chunk()?;
        let (facts, mut rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let facts: Facts = strict::from_slice(facts).ok()?;
        let mut versions = Vec::new();
        while !rest.is_empty() {
            let (created, behind) = rest.split_first_chunk()?;
            rest = behind;
            let public = take(&mut rest)?.to_vec();
            let secret = take(&mut rest)?;
            versions.push(KeptVersion {
                created: Timestamp(u64::from_be_bytes(*created)),
                public,
                secret: (!secret.is_empty()).then(|| SecretBytes::from_slice(secret)),
            });
        }
        versions.last()?.secret.as_ref()?;
        Some(Backup { facts, versions })
    }

    /// A change that makes the key `kid` from a backup, with all its versions; nothing is stored yet.
    pub fn restored_key(
        &self,
        kid: &Kid,
        backup: &Backup,
        now: Timestamp,
    ) -> Result<Change, Refusal> {
        let bad = || {
            let detail = "the backup holds no key of its algorithm";
            Refusal::new(Cause::WrappedRefused, detail)
        };
        let mut versions = Vec::with_capacity(backup.versions.len());
        for (number, kept) in (1..).zip(&backup.versions) {
            let public = PublicKey::from_raw(kid.alg, &kept.public).ok_or_else(bad)?;
            let Some(raw) = &kept.secret else {
                let name = RecordName::of(kid, number, kept.created);
                versions.push(NewVersion {
                    number,
                    created: kept.created,
                    secret: None,
                    sealed: self.sealer.erased(&name, &public),
                    public,
                });
                continue;
            };
            let secret = SecretKey::from_secret(kid.alg, raw).ok_or_else(bad)?;
            if secret.public() != public {
                return Err(bad());
            }
            let secret = (Custody::Local(secret), public, raw);
            versions.push(self.seal_version(kid, number, kept.created, secret));
        }
        let facts = &backup.facts;
        let mut meta = Meta::new(now, self.backends.local().into(), facts.payload.clone());
        meta.head = backup.head();
        meta.exportable = facts.exportable;
        meta.imported = facts.imported;
        meta.retired = facts.retired;
        meta.deletion_allowed = facts.deletion_allowed;
        meta.derived = facts.derived;
        meta.min_verify = facts.min_verify;
        meta.min_wrap = facts.min_wrap;
        meta.min_available = facts.min_available;
        meta.access.policy.clone_from(&facts.policy);
        meta.labels.description.clone_from(&facts.description);
        meta.labels.tags.clone_from(&facts.tags);
        Ok(Change {
            kid: kid.clone(),
            meta,
            new: versions.pop(),
            earlier: versions,
            erase: Erase::None,
            other: None,
        })
    }
}
