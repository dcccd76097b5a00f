//! The issuer policy: what many clients and audiences cost, on one thread and without a network.

use std::hint::black_box;
use std::time::Instant;

use clap::Args;
use ron_proto::jcs;
use ron_proto::passport::{IssuerPolicy, TokenClaims};
use serde_json::{Value, json};

/// The issuer policy with many clients, on one thread.
#[derive(Args)]
pub struct PolicyArgs {
    /// Clients in the policy; each has two of the audiences.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    clients: u64,
    /// Audiences that are not of the installation.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    audiences: u64,
    /// Rounds per figure; the fastest counts.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
}

const DECISIONS: u32 = 1_000;

/// Reads such a policy as a reload does and decides about tokens of its last client, and prints a table.
pub fn run(args: &PolicyArgs) -> Result<(), String> {
    let document = document(args);
    let bytes = serde_json::to_vec(&document).map_err(|e| e.to_string())?;
    let policy: IssuerPolicy = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    policy.check()?;
    let token = token(args)?;
    policy.permits(&token).map_err(|e| e.to_string())?;
    let (mut read_ns, mut decide_ns) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..args.rounds {
        let began = Instant::now();
        // As svc-passport and ron-kms each do: parsed, checked, and its canonical form for the signature.
        let read: IssuerPolicy =
            serde_json::from_slice(black_box(&bytes)).map_err(|e| e.to_string())?;
        read.check()?;
        black_box(jcs::to_vec(&read).map_err(|e| e.to_string())?);
        read_ns = read_ns.min(began.elapsed().as_nanos() as f64);
        let began = Instant::now();
        for _ in 0..DECISIONS {
            let permitted = black_box(&policy).permits(black_box(&token));
            permitted.map_err(|e| e.to_string())?;
        }
        decide_ns = decide_ns.min(began.elapsed().as_nanos() as f64 / f64::from(DECISIONS));
    }
    println!(
        "| clients, audiences | {}, {} |\n|---|--:|",
        args.clients, args.audiences
    );
    println!("| the document, KiB | {} |", bytes.len() / 1024);
    println!("| a new policy is read, us | {:.0} |", read_ns / 1e3);
    println!("| a token is decided, ns | {decide_ns:.0} |");
    Ok(())
}

fn audience(number: u64, args: &PolicyArgs) -> String {
    format!("https://service-{}.example.org/", number % args.audiences)
}

fn client(number: u64) -> String {
    format!("client-{number:06}")
}

fn document(args: &PolicyArgs) -> Value {
    let scopes = json!(["read", "write", "admin"]);
    let audiences = (0..args.audiences)
        .map(|n| json!({"audience": audience(n, args), "scopes": scopes, "max_ttl_s": 600}));
    let clients = (0..args.clients).map(|n| {
        let rules = [n, n + 1].map(|at| audience(at, args));
        let mut rules = rules.to_vec();
        rules.dedup();
        let rules = rules
            .iter()
            .map(|name| json!({"audience": name, "scopes": ["read", "write"]}));
        json!({"client_id": client(n), "tenant": "default", "max_ttl_s": 900, "audiences": rules.collect::<Vec<_>>()})
    });
    json!({"version": 1, "audiences": audiences.collect::<Vec<_>>(), "clients": clients.collect::<Vec<_>>()})
}

/// A token of the last client, which a search from the first finds last.
fn token(args: &PolicyArgs) -> Result<TokenClaims, String> {
    let last = args.clients - 1;
    let claims = json!({"iss": "http://issuer", "sub": client(last), "aud": audience(last, args), "iat": 1, "nbf": 1,
        "exp": 601, "jti": "j", "client_id": client(last), "tenant": "default", "scope": "read", "ron_epoch": 1});
    serde_json::from_value(claims).map_err(|e| e.to_string())
}
