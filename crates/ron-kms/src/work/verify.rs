//! Verification: on the request's own thread, from the snapshot, without the audit log or the
//! store, so that it works when they do not.

use ron_http::Principal;
use ron_proto::kms::{Signature, VerifyAnswer, VerifyDetail, VerifyMode, VerifyRequest};

use crate::error::{Refusal, Why};
use crate::keys::material::SIGNATURE_BYTES;
use crate::keys::payload::Payload;
use crate::keys::{Key, KeyIndex, Version};

/// Most signatures of one request.
const SIGNATURES_MAX: usize = 4;

/// Checks the signatures of one request. A signature that does not hold is an answer, not an
/// error.
pub fn verify(
    index: &KeyIndex,
    caller: &Principal,
    request: VerifyRequest,
) -> Result<VerifyAnswer, Refusal> {
    let key = index.find(caller, &request.key)?;
    if request.signatures.is_empty() || request.signatures.len() > SIGNATURES_MAX {
        return Err(Refusal::new(
            Why::BadRequest,
            format!("give 1 to {SIGNATURES_MAX} signatures"),
        ));
    }
    if request.mode == VerifyMode::PqOnly {
        return Err(Refusal::new(
            Why::Unsupported,
            "mode `pq_only` needs a key with a post-quantum algorithm; this one has none",
        ));
    }
    let payload = Payload::parse(request.message, request.digest.as_ref())?;
    let versions = versions(key, request.version)?;
    let bytes = payload.signed_bytes();
    let details: Vec<_> = request
        .signatures
        .iter()
        .map(|signature| check(key, &versions, &bytes, signature))
        .collect();
    let ok = match request.mode {
        VerifyMode::And | VerifyMode::PqOnly => details.iter().all(|d| d.ok),
        VerifyMode::Or => details.iter().any(|d| d.ok),
    };
    Ok(VerifyAnswer {
        ok,
        details,
        cache_age_ms: None,
    })
}

/// The versions to try, newest first.
fn versions(key: &Key, wanted: Option<u32>) -> Result<Vec<&Version>, Refusal> {
    let Some(number) = wanted else {
        return Ok(key
            .versions
            .iter()
            .rev()
            .filter(|v| v.number >= key.min_verify)
            .collect());
    };
    match key.version(number) {
        Some(version) if number >= key.min_verify => Ok(vec![version]),
        Some(_) => Err(Refusal::new(
            Why::BadRequest,
            "this version no longer verifies",
        )),
        None => {
            Err(Refusal::new(Why::NotFound, "the key has no such version")
                .with_head(key.head().number))
        }
    }
}

fn check(key: &Key, versions: &[&Version], bytes: &[u8], signature: &Signature) -> VerifyDetail {
    let detail = |version: Option<u32>, reason: Option<&str>| VerifyDetail {
        alg: signature.alg,
        ok: version.is_some(),
        version,
        reason: reason.map(str::to_owned),
    };
    if signature.alg != key.kid.alg {
        return detail(None, Some("alg_mismatch"));
    }
    let Ok(raw) = <&[u8; SIGNATURE_BYTES]>::try_from(signature.signature.as_slice()) else {
        return detail(None, Some("wrong_length"));
    };
    match versions
        .iter()
        .find(|version| version.public.verify(bytes, raw))
    {
        Some(version) => detail(Some(version.number), None),
        None => detail(None, Some("no_match")),
    }
}
