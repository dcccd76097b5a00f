//! `/rewarder/epochs`: compute, state, manifest, payouts, settlement.

use std::sync::Arc;

use ron_files::Dir;
use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::{Deadline, SendError};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{
    ApproveRequest, ComputeRequest, EPOCH_PAGE_MAX, EpochList, EpochRun, ManifestSignatures,
    PAYOUT_PAGE_MAX, PayoutPage, RunManifest, WITHDRAWAL_REASON_MAX, WithdrawRequest,
};
use ron_proto::scope;
use ron_proto::values::{Asset, ContentId, EpochId};

use super::{Api, Concern, param};
use crate::calculus::Rules;
use crate::errors;
use crate::inline;
use crate::library::{LibraryError, file_names};
use crate::manifest::reader::Reader;
use crate::manifest::verify::{self, VerifyError};
use crate::manifest::{assets, dir, run_key};
use crate::runs::registry::Entry;
use crate::runs::{RunAction, RunId, RunRequest};

pub(super) const READ: Need = Need::Scope(scope::REWARDER_READ);
const RUN: Need = Need::Scope(scope::REWARDER_RUN);
const APPROVE: Need = Need::Scope(scope::REWARDER_APPROVE);

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    type Answer = fn(&Api, &Request) -> Result<Response, Problem>;
    let get = |path, answer: Answer| {
        let api = Arc::clone(api);
        let answer = move |request: &Request| {
            api.check_caveats(request, Concern::All)?;
            answer(&api, request)
        };
        Route::get(path, READ, answer).while_draining()
    };
    let post = |path, need, ask: fn(&Api, &Request) -> Result<RunAction, Problem>| {
        let api = Arc::clone(api);
        Route::new(Method::POST, path, need, move |request, responder| {
            send(&api, &request, responder, ask);
        })
        .query_as::<u64>(
            "wait",
            false,
            "seconds to wait for the run to come to rest, at most 30",
        )
        .returns::<EpochRun>(200)
        .returns::<EpochRun>(202)
        .long_poll()
    };
    vec![
        post("/rewarder/epochs/{id}/compute", RUN, compute)
            .summary("Computes an epoch, and settles it where settlement is automatic.")
            .body::<ComputeRequest>()
            .errors(&[400, 404, 409, 422, 429, 503]),
        post("/rewarder/epochs/{id}/settle", RUN, settle)
            .summary("Settles a sealed epoch.")
            .errors(&[400, 404, 409, 429, 501, 503]),
        post("/rewarder/epochs/{id}/approve", APPROVE, approve)
            .summary("Approves the manifest of an epoch, as the policy asks for before it pays.")
            .body::<ApproveRequest>()
            .errors(&[400, 404, 409, 422, 429, 501, 503]),
        post("/rewarder/epochs/{id}/withdraw", RUN, withdraw)
            .summary("Withdraws the manifest of an epoch that the ledger has not opened.")
            .body::<WithdrawRequest>()
            .errors(&[400, 404, 409, 422, 429, 501, 503]),
        get("/rewarder/epochs", list)
            .summary("The tenant's epochs, each with its live run or, while there is none, its newest dry run.")
            .query_as::<EpochId>("after", false, "the last epoch of the page before")
            .query_as::<u64>("limit", false, "epochs on the page, at most 500")
            .returns::<EpochList>(200)
            .errors(&[400]),
        get("/rewarder/epochs/{id}/dry-runs", dry_runs)
            .summary("The dry runs of an epoch that are kept, the newest first: at most 16, each of other inputs.")
            .returns::<EpochList>(200)
            .errors(&[400]),
        reads_dry_runs(get("/rewarder/epochs/{id}", state))
            .summary("The state of an epoch's run, with progress.")
            .returns::<EpochRun>(200)
            .errors(&[400, 404]),
        reads_assets(get("/rewarder/epochs/{id}/manifest", manifest))
            .summary("The manifest, byte for byte as it is signed.")
            .returns::<RunManifest>(200)
            .errors(&[400, 404, 409]),
        reads_assets(get("/rewarder/epochs/{id}/signatures", signatures))
            .summary("The signatures over the manifest's commitment.")
            .returns::<ManifestSignatures>(200)
            .errors(&[400, 404]),
        reads_assets(get("/rewarder/epochs/{id}/payouts", payouts))
            .summary("The payout table, by pages.")
            .query_as::<u64>("from", false, "the first index of the page")
            .query_as::<u64>("limit", false, "rows on the page, at most 1000")
            .returns::<PayoutPage>(200)
            .errors(&[400, 404, 409]),
    ]
}

/// The query parameter of requests that read a dry run.
pub(super) const DRY_RUN: &str = "dry_run";

/// The query parameter of requests that read what is kept for each asset.
pub(super) const ASSET: &str = "asset";

/// Lets a route read further assets of an epoch, and dry runs.
pub(super) fn reads_assets(route: Route) -> Route {
    reads_dry_runs(route).query_as::<Asset>(
        ASSET,
        false,
        "an asset of an epoch that pays several; without it, the first of the policy",
    )
}

/// Lets a route read dry runs as well.
pub(super) fn reads_dry_runs(route: Route) -> Route {
    route.query_as::<ContentId>(
        DRY_RUN,
        false,
        "run key of a dry run to read; without it, the live run or, while there is none, the newest dry run",
    )
}

/// Passes a request to the scheduler, which sends the response.
fn send(
    api: &Api,
    request: &Request,
    responder: Responder,
    read: fn(&Api, &Request) -> Result<RunAction, Problem>,
) {
    let asked = api
        .check_caveats(request, Concern::All)
        .and_then(|()| request.query_only(&["wait"]))
        .and_then(|()| Ok((param(request, "id")?, request.wait()?, read(api, request)?)));
    let (epoch, wait, action) = match asked {
        Ok(asked) => asked,
        Err(problem) => return responder.send(problem),
    };
    let wait = wait.filter(|wait| !wait.is_zero());
    let limited = request.header("x-request-deadline-ms").is_some();
    let compute_by: Option<Deadline> = wait.filter(|_| limited).map(|_| responder.deadline());
    let asked = RunRequest {
        tenant: request.principal.tenant.clone(),
        epoch,
        action,
        wait,
        compute_by,
        responder,
    };
    match api.work_req.try_send(asked) {
        Ok(()) => {}
        Err(SendError::Full(asked)) => {
            asked
                .responder
                .send(Problem::busy(api.work_req.retry_after_s()));
        }
        Err(SendError::Closed(asked)) => asked.responder.send(Problem::draining(1)),
    }
}

/// Checks what can be checked before a run exists: both inputs are stored, signed by a trusted key,
/// and fit each other.
fn compute(api: &Api, request: &Request) -> Result<RunAction, Problem> {
    let ComputeRequest {
        snapshot,
        policy_id,
        policy_hash,
        dry_run,
        adjusts,
    } = request.json()?;
    let tenant = &request.principal.tenant;
    let epoch: EpochId = param(request, "id")?;
    if adjusts.as_ref() == Some(&epoch) {
        return Err(Problem::bad_request("`adjusts` must name another epoch"));
    }
    let known = api.registry.find(tenant, &epoch, |run| {
        (run.snapshot, &run.policy_id, run.policy_hash) == (snapshot, &policy_id, policy_hash)
            && (&run.adjusts, run.dry_run) == (&adjusts, dry_run)
    });
    let run_key = if let Some(entry) = known {
        entry.run.run_key
    } else {
        let policy = api
            .library
            .policy(tenant, &policy_id, &policy_hash)
            .map_err(|error| errors::library(&error, true))?;
        api.library
            .keep_policy(tenant, &policy)
            .map_err(|error| errors::library(&error, true))?;
        // Renewed before the lookup, so that retention cannot remove the snapshot until the run is
        // in the table.
        api.library.renew(tenant, &snapshot, api.clock.unix_ms());
        // The handler reads the header only; the worker that computes the run reads and checks
        // every byte.
        match api.library.snapshot_head(tenant, &snapshot) {
            Ok(usage) => {
                Rules::check(&policy.policy, &usage.metric_names())
                    .map_err(|error| errors::policy_mismatch(error.to_string()))?;
            }
            // The worker fetches the snapshot and compares it with the policy.
            Err(LibraryError::Missing(_)) if api.fetches => {}
            Err(error) => return Err(errors::library(&error, false)),
        }
        run_key(
            tenant,
            &epoch,
            adjusts.as_ref(),
            &snapshot,
            &policy_hash,
            policy.policy.rule_set,
        )
    };
    Ok(RunAction::Compute {
        snapshot,
        policy_id,
        policy_hash,
        adjusts,
        run_key,
        dry_run,
        by: request.principal.name.clone(),
    })
}

fn settle(_: &Api, request: &Request) -> Result<RunAction, Problem> {
    if request.body.is_empty() {
        Ok(RunAction::Settle)
    } else {
        Err(Problem::bad_request("settle takes no body"))
    }
}

fn approve(_: &Api, request: &Request) -> Result<RunAction, Problem> {
    let ApproveRequest { commitment } = request.json()?;
    Ok(RunAction::Approve {
        commitment,
        by: request.principal.name.clone(),
    })
}

fn withdraw(_: &Api, request: &Request) -> Result<RunAction, Problem> {
    let WithdrawRequest { commitment, reason } = request.json()?;
    let bounded = (1..=WITHDRAWAL_REASON_MAX).contains(&reason.len());
    if !bounded || reason.chars().any(char::is_control) {
        return Err(Problem::bad_request(format!(
            "`reason` must have 1 to {WITHDRAWAL_REASON_MAX} bytes and no control characters"
        )));
    }
    Ok(RunAction::Withdraw {
        commitment,
        reason,
        by: request.principal.name.clone(),
    })
}

fn entry(api: &Api, request: &Request) -> Result<Entry, Problem> {
    let tenant = &request.principal.tenant;
    let epoch: EpochId = param(request, "id")?;
    let Some(run_key) = request.query_as::<ContentId>(DRY_RUN)? else {
        let found = api.registry.current(tenant, &epoch);
        return found
            .ok_or_else(|| Problem::not_found("there is no run of this epoch; compute it first"));
    };
    let id = RunId {
        tenant: tenant.clone(),
        epoch,
        dry_run: Some(run_key),
    };
    api.registry.get(&id).ok_or_else(|| {
        Problem::not_found(
            "there is no dry run of this epoch with this run key; /dry-runs lists those that are kept",
        )
    })
}

fn dry_runs(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let (tenant, epoch) = (&request.principal.tenant, param(request, "id")?);
    let now = api.clock.unix_ms();
    let runs = api.registry.dry_runs(tenant, &epoch);
    let epochs = runs.iter().map(|entry| entry.view(now)).collect();
    Ok(Response::json(200, &EpochList { epochs, next: None }))
}

fn list(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["after", "limit"])?;
    let after: Option<EpochId> = request.query_as("after")?;
    let limit = request
        .query_as::<usize>("limit")?
        .unwrap_or(EPOCH_PAGE_MAX);
    if limit == 0 || limit > EPOCH_PAGE_MAX {
        return Err(Problem::bad_request(format!(
            "limit must be 1 to {EPOCH_PAGE_MAX}"
        )));
    }
    let (page, more) = api
        .registry
        .page(&request.principal.tenant, after.as_ref(), limit);
    let now = api.clock.unix_ms();
    let epochs: Vec<EpochRun> = page.iter().map(|entry| entry.view(now)).collect();
    let next = epochs
        .last()
        .filter(|_| more)
        .map(|last| last.epoch_id.clone());
    Ok(Response::json(200, &EpochList { epochs, next }))
}

fn state(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[DRY_RUN])?;
    Ok(Response::json(
        200,
        &entry(api, request)?.view(api.clock.unix_ms()),
    ))
}

/// The artifact directory of the asset that the request names, of the first one without a name.
pub(super) fn sealed(api: &Api, request: &Request) -> Result<Dir, Problem> {
    let dir = sealed_run(api, request)?;
    let Some(asset) = request.query_as::<Asset>(ASSET)? else {
        return Ok(dir);
    };
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    assets::of_asset(&dir, &manifest, &asset).ok_or_else(|| {
        Problem::not_found(
            "this epoch does not pay this asset; its manifest names those that it pays",
        )
    })
}

/// The artifact directory of a run that has a manifest; a problem for every other run.
pub(super) fn sealed_run(api: &Api, request: &Request) -> Result<Dir, Problem> {
    let run = entry(api, request)?.run;
    if run.commitment.is_none() {
        let detail = format!(
            "the run is {}; there is no manifest yet",
            run.state.as_str()
        );
        return Err(Problem::not_found(detail));
    }
    let dir = run.dir(&api.artifacts);
    if run.at_rest() && is_gone(&dir) {
        let detail = "the artifacts of this run are past their retention and were removed";
        return Err(Problem::not_found(detail));
    }
    Ok(dir)
}

fn is_gone(dir: &Dir) -> bool {
    file_names(dir).is_ok_and(|names| names.is_empty())
}

pub(super) fn damaged(error: &VerifyError) -> Problem {
    tracing::error!(event = "artifacts_damaged", file = error.file, reason = %error.why, "artifacts are damaged");
    let detail = format!(
        "the stored artifacts are damaged ({}); compute the epoch again",
        error.file
    );
    Problem::internal(detail)
}

fn manifest(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[ASSET, DRY_RUN])?;
    let manifest =
        verify::read_manifest(&sealed(api, request)?).map_err(|error| damaged(&error))?;
    let bytes = dir::to_json(&manifest).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(Response::bytes(200, "application/json", bytes).etag(&manifest.commitment.to_string()))
}

fn signatures(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[ASSET, DRY_RUN])?;
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    let signatures = verify::read_signatures(&dir).map_err(|error| damaged(&error))?;
    let commitment = manifest.commitment;
    let answer = ManifestSignatures {
        commitment,
        signatures,
    };
    Ok(Response::json(200, &answer))
}

/// The problem of a run that has no payouts.
pub(super) fn quarantined(api: &Api, request: &Request) -> Result<Problem, Problem> {
    let run = entry(api, request)?.run;
    Ok(errors::quarantined(run.reason.as_ref()))
}

/// The payouts of a run that was not quarantined.
pub(super) fn reader(api: &Api, request: &Request) -> Result<Reader, Problem> {
    inline::here();
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    Reader::with(&dir, manifest).map_err(|error| damaged(&error))
}

/// The rows that a request for a page wants.
pub(super) struct Page {
    from: u64,
    limit: u64,
}

/// Reads `from` and `limit`.
pub(super) fn page_of(request: &Request) -> Result<Page, Problem> {
    let from = request.query_as::<u64>("from")?.unwrap_or(0);
    let limit = request.query_as::<u64>("limit")?.unwrap_or(PAYOUT_PAGE_MAX);
    if limit == 0 || limit > PAYOUT_PAGE_MAX {
        return Err(Problem::bad_request(format!(
            "limit must be 1 to {PAYOUT_PAGE_MAX}"
        )));
    }
    Ok(Page { from, limit })
}

impl Page {
    /// The first row and the one behind the last, of a table of `count` rows.
    pub(super) fn of(&self, count: u64) -> (u64, u64) {
        let from = self.from.min(count);
        (from, from.saturating_add(self.limit).min(count))
    }

    /// Where the next page begins; `None` behind the last one.
    pub(super) fn next(&self, count: u64) -> Option<u64> {
        let (from, end) = self.of(count);
        (end < count && from < end).then_some(end)
    }
}

fn payouts(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["from", "limit", ASSET, DRY_RUN])?;
    let page = page_of(request)?;
    let reader = reader(api, request)?;
    let count = reader.len();
    let (from, end) = page.of(count);
    let payouts = reader.range(from, end).map_err(|error| damaged(&error))?;
    let next = page.next(count);
    Ok(Response::json(
        200,
        &PayoutPage {
            payouts,
            count,
            next,
        },
    ))
}
