//! What must hold at the end of a run: callers, the log, the wallet's reads and the model agree.

use std::collections::BTreeMap;

use ron_proto::ledger::{EntryAnswer, Event, RefusalCode, TxId};
use ron_proto::wallet::{ItemOutcome, Operation};
use ron_sim::ensure;

use super::clients::Client;
use super::requests::{Answer, Asked};
use super::views::Views;
use crate::model::Model;

/// The end of a key: what the first request with it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Done(TxId),
    Refused(RefusalCode),
}

pub fn all(auditor: &mut Client, asked: &[Asked], mut views: Views) {
    // Before the log is read: a hold may end by the clock at any moment.
    auditor.look_at_all();
    views.append(&mut auditor.views);
    let log = auditor.log();
    let follows = follow(&log, &mut views);
    ensure(follows.is_ok(), &format!("{follows:?}"));
    let ends = ends(&log);
    for request in asked {
        answers_are_equal(request);
        let ends = ends.get(&request.key).map_or(&[][..], Vec::as_slice);
        agrees(request, ends);
        is_known(auditor, request, ends);
    }
    let own = |key: &String| asked.iter().any(|a| a.key == *key) || key.starts_with("c9-");
    let foreign = ends.keys().find(|key| !own(key));
    ensure(
        foreign.is_none(),
        &format!("no client asked for {foreign:?}"),
    );
}

/// The model takes every entry of the log, and has what was read at each sequence.
fn follow(log: &[Event], views: &mut Views) -> Result<(), String> {
    let mut model = Model::default();
    views.compare(&model)?;
    while model.seq() < log.len() as u64 {
        model.take(&log[model.seq() as usize..])?;
        views.compare(&model)?;
    }
    views.all_compared()
}

/// By key as its caller wrote it; of a batch one for each item, in their order.
fn ends(log: &[Event]) -> BTreeMap<String, Vec<End>> {
    let mut ends: BTreeMap<String, Vec<End>> = BTreeMap::new();
    for event in log {
        let Some(key) = event.entry.request_key() else {
            continue;
        };
        let name = key.key.as_str().split('#').next().unwrap_or_default();
        let end = match &event.answer {
            EntryAnswer::Done { txid, .. } => End::Done(*txid),
            EntryAnswer::Refused { code, .. } => End::Refused(*code),
        };
        ends.entry(name.to_owned()).or_default().push(end);
    }
    ends
}

/// A key has one answer, after those that left it unused.
fn answers_are_equal(request: &Asked) {
    let last = request.last();
    let mut used = request.answers.iter().filter(|a| !a.leaves_key_unused());
    let same = used.all(|answer| Some(answer) == last);
    ensure(same, &format!("answers of one key differ: {request:?}"));
}

fn outcome(item: &ItemOutcome) -> End {
    match item {
        ItemOutcome::Done { receipt, .. } => End::Done(receipt.txid),
        ItemOutcome::Refused { code } => End::Refused(*code),
    }
}

fn done(ends: &[End]) -> Vec<End> {
    let done = ends.iter().filter(|end| matches!(end, End::Done(_)));
    done.cloned().collect()
}

/// What the caller was told is what the log has, once.
fn agrees(request: &Asked, ends: &[End]) {
    let text = format!("{request:?} and the log: {ends:?}");
    match request.last() {
        Some(Answer::Done(receipt)) => {
            ensure(
                ends == [End::Done(receipt.txid)],
                &format!("done once: {text}"),
            );
        }
        Some(Answer::Refused(_)) => {
            ensure(
                done(ends).is_empty(),
                &format!("refused, and nothing took effect: {text}"),
            );
        }
        Some(Answer::Batch(answer)) => {
            let known: Vec<End> = answer.results.iter().map(outcome).collect();
            ensure(
                done(&known) == done(ends),
                &format!("each item once: {text}"),
            );
        }
        // Every call with it said that it changed nothing.
        None if !request.open => {
            ensure(ends.is_empty(), &format!("nothing was done: {text}"));
        }
        None => {}
    }
}

/// `GET /v1/ops/{key}` says the same.
fn is_known(auditor: &Client, request: &Asked, ends: &[End]) {
    let text = || format!("{request:?}");
    match (auditor.operation(&request.key), request.last()) {
        (Some(Operation::Done { receipt, .. }), Some(Answer::Done(known))) => {
            ensure(
                receipt == **known,
                &format!("another receipt: {receipt:?}, {}", text()),
            );
        }
        (Some(Operation::Refused { code }), Some(Answer::Refused(known))) => {
            ensure(
                code.as_str() == known,
                &format!("refused by {code}: {}", text()),
            );
        }
        (Some(Operation::Batch { results }), Some(Answer::Batch(known))) => {
            ensure(
                results == known.results,
                &format!("another batch: {results:?}, {}", text()),
            );
        }
        // A refused linked batch is an error, and its items are refused.
        (Some(Operation::Batch { results }), Some(Answer::Refused(_))) => {
            let done = results
                .iter()
                .any(|item| matches!(outcome(item), End::Done(_)));
            ensure(!done, &format!("refused, but {results:?}: {}", text()));
        }
        // No call had a definite answer that used the key: the log alone says what became of it.
        (None, None) => ensure(
            ends.is_empty(),
            &format!("{ends:?}, but unknown: {}", text()),
        ),
        // An earlier call with the key may still be under way, as far as the wallet knows; also one that the client itself has
        // repeated, until an answer that left the key unused.
        (Some(Operation::Open {}), None) => ensure(
            (request.open || !request.answers.is_empty()) && ends.is_empty(),
            &format!("open, but {ends:?}: {}", text()),
        ),
        (Some(_), None) => ensure(
            !ends.is_empty(),
            &format!("known, but not in the log: {}", text()),
        ),
        (other, _) => ensure(false, &format!("{other:?}, but {}", text())),
    }
}
