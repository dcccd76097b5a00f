//! `/keys` and `/log_key`: create, list, read and change keys.

use std::ops::Bound;
use std::sync::Arc;

use ron_custody::Refusal;
use ron_custody::index::Key;
use ron_custody::rights::may_use;
use ron_http::{Method, Principal, Request, Response, Route};
use ron_proto::kms::{
    AdoptKey, CreateKey, DestroyKey, KeyChanged, KeyDoc, KeyList, KeyState, KeyVersions,
    QuarantinedKey, QuarantinedState, RetireKey, RotateLogKey, RotateLogKeyAnswer, RotateRequest,
    UpdateKey,
};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::{Alg, Alias, Kid, Purpose, TagMatch};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{Action, change_route, kid, route, store_route};
use crate::errors::problem;
use crate::work::key_request::KeyRequest;
use crate::work::{CallContext, Kms, Purposes, StoreJob};

const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 200;

const KEYS: &str = "/v1/kms/keys";
pub(super) const KEY: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}";
const VERSIONS: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/versions";
const ROTATE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/rotate";
const RETIRE: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/retire";
const DESTROY: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy";
const CANCEL: &str = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}/destroy/cancel";

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 11] {
    [
        store_route(kms, KEYS, scope::KMS_CREATE, |call, body: CreateKey| {
            StoreJob::Create(call, Box::new(body), Purposes::Shared)
        })
        .summary("Make a key; idempotent by op_id for 24 hours")
        .returns::<KeyDoc>(201),
        store_route(kms, "/v1/kms/keys/adopt", scope::KMS_ADMIN, |call, body: AdoptKey| {
            StoreJob::Adopt(call, Box::new(body))
        })
        .summary("Make a key of an object that a PKCS#11 token has already; idempotent by op_id for 24 hours")
        .returns::<KeyDoc>(201),
        route(kms, (Method::GET, KEYS), scope::KMS_READ, list)
            .summary("The caller's keys, ordered by name, without their versions")
            .query("purpose", false, "only keys of this purpose")
            .query("alg", false, "only keys of this algorithm")
            .query(
                "state",
                false,
                "only keys in this state: active, retired, pending_destruction, destroyed",
            )
            .query("alias", false, "only the key with this alias")
            .query("tag", false, "only keys with this tag: a name, or name=value; may be repeated")
            .query("after", false, "continue after this key name")
            .query("limit", false, "1 to 200 keys, 50 by default")
            .returns::<KeyList>(200)
            .errors(&[400, 401, 403, 429, 500, 503, 504]),
        route(kms, (Method::GET, KEY), scope::KMS_READ, read)
            .summary("One key, with its head and the version that waits")
            .returns::<KeyDoc>(200)
            .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        route(kms, (Method::GET, VERSIONS), scope::KMS_READ, versions)
            .summary("The versions of a key with their public keys, oldest first")
            .query("after", false, "continue after this version")
            .query("limit", false, "1 to 200 versions, 50 by default")
            .returns::<KeyVersions>(200)
            .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        change::<RotateRequest>(kms, (Method::POST, ROTATE), scope::KMS_ROTATE, |call, kid, body| {
            StoreJob::Change(call, kid, KeyRequest::Rotate(body))
        })
        .summary("Make a new head version; idempotent by op_id for 24 hours"),
        change::<UpdateKey>(kms, (Method::PATCH, KEY), scope::KMS_ADMIN, |call, kid, body| {
            StoreJob::Change(call, kid, KeyRequest::Update(body))
        })
        .summary("Change min_verify_version, rotate_every, tags or the description, or withdraw exportable"),
        change::<RetireKey>(kms, (Method::POST, RETIRE), scope::KMS_ADMIN, |call, kid, body| {
            StoreJob::Change(call, kid, KeyRequest::Retire(body))
        })
        .summary("Retire the key: it no longer signs and still verifies"),
        change::<DestroyKey>(kms, (Method::POST, DESTROY), scope::KMS_ADMIN, |call, kid, body| {
            StoreJob::Change(call, kid, KeyRequest::Destroy(body))
        })
        .summary("Stop using the key now and destroy its secrets after a delay; its signatures still verify"),
        change::<RetireKey>(kms, (Method::POST, CANCEL), scope::KMS_ADMIN, |call, kid, body| {
            StoreJob::Change(call, kid, KeyRequest::CancelDestroy(body))
        })
        .summary("Cancel a destruction; the key returns to its earlier state"),
        store_route(kms, "/v1/kms/log_key/rotate", scope::KMS_ADMIN, |call, body: RotateLogKey| {
            StoreJob::RotateLogKey(call, body)
        })
        .summary("Make a new signing key of the audit log, cross-signed with the present one; for a service token of tenant ron, never for a passport; idempotent by op_id for 24 hours")
        .returns::<RotateLogKeyAnswer>(200),
    ]
}

fn change<B: DeserializeOwned + JsonSchema + 'static>(
    kms: &Arc<Kms>,
    at: (Method, &'static str),
    scope: &'static str,
    job: fn(CallContext, Kid, B) -> StoreJob,
) -> Route {
    change_route(kms, at, scope, job).returns::<KeyChanged>(200)
}

fn read(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let doc = key.map_err(problem)?.to_doc();
    Ok(Action::Respond(Response::json(200, &doc)))
}

fn list(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["purpose", "alg", "state", "alias", "tag", "after", "limit"])?;
    let tags = request.query.iter().filter(|(name, _)| name == "tag");
    let tags: Result<Vec<TagMatch>, _> = tags.map(|(_, tag)| tag.parse()).collect();
    let wanted = Wanted {
        purpose: request.query_as("purpose")?,
        alg: request.query_as("alg")?,
        state: request.query_as("state")?,
        alias: request.query_as("alias")?,
        tags: tags?,
    };
    let after: Option<Kid> = request.query_as("after")?;
    let page = page(kms, &request.principal, &wanted, after, limit(request)?);
    Ok(Action::Respond(Response::json(200, &page)))
}

fn versions(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["after", "limit"])?;
    let after = request.query_as::<u32>("after")?.unwrap_or(0);
    let limit = limit(request)?;
    let index = kms.index.load();
    let key = index.find(&request.principal, &kid(kms, request)?);
    let key = key.map_err(problem)?;
    let versions = key.version_docs(after, limit);
    let last = versions.last().map(|last| last.version);
    let page = KeyVersions {
        versions,
        next: last.filter(|last| (*last as usize) < key.versions.len()),
    };
    Ok(Action::Respond(Response::json(200, &page)))
}

/// The number of items on a page.
pub(super) fn limit(request: &Request) -> Result<usize, Problem> {
    let limit = request.query_as::<usize>("limit")?.unwrap_or(PAGE_DEFAULT);
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(limit);
    }
    let detail = format!("`limit` must be 1..={PAGE_MAX}");
    Err(Problem::bad_request(detail))
}

/// Filters of the list.
#[derive(Default)]
pub struct Wanted {
    pub purpose: Option<Purpose>,
    pub alg: Option<Alg>,
    pub state: Option<KeyState>,
    pub alias: Option<Alias>,
    /// A key must have each of these tags.
    pub tags: Vec<TagMatch>,
}

impl Wanted {
    fn names(&self, kid: &Kid) -> bool {
        self.purpose.as_ref().is_none_or(|p| *p == kid.purpose)
            && self.alg.is_none_or(|alg| alg == kid.alg)
    }

    fn has(&self, key: &Key) -> bool {
        let labels = &key.labels;
        let alias = self.alias.as_ref();
        self.state.is_none_or(|state| state == key.state)
            && alias.is_none_or(|alias| labels.aliases.contains(alias))
            && self.tags.iter().all(|tag| labels.match_tag(tag))
    }

    /// Whether keys are filtered by what a damaged key does not tell.
    fn needs_state(&self) -> bool {
        self.state.is_some() || self.alias.is_some() || !self.tags.is_empty()
    }
}

/// The page of the list after `after`, of the keys that the caller may use.
pub fn page(
    kms: &Kms,
    caller: &Principal,
    wanted: &Wanted,
    after: Option<Kid>,
    limit: usize,
) -> KeyList {
    let index = kms.index.load();
    let from = (
        after.map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded,
    );
    let shown = |kid: &&Kid| wanted.names(kid) && may_use(caller, kid, None).is_ok();
    let keys = index.keys.range(from.clone());
    let keys = keys.filter(|(kid, key)| {
        wanted.names(kid) && wanted.has(key) && may_use(caller, kid, Some(&key.labels)).is_ok()
    });
    let keys = keys.map(|(kid, _)| kid);
    // The state of a damaged key is not known.
    let damaged = index.damaged.range(from);
    let damaged = damaged.filter(|_| !wanted.needs_state());
    // One more than the page of each, so that the rest of both shows whether there is another page.
    let keys = keys.take(limit + 1);
    let mut both: Vec<&Kid> = keys.chain(damaged.filter(shown).take(limit + 1)).collect();
    both.sort_unstable();
    let more = both.len() > limit;
    both.truncate(limit);
    let sound = both.iter().filter_map(|kid| index.keys.get(*kid));
    let damaged = both.iter().filter(|kid| index.damaged.contains(**kid));
    KeyList {
        keys: sound.map(|key| key.summary()).collect(),
        quarantined: damaged.map(|kid| quarantined(kid)).collect(),
        next: both.last().filter(|_| more).map(ToString::to_string),
    }
}

fn quarantined(kid: &Kid) -> QuarantinedKey {
    QuarantinedKey {
        key: kid.clone(),
        state: QuarantinedState::Quarantined,
        reason: Refusal::quarantined_key(kid).detail,
    }
}
