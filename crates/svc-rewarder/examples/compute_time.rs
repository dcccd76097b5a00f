//! How long an epoch takes: makes deterministic usage for N accounts (default 1,000,000) with
//! three metrics and real skew, then times each stage on T threads (default: all cores).
//!
//! `cargo run --release -p svc-rewarder --example compute_time -- [N] [T]`

use std::error::Error;
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_kernel::{Clock, SystemClock};
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ImportKind, POLICY_KIND};
use ron_proto::{b64, jcs};
use ron_service::pinned::{KeyRing, PinnedKey};
use svc_rewarder::inputs::policy::{VerifiedPolicy, verify};
use svc_rewarder::inputs::{import, snapshot::Sealed};
use svc_rewarder::manifest::{compute, tree};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let accounts: u64 = arguments
        .next()
        .map_or(Ok(1_000_000), |text| text.parse())?;
    let threads: usize = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    pool.install(|| run(accounts, pool.current_num_threads()))
}

fn run(accounts: u64, threads: usize) -> Result<(), Failure> {
    println!("{accounts} accounts, {threads} threads");
    let text = timed("make CSV", || csv(accounts));
    let sealed = timed("import and seal", || {
        import::csv(text.as_bytes(), ImportKind::Totals)
    })?;
    println!(
        "  {} bytes of CSV, {} bytes sealed",
        text.len(),
        sealed.source().len()
    );
    let bytes = sealed.bytes().expect("in memory").to_vec();
    drop((text, sealed));
    let policy = policy()?;
    let tenant = "default".parse()?;
    let epoch = "bench".parse()?;
    let sealed = timed("read and check sealed", || Sealed::parse(bytes))?;
    let computed = timed("compute (shares, table, root, manifest)", || {
        compute(&tenant, &epoch, &sealed, &policy, &())
    })?;
    let table = computed.table.ok_or("the run was quarantined")?;
    timed("Merkle-sum root alone", || Tree::of(&table));
    timed("one proof", || tree.path(&table, table.len() / 2));
    let totals = computed.manifest.totals;
    println!("  recipients {}", totals.recipients);
    println!("  payout     {}", totals.payout_minor);
    println!("  residual   {}", totals.residual_minor);
    println!("  commitment {}", computed.manifest.commitment);
    Ok(())
}

fn timed<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let clock = SystemClock;
    let start = clock.now();
    let result = act();
    let took: Duration = clock.now() - start;
    println!("{what:<42} {:>9} us", took.as_micros());
    result
}

/// Heavy-tailed amounts above 2^64 from a fixed generator: the same text on every machine.
fn csv(accounts: u64) -> String {
    use std::fmt::Write as _;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut text = String::from("account,metric,amount\n");
    for row in 0..accounts {
        let account = format!("eth:0x{:016x}{:016x}{row:08x}", next(), next());
        let skew = 1 + u128::from(next() % 1_000) * u128::from(next() % 1_000);
        let collateral = skew * (1 << 60) + u128::from(next());
        let _ = writeln!(text, "{account},collateral,{collateral}");
        if row % 3 != 0 {
            let _ = writeln!(text, "{account},smoothing_pool,{}", next());
        }
        if row % 100 == 0 {
            let _ = writeln!(text, "{account},oracle,{}", u128::from(next()) * 97);
        }
    }
    text
}

fn policy() -> Result<VerifiedPolicy, Failure> {
    let document = serde_json::json!({
        "format": 1, "id": "bench", "version": 1, "rule_set": "hamilton/1", "asset": "rpl",
        "pool": {"account": "pool:bench", "amount_minor": "50000000000000000000000"},
        "metrics": {
            "collateral": {"weight": "1", "class": "metering"},
            "oracle": {"weight": "1/2", "class": "metering"},
            "smoothing_pool": {"weight": "40", "class": "metering"}
        },
        "classes_allowed": ["metering"],
        "min_payout_minor": "100000000000",
        "caps": {"account_minor": "500000000000000000"},
        "residual": {"owner": "pool:bench"}
    });
    let key = Ed25519Key::from_seed(&[7; 32]);
    let message = policy_message(POLICY_KIND, &jcs::canonicalize(&document));
    let signature = PolicySig {
        alg: "ed25519".into(),
        key: "bench".into(),
        value: b64::url(&key.sign(&message)),
    };
    Ok(verify(
        &document,
        &signature,
        &KeyRing::new(vec![PinnedKey::new(None, key.public())]),
    )?)
}
