//! The figures, one function each.

mod envelope;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::FleetArgs;
use crate::client::{self, Connection, Maker, load, request};
use crate::fleet::{self, Fleet};
use crate::machine;
use crate::wallet::{OWN_MAX, fund, own, tokens};

/// Items of a batch of signatures.
const BATCH: usize = 100;
/// Transfers of a commit at the ledger, and clients that send such.
const COMMIT: usize = 500;
const COMMITTERS: usize = 4;
/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(10);

type Run = fn(&Bench) -> Result<(), String>;

struct Bench {
    fleet: Fleet,
    time: Duration,
    /// Of each figure.
    clients: Vec<usize>,
}

/// Runs the requested figures and prints them.
pub fn run(args: &FleetArgs) -> Result<(), String> {
    let (dir, _temporary) = directory(args.dir.as_deref())?;
    let ron = match &args.ron {
        Some(ron) => ron.clone(),
        None => beside("ron")?,
    };
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|o| o == name);
    fleet::prepare(&ron, &dir)?;
    print!("{}", machine::facts(&dir)?);
    let durable = match &args.database {
        None => "fdatasync",
        Some(url) => {
            fleet::move_to_database(&ron, &dir, url)?;
            "in PostgreSQL and its synchronous standby"
        }
    };
    println!(
        "- {} s per figure, every answer durable ({durable})\n",
        args.seconds
    );
    if wanted("start") {
        starts(&ron, &dir)?;
    }
    let bench = Bench {
        fleet: Fleet::start(&ron, &dir)?,
        time: Duration::from_secs(args.seconds),
        clients: args.clients.iter().map(|many| *many as usize).collect(),
    };
    if wanted("idle") {
        bench.idle()?;
    }
    println!("\n{}", header());
    let figures: [(&str, Run); 7] = [
        ("sign", Bench::sign),
        ("envelope", Bench::envelope),
        ("token", Bench::token),
        ("verify", Bench::verify),
        ("transfer", Bench::transfer),
        ("balance", Bench::balance),
        ("commit", Bench::commit),
    ];
    for (name, figure) in figures {
        if wanted(name) {
            figure(&bench)?;
        }
    }
    println!("\n{}", bench.size("under load")?);
    drop(bench);
    print!("{}", fleet::checks(&ron, &dir)?);
    Ok(())
}

/// The directory to measure, absolute; a temporary one below the present one when none is given.
pub fn directory(given: Option<&Path>) -> Result<(PathBuf, Option<TempDir>), String> {
    let own = match given {
        Some(_) => Ok(None),
        None => tempfile::Builder::new()
            .prefix("ron-load-")
            .tempdir_in(".")
            .map(Some),
    };
    let own = own.map_err(|e| e.to_string())?;
    let dir = given
        .or(own.as_ref().map(TempDir::path))
        .unwrap_or(Path::new("."));
    let dir = std::path::absolute(dir).map_err(|e| e.to_string())?;
    Ok((dir, own))
}

pub fn beside(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = own.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!(
            "{} is missing: cargo build --release --bins",
            path.display()
        ))
    }
}

/// The table's head. The last column is CPU time of the fleet alone (user and system, all threads):
/// unlike the rate it does not depend on what the load generator leaves of the machine.
fn header() -> String {
    let (names, rule) = client::HEADER
        .split_once('\n')
        .unwrap_or((client::HEADER, ""));
    format!("{names} CPU us per operation |\n{rule}--:|")
}

/// Ten starts on an existing directory.
fn starts(ron: &Path, dir: &Path) -> Result<(), String> {
    let mut took = Vec::new();
    for _ in 0..10 {
        took.push(Fleet::start(ron, dir)?.took.as_millis());
    }
    took.sort_unstable();
    println!(
        "- start to ready, whole fleet: median {} ms, slowest {} ms of 10",
        took[5], took[9]
    );
    Ok(())
}

pub fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// A maker that repeats one request.
pub fn same(request: Vec<u8>) -> Maker {
    Box::new(move || request.clone())
}

/// The host of a key service, and requests to it that sign one message and a batch of so many, with a key that is made for them.
pub fn signing(fleet: &Fleet, batch: usize) -> Result<(String, [Vec<u8>; 2]), String> {
    let host = fleet.host("ron-kms")?;
    let token = bearer(&fleet.token("ron-kms")?);
    let auth = [("Authorization", token.as_str())];
    let create = json!({
        "tenant": "default", "purpose": "bench", "alg": "ed25519",
        "op_id": "0190f0a0-0000-7000-8000-0000000000b1"
    });
    let made = request("POST", &host, "/v1/kms/keys", &auth, &create.to_string());
    let key = ask(&host, &made)?["key"].clone();
    let message = "A".repeat(44); // 32 bytes and one more group
    let one = json!({"key": key, "message": message}).to_string();
    let items: Vec<Value> = (0..batch).map(|_| json!({"message": message})).collect();
    let many = json!({"key": key, "items": items}).to_string();
    let single = request("POST", &host, "/v1/kms/sign", &auth, &one);
    let batch = request("POST", &host, "/v1/kms/sign_batch", &auth, &many);
    Ok((host, [single, batch]))
}

/// A call that must succeed.
pub fn ask(host: &str, request: &[u8]) -> Result<Value, String> {
    let answer = Connection::open(host)?.call(request)?;
    if !(200..300).contains(&answer.status) {
        let text = String::from_utf8_lossy(&answer.body);
        return Err(format!("{host}: {} {text}", answer.status));
    }
    serde_json::from_slice(&answer.body).map_err(|e| e.to_string())
}

impl Bench {
    fn print(
        &self,
        name: &str,
        per: usize,
        host: &str,
        clients: usize,
        maker: impl Fn(usize) -> Maker,
    ) -> Result<(), String> {
        let pid = self.fleet.pid();
        let before = machine::cpu_seconds(pid)?;
        let figure = load(host, clients, self.time, maker)?;
        let used = machine::cpu_seconds(pid)? - before;
        println!(
            "{} {:.1} |",
            figure.row(name, clients, per),
            used * 1e6 / (figure.answers() * per).max(1) as f64
        );
        Ok(())
    }

    fn size(&self, when: &str) -> Result<String, String> {
        let pid = self.fleet.pid();
        Ok(format!(
            "- resident {when}: {} MiB, {} of them its own (the others are pages of the program), {} threads",
            machine::status(pid, "VmRSS")? / 1024,
            machine::status(pid, "RssAnon")? / 1024,
            machine::status(pid, "Threads")?
        ))
    }

    fn idle(&self) -> Result<(), String> {
        let pid = self.fleet.pid();
        std::thread::sleep(Duration::from_secs(2));
        let before = machine::cpu_seconds(pid)?;
        std::thread::sleep(IDLE);
        let used = machine::cpu_seconds(pid)? - before;
        println!(
            "- idle, whole fleet with its console watching: {:.2} % of one core over {} s",
            used / IDLE.as_secs_f64() * 100.0,
            IDLE.as_secs()
        );
        println!("{}", self.size("idle")?);
        Ok(())
    }

    fn sign(&self) -> Result<(), String> {
        let (host, [single, batch]) = signing(&self.fleet, BATCH)?;
        for &clients in &self.clients {
            self.print("sign", 1, &host, clients, |_| same(single.clone()))?;
        }
        self.print("signatures in batches of 100", BATCH, &host, 8, |_| {
            same(batch.clone())
        })
    }

    fn token(&self) -> Result<(), String> {
        let host = self.fleet.host("svc-passport")?;
        let token = bearer(&self.fleet.token("svc-passport")?);
        let issue = |n: usize| issue(&host, &token, n);
        for &clients in &self.clients {
            self.print("tokens issued", 1, &host, clients, |n| same(issue(n)))?;
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), String> {
        let host = self.fleet.host("svc-passport")?;
        let token = bearer(&self.fleet.token("svc-passport")?);
        let subject = tokens(&self.fleet, 1)?.remove(0);
        let body = json!({"token": subject}).to_string();
        let auth = [("Authorization", token.as_str())];
        let call = request("POST", &host, "/v1/passport/verify", &auth, &body);
        for &clients in &self.clients {
            self.print("tokens verified", 1, &host, clients, |_| same(call.clone()))?;
        }
        Ok(())
    }

    /// Tokens at the wallet, enough for the figure with the most clients.
    fn principals(&self) -> Result<Vec<String>, String> {
        let most = self.clients.iter().copied().max().unwrap_or(1);
        tokens(&self.fleet, most.max(OWN_MAX))
    }

    fn transfer(&self) -> Result<(), String> {
        let host = self.fleet.host("svc-wallet")?;
        let tokens = self.principals()?;
        for &clients in &self.clients {
            fund(&host, &tokens[0], &format!("bench-{clients}"), clients)?;
            self.print("transfers", 1, &host, clients, |n| {
                let (tokens, host) = (own(&tokens, clients, n), host.clone());
                let (from, to) = (account(clients, n), account(clients, (n + 1) % clients.max(2)));
                let mut nonce = 0_u64;
                Box::new(move || {
                    nonce += 1;
                    let token = &tokens[nonce as usize % tokens.len()];
                    let mut body = String::with_capacity(128);
                    let _ = write!(
                        body,
                        "{{\"from\":\"{from}\",\"to\":\"{to}\",\"asset\":\"ron\",\"amount_minor\":\"1\",\"nonce\":{nonce}}}"
                    );
                    post(&host, token, "transfer", &format!("t-{clients}-{n}-{nonce}"), &body)
                })
            })?;
        }
        Ok(())
    }

    fn balance(&self) -> Result<(), String> {
        let host = self.fleet.host("svc-wallet")?;
        let tokens = self.principals()?;
        for &clients in &self.clients {
            self.print("balances read", 1, &host, clients, |n| {
                let path = format!("/v1/balance?account={}&asset=ron", account(clients, n));
                let calls: Vec<Vec<u8>> = own(&tokens, clients, n)
                    .iter()
                    .map(|token| {
                        let headers = [("Authorization", &*bearer(token))];
                        request("GET", &host, &path, &headers, "")
                    })
                    .collect();
                let mut at = 0;
                Box::new(move || {
                    at = (at + 1) % calls.len();
                    calls[at].clone()
                })
            })?;
        }
        Ok(())
    }

    /// Commits of many transfers at the ledger itself, as the wallet sends them, between accounts that are funded first.
    fn commit(&self) -> Result<(), String> {
        let host = self.fleet.socket("ron-ledger")?;
        let token = bearer(&self.fleet.service_token("svc-wallet", "ron-ledger")?);
        for client in 0..COMMITTERS {
            ask(&host, &commit(&token, client, None))?;
        }
        let name = format!("commits of {COMMIT} at the ledger");
        self.print(&name, COMMIT, &host, COMMITTERS, |client| {
            let token = token.clone();
            let mut serial = 0;
            Box::new(move || {
                serial += 1;
                commit(&token, client, Some(serial))
            })
        })
    }
}

/// A commit of transfers between accounts of a client, or of money for all of them.
fn commit(token: &str, client: usize, transfers: Option<u64>) -> Vec<u8> {
    let mut body = String::from("{\"entries\":[");
    for item in 0..COMMIT {
        let separator = if item == 0 { "" } else { "," };
        let to = format!(
            "\"to\":\"acct:commit-{client}-{}\",\"asset\":\"ron\"",
            (item + 1) % COMMIT
        );
        let owner = "\"tenant\":\"default\",\"principal\":\"bench\"";
        let _ = match transfers {
            None => write!(
                body,
                "{separator}{{\"kind\":\"issue\",{owner},\"key\":\"i-{client}-{item}\",{to},\"amount_minor\":\"1000000\"}}"
            ),
            Some(serial) => write!(
                body,
                "{separator}{{\"kind\":\"transfer\",{owner},\"key\":\"t-{client}-{serial}-{item}\",\"from\":\"acct:commit-{client}-{item}\",{to},\"amount_minor\":\"1\"}}"
            ),
        };
    }
    body.push_str("]}");
    request(
        "POST",
        "localhost",
        "/v1/ledger/commit",
        &[("Authorization", token)],
        &body,
    )
}

fn account(family: usize, n: usize) -> String {
    format!("acct:bench-{family}-{n}")
}

pub fn post(host: &str, token: &str, op: &str, key: &str, body: &str) -> Vec<u8> {
    let headers = [
        ("Authorization", bearer(token)),
        ("Idempotency-Key", key.to_owned()),
    ];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    request("POST", host, &format!("/v1/{op}"), &headers, body)
}

pub fn issue(host: &str, bearer: &str, n: usize) -> Vec<u8> {
    let body =
        json!({"subject_ref": format!("bench:{n}"), "audience": "svc-wallet", "ttl_s": 3600});
    let headers = [("Authorization", bearer)];
    request(
        "POST",
        host,
        "/v1/passport/issue",
        &headers,
        &body.to_string(),
    )
}
