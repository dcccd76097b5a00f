//! Whether the audit log may be relied on: one flag that only ever turns to "no".

use std::sync::Arc;
use std::sync::OnceLock;

use ron_kernel::Counter;

use crate::metrics::Metrics;
use ron_service::ReadyBoard;

/// Shared state of the audit log. Cloning shares it.
#[derive(Clone)]
pub struct AuditHealth {
    failed: Arc<OnceLock<String>>,
    ready: ReadyBoard,
    integrity_failed: Counter,
    io_errors: Counter,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk or this program failed.
    Failure,
    /// The log is not what was written.
    Tampering,
    /// The log is of a newer program: nothing is started on it.
    Newer,
}

impl AuditHealth {
    /// A log in order.
    pub fn new(ready: ReadyBoard, metrics: &Metrics) -> Self {
        Self {
            failed: Arc::default(),
            ready,
            integrity_failed: metrics.integrity_failed.clone(),
            io_errors: metrics.io_errors.with_label_values(&["audit"]),
        }
    }

    /// Whether leaves can be written.
    pub fn is_ok(&self) -> bool {
        self.failed.get().is_none()
    }

    /// Why not, if not.
    pub fn reason(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Refuses every signature and change from now on; verification goes on.
    pub fn fail(&self, fault: Fault, reason: &str) {
        match fault {
            Fault::Failure => self.io_errors.inc(),
            Fault::Tampering => self.integrity_failed.inc(),
            Fault::Newer => {}
        }
        if self.failed.set(reason.to_owned()).is_ok() {
            self.ready.missing("audit", reason);
            tracing::error!(
                event = "audit_failed",
                tampering = fault == Fault::Tampering,
                reason
            );
        }
    }
}
