//! `sign` and `verify`.
//!
//! Vault encodes a P-256 signature as DER unless `marshaling_algorithm` is `jws`; the native API encodes it as
//! `r || s`. This file converts between them.

use std::sync::Arc;

use ron_custody::index::Key;
use ron_custody::{Cause, Refusal};
use ron_http::{Request, Route};
use ron_proto::kms::transit::Sign;
use ron_proto::kms::{Bytes, SignAnswer, SignRequest, Signature, VerifyMode, VerifyRequest};
use ron_proto::scope;
use ron_proto::values::Alg;
use serde_json::{Value, json};

use super::crypt::{check_hash, mac_check, verify_macs};
use super::der::{der, from_der};
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

/// Encoding of P-256 signatures.
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
}

fn read(kms: &Kms, request: &Request) -> Result<ParsedRequest, Refusal> {
    let mut whole: Sign = body(request)?;
    let key = key_for_use(kms, request)?;
    let in_path = request.params.iter().find(|(name, _)| *name == "hash");
    let hashes = [
        in_path.map(|(_, value)| value.as_str()),
        whole.hash_algorithm.as_deref(),
        whole.algorithm.as_deref(),
    ];
    // The other types have no choice of hash function, so their value is ignored.
    if matches!(key.kid.alg, Alg::EcdsaP256 | Alg::HmacSha256) {
        hashes.into_iter().try_for_each(check_hash)?;
    }
    if whole.prehashed == Some(true) {
        return Err(unsupported(
            "prehashed: this service hashes what it signs; send the message",
        ));
    }
    if given(whole.context.as_ref()) {
        return Err(unsupported(
            "derived keys are not offered: leave context out",
        ));
    }
    if given(whole.signature_algorithm.as_ref()) || given(whole.salt_length.as_ref()) {
        return Err(unsupported(
            "signature_algorithm and salt_length belong to RSA",
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
    })
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
    } = read(kms, request)?;
    let task = |item: &Sign| {
        Ok(SignTask::from_request(SignRequest {
            version: pinned(item.key_version),
            ..SignRequest::message(key.kid.clone(), message(item)?)
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
    let text = signature.and_then(|first| written(first, answer.version, marshal));
    let text = text.ok_or_else(|| Refusal::new(Cause::Internal, "a signature is missing"))?;
    let mut value = json!({ "signature": text, "key_version": answer.version });
    if let Some(reference) = reference {
        value["reference"] = reference.into();
    }
    Ok(value)
}

fn written(signature: &Signature, version: u32, marshal: Marshal) -> Option<String> {
    let raw = signature.signature.as_slice();
    match (signature.alg, marshal) {
        (Alg::EcdsaP256, Marshal::Der) => Some(tagged(version, &der(raw.try_into().ok()?))),
        (Alg::EcdsaP256, Marshal::Jws) => {
            Some(format!("vault:v{version}:{}", ron_proto::b64::url(raw)))
        }
        _ => Some(tagged(version, raw)),
    }
}

/// Parses a signature in Vault's format; returns its version and native bytes.
fn parsed(alg: Alg, text: &str, marshal: Marshal) -> Result<(u32, Vec<u8>), Refusal> {
    if (alg, marshal) == (Alg::EcdsaP256, Marshal::Jws) {
        let (head, raw) = text.rsplit_once(':').unwrap_or_default();
        let (version, _) = untagged("signature", &format!("{head}:"))?;
        let raw = ron_proto::b64::from_url(raw);
        return Ok((
            version,
            raw.map_err(|_| bad("invalid signature: it must be base64url"))?,
        ));
    }
    let (version, raw) = untagged("signature", text)?;
    match alg {
        Alg::EcdsaP256 => {
            let raw = from_der(&raw).ok_or_else(|| bad("invalid signature: it must be DER"))?;
            Ok((version, raw.to_vec()))
        }
        _ => Ok((version, raw)),
    }
}

fn verify(kms: &Kms, request: &Request) -> Result<Action, Refusal> {
    let read = read(kms, request)?;
    // One MAC decides for all items: a batch verifies MACs or signatures, not both.
    if read.items.iter().any(|item| item.hmac.is_some()) {
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
    let body = VerifyRequest {
        key: read.key.kid.clone(),
        version: Some(version),
        message: Some(Bytes(message(item)?)),
        digest: None,
        signatures: vec![Signature {
            alg,
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
        let mut raw = [7_u8; 64];
        raw[32] = 0xff;
        for (alg, marshal) in [
            (Alg::EcdsaP256, Marshal::Der),
            (Alg::EcdsaP256, Marshal::Jws),
            (Alg::Ed25519, Marshal::Der),
        ] {
            let signature = Signature {
                alg,
                signature: Bytes(raw.to_vec()),
            };
            let text = written(&signature, 4, marshal).expect("written");
            assert!(text.starts_with("vault:v4:"));
            assert_eq!(
                parsed(alg, &text, marshal).ok(),
                Some((4, raw.to_vec())),
                "{marshal:?}"
            );
        }
    }
}
