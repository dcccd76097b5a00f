//! DPoP at the token endpoint (RFC 9449 sections 5 and 8): proofs, and stateless nonces.

use std::sync::Arc;

use ron_auth::AuthReject;
use ron_auth::ProofCache;
use ron_auth::dpop::{PROOF_AGE_S, Proof, ProofAsk, verify_proof};
use ron_crypto::{ct, hash};
use ron_http::Request;
use ron_kernel::{Deadline, Random};
use ron_proto::{Problem, b64};

use crate::once::Once;
use crate::topology::PROOFS;

/// How long a nonce is the current one, in seconds; its predecessor is accepted too.
const NONCE_S: u64 = 120;

/// Checks the proofs of token requests.
#[derive(Debug)]
pub struct Proofs {
    seen: ProofCache,
    /// MAC key of the nonces; `None` requires no nonce.
    nonce_key: Option<[u8; 32]>,
    /// Where ids are taken that count at all nodes; `None` when there are no others.
    once: Option<Arc<Once>>,
}

impl Proofs {
    /// With `require_nonce`, proofs need a nonce; its key is random per process.
    pub fn new(require_nonce: bool, random: &dyn Random, once: Option<Arc<Once>>) -> Self {
        Self {
            seen: ProofCache::new(&PROOFS),
            nonce_key: require_nonce.then(|| random.bytes()),
            once,
        }
    }

    /// The present nonce; `None` when none is required.
    pub fn nonce(&self, now_s: u64) -> Option<String> {
        self.nonce_key
            .as_ref()
            .map(|key| of_slot(key, now_s / NONCE_S))
    }

    /// Verifies the proof with its nonce; `None` when no proof was sent. It must be for one of this service's `bases`. Its id is used up
    /// by [`Proofs::take`], when all else is known to be good.
    pub fn verify(
        &self,
        req: &Request,
        bases: &[String],
        now_s: u64,
    ) -> Result<Option<Proof>, ProofRefused> {
        match req.headers.count("dpop") {
            0 => return Ok(None),
            1 => {}
            _ => return Err(ProofRefused::Several),
        }
        let ask = ProofAsk {
            method: req.method.as_str(),
            bases,
            path: &req.path,
            token: None,
            now_s,
        };
        let proof = verify_proof(req.header("dpop").unwrap_or_default(), &ask)?;
        if let Some(key) = &self.nonce_key {
            let slot = now_s / NONCE_S;
            let given = proof.nonce.as_deref().unwrap_or_default();
            let fits = |slot: u64| ct::eq(of_slot(key, slot).as_bytes(), given.as_bytes());
            if !fits(slot) && !fits(slot.wrapping_sub(1)) {
                return Err(ProofRefused::Nonce);
            }
        }
        Ok(Some(proof))
    }

    /// Uses up the id of a verified proof, and returns the thumbprint of its key. `client` must be authenticated.
    pub fn take(
        &self,
        proof: Proof,
        client: &str,
        now_s: u64,
        deadline: Deadline,
    ) -> Result<String, ProofRefused> {
        proof.take(&self.seen, client, now_s)?;
        if let Some(once) = &self.once {
            let id = (proof.jkt.as_str(), proof.jti.as_str());
            let until_s = proof.iat.saturating_add(PROOF_AGE_S);
            match once.take("proof", id, until_s, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(AuthReject::ProofReplay.into()),
                Err(problem) => return Err(ProofRefused::NotTaken(Box::new(problem))),
            }
        }
        Ok(proof.jkt)
    }
}

/// Why a proof was refused.
#[derive(Clone, Debug, PartialEq)]
pub enum ProofRefused {
    /// More than one header.
    Several,
    /// No nonce, or an old one. Normal for a first request: the answer carries the present nonce.
    Nonce,
    /// The proof is invalid.
    Proof(AuthReject),
    /// Whether another node has taken it is not known.
    NotTaken(Box<Problem>),
}

impl From<AuthReject> for ProofRefused {
    fn from(reject: AuthReject) -> Self {
        Self::Proof(reject)
    }
}

impl ProofRefused {
    /// The name in metrics and the log.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Several => "proofs_several",
            Self::Nonce => "proof_nonce",
            Self::Proof(reject) => reject.reason(),
            Self::NotTaken(_) => "proofs_untaken",
        }
    }

    pub fn problem(self) -> Problem {
        let invalid = |why: &str| Problem::bad_request(why).with_oauth("invalid_dpop_proof");
        match self {
            Self::Several => invalid("send one DPoP header"),
            Self::Nonce => Problem::bad_request("put the DPoP-Nonce of this answer into the proof")
                .with_oauth("use_dpop_nonce"),
            Self::Proof(full @ AuthReject::ProofsFull) => {
                full.problem().with_oauth("temporarily_unavailable")
            }
            Self::Proof(reject) => invalid(&reject.to_string()),
            Self::NotTaken(problem) => problem.with_oauth("temporarily_unavailable"),
        }
    }
}

fn of_slot(key: &[u8; 32], slot: u64) -> String {
    b64::url(&hash::hmac_sha256(key, &slot.to_be_bytes())[..16])
}

#[cfg(test)]
mod tests {
    use ron_kernel::SeededRandom;

    use super::*;

    fn proofs(require_nonce: bool, seed: u64) -> Proofs {
        Proofs::new(require_nonce, &SeededRandom::new(seed), None)
    }

    #[test]
    fn nonces_change_with_time_and_key() {
        let (one, two) = (proofs(true, 1), proofs(true, 2));
        let now = 1_800_000_000;
        assert_eq!(one.nonce(now), one.nonce(now + 1));
        assert_ne!(one.nonce(now), one.nonce(now + NONCE_S));
        assert_ne!(one.nonce(now), two.nonce(now));
        assert_eq!(proofs(false, 1).nonce(now), None);
    }
}
