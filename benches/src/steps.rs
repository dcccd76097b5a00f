//! Steps of the hot paths, each done a number of times on one thread, so that a program that counts instructions can measure them:
//! figures that depend neither on the machine's load nor on its clock. `cargo xtask instructions` does.

use std::hint::black_box;

use clap::{Args, ValueEnum};
use ron_auth::{Expect, JwksSnapshot, verify_jwt};
use ron_crypto::sign::Ed25519Key;
use ron_proto::ledger::CommitRequest;
use ron_proto::wallet::Transfer;
use ron_proto::{b64, strict};
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
}

const NOW_S: u64 = 1_800_000_000;
const ISSUER: &str = "http://127.0.0.1:7450";

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
