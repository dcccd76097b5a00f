//! A ron-kms of its own under load: signatures one by one and in batches, with and without an
//! operation id, verification, ML-DSA, start time and memory; and keys of a PKCS#11 token through
//! it, if a module is given.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::client::{self, Maker};
use crate::fair::{Kms, post, request, start};
use crate::machine;

#[derive(Args)]
pub struct KmsArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Ed25519 keys that the store is given before its starts are measured.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    keys: u64,
    /// Versions of each of them.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    versions: u64,
    /// Directory on the disk to measure; a temporary one when absent.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Path of the `ron-kms` binary; the one beside this program when absent.
    #[arg(long)]
    kms: Option<PathBuf>,
    /// PKCS#11 module whose token is used through the service.
    #[arg(long, requires = "pin_file")]
    module: Option<PathBuf>,
    /// File with the PIN of the token, mode 0600.
    #[arg(long)]
    pin_file: Option<PathBuf>,
}

/// The signed text: 33 bytes, base64url.
const TEXT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// Head of the table: that of the others, with one column more.
const HEADER: &str = "| figure | clients | per second | p50 ms | p99 ms | max ms | refused | p95 ms |\n|---|--:|--:|--:|--:|--:|--:|--:|";
/// Items of a batch.
const BATCH: usize = 100;
/// Threads that make keys before the measurement.
const FILLERS: u64 = 8;
/// Clients of the figures under load.
const MANY: usize = 64;

struct Bench {
    kms: Kms,
    length: Duration,
}

/// Measures and prints a table.
pub fn run(args: &KmsArgs) -> Result<(), String> {
    let scratch = tempfile::Builder::new()
        .prefix("ron-load-")
        .tempdir_in(".")
        .map_err(|e| e.to_string())?;
    let dir = args.dir.as_deref().unwrap_or(scratch.path());
    let dir = std::path::absolute(dir).map_err(|e| e.to_string())?;
    let binary = match &args.kms {
        Some(binary) => binary.clone(),
        None => crate::figures::beside("ron-kms")?,
    };
    let mut more = String::new();
    if let (Some(module), Some(pin)) = (&args.module, &args.pin_file) {
        more = format!(
            "pkcs11.module = \"{}\"\npkcs11.pin = \"{}\"\n",
            module.display(),
            pin.display()
        );
    }
    print!("{}", machine::facts(&dir)?);
    println!(
        "- {} s per figure, every answer durable (fdatasync)\n",
        args.seconds
    );
    fill(&start(&binary, &dir, &more)?, args.keys, args.versions)?;
    let mut took = Vec::new();
    for _ in 0..5 {
        let begin = Instant::now();
        drop(start(&binary, &dir, &more)?);
        took.push(begin.elapsed().as_millis());
    }
    took.sort_unstable();
    let bench = Bench {
        kms: start(&binary, &dir, &more)?,
        length: Duration::from_secs(args.seconds),
    };
    let idle = bench.resident()?;
    println!("{HEADER}");
    bench.signatures()?;
    if args.module.is_some() {
        bench.token()?;
    }
    println!(
        "\n- start to ready: median {} ms, slowest {} ms of 5\n- resident: {idle} MiB idle, {} MiB afterwards",
        took[2],
        took[4],
        bench.resident()?
    );
    Ok(())
}

/// Makes the keys, several at a time. A store that has them already stays as it is.
fn fill(kms: &Kms, keys: u64, versions: u64) -> Result<(), String> {
    let ask = |path: &str, body: &Value| {
        let (status, text) = client::once(&kms.host, &post(&kms.host, "quiet", path, body))?;
        if (200..300).contains(&status) {
            return serde_json::from_str::<Value>(&text).map_err(|e| e.to_string());
        }
        Err(format!("{path}: {status} {text}"))
    };
    let op_id = |key: u64, version: u64| format!("{key:08x}-0000-4000-8000-{version:012x}");
    let make = |key: u64| {
        let body = json!({
            "tenant": "quiet", "purpose": "fill", "alg": "ed25519", "op_id": op_id(key, 1),
        });
        let made = ask("/v1/kms/keys", &body)?;
        let name = made["key"].as_str().ok_or("the answer names no key")?;
        for version in 2..=versions {
            let path = format!("/v1/kms/keys/{name}/rotate");
            ask(&path, &json!({ "op_id": op_id(key, version) }))?;
        }
        Ok::<(), String>(())
    };
    thread::scope(|scope| {
        let makers = (0..FILLERS).map(|n| (n..keys).step_by(FILLERS as usize));
        #[expect(
            clippy::needless_collect,
            reason = "all threads start before the first is joined"
        )]
        let makers: Vec<_> = makers
            .map(|mut numbers| scope.spawn(move || numbers.try_for_each(make)))
            .collect();
        makers.into_iter().try_for_each(|maker| {
            let done = maker.join();
            done.map_err(|_| "a thread that makes keys panicked")?
        })
    })
}

impl Bench {
    fn resident(&self) -> Result<u64, String> {
        Ok(machine::status(self.kms.child.id(), "VmRSS")? / 1024)
    }

    fn create(&self, purpose: &str, alg: &str, backend: &str) -> Result<String, String> {
        let body = json!({
            "tenant": "quiet", "purpose": purpose, "alg": alg, "backend": backend,
            "op_id": uuid_of([purpose, alg, backend]),
        });
        let made = self.ask("/v1/kms/keys", &body)?;
        let key = made["key"].as_str();
        key.map(str::to_owned).ok_or_else(|| made.to_string())
    }

    /// A key whose policy is as long as one may expect: the caller's rule is the last of five.
    fn under_policy(&self) -> Result<String, String> {
        let key = self.create("policy", "ed25519", "file")?;
        let others =
            (1..5).map(|n| json!({"ops": ["sign"], "who": {"principals": [format!("other-{n}")]}}));
        let mut allow: Vec<Value> = others.collect();
        allow.push(json!({"ops": ["sign", "policy"], "who": {"principals": ["quiet"]}}));
        let path = format!("/v1/kms/keys/{key}/policy");
        let body = json!({"policy": {"allow": allow}});
        let put = request("PUT", &self.kms.host, "quiet", &path, &body);
        let (status, text) = client::once(&self.kms.host, &put)?;
        if status == 200 {
            return Ok(key);
        }
        Err(format!("{path}: {status} {text}"))
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = post(&self.kms.host, "quiet", path, body);
        let (_, text) = client::once(&self.kms.host, &request)?;
        serde_json::from_str(&text).map_err(|e| format!("{path}: {e}"))
    }

    fn row(
        &self,
        name: &str,
        clients: usize,
        per: usize,
        maker: impl Fn(usize) -> Maker,
    ) -> Result<(), String> {
        let figure = client::load(&self.kms.host, clients, self.length, maker)?;
        println!(
            "{} {:.2} |",
            figure.row(name, clients, per),
            figure.quantile_ms(95)
        );
        Ok(())
    }

    fn same(&self, path: &str, body: &Value) -> impl Fn(usize) -> Maker + use<> {
        let request = post(&self.kms.host, "quiet", path, body);
        move |_| {
            let request = request.clone();
            Box::new(move || request.clone())
        }
    }

    fn signatures(&self) -> Result<(), String> {
        let key = self.create("bench", "ed25519", "file")?;
        let one = json!({"key": key, "message": TEXT});
        for clients in [1, 16, MANY] {
            self.row("sign ed25519", clients, 1, self.same("/v1/kms/sign", &one))?;
        }
        self.row("sign ed25519 with op_id", MANY, 1, |client| {
            let (host, key) = (self.kms.host.clone(), key.clone());
            let mut n = 0_u64;
            Box::new(move || {
                n += 1;
                let op_id = format!("01890a5d-ac96-7{:03x}-8000-{n:012x}", client & 0xfff);
                let body = json!({"key": key, "message": TEXT, "op_id": op_id});
                post(&host, "quiet", "/v1/kms/sign", &body)
            })
        })?;
        let under_policy = json!({"key": self.under_policy()?, "message": TEXT});
        let name = "sign ed25519, key with a policy";
        self.row(name, MANY, 1, self.same("/v1/kms/sign", &under_policy))?;
        let items = vec![json!({"message": TEXT}); BATCH];
        let batch = json!({"key": key, "items": items});
        let name = "signatures in batches of 100";
        self.row(name, 8, BATCH, self.same("/v1/kms/sign_batch", &batch))?;
        let signed = self.ask("/v1/kms/sign", &one)?;
        let verify = json!({"key": key, "message": TEXT, "signatures": signed["signatures"]});
        self.row(
            "verify ed25519",
            MANY,
            1,
            self.same("/v1/kms/verify", &verify),
        )?;
        for alg in ["ecdsa-p256", "ml-dsa-65"] {
            let key = self.create("bench", alg, "file")?;
            let one = json!({"key": key, "message": TEXT});
            for clients in [1, 16] {
                let name = format!("sign {alg}");
                self.row(&name, clients, 1, self.same("/v1/kms/sign", &one))?;
            }
        }
        Ok(())
    }

    fn token(&self) -> Result<(), String> {
        for alg in ["ed25519", "ecdsa-p256"] {
            let key = self.create("bench", alg, "pkcs11")?;
            let one = json!({"key": key, "message": TEXT});
            for clients in [1, 4, 16] {
                let name = format!("sign {alg} in the token, through us");
                self.row(&name, clients, 1, self.same("/v1/kms/sign", &one))?;
            }
        }
        Ok(())
    }
}

/// The same id for the same key, so that a kept directory can be measured again.
fn uuid_of(words: [&str; 3]) -> String {
    let bytes = words.into_iter().flat_map(str::bytes);
    let sum: u64 = bytes.map(u64::from).sum();
    format!("01890a5d-ac96-7000-8000-{sum:012x}")
}
