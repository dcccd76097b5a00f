//! What an operation costs on disk: runs so many of each kind on a fleet of its own, and weighs its data directory, stopped, before and
//! after. Then the logs are archived, and their segments weighed again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::time::{Duration, Instant};

use clap::Args;
use ron_proto::b64;
use serde_json::{Value, json};

use crate::client::{Answer, Connection, request};
use crate::figures::{bearer, beside, issue, post, signing};
use crate::fleet::{self, Fleet};
use crate::wallet::{OWN_MAX, fund, tokens};

/// Items of a batch, of signatures and of transfers.
const BATCH: u64 = 100;
/// Entries of a segment: so many more than two of them make one that may be archived.
const SEGMENT: u64 = 65_536;
/// Pause after a refusal for want of room.
const AGAIN: Duration = Duration::from_millis(20);
/// Maximum time until the archive has a segment.
const ARCHIVED_WITHIN: Duration = Duration::from_secs(300);

#[derive(Args)]
pub struct SizeArgs {
    /// Operations of each kind.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    operations: u64,
    /// Also fill two segments of each log, in batches, and archive the first.
    #[arg(long)]
    archive: bool,
    /// New directory for the fleet.
    #[arg(long)]
    dir: PathBuf,
    /// Path of the `ron` binary; the one beside this program when absent.
    #[arg(long)]
    ron: Option<PathBuf>,
}

/// A kind of operation.
struct Kind {
    name: &'static str,
    /// Does so many, and returns how many were done.
    run: fn(&Fleet, u64) -> Result<u64, String>,
}

const KINDS: [Kind; 9] = [
    Kind {
        name: "signature, one per request",
        run: |fleet, n| sign(fleet, n, 1),
    },
    Kind {
        name: "signature, in batches of 100",
        run: |fleet, n| sign(fleet, n, BATCH),
    },
    Kind {
        name: "token issued",
        run: |fleet, n| issued(fleet, n).map(|tokens| tokens.len() as u64),
    },
    Kind {
        name: "token issued and revoked",
        run: revoked,
    },
    Kind {
        name: "issue of money",
        run: |fleet, n| money(fleet, "issue", n, 1),
    },
    Kind {
        name: "transfer, one per request",
        run: |fleet, n| money(fleet, "transfer", n, 1),
    },
    Kind {
        name: "transfer, in batches of 100",
        run: |fleet, n| money(fleet, "transfer", n, BATCH),
    },
    Kind {
        name: "transfer that is refused (no funds)",
        run: |fleet, n| money(fleet, "refused", n, 1),
    },
    Kind {
        name: "payee of an epoch",
        run: epochs,
    },
];

/// Runs all kinds and prints them.
pub fn run(args: &SizeArgs) -> Result<(), String> {
    let dir = absolute(&args.dir).map_err(|e| e.to_string())?;
    let ron = args.ron.clone().map_or_else(|| beside("ron"), Ok)?;
    fleet::prepare(&ron, &dir)?;
    let start = || Fleet::start_at(&ron, &dir, "info");
    println!("| operation | bytes | of which |\n|---|--:|---|");
    // Each start and stop leaves something, which is not the operations'.
    let before = weigh(&dir)?;
    drop(start()?);
    let idle = growth(&before, &weigh(&dir)?);
    for kind in &KINDS {
        let before = weigh(&dir)?;
        let fleet = start()?;
        let count = (kind.run)(&fleet, args.operations)?;
        drop(fleet);
        let grown = growth(&before, &weigh(&dir)?);
        println!("{}", row(kind.name, &grown, &idle, count));
    }
    if args.archive {
        archive(&ron, &dir)?;
    }
    print!("\n{}", fleet::checks(&ron, &dir)?);
    Ok(())
}

/// Bytes of the data directory, by what they belong to.
fn weigh(dir: &Path) -> Result<BTreeMap<String, i64>, String> {
    let mut weights = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        let failed = |e: std::io::Error| format!("{}: {e}", at.display());
        for entry in fs::read_dir(&at).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let meta = entry.metadata().map_err(failed)?;
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.is_file() {
                let path = entry.path();
                let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy();
                let len = i64::try_from(meta.len()).unwrap_or(i64::MAX);
                *weights.entry(part(&name)).or_default() += len;
            }
        }
    }
    Ok(weights)
}

/// The service and the directory or file of its data; of a log, its segments and the rest apart.
fn part(name: &str) -> String {
    let mut parts = name.split('/').filter(|part| *part != "data");
    let service = parts.next().unwrap_or_default();
    let of = parts.next().unwrap_or_default();
    let file = name.rsplit('/').next().unwrap_or_default();
    let of = of.trim_end_matches("-wal").trim_end_matches("-shm");
    if service == "logs" || of.is_empty() {
        return service.to_owned();
    }
    match Path::new(file).extension().and_then(|end| end.to_str()) {
        Some(end @ ("seg" | "idx" | "zst")) => format!("{service} {of} (.{end})"),
        _ => format!("{service} {of}"),
    }
}

fn growth(before: &BTreeMap<String, i64>, after: &BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let grown = |(part, bytes): (&String, &i64)| {
        (part.clone(), bytes - before.get(part).copied().unwrap_or(0))
    };
    after.iter().map(grown).collect()
}

/// A row of the table: bytes per operation, the largest parts first; parts below half a byte are left out.
fn row(
    name: &str,
    grown: &BTreeMap<String, i64>,
    idle: &BTreeMap<String, i64>,
    count: u64,
) -> String {
    let each = |(part, bytes): (&String, &i64)| {
        let own = bytes - idle.get(part).copied().unwrap_or(0);
        let each = own as f64 / count as f64;
        (each >= 0.5).then(|| (part.clone(), each))
    };
    let mut parts: Vec<(String, f64)> = grown.iter().filter_map(each).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum: f64 = parts.iter().map(|(_, each)| each).sum();
    let parts: Vec<String> = parts
        .iter()
        .map(|(part, each)| format!("{part} {each:.0}"))
        .collect();
    format!("| {name} | {sum:.0} | {} |", parts.join(", "))
}

/// Sends a request until there is room for it, and an answer.
fn call(connection: &mut Connection, request: &[u8]) -> Result<Answer, String> {
    for _ in 0..1_000 {
        let answer = connection.call(request)?;
        if ![429, 503, 504].contains(&answer.status) {
            return Ok(answer);
        }
        std::thread::sleep(AGAIN);
    }
    Err("the service has no room for this load".to_owned())
}

fn done(answer: &Answer) -> Result<(), String> {
    if answer.status == 200 || answer.status == 201 {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer.body);
    Err(format!("{} {text}", answer.status))
}

fn sign(fleet: &Fleet, count: u64, batch: u64) -> Result<u64, String> {
    let (host, [single, many]) = signing(fleet, batch as usize)?;
    let request = if batch == 1 { single } else { many };
    let mut connection = Connection::open(&host)?;
    for _ in 0..count.div_ceil(batch) {
        done(&call(&mut connection, &request)?)?;
    }
    Ok(count.div_ceil(batch) * batch)
}

/// Ids of tokens, each of another holder.
fn issued(fleet: &Fleet, count: u64) -> Result<Vec<String>, String> {
    let host = fleet.host("svc-passport")?;
    let operator = bearer(&fleet.token("svc-passport")?);
    let mut connection = Connection::open(&host)?;
    let one = |n: u64| {
        let answer = call(&mut connection, &issue(&host, &operator, n as usize))?;
        done(&answer)?;
        let body: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        let token = body["token"].as_str().or(body["access_token"].as_str());
        let claims = token.and_then(|token| b64::from_url(token.split('.').nth(1)?).ok());
        let claims = claims.and_then(|claims| serde_json::from_slice::<Value>(&claims).ok());
        let jti = claims.and_then(|claims| claims["jti"].as_str().map(str::to_owned));
        jti.ok_or_else(|| "a token without an id".to_owned())
    };
    (0..count).map(one).collect()
}

fn revoked(fleet: &Fleet, count: u64) -> Result<u64, String> {
    let ids = issued(fleet, count)?;
    let host = fleet.host("svc-passport")?;
    let token = bearer(&fleet.token("svc-passport")?);
    let auth = [("Authorization", token.as_str())];
    let mut connection = Connection::open(&host)?;
    for jti in ids {
        let body = json!({"jti": jti, "reason": "load"}).to_string();
        let request = request("POST", &host, "/v1/passport/revoke", &auth, &body);
        done(&call(&mut connection, &request)?)?;
    }
    Ok(count)
}

/// Issues, transfers, or transfers from an account without funds.
fn money(fleet: &Fleet, what: &str, count: u64, batch: u64) -> Result<u64, String> {
    let host = fleet.host("svc-wallet")?;
    let tokens = tokens(fleet, OWN_MAX)?;
    let family = format!("{what}-{batch}-{count}");
    if what == "transfer" {
        fund(&host, &tokens[0], &family, 1)?;
    }
    let item = |n: u64| match what {
        "issue" => {
            json!({"op": "issue", "to": format!("acct:payee-{}", n % 1_000), "asset": "ron", "amount_minor": "1"})
        }
        _ => json!({
            "op": "transfer", "from": format!("acct:{family}-0"), "to": format!("acct:payee-{}", n % 1_000), "asset": "ron",
            "amount_minor": "1"
        }),
    };
    let mut connection = Connection::open(&host)?;
    for n in 0..count.div_ceil(batch) {
        let (path, body) = if batch == 1 {
            let mut one = item(n);
            let op = one.as_object_mut().and_then(|one| one.remove("op"));
            let op = op.and_then(|op| op.as_str().map(str::to_owned));
            (op.ok_or("no operation")?, one)
        } else {
            let items: Vec<Value> = (0..batch).map(|at| item(n * batch + at)).collect();
            ("batch".to_owned(), json!({ "items": items }))
        };
        let token = &tokens[n as usize % tokens.len()];
        let request = post(
            &host,
            token,
            &path,
            &format!("{family}-{n}"),
            &body.to_string(),
        );
        let answer = call(&mut connection, &request)?;
        if what != "refused" {
            done(&answer)?;
        } else if answer.status < 400 {
            return Err("a transfer without funds was made".to_owned());
        }
    }
    Ok(count.div_ceil(batch) * batch)
}

/// The five epochs of `ron demo`.
fn epochs(fleet: &Fleet, _: u64) -> Result<u64, String> {
    let table = fleet.ron(&["demo", "--json"])?;
    let rows = table
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let payees: u64 = rows.filter_map(|row| row["recipients"].as_u64()).sum();
    if payees == 0 {
        return Err("the demo paid nobody".to_owned());
    }
    Ok(payees)
}

/// Fills two segments of the logs of keys and money, and archives the first of each.
fn archive(ron: &Path, dir: &Path) -> Result<(), String> {
    let fleet = Fleet::start(ron, dir)?;
    sign(&fleet, 2 * SEGMENT + 10_000, BATCH)?;
    money(&fleet, "transfer", 2 * SEGMENT + 10_000, BATCH)?;
    drop(fleet);
    for (service, keys) in [
        ("ron-kms", "[audit]\nscrub_interval = \"1s\"\n"),
        ("ron-ledger", ""),
    ] {
        let path = dir.join(service).join("config.toml");
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = fs::read_to_string(&path).map_err(failed)?;
        let archive = std::path::absolute(dir.join(service).join("archive")).map_err(failed)?;
        let text = format!(
            "archive_dir = \"{}\"\narchive_after = \"0s\"\n{text}\n{keys}",
            archive.display()
        );
        fs::write(&path, text).map_err(failed)?;
    }
    let segment = |log: &str| fs::metadata(dir.join(log).join("00000000.seg")).map(|m| m.len());
    let logs = ["ron-kms/data/audit", "ron-ledger/data/log"];
    let before = logs.map(segment);
    let fleet = Fleet::start(ron, dir)?;
    let began = Instant::now();
    while logs
        .iter()
        .any(|log| segment(log).is_ok_and(|len| len > 1_000))
    {
        if began.elapsed() > ARCHIVED_WITHIN {
            return Err("no segment was archived in time".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(fleet);
    println!(
        "\n| log | segment, bytes per entry | archived | hashes that stay |\n|---|--:|--:|--:|"
    );
    for (log, before) in logs.iter().zip(before) {
        let service = log.split('/').next().unwrap_or_default();
        let archive = dir.join(service).join("archive");
        let packed = weigh(&archive)?.values().sum::<i64>();
        let index = fs::metadata(dir.join(log).join("00000000.idx")).map_err(|e| e.to_string())?;
        let each = |bytes: u64| bytes as f64 / SEGMENT as f64;
        let before = before.map_err(|e| e.to_string())?;
        println!(
            "| {log} | {:.0} | {:.0} (1 : {:.1}) | {:.0} |",
            each(before),
            packed as f64 / SEGMENT as f64,
            before as f64 / packed as f64,
            each(index.len()),
        );
    }
    Ok(())
}
