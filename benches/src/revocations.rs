//! The revocations of a follower: what many live entries cost, on one thread and without a network.

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use ron_auth::{Claims, RevocationView};
use ron_proto::Timestamp;
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};

use crate::machine;

/// Revocations at a follower, on one thread.
#[derive(Args)]
pub struct RevocationArgs {
    /// Live revoked tokens.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    entries: u64,
    /// Rounds per figure; the fastest counts.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

const PAGE: u64 = 1_000;
const NOW_S: u64 = 1_800_000_000;
const CHECKS: u64 = 10_000;

/// Reads a feed of that many events, and prints a table.
pub fn run(args: &RevocationArgs) -> Result<(), String> {
    let before = machine::status(std::process::id(), "VmRSS")?;
    let began = Instant::now();
    let mut view = RevocationView::default();
    while view.after() < args.entries {
        let last = (view.after() + PAGE).min(args.entries);
        apply(&mut view, last)?;
    }
    let start = began.elapsed();
    let memory = machine::status(std::process::id(), "VmRSS")?.saturating_sub(before);

    let mut page_ns = f64::INFINITY;
    let mut copy_ns = f64::INFINITY;
    for _ in 0..args.rounds {
        let began = Instant::now();
        let mut next = black_box(&view).clone();
        copy_ns = copy_ns.min(began.elapsed().as_nanos() as f64);
        let began = Instant::now();
        apply(&mut next, args.entries + PAGE)?;
        page_ns = page_ns.min(began.elapsed().as_nanos() as f64);
    }
    println!("| live entries | {} |\n|---|--:|", args.entries);
    println!("| a start, which reads all, ms | {} |", start.as_millis());
    println!("| memory, KiB | {memory} |");
    println!(
        "| a page of {PAGE} more events, us | {:.0} |",
        page_ns / 1e3
    );
    println!(
        "| the copy of the view that a poll with new events makes, us | {:.0} |",
        copy_ns / 1e3
    );
    println!("| the check of a token, ns | {:.0} |", check(&view, args)?);
    Ok(())
}

/// Applies the events up to `last` as one page. They are made as it is read, which counts with it: a follower parses them.
fn apply(view: &mut RevocationView, last: u64) -> Result<(), String> {
    let event = |seq| RevocationEvent {
        seq,
        ts: Timestamp(NOW_S * 1000),
        revoked: Revoked::Jti {
            jti: jti(seq),
            until: NOW_S + 600,
        },
        salt: Bytes::default(),
        by: Bytes::default(),
    };
    let page = RevocationPage {
        events: (view.after() + 1..=last).map(event).collect(),
        next: last,
        current_epoch: 1,
        checkpoint: String::new(),
    };
    view.apply(&page, true, NOW_S)
        .map_err(|gap| gap.to_string())
}

fn jti(number: u64) -> String {
    format!("1.{number}.0123456789abcdef0123456789abcdef")
}

/// Nanoseconds for a token that is not revoked.
fn check(view: &RevocationView, args: &RevocationArgs) -> Result<f64, String> {
    let tenant = "default".parse().map_err(|_| "no tenant".to_owned())?;
    let claims = Claims {
        iss: "http://issuer".into(),
        sub: "user:1".into(),
        iat: NOW_S,
        nbf: NOW_S,
        exp: NOW_S + 600,
        jti: jti(args.entries / 2) + "0",
        client_id: None,
        tenant,
        scopes: Vec::new(),
        epoch: 1,
        caveats: Vec::new(),
        kid: "key".into(),
        pq_kid: None,
        jkt: None,
        x5t: None,
        ancestors: Vec::new(),
        budgets: Vec::new(),
    };
    let mut fastest = f64::INFINITY;
    for _ in 0..args.rounds {
        let began = Instant::now();
        for _ in 0..CHECKS {
            let checked = black_box(view).check(black_box(&claims));
            checked.map_err(|why| format!("{why:?}"))?;
        }
        fastest = fastest.min(began.elapsed().as_nanos() as f64 / CHECKS as f64);
    }
    Ok(fastest)
}
