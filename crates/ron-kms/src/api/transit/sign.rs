//! `sign` and `verify`.
//!
//! Vault encodes an ECDSA signature as DER unless `marshaling_algorithm` is `jws`; the native API encodes it as
//! `r || s`. This file converts between them.

use std::sync::Arc;

use ron_crypto::ecdsa::{from_der, to_der};
use ron_custody::index::Key;
use ron_custody::keys::curve_of;
use ron_custody::rights::may_do;
use ron_custody::{Cause, Refusal};
use ron_http::{Request, Route};
use ron_proto::kms::transit::{SaltLength, Sign};
use ron_proto::kms::{
    Bytes, HashAlg, KeyOp, PayloadPolicy, Prehash, Scheme, SignAnswer, SignRequest, Signature,
    VerifyMode, VerifyRequest,
};
use ron_proto::scope;
use ron_proto::values::Alg;
use serde_json::{Value, json};

use super::crypt::{check_hash, mac_check, verify_macs};
use super::form::Form;
use super::{
    bad, base64, body, form, given, key_for_use, pinned, tagged, unsupported, untagged, writes,
};
use crate::api::Action;
use crate::api::verify::verify as verify_counted;
use crate::audit::entry::Logged;
use crate::work::Kms;
use crate::work::operation::many;
use crate::work::sign::{SignOutput, SignTask};

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> Vec<Route> {
    const SIGN: &str = "Vault: sign one message or a batch";
    const VERIFY: &str = "Vault: verify signatures or MACs, one or a batch";
    let of = |path, scope, summary, handler| {
        writes::<Sign>(kms, path, scope, summary, handler).map(form::batches)
    };
    [
        of("/v1/transit/sign/{name}", scope::KMS_SIGN, SIGN, sign),
        of(
            "/v1/transit/sign/{name}/{hash}",
            scope::KMS_SIGN,
            SIGN,
            sign,
        ),
        of(
            "/v1/transit/verify/{name}",
            scope::KMS_VERIFY,
            VERIFY,
            verify,
        ),
        of(
            "/v1/transit/verify/{name}/{hash}",
            scope::KMS_VERIFY,
            VERIFY,
            verify,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Encoding of ECDSA signatures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Marshal {
    Der,
    Jws,
}

/// A parsed request: its items and options.
struct ParsedRequest {
    key: Arc<Key>,
    items: Vec<Sign>,
    form: Form,
    marshal: Marshal,
    /// Of ECDSA and RSA.
    scheme: Option<Scheme>,
    /// Whether the inputs are hashes.
    prehashed: Option<HashAlg>,
}

fn read(kms: &Kms, request: &Request) -> Result<ParsedRequest, Refusal> {
    let mut whole: Sign = body(request)?;
    let key = key_for_use(kms, request)?;
    let hashes = [
        request.param_if_any("hash"),
        whole.hash_algorithm.as_deref(),
        whole.algorithm.as_deref(),
    ];
    let alg = key.kid.alg;
    // The other types have no choice of hash function, so their value is ignored.
    if alg == Alg::HmacSha256 {
        hashes.into_iter().try_for_each(check_hash)?;
    }
    let scheme = scheme(alg, hashes, &whole)?;
    let prehashed = prehashed(&key, scheme, &whole)?;
    if given(whole.context.as_ref()) {
        return Err(unsupported(
            "derived keys are not offered: leave context out",
        ));
    }
    let marshal = match whole.marshaling_algorithm.as_deref() {
        None | Some("" | "asn1") => Marshal::Der,
        Some("jws") => Marshal::Jws,
        Some(_) => return Err(bad("marshaling_algorithm must be asn1 or jws")),
    };
    let (batch, failed) = (
        whole.batch_input.take(),
        whole.partial_failure_response_code,
    );
    let (items, form) = form::items(whole, batch, failed)?;
    Ok(ParsedRequest {
        key,
        items,
        form,
        marshal,
        scheme,
        prehashed,
    })
}

/// The native scheme of a request; `None` for types without a choice.
fn scheme(alg: Alg, hashes: [Option<&str>; 3], whole: &Sign) -> Result<Option<Scheme>, Refusal> {
    if Scheme::usual(alg).is_none() {
        return Ok(None);
    }
    let named = hashes.into_iter().flatten().find(|name| !name.is_empty());
    let hash = match named {
        None | Some("sha2-256") => HashAlg::Sha256,
        Some("sha2-384") => HashAlg::Sha384,
        Some("sha2-512") => HashAlg::Sha512,
        Some(_) => {
            return Err(unsupported(
                "hash functions here are sha2-256, sha2-384 and sha2-512",
            ));
        }
    };
    if !alg.is_rsa() {
        return Ok(Scheme::over(alg, hash));
    }
    match whole.signature_algorithm.as_deref() {
        None | Some("" | "pss") => {
            salt(hash, whole.salt_length.as_ref())?;
            Ok(Scheme::over(alg, hash))
        }
        Some("pkcs1v15") => Ok(Some(match hash {
            HashAlg::Sha256 => Scheme::RsaPkcs1Sha256,
            HashAlg::Sha384 => Scheme::RsaPkcs1Sha384,
            HashAlg::Sha512 => Scheme::RsaPkcs1Sha512,
        })),
        Some(_) => Err(bad("signature_algorithm must be pss or pkcs1v15")),
    }
}

/// Every salt is as long as the hash, which is also a length that `auto` may choose.
fn salt(hash: HashAlg, given: Option<&SaltLength>) -> Result<(), Refusal> {
    let fits = match given {
        None => true,
        Some(SaltLength::Bytes(bytes)) => *bytes as usize == hash.size(),
        Some(SaltLength::Text(text)) => match text.as_str() {
            "" | "auto" | "hash" => true,
            number => number.parse() == Ok(hash.size()),
        },
    };
    if fits {
        return Ok(());
    }
    Err(unsupported(
        "salt_length: salts are as long as the hash; use hash or auto",
    ))
}

/// The function of the hashes that a request has in place of messages.
fn prehashed(key: &Key, scheme: Option<Scheme>, whole: &Sign) -> Result<Option<HashAlg>, Refusal> {
    if whole.prehashed != Some(true) {
        return Ok(None);
    }
    let Some(scheme) = scheme else {
        return Err(unsupported(
            "prehashed: keys of this type sign the message itself; send it",
        ));
    };
    if key.payload != PayloadPolicy::Prehash {
        return Err(unsupported(
            "prehashed: this key was made to sign messages only; make another one here",
        ));
    }
    Ok(Some(scheme.hash()))
}

/// What an item has to sign: a message, or a hash of this function.
fn given_input(
    item: &Sign,
    prehashed: Option<HashAlg>,
) -> Result<(Option<Bytes>, Option<Prehash>), Refusal> {
    let input = message(item)?;
    match prehashed {
        None => Ok((Some(Bytes(input)), None)),
        Some(hash) if input.len() == hash.size() => Ok((None, Some(Prehash::new(hash, &input)))),
        Some(hash) => Err(bad(format!(
            "input: with prehashed it is a hash of {} bytes",
            hash.size()
        ))),
    }
}

fn message(item: &Sign) -> Result<Vec<u8>, Refusal> {
    let input = item.input.as_deref().ok_or_else(|| bad("missing input"))?;
    base64("input", input)
}

fn sign(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let ParsedRequest {
        key,
        items,
        form,
        marshal,
        scheme,
        prehashed,
    } = read(kms, request)?;
    let task = |item: &Sign| {
        let (message, prehash) = given_input(item, prehashed)?;
        Ok(SignTask::from_request(SignRequest {
            key: key.kid.clone().into(),
            version: pinned(item.key_version),
            message,
            digest: None,
            prehash,
            scheme,
            op_id: None,
            context: None,
        }))
    };
    let tasks: Vec<_> = items.iter().map(task).collect();
    Ok(Action::Work(many(tasks, move |answers| {
        let references = items.into_iter().map(|item| item.reference);
        let shown = answers.into_iter().zip(references);
        form.results(shown.map(|(answer, reference)| shown_signature(answer?, reference, marshal)))
    })))
}

/// A signature in Vault's format.
fn shown_signature(
    logged: Logged<SignOutput>,
    reference: Option<String>,
    marshal: Marshal,
) -> Result<Value, Refusal> {
    let answer = SignAnswer::from(logged);
    let signature = answer.signatures.first();
    let text = signature.map(|first| written(first, answer.version, marshal));
    let text = text.ok_or_else(|| Refusal::new(Cause::Internal, "a signature is missing"))?;
    let mut value = json!({ "signature": text, "key_version": answer.version });
    if let Some(reference) = reference {
        value["reference"] = reference.into();
    }
    Ok(value)
}

fn written(signature: &Signature, version: u32, marshal: Marshal) -> String {
    let raw = signature.signature.as_slice();
    match (curve_of(signature.alg), marshal) {
        (Some(_), Marshal::Der) => tagged(version, &to_der(raw)),
        (Some(_), Marshal::Jws) => {
            format!("vault:v{version}:{}", ron_proto::b64::url(raw))
        }
        (None, _) => tagged(version, raw),
    }
}

/// Parses a signature in Vault's format; returns its version and native bytes.
fn parsed(alg: Alg, text: &str, marshal: Marshal) -> Result<(u32, Vec<u8>), Refusal> {
    let curve = curve_of(alg);
    if curve.is_some() && marshal == Marshal::Jws {
        let (head, raw) = text.rsplit_once(':').unwrap_or_default();
        let (version, _) = untagged("signature", &format!("{head}:"))?;
        let raw = ron_proto::b64::from_url(raw);
        return Ok((
            version,
            raw.map_err(|_| bad("invalid signature: it must be base64url"))?,
        ));
    }
    let (version, raw) = untagged("signature", text)?;
    match curve {
        Some(curve) => {
            let raw = from_der(curve, &raw);
            let raw = raw.ok_or_else(|| bad("invalid signature: it must be DER"))?;
            Ok((version, raw))
        }
        None => Ok((version, raw)),
    }
}

fn verify(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let read = read(kms, request)?;
    // One MAC decides for all items: a batch verifies MACs or signatures, not both.
    let of_macs = read.items.iter().any(|item| item.hmac.is_some());
    let op = if of_macs {
        KeyOp::HmacVerify
    } else {
        KeyOp::Verify
    };
    may_do(&request.principal, op)?;
    if of_macs {
        let tasks = read.items.iter().map(|item| {
            let mac = item.hmac.as_deref().ok_or_else(|| bad("missing hmac"))?;
            mac_check(&read.key, item.input.as_deref().unwrap_or_default(), mac)
        });
        return Ok(verify_macs(tasks.collect(), read.form));
    }
    let items = read.items.iter();
    let verified = items.map(|item| verify_one(kms, request, &read, item));
    Ok(Action::Respond(read.form.results(verified)))
}

fn verify_one(
    kms: &Kms,
    request: &Request,
    read: &ParsedRequest,
    item: &Sign,
) -> Result<Value, Refusal> {
    let text = item.signature.as_deref();
    let text = text.ok_or_else(|| bad("give signature or hmac"))?;
    let alg = read.key.kid.alg;
    let (version, raw) = parsed(alg, text, read.marshal)?;
    let (message, prehash) = given_input(item, read.prehashed)?;
    let body = VerifyRequest {
        key: read.key.kid.clone().into(),
        version: Some(version),
        message,
        digest: None,
        prehash,
        signatures: vec![Signature {
            alg,
            scheme: read.scheme,
            signature: Bytes(raw),
        }],
        mode: VerifyMode::And,
    };
    let answer = match verify_counted(kms, &request.principal, body) {
        Err(refusal) if refusal.cause == Cause::NotFound => return Err(bad(refusal.detail)),
        answer => answer?,
    };
    let mut value = json!({ "valid": answer.ok });
    if let Some(reference) = &item.reference {
        value["reference"] = reference.as_str().into();
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_written_and_read_back() {
        for (alg, length, marshal) in [
            (Alg::EcdsaP256, 64, Marshal::Der),
            (Alg::EcdsaP256, 64, Marshal::Jws),
            (Alg::EcdsaP384, 96, Marshal::Der),
            (Alg::EcdsaP384, 96, Marshal::Jws),
            (Alg::Ed25519, 64, Marshal::Der),
            (Alg::Rsa2048, 256, Marshal::Jws),
        ] {
            let mut raw = vec![7_u8; length];
            raw[length / 2] = 0xff;
            let signature = Signature {
                alg,
                scheme: None,
                signature: Bytes(raw.clone()),
            };
            let text = written(&signature, 4, marshal);
            assert!(text.starts_with("vault:v4:"));
            assert_eq!(
                parsed(alg, &text, marshal).ok(),
                Some((4, raw)),
                "{alg} {marshal:?}"
            );
        }
    }

    #[test]
    fn requests_become_schemes() {
        let check = |alg, hash: &str, algorithm: &str, salt: Option<&str>, want| {
            let whole = Sign {
                signature_algorithm: Some(algorithm.to_owned()),
                salt_length: salt.map(|text| SaltLength::Text(text.to_owned())),
                ..Sign::default()
            };
            let got = scheme(alg, [Some(hash), None, None], &whole);
            assert_eq!(got.ok(), want, "{alg} {hash} {algorithm} {salt:?}");
        };
        let pss = Some(Some(Scheme::RsaPssSha512));
        check(Alg::Ed25519, "sha1", "", None, Some(None));
        let usual = Some(Some(Scheme::EcdsaSha256));
        check(Alg::EcdsaP384, "", "pkcs1v15", None, usual);
        check(Alg::EcdsaP256, "sha1", "", None, None);
        check(Alg::Rsa3072, "sha2-512", "", None, pss);
        check(Alg::Rsa3072, "sha2-512", "pss", Some("64"), pss);
        check(Alg::Rsa3072, "sha2-512", "pss", Some("hash"), pss);
        check(Alg::Rsa3072, "sha2-512", "pss", Some("20"), None);
        check(Alg::Rsa3072, "sha2-512", "oaep", None, None);
        let pkcs1 = Some(Some(Scheme::RsaPkcs1Sha384));
        check(Alg::Rsa3072, "sha2-384", "pkcs1v15", None, pkcs1);
    }
}
