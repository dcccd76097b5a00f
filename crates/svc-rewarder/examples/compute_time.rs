//! How long an epoch takes, and how much memory: deterministic usage of N accounts with three
//! metrics and real skew, from a CSV file to a run directory. Each part is a process of its own, so
//! that its memory is its own.
//!
//! ```text
//! compute_time make N DIR       writes DIR/usage.csv and DIR/policy.json
//! compute_time import DIR       seals it to DIR/snapshot.bin
//! compute_time run DIR [T]      reads it, computes, makes the artifacts durable, proves, on T threads
//! compute_time [N] [T]          all of it in a temporary directory
//! ```
//!
//! Every line of output is a JSON object. Amounts and pool are small enough that other programs can
//! compute the same shares exactly in 128 bits.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use ron_crypto::sign::Ed25519Key;
use ron_files::{Dir, OsDisk};
use ron_kernel::{Clock, SystemClock};
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::rewarder::{ImportKind, POLICY_KIND};
use ron_proto::{b64, jcs};
use ron_service::pinned::{KeyRing, PinnedKey};
use serde_json::{Value, json};
use svc_rewarder::inputs::policy::{VerifiedPolicy, verify};
use svc_rewarder::inputs::{import, snapshot::Sealed, source::Target};
use svc_rewarder::manifest::{self, compute_to, reader::Reader};

type Failure = Box<dyn Error + Send + Sync>;

/// Memory limit of the import, in bytes.
const IMPORT_MEMORY: usize = 256 << 20;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["make", accounts, dir] => make(accounts.parse()?, Path::new(dir)),
        ["import", dir] => seal(Path::new(dir)),
        ["run", dir] => on(0, || run(Path::new(dir))),
        ["run", dir, threads] => on(threads.parse()?, || run(Path::new(dir))),
        [] => all("1000000", "0"),
        [accounts] => all(accounts, "0"),
        [accounts, threads] => all(accounts, threads),
        _ => Err("see the first lines of this example".into()),
    }
}

/// Runs each part in a process of its own.
fn all(accounts: &str, threads: &str) -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("compute-time-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let place = dir.display().to_string();
    let parts: [&[&str]; 3] = [
        &["make", accounts, &place],
        &["import", &place],
        &["run", &place, threads],
    ];
    let mut good = true;
    for part in parts {
        good = good
            && Command::new(std::env::current_exe()?)
                .args(part)
                .status()?
                .success();
    }
    std::fs::remove_dir_all(&dir)?;
    if good {
        Ok(())
    } else {
        Err("a part failed".into())
    }
}

fn on(threads: usize, act: impl FnOnce() -> Result<(), Failure> + Send) -> Result<(), Failure> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    pool.install(act)
}

fn make(accounts: u64, dir: &Path) -> Result<(), Failure> {
    let document = document();
    std::fs::write(dir.join("policy.json"), jcs::canonicalize(&document))?;
    csv(accounts, &dir.join("usage.csv"))?;
    println!("{}", json!({"part": "make", "accounts": accounts}));
    Ok(())
}

fn seal(dir: &Path) -> Result<(), Failure> {
    let options = import::Options {
        kind: ImportKind::Totals,
        period: None,
        target: Target::file(&OsDisk, &dir.join("snapshot.bin"))?,
        rows_max: u64::MAX,
        cancel: None,
        spill: Some(import::Spill {
            memory: IMPORT_MEMORY,
            dir: Dir::os(dir.join("import")),
        }),
    };
    let source = std::fs::File::open(dir.join("usage.csv"))?;
    let text_bytes = source.metadata()?.len();
    let (sealed, import_us) = timed(|| {
        import::import([(import::Format::Csv, source)], options).map_err(|(_, error)| error)
    });
    let sealed = sealed?;
    let line = json!({
        "part": "import", "import_us": import_us, "csv_bytes": text_bytes,
        "sealed_bytes": sealed.source().len(), "accounts": sealed.info().accounts,
        "peak_kib": peak_kib(),
    });
    println!("{line}");
    Ok(())
}

/// From a sealed snapshot to a durable run directory and a proof, memory bounded.
fn run(dir: &Path) -> Result<(), Failure> {
    let policy = policy()?;
    let (tenant, epoch) = ("default".parse()?, "bench".parse()?);
    let (sealed, read_us) = timed(|| Sealed::open(&OsDisk, &dir.join("snapshot.bin")));
    let sealed = sealed?;
    let target = Target::file(&OsDisk, &dir.join("payouts.bin"))?;
    let (computed, compute_us) =
        timed(|| compute_to(target, &tenant, &epoch, None, &sealed, &policy, &()));
    let computed = computed?;
    let out = Dir::os(dir.join("run"));
    let _ = out.remove_all(); // of an earlier try
    let (written, artifacts_us) = timed(|| manifest::dir::write(&out, &computed, &sealed, &policy));
    written?;
    let (reader, open_us) = timed(|| Reader::open(&out));
    let reader = reader?;
    let middle = reader.range(reader.len() / 2, reader.len() / 2 + 1)?;
    let account = &middle.first().ok_or("nobody is paid")?.account;
    let (proof, prove_us) = timed(|| reader.prove(account));
    proof?;
    let totals = computed.manifest.totals;
    let line = json!({
        "part": "run", "threads": rayon::current_num_threads(),
        "accounts": sealed.info().accounts, "read_us": read_us, "compute_us": compute_us,
        "artifacts_us": artifacts_us, "open_us": open_us, "prove_us": prove_us,
        "total_us": read_us + compute_us + artifacts_us + open_us + prove_us,
        "peak_kib": peak_kib(), "recipients": totals.recipients,
        "payout_minor": totals.payout_minor, "residual_minor": totals.residual_minor,
        "commitment": computed.manifest.commitment,
    });
    println!("{line}");
    Ok(())
}

/// The kernel's high-water mark of resident memory, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let digits = line.map(|line| line.trim().trim_end_matches(" kB"));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The result, and the time it took in microseconds.
fn timed<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let clock = SystemClock;
    let start = clock.now();
    let result = act();
    let took = (clock.now() - start).as_micros();
    (result, u64::try_from(took).unwrap_or(u64::MAX))
}

/// Heavy-tailed amounts below 2^43 from a fixed generator: the same text on every machine.
fn csv(accounts: u64, path: &Path) -> std::io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut text = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    writeln!(text, "account,metric,amount")?;
    for row in 0..accounts {
        let account = format!("eth:0x{:016x}{:016x}{row:08x}", next(), next());
        let skew = 1 + next() % 1_000 * (next() % 1_000);
        let collateral = (skew << 22) + next() % (1 << 22);
        writeln!(text, "{account},collateral,{collateral}")?;
        if row % 3 != 0 {
            writeln!(text, "{account},smoothing_pool,{}", next() >> 28)?;
        }
        if row % 100 == 0 {
            writeln!(text, "{account},oracle,{}", next() >> 22)?;
        }
    }
    text.flush()
}

fn document() -> Value {
    json!({
        "format": 1, "tenant": "default", "id": "bench", "version": 1, "rule_set": "hamilton/1", "asset": "rpl",
        "pool": {"account": "pool:default/bench", "amount_minor": "50000000000000000000000"},
        "metrics": {
            "collateral": {"weight": "1", "class": "metering"},
            "oracle": {"weight": "1/2", "class": "metering"},
            "smoothing_pool": {"weight": "40", "class": "metering"}
        },
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/bench"}
    })
}

fn policy() -> Result<VerifiedPolicy, Failure> {
    let document = document();
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
