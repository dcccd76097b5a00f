//! Which operation a route is, for tokens that are limited to some operations.

use ron_custody::Refusal;
use ron_custody::rights::may_do;
use ron_http::{Method, Request};
use ron_proto::kms::KeyOp;

/// Checks the caller's caveats about operations.
pub fn may_do_at(request: &Request) -> Result<(), Refusal> {
    match op_of(request.method, request.route) {
        Some(op) => may_do(&request.principal, op),
        None => Ok(()),
    }
}

/// Whether a route makes a key, whose name it says.
pub fn makes_key(method: Method, route: &str) -> bool {
    let adds_to_one = route.ends_with("/import_version");
    !adds_to_one && matches!(op_of(method, route), Some(KeyOp::Create | KeyOp::Import))
}

/// The operation of a route; `None` for calculations without a key. The last segment that is no parameter says it, or the
/// method where it is that of the keys.
fn op_of(method: Method, route: &str) -> Option<KeyOp> {
    if route.starts_with("/v1/kms/aliases") {
        return Some(match method {
            Method::GET => KeyOp::Read,
            _ => KeyOp::Alias,
        });
    }
    let literal = |segment: &&str| !segment.starts_with('{');
    let of_grants = route.contains("/grants");
    let mut segments = route.trim_start_matches('/').split('/').filter(literal);
    let action = segments.nth(2).unwrap_or_default();
    let last = segments.next_back().unwrap_or(action);
    Some(match (action, last) {
        ("sign" | "sign_batch", _) => KeyOp::Sign,
        ("hmac", "verify") => KeyOp::HmacVerify,
        // The handler asks for the operation that the key's type has: signatures and MACs have one route.
        ("verify", _) if route.starts_with("/v1/transit/") => return None,
        ("verify" | "verify_batch", _) => KeyOp::Verify,
        ("wrap" | "wrap_batch" | "encrypt", _) => KeyOp::Wrap,
        ("unwrap" | "unwrap_batch" | "decrypt", _) => KeyOp::Unwrap,
        ("rewrap", _) => KeyOp::Rewrap,
        ("datakey", _) => KeyOp::Datakey,
        ("hmac", _) => KeyOp::Hmac,
        ("derive", _) => KeyOp::Derive,
        ("random" | "hash", _) => return None,
        ("wrapping_key" | "restore", _) => KeyOp::Import,
        ("backup", _) => KeyOp::Export,
        ("approvals" | "audit" | "issuer_policy" | "export", _) => KeyOp::Read,
        ("keys", "grants" | "retire") if of_grants && method == Method::POST => KeyOp::Grant,
        // The operation that is asked for is checked, or the approver's signature.
        ("keys", "approvals" | "approve") if method == Method::POST => return None,
        ("keys", "policy") if method == Method::PUT => KeyOp::Policy,
        ("keys", "explain") => KeyOp::Read,
        ("keys", "rotate") => KeyOp::Rotate,
        ("keys", "retire") => KeyOp::Retire,
        ("keys", "destroy" | "trim") => KeyOp::Destroy,
        ("keys", _) if method == Method::DELETE => KeyOp::Destroy,
        ("keys", "cancel") => KeyOp::DestroyCancel,
        ("keys", "import" | "import_version" | "adopt" | "restore") => KeyOp::Import,
        ("keys", "export" | "backup") => KeyOp::Export,
        ("keys", "attest") => KeyOp::Attest,
        ("keys", "config") => KeyOp::Update,
        ("keys", _) if matches!(method, Method::GET | Method::LIST) => KeyOp::Read,
        ("keys", _) if method == Method::PATCH => KeyOp::Update,
        ("keys", _) => KeyOp::Create,
        // What concerns the installation is never done with a limited token.
        _ => KeyOp::Update,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_operations() {
        let check = |method: Method, route: &str, op: Option<KeyOp>| {
            assert_eq!(op_of(method, route), op, "{method:?} {route}");
        };
        let key = "/v1/kms/keys/{tenant}/{purpose}/{alg}/{id}";
        check(Method::POST, "/v1/kms/sign_batch", Some(KeyOp::Sign));
        check(Method::POST, "/v1/transit/sign/{name}", Some(KeyOp::Sign));
        check(
            Method::PUT,
            "/v1/transit/sign/{name}/{hash}",
            Some(KeyOp::Sign),
        );
        check(
            Method::POST,
            "/v1/transit/decrypt/{name}",
            Some(KeyOp::Unwrap),
        );
        check(Method::POST, "/v1/transit/verify/{name}", None);
        check(Method::POST, "/v1/kms/verify/raw", Some(KeyOp::Verify));
        check(Method::POST, "/v1/kms/hmac", Some(KeyOp::Hmac));
        check(Method::POST, "/v1/kms/hmac/verify", Some(KeyOp::HmacVerify));
        check(Method::POST, "/v1/kms/derive", Some(KeyOp::Derive));
        check(Method::POST, "/v1/kms/random", None);
        check(Method::POST, &format!("{key}/approvals"), None);
        check(Method::GET, &format!("{key}/approvals"), Some(KeyOp::Read));
        check(Method::GET, "/v1/kms/approvals", Some(KeyOp::Read));
        check(Method::GET, key, Some(KeyOp::Read));
        check(Method::PATCH, key, Some(KeyOp::Update));
        check(Method::POST, "/v1/kms/keys", Some(KeyOp::Create));
        check(Method::POST, "/v1/transit/keys/{name}", Some(KeyOp::Create));
        let of_vault = "/v1/transit/keys/{name}";
        check(Method::DELETE, of_vault, Some(KeyOp::Destroy));
        let trim = format!("{of_vault}/trim");
        check(Method::POST, &trim, Some(KeyOp::Destroy));
        let versions = format!("{of_vault}/import_version");
        check(Method::PUT, &versions, Some(KeyOp::Import));
        let backup = "/v1/transit/backup/{name}";
        check(Method::GET, backup, Some(KeyOp::Export));
        let restore = "/v1/transit/restore/{name}";
        check(Method::POST, restore, Some(KeyOp::Import));
        check(Method::POST, "/v1/kms/keys/restore", Some(KeyOp::Import));
        check(Method::POST, "/v1/kms/keys/adopt", Some(KeyOp::Import));
        check(Method::PUT, "/v1/kms/aliases/{alias}", Some(KeyOp::Alias));
        check(Method::GET, "/v1/kms/aliases", Some(KeyOp::Read));
        for (ending, op) in [
            ("/versions", KeyOp::Read),
            ("/rotate", KeyOp::Rotate),
            ("/destroy", KeyOp::Destroy),
            ("/destroy/cancel", KeyOp::DestroyCancel),
            ("/export", KeyOp::Export),
            ("/grants", KeyOp::Grant),
            ("/grants/{grant}/retire", KeyOp::Grant),
            ("/policy/explain", KeyOp::Read),
            ("/backup", KeyOp::Export),
        ] {
            let method = if ending == "/versions" {
                Method::GET
            } else {
                Method::POST
            };
            check(method, &format!("{key}{ending}"), Some(op));
            check(
                method,
                &format!("/v1/kms/keys/alias/{{alias}}{ending}"),
                Some(op),
            );
        }
    }

    #[test]
    fn a_version_that_is_imported_makes_no_key() {
        let of_vault = "/v1/transit/keys/{name}";
        assert!(makes_key(Method::POST, of_vault));
        assert!(makes_key(Method::POST, &format!("{of_vault}/import")));
        let version = format!("{of_vault}/import_version");
        assert!(!makes_key(Method::POST, &version));
    }
}
