//! `ron wallet` commands about the caller itself: what its token may spend, and its tenant's webhooks.

use clap::Subcommand;
use ron_client::WalletClient;
use ron_proto::wallet::{ResumeWebhook, WebhookDoc, WebhookState};

use super::show::cell;
use super::{Fresh, deadline, explain};
use crate::table::{Form, Out, Table, column, sparse};

#[derive(Subcommand)]
pub enum CallerCommand {
    /// Show what the token may still spend: its caveats ceiling.total and ceiling.daily.
    Budget {
        #[command(flatten)]
        fresh: Fresh,
    },
    /// List the webhook endpoints of the tenant, and how far each is.
    Webhooks,
    /// Send to a disabled or failing webhook endpoint again at once.
    ResumeWebhook {
        /// Name of the endpoint in the configuration.
        name: String,
        /// Send everything after this sequence number, also what was sent before; the old cursor stays when absent.
        #[arg(long)]
        after: Option<u64>,
    },
}

pub fn run(wallet: &WalletClient, command: CallerCommand, out: Out) -> Result<(), String> {
    match command {
        CallerCommand::Budget { fresh } => budget(&wallet.knowing(fresh.min_seq), out),
        CallerCommand::Webhooks => {
            let doc = explain(wallet.webhooks(deadline()))?;
            out.table(&doc, &of_webhooks(&doc.webhooks))
        }
        CallerCommand::ResumeWebhook { name, after } => {
            let request = ResumeWebhook { after };
            let doc = explain(wallet.resume_webhook(&name, &request, deadline()))?;
            out.table(&doc, &of_webhooks(std::slice::from_ref(&doc)))
        }
    }
}

fn budget(wallet: &WalletClient, out: Out) -> Result<(), String> {
    let doc = explain(wallet.budget(deadline()))?;
    let mut table = Table::new(&["limit", "of", "left"]);
    for (name, allowance) in [("total", &doc.total), ("daily", &doc.daily)] {
        if let Some(a) = allowance {
            table.row([
                name.to_owned(),
                a.limit_minor.to_string(),
                a.left_minor.to_string(),
            ]);
        }
    }
    if out.form == Form::Text && table.rows.is_empty() {
        out.note("the token has no spending limit of its own");
        return Ok(());
    }
    out.table(&doc, &table)
}

fn of_webhooks(webhooks: &[WebhookDoc]) -> Table {
    let mut table = Table::of(&[
        column("name"),
        column("state"),
        column("after"),
        column("behind"),
        column("accounts"),
        column("url"),
        sparse("failing since"),
        sparse("failure"),
    ]);
    for w in webhooks {
        let state = match w.state {
            WebhookState::Active => "active",
            WebhookState::Failing => "failing",
            WebhookState::Disabled => "disabled",
        };
        table.row([
            w.name.clone(),
            state.to_owned(),
            w.after.to_string(),
            w.behind.to_string(),
            w.accounts.join(" "),
            w.url.clone(),
            cell(w.failing_since),
            cell(w.failure.as_ref()),
        ]);
    }
    table
}
