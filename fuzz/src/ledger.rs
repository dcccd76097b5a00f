//! Sequences of ledger operations from bytes, decided by the core and by the reference model at
//! once: they must agree on every outcome and on every balance, and the leaves alone must rebuild
//! the same state. The model has no operator limits; an operation refused by a limit, and no other,
//! would have been accepted by the model.

use std::collections::BTreeMap;

use ron_ledger::core::{
    Body, KeyHash, Leaf, Limit, Limits, Op, Outcome, PublicLeaf, Record, Refusal, Salts, State,
    Step, Verdict,
};
use ron_ledger::replay::Replay;
use ron_proto::Timestamp;
use ron_proto::ledger::{Entry, HoldRef, RefusalCode, TxId};

// The ledger's own tests use the rest of both.
#[allow(dead_code)]
#[path = "../../crates/ron-ledger/src/core/tests/draw.rs"]
mod draw;
#[allow(dead_code)]
#[path = "../../crates/ron-ledger/src/core/tests/model.rs"]
mod model;

use draw::{Draw, Maker, name_own_holds, opening};
use model::{Expected, HeldMoney, Model, with_ids};

/// The same for all entries: what is checked does not depend on them.
fn salts() -> Salts {
    Salts::new([[7; 16]; 5])
}

/// Bytes of one operation.
const WIDE: usize = 5;
const DAY: u64 = 86_400_000;

#[derive(Default)]
struct Run {
    state: State,
    model: Model,
    keys: BTreeMap<KeyHash, u64>,
    records: Vec<Record>,
    now: u64,
    limits: Limits,
}

/// Tries one input: as operations, as a leaf and as an image.
pub fn run(data: &[u8]) {
    operations(data);
    // The first byte says where the leaf ends and its private record begins.
    if let [at, rest @ ..] = data {
        let (public, private) = rest.split_at(rest.len().min(usize::from(*at)));
        if let Ok(leaf) = Leaf::decode(public, private) {
            assert_eq!(
                PublicLeaf::decode(public).map(|read| read.txid()),
                Ok(leaf.txid())
            );
            let _ = leaf.op.check_private();
        }
    }
    let _ = State::from_image(data);
}

/// Runs the operations encoded in `data`.
fn operations(data: &[u8]) {
    let mut run = Run {
        now: 20_000 * DAY,
        ..Run::default()
    };
    let mut rest = data;
    while rest.len() >= WIDE {
        // The first byte of a group: number of operations, whether they are atomic, how much later;
        // with an odd pause also the limits.
        let head = rest[0];
        if head & 8 != 0 {
            run.limits = tight(rest.get(1).copied().unwrap_or(0));
        }
        let count = usize::from(head & 3) + 1;
        run.now += u64::from(head >> 3) * u64::from(head >> 3) * 4_000;
        let take = rest.len().min(1 + count * WIDE);
        let (group, later) = rest.split_at(take);
        rest = later;
        run.expire();
        let entries = group[1..].chunks_exact(WIDE);
        let mut entries: Vec<Entry> = entries.filter_map(|b| run.entry(b)).collect();
        let linked = head & 4 != 0 && entries.len() > 1;
        if linked {
            match opening(&entries) {
                Some(all) => entries = all,
                None => name_own_holds(&mut entries),
            }
        }
        let ops: Vec<Op> = entries
            .into_iter()
            .map(|e| Op::new(e, &salts()).expect("entries are made well-formed"))
            .collect();
        if linked {
            run.linked(&ops);
        } else {
            for op in &ops {
                run.single(op);
            }
        }
        run.compare();
    }
    run.replay();
}

impl Run {
    /// The limits that the entry would exceed in the current state.
    fn over(&self, op: &Op) -> [bool; 2] {
        let operands = Entry::from(op).operands();
        let amount = operands.amount_minor.map_or(0, |n| n.0);
        // The limits bind what credits an account or names a new one, but not settlement.
        let debit = op.entry().body.debit();
        let names = operands.amount_minor.is_none() && debit.is_none();
        let named = operands.from.filter(|_| names);
        let Some(to) = operands.to.or(named).filter(|_| !op.kind().is_settlement()) else {
            return [false; 2];
        };
        // Without an amount, all that is left or available is asked for.
        let amount = match &op.entry().body {
            Body::Capture {
                hold, amount: None, ..
            } => self.hold(*hold).map_or(0, |h| h.1),
            Body::Reverse {
                tx, amount: None, ..
            } => self.model.moved.get(tx).map_or(0, |m| m.3),
            _ => match debit.filter(|debit| debit.up_to.is_some()) {
                Some(all) => self.model.free(all.from.as_str(), all.asset.as_str()),
                None => amount,
            },
        };
        let mut asset = operands.asset.map(|a| a.to_string()).unwrap_or_default();
        // Nor does a reversal for the account that is debited.
        if let Body::Reverse {
            original: Some(found),
            ..
        } = &op.entry().body
            && found.from == found.to
        {
            asset.clear();
        }
        // A capture for the account that holds the money does not move it.
        if let Body::Capture { hold, .. } = &op.entry().body
            && let Some(((from, held), ..)) = self.hold(*hold)
            && from != to.as_str()
        {
            asset.clone_from(held);
        }
        let there = self.state.account_count() as u64;
        let new = self.state.account(&to).is_none();
        // Below zero a balance counts as zero.
        let total = match self.model.has(to.as_str(), &asset) {
            (credits, debits) if credits >= debits => (credits - debits).checked_add(amount),
            (credits, debits) => Some(amount.saturating_sub(debits - credits)),
        };
        let most = self.limits.account_total;
        [
            new && there >= u64::from(self.limits.accounts),
            !asset.is_empty() && total.is_none_or(|n| n > most),
        ]
    }

    fn hold(&self, hold: HoldRef) -> Option<&HeldMoney> {
        self.model.holds.get(&hold.id()?)
    }

    /// An operation from five bytes: kind, key, accounts, amount and nonce, pick.
    fn entry(&self, b: &[u8]) -> Option<Entry> {
        let draw = Draw {
            kind: b[0] % Draw::KINDS,
            key: b[1],
            from: b[2] & 3,
            to: b[2] >> 2 & 3,
            asset: b[2] >> 4 & 1,
            amount: match b[3] >> 5 {
                7 => u128::MAX,
                6 => u128::MAX / 2 + 1,
                _ => u128::from(b[3] & 31) + 1,
            },
            nonce: [0, 0, 0, 2, 2, 2, 1, -1][usize::from(b[4] & 7)],
            ceiling: (b[2] & 32 != 0).then_some(60),
            pick: b[4],
        };
        Maker::new(&self.model, self.now).entry(&draw)
    }

    fn prior(&self, op: &Op) -> Option<u64> {
        op.key().and_then(|k| self.keys.get(&k).copied())
    }

    fn step<R>(&mut self, decide: impl FnOnce(&mut Step<'_>) -> R) -> R {
        let mut step = Step::new(&self.state, Timestamp(self.now));
        step.set_limits(self.limits);
        let said = decide(&mut step);
        let batch = step.finish().expect("the invariants hold");
        self.keys.extend(batch.delta.keys().iter().copied());
        if !batch.records.is_empty() {
            let (last, ts) = (batch.last_seq(), batch.ts);
            self.records.extend(batch.records);
            self.state.apply(batch.delta, last, ts);
        }
        said
    }

    fn expire(&mut self) {
        let ended = self.step(|step| step.expire_due(&mut salts));
        let due: Vec<TxId> = self
            .model
            .holds
            .iter()
            .filter(|(_, h)| h.2 <= self.now)
            .map(|(id, _)| *id)
            .collect();
        assert_eq!(ended, due.len(), "holds that are due");
        for hold in due {
            let said = self.model.run(&Entry::Expire { hold }, hold, self.now);
            assert_eq!(said, Ok(()));
        }
    }

    fn single(&mut self, op: &Op) {
        let prior = self.prior(op);
        let id = op.txid(self.state.seq() + 1);
        let over = self.over(op);
        let outcome = self.step(|step| step.entry(op, prior));
        if prior.is_some() {
            assert!(matches!(outcome, Outcome::Known { .. }), "{outcome:?}");
            return;
        }
        if let Outcome::Fresh {
            verdict: Verdict::Refused(Refusal::Limit(limit)),
            ..
        } = &outcome
        {
            let at = match limit {
                Limit::Accounts(_) => 0,
                Limit::AccountTotal(_) => 1,
                Limit::RegisteredAssets => unreachable!("these ledgers are not strict"),
            };
            assert!(
                over[at] && Limits::only(*limit) != Limits::default(),
                "{:?}",
                op.entry()
            );
            // Limits come before the turnover of the asset, which may be too large too.
            let said = self.model.clone().run(&op.into(), id, self.now);
            assert!(
                matches!(said, Ok(()) | Err(RefusalCode::AmountOverflow)),
                "{said:?}"
            );
            return;
        }
        let alone = std::iter::once((op.into(), id));
        let said = self.model.commit(alone, self.now).map(|said| said[0]);
        let refused = said.is_some_and(|said| said.is_err());
        assert!(refused || over == [false; 2], "{:?}", op.entry());
        match outcome {
            // Found by its epoch or index: the model changes nothing either.
            Outcome::Known { .. } => assert_eq!(said, None, "{:?}", op.entry()),
            fresh => assert_eq!(
                model_result(&fresh),
                Some(said.expect("new to the model")),
                "{:?}",
                op.entry()
            ),
        }
    }

    fn linked(&mut self, ops: &[Op]) {
        let mut keys: Vec<_> = ops.iter().filter_map(Op::key).collect();
        keys.sort_unstable();
        keys.dedup();
        // Of the settlement entries, which have no key, only openings of one epoch occur in such a commit.
        let opens = |op: &Op| matches!(Entry::from(op), Entry::EpochOpen { .. });
        if keys.len() != ops.len() && !ops.iter().all(opens) {
            return;
        }
        let priors: Vec<_> = ops.iter().map(|op| self.prior(op)).collect();
        let first = self.state.seq() + 1;
        let limits = std::mem::take(&mut self.limits);
        let outcomes = self.step(|step| step.linked(ops, &priors));
        self.limits = limits;
        if priors.iter().any(Option::is_some) {
            assert!(outcomes.iter().all(|o| model_result(o).is_none()));
            return;
        }
        let before = self.model.clone();
        let id = |i: usize| ops[i].txid(first + i as u64);
        let entries = ops.iter().map(|op| with_ids(op.into(), id));
        let entries = entries.enumerate().map(|(i, entry)| (entry, id(i)));
        let Some(said) = self.model.commit(entries, self.now) else {
            assert!(outcomes.iter().all(|o| model_result(o).is_none()));
            return;
        };
        let bad = said.iter().position(Result::is_err);
        if bad.is_some() {
            self.model = before;
        }
        for (i, outcome) in outcomes.iter().enumerate() {
            let want = match bad {
                Some(at) if at != i => Err(RefusalCode::LinkedFailed),
                _ => said[i],
            };
            assert_eq!(model_result(outcome), Some(want), "{:?}", ops[i].entry());
        }
    }

    fn compare(&self) {
        self.state.audit().expect("the rows add up");
        for row in self.state.accounts() {
            let nonce = self.model.nonce.get(row.name.as_str());
            assert_eq!(row.nonce, nonce.copied().unwrap_or(0), "{}", row.name);
            for b in &row.balances {
                let asset = self.state.asset(b.asset).expect("its row").name.to_string();
                let name = row.name.as_str();
                assert_eq!((b.credits, b.debits), self.model.has(name, &asset));
                let available = b.available(row.limits(b.asset).credit);
                assert_eq!(available, self.model.free(name, &asset));
            }
        }
        assert_eq!(self.state.hold_count(), self.model.holds.len());
    }

    fn replay(&self) {
        let mut replay = Replay::new();
        for (i, r) in self.records.iter().enumerate() {
            replay
                .leaf(i as u64 + 1, &r.leaf, &r.private)
                .expect("its own leaf");
        }
        let (state, keys) = replay.finish().expect("its own leaves");
        assert_eq!(
            (image(&state), keys.len()),
            (image(&self.state), self.keys.len())
        );
        let back = State::from_image(&image(&state)).expect("its own image");
        assert_eq!(image(&back), image(&state));
    }
}

/// Limits that take effect, or none.
fn tight(b: u8) -> Limits {
    let none = Limits::default();
    let (accounts, account_total) = (u32::from(b >> 2 & 7), u128::from(b >> 2));
    match b & 3 {
        0 => none,
        1 => Limits { accounts, ..none },
        2 => Limits {
            account_total,
            ..none
        },
        _ => Limits {
            accounts,
            account_total,
            ..none
        },
    }
}

/// `None` for outcomes that change nothing and have no leaf.
fn model_result(outcome: &Outcome) -> Option<Expected> {
    match outcome {
        Outcome::Fresh {
            verdict: Verdict::Done(_),
            ..
        } => Some(Ok(())),
        Outcome::Fresh { verdict, .. } => verdict.refusal().map(|why| Err(why.into())),
        Outcome::Rejected(why) => Some(Err(why.into())),
        Outcome::Known { .. } | Outcome::Mixed => None,
    }
}

fn image(state: &State) -> Vec<u8> {
    let mut out = Vec::new();
    let put = |b: &[u8]| {
        out.extend_from_slice(b);
        Ok::<(), ()>(())
    };
    state.freeze().encode(put).expect("memory takes it");
    out
}

#[cfg(test)]
mod tests {
    /// A test of the harness itself: it accepts any bytes, and the two agree.
    #[test]
    fn any_bytes_are_operations() {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        for round in 0..400_usize {
            let byte = |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            };
            let data: Vec<u8> = (0..round * 3).map(byte).collect();
            super::run(&data);
        }
    }
}
