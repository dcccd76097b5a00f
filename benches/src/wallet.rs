//! Transfers through the wallet, with limits and fsync on: every client debits an account of its
//! own (nonces are strict per account) and has principals of its own (rate limits are per
//! principal); the payees are spread evenly, or by Zipf's law, so that one account is in most
//! batches.

use std::fmt::Write as _;
use std::path::absolute;
use std::time::Duration;

use serde_json::{Value, json};

use crate::WalletArgs;
use crate::client::{Connection, HEADER, Maker, load};
use crate::figures::{ask, bearer, beside, issue, post};
use crate::fleet::{self, Fleet};

/// Principals in total; a single client uses many in turn, because it alone exceeds the rate limit
/// of one.
const PRINCIPALS: usize = 1_000;
/// Maximum principals of one client.
pub const OWN_MAX: usize = 64;
/// Number of credited accounts.
const PAYEES: u64 = 10_000;

/// Runs all figures and prints them.
pub fn run(args: &WalletArgs) -> Result<(), String> {
    let dir = absolute(&args.dir).map_err(|e| e.to_string())?;
    let ron = args.ron.clone().map_or_else(|| beside("ron"), Ok)?;
    let fleet = fleet::prepared(&ron, &dir, args.seconds)?;
    let tokens = tokens(&fleet, PRINCIPALS)?;
    let host = fleet.host("svc-wallet")?;
    let time = Duration::from_secs(args.seconds);
    println!("{HEADER}");
    if args.one_account {
        return one_account(args, &host, &tokens);
    }
    for (spread, zipf) in [
        ("payees spread evenly", false),
        ("a hot payee (Zipf)", true),
    ] {
        for clients in args.clients.iter().copied() {
            let family = format!("{}{clients}", if zipf { "z" } else { "u" });
            fund(&host, &tokens[0], &family, clients)?;
            let figure = load(&host, clients, time, |n| {
                let own = own(&tokens, clients, n);
                let (host, family, payees) = (host.clone(), family.clone(), Payees::new(zipf, n));
                transfers(host, own, family, n, payees)
            })?;
            println!(
                "{}",
                figure.row(&format!("transfers, {spread}"), clients, 1)
            );
        }
    }
    drop(fleet);
    println!();
    print!("{}", fleet::checks(&ron, &dir)?);
    Ok(())
}

/// All clients debit one account, told apart by their keys alone.
fn one_account(args: &WalletArgs, host: &str, tokens: &[String]) -> Result<(), String> {
    let time = Duration::from_secs(args.seconds);
    fund(host, &tokens[0], "one", 1)?;
    for clients in args.clients.iter().copied() {
        let figure = load(host, clients, time, |n| {
            let own = own(tokens, clients, n);
            let (host, mut payees) = (host.to_owned(), Payees::new(false, n));
            let mut sent = 0_usize;
            Box::new(move || {
                sent += 1;
                let to = payees.next();
                let body = format!(
                    "{{\"from\":\"acct:one-0\",\"to\":\"acct:payee-{to}\",\"asset\":\"ron\",\"amount_minor\":\"1\"}}"
                );
                let key = format!("one-{clients}-{n}-{sent}");
                post(&host, &own[sent % own.len()], "transfer", &key, &body)
            })
        })?;
        println!(
            "{}",
            figure.row("transfers from one account, without nonces", clients, 1)
        );
    }
    Ok(())
}

/// Transfers of client `n` from its account of a family to payees that are spread evenly.
pub fn even_transfers(host: &str, tokens: Vec<String>, family: &str, n: usize) -> Maker {
    let payees = Payees::new(false, n);
    transfers(host.to_owned(), tokens, family.to_owned(), n, payees)
}

/// The requests of client `n`.
fn transfers(
    host: String,
    tokens: Vec<String>,
    family: String,
    n: usize,
    mut payees: Payees,
) -> Maker {
    let mut nonce = 0_usize;
    Box::new(move || {
        nonce += 1;
        let to = payees.next();
        let mut body = String::with_capacity(160);
        let _ = write!(
            body,
            "{{\"from\":\"acct:{family}-{n}\",\"to\":\"acct:payee-{to}\",\"asset\":\"ron\",\"amount_minor\":\"1\",\"nonce\":{nonce}}}"
        );
        let key = format!("{family}-{n}-{nonce}");
        post(
            &host,
            &tokens[nonce % tokens.len()],
            "transfer",
            &key,
            &body,
        )
    })
}

/// The tokens that client `n` of `clients` uses in turn.
pub fn own(tokens: &[String], clients: usize, n: usize) -> Vec<String> {
    let each = (tokens.len() / clients).clamp(1, OWN_MAX);
    let from = n * each % tokens.len();
    tokens[from..from + each].to_vec()
}

/// Tokens of principals, each of which has rate limits of its own.
pub fn tokens(fleet: &Fleet, principals: usize) -> Result<Vec<String>, String> {
    let host = fleet.host("svc-passport")?;
    let operator = bearer(&fleet.token("svc-passport")?);
    let mut connection = Connection::open(&host)?;
    let one = |n| {
        // The issuer's own limits are per caller, and this is a single caller.
        for _ in 0..200 {
            let answer = connection.call(&issue(&host, &operator, n))?;
            let body: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
            if let Some(token) = body["token"].as_str().or(body["access_token"].as_str()) {
                return Ok(token.to_owned());
            }
            if answer.status != 429 {
                return Err(body.to_string());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the issuer has no room for this load".to_owned())
    };
    (0..principals).map(one).collect()
}

/// Gives the accounts of a figure's clients something to pay with.
pub fn fund(host: &str, token: &str, family: &str, clients: usize) -> Result<(), String> {
    for (i, part) in (0..clients).collect::<Vec<_>>().chunks(500).enumerate() {
        let items: Vec<Value> = part
            .iter()
            .map(|n| json!({"op": "issue", "to": format!("acct:{family}-{n}"), "asset": "ron", "amount_minor": "1000000000"}))
            .collect();
        let body = json!({ "items": items }).to_string();
        ask(
            host,
            &post(host, token, "batch", &format!("fund-{family}-{i}"), &body),
        )?;
    }
    Ok(())
}

/// The next payee: evenly, or account k with a probability proportional to 1/k.
struct Payees {
    state: u64,
    /// Cumulative probabilities, for Zipf; empty for even.
    sums: Vec<f64>,
}

impl Payees {
    fn new(zipf: bool, seed: usize) -> Self {
        let mut sum = 0.0;
        let chance = |k: u64| {
            sum += 1.0 / k as f64;
            sum
        };
        let sums = if zipf {
            (1..=PAYEES).map(chance).collect()
        } else {
            Vec::new()
        };
        Self {
            state: 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed as u64 + 1) | 1,
            sums,
        }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        match self.sums.last() {
            None => self.state % PAYEES,
            Some(all) => {
                let at = (self.state >> 11) as f64 / (1_u64 << 53) as f64 * all;
                self.sums.partition_point(|s| *s < at) as u64
            }
        }
    }
}
