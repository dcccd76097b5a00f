//! Entries made from drawn numbers, for the property tests and the fuzzer.

use std::collections::BTreeMap;

use ron_proto::ledger::{
    AccountTerms, AssetLimits, AssetTerms, BatchTag, BudgetId, Details, Entry, HoldRef, Original,
    Sides, TokenBudget, TxId,
};
use ron_proto::{Account, Amount, Asset, ContentId, Timestamp};

use super::model::Model;

/// A recipe for one entry; `nonce` is relative to what the account has when the entry is made, and 2
/// makes a debit without a nonce.
#[derive(Clone, Debug, Default)]
pub(super) struct Draw {
    pub(super) kind: u8,
    pub(super) key: u8,
    pub(super) from: u8,
    pub(super) to: u8,
    pub(super) asset: u8,
    pub(super) amount: u128,
    pub(super) nonce: i8,
    pub(super) ceiling: Option<u128>,
    pub(super) pick: u8,
}

impl Draw {
    /// The values of `kind` are below this.
    pub(super) const KINDS: u8 = 19;
}

/// What is said about an entry; no rule depends on it. Each member is there in half of the draws.
fn details(pick: u8) -> (Details, Option<BatchTag>) {
    let has = |bit: u8| pick & bit != 0;
    let members = (0..pick % 3).map(|n| (format!("m{n}"), format!("v{pick}")));
    let metadata: BTreeMap<String, String> = members.collect();
    let details = Details {
        memo: has(1).then(|| format!("memo {pick}").parse().unwrap()),
        reference: has(2).then(|| format!("order {pick}").parse().unwrap()),
        metadata: has(4).then(|| metadata.try_into().unwrap()),
        effective_at: has(8).then_some(Timestamp(u64::from(pick))),
        share_reference: has(16),
    };
    let batch = has(32).then_some(BatchTag {
        items: u32::from(pick) + 1,
        digest: [pick; 16],
    });
    (details, batch)
}

/// Any sides but none.
const fn sides(pick: u8) -> Sides {
    match pick % 4 {
        0 => Sides::Both,
        1 => Sides::Credits,
        _ => Sides::Debits,
    }
}

/// What is set for an account; `None` for a draw that sets nothing. Credit limits are small, so that
/// they are reached.
fn account_terms(d: &Draw, asset: Asset) -> Option<AccountTerms> {
    let has = |n: u8| d.pick.is_multiple_of(n);
    let small = Amount(d.amount.min(60));
    let terms = AccountTerms {
        closed: d.key.is_multiple_of(4).then_some(d.pick < 100),
        frozen: has(5).then_some(Sides::ALL[usize::from(d.key % 4)]),
        require_nonce: has(7).then_some(d.pick < 128),
        class: has(3).then(|| ["", "shop", "user"][usize::from(d.to % 3)].parse().unwrap()),
        limits: has(2).then_some(AssetLimits {
            asset,
            credit_limit_minor: small,
            max_balance_minor: d.ceiling.map(Amount),
        }),
    };
    Some(terms).filter(|terms| *terms != AccountTerms::default())
}

/// Makes about half of the captures and releases of a linked commit name the last hold that an earlier entry makes.
pub(super) fn name_own_holds(entries: &mut [Entry]) {
    let mut made = None;
    for (i, entry) in entries.iter_mut().enumerate() {
        let key = entry.request_key().map(|owned| owned.key.to_string());
        let odd = key.is_some_and(|key| key.bytes().last().is_some_and(|digit| digit % 2 == 1));
        match (entry, made) {
            (Entry::Hold { .. }, _) => made = Some(i as u32),
            (Entry::Capture { hold, .. } | Entry::Release { hold, .. }, Some(made)) if odd => {
                *hold = HoldRef::Item(made);
            }
            _ => {}
        }
    }
}

/// The opening of an epoch with several assets, for a linked commit whose first entry opens one: that entry, one for the other
/// asset, and what else opens an epoch in the commit, made to open the same one.
pub(super) fn opening(entries: &[Entry]) -> Option<Vec<Entry>> {
    let first = entries.first()?;
    let Entry::EpochOpen { asset, .. } = first else {
        return None;
    };
    let of_first = |of: &Asset, to: u64, n: u128| {
        let mut made = first.clone();
        if let Entry::EpochOpen {
            asset,
            recipients,
            amount_minor,
            ..
        } = &mut made
        {
            (*asset, *recipients, *amount_minor) = (of.clone(), to, Amount(n));
        }
        made
    };
    let other = if asset.as_str() == "as0" {
        "as1"
    } else {
        "as0"
    };
    let size = entries.len() as u64;
    let sibling = of_first(&other.parse().unwrap(), size.min(2), size.into());
    let further = entries[1..].iter().filter_map(|e| match e {
        Entry::EpochOpen {
            asset,
            recipients,
            amount_minor,
            ..
        } => Some(of_first(asset, *recipients, amount_minor.0)),
        _ => None,
    });
    let both = [first.clone(), sibling];
    Some(both.into_iter().chain(further).collect())
}

/// The inputs of generated entries: the current nonces and holds.
pub(super) struct Maker<'a> {
    model: &'a Model,
    pub(super) holds: Vec<TxId>,
    ts: u64,
}

impl<'a> Maker<'a> {
    pub(super) fn new(model: &'a Model, ts: u64) -> Self {
        Self {
            model,
            holds: model.holds.keys().copied().collect(),
            ts,
        }
    }

    /// `None` for the draws that are no well-formed entry.
    pub(super) fn entry(&self, d: &Draw) -> Option<Entry> {
        // Every account may fund an epoch.
        let account = |n: u8| format!("pool:t/{n}").parse::<Account>().unwrap();
        let (principal, key) = ("p".parse().unwrap(), format!("k{}", d.key).parse().unwrap());
        let (from, to, asset) = (
            account(d.from),
            account(d.to),
            // The last one is another spelling of the first.
            ["as0", "as1", "AS0"][usize::from(d.asset)].parse().unwrap(),
        );
        let amount_minor = Amount(d.amount);
        let last = self.model.nonce.get(from.as_str()).copied().unwrap_or(0);
        let nonce = (last + 1)
            .checked_add_signed(i64::from(d.nonce))
            .filter(|n| *n > 0)?;
        let (details, batch) = details(d.pick);
        let daily_ceiling = d.ceiling.map(Amount);
        let nonce = (d.nonce != 2).then_some(nonce);
        // A seventh of the debits is of all that is available.
        let up_to = d.pick.is_multiple_of(7).then_some(amount_minor);
        let debited = up_to.map_or(amount_minor, |_| Amount::ZERO);
        let budget = |most| TokenBudget {
            id: BudgetId::derive(["one", "two"][usize::from(d.key % 2)]),
            total: (!d.pick.is_multiple_of(3)).then_some(Amount(2 * most)),
            daily: (d.pick % 3 != 1).then_some(Amount(most)),
            until: Timestamp::MAX,
        };
        let budgets: Vec<_> = d.ceiling.into_iter().map(budget).collect();
        let hold = self
            .holds
            .get(usize::from(d.pick) % self.holds.len().max(1))
            .copied()
            .unwrap_or(TxId(u128::from(d.pick)));
        // Two tenants whose principals and keys read alike; the first owns the epochs.
        let tenant = if d.pick < 128 || matches!(d.kind, 12..15 | 17) {
            "t"
        } else {
            "u"
        };
        let tenant = tenant.parse().unwrap();
        let epoch = format!("e{}", d.pick % 3).parse().unwrap();
        let commitment = ContentId([d.pick % 5 / 4; 32]);
        let source = ContentId([d.key % 3; 32]);
        let adjusts = format!("e{}", d.to).parse().unwrap();
        let adjusts = Some(adjusts).filter(|named| d.from < 2 && *named != epoch);
        Some(match d.kind {
            0..=2 => Entry::Issue {
                tenant,
                principal,
                key,
                to,
                asset,
                amount_minor,
                details,
                batch,
                budgets,
            },
            3..=5 if from == to => return None,
            3..=5 => Entry::Transfer {
                tenant,
                principal,
                key,
                from,
                to,
                asset,
                amount_minor: debited,
                up_to,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            },
            6 => Entry::Burn {
                tenant,
                principal,
                key,
                from,
                asset,
                amount_minor: debited,
                up_to,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            },
            7 => {
                let expires_at = Timestamp(self.ts + u64::from(d.pick) * 40 - 1_000);
                Entry::Hold {
                    tenant,
                    principal,
                    key,
                    from,
                    asset,
                    amount_minor: debited,
                    up_to,
                    nonce,
                    expires_at,
                    details,
                    batch,
                    daily_ceiling,
                    budgets,
                }
            }
            8 => Entry::Capture {
                tenant,
                principal,
                key,
                hold: hold.into(),
                to,
                amount_minor: (d.nonce != 1).then_some(amount_minor),
                ends_hold: d.nonce == 2,
                details,
                batch,
                budgets,
            },
            9 => Entry::Release {
                tenant,
                principal,
                key,
                hold: hold.into(),
                details,
                batch,
            },
            10 if d.pick.is_multiple_of(3) => Entry::Freeze {
                tenant,
                principal,
                key,
                account: from,
                sides: sides(d.pick),
                details,
            },
            10 => Entry::Unfreeze {
                tenant,
                principal,
                key,
                account: from,
                sides: sides(d.pick),
                details,
            },
            15 => Entry::Account {
                tenant,
                principal,
                key,
                account: from,
                terms: account_terms(d, asset)?,
                details,
            },
            16 => Entry::Asset {
                tenant,
                principal,
                key,
                asset,
                terms: AssetTerms {
                    scale: d.pick % 3,
                    title: d
                        .ceiling
                        .map(|_| format!("title {}", d.pick).parse().unwrap()),
                },
                details,
            },
            11 => Entry::Abandon {
                tenant,
                principal,
                key,
            },
            12 => Entry::EpochOpen {
                principal,
                tenant,
                epoch,
                from,
                asset,
                amount_minor: Amount(d.amount.min(9)),
                commitment,
                sum_root: commitment,
                recipients: 2.min(d.amount.min(9) as u64),
                source,
                adjusts,
            },
            13 => {
                let assets = self.model.epochs.get(epoch.as_str());
                let mut assets = assets.into_iter().flatten();
                let index = assets
                    .find(|it| it.0["asset"] == asset.as_str())
                    .map_or(0, |it| it.1)
                    .saturating_add_signed(i64::from(d.nonce));
                Entry::Payout {
                    principal,
                    tenant,
                    epoch,
                    index,
                    to,
                    asset,
                    amount_minor,
                }
            }
            14 => Entry::EpochClose {
                principal,
                tenant,
                epoch,
                commitment,
                asset: Some(asset).filter(|_| d.nonce == 0),
            },
            17 => Entry::EpochVoid {
                principal,
                tenant,
                epoch,
                commitment,
            },
            _ => {
                let at = usize::from(d.pick) % self.model.moved.len().max(1);
                let found = self.model.moved.iter().nth(at);
                // As the ledger finds it in its log: what the entry moved at first.
                let original = found.map(|(_, ((to, asset), from, n, _))| Original {
                    from: from.parse().unwrap(),
                    to: to.parse().unwrap(),
                    asset: asset.parse().unwrap(),
                    amount_minor: Amount(*n),
                });
                Entry::Reverse {
                    tenant,
                    principal,
                    key,
                    tx: found.map_or(TxId(u128::from(d.pick)), |(id, _)| *id),
                    amount_minor: (d.nonce != 1).then_some(amount_minor),
                    original,
                    details,
                    batch,
                    daily_ceiling,
                    budgets,
                }
            }
        })
    }
}
