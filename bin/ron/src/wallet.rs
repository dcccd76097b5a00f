//! `ron wallet`: balances and money from the command line, as the operator or another client of the
//! data directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_client::{ClientError, Credential, TokenAsk, WalletClient};
use ron_kernel::Deadline;
use ron_proto::ledger::{PointInTime, TxId};
use ron_proto::{Account, Asset, IdemKey, SignedAmount};

use self::caller::CallerCommand;
use self::reads::ReadCommand;
use self::terms::TermsCommand;
use self::writes::{Key, Once, WriteCommand};
use crate::layout::Layout;
use crate::table::{Form, Out};
use crate::{fleet, token};

mod batch;
mod caller;
mod reads;
mod show;
mod terms;
mod writes;

pub use self::show::{private_fields, receipt_fields};

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
    /// Client whose credentials are in clients/<name>.json. When absent, the passport of `ron login` is used, and without
    /// one the client operator.
    #[arg(long, global = true)]
    client: Option<String>,
    /// File with a passport that is used instead of the client's; only its owner may be able to read it.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "client")]
    token: Option<PathBuf>,
    /// Print the response as JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Print the response as comma-separated values.
    #[arg(long, global = true, conflicts_with = "json")]
    csv: bool,
}

/// How much of the ledger an answer knows.
#[derive(Args)]
struct Fresh {
    /// Wait for an answer that knows the entry of this sequence: `seq` of an earlier receipt.
    #[arg(long)]
    min_seq: Option<u64>,
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
        #[command(flatten)]
        fresh: Fresh,
    },
    #[command(flatten)]
    Write(WriteCommand),
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
        #[command(flatten)]
        fresh: Fresh,
    },
    #[command(flatten)]
    Terms(TermsCommand),
    #[command(flatten)]
    Read(ReadCommand),
    #[command(flatten)]
    Caller(CallerCommand),
    /// Show a transaction: its receipt, and what you may see of its private side.
    Tx {
        /// Id of the transaction.
        txid: TxId,
        #[command(flatten)]
        fresh: Fresh,
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
        #[command(flatten)]
        fresh: Fresh,
        /// File to write; standard output when absent.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Show the outcome of an operation.
    Op {
        /// Idempotency key of the operation.
        key: IdemKey,
        #[command(flatten)]
        fresh: Fresh,
    },
}

pub fn run(args: WalletArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let credential = if let Some(file) = &args.token {
        Credential::from_file(file)?
    } else {
        let ask = TokenAsk {
            audience: "svc-wallet",
            scope: None,
            ttl_s: Some(60),
            caveats: &[],
        };
        token::credential(&layout, args.client.as_deref(), &ask)?
    };
    let at = fleet::reach(&layout, "svc-wallet")?;
    let wallet = WalletClient::new(&at.url, credential, at.http);
    let form = Form::of(args.json, args.csv);
    let out = Out { form };
    match args.command {
        Command::Balance {
            account,
            asset,
            at,
            fresh,
        } => balance(&wallet.knowing(fresh.min_seq), (&account, &asset, at), out),
        Command::Show { hold, fresh } => show_hold(&wallet.knowing(fresh.min_seq), hold, out),
        Command::Read(command) => reads::run(&wallet, command, out),
        Command::Terms(command) => terms::run(&wallet, command, out),
        Command::Caller(command) => caller::run(&wallet, command, out),
        Command::Write(command) => show::transaction(out, &writes::send(&wallet, command)?),
        Command::Tx { txid, fresh } => {
            let wallet = wallet.knowing(fresh.min_seq);
            show::transaction(out, &explain(wallet.tx(txid, deadline()))?)
        }
        Command::Receipt { txid, fresh, out } => {
            receipt(&wallet.knowing(fresh.min_seq), txid, out.as_deref())
        }
        Command::Batch { file, once } => batch::commit(&wallet, &file, &once.key()?, out),
        Command::Op { key, fresh } => {
            let wallet = wallet.knowing(fresh.min_seq);
            show::operation(out, explain(wallet.operation(&key, deadline()))?)
        }
        Command::Abandon { key } => {
            let key = Key::of(key);
            let answer = wallet.abandon(key.idem(), deadline());
            show::operation(out, key.explain(&wallet, answer)?)
        }
    }
}

fn balance(
    wallet: &WalletClient,
    (account, asset, at): (&Account, &Asset, Option<PointInTime>),
    out: Out,
) -> Result<(), String> {
    let b = explain(wallet.balance(account, asset, at, deadline()))?;
    let amount = SignedAmount::of(b.amount_minor.0, b.overdrawn_minor.0);
    let mut fields = vec![
        ("account", b.account.to_string()),
        ("asset", b.asset.to_string()),
        ("amount", amount.to_string()),
        ("available", b.available_minor.to_string()),
    ];
    fields.extend(b.nonce.map(|nonce| ("nonce", nonce.to_string())));
    fields.push(("as of", format!("entry {}, {}", b.as_of_seq, b.as_of)));
    let csv = [
        ("account", b.account.to_string()),
        ("asset", b.asset.to_string()),
        ("amount_minor", amount.to_string()),
        ("available_minor", b.available_minor.to_string()),
        ("nonce", show::cell(b.nonce)),
        ("as_of_seq", b.as_of_seq.to_string()),
        ("as_of", b.as_of.to_string()),
    ];
    out.record(&b, &fields, &csv)
}

fn show_hold(wallet: &WalletClient, hold: TxId, out: Out) -> Result<(), String> {
    let h = explain(wallet.hold_state(hold, deadline()))?;
    let fields = [
        ("hold", h.hold.to_string()),
        ("state", h.state.as_str().to_owned()),
        ("from", h.from.to_string()),
        ("asset", h.asset.to_string()),
        ("amount", h.amount_minor.to_string()),
        ("remaining", h.remaining_minor.to_string()),
        ("captured", show::cell(h.captured_minor)),
        ("expires", h.expires_at.to_string()),
    ];
    out.fields(&h, &fields)
}

/// Waits until a checkpoint covers the transaction, which takes about a second.
fn receipt(wallet: &WalletClient, txid: TxId, out: Option<&Path>) -> Result<(), String> {
    let file = explain(wallet.receipt(txid, COVERED, deadline()))?;
    let Some(path) = out else {
        return Out::json(&file);
    };
    let json = serde_json::to_vec_pretty(&file).map_err(|e| e.to_string())?;
    std::fs::write(path, json).map_err(|e| format!("{}: {e}", path.display()))
}

fn deadline() -> Deadline {
    Deadline::within(WAIT)
}

/// What went wrong with a read. Writes go through [`Key::explain`].
fn explain<T>(answer: Result<T, ClientError>) -> Result<T, String> {
    answer.map_err(|e| format!("svc-wallet: {e}"))
}
