//! Reads of the history of a large ledger: fills it through the wallet in batches, says how far what
//! follows the ledger is behind, and measures each kind of read while nothing else happens.

use std::fmt::Write as _;
use std::path::absolute;
use std::time::{Duration, Instant};

use ron_proto::Timestamp;
use serde_json::{Value, json};

use crate::ReadsArgs;
use crate::client::{self, HEADER, Maker, load, request};
use crate::figures::{bearer, beside, post};
use crate::fleet::{self, Fleet};
use crate::machine;

/// Items of one batch.
const BATCH: u64 = 500;
/// Connections that fill the ledger.
const WRITERS: u64 = 4;
/// Accounts that are debited in turn.
const PAYERS: u64 = 100;
/// Accounts that are credited in turn, beside the hot one.
const PAYEES: u64 = 10_000;

/// Fills a fleet and measures its reads.
pub fn run(args: &ReadsArgs) -> Result<(), String> {
    let dir = absolute(&args.dir).map_err(|e| e.to_string())?;
    let ron = args.ron.clone().map_or_else(|| beside("ron"), Ok)?;
    fleet::prepare(&ron, &dir)?;
    print!("{}", machine::facts(&dir)?);
    let fleet = Fleet::start(&ron, &dir)?;
    let host = fleet.host("svc-wallet")?;
    let token = fleet.token("svc-wallet")?;
    fund(&host, &token, args.entries)?;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let fill = |writer| fill(&host, &token, args.entries, writer);
        let writers = [0, 1, 2, 3].map(|n| scope.spawn(move || fill(n)));
        let ended = |writer: std::thread::ScopedJoinHandle<'_, Result<(), String>>| {
            writer.join().map_err(|_| "a writer panicked".to_owned())?
        };
        writers.into_iter().try_for_each(ended)
    })?;
    let filled = started.elapsed();
    let behind = |fleet: &Fleet| -> Result<(u64, u64), String> {
        let feed = gauge(fleet, "svc-wallet", "svc_wallet_feed_lag_entries")?;
        Ok((
            feed,
            gauge(fleet, "ron-ledger", "ron_ledger_projection_lag_entries")?,
        ))
    };
    let (feed, projection) = behind(&fleet)?;
    println!(
        "- {} transfers in batches of {BATCH} in {filled:.1?}; then the wallet lacked {feed} of them and the projection {projection}",
        args.entries
    );
    while behind(&fleet)?.1 > 0 {
        std::thread::sleep(Duration::from_millis(200));
    }
    println!(
        "- the projection had all of them after {:.1?}\n",
        started.elapsed()
    );
    println!("{HEADER}");
    let named = Named::make(&host, &token)?;
    while behind(&fleet)?.1 > 0 {
        std::thread::sleep(Duration::from_millis(200));
    }
    for (name, path) in READS {
        let path = named.fill(path);
        let maker = |client: usize| maker(&host, &token, path.clone(), client as u64, named.head);
        let figure = load(&host, 1, Duration::from_secs(args.seconds), maker)?;
        println!("{}", figure.row(name, 1, 1));
    }
    Ok(())
}

/// Kinds of reads: `{n}` and `{payer}` are numbers that change, `{seq}` is a sequence; [`Named`] has the others.
const READS: [(&str, &str); 20] = [
    (
        "newest 100 of a hot account",
        "/v1/account/acct:hot/history",
    ),
    (
        "100 of a hot account, before any entry",
        "/v1/account/acct:hot/history?before={seq}",
    ),
    (
        "newest 100 of any account",
        "/v1/account/acct:payee-{n}/history",
    ),
    (
        "history by reference",
        "/v1/account/acct:hot/history?reference=order-{n}",
    ),
    (
        "history by counterparty, hot account",
        "/v1/account/acct:hot/history?counterparty=acct:payer-{payer}",
    ),
    (
        "history by metadata that nothing has",
        "/v1/account/acct:hot/history?metadata=colour=red",
    ),
    (
        "history since a time",
        "/v1/account/acct:hot/history?from=2020-01-01T00:00:00Z",
    ),
    ("transactions by reference", "/v1/tx?reference=order-{n}"),
    (
        "balance at a sequence",
        "/v1/balance?account=acct:hot&asset=ron&at={seq}",
    ),
    (
        "balance at a time",
        "/v1/balance?account=acct:payee-{n}&asset=ron&at=2099-01-01T00:00:00Z",
    ),
    (
        "statement, first page",
        "/v1/account/acct:hot/statement?asset=ron&from=2020-01-01T00:00:00Z&until=2099-01-01T00:00:00Z",
    ),
    (
        "statement by effective day, one day of any account",
        "/v1/account/acct:payee-{n}/statement?asset=ron&from={today}&until={tomorrow}&by=effective",
    ),
    (
        "history by batch",
        "/v1/account/acct:hot/history?batch={batch}",
    ),
    (
        "history by hold",
        "/v1/account/acct:payer-{payer}/history?hold={hold}",
    ),
    (
        "holds of an account",
        "/v1/holds?account=acct:payer-{payer}&limit=100",
    ),
    ("a hold that has ended", "/v1/hold/{hold}"),
    (
        "100 events of a hot account",
        "/v1/events?account=acct:hot&after={seq}",
    ),
    ("trial balance now", "/v1/assets/ron/trial-balance"),
    (
        "trial balance of the past",
        "/v1/assets/ron/trial-balance?at={seq}",
    ),
    (
        "100 accounts by prefix",
        "/v1/accounts?prefix=acct:payee-{n}",
    ),
];

/// What paths of reads name.
struct Named {
    head: u64,
    batch: String,
    hold: String,
    today: String,
    tomorrow: String,
}

impl Named {
    /// Makes a hold and captures it in two parts, in one linked batch.
    fn make(host: &str, token: &str) -> Result<Self, String> {
        let body = json!({"linked": true, "items": [
            {"op": "issue", "to": "acct:payer-0", "asset": "ron", "amount_minor": "3"},
            {"op": "hold", "from": "acct:payer-0", "asset": "ron", "amount_minor": "3", "expires_at": "2099-01-01T00:00:00Z"},
            {"op": "capture", "hold": "#1", "to": "acct:hot", "amount_minor": "1"},
            {"op": "capture", "hold": "#1", "to": "acct:hot"},
        ]});
        let request = post(host, token, "batch", "named", &body.to_string());
        let made = patiently(&mut client::Connection::open(host)?, &request)?;
        let receipt = |at: usize| made["results"][at]["receipt"].clone();
        let text = |value: &Value| {
            let text = value.as_str().map(str::to_owned);
            text.ok_or_else(|| format!("the answer lacks a member: {made}"))
        };
        let last = receipt(3);
        let ts: Timestamp = text(&last["ts"])?.parse().map_err(|_| "no time")?;
        let day = ts.utc_day();
        Ok(Self {
            head: last["seq"].as_u64().ok_or("no sequence")?,
            batch: text(&last["batch"])?,
            hold: text(&receipt(1)["txid"])?,
            today: Timestamp::from_utc_day(day).to_string(),
            tomorrow: Timestamp::from_utc_day(day + 1).to_string(),
        })
    }

    fn fill(&self, path: &str) -> String {
        let names = [
            ("{batch}", &self.batch),
            ("{hold}", &self.hold),
            ("{today}", &self.today),
            ("{tomorrow}", &self.tomorrow),
        ];
        names.iter().fold(path.to_owned(), |path, (name, value)| {
            path.replace(name, value)
        })
    }
}

fn maker(host: &str, token: &str, path: String, client: u64, head: u64) -> Maker {
    let (host, token) = (host.to_owned(), token.to_owned());
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(client + 1) | 1;
    Box::new(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let path = path
            .replace("{n}", &(state % PAYEES).to_string())
            .replace("{payer}", &(state % PAYERS).to_string())
            .replace("{seq}", &(1 + state % head).to_string());
        get(&host, &token, &path)
    })
}

fn get(host: &str, token: &str, path: &str) -> Vec<u8> {
    let bearer = bearer(token);
    request("GET", host, path, &[("Authorization", &bearer)], "")
}

fn gauge(fleet: &Fleet, service: &str, name: &str) -> Result<u64, String> {
    let host = fleet.health_host(service)?;
    let (_, page) = client::once(
        &host,
        &request("GET", &host, "/metrics", &[("Connection", "close")], ""),
    )?;
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    let value = value.and_then(|value| value.trim().parse().ok());
    value.ok_or_else(|| format!("{service} has no {name}"))
}

fn fund(host: &str, token: &str, entries: u64) -> Result<(), String> {
    let amount = (entries / PAYERS + BATCH * WRITERS).to_string();
    let item = |n| json!({"op": "issue", "to": format!("acct:payer-{n}"), "asset": "ron", "amount_minor": amount});
    let items: Vec<Value> = (0..PAYERS).map(item).collect();
    let body = json!({ "items": items }).to_string();
    let mut connection = client::Connection::open(host)?;
    patiently(&mut connection, &post(host, token, "batch", "fund", &body)).map(drop)
}

/// Sends a write until it is answered: while the ledger or its projection does not keep up, writes are
/// answered 429 and 503.
fn patiently(connection: &mut client::Connection, request: &[u8]) -> Result<Value, String> {
    loop {
        let answer = connection.call(request)?;
        match answer.status {
            200 => return serde_json::from_slice(&answer.body).map_err(|e| e.to_string()),
            429 | 503 | 504 => {
                let wait = answer.retry_after.unwrap_or(1).max(1);
                std::thread::sleep(Duration::from_secs(wait));
            }
            _ => return Err(String::from_utf8_lossy(&answer.body).into_owned()),
        }
    }
}

/// Every second payment goes to one account; every fourth has a reference.
fn fill(host: &str, token: &str, entries: u64, writer: u64) -> Result<(), String> {
    let mut connection = client::Connection::open(host)?;
    let batches = entries / BATCH / WRITERS;
    for batch in 0..batches {
        let mut body = String::from("{\"items\":[");
        for i in 0..BATCH {
            let n = (batch * WRITERS + writer) * BATCH + i;
            let to = match n % 2 {
                0 => "hot".to_owned(),
                _ => format!("payee-{}", n % PAYEES),
            };
            let reference = match n % 4 {
                0 => format!(",\"reference\":\"order-{}\"", n / 4 % PAYEES),
                _ => String::new(),
            };
            let comma = if i == 0 { "" } else { "," };
            let payer = n % PAYERS;
            let _ = write!(
                body,
                "{comma}{{\"op\":\"transfer\",\"from\":\"acct:payer-{payer}\",\"to\":\"acct:{to}\",\"asset\":\"ron\",\"amount_minor\":\"1\"{reference}}}"
            );
        }
        body.push_str("]}");
        let key = format!("fill-{writer}-{batch}");
        let sent = post(host, token, "batch", &key, &body);
        patiently(&mut connection, &sent)?;
    }
    Ok(())
}
