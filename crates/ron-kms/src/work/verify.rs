//! Verification: on the HTTP worker's thread, from the snapshot, without the audit log or the
//! store, so that it works when they do not.

use std::time::Duration;

use ron_custody::index::{Key, KeyIndex, Version};
use ron_custody::keys::PublicKey;
use ron_custody::keys::payload::Payload;
use ron_custody::{Cause, Refusal};
use ron_http::Principal;
use ron_proto::kms::{Signature, VerifyAnswer, VerifyDetail, VerifyMode, VerifyRequest};
use ron_proto::values::Alg;

use super::Kms;

/// Maximum signatures in one request.
const SIGNATURES_MAX: usize = 4;

/// Verifies the signatures of one request. A signature that does not verify is an answer, not an
/// error.
pub fn verify(
    index: &KeyIndex,
    caller: &Principal,
    request: VerifyRequest,
) -> Result<VerifyAnswer, Refusal> {
    let key = index.find(caller, &index.name_of(&caller.tenant, &request.key)?)?;
    key.kid.alg.signs().then_some(()).ok_or_else(signs_not)?;
    if request.signatures.is_empty() || request.signatures.len() > SIGNATURES_MAX {
        return Err(Refusal::new(
            Cause::BadRequest,
            format!("give 1 to {SIGNATURES_MAX} signatures"),
        ));
    }
    let algs: Vec<Alg> = key
        .head()
        .public
        .parts()
        .iter()
        .map(PublicKey::alg)
        .collect();
    if request.mode == VerifyMode::PqOnly && !algs.iter().any(|alg| post_quantum(*alg)) {
        return Err(Refusal::new(
            Cause::Unsupported,
            "mode `pq_only` needs a key with a post-quantum algorithm; this one has none",
        ));
    }
    let payload = Payload::parse(
        request.message,
        request.digest.as_ref(),
        request.prehash.as_ref(),
    )?;
    let versions = versions(key, request.version)?;
    let bytes = payload.signed_bytes();
    let details: Vec<_> = request
        .signatures
        .iter()
        .map(|signature| check(&versions, &payload, &bytes, signature))
        .collect();
    let ok = judge(request.mode, &algs, &details);
    Ok(VerifyAnswer {
        ok,
        details,
        cache_age_ms: None,
    })
}

impl Kms {
    /// Verifies from the snapshot. While the device that holds the key is unavailable, the answer states how long ago
    /// the device last answered; past `verify_cache.hard_ttl` the request is refused.
    pub fn verify(
        &self,
        caller: &Principal,
        request: VerifyRequest,
    ) -> Result<VerifyAnswer, Refusal> {
        let index = self.index.load();
        let kid = index.name_of(&caller.tenant, &request.key)?;
        let cache_age_ms = self.cache_age_ms(index.find(caller, &kid)?)?;
        let request = VerifyRequest {
            key: kid.into(),
            ..request
        };
        let answer = verify(&index, caller, request)?;
        Ok(VerifyAnswer {
            cache_age_ms,
            ..answer
        })
    }

    /// Milliseconds since the device that holds the key last answered; `None` while it answers, and for
    /// local keys.
    fn cache_age_ms(&self, key: &Key) -> Result<Option<u64>, Refusal> {
        let Some(device) = key.secret.as_deref().and_then(|secret| secret.device()) else {
            return Ok(None);
        };
        if device.presence().unavailable().is_none() {
            self.metrics.verify_cache_age.set(0);
            return Ok(None);
        }
        let age = device.presence().silent_for();
        let limits = self.settings.load();
        let limits = &limits.devices;
        let over = |limit: Duration| age > limit;
        self.metrics
            .verify_cache_age
            .set(age.as_secs().cast_signed());
        if over(limits.soft_ttl) {
            self.metrics.verify_cache_expired.inc();
        }
        if over(limits.hard_ttl) {
            return Err(Refusal {
                retry_after_s: 5,
                ..Refusal::new(
                    Cause::StoreUnavailable,
                    "the device that holds the key has been unavailable for longer than verify_cache.hard_ttl",
                )
            });
        }
        Ok(Some(age.as_millis() as u64))
    }
}

/// The versions to try, newest first.
fn versions(key: &Key, wanted: Option<u32>) -> Result<Vec<&Version>, Refusal> {
    let Some(number) = wanted else {
        return Ok(key
            .versions
            .iter()
            .map(|version| &**version)
            .rev()
            .filter(|v| v.number >= key.min_verify)
            .collect());
    };
    match key.version(number) {
        Some(version) if number >= key.min_verify => Ok(vec![version]),
        Some(_) => Err(Refusal::new(
            Cause::BadRequest,
            "this version no longer verifies",
        )),
        None => Err(Refusal::new(Cause::NotFound, "the key has no such version")
            .with_head(key.head().number)),
    }
}

/// The refusal of a signature operation on a key for wrapping or MACs.
pub fn signs_not() -> Refusal {
    let detail = "keys of this algorithm make no signatures; see /wrap, /unwrap and /hmac";
    Refusal::new(Cause::Unsupported, detail)
}

fn post_quantum(alg: Alg) -> bool {
    matches!(alg, Alg::MlDsa44 | Alg::MlDsa65 | Alg::MlDsa87)
}

/// Whether the signatures verify under the mode. In mode `and` every algorithm of the key must have a valid
/// signature, all under one version, and no invalid signature may be present.
fn judge(mode: VerifyMode, algs: &[Alg], details: &[VerifyDetail]) -> bool {
    let holds = |alg: &Alg| details.iter().any(|d| d.ok && d.alg == *alg);
    match mode {
        VerifyMode::And => {
            let one_version = details
                .windows(2)
                .all(|two| two[0].version == two[1].version);
            details.iter().all(|d| d.ok) && one_version && algs.iter().all(holds)
        }
        VerifyMode::Or => details.iter().any(|d| d.ok),
        VerifyMode::PqOnly => algs.iter().filter(|alg| post_quantum(**alg)).all(holds),
    }
}

fn check(
    versions: &[&Version],
    payload: &Payload,
    bytes: &[u8],
    signature: &Signature,
) -> VerifyDetail {
    let detail = |version: Option<u32>, reason: Option<&str>| VerifyDetail {
        alg: signature.alg,
        ok: version.is_some(),
        version,
        reason: reason.map(str::to_owned),
    };
    let raw = signature.signature.as_slice();
    let mut reason = "alg_mismatch";
    for version in versions {
        for part in version.public.parts() {
            if part.alg() != signature.alg {
                continue;
            }
            if !part.fits(raw) {
                return detail(None, Some("wrong_length"));
            }
            let Ok(scheme) = payload.scheme(part.alg(), signature.scheme) else {
                return detail(None, Some("scheme_mismatch"));
            };
            if part.verify(payload.input(bytes), scheme, raw) {
                return detail(Some(version.number), None);
            }
            reason = "no_match";
        }
    }
    detail(None, Some(reason))
}
