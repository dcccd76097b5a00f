//! A fleet for load tests: `ron up` in its own process, with policies that know many principals, so
//! that every client has its own rate limit.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::machine;

/// A running fleet, stopped on drop.
pub struct Fleet {
    ron: PathBuf,
    dir: PathBuf,
    child: Child,
    endpoints: Value,
    /// Time from the start of the process to its last line, `ready`.
    pub took: Duration,
}

/// Prepares a fleet for a load on all of its services, prints what it runs on, and starts it.
pub fn prepared(ron: &Path, dir: &Path, seconds: u64) -> Result<Fleet, String> {
    prepare(ron, dir)?;
    print!("{}", machine::facts(dir)?);
    println!(
        "- {seconds} s per figure, limits on (max_conns = 4096: all clients have one address), every answer durable (fdatasync)\n"
    );
    Fleet::start(ron, dir)
}

/// Makes the data directory, signs policies for principals `bench:*`, and gives one address as many connections as there are clients.
pub fn prepare(ron: &Path, dir: &Path) -> Result<(), String> {
    let fleet = Fleet::start(ron, dir)?;
    let change = |kind: &str, change: &dyn Fn(&mut Value)| -> Result<(), String> {
        let path = dir.join("policy").join(format!("{kind}.json"));
        let text = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut policy: Value = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        change(&mut policy);
        policy["version"] = json!(2);
        fs::write(&path, policy.to_string()).map_err(|e| e.to_string())?;
        let path = path.display().to_string();
        fleet
            .ron(&["policy", "sign", "--kind", kind, &path])
            .map(drop)
    };
    change("issuer", &|policy| {
        policy["clients"][0]["subjects"] = json!(["bench:*"]);
    })?;
    change("wallet", &|policy| {
        policy["rules"][0]["principal"] = json!("*");
    })?;
    drop(fleet);
    // All clients have one address, which by default may hold 512 connections.
    for service in ["ron-kms", "svc-passport", "svc-wallet"] {
        let config = dir.join(service).join("config.toml");
        let text = fs::read_to_string(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        fs::write(&config, format!("max_conns = 4096\n{text}")).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Moves ledger, keys and issuer to a database, as an operator does, and names it to the wallet.
pub fn move_to_database(ron_binary: &Path, dir: &Path, url: &str) -> Result<(), String> {
    let add = |service: &str, keys: &str| -> Result<(), String> {
        let config = dir.join(service).join("config.toml");
        let old = fs::read_to_string(&config).map_err(|e| format!("{}: {e}", config.display()))?;
        fs::write(&config, format!("{old}\n{keys}")).map_err(|e| e.to_string())
    };
    for (what, service) in [
        ("kms", "ron-kms"),
        ("issuer", "svc-passport"),
        ("ledger", "ron-ledger"),
    ] {
        let args = [what, "migrate", "--to", url];
        let said = text(&ron(ron_binary, dir, &args)?, &args)?;
        let tables = said.find("\n[").ok_or("it names no keys to set")?;
        let keys = said[tables..].lines();
        let keys = keys.filter(|line| line.starts_with('[') || line.contains(" = "));
        add(service, &keys.collect::<Vec<_>>().join("\n"))?;
    }
    add("svc-wallet", &format!("[records]\nurl = \"{url}\"\n"))
}

impl Fleet {
    /// Starts it on free ports and waits until it is ready.
    pub fn start(ron: &Path, dir: &Path) -> Result<Self, String> {
        Self::start_at(ron, dir, "error")
    }

    /// The same at a level of its log. Lines below errors are not shown, only written to its files.
    pub fn start_at(ron: &Path, dir: &Path, log_level: &str) -> Result<Self, String> {
        let begin = Instant::now();
        let mut child = Command::new(ron)
            .args([
                "up",
                "--base-port",
                "0",
                "--log-level",
                log_level,
                "--data-dir",
            ])
            .arg(dir)
            .stdout(Stdio::piped())
            .stderr(match log_level {
                "error" => Stdio::inherit(),
                _ => Stdio::null(),
            })
            .spawn()
            .map_err(|e| format!("{}: {e}", ron.display()))?;
        let out = child.stdout.take().ok_or("no output")?;
        let ready = BufReader::new(out)
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "ready");
        let took = begin.elapsed();
        let mut fleet = Self {
            ron: ron.to_owned(),
            dir: dir.to_owned(),
            child,
            endpoints: Value::Null,
            took,
        };
        if !ready {
            return Err("ron up ended before it was ready".to_owned());
        }
        let text = fs::read(dir.join("run/endpoints.json")).map_err(|e| e.to_string())?;
        fleet.endpoints = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        Ok(fleet)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `host:port` of a service's API.
    pub fn host(&self, service: &str) -> Result<String, String> {
        self.address(service, "api")
    }

    /// The Unix socket of a service's API, where it takes the tokens of other services.
    pub fn socket(&self, service: &str) -> Result<String, String> {
        self.address(service, "api_socket")
    }

    /// `host:port` of a service's health port.
    pub fn health_host(&self, service: &str) -> Result<String, String> {
        self.address(service, "health")
    }

    fn address(&self, service: &str, of: &str) -> Result<String, String> {
        let services = self.endpoints["services"].as_array().ok_or("no services")?;
        services
            .iter()
            .find(|s| s["service"] == service)
            .and_then(|s| s[of].as_str())
            .map(|url| url.strip_prefix("http://").unwrap_or(url).to_owned())
            .ok_or_else(|| format!("{service} is not in endpoints.json"))
    }

    /// Runs `ron <args> --data-dir <dir>`; returns its output.
    pub fn ron(&self, args: &[&str]) -> Result<String, String> {
        text(&ron(&self.ron, &self.dir, args)?, args)
    }

    /// The token by which a service calls another.
    pub fn service_token(&self, caller: &str, callee: &str) -> Result<String, String> {
        let path = self.dir.join(caller).join(format!("{callee}.token"));
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// A token of the operator.
    pub fn token(&self, audience: &str) -> Result<String, String> {
        let out = self.ron(&["token", "--audience", audience, "--ttl", "1h"])?;
        Ok(out.trim().to_owned())
    }
}

/// Runs `ron <args> --data-dir <dir>`.
fn ron(ron: &Path, dir: &Path, args: &[&str]) -> Result<Output, String> {
    Command::new(ron)
        .args(args)
        .arg("--data-dir")
        .arg(dir)
        .output()
        .map_err(|e| format!("{}: {e}", ron.display()))
}

fn text(out: &Output, args: &[&str]) -> Result<String, String> {
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("ron {}: {why}", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs the offline checks of a directory whose fleet has stopped; returns their verdicts.
pub fn checks(ron_binary: &Path, dir: &Path) -> Result<String, String> {
    let mut verdicts = String::new();
    for args in [["audit", "verify"], ["ledger", "verify"]] {
        verdicts.push_str(&text(&ron(ron_binary, dir, &args)?, &args)?);
    }
    Ok(verdicts)
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}
