//! `ron wallet` commands that move or reserve money, each under its idempotency key.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use ron_client::{ClientError, WalletClient};
use ron_kernel::{Clock as _, Deadline, OsRandom, Random as _, SystemClock};
use ron_proto::ledger::{Details, EntryKind, Memo, Metadata, MetadataMember, Reference, TxId};
use ron_proto::wallet::{
    Burn, Capture, HoldMoney, IssueMoney, Operation, Remarks, Reverse, Transaction, Transfer,
};
use ron_proto::{Account, Amount, Asset, DebitAmount, IdemKey, Timestamp};
use ron_service::config::parse_duration;

use super::deadline;
use super::show::{describe, one_line};

/// Duration of a hold when none is given.
const HOLD: &str = "15m";
/// How much the duration of a hold may differ from the one that its command said: the end is computed by the client's
/// clock before the request is sent, and the entry has the ledger's time.
const HOLD_SLACK_MS: u64 = 60_000;

#[derive(Subcommand)]
pub enum WriteCommand {
    /// Create money.
    Issue {
        /// Account to credit.
        to: Account,
        #[command(flatten)]
        money: Money,
    },
    /// Move money between accounts.
    Transfer {
        /// Account to debit.
        from: Account,
        /// Account to credit.
        to: Account,
        #[command(flatten)]
        debit: Debit,
    },
    /// Destroy money.
    Burn {
        /// Account to debit.
        from: Account,
        #[command(flatten)]
        debit: Debit,
    },
    /// Reserve money; the txid of the receipt is the hold's id.
    Hold {
        /// Account whose money is reserved.
        from: Account,
        #[command(flatten)]
        debit: Debit,
        #[command(flatten)]
        end: HoldEnd,
    },
    #[command(flatten)]
    FollowUp(FollowUp),
}

/// What concerns an earlier entry.
#[derive(Subcommand)]
pub enum FollowUp {
    /// Pay out of a hold.
    Capture {
        /// Id of the hold.
        hold: TxId,
        /// Account to credit.
        to: Account,
        /// Amount in minor units; all that is left when absent.
        amount: Option<Amount>,
        /// Release what the capture leaves.
        #[arg(long = "final")]
        ends_hold: bool,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        once: Once,
    },
    /// Move back what a transfer, capture or payout moved.
    Reverse {
        /// Id of the transaction.
        tx: TxId,
        /// Amount in minor units; all that is left when absent.
        amount: Option<Amount>,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        once: Once,
    },
    /// Release a hold.
    Release {
        /// Id of the hold.
        hold: TxId,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        once: Once,
    },
}

#[derive(Args)]
pub struct Money {
    /// Amount in minor units.
    amount: Amount,
    /// Asset of the amount.
    #[arg(long)]
    asset: Asset,
    #[command(flatten)]
    remark: Remark,
    #[command(flatten)]
    once: Once,
}

#[derive(Args)]
pub struct Debit {
    /// Amount in minor units, or max: all that is available.
    amount: DebitAmount,
    /// Asset of the amount.
    #[arg(long)]
    asset: Asset,
    #[command(flatten)]
    remark: Remark,
    #[command(flatten)]
    once: Once,
    /// Next nonce of the account, where debits must keep an order. Without one the key alone makes
    /// the operation happen once.
    #[arg(long)]
    nonce: Option<u64>,
}

/// When the money of a hold becomes available again.
#[derive(Args)]
pub struct HoldEnd {
    /// Duration of the hold, such as 90s, 15m or 1h. Run again with the same --key, the command finds the hold that it
    /// made before, with its first end.
    #[arg(long, default_value = HOLD, conflicts_with = "expires_at")]
    expires_in: String,
    /// Time at which the hold ends, such as 2026-12-01T00:00:00Z.
    #[arg(long)]
    expires_at: Option<Timestamp>,
}

impl HoldEnd {
    /// The duration, unless an end is given.
    fn duration_ms(&self) -> Result<Option<u64>, String> {
        if self.expires_at.is_some() {
            return Ok(None);
        }
        let wait = parse_duration(&self.expires_in).map_err(|e| format!("--expires-in: {e}"))?;
        let ms = u64::try_from(wait.as_millis()).map_err(|_| "--expires-in is too long")?;
        Ok(Some(ms))
    }
}

/// What is said about the entry. Its maker sees it, and the tenant's readers of the debited account; the payee the reference.
#[derive(Args)]
pub struct Remark {
    /// Text stored with the entry.
    #[arg(long)]
    memo: Option<Memo>,
    /// Your own reference, such as an order number; the payee sees it too.
    #[arg(long)]
    reference: Option<Reference>,
    /// Do not show the reference to the payee.
    #[arg(long, requires = "reference")]
    own_reference: bool,
    /// A member stored with the entry, as name=value; may be repeated.
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<MetadataMember>,
    /// Time at which statements show the entry.
    #[arg(long)]
    effective_at: Option<Timestamp>,
}

impl Remark {
    pub fn details(self) -> Result<Details, String> {
        let members = self.metadata.iter();
        let members = members.map(|m| (m.name().to_owned(), m.value().to_owned()));
        let members: BTreeMap<String, String> = members.collect();
        let metadata = (!members.is_empty())
            .then(|| Metadata::try_from(members))
            .transpose()
            .map_err(|e| format!("--meta: {e}"))?;
        Ok(Details {
            memo: self.memo,
            reference: self.reference,
            metadata,
            effective_at: self.effective_at,
            share_reference: !self.own_reference,
        })
    }
}

#[derive(Args)]
pub struct Once {
    /// Idempotency key: the same key and request again changes nothing. Random when absent, and printed when it is
    /// needed: when the outcome is not known.
    #[arg(long)]
    key: Option<IdemKey>,
}

impl Once {
    pub fn key(self) -> Result<Key, String> {
        let random = || format!("cli-{:016x}", OsRandom.u64()).parse();
        let key = self.key.map_or_else(random, Ok);
        key.map(Key).map_err(|e| format!("{e}"))
    }

    /// Sends a write under the key.
    pub fn send(
        self,
        wallet: &WalletClient,
        write: impl FnOnce(&IdemKey, Deadline) -> Result<Transaction, ClientError>,
    ) -> Result<Transaction, String> {
        let key = self.key()?;
        key.explain(wallet, write(key.idem(), deadline()))
    }
}

/// The key under which a write is sent.
pub struct Key(IdemKey);

impl Key {
    pub const fn of(key: IdemKey) -> Self {
        Self(key)
    }

    pub const fn idem(&self) -> &IdemKey {
        &self.0
    }

    /// Adds to an error what the user needs to know of the key.
    pub fn explain<T>(
        &self,
        wallet: &WalletClient,
        answer: Result<T, ClientError>,
    ) -> Result<T, String> {
        let key = &self.0;
        answer.map_err(|e| match &e {
            ClientError::Unknown { detail, .. } => format!(
                "the outcome is not known: {detail}\nkey: {key}\nhint: `ron wallet op {key}` shows the outcome; the same command with `--key {key}` sends it again, and changes nothing if it is done"
            ),
            _ if is_mismatch(&e) => {
                let first = wallet.operation(key, deadline());
                let first = first.map_or_else(|e| format!("svc-wallet: {e}"), |o| made(&o));
                format!("the key {key} belongs to another request of yours: {first}\nhint: a new operation needs a new key")
            }
            _ => format!("svc-wallet: {e}"),
        })
    }
}

fn is_mismatch(error: &ClientError) -> bool {
    error.code() == Some("idempotency_mismatch")
}

/// What an operation did, on one line.
fn made(operation: &Operation) -> String {
    match operation {
        Operation::Done { receipt, .. } => one_line(receipt),
        other => describe(other),
    }
}

pub fn send(wallet: &WalletClient, command: WriteCommand) -> Result<Transaction, String> {
    match command {
        WriteCommand::Issue { to, money } => {
            let request = IssueMoney {
                to,
                asset: money.asset,
                amount_minor: money.amount,
                details: money.remark.details()?,
            };
            money
                .once
                .send(wallet, |key, by| wallet.issue(key, &request, by))
        }
        WriteCommand::Transfer { from, to, debit } => {
            let request = Transfer {
                nonce: debit.nonce,
                from,
                to,
                asset: debit.asset,
                amount_minor: debit.amount,
                details: debit.remark.details()?,
            };
            debit
                .once
                .send(wallet, |key, by| wallet.transfer(key, &request, by))
        }
        WriteCommand::Burn { from, debit } => {
            let request = Burn {
                nonce: debit.nonce,
                from,
                asset: debit.asset,
                amount_minor: debit.amount,
                details: debit.remark.details()?,
            };
            debit
                .once
                .send(wallet, |key, by| wallet.burn(key, &request, by))
        }
        WriteCommand::Hold { from, debit, end } => hold(wallet, from, debit, &end),
        WriteCommand::FollowUp(command) => follow_up(wallet, command),
    }
}

fn follow_up(wallet: &WalletClient, command: FollowUp) -> Result<Transaction, String> {
    match command {
        FollowUp::Capture {
            hold,
            to,
            amount,
            ends_hold,
            remark,
            once,
        } => {
            let request = Capture {
                to,
                amount_minor: amount,
                ends_hold,
                details: remark.details()?,
            };
            once.send(wallet, |key, by| wallet.capture(key, hold, &request, by))
        }
        FollowUp::Reverse {
            tx,
            amount,
            remark,
            once,
        } => {
            let request = Reverse {
                amount_minor: amount,
                details: remark.details()?,
            };
            once.send(wallet, |key, by| wallet.reverse(key, tx, &request, by))
        }
        FollowUp::Release { hold, remark, once } => {
            let request = Remarks {
                details: remark.details()?,
            };
            once.send(wallet, |key, by| wallet.release(key, hold, &request, by))
        }
    }
}

fn hold(
    wallet: &WalletClient,
    from: Account,
    debit: Debit,
    end: &HoldEnd,
) -> Result<Transaction, String> {
    let duration = end.duration_ms()?;
    let after = |ms: u64| Timestamp(SystemClock.unix_ms().saturating_add(ms));
    let mut request = HoldMoney {
        nonce: debit.nonce,
        from,
        asset: debit.asset,
        amount_minor: debit.amount,
        expires_at: end
            .expires_at
            .unwrap_or_else(|| after(duration.unwrap_or(0))),
        details: debit.remark.details()?,
    };
    let key = debit.once.key()?;
    let mut answer = wallet.hold(key.idem(), &request, deadline());
    // A duration gives another end each time. If the hold of this key is there, its first end is the one that was meant,
    // and the wallet compares the rest of the request.
    if let Some(ms) = duration
        && answer.as_ref().is_err_and(is_mismatch)
        && let Some((made, first)) = earlier(wallet, key.idem())?
    {
        same_duration(key.idem(), made, first, ms)?;
        request.expires_at = first;
        answer = wallet.hold(key.idem(), &request, deadline());
    }
    key.explain(wallet, answer)
}

/// When the hold of a key was made, and its end; `None` when the key is not that of a hold.
fn earlier(wallet: &WalletClient, key: &IdemKey) -> Result<Option<(Timestamp, Timestamp)>, String> {
    match wallet.operation(key, deadline()) {
        Ok(Operation::Done { receipt, .. }) if receipt.op == EntryKind::Hold => {
            let hold = wallet.hold_state(receipt.txid, deadline()).map_err(|e| {
                format!("the key {key} belongs to a hold, {}, which may be this one: its end cannot be read: svc-wallet: {e}", receipt.txid)
            })?;
            Ok(Some((receipt.ts, hold.expires_at)))
        }
        _ => Ok(None),
    }
}

/// Refuses another duration than the one that the hold was made with, as far as its entry tells it.
fn same_duration(key: &IdemKey, made: Timestamp, end: Timestamp, ms: u64) -> Result<(), String> {
    if end.0.abs_diff(made.0.saturating_add(ms)) <= HOLD_SLACK_MS {
        return Ok(());
    }
    Err(format!(
        "the key {key} belongs to a hold that was made at {made} and ends at {end}, which is another duration than --expires-in\nhint: --expires-at {end} asks for that hold; another hold needs a new key"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_sent_again_has_the_duration_of_the_first() {
        let key = "h1".parse().unwrap();
        let same =
            |end: u64, ms: u64| same_duration(&key, Timestamp(1_000_000), Timestamp(end), ms);
        assert_eq!(same(1_900_000, 900_000), Ok(()));
        // The client computes the end before it sends, by its own clock.
        assert_eq!(same(1_885_000, 900_000), Ok(()));
        assert_eq!(same(1_930_000, 900_000), Ok(()));
        let other = same(4_600_000, 900_000).unwrap_err();
        assert!(
            other.contains("--expires-at 1970-01-01T01:16:40.000Z"),
            "{other}"
        );
    }
}
