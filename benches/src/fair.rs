//! How one tenant's load affects another at a real ron-kms: the quiet tenant's times beside the
//! busy one at its share, and beside ten times that share.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::client::{self, Figure};

/// Measures the shares of tenants in front of the signers.
#[derive(Args)]
pub struct FairArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Clients of the busy tenant at its share; ten times as many after that.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=200))]
    clients: u64,
    /// Items in each batch of the busy tenant.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    batch: u64,
    /// Algorithm of the busy tenant's key.
    #[arg(long, default_value = "ml-dsa-65")]
    alg: String,
    /// Directory on the disk to measure; a temporary one when absent.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Path of the `ron-kms` binary; the one beside this program when absent.
    #[arg(long)]
    kms: Option<PathBuf>,
}

/// Tenants, the SHA-256 of their tokens; the secrets of the tokens are all zeros.
const TENANTS: [(&str, &str); 2] = [
    (
        "busy",
        "8f3498af6193ae10cec20885ab4aa6436d60bb719a528408b70929328e5068c6",
    ),
    (
        "quiet",
        "675fa2dd4b38233842f8baae2fe628f282d11ba02d665c32b0384fac3ac2e584",
    ),
];
const ALL_ZEROS: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const PORTS: (u16, u16) = (11_940, 11_945);
const QUIET_CLIENTS: usize = 2;

/// A running ron-kms, killed on drop.
pub struct Kms {
    pub child: Child,
    /// `host:port` of its API.
    pub host: String,
}

impl Drop for Kms {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures and prints a table.
pub fn run(args: &FairArgs) -> Result<(), String> {
    let scratch = tempfile::tempdir().map_err(|e| e.to_string())?;
    let dir = args
        .dir
        .clone()
        .unwrap_or_else(|| scratch.path().to_owned());
    let beside = std::env::current_exe().map_err(|e| e.to_string())?;
    let binary = args
        .kms
        .clone()
        .unwrap_or_else(|| beside.with_file_name("ron-kms"));
    let kms = start(&binary, &dir, "")?;
    let busy = create(&kms.host, "busy", &args.alg)?;
    let quiet = create(&kms.host, "quiet", "ed25519")?;
    println!("{}", client::HEADER);
    let mut p95 = Vec::new();
    for times in [0, 1, 10] {
        let clients = (args.clients * times) as usize;
        let (load, figure) = beside_load(args, &kms.host, &busy, &quiet, clients)?;
        if let Some(load) = load {
            let name = format!("busy, batches of {} {}", args.batch, args.alg);
            println!("{}", load.row(&name, clients, args.batch as usize));
        }
        let name = format!("quiet, beside {clients} busy clients");
        println!("{}", figure.row(&name, QUIET_CLIENTS, 1));
        p95.push(figure.quantile_ms(95));
    }
    println!(
        "\np95 of the quiet tenant: {:.2} ms alone, {:.2} ms beside the other's share, {:.2} ms beside ten times that: {:.2} times",
        p95[0],
        p95[1],
        p95[2],
        p95[2] / p95[1].max(0.001)
    );
    Ok(())
}

fn beside_load(
    args: &FairArgs,
    host: &str,
    busy: &str,
    quiet: &str,
    clients: usize,
) -> Result<(Option<Figure>, Figure), String> {
    let length = Duration::from_secs(args.seconds);
    let item = json!({ "message": "YmVuY2g" });
    let items = vec![item.clone(); args.batch as usize];
    let many = post(
        host,
        "busy",
        "/v1/kms/sign_batch",
        &json!({ "key": busy, "items": items }),
    );
    let one = post(
        host,
        "quiet",
        "/v1/kms/sign",
        &json!({ "key": quiet, "message": "YmVuY2g" }),
    );
    let drive = |clients: usize, length: Duration, request: &[u8]| {
        client::load(host, clients, length, |_| {
            let request = request.to_vec();
            Box::new(move || request.clone())
        })
    };
    thread::scope(|scope| {
        let busy = (clients > 0).then(|| {
            // Longer on both sides than the quiet tenant's measurement.
            scope.spawn(|| drive(clients, length + Duration::from_secs(2), &many))
        });
        thread::sleep(Duration::from_secs(1));
        let quiet = drive(QUIET_CLIENTS, length, &one);
        let busy = busy.map(|thread| thread.join().map_err(|_| "a client panicked".to_owned())?);
        Ok((busy.transpose()?, quiet?))
    })
}

/// Starts a ron-kms that knows the tenants of these programs, with `more` lines of configuration.
pub fn start(binary: &Path, dir: &Path, more: &str) -> Result<Kms, String> {
    let (api, health) = PORTS;
    let mut text = format!(
        "data_dir = \"{}\"\nbind_addr = \"127.0.0.1:{api}\"\nhealth_addr = \"127.0.0.1:{health}\"\nlog.level = \"error\"\n\
         insecure_loopback = true\n{more}", // measured is the front that most callers use, on TCP
        dir.join("kms").display()
    );
    for (tenant, sha256) in TENANTS {
        write!(
            text,
            "[[auth.principals]]\nname = \"{tenant}\"\ntenant = \"{tenant}\"\nsha256 = \"{sha256}\"\nscopes = [\"kms:create\", \"kms:rotate\", \"kms:sign\", \"kms:verify\", \"kms:admin\"]\n"
        )
        .expect("a String takes all");
    }
    let config = dir.join("ron-kms.toml");
    fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let child = Command::new(binary)
        .arg("--config")
        .arg(&config)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}", binary.display()))?;
    let kms = Kms {
        child,
        host: format!("127.0.0.1:{api}"),
    };
    let begin = Instant::now();
    let ready = client::request("GET", &format!("127.0.0.1:{health}"), "/readyz", &[], "");
    while !client::once(&format!("127.0.0.1:{health}"), &ready)
        .is_ok_and(|(status, _)| status == 200)
    {
        if begin.elapsed() > Duration::from_secs(20) {
            return Err("ron-kms did not become ready".to_owned());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(kms)
}

/// The bytes of a POST by a tenant.
pub fn post(host: &str, tenant: &str, path: &str, body: &Value) -> Vec<u8> {
    request("POST", host, tenant, path, body)
}

/// A request of a tenant's token, in bytes.
pub fn request(method: &str, host: &str, tenant: &str, path: &str, body: &Value) -> Vec<u8> {
    let bearer = format!("Bearer ron_{tenant}_{ALL_ZEROS}");
    client::request(
        method,
        host,
        path,
        &[("Authorization", &bearer)],
        &body.to_string(),
    )
}

fn create(host: &str, tenant: &str, alg: &str) -> Result<String, String> {
    let body = json!({
        "tenant": tenant, "purpose": "bench", "alg": alg,
        "op_id": if tenant == "busy" { "00000000-0000-4000-8000-000000000001" } else { "00000000-0000-4000-8000-000000000002" },
    });
    let (status, text) = client::once(host, &post(host, tenant, "/v1/kms/keys", &body))?;
    let doc: Value = serde_json::from_str(&text).map_err(|e| format!("{status}: {e}"))?;
    let key = doc["key"].as_str();
    key.map(str::to_owned)
        .ok_or_else(|| format!("no key was made: {status} {text}"))
}
