//! `/rewarder/snapshots`: sealed usage, uploaded as rows or in its canonical form.
//!
//! Bodies are written to disk as they arrive and sealed by the intake threads. Responses are read
//! from disk while they are sent, whole or in part.

use std::io;
use std::sync::Arc;

use ron_http::{Method, Need, Request, Responder, Response, Route};
use ron_kernel::SendError;
use ron_proto::problem::Problem;
use ron_proto::rewarder::{ImportKind, SnapshotInfo, UsagePeriod};
use ron_proto::scope;
use ron_proto::values::ContentId;

use super::{Api, Concern, param};
use crate::errors;
use crate::inputs::import::Format;
use crate::inputs::source::Source;
use crate::intake::{SEAL_BUDGET, Task, UploadContent};

const CANONICAL: &str = "application/octet-stream";
/// Media types of an upload. A program that was built without Parquet and Arrow says so when it reads one.
const UPLOADS: &[&str] = &[
    "text/csv",
    "application/x-ndjson",
    CANONICAL,
    "application/vnd.apache.parquet",
    "application/vnd.apache.arrow.stream",
    "application/vnd.apache.arrow.file",
];

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    let upload = |method, path, wanted: fn(&Request) -> Result<Option<ContentId>, Problem>| {
        let (cap, dir) = (api.snapshot_bytes_max, api.uploads.clone());
        let disk = api.disk_of_handlers.clone();
        let api = Arc::clone(api);
        Route::new(
            method,
            path,
            Need::Scope(scope::REWARDER_RUN),
            move |request, responder| send(&api, &request, responder, wanted),
        )
        .body_bytes(UPLOADS)
        .streaming(dir, cap)
        .watch_disk(disk)
        .deadline(SEAL_BUDGET)
        .query_as::<ImportKind>(
            "kind",
            false,
            "totals (the default: one row per account and metric) or events (rows are added up)",
        )
        .query_as::<UsagePeriod>(
            "period",
            false,
            "the period the rows were measured in, such as 2026-11; the canonical form names its own",
        )
        .returns::<SnapshotInfo>(200)
        .returns::<SnapshotInfo>(201)
        .errors(&[400, 413, 415, 422, 429, 503, 507])
    };
    let get_api = Arc::clone(api);
    vec![
        upload(Method::PUT, "/rewarder/snapshots/{cid}", |request| {
            param(request, "cid").map(Some)
        })
        .summary("Seals usage that must have this content id, and stores it."),
        upload(Method::POST, "/rewarder/snapshots", |_| Ok(None))
            .summary("Seals usage, stores it and returns its content id."),
        Route::get(
            "/rewarder/snapshots/{cid}",
            Need::Scope(scope::REWARDER_READ),
            move |request| get(&get_api, request),
        )
        .summary(
            "The sealed file, whole or one range of it, or what it holds for Accept: \
             application/json. Check it against its content id.",
        )
        .returns_bytes(200, CANONICAL)
        .returns_bytes(206, CANONICAL)
        .returns::<SnapshotInfo>(200)
        .errors(&[400, 404, 409, 416, 503])
        .while_draining(),
    ]
}

/// Passes an upload to the intake, which sends the response.
fn send(
    api: &Api,
    request: &Request,
    responder: Responder,
    wanted: fn(&Request) -> Result<Option<ContentId>, Problem>,
) {
    let checked = api
        .check_caveats(request, Concern::All)
        .and_then(|()| Ok((wanted(request)?, upload_content(request)?)));
    let (wanted, content) = match checked {
        Ok(checked) => checked,
        Err(problem) => return responder.send(problem),
    };
    let Some(upload) = request.upload.clone() else {
        return responder.send(Problem::internal("the body was not kept"));
    };
    let task = Task {
        upload,
        content,
        wanted,
        tenant: request.principal.tenant.clone(),
        responder,
    };
    match api.imports.try_send(task) {
        Ok(()) => {}
        Err(SendError::Full(task)) => {
            task.responder
                .send(Problem::busy(api.imports.retry_after_s()));
        }
        Err(SendError::Closed(task)) => task.responder.send(Problem::draining(1)),
    }
}

fn upload_content(request: &Request) -> Result<UploadContent, Problem> {
    request.query_only(&["kind", "period"])?;
    let period: Option<UsagePeriod> = request.query_as("period")?;
    let kind = match request.query_one("kind")? {
        None | Some("totals") => ImportKind::Totals,
        Some("events") => ImportKind::Events,
        Some(_) => return Err(Problem::bad_request("kind must be totals or events")),
    };
    let media = request.header("content-type").unwrap_or("");
    let media = media.split(';').next().unwrap_or("").trim();
    let format = Format::of_media(&media.to_ascii_lowercase());
    match format {
        Some(format) => Ok(UploadContent::Rows(format, kind, period)),
        None if period.is_some() => Err(Problem::bad_request(
            "the canonical form names its own period; leave `period` out",
        )),
        None => Ok(UploadContent::Sealed),
    }
}

fn get(api: &Api, request: &Request) -> Result<Response, Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&[])?;
    let cid: ContentId = param(request, "cid")?;
    let tenant = &request.principal.tenant;
    let damaged = |error| errors::library(&error, false);
    let (head, source) = api.library.snapshot_file(tenant, &cid).map_err(damaged)?;
    if request
        .header("accept")
        .is_some_and(|accept| accept.contains("application/json"))
    {
        return Ok(Response::json(200, &head.info(cid, source.len())));
    }
    Ok(file(request, CANONICAL, source, &cid.to_string()))
}

/// A file, whole or the part of it that `Range` names.
pub(super) fn file(request: &Request, kind: &'static str, source: Source, etag: &str) -> Response {
    let len = source.len();
    let asked = request.header("range");
    let (status, from, to) = match asked.map(|range| span(range, len)) {
        None | Some(Span::Ignored) => (200, 0, len),
        Some(Span::Part(from, to)) => (206, from, to),
        Some(Span::Beyond) => {
            let problem = Problem::new(
                416,
                "range_not_satisfiable",
                "Range not satisfiable",
                format!("the file has {len} bytes"),
            );
            return Response::from(problem).header("content-range", format!("bytes */{len}"));
        }
    };
    let part = Part {
        source,
        from,
        len: to - from,
    };
    let answer = Response::stream(status, kind, part)
        .header("accept-ranges", "bytes")
        .etag(etag);
    match status {
        206 => answer.header("content-range", format!("bytes {from}-{}/{len}", to - 1)),
        _ => answer,
    }
}

/// What a `Range` header means for a file of `len` bytes.
#[derive(Debug, PartialEq, Eq)]
enum Span {
    /// Not a single range of bytes: the whole file is sent, as RFC 9110 allows.
    Ignored,
    /// Bytes from the first position up to, not including, the second.
    Part(u64, u64),
    /// The range starts after the end of the file.
    Beyond,
}

fn span(range: &str, len: u64) -> Span {
    let Some((from, to)) = range
        .strip_prefix("bytes=")
        .and_then(|one| one.split_once('-'))
    else {
        return Span::Ignored;
    };
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    let (from, end) = match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => (from, to.saturating_add(1).min(len)),
        (Some(from), None) if to.is_empty() => (from, len),
        (None, Some(last)) if from.is_empty() => (len.saturating_sub(last), len),
        _ => return Span::Ignored,
    };
    if from < end {
        Span::Part(from, end)
    } else {
        Span::Beyond
    }
}

/// A part of a file, read while it is sent.
struct Part {
    source: Source,
    from: u64,
    len: u64,
}

impl ron_http::Source for Part {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let room = into.len().min(left);
        self.source.read_at(self.from + offset, &mut into[..room])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_understood_and_everything_else_ignored() {
        for (range, means) in [
            ("bytes=0-0", Span::Part(0, 1)),
            ("bytes=2-99", Span::Part(2, 10)),
            ("bytes=3-", Span::Part(3, 10)),
            ("bytes=-4", Span::Part(6, 10)),
            ("bytes=-40", Span::Part(0, 10)),
            ("bytes=10-", Span::Beyond),
            ("bytes=10-12", Span::Beyond),
            ("bytes=-0", Span::Beyond),
            ("bytes=5-4", Span::Ignored),
            ("bytes=0-1,3-4", Span::Ignored),
            ("bytes=+1-2", Span::Ignored),
            ("bytes=-", Span::Ignored),
            ("rows=0-1", Span::Ignored),
        ] {
            assert_eq!(span(range, 10), means, "{range}");
        }
        assert_eq!(span("bytes=0-", 0), Span::Beyond);
    }
}
