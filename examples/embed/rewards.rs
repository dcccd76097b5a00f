//! The reward calculus without a service: usage and a signed policy become exact payouts, a manifest, and a proof that
//! one recipient can check with the manifest alone.
//!
//! `embed-rewards DIR` writes the run to DIR/run.

use std::error::Error;
use std::path::Path;

use ron_crypto::sign::Ed25519Key;
use ron_files::Dir;
use ron_kernel::OsRandom;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ImportKind, POLICY_KIND};
use ron_proto::{Account, b64, jcs};
use ron_service::pinned::{KeyRing, PinnedKey};
use serde_json::json;
use svc_rewarder::inputs::import;
use svc_rewarder::inputs::policy::{VerifiedPolicy, verify};
use svc_rewarder::manifest::reader::prove;
use svc_rewarder::manifest::verify::check_proof;
use svc_rewarder::manifest::{self, compute};

type Failure = Box<dyn Error>;

// part: main
const USAGE: &str = "account,metric,amount
acct:alice,bytes,100
acct:bob,bytes,200
acct:carol,bytes,300
acct:carol,requests,7
";

fn main() -> Result<(), Failure> {
    let dir = std::env::args_os()
        .nth(1)
        .ok_or("usage: embed-rewards DIR")?;
    let run = Dir::os(Path::new(&dir).join("run"));
    let usage = import::csv(USAGE.as_bytes(), ImportKind::Totals)?;
    let computed = compute(
        &"default".parse()?,
        &"2026-w47".parse()?,
        None,
        &usage,
        &policy()?,
        &(),
    )?;
    let totals = computed.manifest.totals;
    println!(
        "pool {}, paid {}, left {}, recipients {}",
        totals.pool_minor, totals.payout_minor, totals.residual_minor, totals.recipients
    );
    if let Some(table) = &computed.table {
        for row in table.payouts()? {
            println!("{} {}", row.account, row.amount_minor);
        }
    }
    // Durable when it returns; anyone can compute the directory again and compare.
    manifest::dir::write(&run, &computed, &usage, &policy()?)?;
    check(&run, &"acct:bob".parse()?)
}
// end

// part: policy
/// A policy is accepted only with the signature of a pinned key.
fn policy() -> Result<VerifiedPolicy, Failure> {
    let document = json!({
        "format": 1, "tenant": "default", "id": "traffic", "version": 1, "rule_set": "hamilton/1", "asset": "ron",
        "pool": {"account": "pool:default/traffic", "amount_minor": "1000"},
        "metrics": {
            "bytes": {"weight": "1", "class": "metering"},
            "requests": {"weight": "1/2", "class": "metering"}
        },
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/traffic"}
    });
    let key = Ed25519Key::generate(&OsRandom);
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(&document));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "shop".into(),
        value: b64::url(&key.sign(&message)),
    };
    let pinned = KeyRing::new(vec![PinnedKey::new(None, key.public())]);
    Ok(verify(&document, &signature, &pinned)?)
}
// end

// part: proof
fn check(run: &Dir, account: &Account) -> Result<(), Failure> {
    let proof = prove(run, account)?;
    check_proof(&proof)?;
    println!(
        "proved: {} gets {} of this epoch",
        proof.payout.account, proof.payout.amount_minor
    );
    // A proof of any other payout fails.
    let mut forged = proof;
    forged.payout.amount_minor.0 += 1;
    match check_proof(&forged) {
        Ok(()) => Err("a forged proof passed".into()),
        Err(why) => {
            println!("a forged proof fails: {why}");
            Ok(())
        }
    }
}
// end
