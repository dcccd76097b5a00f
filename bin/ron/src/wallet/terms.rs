//! `ron wallet` commands about what holds for accounts and assets: freezes, classes, limits, closing,
//! registration, trial balance.

use clap::{Args, Subcommand};
use ron_client::WalletClient;
use ron_proto::ledger::{
    AccountClass, AccountDoc, AssetLimits, AssetPage, AssetTitle, PointInTime, Sides, TrialBalance,
};
use ron_proto::wallet::{FreezeAccount, SetAccount, SetAsset};
use ron_proto::{Account, Amount, Asset, SignedAmount};

use super::reads::PAGE;
use super::show::{cell, transaction};
use super::writes::{Once, Remark};
use super::{Fresh, deadline, explain};
use crate::table::{Form, Out, Table, column, sparse};

#[derive(Subcommand)]
pub enum TermsCommand {
    /// Show an account: balances in all assets, limits, class, whether it is frozen or closed.
    Account {
        /// Account to show.
        account: Account,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Open or close an account, or set its class, freeze or limits; the rest stays as it is.
    SetAccount {
        /// Account to change.
        account: Account,
        /// Close the account, which must be empty.
        #[arg(long, conflicts_with = "open")]
        close: bool,
        /// Open it again.
        #[arg(long)]
        open: bool,
        /// The sides that are frozen from now on: none, debits, credits or both.
        #[arg(long)]
        frozen: Option<Sides>,
        /// Whether every debit has to carry the account's next nonce: true or false.
        #[arg(long)]
        require_nonce: Option<bool>,
        /// Label by which the trial balance sums accounts; an empty one takes it away.
        #[arg(long)]
        class: Option<AccountClass>,
        /// Asset of the limits that follow.
        #[arg(long)]
        asset: Option<Asset>,
        /// How far the account may be overdrawn, in minor units; 0 when only a maximum is given.
        #[arg(long, requires = "asset")]
        credit_limit: Option<Amount>,
        /// Maximum balance in minor units; without one a new credit limit takes the old maximum away.
        #[arg(long, requires = "asset")]
        max_balance: Option<Amount>,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        once: Once,
    },
    /// Make an account refuse debits (without --sides), credits or both.
    Freeze(FreezeArgs),
    /// Let an account accept debits and credits again (without --sides both).
    Unfreeze(FreezeArgs),
    /// Show scale and title of an asset.
    Asset {
        /// Asset to show.
        asset: Asset,
        #[command(flatten)]
        fresh: Fresh,
    },
    /// List the assets in which you may read something, with scale and title.
    Assets {
        #[command(flatten)]
        fresh: Fresh,
    },
    /// Register an asset, or change its title.
    SetAsset {
        /// Asset to register.
        asset: Asset,
        /// Decimal places between a minor unit and the unit that people write: 2 when 1 EUR is 100.
        #[arg(long)]
        scale: u8,
        /// Name for people.
        #[arg(long)]
        title: Option<AssetTitle>,
        #[command(flatten)]
        remark: Remark,
        #[command(flatten)]
        once: Once,
    },
    /// Sum credits and debits of an asset by class of account.
    TrialBalance {
        /// Asset to sum.
        asset: Asset,
        /// At this sequence number or time; now when absent.
        #[arg(long)]
        at: Option<PointInTime>,
        #[command(flatten)]
        fresh: Fresh,
    },
}

#[derive(Args)]
pub struct FreezeArgs {
    /// Account to change.
    account: Account,
    /// Sides of the account: debits, credits or both.
    #[arg(long)]
    sides: Option<Sides>,
    #[command(flatten)]
    remark: Remark,
    #[command(flatten)]
    once: Once,
}

impl FreezeArgs {
    fn request(self) -> Result<(Once, Account, FreezeAccount), String> {
        let request = FreezeAccount {
            sides: self.sides,
            details: self.remark.details()?,
        };
        Ok((self.once, self.account, request))
    }
}

pub fn run(wallet: &WalletClient, command: TermsCommand, out: Out) -> Result<(), String> {
    match command {
        TermsCommand::Account { account, fresh } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let doc = explain(wallet.account(&account, deadline()))?;
            out.table(&doc, &of_account(&doc))?;
            out.note(&state(&doc));
            Ok(())
        }
        TermsCommand::Assets { fresh } => {
            let page = assets(&wallet.knowing(fresh.min_seq))?;
            let mut table = Table::of(&[column("asset"), column("scale"), sparse("title")]);
            for row in &page.assets {
                let (asset, title) = (row.asset.to_string(), cell(row.title.as_ref()));
                table.row([asset, scale(row.scale), title]);
            }
            out.table(&page, &table)
        }
        TermsCommand::Asset { asset, fresh } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let doc = explain(wallet.asset(&asset, deadline()))?;
            let mut fields = vec![
                ("asset", doc.asset.to_string()),
                ("scale", scale(doc.scale)),
            ];
            let title = doc.title.as_ref().map(ToString::to_string);
            fields.extend(title.map(|title| ("title", title)));
            out.fields(&doc, &fields)
        }
        TermsCommand::TrialBalance { asset, at, fresh } => {
            let wallet = wallet.knowing(fresh.min_seq);
            let doc = explain(wallet.trial_balance(&asset, at, deadline()))?;
            out.table(&doc, &of_trial_balance(&doc))?;
            if matches!(out.form, Form::Text) {
                let (issued, burned) = (doc.issued_minor, doc.burned_minor);
                out.note(&format!("issued: {issued}, burned: {burned}"));
            }
            Ok(())
        }
        write => set(wallet, write, out),
    }
}

fn scale(scale: Option<u8>) -> String {
    scale.map_or_else(|| "not registered".to_owned(), |scale| scale.to_string())
}

/// All pages of the assets.
fn assets(wallet: &WalletClient) -> Result<AssetPage, String> {
    let limit = ("limit", PAGE.to_string());
    let mut all = explain(wallet.assets(std::slice::from_ref(&limit), deadline()))?;
    while let Some(next) = all.next.take() {
        let query = [limit.clone(), ("after", next.to_string())];
        let page = explain(wallet.assets(&query, deadline()))?;
        all.assets.extend(page.assets);
        (all.next, all.seq) = (page.next, page.seq);
    }
    Ok(all)
}

fn set(wallet: &WalletClient, command: TermsCommand, out: Out) -> Result<(), String> {
    let answer = match command {
        TermsCommand::SetAccount {
            account,
            close,
            open,
            frozen,
            require_nonce,
            class,
            asset,
            credit_limit,
            max_balance,
            remark,
            once,
        } => {
            let request = SetAccount {
                closed: (close || open).then_some(close),
                frozen,
                require_nonce,
                class,
                limits: asset.map(|asset| AssetLimits {
                    asset,
                    credit_limit_minor: credit_limit.unwrap_or_default(),
                    max_balance_minor: max_balance,
                }),
                details: remark.details()?,
            };
            once.send(wallet, |key, by| {
                wallet.set_account(key, &account, &request, by)
            })
        }
        TermsCommand::Freeze(args) => {
            let (once, account, request) = args.request()?;
            once.send(wallet, |key, by| wallet.freeze(key, &account, &request, by))
        }
        TermsCommand::Unfreeze(args) => {
            let (once, account, request) = args.request()?;
            once.send(wallet, |key, by| {
                wallet.unfreeze(key, &account, &request, by)
            })
        }
        TermsCommand::SetAsset {
            asset,
            scale,
            title,
            remark,
            once,
        } => {
            let request = SetAsset {
                scale,
                title,
                details: remark.details()?,
            };
            once.send(wallet, |key, by| {
                wallet.set_asset(key, &asset, &request, by)
            })
        }
        TermsCommand::Account { .. }
        | TermsCommand::Asset { .. }
        | TermsCommand::Assets { .. }
        | TermsCommand::TrialBalance { .. } => return Err("this command writes nothing".to_owned()),
    };
    transaction(out, &answer?)
}

fn of_account(doc: &AccountDoc) -> Table {
    let mut table = Table::new(&[
        "asset",
        "balance",
        "available",
        "held",
        "credits",
        "debits",
        "credit limit",
        "maximum",
    ]);
    for b in &doc.balances {
        let most = b.max_balance_minor.map(|most| most.to_string());
        table.row([
            b.asset.to_string(),
            SignedAmount::of(b.amount_minor.0, b.overdrawn_minor.0).to_string(),
            b.available_minor.to_string(),
            b.held_minor.to_string(),
            b.credits_minor.to_string(),
            b.debits_minor.to_string(),
            b.credit_limit_minor.to_string(),
            most.unwrap_or_default(),
        ]);
    }
    table
}

/// What holds for the account as a whole, on one line.
fn state(doc: &AccountDoc) -> String {
    let mut parts = vec![if doc.closed { "closed" } else { "open" }.to_owned()];
    if !doc.frozen.is_none() {
        parts.push(format!("frozen: {}", doc.frozen));
    }
    parts.extend(doc.class.as_ref().map(|class| format!("class: {class}")));
    let required = if doc.require_nonce { ", required" } else { "" };
    parts.push(format!("nonce: {}{required}", doc.nonce));
    parts.push(format!("open holds: {}", doc.holds.len()));
    parts.join(", ")
}

fn of_trial_balance(doc: &TrialBalance) -> Table {
    let mut table = Table::new(&["class", "accounts", "credits", "debits", "balance"]);
    for c in &doc.classes {
        table.row([
            cell(c.class.as_ref()),
            c.accounts.to_string(),
            c.credits_minor.to_string(),
            c.debits_minor.to_string(),
            c.balance_minor.to_string(),
        ]);
    }
    let accounts: u64 = doc.classes.iter().map(|c| c.accounts).sum();
    table.row([
        "all".to_owned(),
        accounts.to_string(),
        doc.credits_minor.to_string(),
        doc.debits_minor.to_string(),
        doc.supply_minor.to_string(),
    ]);
    table
}
