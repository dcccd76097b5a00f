//! Files of a run that are read whole: the claim tree of an epoch whose payees claim their payouts
//! elsewhere, and the accounts of a correction.

use std::io;
use std::sync::Arc;

use ron_files::Dir;
use ron_http::{Request, Response, Route};
use ron_proto::problem::Problem;
use ron_proto::rewarder::RunManifest;

use super::epochs::{ASSET, DRY_RUN, READ, damaged, quarantined, reads_assets, sealed};
use super::snapshots::Part;
use super::{Api, Concern};
use crate::inputs::source::Source;
use crate::manifest::claims_file::FILE_PAYEES_MAX;
use crate::manifest::dir;
use crate::manifest::verify::{self, VerifyError};

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    type Answer = fn(&Dir, RunManifest) -> Result<Response, Problem>;
    let get = |path, answer: Answer| {
        let api = Arc::clone(api);
        let answer = move |request: &Request| {
            let (dir, manifest) = whole(&api, request)?;
            answer(&dir, manifest)
        };
        reads_assets(Route::get(path, READ, answer).while_draining()).errors(&[400, 404, 409])
    };
    vec![
        get("/rewarder/epochs/{id}/claims", claims)
            .summary(
                "The claim tree of an epoch with claims, as OpenZeppelin's StandardMerkleTree.load \
                 reads it.",
            )
            .returns_bytes(200, "application/json"),
        get("/rewarder/epochs/{id}/correction", correction)
            .summary(
                "What is due to every account of a correction and what it was paid before: a sealed \
                 snapshot with the content id that the manifest names.",
            )
            .returns_bytes(200, "application/octet-stream"),
    ]
}

/// The directory of a run that was not quarantined, and its manifest.
fn whole(api: &Api, request: &Request) -> Result<(Dir, RunManifest), Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&[ASSET, DRY_RUN])?;
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    Ok((dir, manifest))
}

fn correction(dir: &Dir, manifest: RunManifest) -> Result<Response, Problem> {
    let Some(correction) = manifest.correction else {
        return Err(Problem::not_found("this epoch corrects no other epoch"));
    };
    let etag = correction.accounts.to_string();
    match Source::open(&**dir.disk(), &dir.file(dir::CORRECTION)) {
        Ok(source) => Ok(stream("application/octet-stream", source).etag(&etag)),
        Err(error) => Err(damaged(&VerifyError {
            file: dir::CORRECTION,
            why: error.to_string(),
        })),
    }
}

fn stream(kind: &'static str, source: Source) -> Response {
    let len = source.len();
    let whole = Part {
        source,
        from: 0,
        len,
    };
    Response::stream(200, kind, whole)
}

fn claims(dir: &Dir, manifest: RunManifest) -> Result<Response, Problem> {
    let Some(claims) = manifest.claims else {
        return Err(Problem::not_found(
            "the ledger pays this epoch; it has no claim tree",
        ));
    };
    match Source::open(&**dir.disk(), &dir.file(dir::CLAIMS)) {
        Ok(source) => Ok(stream("application/json", source).etag(&claims.root.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Problem::not_found(format!(
            "the epoch has more than {FILE_PAYEES_MAX} payees; read each one's proof at /proof/{{account}}"
        ))),
        Err(error) => Err(damaged(&VerifyError {
            file: dir::CLAIMS,
            why: error.to_string(),
        })),
    }
}
