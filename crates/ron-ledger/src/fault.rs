//! What the offline check finds wrong.

use crate::replay::ReplayError;

/// The first fault found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("entry {seq}: {why}")]
    Entry { seq: u64, why: String },
    /// The log as a whole.
    #[error("{0}")]
    Whole(String),
}

impl From<ReplayError> for Fault {
    fn from(ReplayError { seq, why }: ReplayError) -> Self {
        Self::Entry { seq, why }
    }
}
