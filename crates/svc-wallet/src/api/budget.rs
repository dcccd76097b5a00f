//! `GET /v1/budget`: what the caller's token may still spend.

use std::sync::Arc;

use ron_http::{Need, Request, Response, Route};
use ron_proto::wallet::{Allowance, Budget};
use ron_proto::{Amount, Problem, Timestamp};

use super::Api;
use super::history::MIN_SEQ;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    // A token may always learn about itself, whatever its scopes are.
    Route::get("/v1/budget", Need::Identity, move |req| left(&api, req))
        .summary("What the caller's token may still spend: its caveats ceiling.total and ceiling.daily, and those of the tokens that it was made from.")
        .query_as::<u64>("min_seq", false, MIN_SEQ)
        .returns::<Budget>(200)
        .errors(&[400, 403, 429, 503])
        .while_draining()
}

fn left(api: &Api, req: &Request) -> Result<Response, Problem> {
    api.metrics.requests.with_label_values(&["budget"]).inc();
    req.query_only(&["min_seq"])?;
    api.check_min_seq(req)?;
    let today = Timestamp(api.clock.unix_ms()).utc_day();
    let mut left = Budget::default();
    for budget in &*req.principal.budgets {
        let used = api
            .upstream
            .client
            .budget(budget.id, Api::read_deadline(req))
            .map_err(|e| api.read_failed(&e, "budget"))?;
        let of_today = used.day.utc_day() == today;
        let used_today = if of_today { used.day_minor } else { Amount(0) };
        tighten(&mut left.total, budget.total, used.spent_minor);
        tighten(&mut left.daily, budget.daily, used_today);
    }
    Ok(Response::json(200, &left).cache("no-store"))
}

/// Keeps the allowance that has least left.
fn tighten(least: &mut Option<Allowance>, limit: Option<Amount>, used: Amount) {
    let Some(limit_minor) = limit else { return };
    let left_minor = limit_minor.checked_sub(used).unwrap_or(Amount(0));
    if least.as_ref().is_none_or(|l| left_minor < l.left_minor) {
        *least = Some(Allowance {
            limit_minor,
            left_minor,
        });
    }
}
