//! `verifiers.json`: the public keys an auditor needs, stored when the data directory is made. Keep
//! a copy elsewhere: a check is only as trustworthy as the source of its keys.

use std::path::PathBuf;
use std::time::Duration;

use ron_client::{Credential, KmsClient, LedgerClient};
use ron_kernel::Deadline;
use ron_tlog::note::VerifierKey;
use ron_tlog::rotation::KeyChain;
use serde::{Deserialize, Serialize};

use crate::layout::{Bootstrap, Layout, read_json, write_json};
use crate::net;

/// Public keys of everything that is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verifiers {
    /// Verifier key line of the KMS audit log.
    pub audit_vkey: String,
    /// Verifier key line of the ledger's log.
    pub ledger_vkey: String,
    /// Verifier key line of the revocation log.
    pub revocations_vkey: String,
    /// Ed25519 public key that policies are signed with (base64url).
    pub policy_public_key: String,
    /// Ed25519 public key that manifests are signed with (base64url).
    pub manifest_public_key: String,
}

pub fn path(layout: &Layout) -> PathBuf {
    layout.root.join("verifiers.json")
}

pub fn read(layout: &Layout) -> Result<Verifiers, String> {
    read_json(&path(layout))
}

/// Writes the file unless it exists.
pub fn keep(layout: &Layout, bootstrap: &Bootstrap) -> Result<(), String> {
    if path(layout).exists() {
        return Ok(());
    }
    let kept = Verifiers {
        audit_vkey: bootstrap.audit_vkey.clone(),
        ledger_vkey: bootstrap.ledger_vkey.clone(),
        revocations_vkey: bootstrap.revocations_vkey.clone(),
        policy_public_key: bootstrap.policy_public_key.clone(),
        manifest_public_key: bootstrap.manifest_public_key.clone(),
    };
    write_json(&path(layout), &kept, 0o644)
}

/// Fails if a running fleet's logs have other keys than the stored ones.
pub fn confirm(layout: &Layout) -> Result<(), String> {
    let http = net::client();
    let within = Deadline::within(Duration::from_secs(5));
    let url = |service| layout.socket_url(service, "api");
    let ledger = LedgerClient::new(&url("ron-ledger"), Credential::none(), http.clone())
        .log_vkey(within)
        .map_err(|e| format!("ron-ledger: {e}"))?;
    let kms = KmsClient::new(&url("ron-kms"), Credential::none(), http);
    let audit = kms
        .audit_vkey(within)
        .map_err(|e| format!("ron-kms: {e}"))?;
    let kept = read(layout)?;
    let same = ledger.trim() == kept.ledger_vkey.trim()
        && (audit.trim() == kept.audit_vkey.trim() || leads_on(&kept.audit_vkey, &kms, within)?);
    if same {
        Ok(())
    } else {
        Err(format!(
            "the log keys in {} are not those of the services: data was replaced or mixed; \
             restore the right data",
            path(layout).display()
        ))
    }
}

/// True if the KMS's log has rotated its key since `pin`, each key signed by the one before it.
fn leads_on(pin: &str, kms: &KmsClient, within: Deadline) -> Result<bool, String> {
    let text = kms.audit_keys(within);
    let text = text.map_err(|e| format!("ron-kms: {e}"))?;
    let chain = KeyChain::parse(&text).map_err(|e| format!("ron-kms: its log's keys: {e}"))?;
    let pin = VerifierKey::parse(pin).map_err(|e| format!("the kept key of the log: {e}"))?;
    Ok(chain.since(&pin).is_some())
}
