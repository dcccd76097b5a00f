//! Callers of the ledgers. They ask the node that writes, as their list of URLs finds it, or any node; they send requests again
//! under their keys, and remember every answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, LedgerClient};
use ron_kernel::Deadline;
use ron_proto::Timestamp;
use ron_proto::ledger::{CommitRequest, Entry, EntryAnswer, EntryKind, NOT_ACTIVE, TxId};
use ron_sim::{ensure, time};
use serde_json::{Value, json};

use super::{NODES, url};
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::model::{Together, item_key};
use crate::net::SimNet;

/// Longest time of one call.
pub const CALL: Duration = Duration::from_secs(2);
/// Longest time of a call that waits until another node has the ledger.
const PATIENCE: Duration = Duration::from_secs(8);
/// Accounts of all callers.
pub const ACCOUNTS: [&str; 4] = ["user:a", "user:b", "user:c", "user:d"];
pub const ASSET: &str = "credit";

/// A request with its keys, and what its calls were told.
#[derive(Clone, Debug)]
pub struct Asked {
    pub request: CommitRequest,
    pub answers: Vec<Vec<EntryAnswer>>,
    /// A call may have taken effect.
    pub open: bool,
}

/// What one call told its caller.
enum Reply {
    Answer(Vec<EntryAnswer>),
    /// This call has changed nothing, and will not; because the only node that was asked is a standby, or for another reason.
    Nothing {
        by_standby: bool,
    },
    Open,
}

pub struct Caller {
    number: u8,
    /// On a good network every request has an answer at once.
    calm: bool,
    all: LedgerClient,
    nodes: [LedgerClient; 2],
    pub asked: Vec<Asked>,
    txs: Vec<TxId>,
    holds: Vec<TxId>,
}

/// Clients of the ledger on a client's host: of all nodes, and of each.
pub fn clients(net: &SimNet, number: u8, token: &str) -> (LedgerClient, [LedgerClient; 2]) {
    let http = Arc::new(hosts::client(
        net.host(client_ip(number)),
        3_000 + u64::from(number),
    ));
    let client = |urls: &str| LedgerClient::new(urls, Credential::bearer(token), http.clone());
    let nodes = NODES.map(url);
    (
        client(&nodes.join(",")),
        nodes.each_ref().map(|url| client(url)),
    )
}

fn account() -> &'static str {
    ACCOUNTS[below(4) as usize]
}

impl Caller {
    pub fn new(net: &SimNet, number: u8, token: &str, calm: bool) -> Self {
        let (all, nodes) = clients(net, number, token);
        Self {
            number,
            calm,
            all,
            nodes,
            asked: Vec::new(),
            txs: Vec::new(),
            holds: Vec::new(),
        }
    }

    /// One request, or one of before again.
    pub fn act(&mut self) {
        let at = match below(6) {
            0 if !self.asked.is_empty() => below(self.asked.len() as u64) as usize,
            _ => self.begin(),
        };
        match below(4) {
            // Once, whatever comes of it.
            0 => {
                let node = below(3) as usize;
                self.send(at, self.nodes.get(node).unwrap_or(&self.all).clone());
            }
            _ => {
                self.until_answered(at, 3);
            }
        }
        time::sleep(ms(below(150)));
    }

    fn begin(&mut self) -> usize {
        let number = self.asked.len();
        let name = format!("c{}-{number}", self.number);
        let (all, linked) = match below(6) {
            0 => (2 + below(2) as usize, below(2) == 0),
            _ => (1, false),
        };
        let together = if linked {
            Together::Linked
        } else {
            Together::Batch
        };
        let entries = (0..all).map(|at| {
            let key = match all {
                1 => name.clone(),
                _ => item_key(&name, at, all, together),
            };
            self.entry(&key)
        });
        let request = CommitRequest {
            entries: entries.collect(),
            linked,
            batch: all > 1 && !linked,
        };
        self.asked.push(Asked {
            request,
            answers: Vec::new(),
            open: false,
        });
        number
    }

    fn entry(&self, key: &str) -> Entry {
        let of = |list: &[TxId]| list[below(list.len() as u64) as usize];
        let amount = (1 + below(100)).to_string();
        let mut entry: Value = match below(12) {
            0..=3 => json!({"kind": "issue", "to": account(), "amount_minor": amount}),
            4 => json!({"kind": "burn", "from": account(), "amount_minor": amount}),
            5 => {
                let end = time::date() + ms(1 + below(4_000));
                let end = Timestamp(end.as_millis() as u64);
                json!({"kind": "hold", "from": account(), "amount_minor": amount, "expires_at": end})
            }
            6 if !self.holds.is_empty() => {
                json!({"kind": "capture", "hold": of(&self.holds), "to": account()})
            }
            7 if !self.txs.is_empty() => json!({"kind": "reverse", "tx": of(&self.txs)}),
            _ => {
                let from = below(4) as usize;
                let to = ACCOUNTS[(from + 1 + below(3) as usize) % 4];
                json!({"kind": "transfer", "from": ACCOUNTS[from], "to": to, "amount_minor": amount})
            }
        };
        entry["tenant"] = "t".into();
        entry["principal"] = format!("p{}", self.number).into();
        entry["key"] = key.into();
        if !["capture", "reverse"].contains(&entry["kind"].as_str().unwrap_or_default()) {
            entry["asset"] = ASSET.into();
        }
        serde_json::from_value(entry).expect("an entry")
    }

    /// One call, which ends by its deadline.
    fn send(&mut self, at: usize, client: LedgerClient) -> bool {
        let request = self.asked[at].request.clone();
        let longest = if below(2) == 0 { PATIENCE } else { CALL };
        let begun = time::now();
        let told = told(client.commit_once(&request, Deadline::within(longest)));
        let took = time::now() - begun;
        ensure(
            took <= longest + longest / 10,
            &format!("a call took {took:?}: {request:?}"),
        );
        match told {
            Reply::Answer(answers) => {
                let asked = &self.asked[at];
                let text = format!("done before, when nothing was done: {answers:?}");
                let is_first = !asked.open && asked.answers.is_empty();
                ensure(
                    !is_first || !answers.iter().any(EntryAnswer::is_replayed),
                    &text,
                );
                self.answered(at, answers)
            }
            Reply::Open => {
                self.asked[at].open = true;
                ensure(!self.calm, &format!("no answer for {request:?}"));
                false
            }
            Reply::Nothing { by_standby } => {
                ensure(
                    !self.calm || by_standby,
                    &format!("nothing is done: {request:?}"),
                );
                false
            }
        }
    }

    fn answered(&mut self, at: usize, answers: Vec<EntryAnswer>) -> bool {
        for answer in &answers {
            if let EntryAnswer::Done { txid, receipt, .. } = answer {
                match receipt.op {
                    EntryKind::Hold => self.holds.push(*txid),
                    EntryKind::Transfer => self.txs.push(*txid),
                    _ => {}
                }
            }
        }
        self.asked[at].answers.push(answers);
        true
    }

    /// The same request until its answer is definite.
    fn until_answered(&mut self, at: usize, tries: u64) -> bool {
        for attempt in 0..tries {
            if self.send(at, self.all.clone()) {
                return true;
            }
            time::sleep(ms(100 * (attempt + 1)));
        }
        false
    }

    /// The ledger works: a new request is answered before `at`.
    pub fn works_before(&mut self, by: Instant) {
        let at = self.begin();
        while !self.until_answered(at, 1) {
            let late = "10 s after the last fault a request has no answer";
            ensure(time::now() < by, late);
        }
    }

    /// Every request that has no answer gets one.
    pub fn settle(&mut self, by: Instant) {
        for at in 0..self.asked.len() {
            while self.asked[at].answers.is_empty() && !self.until_answered(at, 1) {
                let late = time::now() > by + Duration::from_secs(5);
                ensure(!late, &format!("no answer for {:?}", self.asked[at]));
            }
        }
    }
}

/// What a call came to.
fn told(result: Result<ron_proto::ledger::CommitAnswer, ClientError>) -> Reply {
    let error = match result {
        Ok(answer) => {
            ron_sim::report(&format!("answered: {:?}", short(&answer.results)));
            return Reply::Answer(answer.results);
        }
        Err(error) => error,
    };
    let text = error.to_string();
    ron_sim::report(&text);
    match error {
        ClientError::Refused {
            status, problem, ..
        } => {
            ensure([429, 503].contains(&status), &text);
            let by_standby = problem.code == NOT_ACTIVE;
            if by_standby {
                names_a_node(problem.details.as_ref());
            }
            Reply::Nothing { by_standby }
        }
        ClientError::NotSent { .. } => Reply::Nothing { by_standby: false },
        ClientError::Unknown { detail, .. } => {
            ensure(!detail.starts_with("500"), &text);
            Reply::Open
        }
    }
}

/// A standby names the node that writes, or none that it knows.
fn names_a_node(details: Option<&Value>) {
    let active = details.and_then(|details| details.get("active"));
    let known =
        active.is_none_or(|active| active.is_null() || NODES.iter().any(|ip| *active == url(*ip)));
    ensure(known, &format!("a standby names {active:?}"));
}

fn short(answers: &[EntryAnswer]) -> Vec<String> {
    let one = |answer: &EntryAnswer| match answer {
        EntryAnswer::Done { seq, .. } => format!("done {seq}"),
        EntryAnswer::Refused { seq, code, .. } => format!("refused {seq:?} {code}"),
    };
    answers.iter().map(one).collect()
}
