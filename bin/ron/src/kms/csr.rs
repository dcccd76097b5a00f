//! `ron kms csr`: a certificate signing request (PKCS#10) for a key of the KMS.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, SanType, SignatureAlgorithm, SigningKey,
};
use ron_client::KmsClient;
use ron_crypto::ecdsa::to_der;
use ron_custody::keys::curve_of;
use ron_proto::Alg;
use ron_proto::kms::{KeyDoc, Scheme};
use ron_proto::values::KeyRef;

use super::names::named;
use super::ssh::signature_of;
use super::{deadline, explain};
use crate::layout::write_atomic;

#[derive(Args)]
pub struct CsrArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name: ed25519, ecdsa-p256, ecdsa-p384 or RSA, with the payload policy `prehash` or `any`.
    key: KeyRef,
    /// Subject, such as `CN=example.org,O=Example`; types are CN, O, OU, C, ST and L, and `\,` is a comma.
    #[arg(long, default_value = "", value_parser = subject)]
    subject: Subject,
    /// Name of a host that the certificate is for; may be repeated.
    #[arg(long)]
    dns: Vec<String>,
    /// Address that the certificate is for; may be repeated.
    #[arg(long)]
    ip: Vec<IpAddr>,
    /// File for the request; standard output when absent.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Default)]
struct Subject(Vec<(DnType, String)>);

fn subject(text: &str) -> Result<Subject, String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, parts.last_mut()) {
            ('\\', Some(part)) => part.extend(chars.next()),
            (',', _) => parts.push(String::new()),
            (c, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    let one = |part: &String| {
        let (name, value) = part.split_once('=').unwrap_or_default();
        let kind = match name.trim() {
            "CN" => DnType::CommonName,
            "O" => DnType::OrganizationName,
            "OU" => DnType::OrganizationalUnitName,
            "C" => DnType::CountryName,
            "ST" => DnType::StateOrProvinceName,
            "L" => DnType::LocalityName,
            _ => {
                return Err(format!(
                    "`{part}` is not TYPE=VALUE with one of CN, O, OU, C, ST, L"
                ));
            }
        };
        Ok((kind, value.trim().to_owned()))
    };
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.map(one).collect::<Result<_, _>>().map(Subject)
}

/// The head of a key, as rcgen signs with it.
struct RemoteKey<'a> {
    kms: &'a KmsClient,
    doc: &'a KeyDoc,
    public: &'a [u8],
    algorithm: &'static SignatureAlgorithm,
    /// Why the KMS made no signature: rcgen's error has no text.
    failed: RefCell<Option<String>>,
}

impl RemoteKey<'_> {
    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let signature = signature_of(
            self.kms,
            self.doc,
            message,
            (Scheme::RsaPkcs1Sha256, "certificate signing request"),
        )?;
        let raw = signature.signature.as_slice();
        Ok(match curve_of(self.doc.key.alg) {
            Some(_) => to_der(raw),
            None => raw.to_vec(),
        })
    }
}

impl PublicKeyData for RemoteKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl SigningKey for RemoteKey<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signature(message).map_err(|why| {
            self.failed.replace(Some(why));
            rcgen::Error::RemoteKeyError
        })
    }
}

pub fn run(kms: &KmsClient, ask: &CsrArgs) -> Result<(), String> {
    let key = named(kms, &ask.key)?;
    let algorithm = match key.alg {
        Alg::Ed25519 => &PKCS_ED25519,
        Alg::EcdsaP256 => &PKCS_ECDSA_P256_SHA256,
        Alg::EcdsaP384 => &PKCS_ECDSA_P384_SHA384,
        alg if alg.is_rsa() => &PKCS_RSA_SHA256,
        alg => {
            return Err(format!(
                "certificate authorities take no keys of {alg}; make one of ed25519, ecdsa-p256, ecdsa-p384 or RSA"
            ));
        }
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in &ask.subject.0 {
        params.distinguished_name.push(kind.clone(), value.as_str());
    }
    for name in &ask.dns {
        let ascii = name.as_str().try_into();
        let ascii = ascii.map_err(|_| format!("--dns {name}: write it in ASCII (xn--...)"))?;
        params.subject_alt_names.push(SanType::DnsName(ascii));
    }
    let addresses = ask.ip.iter().copied().map(SanType::IpAddress);
    params.subject_alt_names.extend(addresses);
    if ask.subject.0.is_empty() && params.subject_alt_names.is_empty() {
        return Err("name what the certificate is for: --subject, --dns or --ip".to_owned());
    }
    let doc = explain(kms.key(&key, deadline()))?;
    let head = doc
        .head_version()
        .ok_or("the KMS shows no head of the key")?;
    let key = RemoteKey {
        kms,
        doc: &doc,
        public: head.public_key.as_slice(),
        algorithm,
        failed: RefCell::default(),
    };
    let request = params.serialize_request(&key).map_err(|error| {
        let why = key.failed.borrow_mut().take();
        why.unwrap_or_else(|| error.to_string())
    })?;
    let pem = request.pem().map_err(|e| e.to_string())?;
    let Some(out) = &ask.out else {
        print!("{pem}");
        return Ok(());
    };
    let out = std::path::absolute(out).map_err(|e| format!("{}: {e}", out.display()))?;
    write_atomic(&out, pem.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_typed_values() {
        let read = |text: &str| subject(text).map(|subject| subject.0);
        let both = read(r"CN=example.org, O=Example\, Inc").expect("two");
        let want = [
            (DnType::CommonName, "example.org".to_owned()),
            (DnType::OrganizationName, "Example, Inc".to_owned()),
        ];
        assert_eq!(both, want);
        assert_eq!(read("").expect("none"), []);
        for odd in ["example.org", "X=1", "CN=a,b"] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }
}
