//! `ron kms sign` and `verify`: what is signed, in which form, and where the signature goes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use ron_client::KmsClient;
use ron_crypto::Sha2;
use ron_crypto::ecdsa::{from_der, to_der};
use ron_crypto::hash::Hasher;
use ron_custody::keys::{curve_of, sha2_of};
use ron_proto::kms::{
    Bytes, Digest, DigestAlg, HashAlg, MESSAGE_BYTES_MAX, PayloadPolicy, Prehash, Scheme,
    SignAnswer, SignRequest, Signature, VerifyMode, VerifyRequest,
};
use ron_proto::values::KeyRef;
use ron_proto::{Alg, Kid, OpId, b64};

use super::names::named;
use super::{deadline, explain, op_id, show};
use crate::check::bar;
use crate::layout::write_atomic;

#[derive(Args)]
struct Message {
    /// Message to sign, as text.
    #[arg(long, conflicts_with = "file", allow_hyphen_values = true)]
    message: Option<String>,
    /// File to sign, of any size; `-` or no argument reads standard input. Above 64 KiB its hash is
    /// signed: by a key with the payload policy `prehash` in the form that OpenSSL and others verify,
    /// by others as with --digest.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Sign the SHA-256 of the bytes in the KMS's digest form (`ron kms verify` checks it), not the
    /// bytes themselves.
    #[arg(long)]
    digest: bool,
    /// Of ECDSA and RSA keys: hash function and padding, such as ecdsa-sha384, rsa-pss-sha256,
    /// rsa-pkcs1-sha256.
    #[arg(long, conflicts_with = "digest")]
    scheme: Option<Scheme>,
}

#[derive(Args)]
pub struct SignArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    #[command(flatten)]
    what: Message,
    /// Write the signature to a file as other programs read it: of ECDSA as DER, of others its bytes.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Refuse unless this is the head version.
    #[arg(long)]
    version: Option<u32>,
    /// Remark for the audit log.
    #[arg(long)]
    context: Option<String>,
    /// Idempotency id: the same id and request returns the same signature.
    #[arg(long)]
    op_id: Option<OpId>,
}

#[derive(Args)]
pub struct VerifyArgs {
    /// Key, as tenant/purpose/algorithm/uuid or alias/name.
    key: KeyRef,
    #[command(flatten)]
    what: Message,
    /// Signature as `sign` prints it; may be repeated.
    #[arg(
        long = "signature",
        required_unless_present = "signature_file",
        allow_hyphen_values = true
    )]
    signatures: Vec<String>,
    /// File with a signature, as `sign --out` and other programs write it.
    #[arg(long, conflicts_with = "signatures")]
    signature_file: Option<PathBuf>,
    /// Accept only this version.
    #[arg(long)]
    version: Option<u32>,
    /// How the signatures of a hybrid key are combined.
    #[arg(long, default_value = "and", value_parser = ["and", "or", "pq_only"])]
    mode: String,
}

/// What is signed.
enum Content {
    Message(Vec<u8>),
    Digest(Digest),
    Prehash(Prehash),
}

/// The form in which more bytes than a request holds are signed.
enum Large {
    Digest,
    Prehash(HashAlg),
}

impl Message {
    fn content(&self, kms: &KmsClient, key: &KeyRef) -> Result<Content, String> {
        let large = || self.large(kms, key);
        if let Some(text) = &self.message {
            return self.read(text.as_bytes(), text.len() as u64, large);
        }
        let named = self.file.as_deref().filter(|file| *file != Path::new("-"));
        if let Some(path) = named {
            let why = |e| format!("cannot read {}: {e}", path.display());
            let file = File::open(path).map_err(why)?;
            let length = file.metadata().map_err(why)?.len();
            let read = self.read(file, length, large);
            return read.map_err(|e| format!("{}: {e}", path.display()));
        }
        let read = self.read(std::io::stdin().lock(), 0, large);
        read.map_err(|e| format!("standard input: {e}"))
    }

    /// Asks the KMS what the key may sign of more bytes than a request holds.
    fn large(&self, kms: &KmsClient, key: &KeyRef) -> Result<Large, String> {
        if self.digest {
            return Ok(Large::Digest);
        }
        let key = named(kms, key)?;
        let scheme = self.scheme.or_else(|| Scheme::usual(key.alg));
        match explain(kms.key(&key, deadline()))?.payload {
            PayloadPolicy::Prehash => {
                let hash = scheme.map_or(HashAlg::Sha256, Scheme::hash);
                Ok(Large::Prehash(hash))
            }
            PayloadPolicy::Any | PayloadPolicy::Digest => Ok(Large::Digest),
            policy => Err(format!(
                "more than {MESSAGE_BYTES_MAX} bytes are signed as their hash, and a `{}` key parses what it signs; make a key \
                 with `--payload prehash` or `--payload any`",
                policy.kind()
            )),
        }
    }

    /// The bytes, or their hash if that is requested or the bytes exceed the limit of a request.
    fn read(
        &self,
        mut from: impl Read,
        length: u64,
        large: impl FnOnce() -> Result<Large, String>,
    ) -> Result<Content, String> {
        let mut bytes = Vec::new();
        let most = MESSAGE_BYTES_MAX as u64;
        let mut next = |bytes: &mut Vec<u8>, most: u64| {
            bytes.clear();
            let read = from.by_ref().take(most).read_to_end(bytes);
            read.map_err(|e| format!("it cannot be read: {e}"))
        };
        next(&mut bytes, most + 1)?;
        if !self.digest && bytes.len() <= MESSAGE_BYTES_MAX {
            return Ok(Content::Message(bytes));
        }
        let form = large()?;
        let mut hasher = Hasher::new(match form {
            Large::Digest => Sha2::Sha256,
            Large::Prehash(hash) => sha2_of(hash),
        });
        let progress = bar("hashing");
        progress.set_length(length);
        while !bytes.is_empty() {
            hasher.update(&bytes);
            progress.inc(bytes.len() as u64);
            next(&mut bytes, most)?;
        }
        progress.finish_and_clear();
        let hash = hasher.finish();
        Ok(match form {
            Large::Prehash(alg) => Content::Prehash(Prehash::new(alg, hash.as_bytes())),
            Large::Digest => {
                let raw = hash.as_bytes().try_into().expect("SHA-256 has 32 bytes");
                Content::Digest(Digest::new(DigestAlg::Sha256, &raw))
            }
        })
    }
}

pub fn sign(kms: &KmsClient, ask: SignArgs, json: bool) -> Result<(), String> {
    // An alias is sent as it is: a caller who may only sign cannot look it up.
    let request = match ask.what.content(kms, &ask.key)? {
        Content::Message(bytes) => SignRequest::message(ask.key, bytes),
        Content::Digest(digest) => SignRequest::digest(ask.key, digest),
        Content::Prehash(prehash) => SignRequest::prehash(ask.key, prehash),
    };
    let request = SignRequest {
        version: ask.version,
        scheme: ask.what.scheme,
        context: ask.context,
        op_id: Some(op_id(ask.op_id)),
        ..request
    };
    let answer = explain(kms.sign(&request, deadline()))?;
    if let Some(out) = &ask.out {
        write_signature(&answer, out)?;
    }
    show::signatures(&answer, json)?;
    if let Some(digest) = &request.digest {
        eprintln!(
            "signed the digest sha256:{}, in the KMS's digest form; `ron kms verify` with the same bytes checks it",
            digest.value
        );
    }
    Ok(())
}

fn write_signature(answer: &SignAnswer, out: &Path) -> Result<(), String> {
    let [signature] = &answer.signatures[..] else {
        return Err("--out writes one signature, and a hybrid key makes two".to_owned());
    };
    let raw = signature.signature.as_slice();
    let bytes = match curve_of(signature.alg) {
        Some(_) => to_der(raw),
        None => raw.to_vec(),
    };
    let out = std::path::absolute(out).map_err(|e| format!("{}: {e}", out.display()))?;
    write_atomic(&out, &bytes, 0o644)
}

impl VerifyArgs {
    fn signatures(&self, key: &Kid) -> Result<Vec<Signature>, String> {
        let of = |alg: Alg, raw: Vec<u8>| Signature {
            alg,
            scheme: self.what.scheme,
            signature: Bytes(raw),
        };
        // A hybrid key signs twice, Ed25519 first; its two signatures differ in length.
        let alg_of = |raw: &[u8]| match (key.alg, raw.len()) {
            (Alg::Ed25519MlDsa65, 64) => Alg::Ed25519,
            (Alg::Ed25519MlDsa65, _) => Alg::MlDsa65,
            (alg, _) => alg,
        };
        if let Some(path) = &self.signature_file {
            let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let raw = match curve_of(key.alg) {
                Some(curve) => from_der(curve, &bytes)
                    .ok_or_else(|| format!("{}: not an ECDSA signature in DER", path.display()))?,
                None => bytes,
            };
            return Ok(vec![of(alg_of(&raw), raw)]);
        }
        let one = |text: &String| {
            let raw = b64::from_url(text.trim()).map_err(|_| "a signature is not base64url")?;
            Ok(of(alg_of(&raw), raw))
        };
        self.signatures.iter().map(one).collect()
    }
}

pub fn verify(kms: &KmsClient, ask: VerifyArgs, json: bool) -> Result<(), String> {
    let key = named(kms, &ask.key)?;
    let signatures = ask.signatures(&key)?;
    let (mut message, mut digest, mut prehash) = (None, None, None);
    let key = KeyRef::Kid(key);
    match ask.what.content(kms, &key)? {
        Content::Message(bytes) => message = Some(Bytes(bytes)),
        Content::Digest(hash) => digest = Some(hash),
        Content::Prehash(hash) => prehash = Some(hash),
    }
    let request = VerifyRequest {
        version: ask.version,
        message,
        digest,
        prehash,
        signatures,
        mode: match ask.mode.as_str() {
            "or" => VerifyMode::Or,
            "pq_only" => VerifyMode::PqOnly,
            _ => VerifyMode::And,
        },
        key,
    };
    show::verdict(&explain(kms.verify(&request, deadline()))?, json)
}
