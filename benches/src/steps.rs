//! Steps of the hot paths, each done a number of times on one thread, so that a program that counts instructions can measure them:
//! figures that depend neither on the machine's load nor on its clock. `cargo xtask instructions` does.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use ron_auth::{Expect, JwksSnapshot, verify_jwt};
use ron_crypto::sign::Ed25519Key;
use ron_files::OsDisk;
use ron_kernel::SeededRandom;
use ron_ledger::core::Op;
use ron_ledger::engine::{Atomicity, Engine, EngineOptions, Request};
use ron_ledger::salts;
use ron_proto::ledger::{CommitRequest, Details, Entry};
use ron_proto::wallet::Transfer;
use ron_proto::{Amount, Timestamp, b64, strict};
use ron_tlog::Ed25519NoteSigner;
use serde_json::json;

use crate::json;

/// A step of a hot path, on one thread.
#[derive(Args)]
pub struct StepArgs {
    #[arg(value_enum)]
    step: Step,
    /// How often; all preparation is the same for every number.
    #[arg(long, default_value_t = 1_000)]
    times: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Step {
    /// Sign 100 bytes with Ed25519.
    Sign,
    /// Verify a passport that is in no cache.
    Verify,
    /// Parse the body of a transfer as the wallet does.
    Body,
    /// Parse the wallet's commit of 100 transfers as the ledger does.
    Commit,
    /// Make 64 transfers durable in the ledger, in process.
    Transfers,
}

const NOW_S: u64 = 1_800_000_000;
const ISSUER: &str = "http://127.0.0.1:7450";
/// Transfers of a batch, and accounts that they are between.
const BATCH: u64 = 64;
const ACCOUNTS: u64 = 1_000;

pub fn run(args: &StepArgs) -> Result<(), String> {
    let times = args.times;
    match args.step {
        Step::Sign => {
            let key = key();
            repeat(times, || Ok(key.sign(black_box(&[7; 100]))))
        }
        Step::Verify => verify(times),
        Step::Body => {
            let bytes = json::transfer().into_bytes();
            repeat(times, || {
                strict::from_slice::<Transfer>(black_box(&bytes)).map_err(|e| e.to_string())
            })
        }
        Step::Commit => {
            let bytes = json::commit()?;
            repeat(times, || {
                strict::from_slice::<CommitRequest>(black_box(&bytes)).map_err(|e| e.to_string())
            })
        }
        Step::Transfers => transfers(times),
    }
}

fn repeat<T>(times: u64, mut step: impl FnMut() -> Result<T, String>) -> Result<(), String> {
    (0..times).try_for_each(|_| step().map(|made| drop(black_box(made))))
}

fn key() -> Ed25519Key {
    Ed25519Key::from_seed(&[7; 32])
}

fn verify(times: u64) -> Result<(), String> {
    let key = key();
    let set = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "ed", "x": b64::url(&key.public())}]});
    let keys = JwksSnapshot::parse(set.to_string().as_bytes()).map_err(|e| e.to_string())?;
    let header = json!({"alg": "EdDSA", "kid": "ed", "typ": "at+jwt"}).to_string();
    let claims = json!({
        "iss": ISSUER, "sub": "alice", "aud": "svc-wallet", "iat": NOW_S, "nbf": NOW_S, "exp": NOW_S + 900, "jti": "j-1", "client_id": "cli",
        "tenant": "t1", "scope": "wallet:read wallet:transfer", "ron_epoch": 2,
        "authorization_details": [{"type": "ron", "caveats": ["asset=ron"]}]
    });
    let signed = format!(
        "{}.{}",
        b64::url(header.as_bytes()),
        b64::url(claims.to_string().as_bytes())
    );
    let token = format!("{signed}.{}", b64::url(&key.sign(signed.as_bytes())));
    let expect = Expect {
        issuers: &[ISSUER],
        audience: "svc-wallet",
        now_s: NOW_S + 10,
    };
    repeat(times, || {
        verify_jwt(black_box(&token), &keys, &expect).map_err(|e| format!("{e:?}"))
    })
}

/// Batches of transfers between funded accounts in a ledger of its own.
fn transfers(times: u64) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut engine = open(dir.path())?;
    for first in (0..ACCOUNTS).step_by(BATCH as usize) {
        let ops = (first..ACCOUNTS.min(first + BATCH)).map(|n| op(entry(n, None, n)?));
        commit(&mut engine, ops.collect::<Result<_, String>>()?)?;
    }
    let mut serial = ACCOUNTS;
    repeat(times, || {
        let ops = (0..BATCH).map(|_| {
            serial += 1;
            let from = serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let to = from + 1 + serial % (ACCOUNTS - 1);
            op(entry(to % ACCOUNTS, Some(from % ACCOUNTS), serial)?)
        });
        commit(&mut engine, ops.collect::<Result<_, String>>()?)
    })
}

fn open(dir: &Path) -> Result<Engine, String> {
    let signer = Ed25519NoteSigner::new("bench/ledger", key()).map_err(|e| e.to_string())?;
    let mut options = EngineOptions::new("bench/ledger");
    options.verifier = Some(signer.verifier().clone());
    let now = Timestamp(NOW_S * 1_000);
    Engine::open(Arc::new(OsDisk), dir, options, now).map_err(|e| e.to_string())
}

fn op(entry: Entry) -> Result<Op, String> {
    Op::new(entry, &salts::one(&SeededRandom::new(7))).map_err(|e| format!("{e:?}"))
}

/// A transfer of one unit, or money for an account.
fn entry(to: u64, from: Option<u64>, serial: u64) -> Result<Entry, String> {
    let name = |n: u64| format!("acc:{n}").parse().map_err(|e| format!("{e}"));
    let (tenant, principal) = (
        "t".parse().map_err(|e| format!("{e}"))?,
        "bench".parse().map_err(|e| format!("{e}"))?,
    );
    let key = format!("key-{serial}")
        .parse()
        .map_err(|e| format!("{e}"))?;
    let asset = "ron".parse().map_err(|e| format!("{e}"))?;
    Ok(match from {
        None => Entry::Issue {
            tenant,
            principal,
            key,
            to: name(to)?,
            asset,
            amount_minor: Amount(1_000_000_000),
            details: Details::default(),
            batch: None,
            budgets: Vec::new(),
        },
        Some(from) => Entry::Transfer {
            tenant,
            principal,
            key,
            from: name(from)?,
            to: name(to)?,
            asset,
            amount_minor: Amount(1),
            up_to: None,
            nonce: None,
            details: Details::default(),
            batch: None,
            daily_ceiling: None,
            budgets: Vec::new(),
        },
    })
}

fn commit(engine: &mut Engine, ops: Vec<Op>) -> Result<(), String> {
    let request = |op| Request {
        ops: vec![op],
        atomicity: Atomicity::Independent,
    };
    let requests: Vec<Request> = ops.into_iter().map(request).collect();
    let now = Timestamp(NOW_S * 1_000);
    let decided = engine.commit(now, &requests).map_err(|e| e.to_string())?;
    let all_done = decided.outcomes.iter().flatten().all(
        |o| matches!(o, ron_ledger::core::Outcome::Fresh { verdict, .. } if verdict.is_done()),
    );
    if all_done {
        Ok(())
    } else {
        Err("a transfer was refused".to_owned())
    }
}
