//! What must hold at the end of a run: callers, the log, the wallet's reads and the model agree.

use ron_proto::wallet::{ItemOutcome, Operation};
use ron_sim::ensure;

use super::clients::{ACCOUNTS, Answer, Asked, Client, Read};
use super::model::{End, Model};

pub fn all(auditor: &mut Client, asked: &[Asked], mut reads: Vec<Read>) {
    // Before the log is read: a hold may end by the clock at any moment.
    ACCOUNTS
        .into_iter()
        .for_each(|account| auditor.read_balance(account));
    let all_read = auditor.reads.len() == ACCOUNTS.len();
    ensure(all_read, "every balance is answered");
    reads.append(&mut auditor.reads);
    let reads = &reads;
    let mut model = Model::default();
    balances_at(&model, 0, reads);
    for event in auditor.log() {
        let applied = model.apply(&event);
        ensure(applied.is_ok(), &format!("{applied:?} at {event:?}"));
        balances_at(&model, event.seq, reads);
    }
    for request in asked {
        answers_are_equal(request);
        let ends = model.ends.get(&request.key).map_or(&[][..], Vec::as_slice);
        agrees(request, ends);
        is_known(auditor, request);
    }
    let own = |key: &String| asked.iter().any(|a| a.key == *key) || key.starts_with("c9-");
    let foreign = model.ends.keys().find(|key| !own(key));
    ensure(
        foreign.is_none(),
        &format!("no client asked for {foreign:?}"),
    );
}

/// Balances that were read as of this sequence are those of the model then.
fn balances_at(model: &Model, seq: u64, reads: &[Read]) {
    for read in reads.iter().filter(|read| read.seq == seq) {
        let due = (model.balance(read.account), model.available(read.account));
        ensure(
            (read.balance, read.available) == due,
            &format!("{read:?} is not {due:?}"),
        );
    }
}

/// A key has one answer.
fn answers_are_equal(request: &Asked) {
    let first = request.answers.first();
    let same = request.answers.iter().all(|answer| Some(answer) == first);
    ensure(same, &format!("answers of one key differ: {request:?}"));
}

fn outcome(item: &ItemOutcome) -> End {
    match item {
        ItemOutcome::Done { receipt, .. } => End::Done(receipt.txid),
        ItemOutcome::Refused { code } => End::Refused(*code),
    }
}

/// What the caller was told is what the log has, once.
fn agrees(request: &Asked, ends: &[End]) {
    let text = format!("{request:?} and the log: {ends:?}");
    match request.answers.first() {
        Some(Answer::Done(receipt)) => {
            ensure(
                ends == [End::Done(receipt.txid)],
                &format!("done once: {text}"),
            );
        }
        Some(Answer::Refused(_)) => {
            let done = ends.iter().any(|end| matches!(end, End::Done(_)));
            ensure(!done, &format!("refused, and nothing took effect: {text}"));
        }
        Some(Answer::Batch(answer)) => {
            let known: Vec<End> = answer.results.iter().map(outcome).collect();
            let done = |ends: &[End]| -> Vec<End> {
                let done = ends.iter().filter(|end| matches!(end, End::Done(_)));
                done.cloned().collect()
            };
            ensure(
                done(&known) == done(ends),
                &format!("each item once: {text}"),
            );
        }
        None => ensure(false, &format!("no answer: {text}")),
    }
}

/// `GET /v1/ops/{key}` says the same.
fn is_known(auditor: &Client, request: &Asked) {
    let text = || format!("{request:?}");
    match (auditor.operation(&request.key), &request.answers[0]) {
        (Operation::Done { receipt, .. }, Answer::Done(known)) => {
            ensure(
                receipt == **known,
                &format!("another receipt: {receipt:?}, {}", text()),
            );
        }
        (Operation::Refused { code }, Answer::Refused(known)) => {
            ensure(
                code.as_str() == known,
                &format!("refused by {code}: {}", text()),
            );
        }
        (Operation::Batch { results }, Answer::Batch(known)) => {
            ensure(
                results == known.results,
                &format!("another batch: {results:?}, {}", text()),
            );
        }
        // A refused linked batch is an error, and its items are refused.
        (Operation::Batch { results }, Answer::Refused(_)) => {
            let done = results
                .iter()
                .any(|item| matches!(outcome(item), End::Done(_)));
            ensure(!done, &format!("refused, but {results:?}: {}", text()));
        }
        (other, _) => ensure(false, &format!("{other:?}, but {}", text())),
    }
}
