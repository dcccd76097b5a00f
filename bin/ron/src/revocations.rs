//! `ron revocations`: what was revoked, by which caller and why, and the check of the log of it.

use clap::{Args, Subcommand};
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::passport::{RecordedRevocation, RecordedRevocations, Revoked};

use crate::check::{self, LogPlace};
use crate::layout::Place;
use crate::table::{Form, Out, Table};
use crate::token::{WAIT, administered};

/// Maximum revocations of one answer of the issuer.
const PAGE: usize = 1000;

/// List the issuer's revocations, and verify their log.
#[derive(Args)]
pub struct RevocationsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check every leaf, the tree, the checkpoint and its signature; names the first bad leaf.
    Verify(LogPlace),
    /// List what was revoked, by which caller and why, newest first.
    List(ListArgs),
}

#[derive(Args)]
struct ListArgs {
    #[command(flatten)]
    place: Place,
    /// Only those because of which a token may be refused now.
    #[arg(long)]
    in_force: bool,
    /// Only those from this time on, such as 2026-12-01T00:00:00Z.
    #[arg(long)]
    since: Option<Timestamp>,
    /// Maximum number of revocations.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: RevocationsArgs) -> Result<(), String> {
    match args.command {
        Command::Verify(place) => check::revocations(place),
        Command::List(args) => list(&args),
    }
}

fn list(args: &ListArgs) -> Result<(), String> {
    let out = Out {
        form: Form::of(args.json, args.csv),
    };
    let passport = administered(&args.place.layout()?)?;
    let mut all = RecordedRevocations {
        revocations: Vec::new(),
        next: None,
        current_epoch: 0,
    };
    loop {
        let left = args.limit.saturating_sub(all.revocations.len());
        if left == 0 {
            break;
        }
        let ask = (args.since, args.in_force, left.min(PAGE));
        let page = passport
            .revocations(all.next, ask, Deadline::within(WAIT))
            .map_err(|e| format!("svc-passport: {e}"))?;
        all.revocations.extend(page.revocations);
        (all.next, all.current_epoch) = (page.next, page.current_epoch);
        if all.next.is_none() {
            break;
        }
    }
    let mut table = Table::new(&[
        "event", "time", "in force", "kind", "what", "actor", "reason",
    ]);
    for one in &all.revocations {
        table.row(cells(one));
    }
    out.table(&all, &table)
}

fn cells(one: &RecordedRevocation) -> [String; 7] {
    let what = match &one.revoked {
        Revoked::Jti { jti, .. } => jti.clone(),
        Revoked::Subject { subject_ref, .. } => subject_ref.clone(),
        Revoked::Kid { kid } => kid.clone(),
        Revoked::Epoch { epoch } => epoch.to_string(),
        Revoked::Keys { count } => count.to_string(),
        Revoked::Policy { version } => version.to_string(),
    };
    [
        one.seq.to_string(),
        one.ts.to_string(),
        if one.in_force { "yes" } else { "no" }.to_owned(),
        one.revoked.kind().to_owned(),
        what,
        one.actor.clone(),
        one.reason.clone(),
    ]
}
