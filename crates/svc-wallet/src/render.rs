//! Translates the ledger's answers into the wallet's. An answer depends only on the request and the
//! ledger's entry, so that a repeated request gets the same bytes from any instance.

use ron_http::Response;
use ron_proto::ledger::{EntryAnswer, Event, RefusalCode, Viewer};
use ron_proto::wallet::{BatchAnswer, HistoryEntry, ItemOutcome, Transaction};
use ron_proto::{Account, Problem, Tenant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One operation: its receipt, or a problem.
    One,
    /// A batch: one result per item; a refused linked batch is a problem.
    Batch { linked: bool },
}

/// What the caller may see in the answer.
#[derive(Debug, Clone, Copy)]
pub struct AnswerOptions {
    /// Include the expected nonce of the account.
    pub expected: bool,
    /// The answer repeats an earlier one.
    pub replayed: bool,
}

/// The HTTP response to a request, from the ledger's answers to its entries.
pub fn answer(shape: Shape, answers: &[EntryAnswer], options: AnswerOptions) -> Response {
    // A refusal that used no key is no first answer: the next request may get another one.
    let follows = options.replayed && !answers.iter().any(leaves_key_unused);
    let given_before = follows || answers.iter().all(EntryAnswer::is_replayed);
    let response = match (shape, answers) {
        (
            Shape::One,
            [
                EntryAnswer::Done {
                    receipt, private, ..
                },
            ],
        ) => Response::json(
            200,
            &Transaction {
                now: None,
                receipt: receipt.clone(),
                private: Some(private.clone()),
            },
        ),
        (Shape::One, [refused @ EntryAnswer::Refused { .. }]) => refusal(refused, None, options),
        (Shape::One, _) => {
            Problem::internal("the ledger answered a different number of entries").into()
        }
        (Shape::Batch { linked }, all) => batch(linked, all, options),
    };
    if given_before && response.status != 422 {
        response.header("Idempotency-Replayed", "true")
    } else {
        response
    }
}

fn batch(linked: bool, answers: &[EntryAnswer], options: AnswerOptions) -> Response {
    let mismatch = |a: &EntryAnswer| code_of(a) == Some(RefusalCode::IdempotencyMismatch);
    if answers.iter().any(mismatch) {
        return self::mismatch().into();
    }
    let guilty = |a: &EntryAnswer| !matches!(code_of(a), None | Some(RefusalCode::LinkedFailed));
    let whole = linked || answers.iter().any(leaves_key_unused);
    if whole && let Some(at) = answers.iter().position(guilty) {
        return refusal(&answers[at], Some(at), options);
    }
    let results = answers.iter().map(item).collect();
    Response::json(200, &BatchAnswer { results })
}

/// True for a refusal after which the key is unused, so that the same request may be sent again.
pub fn leaves_key_unused(answer: &EntryAnswer) -> bool {
    seq_of(answer).is_none() && code_of(answer) != Some(RefusalCode::IdempotencyMismatch)
}

pub fn item(answer: &EntryAnswer) -> ItemOutcome {
    match answer {
        EntryAnswer::Done {
            receipt, private, ..
        } => ItemOutcome::Done {
            receipt: receipt.clone(),
            private: private.clone(),
        },
        EntryAnswer::Refused { code, .. } => ItemOutcome::Refused { code: *code },
    }
}

/// The refusal code; `None` for a committed entry.
pub const fn code_of(answer: &EntryAnswer) -> Option<RefusalCode> {
    match answer {
        EntryAnswer::Done { .. } => None,
        EntryAnswer::Refused { code, .. } => Some(*code),
    }
}

/// Sequence of the entry in the ledger; `None` when it was refused without an entry.
pub const fn seq_of(answer: &EntryAnswer) -> Option<u64> {
    match answer {
        EntryAnswer::Done { seq, .. } => Some(*seq),
        EntryAnswer::Refused { seq, .. } => *seq,
    }
}

/// The problem document of a refusal. The answer to a repeated request differs in its `request_id` alone, which names the
/// exchange; `details.entry` names the ledger entry of the refusal.
fn refusal(answer: &EntryAnswer, index: Option<usize>, options: AnswerOptions) -> Response {
    let EntryAnswer::Refused {
        code,
        seq,
        expected,
        ..
    } = answer
    else {
        return Problem::internal("a done entry is no refusal").into();
    };
    let problem = problem(*code);
    if *code == RefusalCode::IdempotencyMismatch {
        return problem.into();
    }
    let mut details = serde_json::Map::new();
    if let Some(nonce) = expected.filter(|_| options.expected) {
        details.insert("expected".to_owned(), nonce.into());
    }
    if let Some(index) = index {
        details.insert("item".to_owned(), index.into());
    }
    if let Some(seq) = seq {
        details.insert("entry".to_owned(), (*seq).into());
    }
    if details.is_empty() {
        return problem.into();
    }
    problem.with_details(details.into()).into()
}

/// 422: the key belongs to a different request.
pub fn mismatch() -> Problem {
    Problem::idempotency_mismatch("the key was used for another request; use a new key")
}

/// The problem of a refusal.
pub fn problem(code: RefusalCode) -> Problem {
    let (status, title) = match code {
        RefusalCode::LimitsExceeded => (403, "Limit exceeded"),
        RefusalCode::AccountFrozen => (403, "Account frozen"),
        RefusalCode::AccountClosed => (403, "Account closed"),
        RefusalCode::MaxBalance => (403, "Maximum balance"),
        RefusalCode::AssetUnregistered => (403, "Asset not registered"),
        RefusalCode::ReservedAccount => (403, "Reserved account"),
        RefusalCode::IdempotencyMismatch => return mismatch(),
        RefusalCode::InsufficientFunds => (409, "Insufficient funds"),
        RefusalCode::NonceConflict => (409, "Nonce conflict"),
        RefusalCode::RefusalBudget => {
            let problem = Problem::new(429, code.as_str(), "Too many refusals", code.meaning());
            return problem.with_retry_after(1);
        }
        _ => (409, "Refused by the ledger"),
    };
    Problem::new(status, code.as_str(), title, code.meaning())
}

/// How much of an entry's texts a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// The maker's side: everything.
    All,
    /// The reference, if the maker shares it.
    Shared,
}

/// What a caller of `tenant` sees of an entry: everything of those that it made, and of those that
/// its tenant made and that debited an account it may read.
pub fn texts(
    event: &Event,
    tenant: &Tenant,
    principal: Option<&str>,
    reads: impl Fn(&Account) -> bool,
) -> Texts {
    let made = event
        .entry
        .request_key()
        .filter(|key| key.tenant == *tenant);
    let Some(made) = made else {
        return Texts::Shared;
    };
    let payer = event.operands().from;
    if principal == Some(made.principal.as_str()) || payer.is_some_and(|payer| reads(&payer)) {
        Texts::All
    } else {
        Texts::Shared
    }
}

/// An entry of an account as a caller that may read the account sees it.
pub fn shown(event: Event, viewer: &Viewer, account: &Account) -> HistoryEntry {
    let caller = Some(viewer.principal.as_str());
    let texts = texts(&event, &viewer.tenant, caller, |payer| payer == account);
    history_entry(event, texts)
}

/// An entry as a reader sees it: without the idempotency keys and names of other callers.
pub fn history_entry(event: Event, texts: Texts) -> HistoryEntry {
    let refused = code_of(&event.answer);
    let op = event.entry.kind();
    let operands = event.operands();
    let receipt = event.answer.receipt();
    let all = texts == Texts::All;
    let details = operands.details;
    HistoryEntry {
        seq: event.seq,
        ts: event.ts,
        op,
        txid: receipt.map(|r| r.txid),
        refused,
        from: operands.from,
        to: operands.to,
        asset: operands.asset,
        amount_minor: operands.amount_minor,
        balance_minor: None,
        nonce: operands.nonce.filter(|_| all),
        hold: receipt.and_then(|r| r.hold),
        batch: receipt.and_then(|r| r.batch),
        reverses: receipt.and_then(|r| r.reverses),
        reference: details.reference.filter(|_| all || details.share_reference),
        memo: details.memo.filter(|_| all),
        metadata: details.metadata.filter(|_| all),
        effective_at: details.effective_at.filter(|_| all),
    }
}

/// Accounts whose document a committed entry changed. A refused entry changes none.
pub fn touched(event: &Event) -> Vec<&Account> {
    let EntryAnswer::Done { receipt, .. } = &event.answer else {
        return Vec::new();
    };
    // The receipt of a freeze names its account as `from`.
    receipt.from.iter().chain(&receipt.to).collect()
}

#[cfg(test)]
mod tests {
    use ron_http::Body;

    use super::*;

    fn refused(code: RefusalCode, seq: u64, expected: Option<u64>, replayed: bool) -> EntryAnswer {
        EntryAnswer::Refused {
            code,
            seq: Some(seq),
            expected,
            paid_by: None,
            replayed,
        }
    }

    fn body(r: &Response) -> serde_json::Value {
        serde_json::from_slice(r.body.as_bytes()).unwrap()
    }

    /// The problem document as the answer to the request with this id has it.
    fn document(r: &Response, id: &str) -> serde_json::Value {
        match &r.body {
            Body::Problem(problem) => serde_json::from_slice(&problem.to_json(id)).unwrap(),
            other => panic!("{other:?} is no problem"),
        }
    }

    fn details(r: &Response) -> serde_json::Value {
        match &r.body {
            Body::Problem(problem) => *problem.details.clone().unwrap_or_default(),
            other => panic!("{other:?} is no problem"),
        }
    }

    const OPTIONS: AnswerOptions = AnswerOptions {
        expected: true,
        replayed: false,
    };

    #[test]
    fn a_refusal_sent_again_is_the_same_but_for_the_request() {
        let first = refused(RefusalCode::InsufficientFunds, 9, None, false);
        let again = refused(RefusalCode::InsufficientFunds, 9, None, true);
        let (a, b) = (
            answer(Shape::One, std::slice::from_ref(&first), OPTIONS),
            answer(Shape::One, &[again], OPTIONS),
        );
        let [a_text, b_text] = [&a, &b].map(|told| document(told, "r"));
        assert_eq!(a_text, b_text);
        assert_eq!(document(&a, "find-me-43")["request_id"], "find-me-43");
        assert_eq!(a_text["details"]["entry"], 9);
        assert_eq!((a.status, a.get("idempotency-replayed")), (409, None));
        assert_eq!(b.get("idempotency-replayed"), Some("true"));
    }

    #[test]
    fn a_nonce_conflict_is_never_a_replay_and_names_the_next_nonce_to_readers() {
        let conflict = EntryAnswer::Refused {
            code: RefusalCode::NonceConflict,
            seq: None,
            expected: Some(4),
            paid_by: None,
            replayed: false,
        };
        let follower = AnswerOptions {
            replayed: true,
            ..OPTIONS
        };
        let told = answer(Shape::One, std::slice::from_ref(&conflict), follower);
        assert_eq!((told.status, told.get("idempotency-replayed")), (409, None));
        assert_eq!(details(&told)["expected"], 4);
        let hidden = AnswerOptions {
            expected: false,
            ..OPTIONS
        };
        let told = answer(Shape::One, std::slice::from_ref(&conflict), hidden);
        assert!(details(&told).is_null());
        let other = EntryAnswer::Refused {
            code: RefusalCode::LinkedFailed,
            seq: None,
            expected: None,
            paid_by: None,
            replayed: false,
        };
        let whole = answer(Shape::Batch { linked: false }, &[other, conflict], OPTIONS);
        assert_eq!((whole.status, &details(&whole)["item"]), (409, &1.into()));
    }

    #[test]
    fn a_linked_batch_names_the_guilty_item_and_a_loose_one_tells_all() {
        let all = [
            refused(RefusalCode::LinkedFailed, 3, None, false),
            refused(RefusalCode::InsufficientFunds, 4, None, false),
        ];
        let linked = answer(Shape::Batch { linked: true }, &all, OPTIONS);
        let told = document(&linked, "r");
        assert_eq!(
            (linked.status, &told["code"]),
            (409, &"insufficient_funds".into())
        );
        assert_eq!(told["details"]["item"], 1);
        let loose = answer(Shape::Batch { linked: false }, &all[1..], OPTIONS);
        assert_eq!(loose.status, 200);
        assert_eq!(body(&loose)["results"][0]["code"], "insufficient_funds");
        let mixed = [
            all[1].clone(),
            refused(RefusalCode::IdempotencyMismatch, 0, None, true),
        ];
        assert_eq!(
            answer(Shape::Batch { linked: false }, &mixed, OPTIONS).status,
            422
        );
    }
}
