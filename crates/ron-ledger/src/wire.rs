//! Converts entries between the core and the wire. Pure.
//!
//! The core decides and stores its own types, so a change of an API does not touch the bytes of the
//! log.

use ron_proto::Tenant;
use ron_proto::ledger::{self as wire, Details, RequestKey};

use crate::core::{
    Body, Budget, Debit, Entry, EpochClose, EpochOpen, Header, Op, Original, Payout,
};

fn from_wire(budgets: Vec<wire::TokenBudget>) -> Vec<Budget> {
    let one = |b: wire::TokenBudget| Budget {
        id: b.id,
        total: b.total,
        daily: b.daily,
        until: b.until,
    };
    budgets.into_iter().map(one).collect()
}

fn to_wire(budgets: Vec<Budget>) -> Vec<wire::TokenBudget> {
    let one = |b: Budget| wire::TokenBudget {
        id: b.id,
        total: b.total,
        daily: b.daily,
        until: b.until,
    };
    budgets.into_iter().map(one).collect()
}

impl From<wire::Original> for Original {
    fn from(o: wire::Original) -> Self {
        Self {
            from: o.from,
            to: o.to,
            asset: o.asset,
            amount: o.amount_minor,
        }
    }
}

impl From<Original> for wire::Original {
    fn from(o: Original) -> Self {
        Self {
            from: o.from,
            to: o.to,
            asset: o.asset,
            amount_minor: o.amount,
        }
    }
}

/// The header of a keyed entry.
fn keyed(
    tenant: Tenant,
    principal: wire::PrincipalName,
    key: wire::EntryKey,
    details: Details,
) -> Header {
    let owned = RequestKey {
        tenant,
        principal,
        key,
    };
    let Details {
        memo,
        reference,
        metadata,
        effective_at,
        share_reference,
    } = details;
    Header {
        memo,
        metadata,
        reference,
        share_reference,
        effective_at,
        ..Header::keyed(owned)
    }
}

impl From<wire::Entry> for Entry {
    fn from(entry: wire::Entry) -> Self {
        match entry {
            wire::Entry::Issue {
                tenant,
                principal,
                key,
                to,
                asset,
                amount_minor: amount,
                details,
                batch,
                budgets,
            } => {
                let header = Header {
                    batch,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                Self::new(header, Body::Issue { to, asset, amount })
            }
            wire::Entry::Transfer {
                tenant,
                principal,
                key,
                from,
                to,
                asset,
                amount_minor: amount,
                up_to,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            } => {
                let header = Header {
                    batch,
                    daily_ceiling,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                let debit = Debit {
                    from,
                    asset,
                    amount,
                    up_to,
                    nonce,
                };
                Self::new(header, Body::Transfer { debit, to })
            }
            wire::Entry::Burn {
                tenant,
                principal,
                key,
                from,
                asset,
                amount_minor: amount,
                up_to,
                nonce,
                details,
                batch,
                daily_ceiling,
                budgets,
            } => {
                let header = Header {
                    batch,
                    daily_ceiling,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                let debit = Debit {
                    from,
                    asset,
                    amount,
                    up_to,
                    nonce,
                };
                Self::new(header, Body::Burn { debit })
            }
            wire::Entry::Hold {
                tenant,
                principal,
                key,
                from,
                asset,
                amount_minor: amount,
                up_to,
                nonce,
                expires_at,
                details,
                batch,
                daily_ceiling,
                budgets,
            } => {
                let header = Header {
                    batch,
                    daily_ceiling,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                let debit = Debit {
                    from,
                    asset,
                    amount,
                    up_to,
                    nonce,
                };
                Self::new(header, Body::Hold { debit, expires_at })
            }
            wire::Entry::Capture {
                tenant,
                principal,
                key,
                hold,
                to,
                amount_minor: amount,
                ends_hold,
                details,
                batch,
                budgets,
            } => {
                let header = Header {
                    batch,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                Self::new(
                    header,
                    Body::Capture {
                        hold,
                        to,
                        amount,
                        ends_hold,
                    },
                )
            }
            wire::Entry::Reverse {
                tenant,
                principal,
                key,
                tx,
                amount_minor: amount,
                original,
                details,
                batch,
                daily_ceiling,
                budgets,
            } => {
                let header = Header {
                    batch,
                    daily_ceiling,
                    budgets: from_wire(budgets),
                    ..keyed(tenant, principal, key, details)
                };
                let original = original.map(Into::into);
                let body = Body::Reverse {
                    tx,
                    amount,
                    original,
                };
                Self::new(header, body)
            }
            wire::Entry::Release {
                tenant,
                principal,
                key,
                hold,
                details,
                batch,
            } => {
                let header = Header {
                    batch,
                    ..keyed(tenant, principal, key, details)
                };
                Self::new(header, Body::Release { hold })
            }
            wire::Entry::Expire { hold } => Self::new(Header::own(), Body::Expire { hold }),
            wire::Entry::Freeze {
                tenant,
                principal,
                key,
                account,
                sides,
                details,
            } => Self::new(
                keyed(tenant, principal, key, details),
                Body::Freeze { account, sides },
            ),
            wire::Entry::Unfreeze {
                tenant,
                principal,
                key,
                account,
                sides,
                details,
            } => Self::new(
                keyed(tenant, principal, key, details),
                Body::Unfreeze { account, sides },
            ),
            wire::Entry::Account {
                tenant,
                principal,
                key,
                account,
                terms,
                details,
            } => Self::new(
                keyed(tenant, principal, key, details),
                Body::Account { account, terms },
            ),
            wire::Entry::Asset {
                tenant,
                principal,
                key,
                asset,
                terms,
                details,
            } => Self::new(
                keyed(tenant, principal, key, details),
                Body::Asset { asset, terms },
            ),
            wire::Entry::EpochOpen {
                principal,
                tenant,
                epoch,
                from,
                asset,
                amount_minor: amount,
                commitment,
                sum_root,
                recipients,
                source,
                adjusts,
            } => {
                let open = EpochOpen {
                    epoch,
                    from,
                    asset,
                    amount,
                    commitment,
                    sum_root,
                    recipients,
                    source,
                    adjusts,
                };
                Self::new(Header::new(tenant, principal), Body::EpochOpen(open))
            }
            wire::Entry::Payout {
                principal,
                tenant,
                epoch,
                index,
                to,
                asset,
                amount_minor: amount,
            } => {
                let payout = Payout {
                    epoch,
                    index,
                    to,
                    asset,
                    amount,
                };
                Self::new(Header::new(tenant, principal), Body::Payout(payout))
            }
            wire::Entry::EpochClose {
                principal,
                tenant,
                epoch,
                commitment,
                asset,
            } => {
                let close = EpochClose {
                    epoch,
                    commitment,
                    asset,
                };
                Self::new(Header::new(tenant, principal), Body::EpochClose(close))
            }
            wire::Entry::EpochVoid {
                principal,
                tenant,
                epoch,
                commitment,
            } => {
                let body = Body::EpochVoid { epoch, commitment };
                Self::new(Header::new(tenant, principal), body)
            }
            wire::Entry::Abandon {
                tenant,
                principal,
                key,
            } => Self::new(
                keyed(tenant, principal, key, Details::default()),
                Body::Abandon,
            ),
        }
    }
}

/// The entry as events show it.
impl From<&Op> for wire::Entry {
    fn from(op: &Op) -> Self {
        let Header {
            tenant,
            principal,
            key,
            memo,
            metadata,
            reference,
            share_reference,
            effective_at,
            batch,
            daily_ceiling,
            budgets,
        } = op.entry().header.clone();
        let details = Details {
            memo,
            reference,
            metadata,
            effective_at,
            share_reference,
        };
        let key = || key.expect("a checked entry of a keyed kind has a key");
        match op.entry().body.clone() {
            Body::Issue { to, asset, amount } => Self::Issue {
                tenant,
                principal,
                key: key(),
                to,
                asset,
                amount_minor: amount,
                details,
                batch,
                budgets: to_wire(budgets),
            },
            Body::Transfer { debit, to } => Self::Transfer {
                tenant,
                principal,
                key: key(),
                from: debit.from,
                to,
                asset: debit.asset,
                amount_minor: debit.amount,
                up_to: debit.up_to,
                nonce: debit.nonce,
                details,
                batch,
                daily_ceiling,
                budgets: to_wire(budgets),
            },
            Body::Burn { debit } => Self::Burn {
                tenant,
                principal,
                key: key(),
                from: debit.from,
                asset: debit.asset,
                amount_minor: debit.amount,
                up_to: debit.up_to,
                nonce: debit.nonce,
                details,
                batch,
                daily_ceiling,
                budgets: to_wire(budgets),
            },
            Body::Hold { debit, expires_at } => Self::Hold {
                tenant,
                principal,
                key: key(),
                from: debit.from,
                asset: debit.asset,
                amount_minor: debit.amount,
                up_to: debit.up_to,
                nonce: debit.nonce,
                expires_at,
                details,
                batch,
                daily_ceiling,
                budgets: to_wire(budgets),
            },
            Body::Capture {
                hold,
                to,
                amount,
                ends_hold,
            } => Self::Capture {
                tenant,
                principal,
                key: key(),
                hold,
                to,
                amount_minor: amount,
                ends_hold,
                details,
                batch,
                budgets: to_wire(budgets),
            },
            Body::Reverse {
                tx,
                amount,
                original,
            } => Self::Reverse {
                tenant,
                principal,
                key: key(),
                tx,
                amount_minor: amount,
                original: original.map(Into::into),
                details,
                batch,
                daily_ceiling,
                budgets: to_wire(budgets),
            },
            Body::Release { hold } => Self::Release {
                tenant,
                principal,
                key: key(),
                hold,
                details,
                batch,
            },
            Body::Expire { hold } => Self::Expire { hold },
            Body::Freeze { account, sides } => Self::Freeze {
                tenant,
                principal,
                key: key(),
                account,
                sides,
                details,
            },
            Body::Unfreeze { account, sides } => Self::Unfreeze {
                tenant,
                principal,
                key: key(),
                account,
                sides,
                details,
            },
            Body::Account { account, terms } => Self::Account {
                tenant,
                principal,
                key: key(),
                account,
                terms,
                details,
            },
            Body::Asset { asset, terms } => Self::Asset {
                tenant,
                principal,
                key: key(),
                asset,
                terms,
                details,
            },
            Body::EpochOpen(open) => Self::EpochOpen {
                principal,
                tenant,
                epoch: open.epoch,
                from: open.from,
                asset: open.asset,
                amount_minor: open.amount,
                commitment: open.commitment,
                sum_root: open.sum_root,
                recipients: open.recipients,
                source: open.source,
                adjusts: open.adjusts,
            },
            Body::Payout(payout) => Self::Payout {
                principal,
                tenant,
                epoch: payout.epoch,
                index: payout.index,
                to: payout.to,
                asset: payout.asset,
                amount_minor: payout.amount,
            },
            Body::EpochClose(close) => Self::EpochClose {
                principal,
                tenant,
                epoch: close.epoch,
                commitment: close.commitment,
                asset: close.asset,
            },
            Body::EpochVoid { epoch, commitment } => Self::EpochVoid {
                principal,
                tenant,
                epoch,
                commitment,
            },
            Body::Abandon => Self::Abandon {
                tenant,
                principal,
                key: key(),
            },
        }
    }
}
