//! The bounds of the front. One struct, so that a reader sees every limit at once.

use std::time::Duration;

use crate::pace::Rule;
use crate::parse::{FIELDS_MAX, HeadCaps};
use crate::peer::Proxies;

/// The longest wait of a long poll, and for the proof of a signature, in seconds; a longer one is refused with 400.
pub const WAIT_MAX_S: u64 = 30;

/// Every bound of a front. `Default` is what the services run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body in bytes, batches included; a route may set its own (413).
    pub max_body_bytes: usize,
    /// The same on public routes, unless the route sets its own; a caller with valid credentials
    /// may send [`Limits::max_body_bytes`] there.
    pub public_body_bytes: usize,
    /// Memory for bodies, unfinished heads and unsent answers, over all fronts of the process
    /// (429). The first 4 KiB of each are not counted. Bytes of anonymous callers (unfinished
    /// heads, bodies on public routes) are added only up to a quarter of it.
    pub body_memory: usize,
    /// Largest header block in bytes, without the request line (431).
    pub max_head_bytes: usize,
    /// Maximum number of header fields, at most [`FIELDS_MAX`] (431).
    pub max_fields: usize,
    /// Longest request line in bytes (414).
    pub max_request_line_bytes: usize,
    /// From the first byte of a request to the end of its head (408).
    pub read_timeout: Duration,
    /// From the end of the head to the end of the body (408).
    pub body_timeout: Duration,
    /// From the answer to its last byte in the socket; answers above 1 MiB must keep
    /// [`Limits::min_rate_bytes_per_s`] instead.
    pub write_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// From a complete request to its answer (504); `X-Request-Deadline-Ms` may lower it, a long
    /// poll lengthens it by its wait.
    pub request_deadline: Duration,
    /// Connections at once; the next gets 503 and is closed. Above half of it, the peer with the
    /// most connections loses an idle one for each that it adds, and gets 503 when none is idle.
    pub max_conns: usize,
    /// Requests handed to handlers and not answered yet, long polls aside; the next gets 429. An
    /// eighth of it is kept for reads (GET and HEAD).
    pub max_in_flight: usize,
    /// Long polls that wait at once; the next gets 429.
    pub long_polls: usize,
    /// Long polls of one peer that wait at once; its next gets 429.
    pub long_polls_per_peer: usize,
    /// Failed authentications of one peer in a second; above it the peer gets 429 before its
    /// credentials are checked. 0 for no limit.
    pub auth_failures_per_second: u32,
    /// Proxies whose `X-Forwarded-For` names the peer of a request.
    pub trusted_proxies: Proxies,
    /// Pipelined requests of one connection served in a row before others get a turn. The next
    /// request is parsed only when the answer before it is sent, so at most one answer is unsent.
    pub pipeline_depth: usize,
    /// How long a connection that was refused is drained, so that the client can read why.
    pub linger_timeout: Duration,
    /// Maximum number of bytes of it that are drained.
    pub linger_bytes: usize,
    /// Minimum rate of transfers whose size, not a fixed time, sets the bound: answers above 1 MiB,
    /// bodies of routes for large transfers. It is measured over [`Limits::rate_window`];
    /// between two bytes at most [`Limits::body_timeout`] or [`Limits::write_timeout`] may pass.
    pub min_rate_bytes_per_s: u64,
    /// The time over which the minimum rate is measured.
    pub rate_window: Duration,
    /// Largest size of a decompressed request body as a multiple of the bytes sent (413).
    pub decompress_ratio: usize,
    /// Request bodies written to disk at once; the next gets 429. So does a tenant that has as many
    /// as are left.
    pub max_uploads: usize,
    /// `Retry-After` of answers given while the service drains, in seconds.
    pub drain_retry_after_s: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 1 << 20,
            public_body_bytes: 64 << 10,
            body_memory: 64 << 20,
            max_head_bytes: 32 << 10,
            max_fields: 100,
            max_request_line_bytes: 8 << 10,
            read_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(5),
            write_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(1),
            request_deadline: Duration::from_secs(5),
            max_conns: 1024,
            max_in_flight: 1024,
            long_polls: 256,
            long_polls_per_peer: 64,
            auth_failures_per_second: 200,
            trusted_proxies: Proxies::default(),
            pipeline_depth: 16,
            linger_timeout: Duration::from_secs(1),
            linger_bytes: 4 << 20,
            min_rate_bytes_per_s: 64 << 10,
            rate_window: Duration::from_secs(10),
            decompress_ratio: 10,
            max_uploads: 16,
            drain_retry_after_s: 5,
        }
    }
}

impl Limits {
    /// The caps for the parser.
    pub(crate) fn head_caps(&self) -> HeadCaps {
        HeadCaps {
            request_line: self.max_request_line_bytes,
            block: self.max_head_bytes,
            fields: self.max_fields.min(FIELDS_MAX),
        }
    }

    /// The minimum rate of a large transfer; a route may have its own.
    pub(crate) fn rule(&self, idle: Duration, rate: Option<u64>) -> Rule {
        let window_ms = self.rate_window.as_millis() as u64;
        let rate = rate.unwrap_or(self.min_rate_bytes_per_s);
        Rule {
            idle,
            window: self.rate_window,
            bytes: (rate.saturating_mul(window_ms) / 1000).max(1),
        }
    }

    /// Bytes of anonymous callers are counted only while the process holds at most this many.
    pub(crate) fn anonymous_memory(&self) -> usize {
        self.body_memory / 4
    }

    /// Number of requests in flight at which another one is refused: reads may use all places.
    pub(crate) fn in_flight_for(&self, read: bool) -> usize {
        if read {
            self.max_in_flight
        } else {
            self.max_in_flight - self.max_in_flight / 8
        }
    }
}
