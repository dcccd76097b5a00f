//! `/aliases`: second names of keys; and the routes by which an alias stands for a key in a path.

use std::ops::Bound;
use std::sync::Arc;

use ron_http::{Method, Request, Response, Route};
use ron_proto::kms::{AliasDoc, AliasList, DeleteAlias, KeyChanged, SetAlias};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::Alias;

use super::{Action, ERRORS, keys, route};
use crate::errors::problem;
use crate::work::key_request::KeyRequest;
use crate::work::{Kms, StoreJob};

const ALIASES: &str = "/v1/kms/aliases";
const ALIAS: &str = "/v1/kms/aliases/{alias}";

/// Where a key's name stands in a path, an alias may: `alias/<name>` in place of the four segments.
const BY_ALIAS: [(&str, &str); 15] = [
    ("", "/v1/kms/keys/alias/{alias}"),
    ("/versions", "/v1/kms/keys/alias/{alias}/versions"),
    ("/rotate", "/v1/kms/keys/alias/{alias}/rotate"),
    ("/retire", "/v1/kms/keys/alias/{alias}/retire"),
    ("/destroy", "/v1/kms/keys/alias/{alias}/destroy"),
    (
        "/destroy/cancel",
        "/v1/kms/keys/alias/{alias}/destroy/cancel",
    ),
    ("/export", "/v1/kms/keys/alias/{alias}/export"),
    ("/backup", "/v1/kms/keys/alias/{alias}/backup"),
    ("/attest", "/v1/kms/keys/alias/{alias}/attest"),
    ("/policy", "/v1/kms/keys/alias/{alias}/policy"),
    (
        "/policy/explain",
        "/v1/kms/keys/alias/{alias}/policy/explain",
    ),
    ("/approvals", "/v1/kms/keys/alias/{alias}/approvals"),
    (
        "/approvals/{request}/approve",
        "/v1/kms/keys/alias/{alias}/approvals/{request}/approve",
    ),
    ("/grants", "/v1/kms/keys/alias/{alias}/grants"),
    (
        "/grants/{grant}/retire",
        "/v1/kms/keys/alias/{alias}/grants/{grant}/retire",
    ),
];

/// The same routes, with an alias in the path; none for routes without a key in it.
pub fn by_alias(routes: impl IntoIterator<Item = Route>) -> Vec<Route> {
    let at = |route: Route| {
        let ending = route.pattern().strip_prefix(keys::KEY)?;
        let (_, pattern) = BY_ALIAS.iter().find(|(known, _)| *known == ending)?;
        Some(route.at(pattern))
    };
    routes.into_iter().filter_map(at).collect()
}

/// The routes of this file.
pub fn routes(kms: &Arc<Kms>) -> [Route; 4] {
    [
        route(kms, (Method::GET, ALIASES), scope::KMS_READ, list)
            .summary("The aliases of the caller's tenant, in order")
            .query("after", false, "continue after this alias")
            .query("limit", false, "1 to 200 aliases, 50 by default")
            .returns::<AliasList>(200)
            .errors(&[400, 401, 403, 429, 500, 503, 504]),
        route(kms, (Method::GET, ALIAS), scope::KMS_READ, read)
            .summary("The key that an alias names")
            .returns::<AliasDoc>(200)
            .errors(&[400, 401, 403, 404, 429, 500, 503, 504]),
        route(kms, (Method::PUT, ALIAS), scope::KMS_ADMIN, |_, request| {
            let (alias, body) = (alias(request)?, request.json::<SetAlias>()?);
            let kid = body.key.clone();
            let change = KeyRequest::SetAlias(alias, body);
            Ok(Action::store(|call| StoreJob::Change(call, kid, change)))
        })
        .summary("Have an alias name a key: a new alias, or one that is moved from the key `from`, at once")
        .body::<SetAlias>()
        .returns::<KeyChanged>(200)
        .errors(ERRORS),
        route(kms, (Method::POST, "/v1/kms/aliases/{alias}/delete"), scope::KMS_ADMIN, |kms, request| {
            let alias = alias(request)?;
            request.json::<DeleteAlias>()?;
            let index = kms.index.load();
            let kid = index.named(&request.principal.tenant, &alias);
            let kid = kid.map_err(problem)?.clone();
            let change = KeyRequest::DeleteAlias(alias);
            Ok(Action::store(|call| StoreJob::Change(call, kid, change)))
        })
        .summary("Delete an alias; the key stays")
        .body::<DeleteAlias>()
        .returns::<KeyChanged>(200)
        .errors(ERRORS),
    ]
}

fn alias(request: &Request) -> Result<Alias, Problem> {
    Ok(request.param("alias").parse()?)
}

fn read(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&[])?;
    let alias = alias(request)?;
    let index = kms.index.load();
    let key = index.named(&request.principal.tenant, &alias);
    let key = key.map_err(problem)?.clone();
    index.find(&request.principal, &key).map_err(problem)?;
    let doc = AliasDoc { alias, key };
    Ok(Action::Respond(Response::json(200, &doc)))
}

fn list(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["after", "limit"])?;
    let after: Option<Alias> = request.query_as("after")?;
    let limit = keys::limit(request)?;
    let (caller, index) = (&request.principal, kms.index.load());
    let tenant = caller.tenant.clone();
    let from = match after {
        Some(after) => Bound::Excluded((tenant, after)),
        // The smallest character of aliases.
        None => Bound::Included((tenant, "-".parse()?)),
    };
    let aliases = index.aliases.range((from, Bound::Unbounded));
    let aliases = aliases.take_while(|((tenant, _), _)| *tenant == caller.tenant);
    let mut shown: Vec<AliasDoc> = aliases
        .filter(|(_, kid)| index.may_use(caller, kid).is_ok())
        .take(limit + 1)
        .map(|((_, alias), key)| AliasDoc {
            alias: alias.clone(),
            key: key.clone(),
        })
        .collect();
    let more = shown.len() > limit;
    shown.truncate(limit);
    let last = shown.last().filter(|_| more);
    let page = AliasList {
        next: last.map(|last| last.alias.clone()),
        aliases: shown,
    };
    Ok(Action::Respond(Response::json(200, &page)))
}
