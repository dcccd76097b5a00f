//! What callers ask the wallet for, and what one call told them.

use std::time::Duration;

use ron_client::{ClientError, WalletClient};
use ron_kernel::Deadline;
use ron_proto::ledger::{AccountTerms, Receipt, RefusalCode, Sides, TxId};
use ron_proto::wallet::{
    Batch, BatchAnswer, Burn, Capture, FreezeAccount, HoldMoney, IssueMoney, ItemOutcome,
    Operation, Remarks, Reverse, SetAccount, Transaction, Transfer,
};
use ron_proto::{Account, IdemKey, Timestamp};
use ron_sim::{ensure, time};
use serde_json::{Value, json};

use crate::chance::below;

/// The accounts that every caller debits.
pub const ACCOUNTS: [&str; 4] = ["user:a", "user:b", "user:c", "user:d"];
pub const ASSET: &str = "credit";

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
    Freeze(Account, FreezeAccount),
    Unfreeze(Account, FreezeAccount),
    Set(Account, SetAccount),
}

/// A definite answer, in a form that can be compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done(Box<Receipt>),
    Refused(String),
    Batch(Box<BatchAnswer>),
}

impl Answer {
    /// Whether the key has no end by it: the same request may get another answer.
    pub fn leaves_key_unused(&self) -> bool {
        *self == Self::Refused("nonce_conflict".to_owned())
    }

    /// The answer of a batch. A key that was given up is refused for every item alike.
    fn batch(answer: BatchAnswer) -> Self {
        let given_up = |item: &ItemOutcome| match item {
            ItemOutcome::Refused { code } => *code == RefusalCode::Abandoned,
            ItemOutcome::Done { .. } => false,
        };
        if answer.results.iter().all(given_up) {
            return Self::Refused(RefusalCode::Abandoned.as_str().to_owned());
        }
        Self::Batch(Box::new(answer))
    }
}

/// What one call told its caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Answer(Answer),
    /// This call has changed nothing, and will not.
    Nothing(String),
    /// It may have taken effect, or still will.
    Open(String),
}

/// A request with its key, and every definite answer that came for it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: String,
    pub op: Op,
    pub answers: Vec<Answer>,
    /// A call with the key may have taken effect.
    pub open: bool,
    /// Its caller does not send it again: nothing was done.
    pub dropped: bool,
}

impl Asked {
    pub fn is_done(&self) -> bool {
        matches!(
            self.answers.first(),
            Some(Answer::Done(_) | Answer::Batch(_))
        )
    }

    /// The answer that the key has for good.
    pub fn last(&self) -> Option<&Answer> {
        self.answers.iter().find(|a| !a.leaves_key_unused())
    }
}

pub fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("a request")
}

pub fn account() -> &'static str {
    ACCOUNTS[below(4) as usize]
}

pub fn amount() -> String {
    (1 + below(100)).to_string()
}

/// Money for any account.
pub fn issue() -> Op {
    let to = account();
    Op::Issue(read(
        json!({"to": to, "asset": ASSET, "amount_minor": amount()}),
    ))
}

/// An amount, or now and then all that is available.
fn sized() -> String {
    match below(10) {
        0 => "max".to_owned(),
        _ => amount(),
    }
}

pub fn transfer() -> Value {
    let from = below(4) as usize;
    let to = (from + 1 + below(3) as usize) % 4;
    json!({"from": ACCOUNTS[from], "to": ACCOUNTS[to], "asset": ASSET, "amount_minor": sized()})
}

pub fn burn() -> Value {
    json!({"from": account(), "asset": ASSET, "amount_minor": sized()})
}

/// Mostly over before the run is.
pub fn hold() -> Value {
    let end = time::date() + Duration::from_millis(1 + below(4_000));
    let end = Timestamp(end.as_millis() as u64);
    json!({"from": account(), "asset": ASSET, "amount_minor": sized(), "expires_at": end})
}

pub fn capture() -> Value {
    let part = json!({"to": account(), "amount_minor": amount(), "final": below(2) == 0});
    let all = json!({"to": account()});
    if below(2) == 0 { part } else { all }
}

/// Up to four items. In a linked batch a later item may use the hold that the first one makes.
pub fn batch() -> Batch {
    let linked = below(2) == 0;
    let mut items: Vec<Value> = Vec::new();
    let with_hold = linked && below(2) == 0;
    for at in 0..1 + below(4) {
        let (kind, mut item) = match below(2) {
            _ if with_hold && at == 0 => ("hold", hold()),
            0 if with_hold => ("capture", capture()),
            0 => (
                "issue",
                json!({"to": account(), "asset": ASSET, "amount_minor": amount()}),
            ),
            _ => ("transfer", transfer()),
        };
        if kind == "capture" {
            item["hold"] = "#0".into();
        }
        item["op"] = kind.into();
        items.push(item);
    }
    read(json!({"items": items, "linked": linked}))
}

/// What an operator does to an account. More is freed than is taken away, so that the world goes on.
pub fn terms() -> Op {
    let account: Account = account().parse().expect("an account");
    let sides = Sides::ALL[1 + below(3) as usize];
    let freeze = FreezeAccount {
        sides: Some(sides),
        ..FreezeAccount::default()
    };
    let set = |terms: AccountTerms| SetAccount {
        closed: terms.closed,
        frozen: terms.frozen,
        require_nonce: terms.require_nonce,
        limits: terms.limits,
        ..SetAccount::default()
    };
    let mut wanted = AccountTerms::default();
    match below(10) {
        0 | 1 => return Op::Freeze(account, freeze),
        2..=4 => return Op::Unfreeze(account, FreezeAccount::default()),
        5 => wanted.require_nonce = Some(below(3) == 0),
        6 => wanted.frozen = Some(Sides::None),
        7 => wanted.closed = Some(below(4) == 0),
        _ => {
            let bounded = below(2) == 0;
            let max = bounded.then(|| (300 + below(3_000)).to_string());
            let credit = (below(2) * 200).to_string();
            wanted.limits = Some(read(json!({
                "asset": ASSET, "credit_limit_minor": credit, "max_balance_minor": max,
            })));
        }
    }
    Op::Set(account, set(wanted))
}

/// What a call came to.
fn told<T>(result: Result<T, ClientError>, done: impl FnOnce(T) -> Answer) -> Reply {
    let error = match result {
        Ok(answer) => return Reply::Answer(done(answer)),
        Err(error) => error,
    };
    let text = error.to_string();
    match error {
        ClientError::Refused {
            status, problem, ..
        } if problem.retryable => {
            ensure([429, 503].contains(&status), &text);
            Reply::Nothing(text)
        }
        ClientError::Refused {
            status, problem, ..
        } => {
            let ruled = [403, 409, 422].contains(&status) && problem.code != "forbidden";
            ensure(ruled, &text);
            Reply::Answer(Answer::Refused(problem.code))
        }
        ClientError::NotSent { .. } => Reply::Nothing(text),
        ClientError::Unknown { detail, .. } => {
            ensure(!detail.starts_with("500"), &text);
            Reply::Open(text)
        }
    }
}

/// One call, which tries again by itself while that is safe.
pub fn send(wallet: &WalletClient, key: &str, op: &Op, time: Duration) -> Reply {
    let name: IdemKey = key.parse().expect("a key");
    let (key, by) = (&name, Deadline::within(time));
    ron_sim::report(&format!("{key} asks: {op:?}"));
    let done = |tx: Transaction| Answer::Done(Box::new(tx.receipt));
    let told = match op {
        Op::Issue(request) => told(wallet.issue(key, request, by), done),
        Op::Transfer(request) => told(wallet.transfer(key, request, by), done),
        Op::Burn(request) => told(wallet.burn(key, request, by), done),
        Op::Hold(request) => told(wallet.hold(key, request, by), done),
        Op::Capture(hold, request) => told(wallet.capture(key, *hold, request, by), done),
        Op::Release(hold) => told(wallet.release(key, *hold, &Remarks::default(), by), done),
        Op::Reverse(tx, request) => told(wallet.reverse(key, *tx, request, by), done),
        Op::Batch(request) => told(wallet.batch(key, request, by), Answer::batch),
        Op::Freeze(account, request) => told(wallet.freeze(key, account, request, by), done),
        Op::Unfreeze(account, request) => told(wallet.unfreeze(key, account, request, by), done),
        Op::Set(account, request) => told(wallet.set_account(key, account, request, by), done),
    };
    ron_sim::report(&format!("{key} is told: {}", short(&told)));
    told
}

/// Gives the key up: what became of it, or that it is refused from now on. `None` for the items of a batch that was
/// refused as a whole, which its request shows as one refusal.
pub fn abandon(wallet: &WalletClient, key: &str, op: &Op, time: Duration) -> Option<Reply> {
    let name: IdemKey = key.parse().expect("a key");
    ron_sim::report(&format!("{key} is given up"));
    let result = wallet.abandon(&name, Deadline::within(time));
    let linked = matches!(op, Op::Batch(batch) if batch.linked);
    let refused = |item: &ItemOutcome| matches!(item, ItemOutcome::Refused { .. });
    if let Ok(Operation::Batch { results }) = &result
        && linked
        && results.iter().any(refused)
    {
        return None;
    }
    let told = told(result, |operation| match operation {
        Operation::Done { receipt, .. } => Answer::Done(Box::new(receipt)),
        Operation::Refused { code } => Answer::Refused(code.as_str().to_owned()),
        Operation::Batch { results } => Answer::batch(BatchAnswer { results }),
        Operation::Open {} => {
            ensure(false, "a key that was given up is open");
            unreachable!("the run has ended")
        }
    });
    ron_sim::report(&format!("{key} was given up: {}", short(&told)));
    Some(told)
}

/// An answer in a few words.
fn short(told: &Reply) -> String {
    match told {
        Reply::Answer(Answer::Done(receipt)) => {
            let amount = receipt.amount_minor.map_or(0, |amount| amount.0);
            format!("done, entry {} of {amount}", receipt.seq)
        }
        Reply::Answer(Answer::Refused(code)) => format!("refused, {code}"),
        Reply::Answer(Answer::Batch(answer)) => {
            let done = answer.results.iter().filter_map(receipt_of);
            let done: Vec<u64> = done.map(|receipt| receipt.seq).collect();
            format!("of {} items the entries {done:?}", answer.results.len())
        }
        Reply::Nothing(why) => format!("nothing was done: {why}"),
        Reply::Open(why) => format!("unknown: {why}"),
    }
}

pub const fn receipt_of(item: &ItemOutcome) -> Option<&Receipt> {
    match item {
        ItemOutcome::Done { receipt, .. } => Some(receipt),
        ItemOutcome::Refused { .. } => None,
    }
}
