//! Checks of entries and keys from outside, before they are queued.

use ron_kernel::Random;
use ron_proto::ledger::{Entry, LEDGER_PRINCIPAL, RequestKey};

use crate::core::{BadEntry, Body, Kind, Op};
use crate::engine::Atomicity;
use crate::salts;

/// A malformed entry and its place in the request; nothing was done.
pub struct BadRequest {
    pub index: usize,
    pub bad: BadEntry,
}

/// Checks entries from outside and turns them into operations.
pub fn ops_of(
    entries: Vec<Entry>,
    atomicity: Atomicity,
    random: &dyn Random,
) -> Result<Vec<Op>, BadRequest> {
    let bound = atomicity != Atomicity::Independent;
    let bad = |index, field, why| BadRequest {
        index,
        bad: BadEntry { field, why },
    };
    let mut ops = Vec::with_capacity(entries.len());
    // Drawn and hashed here, on the caller's thread: the writer has less to do for each entry.
    let salts = salts::many(random, entries.len());
    for (index, (entry, salts)) in entries.into_iter().zip(&salts).enumerate() {
        let op = Op::new(entry, salts).map_err(|bad| BadRequest { index, bad })?;
        if is_own(&op) {
            return Err(bad(
                index,
                "kind",
                "only the ledger itself writes such entries",
            ));
        }
        if let Some(debit) = op.entry().body.debit()
            && debit.up_to.is_some()
            && !debit.amount.is_zero()
        {
            let why = "must be 0 with up_to: the ledger finds what is available";
            return Err(bad(index, "amount_minor", why));
        }
        check_hold(&op, &ops, atomicity).map_err(|bad| BadRequest { index, bad })?;
        let first = ops.first().unwrap_or(&op);
        if bound && op.key().is_none() && !(atomicity == Atomicity::Linked && opens(first, &op)) {
            return Err(bad(
                index,
                "kind",
                "settlement entries stand in commits that are neither linked nor a batch; only the epoch_open \
                 entries of one epoch are linked, one for each of its assets",
            ));
        }
        if bound && op.key().is_some() && first.key().is_none() {
            let why = "stands in no linked commit that opens an epoch";
            return Err(bad(index, "kind", why));
        }
        ops.push(op);
    }
    if bound {
        let mut keys: Vec<_> = ops
            .iter()
            .enumerate()
            .filter_map(|(i, op)| op.key().map(|k| (k, i)))
            .collect();
        keys.sort_unstable();
        if let Some(w) = keys.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(bad(w[1].1, "key", "is there twice in one commit"));
        }
    }
    Ok(ops)
}

/// True when both open the same epoch under the same manifest.
fn opens(first: &Op, op: &Op) -> bool {
    match (&first.entry().body, &op.entry().body) {
        (Body::EpochOpen(a), Body::EpochOpen(b)) => {
            let (tenant, other) = (&first.entry().header.tenant, &op.entry().header.tenant);
            (tenant, &a.epoch, a.commitment) == (other, &b.epoch, b.commitment)
        }
        _ => false,
    }
}

/// Checks that a hold that is named `#i` is one that an earlier entry of a linked commit makes.
fn check_hold(op: &Op, earlier: &[Op], atomicity: Atomicity) -> Result<(), BadEntry> {
    let Some(at) = op.hold_item() else {
        return Ok(());
    };
    let bad = |why| {
        let field = "hold";
        Err(BadEntry { field, why })
    };
    if atomicity != Atomicity::Linked {
        return bad("#i stands in linked commits only; name the hold by its id");
    }
    match earlier.get(at) {
        Some(other) if other.kind() == Kind::Hold => Ok(()),
        Some(_) => bad("#i must be the number of an entry that makes a hold"),
        None => bad("#i must be the number of an earlier entry of the commit"),
    }
}

/// Checks a key from outside and turns it into the operation that resolves it.
pub fn resolution_of(key: RequestKey, random: &dyn Random) -> Result<Op, BadRequest> {
    let op = Op::abandon(key, &salts::one(random));
    if is_of_ledger(&op) {
        let (field, why) = (
            "principal",
            "only the ledger itself writes keys of this name",
        );
        let bad = BadEntry { field, why };
        return Err(BadRequest { index: 0, bad });
    }
    Ok(op)
}

/// True for entries that only the ledger itself may make.
fn is_own(op: &Op) -> bool {
    matches!(op.kind(), Kind::Expire | Kind::Abandon) || is_of_ledger(op)
}

/// True for entries under the name that is reserved for the ledger.
fn is_of_ledger(op: &Op) -> bool {
    op.entry().header.principal.as_str() == LEDGER_PRINCIPAL
}
