//! Verifies a birth certificate offline, without the service or the device.

use ron_crypto::Curve;
use ron_crypto::ecdsa::verify_ecdsa;
use ron_crypto::hash::sha256;
use ron_crypto::sign::verify_ed25519_strict;
use ron_custody::backend::Attestation;
use ron_proto::kms::{ATTEST_VERSION, BirthCertificate, KeyBackend, Statement, TpmEvidenceDoc};
use ron_proto::values::Kid;
use ron_tlog::note::VerifierKey;
use ron_tlog::proof::TlogProof;

use super::tpm_format::{self, Subject};
use super::{statement_bytes, tpm_nonce};
use crate::audit::leaf::{Leaf, OK, Op};

/// What the verifier knows from another source. A field that is unset is taken from the certificate, and so proves
/// nothing by itself.
#[derive(Clone, Debug, Default)]
pub struct Expect {
    /// Verifier key of the audit log.
    pub vkey: Option<String>,
    /// The TPM's attestation key, as an uncompressed point.
    pub attestation_key: Option<Vec<u8>>,
    /// The nonce that was sent.
    pub nonce: Option<Vec<u8>>,
}

/// What a valid birth certificate proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    pub key: Kid,
    pub version: u32,
    /// The version was imported: its bytes existed outside the service.
    pub imported: bool,
    /// Index of the leaf that records its making.
    pub leaf: u64,
    /// Size of the log in the checkpoint of the inclusion proof.
    pub log_size: u64,
    /// Where the key is, as the service states it.
    pub backend: KeyBackend,
    /// With a TPM's evidence: the registers that it quoted, and SHA-256 over their values.
    pub quoted: Option<(Vec<u8>, Vec<u8>)>,
}

/// Verifies everything in the certificate; the error says what does not verify.
pub fn verify(certificate: &BirthCertificate, expect: &Expect) -> Result<Birth, String> {
    let evidence = &certificate.evidence;
    let statement = &evidence.statement;
    if (certificate.v, statement.v) != (ATTEST_VERSION, ATTEST_VERSION) {
        return Err("the format is newer than this program".into());
    }
    if expect
        .vkey
        .as_ref()
        .is_some_and(|known| *known != evidence.vkey)
    {
        return Err("the audit log is not the expected one: its verifier key differs".into());
    }
    if let Some(nonce) = &expect.nonce
        && *nonce != statement.nonce.0
    {
        return Err("the nonce is not the one that was sent: the evidence is not fresh".into());
    }
    let log = VerifierKey::parse(&evidence.vkey).map_err(|e| format!("verifier key: {e}"))?;
    if log.name() != statement.log {
        return Err("the statement is about another audit log than its key".into());
    }
    let signature = evidence.signature.as_slice().try_into();
    let signature = signature.map_err(|_| "the statement's signature has a wrong length")?;
    if !verify_ed25519_strict(log.public(), &statement_bytes(statement), signature) {
        return Err("the statement is not signed with the key of the audit log".into());
    }
    let class = match (statement.adopted, statement.backend) {
        (true, KeyBackend::Pkcs11) => Attestation::Adopted.as_str(),
        (_, backend) => class_of(backend),
    };
    if evidence.class != class {
        return Err("the class of the evidence is not that of the key's backend".into());
    }
    let (log_size, imported) = check_birth(certificate, &log)?;
    let quoted = match (&evidence.tpm, statement.backend) {
        (Some(tpm), KeyBackend::Tpm) => Some(check_tpm(tpm, statement, expect)?),
        (None, KeyBackend::Tpm) => {
            return Err(
                "the key is in a TPM, but the certificate has no evidence of the TPM".into(),
            );
        }
        (Some(_), _) => {
            return Err("the certificate has evidence of a TPM, but the key is not in one".into());
        }
        (None, _) => None,
    };
    Ok(Birth {
        key: statement.key.clone(),
        version: statement.version,
        imported,
        leaf: statement.birth,
        log_size,
        backend: statement.backend,
        quoted,
    })
}

/// The class of evidence about keys of a backend.
const fn class_of(backend: KeyBackend) -> &'static str {
    match backend {
        KeyBackend::File | KeyBackend::Memory => Attestation::None,
        KeyBackend::Pkcs11 | KeyBackend::Remote => Attestation::Statement,
        KeyBackend::Tpm => Attestation::TpmCertify,
    }
    .as_str()
}

/// Checks that the leaf of the version's making is in the log and names this public key; returns the log's size, and
/// whether the version was imported.
fn check_birth(certificate: &BirthCertificate, log: &VerifierKey) -> Result<(u64, bool), String> {
    let statement = &certificate.evidence.statement;
    let bytes = certificate.evidence.birth_leaf.as_slice();
    let leaf = Leaf::parse(bytes).map_err(|e| format!("the leaf of its making: {e}"))?;
    let made = leaf.op.makes_version() && leaf.result == OK;
    if !made || leaf.key.as_deref() != Some(statement.key.to_string().as_str()) {
        return Err("the leaf does not record the making of this key".into());
    }
    if leaf.version != Some(statement.version) {
        return Err("the leaf records another version".into());
    }
    let public = hex::encode(sha256(statement.public_key.as_slice()));
    if leaf.output_sha256.as_deref() != Some(public.as_str()) {
        return Err("the leaf records another public key".into());
    }
    let proof = TlogProof::parse(&certificate.proof).map_err(|e| e.to_string())?;
    if proof.index != statement.birth {
        return Err("the proof is about another leaf".into());
    }
    let head = proof
        .verify(bytes, std::slice::from_ref(log), Some(&statement.log))
        .map_err(|e| format!("the proof: {e}"))?;
    Ok((head.size, leaf.op == Op::Import))
}

/// Checks that the TPM certifies the key and quotes its registers, both bound to the statement.
fn check_tpm(
    tpm: &TpmEvidenceDoc,
    statement: &Statement,
    expect: &Expect,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let ak = tpm.attestation_key.as_slice();
    if expect
        .attestation_key
        .as_ref()
        .is_some_and(|known| known != ak)
    {
        return Err("the TPM is not the expected one: its attestation key differs".into());
    }
    let ak: &[u8; 65] = ak
        .try_into()
        .map_err(|_| "the attestation key is not a point on P-256")?;
    let nonce = tpm_nonce(statement);
    let checked = |what: &str, bytes: &[u8], signature: &[u8]| {
        let bad = |e: tpm_format::BadTpm| format!("{what}: {e}");
        let signature = tpm_format::signature(signature).map_err(bad)?;
        if !verify_ecdsa(Curve::P256, ak, bytes, &signature) {
            return Err(format!("{what} is not signed by the attestation key"));
        }
        let attest = tpm_format::attest(bytes).map_err(bad)?;
        if attest.extra != nonce {
            return Err(format!("{what} was made for another statement"));
        }
        Ok(attest.attested)
    };
    let (certify, quote) = (tpm.certify.as_slice(), tpm.quote.as_slice());
    let certified = checked("the certificate", certify, tpm.certify_signature.as_slice())?;
    let quoted = checked("the quote", quote, tpm.quote_signature.as_slice())?;
    let public = tpm_format::public(tpm.key_public.as_slice())
        .map_err(|e| format!("the key's public area: {e}"))?;
    if !public.stays || !public.signs {
        return Err("the key was not made in the TPM, or may leave it".into());
    }
    if public.point != statement.public_key.as_slice() {
        return Err("the TPM's evidence is for another public key".into());
    }
    match (certified, quoted) {
        (Subject::Object { name }, Subject::Registers { selected, digest }) => {
            if name != public.name {
                return Err("the TPM certifies another key".into());
            }
            Ok((selected, digest))
        }
        _ => Err("the certificate or the quote is of another kind".into()),
    }
}
