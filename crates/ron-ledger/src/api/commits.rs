//! `POST /commit` and `POST /resolve`: the handler checks scopes, hands the entries to the writer
//! and returns; the thread that makes the answers sends the response.

use ron_http::{Request as HttpRequest, Responder, Response};
use ron_proto::ledger::{CommitAnswer, CommitRequest, Entry, EntryAnswer, MAX_ENTRIES, RequestKey};
use ron_proto::{Problem, scope};

use super::Api;
use crate::engine::{Atomicity, Request};
use crate::ledger::Reply;

pub(super) fn commit(api: &Api, req: &HttpRequest, res: Responder) {
    match checked(api, req) {
        Ok(request) => {
            let render = |answers| Response::json(200, &CommitAnswer { results: answers });
            match api.lag.refusal() {
                Some(why) => known_or(api, &request, res, render, why),
                None => submit(api, request, res, render),
            }
        }
        Err(problem) => res.send(problem),
    }
}

pub(super) fn resolve(api: &Api, req: &HttpRequest, res: Responder) {
    let body = by_installation(req).and_then(|()| req.json::<RequestKey>());
    let request = match body.and_then(|key| Ok(api.ledger.resolution(key)?)) {
        Ok(request) => request,
        Err(problem) => return res.send(problem),
    };
    submit(api, request, res, |answers| match answers.first() {
        Some(answer) => Response::json(200, answer),
        None => Problem::internal("the writer gave no answer").into(),
    });
}

/// An entry may name any account and any tenant, so only the installation's own services write.
fn by_installation(req: &HttpRequest) -> Result<(), Problem> {
    if req.principal.is_installation() {
        return Ok(());
    }
    Err(Problem::forbidden(
        "only service tokens of tenant ron write entries, passports do not: move money with svc-wallet, settle epochs with svc-rewarder",
    ))
}

fn checked(api: &Api, req: &HttpRequest) -> Result<Request, Problem> {
    by_installation(req)?;
    let body: CommitRequest = req.json()?;
    if body.entries.is_empty() || body.entries.len() > MAX_ENTRIES {
        return Err(Problem::bad_request(format!(
            "a commit has 1 to {MAX_ENTRIES} entries"
        )));
    }
    let mut wants = [false; 2];
    for entry in &body.entries {
        wants[usize::from(entry.kind().is_settlement())] = true;
    }
    for (wanted, scope) in wants
        .into_iter()
        .zip([scope::LEDGER_COMMIT, scope::LEDGER_SETTLE])
    {
        if wanted && !req.principal.has_scope(scope) {
            return Err(Problem::forbidden(format!(
                "these entries need the scope {scope}"
            )));
        }
    }
    api.pool_prefixes
        .with(|prefixes| check_pools(&body.entries, prefixes))?;
    let atomicity = Atomicity::of(body.linked, body.batch);
    Ok(api.ledger.request(body.entries, atomicity)?)
}

/// Epochs are funded from pool accounts only, for every caller.
fn check_pools(entries: &[Entry], prefixes: &[String]) -> Result<(), Problem> {
    for (i, entry) in entries.iter().enumerate() {
        if let Entry::EpochOpen { from, .. } = entry
            && !prefixes
                .iter()
                .any(|p| from.as_str().starts_with(p.as_str()))
        {
            return Err(Problem::forbidden(format!(
                "entries[{i}].from: epochs are funded from accounts under a configured pool prefix only"
            )));
        }
    }
    Ok(())
}

fn submit(api: &Api, request: Request, res: Responder, render: fn(Vec<EntryAnswer>) -> Response) {
    if api.sup.draining() {
        // During a drain, replays are answered until the listener closes; no new commit starts.
        return known_or(api, &request, res, render, Problem::draining(2));
    }
    let deadline = res.deadline();
    let reply: Reply = Box::new(move |answers| match answers {
        Ok(answers) => res.send(render(answers)),
        Err(e) => res.send(Problem::from(e)),
    });
    api.ledger.submit(request, deadline, reply);
}

/// Answers a request that was answered before; refuses any other.
fn known_or(
    api: &Api,
    request: &Request,
    res: Responder,
    render: fn(Vec<EntryAnswer>) -> Response,
    otherwise: Problem,
) {
    match api.ledger.replay(&request.ops) {
        Some(answers) => res.send(render(answers)),
        None => res.send(otherwise),
    }
}
