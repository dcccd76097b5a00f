//! The one table of this service's own metrics (prefix `svc_passport_`).

use ron_kernel::{Counter, CounterVec, Gauge, Histogram, HistogramVec, LATENCY_BUCKETS, Registry};

/// Handles on the metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Time from a request for a token to its answer, by result.
    pub issue_seconds: HistogramVec,
    /// Time to judge one token, by result.
    pub verify_seconds: HistogramVec,
    /// Tokens handed out, by JWS algorithm.
    pub issued: CounterVec,
    /// Revocations made durable, by kind.
    pub revocations: CounterVec,
    /// Refused requests, by reason.
    pub rejects: CounterVec,
    /// Time of calls to the KMS, by operation.
    pub kms_seconds: HistogramVec,
    /// Classical tokens handed out where one with ML-DSA was preferred.
    pub pq_fallback: Counter,
    /// The epoch now.
    pub epoch: Gauge,
    /// From a durable event to the answer of each feed reader that waited for it.
    pub propagation: Histogram,
}

impl Metrics {
    /// Makes (or finds) the metrics in a registry.
    pub fn new(r: &Registry) -> Self {
        let times = LATENCY_BUCKETS;
        Self {
            issue_seconds: r.histogram_vec(
                "issue_duration_seconds",
                "Time to issue a token.",
                &["result"],
                times,
            ),
            verify_seconds: r.histogram_vec(
                "verify_duration_seconds",
                "Time to judge a token.",
                &["result"],
                times,
            ),
            issued: r.counter_vec("tokens_issued_total", "Tokens handed out.", &["alg"]),
            revocations: r.counter_vec("revocations_total", "Revocations made durable.", &["kind"]),
            rejects: r.counter_vec("rejects_total", "Refused requests.", &["reason"]),
            kms_seconds: r.histogram_vec(
                "kms_call_duration_seconds",
                "Time of calls to the KMS.",
                &["op"],
                times,
            ),
            propagation: r.histogram(
                "revocation_propagation_seconds",
                "Time from a durable event to a waiting feed reader.",
                times,
            ),
            pq_fallback: r.counter(
                "pq_fallback_total",
                "Classical tokens where one with an ML-DSA signature was preferred.",
            ),
            epoch: r.gauge("epoch_current", "The current epoch."),
        }
    }
}
