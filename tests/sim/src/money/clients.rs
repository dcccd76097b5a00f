//! Callers of the wallet. They repeat by the rules (the same key until the answer is definite), and carelessly: the same
//! request many times at once, long after its answer, or again under a new key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_client::{ClientError, Credential, LedgerClient, WalletClient};
use ron_kernel::Deadline;
use ron_proto::ledger::{Event, Receipt, TxId};
use ron_proto::wallet::{Operation, SetAccount};
use ron_proto::{Account, IdemKey};
use ron_sim::{ensure, thread, time};
use serde_json::json;

use super::requests::{self, ASSET, Answer, Asked, Op, Reply, read, receipt_of};
use super::services::Files;
use super::views::{History, Views};
use super::{LEDGER, RECOVERY, WALLET};
use crate::callers::log_of;
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

/// Longest time of one call.
pub const CALL: Duration = Duration::from_secs(2);

pub struct Client {
    number: u8,
    /// On a good network every request has a definite answer at once, unless the wallet was stopped meanwhile.
    calm: bool,
    /// What it sends in a row arrives so: the way to the wallet is prompt.
    pub prompt: bool,
    history: Arc<History>,
    /// The last sequence at which this client was told of a change of an account.
    knows: BTreeMap<String, u64>,
    pub views: Views,
    wallet: WalletClient,
    ledger: LedgerClient,
    asked: Vec<Asked>,
    /// Transactions of this client that may be captured or reversed.
    holds: Vec<TxId>,
    transfers: Vec<TxId>,
}

/// The account that only this client debits.
fn own(number: u8) -> String {
    format!("own:{number}")
}

/// Sends in a thread of its own, after a while.
fn beside(wallet: &WalletClient, key: &str, op: &Op, after: Duration) -> thread::JoinHandle<Reply> {
    let (wallet, key, op) = (wallet.clone(), key.to_owned(), op.clone());
    thread::spawn(move || {
        time::sleep(after);
        requests::send(&wallet, &key, &op, CALL)
    })
}

impl Client {
    pub fn new(
        net: &SimNet,
        files: &Files,
        number: u8,
        calm: bool,
        history: &Arc<History>,
    ) -> Self {
        let host = net.host(client_ip(number));
        let http = Arc::new(hosts::client(host, 1_000 + u64::from(number)));
        let wallet = format!("http://{WALLET}:80");
        let ledger = format!("http://{LEDGER}:80");
        Self {
            number,
            calm,
            prompt: false,
            history: history.clone(),
            knows: BTreeMap::new(),
            views: Views::default(),
            wallet: WalletClient::new(&wallet, Credential::bearer(&files.bank), http.clone()),
            ledger: LedgerClient::new(&ledger, Credential::bearer(&files.auditor), http),
            asked: Vec::new(),
            holds: Vec::new(),
            transfers: Vec::new(),
        }
    }

    fn draw(&self) -> Op {
        let of = |list: &[TxId]| list[below(list.len() as u64) as usize];
        match below(16) {
            0..4 => requests::issue(),
            4 | 5 => Op::Transfer(read(self.with_nonce(requests::transfer()))),
            6 => Op::Burn(read(self.with_nonce(requests::burn()))),
            7 | 8 if !self.holds.is_empty() => match below(3) {
                0 => Op::Release(of(&self.holds)),
                _ => Op::Capture(of(&self.holds), read(requests::capture())),
            },
            9 if !self.transfers.is_empty() => {
                let part = json!({"amount_minor": requests::amount()});
                let asked = if below(2) == 0 { part } else { json!({}) };
                Op::Reverse(of(&self.transfers), read(asked))
            }
            10 | 11 => Op::Batch(requests::batch()),
            12 => requests::terms(),
            _ => Op::Hold(read(self.with_nonce(requests::hold()))),
        }
    }

    /// Now and then the next nonce of the debited account, which another caller may use first.
    fn with_nonce(&self, mut debit: serde_json::Value) -> serde_json::Value {
        if below(3) > 0 {
            return debit;
        }
        let from = debit["from"].as_str().expect("a debit has a payer");
        let name: Account = from.parse().expect("an account");
        if let Ok(doc) = self.wallet.account(&name, Deadline::within(CALL)) {
            debit["nonce"] = (doc.nonce + 1).into();
        }
        debit
    }

    /// One operation, in one of the manners.
    pub fn act(&mut self) {
        match below(16) {
            0..=4 => self.many_at_once(),
            5 => self.again_under_a_new_key(),
            6 if self.asked.len() > 1 => self.long_after_the_answer(),
            7 | 8 if !self.calm => self.in_haste(),
            9 => self.give_up(),
            10 => self.another_request_under_the_key(),
            11 | 12 if self.prompt => self.in_a_row(),
            _ => {
                let (key, op) = self.begin();
                let _ = self.until_definite(&key, &op, 4);
            }
        }
        if below(2) == 0 {
            self.look();
        }
        time::sleep(ms(below(100)));
    }

    fn begin(&mut self) -> (String, Op) {
        let op = self.draw();
        (self.begin_with(op.clone(), ""), op)
    }

    /// The key of a batch says how many items it has, and how they stand together.
    fn begin_with(&mut self, op: Op, more: &str) -> String {
        let mut key = format!("c{}-{}{more}", self.number, self.asked.len());
        if let Op::Batch(batch) = &op {
            let how = if batch.linked { 'l' } else { 'b' };
            key = format!("{key}.{}.{how}", batch.items.len());
        }
        self.asked.push(Asked {
            key: key.clone(),
            op,
            answers: Vec::new(),
            open: false,
            dropped: false,
        });
        key
    }

    fn send(&mut self, key: &str, op: &Op, time: Duration) -> Reply {
        let before = self.history.stops();
        let begun = time::date().as_millis() as u64;
        let told = requests::send(&self.wallet, key, op, time);
        let asked = self.asked_of(key);
        // Every call before this one has said that it changed nothing.
        if let Reply::Answer(Answer::Done(receipt)) = &told
            && !asked.open
            && asked.last().is_none()
        {
            let text = format!("{key} was done before, when nothing was done: {receipt:?}");
            ensure(receipt.ts.0 >= begun, &text);
        }
        if let Reply::Answer(Answer::Done(receipt)) = &told {
            // Its times are whole milliseconds.
            let ended = time::date().as_millis() as u64 + 1;
            let text = format!("{key} is of a time to come: {receipt:?}");
            ensure(receipt.ts.0 <= ended, &text);
        }
        self.note(key, told.clone(), before);
        told
    }

    fn many_at_once(&mut self) {
        let (key, op) = self.begin();
        let before = self.history.stops();
        // Mostly close together, so that some of them meet the moment of the answer.
        let (number, from, spread) = match below(16) {
            0 => (12, 0, 400),
            1..=3 => (1 + below(8), 0, 600),
            _ => (1 + below(8), below(500), 60),
        };
        let others: Vec<_> = (0..number)
            .map(|_| {
                let after = Duration::from_micros(from + below(spread));
                beside(&self.wallet, &key, &op, after)
            })
            .collect();
        let told = requests::send(&self.wallet, &key, &op, CALL);
        self.note(&key, told, before);
        for other in others {
            let told = other.join().expect("it is not killed");
            self.note(&key, told, before);
        }
    }

    /// Once, whatever the answer; and again under a new key when there is none.
    fn again_under_a_new_key(&mut self) {
        let (key, op) = self.begin();
        if !matches!(self.send(&key, &op, CALL), Reply::Answer(_)) {
            let other = self.begin_with(op.clone(), "");
            let _ = self.until_definite(&other, &op, 3);
        }
    }

    fn long_after_the_answer(&mut self) {
        let (key, op) = self.begin();
        let _ = self.until_definite(&key, &op, 4);
        let late = self.asked[below(self.asked.len() as u64) as usize].clone();
        if !late.dropped {
            let _ = self.send(&late.key, &late.op, CALL);
        }
    }

    /// Once, with little time. When nothing was done, nothing may come of it later; when the outcome is unknown, the
    /// wallet knows the key.
    fn in_haste(&mut self) {
        let (key, op) = self.begin();
        let lives = self.history.lives();
        match self.send(&key, &op, ms(50 + below(400))) {
            Reply::Answer(_) => {}
            Reply::Nothing(_) => self.asked_of(&key).dropped = true,
            Reply::Open(why) if why.contains("the outcome is not known yet") => {
                for _ in 0..1 + below(3) {
                    let found = self.find(&key);
                    let same = lives == self.history.lives();
                    let unknown = matches!(found, Err(ClientError::Refused { status: 404, .. }));
                    let text = format!("the wallet has forgotten {key}");
                    ensure(!(same && unknown), &text);
                    time::sleep(ms(below(50)));
                }
            }
            Reply::Open(_) => {}
        }
    }

    /// Gives a key up while its request is under way. Then it comes once more.
    fn give_up(&mut self) {
        let (key, op) = self.begin();
        let before = self.history.stops();
        let other = beside(&self.wallet, &key, &op, Duration::from_micros(below(300)));
        time::sleep(Duration::from_micros(below(600)));
        for attempt in 0..6 {
            let told = requests::abandon(&self.wallet, &key, &op, CALL);
            match told {
                Some(Reply::Answer(answer)) => {
                    self.note(&key, Reply::Answer(answer), before);
                    break;
                }
                Some(_) => time::sleep(ms(50 << attempt)),
                None => break,
            }
        }
        let told = other.join().expect("it is not killed");
        self.note(&key, told, before);
        let _ = self.send(&key, &op, CALL);
    }

    /// A key that has taken effect is not taken for another request.
    fn another_request_under_the_key(&mut self) {
        let is_issue = |asked: &&Asked| {
            matches!(asked.op, Op::Issue(_)) && matches!(asked.last(), Some(Answer::Done(_)))
        };
        let found = self.asked.iter().rev().find(is_issue).cloned();
        let Some(Asked {
            key,
            op: Op::Issue(mut request),
            ..
        }) = found
        else {
            return;
        };
        request.amount_minor.0 += 1;
        let told = requests::send(&self.wallet, &key, &Op::Issue(request), CALL);
        if let Reply::Answer(answer) = told {
            let mismatch = Answer::Refused("idempotency_mismatch".to_owned());
            let text = format!("another request under {key} is answered {answer:?}");
            ensure(answer == mismatch, &text);
        }
    }

    /// Debits of an account with its nonces in a row, each sent before the one before it is answered.
    fn in_a_row(&mut self) {
        let before = self.history.stops();
        let from = own(self.number);
        let name: Account = from.parse().expect("an account");
        let money = json!({"to": from, "asset": ASSET, "amount_minor": "1000"});
        let op = Op::Issue(read(money));
        let key = self.begin_with(op.clone(), "");
        let _ = self.until_definite(&key, &op, 4);
        let strict = SetAccount {
            require_nonce: Some(true),
            ..SetAccount::default()
        };
        let op = Op::Set(name.clone(), strict);
        let key = self.begin_with(op.clone(), "");
        let _ = self.until_definite(&key, &op, 4);
        let Ok(doc) = self.wallet.account(&name, Deadline::within(CALL)) else {
            return self.is_quiet(before, "an account has no answer");
        };
        let to = own((self.number + 1) % 3);
        let sent: Vec<_> = (1..=2 + below(2))
            .map(|n| {
                let op = Op::Transfer(read(json!({
                    "from": from, "to": to, "asset": ASSET, "amount_minor": "1", "nonce": doc.nonce + n,
                })));
                let more = "x".repeat(n as usize);
                let key = self.begin_with(op.clone(), &more);
                let other = beside(&self.wallet, &key, &op, Duration::ZERO);
                // Longer than any thread is held up.
                time::sleep(ms(20));
                (key, other)
            })
            .collect();
        for (key, other) in sent {
            let told = other.join().expect("it is not killed");
            let done = matches!(told, Reply::Answer(Answer::Done(_)));
            if !done {
                self.is_quiet(before, &format!("{key} was out of turn: {told:?}"));
            }
            self.note(&key, told, before);
        }
    }

    /// Fails when nothing excuses what happened.
    fn is_quiet(&self, since: u64, what: &str) {
        let excused = !self.calm || self.history.stopped_since(since);
        ensure(excused, what);
    }

    /// Reads a balance, an account or totals.
    fn look(&mut self) {
        let before = self.history.stops();
        let account = match below(6) {
            0 => own(self.number),
            _ => requests::account().to_owned(),
        };
        let looked = match below(8) {
            0 | 1 => self.views.account(&self.wallet, &account),
            2 => self.views.totals(&self.wallet),
            _ => self.read_balance(&account),
        };
        if !looked {
            self.is_quiet(before, "a read has no answer");
        }
    }

    /// A balance knows what its reader was told before: its cache is not used after a change.
    pub fn read_balance(&mut self, account: &str) -> bool {
        let newest = self.knows.values().max().copied();
        let min_seq = newest.filter(|_| below(2) == 0);
        let wallet = self.wallet.knowing(min_seq);
        let known = self.knows.get(account).copied().unwrap_or(0);
        let Some(read) = self.views.balance(&wallet, account, &self.history) else {
            return false;
        };
        // Without the ledger an old one may be answered, which says its age.
        let fresh = self.calm || read.stale_ms == 0;
        let text = format!("{read:?} lacks the change at {known}");
        ensure(!fresh || read.as_of_seq >= known, &text);
        let text = format!("{read:?} does not know {min_seq:?}");
        ensure(read.as_of_seq >= min_seq.unwrap_or(0), &text);
        true
    }

    fn asked_of(&mut self, key: &str) -> &mut Asked {
        let found = self.asked.iter_mut().find(|asked| asked.key == key);
        found.expect("it was begun")
    }

    /// Notes what a call was told that began when the wallet had been stopped `since` times.
    fn note(&mut self, key: &str, told: Reply, since: u64) {
        match told {
            Reply::Answer(answer) => self.answered(key, answer),
            Reply::Nothing(why) => {
                self.is_quiet(since, &format!("{key} has no answer: {why}"));
                let late = why.contains("until its deadline");
                ensure(!(self.calm && late), &format!("{key} was left: {why}"));
            }
            Reply::Open(why) => {
                self.is_quiet(since, &format!("{key} has no answer: {why}"));
                let late = why.contains("504");
                ensure(!(self.calm && late), &format!("{key} was left: {why}"));
                self.asked_of(key).open = true;
            }
        }
    }

    fn answered(&mut self, key: &str, answer: Answer) {
        self.learn(&answer);
        let op = &self.asked_of(key).op;
        let (is_hold, moves) = (
            matches!(op, Op::Hold(_)),
            matches!(op, Op::Transfer(_) | Op::Capture(..)),
        );
        if let Answer::Done(receipt) = &answer {
            if is_hold {
                self.holds.push(receipt.txid);
            }
            if moves {
                self.transfers.push(receipt.txid);
            }
        }
        self.asked_of(key).answers.push(answer);
    }

    /// Notes the changes of accounts that an answer tells of.
    fn learn(&mut self, answer: &Answer) {
        let receipts: Vec<&Receipt> = match answer {
            Answer::Done(receipt) => vec![receipt],
            Answer::Refused(_) => vec![],
            Answer::Batch(answer) => answer.results.iter().filter_map(receipt_of).collect(),
        };
        for receipt in receipts {
            self.history.learnt(receipt.seq);
            for account in receipt.from.iter().chain(&receipt.to) {
                let known = self.knows.entry(account.to_string()).or_insert(0);
                *known = receipt.seq.max(*known);
            }
        }
    }

    /// By the rules: the same request until its answer is definite.
    fn until_definite(&mut self, key: &str, op: &Op, tries: u32) -> bool {
        for attempt in 0..tries {
            if matches!(self.send(key, op, CALL), Reply::Answer(_)) {
                return true;
            }
            time::sleep(ms(100 * u64::from(attempt + 1)));
        }
        false
    }

    /// The services work again: a new operation takes effect before `at`.
    pub fn works_before(&mut self, at: Instant) {
        let op = Op::Issue(read(
            json!({"to": own(9), "asset": ASSET, "amount_minor": "1"}),
        ));
        let key = self.begin_with(op.clone(), "");
        while !self.until_definite(&key, &op, 1) {
            ensure(
                time::now() < at,
                "10 s after the last fault an issue has no answer",
            );
        }
        let is_done = self.asked.iter().all(Asked::is_done);
        ensure(is_done, "an issue is not refused");
    }

    /// Every request that has no definite answer gets one.
    pub fn settle(&mut self, by: Instant) {
        let open = |asked: &&Asked| asked.answers.is_empty() && !asked.dropped;
        let open: Vec<Asked> = self.asked.iter().filter(open).cloned().collect();
        for asked in open {
            let settled = self.until_definite(&asked.key, &asked.op, 10);
            let late = time::now() > by + Duration::from_secs(5);
            ensure(settled && !late, &format!("no answer for {asked:?}"));
        }
    }

    pub fn asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    fn find(&self, key: &str) -> Result<Operation, ClientError> {
        let key: IdemKey = key.parse().expect("a key");
        self.wallet.operation(&key, Deadline::within(CALL))
    }

    /// The outcome of a key as the wallet knows it; `None` when no operation with it has reached the ledger.
    pub fn operation(&self, key: &str) -> Option<Operation> {
        match self.find(key) {
            Ok(operation) => Some(operation),
            Err(ClientError::Refused { status: 404, .. }) => None,
            Err(error) => {
                ensure(false, &format!("no outcome of {key}: {error}"));
                unreachable!("the run has ended")
            }
        }
    }

    /// Looks at every account and at the totals once. The wallet may still hold the ledger for unavailable.
    pub fn look_at_all(&mut self) {
        let by = time::now() + RECOVERY;
        let again = |what: &str| {
            ensure(time::now() < by, &format!("{what} answered in time"));
            time::sleep(ms(50));
        };
        let owned = (0..3).map(own);
        let accounts = requests::ACCOUNTS.map(str::to_owned).into_iter();
        for account in accounts.chain(owned) {
            while !(self.read_balance(&account) && self.views.account(&self.wallet, &account)) {
                again("every account is");
            }
        }
        while !self.views.totals(&self.wallet) {
            again("totals are");
        }
    }

    /// The ledger's whole log.
    pub fn log(&self) -> Vec<Event> {
        log_of(&self.ledger)
    }
}
