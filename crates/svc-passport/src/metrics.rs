//! The one table of this service's own metrics (prefix `svc_passport_`).

use crate::policy::pq_alg;
use ron_client::ClientError;
use ron_kernel::{
    ClosedCounter, Counter, Gauge, Histogram, HistogramVec, KernelMetrics, LATENCY_BUCKETS,
    Registry,
};
use ron_proto::problem::COMMON;
use ron_proto::{Alg, CaveatError};

/// Refusal codes that only this service has.
const OWN_REFUSALS: [&str; 6] = [
    CaveatError::UNKNOWN,
    CaveatError::BAD,
    CaveatError::OVER_MAX,
    "invalid_authorization_details",
    "no_acceptable_alg",
    "ttl_too_long",
];

/// Reasons for missing signatures: codes of the KMS, failures of a call, and last any other.
const SIGN_FAILURES: &[&str] = &[
    "attestation_missing",
    "audit_tampered",
    "audit_unavailable",
    "bad_request",
    "busy",
    "checkpoint_refused",
    "deadline_exceeded",
    "draining",
    "forbidden",
    "internal",
    "key_not_active",
    "no_answer",
    "not_found",
    "not_sent",
    "payload_refused",
    "policy_refused",
    "quarantined",
    "refused",
    "store_unavailable",
    "uses_exhausted",
    "version_not_head",
    OTHER,
];
const OTHER: &str = "other";

/// Handles on the metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Time from a request for a token to its answer, by result.
    pub issue_seconds: HistogramVec,
    /// Time to verify one token, by result.
    pub verify_seconds: HistogramVec,
    /// Issued tokens, by JWS algorithm.
    pub issued: ClosedCounter,
    /// Revocations made durable, by kind.
    pub revocations: ClosedCounter,
    /// Refused requests, by reason.
    pub rejects: ClosedCounter,
    /// Failures of the store of revocations.
    pub io_errors: ClosedCounter,
    /// Signatures that the KMS refused or did not return, by reason.
    pub sign_failures: ClosedCounter,
    /// Time of calls to the KMS, by operation.
    pub kms_seconds: HistogramVec,
    /// Classical tokens issued where an ML-DSA signature was preferred.
    pub pq_fallback: Counter,
    pub epoch: Gauge,
    /// Time from a durable event to the answer of each waiting feed reader.
    pub propagation: Histogram,
}

impl Metrics {
    /// Registers the metrics, or finds them in a registry that has them.
    pub fn new(r: &Registry) -> Self {
        let times = LATENCY_BUCKETS;
        let common = COMMON.iter().map(|kind| kind.code);
        let refusals: Vec<&str> = common.chain(OWN_REFUSALS).collect();
        let pq = [Alg::MlDsa44, Alg::MlDsa65, Alg::MlDsa87];
        let pq = pq.into_iter().filter_map(pq_alg).flatten();
        let algs: Vec<&str> = ["EdDSA", "ES256", "RS256"].into_iter().chain(pq).collect();
        let km = KernelMetrics::new(r);
        km.upstream_fail.declare(["ron-kms", "policy", "issuer"]);
        km.io_timeouts.declare(["issue"]);
        km.io_errors
            .declare(["holders", "origins", "store", "trail"]);
        Self {
            issue_seconds: r.histogram_vec(
                "issue_duration_seconds",
                "Time to issue a token.",
                &["result"],
                times,
            ),
            verify_seconds: r.histogram_vec(
                "verify_duration_seconds",
                "Time to verify a token.",
                &["result"],
                times,
            ),
            issued: r.counter_closed(
                "tokens_issued_total",
                "Issued tokens.",
                &[("alg", &algs)],
            ),
            revocations: r.counter_closed(
                "revocations_total",
                "Revocations made durable.",
                &[("kind", &REVOCATION_KINDS)],
            ),
            rejects: r.counter_closed("rejects_total", "Refused requests.", &[("reason", &refusals)]),
            io_errors: km.io_errors,
            sign_failures: r.counter_closed(
                "sign_failures_total",
                "Signatures that the KMS refused or did not return, by its code or the failure of the call.",
                &[("reason", SIGN_FAILURES)],
            ),
            kms_seconds: r.histogram_vec(
                "kms_call_duration_seconds",
                "Time of calls to the KMS.",
                &["op"],
                times,
            ),
            propagation: r.histogram(
                "revocation_propagation_seconds",
                "Time from a durable event to the answer of a waiting feed reader.",
                times,
            ),
            pq_fallback: r.counter(
                "pq_fallback_total",
                "Classical tokens issued where an ML-DSA signature was preferred.",
            ),
            epoch: r.gauge("epoch_current", "The current epoch."),
        }
    }

    /// Counts a call to the KMS that returned no signatures.
    pub fn call_failed(&self, error: &ClientError) {
        self.sign_failed(match error {
            ClientError::Unknown { .. } => "no_answer",
            ClientError::NotSent { .. } => "not_sent",
            ClientError::Refused { .. } => error.code().unwrap_or("refused"),
        });
    }

    /// Counts a missing signature; `why` is a code of the KMS or one of [`SIGN_FAILURES`].
    pub fn sign_failed(&self, why: &str) {
        let reason = SIGN_FAILURES.iter().find(|reason| **reason == why);
        let reason = reason.unwrap_or(&OTHER);
        self.sign_failures.with_label_values(&[reason]).inc();
    }
}

/// [`Revoked::kind`] of every event.
const REVOCATION_KINDS: [&str; 6] = ["jti", "subject", "kid", "epoch", "keys", "policy"];
