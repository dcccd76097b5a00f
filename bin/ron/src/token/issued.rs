//! `ron token issued`: which tokens the issuer has issued.

use clap::Args;
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::passport::IssuedTokens;

use super::{WAIT, administered};
use crate::layout::Place;
use crate::table::{Form, Out, Table};

/// Maximum tokens of one answer of the issuer.
const PAGE: usize = 1000;

#[derive(Args)]
pub struct IssuedArgs {
    #[command(flatten)]
    place: Place,
    /// Only tokens of this client.
    #[arg(long)]
    client: Option<String>,
    /// Only tokens for this service.
    #[arg(long)]
    audience: Option<String>,
    /// Only tokens of this holder.
    #[arg(long)]
    subject: Option<String>,
    /// Only tokens issued from this time on, such as 2026-12-01T00:00:00Z.
    #[arg(long)]
    since: Option<Timestamp>,
    /// Only tokens issued before this time.
    #[arg(long)]
    until: Option<Timestamp>,
    /// Maximum number of tokens.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &IssuedArgs) -> Result<(), String> {
    let out = Out {
        form: Form::of(args.json, args.csv),
    };
    let passport = administered(&args.place.layout()?)?;
    let mut filters = Vec::new();
    let mut filter = |name, value: Option<String>| filters.extend(value.map(|v| (name, v)));
    filter("client", args.client.clone());
    filter("audience", args.audience.clone());
    filter("subject", args.subject.clone());
    filter("since", args.since.map(|at| at.to_string()));
    filter("until", args.until.map(|at| at.to_string()));
    let mut all = IssuedTokens::default();
    while all.tokens.len() < args.limit {
        let mut query = filters.clone();
        let left = args.limit - all.tokens.len();
        query.push(("limit", left.min(PAGE).to_string()));
        query.extend(all.next.take().map(|next| ("before", next)));
        let page = passport
            .issued(&query, Deadline::within(WAIT))
            .map_err(|e| format!("svc-passport: {e}"))?;
        all.tokens.extend(page.tokens);
        all.next = page.next;
        all.lost += page.lost;
        if all.next.is_none() {
            break;
        }
    }
    let mut table = Table::new(&[
        "issued", "expires", "client", "holder", "audience", "scope", "jti",
    ]);
    for one in &all.tokens {
        table.row([
            one.issued.to_string(),
            one.expires.to_string(),
            one.client_id.clone(),
            one.subject.clone().unwrap_or_default(),
            one.audience.clone(),
            one.scope.clone().unwrap_or_default(),
            one.jti.clone(),
        ]);
    }
    if all.lost > 0 {
        let lost = all.lost;
        eprintln!(
            "{lost} records in between are damaged; the log of ron-kms has a leaf for each signature"
        );
    }
    out.table(&all, &table)
}
