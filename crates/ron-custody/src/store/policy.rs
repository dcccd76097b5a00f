//! The newest issuer policy that was ever accepted: one row, replaced by each newer policy and covered by the store's MAC, so
//! that neither the policy nor its version can go back. A row without a birth is its own outbox: it holds the leaf to append.

use std::sync::Arc;

use ron_crypto::hash::sha256;
use ron_proto::passport::IssuerPolicy;
use ron_proto::policy::PolicySig;
use ron_service::kept_policy::Versioned as _;
use ron_service::pinned::KeyRing;
use ron_service::records::{Statements, Value};
use ron_service::signed_policy::{SignedPolicy, check, parse_signature, signature_bytes};

use super::db::{optional, unsigned};
use super::{KeyStore, StoreError};
use crate::index::PolicyInForce;

#[derive(Clone)]
pub(super) struct StoredPolicy {
    version: u64,
    /// The document in the canonical form that was signed (RFC 8785).
    bytes: Vec<u8>,
    /// Its signature, as in a `.sig` file.
    sig: Vec<u8>,
    /// The log that its leaf is in, or is to be in.
    log: Arc<str>,
    /// Index of the leaf that records it; `None` while that is not known to be durable.
    pub birth: Option<u64>,
}

impl StoredPolicy {
    /// The bytes that the store's MAC covers.
    pub fn digest(&self) -> [u8; 72] {
        let mut digest = [0; 72];
        digest[..8].copy_from_slice(&self.version.to_be_bytes());
        digest[8..40].copy_from_slice(&sha256(&self.bytes));
        digest[40..].copy_from_slice(&sha256(&self.sig));
        digest
    }
}

/// A policy whose leaf is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPolicy {
    /// The leaf, without its counters.
    pub leaf: Vec<u8>,
    /// The log had at least this many leaves before the change.
    pub log_size: u64,
    /// Store version before the change.
    pub version_before: u64,
}

impl KeyStore {
    /// The version of the newest policy that was accepted; 0 before the first.
    pub fn policy_version(&self) -> u64 {
        self.policy.as_ref().map_or(0, |policy| policy.version)
    }

    /// The newest policy whose leaf is durable, as far as it is known, if its signature verifies under `pinned`.
    pub fn policy_in_force(&self, pinned: &KeyRing) -> Option<Arc<PolicyInForce>> {
        let newest = self.policy.as_ref()?;
        // While the node that adopts the newest one waits for its leaf, the last one stays in force.
        let stored = match newest.birth {
            Some(_) => newest,
            None => self.policy_before.as_ref()?,
        };
        let sig = parse_signature(&stored.sig).ok()?;
        let signed = check(IssuerPolicy::KIND, &stored.bytes, &sig, pinned).ok()?;
        let birth = stored.birth?;
        let log = stored.log.clone();
        Some(Arc::new(PolicyInForce { signed, log, birth }))
    }

    /// Sets the newest policy; returns the last one.
    pub(super) fn replace_policy(&mut self, new: Option<StoredPolicy>) -> Option<StoredPolicy> {
        let last = std::mem::replace(&mut self.policy, new);
        if let Some(born) = last.clone().filter(|policy| policy.birth.is_some()) {
            self.policy_before = Some(born);
        }
        last
    }

    /// Stores a policy in place of the last one, with its leaf.
    pub fn commit_policy(
        &mut self,
        new: &SignedPolicy<IssuerPolicy>,
        leaf: &[u8],
        log_size: u64,
    ) -> Result<(), StoreError> {
        let new = StoredPolicy {
            version: new.policy.version,
            bytes: new.bytes.clone(),
            sig: signature_of(&new.sig)?,
            log: self.log().origin.as_str().into(),
            birth: None,
        };
        // In memory first, because the MAC in the transaction covers it; restored if the write fails.
        let before = self.replace_policy(Some(new.clone()));
        let version_before = self.version.cast_signed();
        let done = self.write_version(|tx| {
            tx.execute(
                "INSERT INTO issuer_policy
                   (id, version, policy, signature, leaf, log_size, version_before, birth, log)
                 VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, NULL, ?7)
                 ON CONFLICT (id) DO UPDATE SET version = excluded.version, policy = excluded.policy,
                   signature = excluded.signature, leaf = excluded.leaf, log_size = excluded.log_size,
                   version_before = excluded.version_before, birth = NULL, log = excluded.log",
                &[
                    new.version.cast_signed().into(),
                    new.bytes[..].into(),
                    new.sig[..].into(),
                    leaf.into(),
                    log_size.cast_signed().into(),
                    version_before.into(),
                    (*new.log).into(),
                ],
            )?;
            Ok(())
        });
        if done.is_err() {
            self.policy = before;
        }
        done
    }

    /// The policy's change whose leaf is not known to be durable.
    pub fn pending_policy(&mut self) -> Result<Option<PendingPolicy>, StoreError> {
        // Its node has to write the leaf; another one would write it into another log.
        let own = self.log().origin.clone();
        if self.policy.as_ref().is_none_or(|p| *p.log != *own) {
            return Ok(None);
        }
        self.db.read(|tx| {
            let sql = "SELECT leaf, log_size, version_before FROM issuer_policy
                       WHERE birth IS NULL AND (log = ?1 OR log IS NULL)";
            let rows = tx.query(sql, &[own.as_str().into()])?;
            let Some(row) = rows.first() else {
                return Ok(None);
            };
            Ok(Some(PendingPolicy {
                leaf: row.blob(0)?.to_vec(),
                log_size: unsigned(row, 1)?,
                version_before: unsigned(row, 2)?,
            }))
        })
    }

    /// Records that the policy's leaf is durable at `birth`: from now on it may be in force, unless another node has stored a
    /// newer one.
    pub fn complete_policy(&mut self, birth: u64) -> Result<(), StoreError> {
        let version = self.policy_version();
        let own = self.log().origin.clone();
        let born: [Value; 3] = [
            birth.cast_signed().into(),
            version.cast_signed().into(),
            own.as_str().into(),
        ];
        self.write_shown(|tx| {
            let set = "UPDATE issuer_policy SET birth = ?1
                       WHERE version = ?2 AND (log = ?3 OR log IS NULL)";
            tx.execute(set, &born)?;
            Ok(())
        })?;
        let policy = self.policy.as_mut();
        // Another node may have stored a newer one since, whose leaf is in that node's log.
        if let Some(policy) =
            policy.filter(|policy| policy.version == version && *policy.log == *own)
        {
            policy.birth = Some(birth);
        }
        Ok(())
    }

    /// Index of the leaf of the stored policy, if that is in this node's log.
    pub fn policy_birth(&self) -> Option<u64> {
        let policy = self.policy.as_ref()?;
        policy.birth.filter(|_| *policy.log == *self.log().origin)
    }
}

fn signature_of(sig: &PolicySig) -> Result<Vec<u8>, StoreError> {
    signature_bytes(sig).map_err(StoreError::Db)
}

/// Loads the row, if there is one; the store's MAC is checked afterwards.
pub(super) fn load(
    tx: &mut dyn Statements,
    first_log: &str,
) -> Result<Option<StoredPolicy>, StoreError> {
    let sql = "SELECT version, policy, signature, birth, log FROM issuer_policy";
    let rows = tx.query(sql, &[])?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    Ok(Some(StoredPolicy {
        version: unsigned(row, 0)?,
        bytes: row.blob(1)?.to_vec(),
        sig: row.blob(2)?.to_vec(),
        birth: optional(row, 3)?,
        log: if row.is_null(4) {
            first_log.into()
        } else {
            row.text(4)?.into()
        },
    }))
}
