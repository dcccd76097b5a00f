//! Policies of a data directory: signed by the KMS and written. For `ron audience` and `ron client`, a
//! change of the issuer policy: read the signed one, refuse what the services would refuse, have the
//! next version signed, and put it in force.

use std::path::Path;
use std::time::Duration;

use ron_client::{Credential, KmsClient, PassportClient};
use ron_kernel::Deadline;
use ron_proto::kms::{Digest, DigestAlg, SignRequest};
use ron_proto::passport::IssuerPolicy;
use ron_proto::policy::{PolicySig, policy_digest};
use ron_proto::{Kid, b64, jcs};
use ron_service::kept_policy::Versioned as _;
use ron_service::pinned::{KeyRing, PinnedKey};
use ron_service::signed_policy::{self, SignedPolicy, policy_paths};
use serde::de::DeserializeOwned;

use crate::fleet;
use crate::in_force::put_in_force;
use crate::layout::{Layout, write_atomic};

/// A signed policy in the files of a data directory.
pub fn load<T: DeserializeOwned>(layout: &Layout, kind: &str) -> Result<SignedPolicy<T>, String> {
    let pinned = layout.read_bootstrap()?.policy_public_key;
    let pinned: PinnedKey = pinned.parse().map_err(|e| format!("bootstrap.json: {e}"))?;
    let ring = KeyRing::new(vec![pinned]);
    signed_policy::load(&layout.policy(), kind, &ring).map_err(|e| e.to_string())
}

/// The signed issuer policy of a data directory.
pub fn read(layout: &Layout) -> Result<IssuerPolicy, String> {
    load(layout, IssuerPolicy::KIND).map(|signed| signed.policy)
}

/// All faults of a policy, one per line.
pub fn sound(policy: &IssuerPolicy) -> Result<(), String> {
    let faults = policy.faults();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("\n  "))
    }
}

/// Gives the policy the next version and has it signed; it is not in force yet.
pub fn signed(layout: &Layout, policy: &mut IssuerPolicy) -> Result<Signed, String> {
    policy.version += 1;
    sound(policy)?;
    let tree = serde_json::to_value(&*policy).map_err(|e| e.to_string())?;
    let (bytes, sig) = sign_here(layout, IssuerPolicy::KIND, &tree)?;
    Ok(Signed {
        version: policy.version,
        bytes,
        sig,
    })
}

/// A policy that waits for being put in force.
pub struct Signed {
    version: u64,
    bytes: Vec<u8>,
    sig: PolicySig,
}

impl Signed {
    /// Writes the policy where the services read it, and has a running `ron up` read it.
    pub fn put_in_force(&self, layout: &Layout) -> Result<(), String> {
        let (path, _) = policy_paths(&layout.policy(), IssuerPolicy::KIND);
        write_signed(&path, &self.bytes, &self.sig)?;
        println!("signed version {} of the issuer policy", self.version);
        let line = format!("\npolicy {} ", self.version);
        let what = format!("version {}", self.version);
        let is_so = |issuer: &PassportClient, until| {
            let note = issuer.policy_note(until);
            Ok(note.is_ok_and(|note| note.contains(&line)))
        };
        if put_in_force(layout, &what, is_so)? {
            println!("{what} is in force");
        }
        Ok(())
    }
}

/// Canonical bytes of a policy and its signature by the policy key of a data directory.
pub fn sign_here(
    layout: &Layout,
    kind: &str,
    policy: &serde_json::Value,
) -> Result<(Vec<u8>, PolicySig), String> {
    let credential = Credential::from_file(&layout.operator_token())?;
    let at = fleet::reach(layout, "ron-kms")?;
    let kms = KmsClient::new(&at.url, credential, at.http);
    let key = layout.read_bootstrap()?.policy_key;
    let key: Kid = key.parse().map_err(|e| format!("bootstrap.json: {e}"))?;
    sign(&kms, &key, kind, policy)
}

/// The same by a key of the KMS.
pub fn sign(
    kms: &KmsClient,
    key: &Kid,
    kind: &str,
    policy: &serde_json::Value,
) -> Result<(Vec<u8>, PolicySig), String> {
    let bytes =
        jcs::to_vec(policy).map_err(|e| format!("the policy has no canonical form: {e}"))?;
    let digest = Digest::new(DigestAlg::Blake3, &policy_digest(kind, &bytes));
    let answer = kms
        .sign(
            &SignRequest::digest(key.clone(), digest),
            Deadline::within(Duration::from_secs(5)),
        )
        .map_err(|e| format!("ron-kms: {e}"))?;
    let first = answer
        .signatures
        .first()
        .ok_or("ron-kms answered without a signature")?;
    let sig = PolicySig {
        alg: "ed25519".to_owned(),
        key: format!("{}#v{}", answer.key, answer.version),
        value: b64::url(first.signature.as_slice()),
    };
    Ok((bytes, sig))
}

/// Writes policy and signature.
pub fn write_signed(path: &Path, bytes: &[u8], sig: &PolicySig) -> Result<(), String> {
    write_atomic(path, bytes, 0o600)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    write_atomic(
        Path::new(&name),
        &signed_policy::signature_bytes(sig)?,
        0o600,
    )
}
