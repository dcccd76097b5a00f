//! `ron demo`: five real reward epochs through the running system, then the offline checks.
//!
//! Every step is idempotent: a second run pays nothing more and shows the same table.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ron_client::{ClientError, Credential, LedgerClient, RewarderClient, TokenAsk, WalletClient};
use ron_kernel::Deadline;
use ron_proto::ledger::Details;
use ron_proto::rewarder::{ComputeRequest, EpochRun, ImportKind, RewardPolicy, RunState};
use ron_proto::wallet::{IssueMoney, Transfer};
use ron_proto::{Account, Amount, Asset, ContentId, EpochId, IdemKey, strict};
use serde::Serialize;

use crate::layout::Layout;
use crate::{check, fleet, net, token, verifiers};

/// The example epochs (see examples/rocketpool/README.md).
const EPOCHS: [(&str, &[u8]); 5] = [
    (
        "03",
        include_bytes!("../../../examples/rocketpool/interval-03.csv"),
    ),
    (
        "12",
        include_bytes!("../../../examples/rocketpool/interval-12.csv"),
    ),
    (
        "21",
        include_bytes!("../../../examples/rocketpool/interval-21.csv"),
    ),
    (
        "30",
        include_bytes!("../../../examples/rocketpool/interval-30.csv"),
    ),
    (
        "45",
        include_bytes!("../../../examples/rocketpool/interval-45.csv"),
    ),
];
/// Timeout of one call.
const CALL: Duration = Duration::from_secs(20);
/// Maximum wait for the settlement of one epoch.
const SETTLE: Duration = Duration::from_secs(120);

/// Fund a pool, move money, pay out five real epochs, verify everything. The payouts stay in the ledger for ever: use a data directory
/// of its own. A ledger that others use is left alone, unless you confirm it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron up &\n  ron demo\n  ron up --data-dir /tmp/trial --base-port 0 &\n  ron demo --data-dir /tmp/trial --json"
)]
pub struct DemoArgs {
    /// Data directory of the running `ron up`.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Do not ask before the payouts of the demo are written to a ledger that has other entries.
    #[arg(long)]
    yes: bool,
    /// Print the table as JSON lines.
    #[arg(long)]
    json: bool,
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    epoch: String,
    recipients: u64,
    pool_minor: Amount,
    paid_minor: Amount,
    residual_minor: Amount,
    manifest: ContentId,
    ledger_seq: u64,
}

pub fn run(args: &DemoArgs) -> Result<(), String> {
    let layout = Layout::new(args.data_dir.as_deref())?;
    let demo = Demo::connect(&layout)?;
    if !args.yes && demo.is_of_others(&layout)? {
        confirm(&layout)?;
    }
    let bar = ProgressBar::new(EPOCHS.len() as u64 + 2);
    if let Ok(style) = ProgressStyle::with_template("{msg:>24} {wide_bar} {pos}/{len}") {
        bar.set_style(style);
    }
    bar.set_message("funding the pool");
    demo.fund()?;
    bar.inc(1);
    bar.set_message("moving money");
    demo.transfer()?;
    bar.inc(1);
    let mut rows = Vec::new();
    for (name, csv) in EPOCHS {
        bar.set_message(format!("paying epoch {name}"));
        rows.push(demo.epoch(name, csv)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print(&rows, args.json)?;
    checks(&layout)
}

struct Demo {
    wallet: WalletClient,
    rewarder: RewarderClient,
    policy: RewardPolicy,
    policy_hash: ContentId,
}

impl Demo {
    fn connect(layout: &Layout) -> Result<Self, String> {
        let token = |audience: &'static str| {
            let ask = TokenAsk {
                audience,
                ..TokenAsk::default()
            };
            token::fetch(layout, "operator", &ask)
        };
        let credential = |audience| token(audience).map(|token| Credential::bearer(&token));
        let (wallet, rewarder) = (credential("svc-wallet")?, credential("svc-rewarder")?);
        let to_wallet = fleet::reach(layout, "svc-wallet")?;
        let to_rewarder = fleet::reach(layout, "svc-rewarder")?;
        let path = layout.policy().join("reward.json");
        let bytes =
            std::fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Ok(Self {
            wallet: WalletClient::new(&to_wallet.url, wallet, to_wallet.http),
            rewarder: RewarderClient::new(&to_rewarder.url, rewarder, to_rewarder.http),
            policy: strict::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))?,
            policy_hash: ContentId::of(&bytes),
        })
    }

    /// Whether the ledger has entries, and not from a demo before this one.
    fn is_of_others(&self, layout: &Layout) -> Result<bool, String> {
        let to = fleet::reach(layout, "ron-ledger")?;
        let ledger = LedgerClient::new(&to.url, Credential::none(), to.http);
        let head = ledger
            .head(within())
            .map_err(|e| format!("ron-ledger: {e}"))?;
        if head.seq == 0 {
            return Ok(false);
        }
        match self.wallet.operation(&fund_key(EPOCHS[0].0)?, within()) {
            Ok(_) => Ok(false),
            Err(ClientError::Refused { status: 404, .. }) => Ok(true),
            Err(error) => Err(wallet_failed(error)),
        }
    }

    /// Funds the pool once per epoch; the idempotency keys make a second run a replay.
    fn fund(&self) -> Result<(), String> {
        for (name, _) in EPOCHS {
            let request = IssueMoney {
                to: self.policy.pool.account.clone(),
                asset: self.policy.asset.clone(),
                amount_minor: self.policy.pool.amount_minor,
                details: Details::default(),
            };
            let key = fund_key(name)?;
            self.wallet
                .issue(&key, &request, within())
                .map_err(wallet_failed)?;
        }
        Ok(())
    }

    fn transfer(&self) -> Result<(), String> {
        let account =
            |name: &str| -> Result<Account, String> { name.parse().map_err(|e| format!("{e}")) };
        let asset: Asset = self.policy.asset.clone();
        let issue = IssueMoney {
            to: account("acct:demo-alice")?,
            asset: asset.clone(),
            amount_minor: Amount(1_000),
            details: Details::default(),
        };
        let key = idem("demo-issue-1")?;
        self.wallet
            .issue(&key, &issue, within())
            .map_err(wallet_failed)?;
        let transfer = Transfer {
            from: account("acct:demo-alice")?,
            to: account("acct:demo-bob")?,
            asset,
            amount_minor: Amount(250).into(),
            nonce: Some(1),
            details: Details::default(),
        };
        let key = idem("demo-transfer-1")?;
        self.wallet
            .transfer(&key, &transfer, within())
            .map(|_| ())
            .map_err(wallet_failed)
    }

    fn epoch(&self, name: &str, csv: &[u8]) -> Result<Row, String> {
        let epoch: EpochId = format!("rocketpool:{name}")
            .parse()
            .map_err(|e| format!("{e}"))?;
        let sealed = svc_rewarder::inputs::import::csv(csv, ImportKind::Totals)
            .map_err(|e| format!("epoch {name}: {e}"))?;
        let cid = sealed.info().cid;
        self.rewarder
            .put_csv(&cid, ImportKind::Totals, csv.to_vec(), within())
            .map_err(rewarder_failed)?;
        let request = ComputeRequest {
            snapshot: cid,
            policy_id: self.policy.id.clone(),
            policy_hash: self.policy_hash,
            dry_run: false,
            adjusts: None,
        };
        let wait = Duration::from_secs(10);
        let first = self
            .rewarder
            .compute(&epoch, &request, wait, within())
            .map_err(rewarder_failed)?;
        let run = self.settled(&epoch, first)?;
        let totals = run.totals.ok_or("a settled epoch without totals")?;
        Ok(Row {
            epoch: epoch.to_string(),
            recipients: totals.recipients,
            pool_minor: totals.pool_minor,
            paid_minor: totals.payout_minor,
            residual_minor: totals.residual_minor,
            manifest: run.commitment.ok_or("a settled epoch without a manifest")?,
            ledger_seq: run
                .settlement
                .close_seq
                .ok_or("a settled epoch without its ledger entry")?,
        })
    }

    fn settled(&self, epoch: &EpochId, mut run: EpochRun) -> Result<EpochRun, String> {
        let end = Deadline::within(SETTLE);
        loop {
            match run.state {
                RunState::Settled => return Ok(run),
                RunState::Failed | RunState::Quarantined => {
                    let why = run.reason.map_or_else(
                        || "no reason given".to_owned(),
                        |r| format!("{}: {}", r.code, r.detail),
                    );
                    return Err(format!("epoch {epoch} is {}: {why}", run.state.as_str()));
                }
                _ if end.expired() => {
                    let why = run
                        .reason
                        .map_or_else(String::new, |r| format!(" ({}: {})", r.code, r.detail));
                    return Err(format!(
                        "epoch {epoch} is still {}{why}",
                        run.state.as_str()
                    ));
                }
                _ => {}
            }
            net::pause(Duration::from_millis(20));
            run = self
                .rewarder
                .epoch(epoch, within())
                .map_err(rewarder_failed)?;
        }
    }
}

/// Asks on the terminal whether the demo may write to a ledger that others use; without a terminal, it may not.
fn confirm(layout: &Layout) -> Result<(), String> {
    let what = format!(
        "the ledger in {} has entries that are not of a demo; the demo adds about 10,000 payouts that stay in it for ever",
        layout.root.display()
    );
    let another = "hint: use a directory of its own (`ron up --data-dir DIRECTORY --base-port 0`, `ron demo --data-dir DIRECTORY`)";
    if !std::io::stdin().is_terminal() {
        return Err(format!("{what}\n{another}, or --yes"));
    }
    eprint!("{what}\n{another}\nType yes to write to it: ");
    let mut answer = String::new();
    let read = std::io::stderr()
        .flush()
        .and_then(|()| std::io::stdin().read_line(&mut answer));
    read.map_err(|e| format!("cannot read the answer: {e}"))?;
    if answer.trim() == "yes" {
        Ok(())
    } else {
        Err("nothing was written".to_owned())
    }
}

fn within() -> Deadline {
    Deadline::within(CALL)
}

/// Idempotency key of an epoch's money. That of the first epoch is the first that a demo uses.
fn fund_key(epoch: &str) -> Result<IdemKey, String> {
    idem(&format!("demo-fund-{epoch}"))
}

fn idem(text: &str) -> Result<IdemKey, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn wallet_failed(e: ClientError) -> String {
    format!("svc-wallet: {e}")
}

fn rewarder_failed(e: ClientError) -> String {
    format!("svc-rewarder: {e}")
}

fn print(rows: &[Row], json: bool) -> Result<(), String> {
    if json {
        for row in rows {
            println!("{}", serde_json::to_string(row).map_err(|e| e.to_string())?);
        }
        return Ok(());
    }
    println!(
        "{:<14} {:>10} {:>21} {:>21} {:>16} {:>7}  manifest",
        "epoch", "recipients", "pool", "paid", "residual", "seq"
    );
    for r in rows {
        let text = |a: &Amount| a.to_string();
        println!(
            "{:<14} {:>10} {:>21} {:>21} {:>16} {:>7}  {}",
            r.epoch,
            r.recipients,
            text(&r.pool_minor),
            text(&r.paid_minor),
            text(&r.residual_minor),
            r.ledger_seq,
            r.manifest
        );
    }
    Ok(())
}

fn checks(layout: &Layout) -> Result<(), String> {
    let keys = verifiers::read(layout)?;
    eprintln!(
        "{}",
        check::audit::dir_verdict(&layout.data("ron-kms").join("audit"), &keys.audit_vkey)?
    );
    eprintln!(
        "{}",
        check::ledger_dir(&layout.data("ron-ledger").join("log"), &keys.ledger_vkey)?
    );
    let revocations = layout.data("svc-passport").join(svc_passport::LOG_DIR);
    eprintln!(
        "{}",
        check::revocations_dir(&revocations, &keys.revocations_vkey)?
    );
    let pins = check::kept_pins(layout)?;
    for dir in check::run_dirs(layout)? {
        eprintln!("{}", check::run_dir(&dir, &pins)?);
    }
    eprintln!("every check passed");
    Ok(())
}
