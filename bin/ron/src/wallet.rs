//! `ron wallet`: balances and money from the command line, as the operator or another client of the
//! data directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{ClientError, Credential, TokenAsk, WalletClient};
use ron_kernel::{Clock as _, Deadline, OsRandom, Random as _, SystemClock};
use ron_proto::ledger::{
    Details, Memo, Metadata, MetadataMember, PointInTime, PrivateFacts, Receipt, Reference, TxId,
};
use ron_proto::wallet::{
    Burn, Capture, HoldMoney, IssueMoney, Operation, Reverse, Transaction, Transfer,
};
use ron_proto::{Account, Amount, Asset, DebitAmount, IdemKey, SignedAmount, Timestamp};
use ron_service::config::parse_duration;
use serde::Serialize;

use self::terms::TermsCommand;
use crate::layout::Layout;
use crate::wallet_reads::{self, ReadCommand};
use crate::{fleet, token};

mod batch;
pub mod table;
mod terms;

/// Timeout of one response.
const WAIT: Duration = Duration::from_secs(10);
/// Maximum wait for a checkpoint that covers a transaction.
const COVERED: Duration = Duration::from_secs(5);

/// Balances, transfers, holds, accounts and history.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron wallet issue acct:alice 1000 --asset ron\n  ron wallet transfer acct:alice acct:bob 250 --asset ron --key order-17\n  ron wallet hold acct:alice 100 --asset ron --expires-in 1h\n  ron wallet batch payout.json --key payout-7\n  ron wallet history acct:alice --json\n  ron wallet receipt tx_0000000000000011c2b4f0a97d3e5568 --out order-17.receipt.json"
)]
pub struct WalletArgs {
    #[command(subcommand)]
    command: Command,
    /// Data directory, as given to `ron up`.
    #[arg(long, global = true)]
    data_dir: Option<PathBuf>,
    /// Client whose credentials are in clients/<name>.json.
    #[arg(long, global = true, default_value = "operator")]
    client: String,
    /// Print the response as JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Show the balance of an account in one asset.
    Balance {
        /// Account to show.
        account: Account,
        /// Asset to show.
        #[arg(long)]
        asset: Asset,
        /// At this sequence number or time; now when absent.
        #[arg(long)]
        at: Option<PointInTime>,
    },
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
        /// Duration of the hold, such as 90s, 15m or 1h.
        #[arg(long, default_value = "15m")]
        expires_in: String,
    },
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
        once: Once,
    },
    /// Commit up to 1,000 operations under one key. The command fails when an item is refused.
    Batch {
        /// JSON file with the body of POST /v1/batch; `-` reads standard input.
        file: PathBuf,
        #[command(flatten)]
        once: Once,
    },
    /// Show the state of a hold.
    Show {
        /// Id of the hold.
        hold: TxId,
    },
    #[command(flatten)]
    Terms(TermsCommand),
    #[command(flatten)]
    Read(ReadCommand),
    /// Show a transaction: its receipt, and what you may see of its private side.
    Tx {
        /// Id of the transaction.
        txid: TxId,
    },
    /// Give up an operation whose outcome is not known, or show its outcome.
    Abandon {
        /// Idempotency key of the operation.
        key: IdemKey,
    },
    /// Get the receipt of a transaction as a file that verifies alone (`ron receipt verify`).
    Receipt {
        /// Id of the transaction.
        txid: TxId,
        /// File to write; standard output when absent.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Show the outcome of an operation.
    Op {
        /// Idempotency key of the operation.
        key: IdemKey,
    },
}

#[derive(Args)]
struct Money {
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

/// What is said about the entry. Only its maker sees it, and the payee the reference.
#[derive(Args)]
struct Remark {
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
    fn details(self) -> Result<Details, String> {
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
struct Debit {
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

#[derive(Args)]
struct Once {
    /// Idempotency key: the same key and request again changes nothing. Random when absent.
    #[arg(long)]
    key: Option<IdemKey>,
}

impl Once {
    fn key(&self) -> Result<IdemKey, String> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => format!("cli-{:016x}", OsRandom.u64())
                .parse()
                .map_err(|e| format!("{e}")),
        }
    }
}

pub fn run(args: WalletArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let ask = TokenAsk {
        audience: "svc-wallet",
        scope: None,
        ttl_s: Some(60),
        caveats: &[],
    };
    let token = token::fetch(&layout, &args.client, &ask)?;
    let at = fleet::reach(&layout, "svc-wallet")?;
    let wallet = WalletClient::new(&at.url, Credential::bearer(&token), at.http);
    let out = Out { json: args.json };
    match args.command {
        Command::Balance { account, asset, at } => {
            let b = explain(wallet.balance(&account, &asset, at, deadline()))?;
            let mut fields = vec![
                ("account", b.account.to_string()),
                ("asset", b.asset.to_string()),
                (
                    "amount",
                    SignedAmount::of(b.amount_minor.0, b.overdrawn_minor.0).to_string(),
                ),
                ("available", b.available_minor.to_string()),
            ];
            fields.extend(b.nonce.map(|nonce| ("nonce", nonce.to_string())));
            fields.push(("as of", format!("entry {}, {}", b.as_of_seq, b.as_of)));
            out.fields(&b, &fields)
        }
        Command::Show { hold } => {
            let h = explain(wallet.hold_state(hold, deadline()))?;
            out.fields(
                &h,
                &[
                    ("hold", h.hold.to_string()),
                    ("state", format!("{:?}", h.state).to_lowercase()),
                    ("from", h.from.to_string()),
                    ("asset", h.asset.to_string()),
                    ("amount", h.amount_minor.to_string()),
                    ("remaining", h.remaining_minor.to_string()),
                    ("expires", h.expires_at.to_string()),
                ],
            )
        }
        Command::Read(command) => wallet_reads::run(&wallet, command, out),
        Command::Terms(command) => terms::run(&wallet, command, out),
        Command::Tx { txid } => out.transaction(&explain(wallet.tx(txid, deadline()))?),
        Command::Receipt { txid, out } => receipt(&wallet, txid, out.as_deref()),
        Command::Batch { file, once } => batch::commit(&wallet, &file, &once.key()?, out),
        Command::Op { key } => out.operation(explain(wallet.operation(&key, deadline()))?),
        Command::Abandon { key } => out.operation(explain(wallet.abandon(&key, deadline()))?),
        write => out.transaction(&write_once(&wallet, write)?),
    }
}

fn write_once(wallet: &WalletClient, command: Command) -> Result<Transaction, String> {
    let answer = match command {
        Command::Issue { to, money } => {
            let request = IssueMoney {
                to,
                asset: money.asset,
                amount_minor: money.amount,
                details: money.remark.details()?,
            };
            wallet.issue(&money.once.key()?, &request, deadline())
        }
        debit @ (Command::Transfer { .. } | Command::Burn { .. } | Command::Hold { .. }) => {
            return debit_once(wallet, debit);
        }
        Command::Capture {
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
            wallet.capture(&once.key()?, hold, &request, deadline())
        }
        Command::Reverse {
            tx,
            amount,
            remark,
            once,
        } => {
            let request = Reverse {
                amount_minor: amount,
                details: remark.details()?,
            };
            wallet.reverse(&once.key()?, tx, &request, deadline())
        }
        Command::Release { hold, once } => wallet.release(&once.key()?, hold, deadline()),
        Command::Balance { .. }
        | Command::Show { .. }
        | Command::Read(_)
        | Command::Terms(_)
        | Command::Tx { .. }
        | Command::Abandon { .. }
        | Command::Batch { .. }
        | Command::Receipt { .. }
        | Command::Op { .. } => return Err("this command writes nothing".to_owned()),
    };
    explain(answer)
}

fn debit_once(wallet: &WalletClient, command: Command) -> Result<Transaction, String> {
    let answer = match command {
        Command::Transfer { from, to, debit } => {
            let request = Transfer {
                nonce: debit.nonce,
                from,
                to,
                asset: debit.asset,
                amount_minor: debit.amount,
                details: debit.remark.details()?,
            };
            wallet.transfer(&debit.once.key()?, &request, deadline())
        }
        Command::Burn { from, debit } => {
            let request = Burn {
                nonce: debit.nonce,
                from,
                asset: debit.asset,
                amount_minor: debit.amount,
                details: debit.remark.details()?,
            };
            wallet.burn(&debit.once.key()?, &request, deadline())
        }
        Command::Hold {
            from,
            debit,
            expires_in,
        } => {
            let wait = parse_duration(&expires_in).map_err(|e| format!("--expires-in: {e}"))?;
            let ms = u64::try_from(wait.as_millis()).map_err(|_| "--expires-in is too long")?;
            let request = HoldMoney {
                nonce: debit.nonce,
                from,
                asset: debit.asset,
                amount_minor: debit.amount,
                expires_at: Timestamp(SystemClock.unix_ms() + ms),
                details: debit.remark.details()?,
            };
            wallet.hold(&debit.once.key()?, &request, deadline())
        }
        _ => return Err("this command debits nothing".to_owned()),
    };
    explain(answer)
}

/// Waits until a checkpoint covers the transaction, which takes about a second.
fn receipt(wallet: &WalletClient, txid: TxId, out: Option<&Path>) -> Result<(), String> {
    let file = explain(wallet.receipt(txid, COVERED, deadline()))?;
    let Some(path) = out else {
        return Out::print(&file);
    };
    let json = serde_json::to_vec_pretty(&file).map_err(|e| e.to_string())?;
    std::fs::write(path, json).map_err(|e| format!("{}: {e}", path.display()))
}

pub fn deadline() -> Deadline {
    Deadline::within(WAIT)
}

pub fn explain<T>(answer: Result<T, ClientError>) -> Result<T, String> {
    answer.map_err(|e| match e {
        ClientError::Unknown { detail, .. } => format!(
            "the outcome is not known: {detail}; retry with the same command and the same --key, or see `ron wallet op KEY`"
        ),
        other => format!("svc-wallet: {other}"),
    })
}

fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Done { receipt, .. } => format!("done, {}", receipt.txid),
        Operation::Refused { code } => format!("refused: {}", code.meaning()),
        Operation::Open {} => {
            "open: send it again with its key, or run ron wallet abandon".to_owned()
        }
        Operation::Batch { results } => {
            format!(
                "batch of {}, {} refused",
                results.len(),
                batch::refused(results)
            )
        }
    }
}

/// How responses are printed.
#[derive(Clone, Copy)]
pub struct Out {
    pub json: bool,
}

impl Out {
    pub fn print<T: Serialize>(value: &T) -> Result<(), String> {
        println!(
            "{}",
            serde_json::to_string_pretty(value).map_err(|e| e.to_string())?
        );
        Ok(())
    }

    fn fields<T: Serialize>(self, value: &T, fields: &[(&str, String)]) -> Result<(), String> {
        if self.json {
            return Self::print(value);
        }
        for (name, value) in fields {
            println!("{name:<10} {value}");
        }
        Ok(())
    }

    fn operation(self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Done { receipt, private } => self.transaction(&Transaction {
                receipt,
                private: Some(private),
                now: None,
            }),
            other => {
                self.fields(&other, &[("outcome", describe(&other))])?;
                match &other {
                    Operation::Batch { results } if !self.json => batch::print(results),
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn transaction(self, t: &Transaction) -> Result<(), String> {
        let none = PrivateFacts::default();
        let mut fields = receipt_fields(&t.receipt);
        fields.extend(private_fields(t.private.as_ref().unwrap_or(&none)));
        self.fields(t, &fields)
    }
}

/// The facts of a receipt, for people.
pub fn receipt_fields(r: &Receipt) -> Vec<(&'static str, String)> {
    let mut fields = vec![("txid", r.txid.to_string()), ("op", r.op.to_string())];
    let parts = [
        ("from", r.from.as_ref().map(ToString::to_string)),
        ("to", r.to.as_ref().map(ToString::to_string)),
        ("asset", r.asset.as_ref().map(ToString::to_string)),
        ("amount", r.amount_minor.map(|a| a.to_string())),
        ("hold", r.hold.map(|id| id.to_string())),
        ("batch", r.batch.map(|id| id.to_string())),
        ("reverses", r.reverses.map(|id| id.to_string())),
        ("entry", Some(format!("{}, {}", r.seq, r.ts))),
    ];
    fields.extend(parts.into_iter().filter_map(|(n, v)| v.map(|v| (n, v))));
    fields
}

/// The private side of a transaction, for people.
pub fn private_fields(p: &PrivateFacts) -> Vec<(&'static str, String)> {
    let metadata = p.metadata.iter().flat_map(Metadata::iter);
    let metadata = metadata.map(|(name, value)| ("metadata", format!("{name}={value}")));
    let parts = [
        ("key", p.idem.clone()),
        ("nonce", p.nonce.map(|n| n.to_string())),
        ("memo", p.memo.as_ref().map(ToString::to_string)),
        ("reference", p.reference.as_ref().map(ToString::to_string)),
        ("effective", p.effective_at.map(|at| at.to_string())),
    ];
    let parts = parts.into_iter().filter_map(|(n, v)| v.map(|v| (n, v)));
    parts.chain(metadata).collect()
}
