//! Translates the ledger's answers into the wallet's. An answer depends only on the request and the
//! ledger's entry, so that a repeated request gets the same bytes from any instance.

use ron_http::Response;
use ron_proto::Problem;
use ron_proto::ledger::{EntryAnswer, RefusalCode};
use ron_proto::wallet::{BatchAnswer, ItemOutcome, Transaction};

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
    let given_before = options.replayed || answers.iter().all(EntryAnswer::is_replayed);
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
    if linked && let Some(at) = answers.iter().position(guilty) {
        return refusal(&answers[at], Some(at), options);
    }
    let results = answers.iter().map(|a| item(a, options.expected)).collect();
    Response::json(200, &BatchAnswer { results })
}

pub fn item(answer: &EntryAnswer, with_expected: bool) -> ItemOutcome {
    match answer {
        EntryAnswer::Done {
            receipt, private, ..
        } => ItemOutcome::Done {
            receipt: receipt.clone(),
            private: private.clone(),
        },
        EntryAnswer::Refused { code, expected, .. } => ItemOutcome::Refused {
            code: *code,
            expected: expected.filter(|_| with_expected),
        },
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

/// The problem document of a refusal. Its `request_id` names the ledger entry of the refusal
/// instead of the request, because the answer to a repeated request is byte-identical;
/// `X-Request-Id` still names each exchange.
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
    let problem = if details.is_empty() {
        problem
    } else {
        problem.with_details(details.into())
    };
    let id = seq.map_or_else(|| "entry".to_owned(), |seq| format!("entry-{seq}"));
    Response::bytes(problem.status, problem.content_type(), problem.to_json(&id))
}

/// 422: the key belongs to a different request.
pub fn mismatch() -> Problem {
    Problem::idempotency_mismatch("the key was used for another request; use a new key")
}

fn problem(code: RefusalCode) -> Problem {
    let (status, title) = match code {
        RefusalCode::LimitsExceeded => (403, "Limit exceeded"),
        RefusalCode::AccountFrozen => (403, "Account frozen"),
        RefusalCode::ReservedAccount => (403, "Reserved account"),
        RefusalCode::IdempotencyMismatch => return mismatch(),
        RefusalCode::InsufficientFunds => (409, "Insufficient funds"),
        RefusalCode::NonceConflict => (409, "Nonce conflict"),
        _ => (409, "Refused by the ledger"),
    };
    Problem::new(status, code.as_str(), title, code.meaning())
}

#[cfg(test)]
mod tests {
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

    const OPTIONS: AnswerOptions = AnswerOptions {
        expected: true,
        replayed: false,
    };

    #[test]
    fn a_refusal_sent_again_is_the_same_to_the_byte() {
        let first = refused(RefusalCode::NonceConflict, 9, Some(4), false);
        let again = refused(RefusalCode::NonceConflict, 9, Some(4), true);
        let (a, b) = (
            answer(Shape::One, std::slice::from_ref(&first), OPTIONS),
            answer(Shape::One, &[again], OPTIONS),
        );
        assert_eq!(a.body.as_bytes(), b.body.as_bytes());
        assert_eq!((a.status, a.get("idempotency-replayed")), (409, None));
        assert_eq!(b.get("idempotency-replayed"), Some("true"));
        assert_eq!(body(&a)["details"]["expected"], 4);
        let hidden = AnswerOptions {
            expected: false,
            ..OPTIONS
        };
        assert!(
            body(&answer(Shape::One, &[first], hidden))
                .get("details")
                .is_none()
        );
    }

    #[test]
    fn a_linked_batch_names_the_guilty_item_and_a_loose_one_tells_all() {
        let all = [
            refused(RefusalCode::LinkedFailed, 3, None, false),
            refused(RefusalCode::InsufficientFunds, 4, None, false),
        ];
        let linked = answer(Shape::Batch { linked: true }, &all, OPTIONS);
        let told = body(&linked);
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
