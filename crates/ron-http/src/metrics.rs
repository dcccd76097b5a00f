//! The HTTP metrics. The series of a route are looked up once, so that counting an answer takes no
//! lock and no hashing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_kernel::{Counter, CounterVec, Gauge, Histogram, HistogramVec, LATENCY_BUCKETS, Registry};

use crate::head::Method;
use crate::route::Route;

/// Statuses with a cached counter; others take the slow path.
const STATUSES: [u16; 16] = [
    200, 201, 202, 204, 304, 400, 401, 403, 404, 409, 415, 422, 429, 500, 503, 504,
];

/// The route label of requests that found no route.
const UNMATCHED: &str = "unmatched";

#[derive(Debug)]
struct RouteSeries {
    pattern: &'static str,
    method: Method,
    /// Made with the first answer: buckets of routes that are never called would be hundreds of
    /// series.
    seconds: OnceLock<Histogram>,
    timed: bool,
    /// Statuses from 500 on that are a documented answer of this route, not a failure.
    answers: Vec<u16>,
    by_status: [OnceLock<Counter>; STATUSES.len()],
}

/// How many requests a front has answered since it started.
#[derive(Debug, Default)]
pub struct AnswerCounts {
    all: AtomicU64,
    failed: AtomicU64,
}

impl AnswerCounts {
    /// All answers, and those with a status from 500 on that is not documented as an answer of its route.
    pub fn read(&self) -> (u64, u64) {
        // In this order, so that there are never more failures than answers.
        let failed = self.failed.load(Ordering::Acquire);
        (self.all.load(Ordering::Acquire), failed)
    }

    /// Adds answers, and how many of them failed.
    pub fn add(&self, all: u64, failed: u64) {
        self.all.fetch_add(all, Ordering::Release);
        self.failed.fetch_add(failed, Ordering::Release);
    }
}

/// The metrics of a front. Fronts of one registry share the series.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    requests: CounterVec,
    seconds: HistogramVec,
    rejects: CounterVec,
    server_errors: Counter,
    pub answers: Arc<AnswerCounts>,
    routes: Vec<RouteSeries>,
    pub connections: Gauge,
    pub in_flight: Gauge,
    pub late_answers: Counter,
    pub dropped: Counter,
    pub panics: Counter,
}

impl HttpMetrics {
    pub(crate) fn new(registry: &Registry, routes: &[Route]) -> Self {
        let seconds = registry.histogram_vec(
            "http_request_duration_seconds",
            "From a complete head to its answer.",
            &["route", "method"],
            LATENCY_BUCKETS,
        );
        let series = |route: &Route| RouteSeries {
            pattern: route.pattern,
            method: route.method,
            seconds: OnceLock::new(),
            timed: route.timed,
            answers: route.documented_server_errors(),
            by_status: [const { OnceLock::new() }; STATUSES.len()],
        };
        Self {
            requests: registry.counter_vec(
                "http_requests_total",
                "Requests answered, by route pattern.",
                &["route", "method", "status"],
            ),
            rejects: registry.counter_vec(
                "http_rejects_total",
                "Connections and requests refused before a handler saw them, by reason.",
                &["reason"],
            ),
            server_errors: registry.counter(
                "http_server_errors_total",
                "Requests that failed with a status from 500 on; what /readyz answers is none.",
            ),
            answers: Arc::default(),
            routes: routes.iter().map(series).collect(),
            connections: registry.gauge("http_connections", "Open connections."),
            in_flight: registry.gauge("http_in_flight", "Requests that handlers owe an answer."),
            late_answers: registry.counter(
                "http_late_answers_total",
                "Answers discarded because the client had 504 already or was gone.",
            ),
            dropped: registry.counter(
                "http_dropped_responders_total",
                "Requests given up without an answer; the client got 500.",
            ),
            panics: registry.counter("http_handler_panics_total", "Handlers that panicked."),
            seconds,
        }
    }

    pub(crate) fn answered(
        &self,
        route: Option<usize>,
        method: Method,
        status: u16,
        took: Duration,
    ) {
        let series = route.and_then(|route| self.routes.get(route));
        let answer = series.is_some_and(|series| series.answers.contains(&status));
        let failed = status >= 500 && !answer;
        self.answers.add(1, u64::from(failed));
        if failed {
            self.server_errors.inc();
        }
        // One label for all unknown paths: clients must not be able to create series.
        let Some(series) = series else {
            self.slow(UNMATCHED, method, status).inc();
            let labels = [UNMATCHED, method.as_str()];
            self.seconds
                .with_label_values(&labels)
                .observe(took.as_secs_f64());
            return;
        };
        if series.timed {
            let seconds = series.seconds.get_or_init(|| {
                self.seconds
                    .with_label_values(&[series.pattern, series.method.as_str()])
            });
            seconds.observe(took.as_secs_f64());
        }
        match STATUSES.iter().position(|known| *known == status) {
            Some(cell) if series.method == method => {
                let counter = series.by_status[cell]
                    .get_or_init(|| self.slow(series.pattern, method, status));
                counter.inc();
            }
            _ => self.slow(series.pattern, method, status).inc(),
        }
    }

    fn slow(&self, route: &str, method: Method, status: u16) -> Counter {
        let status = status.to_string();
        self.requests
            .with_label_values(&[route, method.as_str(), status.as_str()])
    }

    /// Counts one refusal; `reason` is from a closed set.
    pub(crate) fn reject(&self, reason: &'static str) {
        self.rejects.with_label_values(&[reason]).inc();
    }
}
