//! What is checked of an entry without state.

use ron_proto::Amount;
use ron_proto::ledger::MAX_WIRE_INTEGER;

/// Why an entry is malformed. This is not a refusal: it is answered at once and leaves no leaf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadEntry {
    pub field: &'static str,
    pub why: &'static str,
}

pub(super) const fn bad(field: &'static str, why: &'static str) -> Result<(), BadEntry> {
    Err(BadEntry { field, why })
}

pub(super) fn positive(amount: Amount) -> Result<(), BadEntry> {
    match amount.0 {
        0 => bad("amount_minor", "must be above zero"),
        _ => Ok(()),
    }
}

pub(super) fn count(field: &'static str, n: u64, min: u64) -> Result<(), BadEntry> {
    match n {
        n if n < min => bad(field, "counts from 1"),
        n if n > MAX_WIRE_INTEGER => bad(field, "must be below 2^53"),
        _ => Ok(()),
    }
}
