//! Whether the audit log can be trusted and written: one flag, which a failure sets until the process ends.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ron_custody::Refusal;
use ron_files::DiskRoom;
use ron_kernel::Counter;

use crate::metrics::Metrics;
use ron_service::ReadyBoard;

/// Readiness cause: the engine of the log.
pub const ENGINE: &str = "engine";

/// The flag and its reason. Clones share it.
#[derive(Clone)]
pub struct AuditHealth {
    failed: Arc<OnceLock<(Fault, String)>>,
    /// Whether the engine of the log takes no leaves at this time; never for a log in files.
    is_unavailable: Arc<AtomicBool>,
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
    /// The engine of the log does not answer: the service does not start.
    Unavailable,
}

impl AuditHealth {
    /// A flag that is not set.
    pub fn new(ready: ReadyBoard, room: DiskRoom, metrics: &Metrics) -> Self {
        Self {
            failed: Arc::default(),
            is_unavailable: Arc::default(),
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
            None if self.is_unavailable.load(Ordering::SeqCst) => Err(Refusal::audit_down()),
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

    /// Has every signature and change refused while the engine of the log is away, and says why; `None` when it is back.
    pub fn engine(&self, why: Option<&str>) {
        let was_unavailable = self.is_unavailable.swap(why.is_some(), Ordering::SeqCst);
        match why {
            Some(why) => {
                if !was_unavailable {
                    tracing::warn!(event = "audit_engine_away", reason = why);
                }
                self.ready.missing(ENGINE, why);
            }
            None if was_unavailable => {
                tracing::info!(event = "audit_engine_back");
                self.ready.present(ENGINE);
            }
            None => {}
        }
    }

    /// Has every signature and change refused until a restart; verification goes on. Only the first reason is kept.
    pub fn fail(&self, fault: Fault, reason: &str) {
        match fault {
            Fault::Failure => self.io_errors.inc(),
            Fault::Tampering => self.integrity_failed.inc(),
            Fault::Newer | Fault::Unavailable => {}
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
