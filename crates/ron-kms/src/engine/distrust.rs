//! Why the audit log cannot be trusted or used at a start.

use ron_tlog::append::OpenError;

use crate::audit::health::Fault;

/// Why the log cannot be trusted or used.
#[derive(Debug)]
pub struct Distrust {
    pub fault: Fault,
    pub why: String,
}

pub fn tampered(why: impl Into<String>) -> Distrust {
    Distrust {
        fault: Fault::Tampering,
        why: why.into(),
    }
}

pub fn failure(why: impl Into<String>) -> Distrust {
    Distrust {
        fault: Fault::Failure,
        why: why.into(),
    }
}

pub fn of_open(error: &OpenError) -> Distrust {
    let fault = match error {
        OpenError::Damaged { .. } | OpenError::Checkpoint(_) | OpenError::Origin { .. } => {
            Fault::Tampering
        }
        OpenError::NewerFormat { .. } => Fault::Newer,
        _ => Fault::Failure,
    };
    Distrust {
        fault,
        why: format!("the audit log cannot be opened: {error}"),
    }
}
