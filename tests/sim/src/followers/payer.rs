//! A caller that moves money in two assets, with the texts that searches look for.

use std::sync::Arc;
use std::time::Instant;

use ron_proto::Timestamp;
use ron_proto::ledger::TxId;
use ron_sim::{ensure, time};
use serde_json::{Value, json};

use super::{CALL, Clients, Shared};
use crate::chance::{below, ms};
use crate::money::requests::{self, ACCOUNTS, Answer, Op, Reply, read};

pub const ASSETS: [&str; 2] = ["credit", "point"];
pub const REFERENCES: [&str; 3] = ["order 1", "order 2", "order 3"];
pub const COLOURS: [&str; 2] = ["red", "blue"];
const DAY_MS: u64 = 86_400_000;

pub fn any(of: &[&'static str]) -> &'static str {
    of[below(of.len() as u64) as usize]
}

/// A request and what it came to.
#[derive(Debug)]
pub struct Paid {
    pub key: String,
    op: Op,
    pub answer: Option<Answer>,
}

pub struct Payer {
    clients: Clients,
    number: u8,
    shared: Arc<Shared>,
    pub paid: Vec<Paid>,
    holds: Vec<TxId>,
}

/// What the payer says about an operation.
fn with_texts(mut of: Value) -> Value {
    if below(2) == 0 {
        of["reference"] = any(&REFERENCES).into();
        of["share_reference"] = (below(2) == 0).into();
    }
    if below(2) == 0 {
        of["metadata"] = json!({"colour": any(&COLOURS)});
        of["memo"] = "a memo".into();
    }
    if below(3) == 0 {
        // Of another day: statements show it there.
        let day = Timestamp(time::date().as_millis() as u64 - below(4) * DAY_MS);
        of["effective_at"] = json!(day);
    }
    of
}

impl Payer {
    pub fn new(clients: Clients, number: u8, shared: &Arc<Shared>) -> Self {
        Self {
            clients,
            number,
            shared: shared.clone(),
            paid: Vec::new(),
            holds: Vec::new(),
        }
    }

    pub fn number(&self) -> usize {
        self.paid.len()
    }

    fn draw(&self) -> Op {
        let (from, asset) = (any(&ACCOUNTS), any(&ASSETS));
        let others: Vec<&str> = ACCOUNTS.into_iter().filter(|of| *of != from).collect();
        let to = any(&others);
        let amount = requests::amount();
        let debit = json!({"from": from, "asset": asset, "amount_minor": amount});
        match below(10) {
            0..3 => Op::Issue(read(with_texts(
                json!({"to": to, "asset": asset, "amount_minor": amount}),
            ))),
            3 => Op::Burn(read(with_texts(debit))),
            4 => {
                let mut hold = with_texts(debit);
                let end = time::date().as_millis() as u64 + 1 + below(3_000);
                hold["expires_at"] = json!(Timestamp(end));
                Op::Hold(read(hold))
            }
            5 if !self.holds.is_empty() => {
                let hold = self.holds[below(self.holds.len() as u64) as usize];
                match below(3) {
                    0 => Op::Release(hold),
                    _ => Op::Capture(hold, read(with_texts(json!({"to": to})))),
                }
            }
            _ => {
                let mut transfer = with_texts(debit);
                transfer["to"] = to.into();
                Op::Transfer(read(transfer))
            }
        }
    }

    pub fn act(&mut self) {
        let op = self.draw();
        self.begin(op);
        self.send_the_last(4);
    }

    fn begin(&mut self, op: Op) {
        let key = format!("p{}-{}", self.number, self.paid.len());
        self.paid.push(Paid {
            key,
            op,
            answer: None,
        });
    }

    fn send_the_last(&mut self, tries: u32) {
        let last = self.paid.len() - 1;
        self.send(last, tries);
    }

    /// Until the answer is definite.
    fn send(&mut self, at: usize, tries: u32) {
        for attempt in 0..tries {
            let paid = &mut self.paid[at];
            match requests::send(&self.clients.wallet, &paid.key, &paid.op, CALL) {
                Reply::Answer(answer) => {
                    if let Answer::Done(receipt) = &answer {
                        self.shared.learnt(receipt.seq);
                        if matches!(paid.op, Op::Hold(_)) {
                            self.holds.push(receipt.txid);
                        }
                    }
                    paid.answer = Some(answer);
                    return;
                }
                _ => time::sleep(ms(100 * u64::from(attempt + 1))),
            }
        }
    }

    pub fn works_before(&mut self, at: Instant) {
        for asset in ASSETS {
            let money = json!({"to": ACCOUNTS[0], "asset": asset, "amount_minor": "1000"});
            self.begin(Op::Issue(read(money)));
            while self.paid.last().is_some_and(|paid| paid.answer.is_none()) {
                ensure(time::now() < at, "an issue has no answer");
                self.send_the_last(1);
            }
        }
    }

    /// Every request gets its answer.
    pub fn settle(&mut self, by: Instant) {
        for at in 0..self.paid.len() {
            while self.paid[at].answer.is_none() {
                self.send(at, 1);
                let late = format!("no answer for {:?}", self.paid[at]);
                ensure(self.paid[at].answer.is_some() || time::now() < by, &late);
            }
        }
    }
}
