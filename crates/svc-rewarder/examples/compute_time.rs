//! How long an epoch takes: makes deterministic usage for N accounts (default 1,000,000) with
//! three metrics and real skew, then times each stage on T threads (default: all cores).
//!
//! `cargo run --release -p svc-rewarder --example compute_time -- [N] [T]`

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use ron_crypto::sign::Ed25519Key;
use ron_kernel::{Clock, SystemClock};
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ImportKind, POLICY_KIND};
use ron_proto::{b64, jcs};
use ron_service::pinned::{KeyRing, PinnedKey};
use svc_rewarder::inputs::policy::{VerifiedPolicy, verify};
use svc_rewarder::inputs::{import, snapshot::Sealed, source::Target};
use svc_rewarder::manifest::{self, compute_to, reader::Reader};

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
    let dir = std::env::temp_dir().join(format!("compute-time-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let result = stages(accounts, &dir);
    std::fs::remove_dir_all(&dir)?;
    result
}

/// From a CSV file to a run directory, every file as large as it has to be, memory bounded.
fn stages(accounts: u64, dir: &Path) -> Result<(), Failure> {
    let text = dir.join("usage.csv");
    timed("make CSV", || csv(accounts, &text))?;
    let options = import::Options {
        kind: ImportKind::Totals,
        target: Target::file(&dir.join("snapshot.bin"))?,
        spill: Some(import::Spill {
            memory: 256 << 20,
            scratch: dir.to_owned(),
        }),
    };
    let source = std::fs::File::open(&text)?;
    let sealed = timed("import and seal", || {
        import::import([(import::Format::Csv, source)], options).map_err(|(_, error)| error)
    })?;
    println!("  {} bytes sealed", sealed.source().len());
    drop(sealed);
    let policy = policy()?;
    let (tenant, epoch) = ("default".parse()?, "bench".parse()?);
    let sealed = timed("read and check sealed", || {
        Sealed::open(&dir.join("snapshot.bin"))
    })?;
    let target = Target::file(&dir.join("payouts.bin"))?;
    let computed = timed("compute (shares, table, tree, manifest)", || {
        compute_to(target, &tenant, &epoch, &sealed, &policy, &())
    })?;
    let run = dir.join("run");
    timed("make artifacts durable", || {
        manifest::dir::write(&run, &computed, &sealed, &policy)
    })?;
    let reader = timed("open for reading", || Reader::open(&run))?;
    let middle = reader.range(reader.len() / 2, reader.len() / 2 + 1)?;
    timed("one proof", || reader.prove(&middle[0].account))?;
    println!("  peak memory {} KiB", peak_memory());
    let totals = computed.manifest.totals;
    println!("  recipients {}", totals.recipients);
    println!("  payout     {}", totals.payout_minor);
    println!("  residual   {}", totals.residual_minor);
    println!("  commitment {}", computed.manifest.commitment);
    Ok(())
}

/// The kernel's high-water mark of resident memory, in KiB.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("?", |line| line.trim().trim_end_matches(" kB"))
        .to_owned()
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
fn csv(accounts: u64, path: &Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut text = std::io::BufWriter::new(std::fs::File::create(path)?);
    writeln!(text, "account,metric,amount")?;
    for row in 0..accounts {
        let account = format!("eth:0x{:016x}{:016x}{row:08x}", next(), next());
        let skew = 1 + u128::from(next() % 1_000) * u128::from(next() % 1_000);
        let collateral = skew * (1 << 60) + u128::from(next());
        writeln!(text, "{account},collateral,{collateral}")?;
        if row % 3 != 0 {
            writeln!(text, "{account},smoothing_pool,{}", next())?;
        }
        if row % 100 == 0 {
            writeln!(text, "{account},oracle,{}", u128::from(next()) * 97)?;
        }
    }
    text.flush()
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
