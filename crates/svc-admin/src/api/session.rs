//! The session: a passport, or a code that a command got with one, becomes a cookie that scripts cannot read. The cookie
//! is a random id; the passport stays here.

use ron_auth::{AuthReject, HeldPassport};
use ron_http::{Authorizer as _, Need, Peer, Request, Response};
use ron_proto::admin::{SessionCode, SessionRequest};
use ron_proto::{Problem, scope};
use zeroize::Zeroizing;

use super::{Console, guard, views};
use crate::audit::line;
use crate::caller::Caller;
use crate::gate::{COOKIE, HOST_COOKIE, WRONG_CODE, head_of, with_bearer};
use crate::sessions::CODE_LIFE;
use crate::settings::AuthMode;

const VIEW: Need = Need::Scope(scope::ADMIN_VIEW);

/// `POST /api/session`.
pub fn open(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    by_passport(console)?;
    let held = match request.json::<SessionRequest>()? {
        SessionRequest {
            token: Some(token),
            code: None,
        } => pasted(console, request, &Zeroizing::new(token))?,
        SessionRequest {
            token: None,
            code: Some(code),
        } => {
            let code = Zeroizing::new(code);
            let held = console.gate.sessions.redeem(&code);
            held.ok_or_else(|| wrong_code(console, request))?
        }
        _ => return Err(Problem::bad_request("send either token or code")),
    };
    let caller = console.gate.resume(&held, &head_of(request), &VIEW)?;
    let me = views::whoami(console, &caller);
    let mut caller = Caller::of(request, AuthMode::Passport);
    caller.subject.clone_from(&me.subject);
    caller.roles.clone_from(&me.roles);
    console.audit.note(line("session", None, &caller));
    // The browser forgets the session that it had.
    end_session(console, request);
    let id = console.gate.sessions.open(held);
    let life = console.settings.load().session.longest.as_secs();
    let cookie = cookie(console, request, &id, life);
    Ok(Response::json(200, &me)
        .header("set-cookie", cookie)
        .cache("no-store"))
}

/// `DELETE /api/session`.
pub fn close(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    end_session(console, request);
    Ok(Response::empty(204)
        .header("set-cookie", cookie(console, request, "", 0))
        .cache("no-store"))
}

/// Ends the session that the request's cookie names.
fn end_session(console: &Console, request: &Request) {
    if let Some(id) = console.gate.session_of(&head_of(request)) {
        console.gate.sessions.close(&id);
    }
}

/// Counted and logged as any wrong credential.
fn wrong_code(console: &Console, request: &Request) -> Problem {
    let peer = Peer::of(request.peer, request.transport);
    let passports = &console.gate.passports;
    passports.refused(WRONG_CODE, peer, request.trace.id(), None);
    Problem::unauthorized("the code was used, or is older than a minute; run `ron console` again")
}

/// `POST /api/session/code`: for a command that has a passport and wants a browser to be signed in.
pub fn code(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    by_passport(console)?;
    // Not from a session: it could be handed on for ever.
    let head = head_of(request);
    let Some(token) = head.bearer() else {
        return Err(Problem::unauthorized(
            "send the passport as Authorization: Bearer",
        ));
    };
    let held = console.gate.passports.hold(token);
    let held = held.map_err(AuthReject::problem)?;
    Ok(Response::json(
        200,
        &SessionCode {
            as_of: views::now(console),
            code: console.gate.sessions.code(held)?,
            expires_seconds: CODE_LIFE.as_secs(),
        },
    )
    .cache("no-store"))
}

fn by_passport(console: &Console) -> Result<(), Problem> {
    if console.settings.load().auth == AuthMode::Passport {
        return Ok(());
    }
    let why = "sessions exist only where auth.mode is passport";
    Err(Problem::conflict(why))
}

/// A passport from the page's form.
fn pasted(console: &Console, request: &Request, token: &str) -> Result<HeldPassport, Problem> {
    let token = token.trim();
    let plain = token
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b));
    if token.is_empty() || !plain || token.starts_with("ron_") {
        return Err(Problem::bad_request(
            "token is not a passport; see: ron token --audience svc-admin",
        ));
    }
    // Judged as a credential first, so that a wrong one is counted and logged as any other.
    let head = with_bearer(&head_of(request), token);
    console.gate.authorize(&head, &VIEW)?;
    let held = console.gate.passports.hold(token);
    held.map_err(AuthReject::problem)
}

/// The cookie. Over TLS its name has the prefix by which a browser takes it from this host alone, for all its paths.
/// Without TLS browsers refuse that name; then the cookie applies to /api of the page's own location, also below a
/// sub-path.
fn cookie(console: &Console, request: &Request, id: &str, life: u64) -> String {
    if is_https(console, request) {
        format!("{HOST_COOKIE}={id}; Path=/; HttpOnly; Secure; SameSite=Strict; Max-Age={life}")
    } else {
        format!("{COOKIE}={id}; HttpOnly; SameSite=Strict; Max-Age={life}")
    }
}

/// Whether the browser reaches the console over TLS, which may end at a proxy: then `public_url` or the page's origin says
/// so. A caller that lies gets a cookie that does not work.
fn is_https(console: &Console, request: &Request) -> bool {
    let origin = request.header("origin").unwrap_or_default();
    console.gate.is_https(request.transport) || origin.starts_with("https://")
}
