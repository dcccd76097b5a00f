//! The claim tree of an epoch whose payees claim their payouts elsewhere.

use std::io;
use std::sync::Arc;

use ron_http::{Request, Response, Route};
use ron_proto::problem::Problem;

use super::epochs::{READ, damaged, quarantined, sealed};
use super::snapshots::Part;
use super::{Api, Concern};
use crate::inputs::source::Source;
use crate::manifest::claims_file::FILE_PAYEES_MAX;
use crate::manifest::dir;
use crate::manifest::verify::{self, VerifyError};

pub fn route(api: &Arc<Api>) -> Route {
    let api = Arc::clone(api);
    let answer = move |request: &Request| claims(&api, request);
    Route::get("/rewarder/epochs/{id}/claims", READ, answer)
        .while_draining()
        .summary(
            "The claim tree of an epoch with claims, as OpenZeppelin's StandardMerkleTree.load \
             reads it.",
        )
        .returns_bytes(200, "application/json")
        .errors(&[400, 404, 409])
}

fn claims(api: &Api, request: &Request) -> Result<Response, Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&[])?;
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    let Some(claims) = manifest.claims else {
        return Err(Problem::not_found(
            "the ledger pays this epoch; it has no claim tree",
        ));
    };
    match Source::open(&**dir.disk(), &dir.file(dir::CLAIMS)) {
        Ok(source) => {
            let len = source.len();
            let whole = Part {
                source,
                from: 0,
                len,
            };
            Ok(Response::stream(200, "application/json", whole).etag(&claims.root.to_string()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Problem::not_found(format!(
            "the epoch has more than {FILE_PAYEES_MAX} payees; read each one's proof at /proof/{{account}}"
        ))),
        Err(error) => Err(damaged(&VerifyError {
            file: dir::CLAIMS,
            why: error.to_string(),
        })),
    }
}
