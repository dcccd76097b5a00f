//! The format of Vault's answers: `data` in an envelope of constants, or `errors`.

use ron_custody::Refusal;
use ron_http::{Body, Response, Route};
use ron_proto::kms::BATCH_ITEMS_MAX;
use ron_proto::problem::Problem;
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::bad;
use crate::errors::problem;

/// The statuses that a request may choose for a batch with failed items.
const PARTIAL: [u16; 7] = [200, 202, 207, 400, 409, 422, 424];

/// An error answer, for the API document.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)] // only its shape matters
enum Failed {
    Errors {
        /// Codes and reasons, one text per error.
        errors: Vec<String>,
    },
    /// Some items of a batch failed.
    Batch {
        /// `batch_results`: one result or `error` per item, in order.
        data: Value,
    },
}

/// A route of this API: it reads bodies whatever their content type is, and refuses in Vault's format, under these statuses.
pub fn vaults(route: Route, statuses: &[u16]) -> Route {
    let says = |route: Route, status: &u16| route.returns::<Failed>(*status);
    let route = statuses.iter().fold(route, says);
    route.any_content_type().problems(errors_only)
}

/// Documents the statuses that a batch with failed items may have.
pub fn batches(route: Route) -> Route {
    let more = PARTIAL
        .iter()
        .filter(|status| ![200, 400].contains(*status));
    more.fold(route, |route, status| route.returns::<Failed>(*status))
}

/// Checks the status that a request has chosen for a batch with failed items.
fn chosen(status: Option<u16>) -> Result<Option<u16>, Refusal> {
    match status {
        Some(status) if !PARTIAL.contains(&status) => {
            let offered = PARTIAL.map(|status| status.to_string()).join(", ");
            let why = format!("partial_failure_response_code must be one of {offered}");
            Err(bad(why))
        }
        chosen => Ok(chosen),
    }
}

/// The items of `batch`, or `whole` alone, and the form of their answer.
pub fn items<T>(
    whole: T,
    batch: Option<Vec<T>>,
    failed: Option<u16>,
) -> Result<(Vec<T>, Form), Refusal> {
    let failed = chosen(failed)?;
    match batch {
        None => Ok((vec![whole], Form::default())),
        Some(items) if (1..=BATCH_ITEMS_MAX).contains(&items.len()) => {
            let batch = true;
            Ok((items, Form { batch, failed }))
        }
        Some(_) => Err(bad(format!(
            "batch_input must hold 1 to {BATCH_ITEMS_MAX} items"
        ))),
    }
}

/// The form of an answer: that of one value or of a batch, like the request.
#[derive(Clone, Copy, Default)]
pub struct Form {
    batch: bool,
    /// The status that the request has chosen for failed items.
    failed: Option<u16>,
}

impl Form {
    /// The answer with these results of the items, in order.
    pub fn results(self, mut results: impl Iterator<Item = Result<Value, Refusal>>) -> Response {
        if self.batch {
            let results = results.map(|result| result.map_err(|refusal| refusal.to_string()));
            return batch(results.collect(), self.failed);
        }
        match results.next() {
            Some(Ok(value)) => data(&value),
            // The route renders it, with its Retry-After.
            Some(Err(refusal)) => problem(refusal).into(),
            None => Problem::internal("there is no answer").into(),
        }
    }
}

/// Success, in the envelope.
pub fn data(value: &Value) -> Response {
    with_status(200, value)
}

/// `data` under another status, as for batches with failed items.
fn with_status(status: u16, value: &Value) -> Response {
    let body = json!({
        "request_id": "",
        "lease_id": "",
        "renewable": false,
        "lease_duration": 0,
        "data": value,
        "wrap_info": null,
        "warnings": null,
        "auth": null,
    });
    Response::json(status, &body)
}

/// The status that Vault's clients expect: conflicts and mismatches are bad requests there.
fn status(native: u16) -> u16 {
    match native {
        409 | 422 => 400,
        401 => 403,
        other => other,
    }
}

/// `{"errors": [...]}`.
fn errors(status: u16, messages: &[&str]) -> Response {
    Response::json(status, &json!({ "errors": messages }))
}

/// Turns a problem into `errors`; other responses stay unchanged.
fn errors_only(response: Response) -> Response {
    let Body::Problem(problem) = &response.body else {
        return response;
    };
    let text = format!("{}: {}", problem.code, problem.detail);
    let mut answer = errors(status(problem.status), &[&text]);
    if let Some(seconds) = problem.retry_after_s {
        answer = answer.header("retry-after", seconds.to_string());
    }
    answer
}

/// One answer for a batch: every item's result, and a failure status when one failed.
fn batch(results: Vec<Result<Value, String>>, failed_status: Option<u16>) -> Response {
    let failed = results.iter().any(Result::is_err);
    let results: Vec<Value> = results
        .into_iter()
        .map(|result| result.unwrap_or_else(|error| json!({ "error": error })))
        .collect();
    let status = if failed {
        failed_status.unwrap_or(400)
    } else {
        200
    };
    with_status(status, &json!({ "batch_results": results }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_become_errors() {
        let response = errors_only(Problem::busy(7).into());
        assert_eq!(
            (response.status, response.get("retry-after")),
            (429, Some("7"))
        );
        let body: Value = serde_json::from_slice(response.body.as_bytes()).expect("json");
        assert_eq!(body["errors"].as_array().map(Vec::len), Some(1));
        assert_eq!(errors_only(Problem::conflict("x").into()).status, 400);
        assert_eq!(errors_only(data(&json!({}))).status, 200);
    }

    #[test]
    fn a_batch_with_a_failure_says_so() {
        let check = |results, wanted, status| assert_eq!(batch(results, wanted).status, status);
        check(vec![Ok(json!({}))], None, 200);
        check(vec![Ok(json!({})), Err("no".into())], None, 400);
        check(vec![Err("no".into())], Some(207), 207);
        assert_eq!(chosen(None).ok(), Some(None));
        assert_eq!(chosen(Some(207)).ok(), Some(Some(207)));
        // Not what a server says of itself, and not what has no body.
        for status in [100, 204, 304, 500, 599] {
            assert!(chosen(Some(status)).is_err(), "{status}");
        }
    }
}
