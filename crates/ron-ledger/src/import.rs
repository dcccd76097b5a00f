//! Brings entries of another system into a ledger that is stopped: each once, by its key, however often an import is
//! repeated. Entries are decided before they are written, so that one that would be refused uses no
//! key: it is corrected, and the import repeated.

use std::io;

use ron_proto::Timestamp;
use ron_proto::ledger::RefusalCode;
use ron_tlog::ReadError;

use crate::core::{Op, Outcome, Step, Verdict};
use crate::engine::{Atomicity, CommitError, Engine, Request, read_entry};

/// Why entries were not imported; none of those given was.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The ledger would refuse the entry at this place of those given.
    #[error("the ledger would refuse it: {}", .code.meaning())]
    Refused { index: usize, code: RefusalCode },
    /// Its key belongs to another entry.
    #[error("its id is that of entry {seq}, which says something else")]
    Differs { index: usize, seq: u64 },
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("the ledger's log cannot be read: {0}")]
    Read(#[from] ReadError),
    #[error("the ledger's keys cannot be read: {0}")]
    Keys(#[from] io::Error),
}

impl ImportError {
    /// The place of the entry at fault among those given.
    pub const fn index(&self) -> Option<usize> {
        match self {
            Self::Refused { index, .. } | Self::Differs { index, .. } => Some(*index),
            Self::Commit(_) | Self::Read(_) | Self::Keys(_) => None,
        }
    }
}

/// How many of the entries given are new, and how many were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub new: u64,
    pub known: u64,
}

/// Imports entries in their order, with one flush. The operator's limits do not apply.
pub fn import(engine: &mut Engine, now: Timestamp, ops: &[Op]) -> Result<Imported, ImportError> {
    let shared = engine.shared();
    let keys: Vec<_> = ops.iter().map(Op::key).collect();
    let priors = shared.keys().resolve(&keys)?;
    let outcomes: Vec<Outcome> = shared.state(|state| {
        let mut step = Step::new(state, now);
        let decide = |(op, prior): (&Op, &Option<u64>)| step.entry(op, *prior);
        ops.iter().zip(&priors).map(decide).collect()
    });
    let mut new = Vec::with_capacity(ops.len());
    for (index, (op, outcome)) in ops.iter().zip(outcomes).enumerate() {
        match outcome {
            Outcome::Fresh {
                verdict: Verdict::Done(_),
                ..
            } => new.push(op.clone()),
            Outcome::Fresh {
                verdict: Verdict::Refused(why),
                ..
            }
            | Outcome::Rejected(why) => {
                let code = (&why).into();
                return Err(ImportError::Refused { index, code });
            }
            Outcome::Known { seq } => {
                // The same id twice among those given has no entry yet to compare with.
                let same = seq <= shared.head() && {
                    let (first, _) = read_entry(shared.reader(), seq)?;
                    first.verdict.is_done() && op.repeats(&first.op)
                };
                if !same {
                    return Err(ImportError::Differs { index, seq });
                }
            }
            Outcome::Mixed => unreachable!("entries are given one by one"),
        }
    }
    let imported = Imported {
        new: new.len() as u64,
        known: (ops.len() - new.len()) as u64,
    };
    if !new.is_empty() {
        let request = Request {
            ops: new,
            atomicity: Atomicity::Independent,
        };
        engine.commit(now, &[request])?;
    }
    Ok(imported)
}
