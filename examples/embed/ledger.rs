//! A ledger without a service: money is issued and moved, a replay is distinguished from an overdraft, and the whole
//! log is verified from its directory.
//!
//! `embed-ledger DIR` makes a ledger in DIR, which must be new.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_kernel::{Clock, OsRandom, SystemClock};
use ron_ledger::core::{Body, Debit, Entry, Header, Op, Outcome};
use ron_ledger::engine::{Atomicity, Engine, EngineOptions, Request};
use ron_ledger::salts;
use ron_ledger::verify::verify_dir;
use ron_proto::ledger::{RefusalCode, RequestKey};
use ron_proto::{Amount, Timestamp};
use ron_tlog::Ed25519NoteSigner;

type Failure = Box<dyn Error>;

// part: main
fn main() -> Result<(), Failure> {
    let dir = std::env::args_os()
        .nth(1)
        .ok_or("usage: embed-ledger DIR")?;
    let dir = Path::new(&dir);
    // A longer-lived program stores this seed, and gives its verifier key to its auditors.
    let signer = Ed25519NoteSigner::new("shop.example/ledger", Ed25519Key::generate(&OsRandom))?;
    let mut options = EngineOptions::new("shop.example/ledger");
    options.verifier = Some(signer.verifier().clone());
    let now = Timestamp(SystemClock.unix_ms());
    let mut engine = Engine::open(Arc::new(OsDisk), dir, options, now)?;

    tell(
        "issue",
        &commit(&mut engine, issue("order-1", "acct:alice", 1_000)?)?,
    );
    tell("transfer", &commit(&mut engine, transfer("order-2", 250)?)?);
    tell(
        "the same again",
        &commit(&mut engine, transfer("order-2", 250)?)?,
    );
    tell("too much", &commit(&mut engine, transfer("order-3", 800)?)?);

    // Readers see only what is durable.
    let bob = engine.shared().state(|state| {
        let asset = state.asset_ix(&"ron".parse().ok()?)?;
        let row = state.account(&"acct:bob".parse().ok()?)?;
        Some(row.balance(asset).level())
    });
    println!("acct:bob has {}", bob.ok_or("bob has no account")?);

    let mut checkpointer = engine.take_checkpointer().ok_or("taken already")?;
    checkpointer.publish(&[&signer])?;
    drop((checkpointer, engine));
    verify(dir, &signer)
}
// end

// part: commit
fn issue(key: &str, to: &str, minor: u128) -> Result<Op, Failure> {
    let body = Body::Issue {
        to: to.parse()?,
        asset: "ron".parse()?,
        amount: Amount(minor),
    };
    Ok(Op::new(
        Entry::new(header(key)?, body),
        &salts::one(&OsRandom),
    )?)
}

fn transfer(key: &str, minor: u128) -> Result<Op, Failure> {
    let debit = Debit {
        from: "acct:alice".parse()?,
        asset: "ron".parse()?,
        amount: Amount(minor),
        up_to: None,
        nonce: None,
    };
    let to = "acct:bob".parse()?;
    Ok(Op::new(
        Entry::new(header(key)?, Body::Transfer { debit, to }),
        &salts::one(&OsRandom),
    )?)
}

/// A key belongs to its tenant and principal, so two shops may use the same texts.
fn header(key: &str) -> Result<Header, Failure> {
    Ok(Header::keyed(RequestKey {
        tenant: "shop.example".parse()?,
        principal: "shop".parse()?,
        key: key.parse()?,
    }))
}

/// Decides one entry. When this returns, its leaf is on the disk.
fn commit(engine: &mut Engine, op: Op) -> Result<Outcome, Failure> {
    let now = Timestamp(SystemClock.unix_ms());
    let request = Request {
        ops: vec![op],
        atomicity: Atomicity::Independent,
    };
    let committed = engine.commit(now, &[request])?;
    let first = committed.outcomes.into_iter().flatten().next();
    Ok(first.ok_or("one entry has one outcome")?)
}

fn tell(what: &str, outcome: &Outcome) {
    match outcome {
        Outcome::Fresh { seq, verdict, .. } => match verdict.refusal() {
            None => println!("{what}: done, entry {seq}"),
            Some(why) => println!("{what}: refused, {}, entry {seq}", RefusalCode::from(why)),
        },
        Outcome::Known { seq } => println!("{what}: known, entry {seq} answered it"),
        Outcome::Mixed => println!("{what}: some of its keys are used"),
        Outcome::Rejected(why) => println!("{what}: refused, {}", RefusalCode::from(why)),
    }
}
// end

// part: verify
fn verify(dir: &Path, signer: &Ed25519NoteSigner) -> Result<(), Failure> {
    // Every leaf is proved against the signed checkpoint, and every decision is made again from the first.
    let report = verify_dir(dir, signer.verifier(), &mut |_, _| {})?;
    for asset in &report.assets {
        println!(
            "{}: issued {}, burned {}, in accounts {}",
            asset.asset, asset.issued, asset.burned, asset.circulating
        );
    }
    println!("{} entries verified", report.entries);
    Ok(())
}
// end
