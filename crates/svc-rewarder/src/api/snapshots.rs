//! `/rewarder/snapshots`: sealed usage, uploaded as CSV, NDJSON or in its canonical form.

use std::sync::Arc;

use ron_http::{Method, Need, Request, Response, Route, sync};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{ImportKind, SnapshotInfo};
use ron_proto::scope;
use ron_proto::values::ContentId;

use super::{Api, errors, param};
use crate::inputs::import;
use crate::inputs::snapshot::Sealed;
use crate::runs::library::LibraryError;

const CSV: &str = "text/csv";
const NDJSON: &str = "application/x-ndjson";
const CANONICAL: &str = "application/octet-stream";
/// Largest sealed file that is sent as one answer, in bytes.
const ANSWER_MAX: usize = 64 << 20;

/// The routes of this resource.
pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    let upload = |method, path, put: fn(&Api, &Request) -> Result<Response, Problem>| {
        let cap = api.snapshot_bytes_max;
        let api = Arc::clone(api);
        Route::new(
            method,
            path,
            Need::Scope(scope::REWARDER_RUN),
            sync(move |request| put(&api, request)),
        )
        .body_bytes(&[CSV, NDJSON, CANONICAL])
        .body_cap(cap)
        .query_as::<ImportKind>(
            "kind",
            false,
            "totals (the default: one row per account and metric) or events (rows are added up)",
        )
        .returns::<SnapshotInfo>(200)
        .returns::<SnapshotInfo>(201)
        .errors(&[400, 422, 503])
    };
    let get_api = Arc::clone(api);
    vec![
        upload(Method::PUT, "/rewarder/snapshots/{cid}", put)
            .summary("Seals usage that must have this content id, and stores it."),
        upload(Method::POST, "/rewarder/snapshots", post)
            .summary("Seals usage, stores it and answers its content id."),
        Route::get(
            "/rewarder/snapshots/{cid}",
            Need::Scope(scope::REWARDER_READ),
            move |request| get(&get_api, request),
        )
        .summary("The sealed file, or what it holds for Accept: application/json.")
        .returns_bytes(200, CANONICAL)
        .returns::<SnapshotInfo>(200)
        .errors(&[400, 404, 409, 413, 503])
        .while_draining(),
    ]
}

fn put(api: &Api, request: &Request) -> Result<Response, Problem> {
    let wanted: ContentId = param(request, "cid")?;
    let sealed = seal(request)?;
    if sealed.cid() != wanted {
        return Err(errors::cid_mismatch(&sealed.cid()));
    }
    store(api, request, &sealed)
}

fn post(api: &Api, request: &Request) -> Result<Response, Problem> {
    let sealed = seal(request)?;
    store(api, request, &sealed)
}

fn seal(request: &Request) -> Result<Sealed, Problem> {
    request.query_only(&["kind"])?;
    let kind = match request.query_one("kind")? {
        None | Some("totals") => ImportKind::Totals,
        Some("events") => ImportKind::Events,
        Some(_) => return Err(Problem::bad_request("kind must be totals or events")),
    };
    let media = request.header("content-type").unwrap_or("");
    let media = media
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    let body = request.body.as_slice();
    match media.as_str() {
        CSV => import::csv(body, kind).map_err(|error| errors::bad_snapshot(&error)),
        NDJSON => import::ndjson(body, kind).map_err(|error| errors::bad_snapshot(&error)),
        _ => Sealed::parse(body.to_vec()).map_err(errors::bad_seal),
    }
}

fn store(api: &Api, request: &Request, sealed: &Sealed) -> Result<Response, Problem> {
    let new = api
        .library
        .put_snapshot(&request.principal.tenant, sealed)
        .map_err(|error| errors::library(&error, false))?;
    let status = if new { 201 } else { 200 };
    let location = format!("/rewarder/snapshots/{}", sealed.cid());
    Ok(Response::json(status, &sealed.info()).header("Location", location))
}

fn get(api: &Api, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let cid: ContentId = param(request, "cid")?;
    let sealed = api
        .library
        .snapshot(&request.principal.tenant, &cid)
        .map_err(|error| errors::library(&error, false))?;
    if request
        .header("accept")
        .is_some_and(|accept| accept.contains("application/json"))
    {
        return Ok(Response::json(200, &sealed.info()));
    }
    if sealed.source().len() > api.snapshot_bytes_max.max(ANSWER_MAX) as u64 {
        let detail = "the snapshot is larger than one answer may be; ask for application/json, \
                      or take the file from the data directory";
        return Err(Problem::too_large(detail));
    }
    let bytes = sealed
        .bytes()
        .map_err(|error| errors::library(&LibraryError::Io(error), false))?;
    Ok(Response::bytes(200, CANONICAL, bytes.into_owned()).etag(&cid.to_string()))
}
