//! Files of a run: the claim tree of an epoch whose payees claim their payouts elsewhere, and the accounts
//! of a correction, which are also read by pages.

use std::io;
use std::sync::Arc;

use ron_files::Dir;
use ron_http::{Request, Response, Route};
use ron_proto::problem::Problem;
use ron_proto::rewarder::{CorrectedPayee, CorrectionPage, RunManifest};

use super::epochs::{ASSET, DRY_RUN, READ, damaged, page_of, quarantined, reads_assets, sealed};
use super::snapshots::file;
use super::{Api, Concern};
use crate::calculus::Usage as _;
use crate::inline;
use crate::inputs::source::Source;
use crate::manifest::claims_file::FILE_PAYEES_MAX;
use crate::manifest::correction::{self, Row};
use crate::manifest::dir;
use crate::manifest::verify::{self, VerifyError};

pub fn routes(api: &Arc<Api>) -> Vec<Route> {
    type Answer = fn(&Request, &Dir, RunManifest) -> Result<Response, Problem>;
    let get = |path, own: &'static [&'static str], answer: Answer| {
        let api = Arc::clone(api);
        let answer = move |request: &Request| {
            let (dir, manifest) = whole(&api, request, own)?;
            answer(request, &dir, manifest)
        };
        reads_assets(Route::get(path, READ, answer).while_draining())
    };
    vec![
        get("/rewarder/epochs/{id}/claims", &[], claims)
            .summary(
                "The claim tree of an epoch with claims, as OpenZeppelin's StandardMerkleTree.load \
                 reads it, whole or one range of it.",
            )
            .returns_bytes(200, "application/json")
            .returns_bytes(206, "application/json")
            .errors(&[400, 404, 409, 416]),
        get("/rewarder/epochs/{id}/correction", &[], correction)
            .summary(
                "What is due to every account of a correction and what it was paid before: a sealed \
                 snapshot with the content id that the manifest names, whole or one range of it.",
            )
            .returns_bytes(200, "application/octet-stream")
            .returns_bytes(206, "application/octet-stream")
            .errors(&[400, 404, 409, 416]),
        get("/rewarder/epochs/{id}/correction/accounts", &["from", "limit"], accounts)
            .summary("The accounts of a correction, by pages: what each was paid before, is due and gets.")
            .query_as::<u64>("from", false, "the first account of the page, counted from 0")
            .query_as::<u64>("limit", false, "accounts on the page, at most 1000")
            .returns::<CorrectionPage>(200)
            .errors(&[400, 404, 409]),
    ]
}

/// The directory of a run that was not quarantined, and its manifest.
/// `own` are query parameters of the route beside those of all.
fn whole(api: &Api, request: &Request, own: &[&str]) -> Result<(Dir, RunManifest), Problem> {
    api.check_caveats(request, Concern::All)?;
    request.query_only(&[&[ASSET, DRY_RUN], own].concat())?;
    let dir = sealed(api, request)?;
    let manifest = verify::read_manifest(&dir).map_err(|error| damaged(&error))?;
    if manifest.payouts.is_none() {
        return Err(quarantined(api, request)?);
    }
    Ok((dir, manifest))
}

fn no_correction() -> Problem {
    Problem::not_found("this epoch corrects no other epoch")
}

fn correction(request: &Request, dir: &Dir, manifest: RunManifest) -> Result<Response, Problem> {
    let correction = manifest.correction.ok_or_else(no_correction)?;
    let etag = correction.accounts.to_string();
    match Source::open(&**dir.disk(), &dir.file(dir::CORRECTION)) {
        Ok(source) => Ok(file(request, "application/octet-stream", source, &etag)),
        Err(error) => Err(unreadable(&error)),
    }
}

fn accounts(request: &Request, dir: &Dir, manifest: RunManifest) -> Result<Response, Problem> {
    inline::here();
    let page = page_of(request)?;
    let accounts = correction::unchecked(dir, &manifest).map_err(|error| damaged(&error))?;
    let accounts = accounts.ok_or_else(no_correction)?;
    let count = accounts.accounts() as u64;
    let (from, end) = page.of(count);
    let rows = correction::range(&accounts, from..end).map_err(|stop| unreadable(&stop))?;
    let rows: Result<Vec<_>, _> = rows.into_iter().map(payee).collect();
    let page = CorrectionPage {
        accounts: rows.map_err(|why| unreadable(&why))?,
        count,
        next: page.next(count),
    };
    Ok(Response::json(200, &page))
}

fn payee(row: Row) -> Result<CorrectedPayee, String> {
    let account = String::from_utf8(row.account).map_err(|e| e.to_string())?;
    let account = account.parse().map_err(|e| format!("{e}"))?;
    Ok(CorrectedPayee::of(account, row.paid, row.due))
}

fn unreadable(why: &dyn std::fmt::Display) -> Problem {
    damaged(&VerifyError {
        file: dir::CORRECTION,
        why: why.to_string(),
    })
}

fn claims(request: &Request, dir: &Dir, manifest: RunManifest) -> Result<Response, Problem> {
    let Some(claims) = manifest.claims else {
        return Err(Problem::not_found(
            "the ledger pays this epoch; it has no claim tree",
        ));
    };
    match Source::open(&**dir.disk(), &dir.file(dir::CLAIMS)) {
        Ok(source) => {
            let etag = claims.root.to_string();
            Ok(file(request, "application/json", source, &etag))
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
