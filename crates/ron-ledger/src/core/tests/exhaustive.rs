//! Every order of four operations over three accounts, with fresh and repeated keys: each step
//! agrees with the model.
//!
//! The full run is long (`RON_LEDGER_EXHAUSTIVE=1`); otherwise an even sample of the first pairs is
//! followed to the end.

use std::collections::BTreeSet;

use ron_proto::ledger::{
    AccountTerms, AssetLimits, BudgetId, Details, Entry, Original, Sides, TokenBudget, TxId,
};
use ron_proto::{Amount, ContentId, Timestamp};

use super::model::Model;
use super::{Book, DAY, Op, compare, expect, image, said_of, salts};
use crate::core::State;
use crate::engine::Atomicity;

const NOW: u64 = 20_000 * DAY;
/// Any of them may fund the epoch.
const NAMES: [&str; 3] = ["pool:t/a", "pool:t/b", "pool:t/c"];
/// One in this many first pairs is followed in the short run; prime, so that the sample visits
/// every operation.
const SAMPLE: usize = 151;

/// An operation, independent of the state that it meets.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Issue(usize),
    Transfer(usize, usize),
    /// A debit with the nonce after the next one.
    Skip(usize),
    /// A debit without a nonce.
    Keyed(usize),
    Burn(usize),
    Hold(usize),
    Capture(usize),
    Release,
    Finish(usize),
    /// Reverses the last transfer, capture or payout.
    Reverse,
    Freeze(usize),
    Unfreeze(usize),
    /// Lets an account be overdrawn by 8.
    Credit(usize),
    End(usize),
    Abandon,
    Open(usize),
    Payout(usize),
    Close,
    Void,
}

fn alphabet() -> Vec<Verb> {
    let mut all = vec![
        Verb::Release,
        Verb::Abandon,
        Verb::Close,
        Verb::Void,
        Verb::Reverse,
    ];
    for a in 0..3 {
        all.extend([
            Verb::Issue(a),
            Verb::Skip(a),
            Verb::Keyed(a),
            Verb::Burn(a),
            Verb::Hold(a),
            Verb::Capture(a),
            Verb::Finish(a),
            Verb::Freeze(a),
            Verb::Unfreeze(a),
            Verb::Credit(a),
            Verb::End(a),
            Verb::Open(a),
            Verb::Payout(a),
        ]);
        all.extend((0..3).filter(|b| *b != a).map(|b| Verb::Transfer(a, b)));
    }
    all
}

/// Amounts are chosen so that two debits of one account do not both fit.
fn entry(verb: Verb, key: &str, model: &Model) -> Entry {
    let name = |a: usize| NAMES[a].parse::<ron_proto::Account>().unwrap();
    let (principal, key) = ("p".parse().unwrap(), key.parse().unwrap());
    let asset = "ron".parse().unwrap();
    let next = |a: usize| model.nonce.get(NAMES[a]).copied().unwrap_or(0) + 1;
    let (details, batch, daily_ceiling) = (Details::default(), None, None);
    let budgets = vec![TokenBudget {
        id: BudgetId::derive("one"),
        total: None,
        daily: Some(Amount(15)),
        until: Timestamp::MAX,
    }];
    let newest = model.holds.keys().next_back().copied();
    let hold = newest.unwrap_or(TxId(1 << 64));
    let (tenant, epoch) = ("t".parse().unwrap(), "e".parse().unwrap());
    let commitment = ContentId([1; 32]);
    match verb {
        Verb::Issue(a) => Entry::Issue {
            tenant,
            principal,
            key,
            to: name(a),
            asset,
            amount_minor: Amount(10),
            details,
            batch,
            budgets: budgets.clone(),
        },
        Verb::Transfer(a, _) | Verb::Skip(a) | Verb::Keyed(a) => Entry::Transfer {
            tenant,
            principal,
            key,
            from: name(a),
            to: match verb {
                Verb::Transfer(_, b) => name(b),
                _ => name((a + 1) % 3),
            },
            asset,
            amount_minor: Amount(6),
            up_to: None,
            nonce: match verb {
                Verb::Keyed(..) => None,
                Verb::Skip(_) => Some(next(a) + 1),
                _ => Some(next(a)),
            },
            details,
            batch,
            daily_ceiling,
            budgets: Vec::new(),
        },
        Verb::Burn(a) => Entry::Burn {
            tenant,
            principal,
            key,
            from: name(a),
            asset,
            amount_minor: Amount(7),
            up_to: None,
            nonce: Some(next(a)),
            details,
            batch,
            daily_ceiling,
            budgets: Vec::new(),
        },
        Verb::Hold(a) => Entry::Hold {
            tenant,
            principal,
            key,
            from: name(a),
            asset,
            amount_minor: Amount(5),
            up_to: None,
            nonce: Some(next(a)),
            expires_at: Timestamp(NOW + DAY),
            details,
            batch,
            daily_ceiling,
            budgets: Vec::new(),
        },
        Verb::Capture(a) | Verb::Finish(a) => Entry::Capture {
            tenant,
            principal,
            key,
            hold: hold.into(),
            to: name(a),
            amount_minor: matches!(verb, Verb::Capture(_)).then_some(Amount(3)),
            ends_hold: matches!(verb, Verb::Finish(_)),
            details,
            batch,
            // Beside one issue of 10, one capture passes.
            budgets,
        },
        Verb::Reverse => {
            let found = model.moved.iter().next_back();
            Entry::Reverse {
                tenant,
                principal,
                key,
                tx: found.map_or(TxId(1 << 64), |(id, _)| *id),
                amount_minor: None,
                original: found.map(|(_, ((to, asset), from, n, _))| Original {
                    from: from.parse().unwrap(),
                    to: to.parse().unwrap(),
                    asset: asset.parse().unwrap(),
                    amount_minor: Amount(*n),
                }),
                details,
                batch,
                daily_ceiling,
                budgets,
            }
        }
        Verb::Release => Entry::Release {
            tenant,
            principal,
            key,
            hold: hold.into(),
            details,
            batch,
        },
        Verb::Freeze(a) => Entry::Freeze {
            tenant,
            principal,
            key,
            account: name(a),
            sides: Sides::Debits,
            details,
        },
        Verb::Unfreeze(a) => Entry::Unfreeze {
            tenant,
            principal,
            key,
            account: name(a),
            sides: Sides::Debits,
            details,
        },
        Verb::Credit(a) | Verb::End(a) => Entry::Account {
            tenant,
            principal,
            key,
            account: name(a),
            terms: AccountTerms {
                closed: matches!(verb, Verb::End(_)).then_some(true),
                limits: matches!(verb, Verb::Credit(_)).then_some(AssetLimits {
                    asset,
                    credit_limit_minor: Amount(8),
                    max_balance_minor: None,
                }),
                ..AccountTerms::default()
            },
            details,
        },
        Verb::Abandon => Entry::Abandon {
            tenant,
            principal,
            key,
        },
        Verb::Open(a) => Entry::EpochOpen {
            principal,
            tenant,
            epoch,
            from: name(a),
            asset,
            amount_minor: Amount(4),
            commitment,
            sum_root: commitment,
            recipients: 1,
            source: ContentId([2; 32]),
            adjusts: None,
        },
        Verb::Payout(a) => Entry::Payout {
            principal,
            tenant,
            epoch,
            index: 0,
            to: name(a),
            asset,
            amount_minor: Amount(4),
        },
        Verb::Close => Entry::EpochClose {
            principal,
            tenant,
            epoch,
            commitment,
            asset: None,
        },
        Verb::Void => Entry::EpochVoid {
            principal,
            tenant,
            epoch,
            commitment,
        },
    }
}

#[derive(Clone)]
struct World {
    book: Book,
    model: Model,
    used: BTreeSet<String>,
}

impl World {
    /// One operation in a batch of its own; core and model must give the same outcome and the same
    /// state.
    fn step(&mut self, verb: Verb, key: &str) {
        let op = Op::new(entry(verb, key, &self.model), &salts()).unwrap();
        let mut seq = self.book.state.seq() + 1;
        let ops = vec![op];
        let (model, used) = (&mut self.model, &mut self.used);
        let want = expect(
            model,
            used,
            &ops,
            Atomicity::Independent,
            &mut seq,
            (NOW, u32::MAX),
        );
        let got = self.book.commit(NOW, &[(ops, Atomicity::Independent)]);
        assert_eq!(said_of(&got[0][0]), want[0], "{verb:?} under {key}");
    }
}

struct Walk<'a> {
    verbs: &'a [Verb],
    pairs: usize,
    stride: usize,
    leaves: u64,
}

impl Walk<'_> {
    fn go(&mut self, world: &World, depth: usize) {
        if depth == 4 {
            self.leaves += 1;
            compare(&world.book.state, &world.model);
            if self.leaves.is_multiple_of(1_009) {
                let back = State::from_image(&image(&world.book.state)).unwrap();
                assert_eq!(image(&back), image(&world.book.state));
            }
            return;
        }
        for verb in self.verbs {
            // A fresh key, or the key of the first operation.
            for key in if depth == 0 { 0..1 } else { 0..2 } {
                if depth == 1 {
                    self.pairs += 1;
                    if !self.pairs.is_multiple_of(self.stride) {
                        continue;
                    }
                }
                let mut next = world.clone();
                let name = if key == 0 {
                    format!("k{depth}")
                } else {
                    "k0".to_owned()
                };
                next.step(*verb, &name);
                self.go(&next, depth + 1);
            }
        }
    }
}

#[test]
fn every_order_of_four_operations_agrees_with_the_model() {
    let all = std::env::var_os("RON_LEDGER_EXHAUSTIVE").is_some();
    let verbs = alphabet();
    let mut world = World {
        book: Book::default(),
        model: Model::default(),
        used: BTreeSet::new(),
    };
    world.step(Verb::Issue(0), "first");
    let mut walk = Walk {
        verbs: &verbs,
        pairs: 0,
        stride: if all { 1 } else { SAMPLE },
        leaves: 0,
    };
    walk.go(&world, 0);
    println!("{} orders of four", walk.leaves);
    let expected = 2 * verbs.len() * verbs.len() / walk.stride * (2 * verbs.len()).pow(2);
    assert_eq!(walk.leaves, expected as u64);
}
