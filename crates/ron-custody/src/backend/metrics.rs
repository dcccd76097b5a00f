//! Metrics of the sessions with devices.

use ron_kernel::{ClosedCounter, GaugeVec, Registry};
use ron_proto::kms::KeyBackend;

/// Handles of the metrics; cloning shares them.
#[derive(Clone)]
pub struct DeviceMetrics {
    /// Sessions by `backend`, `state`.
    pub sessions: GaugeVec,
    /// Reconnections by `backend`.
    pub reconnects: ClosedCounter,
    /// Abandoned calls into device libraries, by `backend`.
    pub quarantined: ClosedCounter,
}

impl DeviceMetrics {
    /// Registers everything with `r`.
    pub fn new(r: &Registry) -> Self {
        let backends = KeyBackend::ALL.map(KeyBackend::as_str);
        let by_backend = |name, help| r.counter_closed(name, help, &[("backend", &backends)]);
        Self {
            sessions: r.gauge_vec(
                "backend_sessions",
                "Sessions of each backend.",
                &["backend", "state"],
            ),
            reconnects: by_backend("backend_reconnects_total", "Reconnections to a backend."),
            quarantined: by_backend(
                "quarantined_calls_total",
                "Calls into a device library that were abandoned because they hang.",
            ),
        }
    }

    /// Declares the label value of a device, whose name may come from the configuration.
    pub fn declare(&self, backend: &str) {
        self.reconnects.declare([backend]);
        self.quarantined.declare([backend]);
    }
}
