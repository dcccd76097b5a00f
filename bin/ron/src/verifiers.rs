//! `verifiers.json`: the public keys an auditor needs, kept at the first start. Copy it away: a
//! check is worth as much as the place its keys come from.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_client::{Credential, LedgerClient};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::Deadline;
use serde::{Deserialize, Serialize};

use crate::layout::{Endpoints, Layout, read_json, write_json};

/// Public keys of everything that is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verifiers {
    /// Verifier key line of the KMS audit log.
    pub audit_vkey: String,
    /// Verifier key line of the ledger's log.
    pub ledger_vkey: String,
    /// Ed25519 key of policies (base64url).
    pub policy_public_key: String,
    /// Ed25519 key of manifests (base64url).
    pub manifest_public_key: String,
}

/// Where it lies.
pub fn path(layout: &Layout) -> PathBuf {
    layout.root.join("verifiers.json")
}

/// Reads it.
pub fn read(layout: &Layout) -> Result<Verifiers, String> {
    read_json(&path(layout))
}

/// Writes it once; a running fleet with other keys than the kept ones is an alarm.
pub fn keep(layout: &Layout, endpoints: &Endpoints) -> Result<(), String> {
    let bootstrap = layout.read_bootstrap()?;
    let http = Arc::new(HttpClient::new(ClientConfig::default()));
    let ledger = LedgerClient::new(&endpoints.of("ron-ledger")?.api, Credential::none(), http);
    let vkey = ledger
        .log_vkey(Deadline::within(Duration::from_secs(5)))
        .map_err(|e| format!("ron-ledger: {e}"))?;
    let now = Verifiers {
        audit_vkey: bootstrap.audit_vkey,
        ledger_vkey: vkey.trim().to_owned(),
        policy_public_key: bootstrap.policy_public_key,
        manifest_public_key: bootstrap.manifest_public_key,
    };
    if !path(layout).exists() {
        return write_json(&path(layout), &now, 0o644);
    }
    if read(layout)? == now {
        Ok(())
    } else {
        Err(format!(
            "the keys in {} are not those of the services: data was replaced or mixed; \
             restore the right data, or remove the file if the change is yours",
            path(layout).display()
        ))
    }
}
