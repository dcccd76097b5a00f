//! Callers of the wallet. They repeat by the rules (the same key until the answer is definite), and carelessly: the same
//! request twice at once, long after its answer, or again under a new key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, LedgerClient, WalletClient};
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::SeededRandom;
use ron_proto::ledger::{Event, Receipt, TxId};
use ron_proto::wallet::{
    Batch, BatchAnswer, Burn, Capture, HoldMoney, IssueMoney, ItemOutcome, Operation, Remarks,
    Reverse, Transaction, Transfer,
};
use ron_proto::{Account, Asset, IdemKey, Timestamp};
use ron_sim::{ensure, thread, time};
use serde_json::{Value, json};

use super::services::{Files, within};
use super::{LEDGER, WALLET, client_ip};
use crate::chance::{below, ms};
use crate::net::SimNet;

pub const ACCOUNTS: [&str; 4] = ["user:a", "user:b", "user:c", "user:d"];
pub const ASSET: &str = "credit";
/// Longest time of one call.
pub const CALL: Duration = Duration::from_secs(2);

/// A request that can be repeated.
#[derive(Clone, Debug)]
pub enum Op {
    Issue(IssueMoney),
    Transfer(Transfer),
    Burn(Burn),
    Hold(HoldMoney),
    Capture(TxId, Capture),
    Release(TxId),
    Reverse(TxId, Reverse),
    Batch(Batch),
}

/// A definite answer, in a form that can be compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done(Box<Receipt>),
    Refused(String),
    Batch(Box<BatchAnswer>),
}

/// A request with its key, and every definite answer that came for it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: String,
    pub op: Op,
    pub answers: Vec<Answer>,
}

impl Asked {
    pub fn is_done(&self) -> bool {
        matches!(
            self.answers.first(),
            Some(Answer::Done(_) | Answer::Batch(_))
        )
    }
}

/// A balance that was read: what it said, and of which sequence.
#[derive(Clone, Debug)]
pub struct Read {
    pub account: &'static str,
    pub seq: u64,
    pub balance: u128,
    pub available: u128,
}

pub struct Client {
    number: u8,
    /// On a good network every request has a definite answer at once.
    calm: bool,
    /// The last sequence at which this client was told of a change of an account.
    knows: BTreeMap<String, u64>,
    pub reads: Vec<Read>,
    wallet: WalletClient,
    ledger: LedgerClient,
    asked: Vec<Asked>,
    /// Transactions of this client that may be captured or reversed.
    holds: Vec<TxId>,
    transfers: Vec<TxId>,
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a request")
}

fn account() -> &'static str {
    ACCOUNTS[below(4) as usize]
}

fn amount() -> String {
    (1 + below(100)).to_string()
}

fn transfer() -> Value {
    let from = below(4) as usize;
    let to = (from + 1 + below(3) as usize) % 4;
    json!({"from": ACCOUNTS[from], "to": ACCOUNTS[to], "asset": ASSET, "amount_minor": amount()})
}

fn batch() -> Batch {
    let mut items = Vec::new();
    for _ in 0..1 + below(4) {
        let mut item = match below(2) {
            0 => json!({"to": account(), "asset": ASSET, "amount_minor": amount()}),
            _ => transfer(),
        };
        let kind = if item.get("from").is_some() {
            "transfer"
        } else {
            "issue"
        };
        item["op"] = kind.into();
        items.push(item);
    }
    read(json!({"items": items, "linked": below(2) == 0}))
}

/// What a call came to.
fn definite<T>(result: Result<T, ClientError>, done: impl FnOnce(T) -> Answer) -> Option<Answer> {
    if let Err(error) = &result {
        ron_sim::note(&error.to_string());
    }
    match result {
        Ok(answer) => Some(done(answer)),
        Err(ClientError::Refused { problem, .. }) if problem.retryable => None,
        Err(ClientError::Refused {
            status, problem, ..
        }) => {
            ensure(
                [409, 422].contains(&status),
                &format!("{status} {problem:?}"),
            );
            Some(Answer::Refused(problem.code))
        }
        Err(ClientError::Unknown { .. } | ClientError::NotSent { .. }) => None,
    }
}

fn once(wallet: &WalletClient, key: &str, op: &Op) -> Option<Answer> {
    let key: IdemKey = key.parse().expect("a key");
    let by = within(CALL);
    let done = |tx: Transaction| Answer::Done(Box::new(tx.receipt));
    let answer = match op {
        Op::Issue(request) => definite(wallet.issue(&key, request, by), done),
        Op::Transfer(request) => definite(wallet.transfer(&key, request, by), done),
        Op::Burn(request) => definite(wallet.burn(&key, request, by), done),
        Op::Hold(request) => definite(wallet.hold(&key, request, by), done),
        Op::Capture(hold, request) => definite(wallet.capture(&key, *hold, request, by), done),
        Op::Release(hold) => definite(wallet.release(&key, *hold, &Remarks::default(), by), done),
        Op::Reverse(tx, request) => definite(wallet.reverse(&key, *tx, request, by), done),
        Op::Batch(request) => definite(wallet.batch(&key, request, by), |answer| {
            Answer::Batch(Box::new(answer))
        }),
    };
    ron_sim::note(&format!("{key} {answer:?}"));
    answer
}

impl Client {
    pub fn new(net: &SimNet, files: &Files, number: u8, calm: bool) -> Self {
        let http = Arc::new(HttpClient::new(ClientConfig {
            net: Arc::new(net.host(client_ip(number))),
            random: Arc::new(SeededRandom::new(1_000 + u64::from(number))),
            breaker: None,
            insecure_loopback: true,
            connect_timeout: ms(500),
            ..ClientConfig::default()
        }));
        let wallet = format!("http://{WALLET}:80");
        let ledger = format!("http://{LEDGER}:80");
        Self {
            number,
            calm,
            knows: BTreeMap::new(),
            reads: Vec::new(),
            wallet: WalletClient::new(&wallet, Credential::bearer(&files.bank), http.clone()),
            ledger: LedgerClient::new(&ledger, Credential::bearer(&files.auditor), http),
            asked: Vec::new(),
            holds: Vec::new(),
            transfers: Vec::new(),
        }
    }

    fn draw(&self) -> Op {
        let of = |list: &[TxId]| list[below(list.len() as u64) as usize];
        match below(10) {
            0..3 => Op::Issue(read(
                json!({"to": account(), "asset": ASSET, "amount_minor": amount()}),
            )),
            3..5 => Op::Transfer(read(transfer())),
            5 => Op::Burn(read(
                json!({"from": account(), "asset": ASSET, "amount_minor": amount()}),
            )),
            6 if !self.holds.is_empty() => match below(3) {
                0 => Op::Release(of(&self.holds)),
                n => {
                    let part = json!({"to": account(), "amount_minor": amount(), "final": n == 1});
                    let all = json!({"to": account()});
                    let asked = if below(2) == 0 { part } else { all };
                    Op::Capture(of(&self.holds), read(asked))
                }
            },
            7 if !self.transfers.is_empty() => Op::Reverse(of(&self.transfers), read(json!({}))),
            8 => Op::Batch(batch()),
            _ => {
                let expires = time::date() + Duration::from_secs(1 + below(100));
                let expires = Timestamp(expires.as_millis() as u64);
                Op::Hold(read(json!({
                    "from": account(), "asset": ASSET, "amount_minor": amount(), "expires_at": expires,
                })))
            }
        }
    }

    /// One operation, in one of the manners.
    pub fn act(&mut self) {
        let op = self.draw();
        let key = self.begin(op.clone());
        match below(6) {
            0 | 3 => self.twice_at_once(&key, &op),
            1 => {
                // Once, whatever the answer; and again under a new key when there is none.
                let answer = once(&self.wallet, &key, &op);
                let open = answer.is_none();
                self.answered(&key, answer);
                if open {
                    let other = self.begin(op.clone());
                    let _ = self.until_definite(&other, &op, 3);
                }
            }
            2 if self.asked.len() > 1 => {
                let _ = self.until_definite(&key, &op, 4);
                // Late: long after the answer.
                let late = self.asked[below(self.asked.len() as u64) as usize].clone();
                let answer = once(&self.wallet, &late.key, &late.op);
                self.answered(&late.key, answer);
            }
            _ => {
                let _ = self.until_definite(&key, &op, 4);
            }
        }
        if below(2) == 0 {
            self.read_balance(account());
        }
        time::sleep(ms(below(100)));
    }

    /// A balance knows what its reader was told before: its cache is not used after a change.
    pub fn read_balance(&mut self, account: &'static str) {
        let name: Account = account.parse().expect("an account");
        let asset: Asset = ASSET.parse().expect("an asset");
        let Ok(read) = self.wallet.balance(&name, &asset, None, within(CALL)) else {
            ensure(!self.calm, "a read has an answer");
            return;
        };
        let known = self.knows.get(account).copied().unwrap_or(0);
        // Without the ledger an old one may be answered, which says its age.
        let fresh = self.calm || read.stale_ms == 0;
        let text = format!("{read:?} lacks the change at {known}");
        ensure(!fresh || read.as_of_seq >= known, &text);
        self.reads.push(Read {
            account,
            seq: read.as_of_seq,
            balance: read.amount_minor.0,
            available: read.available_minor.0,
        });
    }

    fn begin(&mut self, op: Op) -> String {
        let key = format!("c{}-{}", self.number, self.asked.len());
        self.asked.push(Asked {
            key: key.clone(),
            op,
            answers: Vec::new(),
        });
        key
    }

    fn answered(&mut self, key: &str, answer: Option<Answer>) {
        ensure(
            !self.calm || answer.is_some(),
            &format!("{key} has a definite answer"),
        );
        let Some(answer) = answer else { return };
        self.learn(&answer);
        let asked = self
            .asked
            .iter_mut()
            .find(|asked| asked.key == key)
            .expect("it was begun");
        if let Answer::Done(receipt) = &answer {
            match asked.op {
                Op::Hold(_) => self.holds.push(receipt.txid),
                Op::Transfer(_) | Op::Capture(..) => self.transfers.push(receipt.txid),
                _ => {}
            }
        }
        asked.answers.push(answer);
    }

    /// Notes the changes of accounts that an answer tells of.
    fn learn(&mut self, answer: &Answer) {
        let receipts: Vec<&Receipt> = match answer {
            Answer::Done(receipt) => vec![receipt],
            Answer::Refused(_) => vec![],
            Answer::Batch(answer) => answer.results.iter().filter_map(receipt_of).collect(),
        };
        for receipt in receipts {
            for account in receipt.from.iter().chain(&receipt.to) {
                let known = self.knows.entry(account.to_string()).or_insert(0);
                *known = receipt.seq.max(*known);
            }
        }
    }

    fn twice_at_once(&mut self, key: &str, op: &Op) {
        let (wallet, same, again) = (self.wallet.clone(), key.to_owned(), op.clone());
        let other = thread::spawn(move || once(&wallet, &same, &again));
        let answer = once(&self.wallet, key, op);
        self.answered(key, answer);
        let answer = other.join().expect("it is not killed");
        self.answered(key, answer);
    }

    /// By the rules: the same request until its answer is definite.
    fn until_definite(&mut self, key: &str, op: &Op, tries: u32) -> bool {
        for attempt in 0..tries {
            let answer = once(&self.wallet, key, op);
            let definite = answer.is_some();
            self.answered(key, answer);
            if definite {
                return true;
            }
            time::sleep(ms(100 * u64::from(attempt + 1)));
        }
        false
    }

    /// The services work again: a new operation takes effect before `at`.
    pub fn works_before(&mut self, at: Instant) {
        let op = Op::Issue(read(
            json!({"to": ACCOUNTS[0], "asset": ASSET, "amount_minor": "1"}),
        ));
        let key = self.begin(op.clone());
        while !self.until_definite(&key, &op, 1) {
            ensure(
                time::now() < at,
                "10 s after the last fault an issue has no answer",
            );
        }
        ensure(self.asked[0].is_done(), "an issue is not refused");
    }

    /// Every request that has no definite answer gets one.
    pub fn settle(&mut self, by: Instant) {
        let open = self.asked.iter().filter(|asked| asked.answers.is_empty());
        let open: Vec<Asked> = open.cloned().collect();
        for asked in open {
            let settled = self.until_definite(&asked.key, &asked.op, 10);
            let late = time::now() > by + Duration::from_secs(5);
            ensure(settled && !late, &format!("no answer for {asked:?}"));
        }
    }

    pub fn asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    /// The outcome of a key as the wallet knows it.
    pub fn operation(&self, key: &str) -> Operation {
        let key: IdemKey = key.parse().expect("a key");
        let found = self.wallet.operation(&key, within(CALL));
        match found {
            Ok(operation) => operation,
            Err(error) => {
                ensure(false, &format!("no outcome of {key}: {error}"));
                unreachable!("the run has ended")
            }
        }
    }

    /// The ledger's whole log.
    pub fn log(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            match self.ledger.events(after, Duration::ZERO, within(CALL)) {
                Ok(page) if page.events.is_empty() => return events,
                Ok(page) => {
                    after = page.next;
                    events.extend(page.events);
                }
                Err(error) => ensure(false, &format!("the log cannot be read: {error}")),
            }
        }
    }
}

const fn receipt_of(item: &ItemOutcome) -> Option<&Receipt> {
    match item {
        ItemOutcome::Done { receipt, .. } => Some(receipt),
        ItemOutcome::Refused { .. } => None,
    }
}
