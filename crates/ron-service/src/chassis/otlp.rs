//! Spans of requests for a collector of traces: OTLP over HTTP, in JSON.
//!
//! ```text
//!  *-http- ── spans (drop-oldest) ──> *-ops-spans ── POST otlp.url, up to 512 at once ──> collector
//! ```
//!
//! **Invariants:** no request waits for it. What the collector does not take is lost, counted, and not sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_http::{Call, ClientConfig, EndedSpan, HttpClient, Spans};
use ron_kernel::{ClosedCounter, Deadline, QueueSpec, Receiver, Recv, ThreadCtx, queue};
use serde_json::{Value, json};

use super::Chassis;
use crate::topology::SPANS_QUEUE;

static SPANS_QUEUE_SPEC: QueueSpec = SPANS_QUEUE;

/// Most spans of one call.
const BATCH: usize = 512;
/// How long the first span of a call waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Longest wait of the idle thread.
const IDLE: Duration = Duration::from_secs(60);
/// Maximum time of a call. Short, and at most a quarter of the time for a drain, because a call cannot be ended before.
const CALL: Duration = Duration::from_secs(1);

/// The kind of a span that answers a request, and the status code of an error, as numbers of OTLP.
const SERVER: u8 = 2;
const ERROR: u8 = 2;

/// Sends the spans of one service.
pub(crate) struct Exporter {
    url: String,
    client: HttpClient,
    /// What the spans are of.
    resource: Value,
    from: Receiver<EndedSpan>,
    results: ClosedCounter,
    /// Maximum time of a call.
    limit: Duration,
    failing: AtomicBool,
}

/// Starts the thread that sends spans, and returns where the front of the API puts them; nowhere unless `otlp.url` is set.
pub(super) fn start(chassis: &Chassis) -> Option<Arc<Spans>> {
    let config = chassis.config.load();
    let settings = config.chassis();
    let (to, from) = queue(&SPANS_QUEUE_SPEC, SPANS_QUEUE.capacity, &chassis.km);
    let exporter = settings.otlp_url.clone().map(|url| Exporter {
        url,
        // A breaker would report an absent collector as a fault of the service.
        client: HttpClient::new(ClientConfig {
            breaker: None,
            ..chassis.peers.clone()
        }),
        resource: json!({"attributes": [
            text("service.name", chassis.topology.service),
            text("service.instance.id", &chassis.instance),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ]}),
        from,
        results: chassis.registry.counter_closed(
            "spans_total",
            "Spans by what became of them at the collector.",
            &[("result", &["sent", "lost"])],
        ),
        limit: CALL.min(settings.drain_deadline / 4),
        failing: AtomicBool::new(false),
    });
    let spans = exporter
        .is_some()
        .then(|| Spans::new(to, settings.otlp_spans_per_second, &*chassis.random));
    let row = chassis.threads.ops_spans;
    chassis.sup.spawn(row, move |ctx| match &exporter {
        Some(exporter) => exporter.run(ctx),
        None => ctx.wait_for_shutdown(),
    });
    spans
}

impl Exporter {
    /// The body of the thread. At a shutdown it sends what is left, if that fits into one call.
    pub(crate) fn run(&self, ctx: &ThreadCtx) {
        loop {
            match self.from.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(first) => {
                    ctx.shutdown.wait(Deadline::within(GATHER));
                    self.send(first);
                }
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        if let Some(first) = self.from.try_recv() {
            self.send(first);
        }
        ctx.wait_for_shutdown();
    }

    fn send(&self, first: EndedSpan) {
        let mut spans = vec![span(&first)];
        while spans.len() < BATCH
            && let Some(next) = self.from.try_recv()
        {
            spans.push(span(&next));
        }
        let count = spans.len() as u64;
        let scope = json!({"name": "ron", "version": env!("CARGO_PKG_VERSION")});
        let body = json!({"resourceSpans": [{
            "resource": self.resource,
            "scopeSpans": [{"scope": scope, "spans": spans}],
        }]});
        let call = Call::post_json(
            &self.url,
            body.to_string().into_bytes(),
            Deadline::within(self.limit),
        );
        let why = match self.client.call(call) {
            Ok(reply) if reply.is_success() => None,
            Ok(reply) => Some(format!("it answered {}", reply.status)),
            Err(error) => Some(error.detail),
        };
        let result = if why.is_none() { "sent" } else { "lost" };
        self.results.with_label_values(&[result]).inc_by(count);
        // One line for each change, however long the collector is away.
        let was_failing = self.failing.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was_failing => {
                tracing::warn!(
                    event = "spans_lost",
                    why,
                    "the collector at otlp.url takes no spans"
                );
            }
            None if was_failing => tracing::info!(event = "spans_sent"),
            _ => {}
        }
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// A span in the JSON form of OTLP: ids in hex, 64-bit numbers as text.
fn span(ended: &EndedSpan) -> Value {
    let end = u128::from(ended.ended_unix_ms) * 1_000_000;
    let start = end.saturating_sub(ended.took.as_nanos());
    let mut span = json!({
        "traceId": format!("{:032x}", ended.span.trace_id),
        "spanId": format!("{:016x}", ended.span.id),
        "name": format!("{} {}", ended.method, ended.route),
        "kind": SERVER,
        "startTimeUnixNano": start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": [
            text("http.request.method", ended.method),
            text("http.route", ended.route),
            {"key": "http.response.status_code", "value": {"intValue": ended.status.to_string()}},
            text("ron.request_id", &ended.request_id),
        ],
    });
    if let Some(parent) = ended.span.parent {
        span["parentSpanId"] = format!("{parent:016x}").into();
    }
    if ended.status >= 500 {
        span["status"] = json!({"code": ERROR});
    }
    span
}
