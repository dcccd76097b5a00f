//! Whether the audit log can be trusted and written: one flag, which a failure sets until the process ends.

use std::sync::Arc;
use std::sync::OnceLock;

use ron_custody::Refusal;
use ron_files::DiskRoom;
use ron_kernel::Counter;

use crate::metrics::Metrics;
use ron_service::ReadyBoard;

/// The flag and its reason. Clones share it.
#[derive(Clone)]
pub struct AuditHealth {
    failed: Arc<OnceLock<(Fault, String)>>,
    ready: ReadyBoard,
    room: DiskRoom,
    integrity_failed: Counter,
    io_errors: Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk or this program failed.
    Failure,
    /// The log differs from what was written.
    Tampering,
    /// A newer program has written the log: the service does not start on it.
    Newer,
}

impl AuditHealth {
    /// A flag that is not set.
    pub fn new(ready: ReadyBoard, room: DiskRoom, metrics: &Metrics) -> Self {
        Self {
            failed: Arc::default(),
            ready,
            room,
            integrity_failed: metrics.integrity_failed.clone(),
            io_errors: metrics.io_errors.with_label_values(&["audit"]),
        }
    }

    /// Whether leaves can be written.
    pub fn is_ok(&self) -> bool {
        self.failed.get().is_none()
    }

    /// Refuses what must leave a leaf, when leaves cannot be written.
    pub fn check(&self) -> Result<(), Refusal> {
        match self.failed.get() {
            None => self.room.check().map_err(|full| Refusal::no_room(&full)),
            Some((Fault::Tampering, _)) => Err(Refusal::audit_tampered()),
            Some(_) => Err(Refusal::audit_down()),
        }
    }

    /// The reason of the first failure.
    #[cfg(test)]
    pub fn reason(&self) -> Option<&str> {
        self.failed.get().map(|(_, why)| why.as_str())
    }

    /// Has every signature and change refused until a restart; verification goes on. Only the first reason is kept.
    pub fn fail(&self, fault: Fault, reason: &str) {
        match fault {
            Fault::Failure => self.io_errors.inc(),
            Fault::Tampering => self.integrity_failed.inc(),
            Fault::Newer => {}
        }
        if self.failed.set((fault, reason.to_owned())).is_ok() {
            self.ready.missing("audit", reason);
            tracing::error!(
                event = "audit_failed",
                tampering = fault == Fault::Tampering,
                reason
            );
        }
    }
}
