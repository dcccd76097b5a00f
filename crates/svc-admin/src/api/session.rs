//! The session: a pasted passport becomes a cookie that scripts cannot read. The console keeps no
//! session state: the cookie is the passport, checked again with each request, and useless once the
//! passport has expired or was revoked.

use ron_http::{Authorizer as _, Need, Request, Response};
use ron_proto::admin::SessionRequest;
use ron_proto::{Problem, b64, scope};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{Console, guard, views};
use crate::audit::line;
use crate::caller::Caller;
use crate::gate::{COOKIE, head_of, with_bearer};
use crate::settings::AuthMode;

/// Browsers drop larger cookies; the limit leaves room for the name and the attributes.
const TOKEN_BYTES_MAX: usize = 3_900;

/// `POST /api/session`.
pub fn open(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    if console.settings.load().auth != AuthMode::Passport {
        let why = "sessions exist only where auth.mode is passport";
        return Err(Problem::conflict(why));
    }
    let token = Zeroizing::new(request.json::<SessionRequest>()?.token);
    let token = token.trim();
    let plain = token
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if token.is_empty() || !plain || token.starts_with("ron_") {
        return Err(Problem::bad_request(
            "token is not a passport; see: ron token --audience svc-admin",
        ));
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Problem::bad_request(
            "this passport is too long for a cookie; ask for fewer scopes or caveats",
        ));
    }
    let head = with_bearer(&head_of(request), token);
    let judged = console
        .gate
        .authorize(&head, &Need::Scope(scope::ADMIN_VIEW));
    let me = views::whoami(console, &judged?);
    let mut caller = Caller::of(request, AuthMode::Passport);
    caller.subject.clone_from(&me.subject);
    caller.roles.clone_from(&me.roles);
    console.audit.note(line("session", None, &caller));
    // Without a path attribute the cookie applies to /api of the page's own location, also below a
    // sub-path.
    let life = seconds_left(token, console.fleet.clock.unix_ms() / 1000);
    let cookie = format!("{COOKIE}={token}; HttpOnly; Secure; SameSite=Strict; Max-Age={life}");
    Ok(Response::json(200, &me)
        .header("set-cookie", cookie)
        .cache("no-store"))
}

/// `DELETE /api/session`.
pub fn close(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    let gone = format!("{COOKIE}=; HttpOnly; Secure; SameSite=Strict; Max-Age=0");
    Ok(Response::empty(204)
        .header("set-cookie", gone)
        .cache("no-store"))
}

/// Seconds until a passport that was checked before expires.
fn seconds_left(token: &str, now_s: u64) -> u64 {
    let claims = token
        .split('.')
        .nth(1)
        .and_then(|part| b64::from_url(part).ok());
    let claims: Value = claims
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or(Value::Null);
    claims["exp"]
        .as_u64()
        .unwrap_or(now_s)
        .saturating_sub(now_s)
}
