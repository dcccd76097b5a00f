//! Authorisation: the console's own rules in front of the passport checks that every service has.
//!
//! In mode `passport` a browser has a session, whose id is in a cookie that scripts cannot read; in mode
//! `ingress` a listed proxy names the user; in mode `none` the loopback bind is the gate and no
//! caller may act. The health port's actions require passports or service tokens in every mode.
//!
//! A caller that the gate refuses is counted and summed up in the log; the audit holds what known
//! callers do.

use std::sync::Arc;
use std::time::Duration;

use ron_auth::{AuthReject, HeldPassport, RonAuthorizer};
use ron_http::{
    Authorizer, Headers, Need, Peer, Principal, PrincipalKind, Request, RequestHead, Transport,
};
use ron_kernel::{Deadline, Snapshot, ThreadCtx};
use ron_proto::{Problem, scope};

use crate::sessions::Sessions;
use crate::settings::{AuthMode, Ingress, Settings};

/// The cookie that holds the id of a session, where the console is reached without TLS.
pub const COOKIE: &str = "ron_admin";
/// The same over TLS: browsers take a cookie of this name only over TLS, from the host itself.
pub const HOST_COOKIE: &str = "__Host-ron_admin";
/// The header by which the page says that nobody uses it.
const IDLE_HEADER: &str = "x-ron-idle";
/// How often sessions are checked for their end.
const SWEEP: Duration = Duration::from_secs(1);
/// Maximum length of a name or group list from a proxy, in bytes.
const INGRESS_BYTES_MAX: usize = 4096;

/// The authorizer of both ports.
#[derive(Debug)]
pub struct Gate {
    pub passports: Arc<RonAuthorizer>,
    pub sessions: Sessions,
    settings: Arc<Snapshot<Settings>>,
}

/// Reasons of refusals beside those of passports, in `auth_failures_total` and in the log.
const REASONS: [&str; 8] = [
    WRONG_CODE,
    NO_SESSION,
    NO_IDENTITY,
    OTHER_TENANT,
    "proxy_peer",
    "proxy_missing",
    "proxy_repeated",
    "proxy_group",
];
/// The reason for refusing a change by a caller that nothing identifies, in mode `none`.
pub const NO_IDENTITY: &str = "no_identity";
/// The reason for refusing a code that opens no session.
pub const WRONG_CODE: &str = "code";
/// The reason for refusing a session that has ended.
const NO_SESSION: &str = "no_session";
/// The reason for refusing a passport of another tenant than the console's.
const OTHER_TENANT: &str = "other_tenant";

impl Gate {
    pub fn new(
        passports: Arc<RonAuthorizer>,
        sessions: Sessions,
        settings: Arc<Snapshot<Settings>>,
    ) -> Self {
        passports.declare_reasons(REASONS);
        Self {
            passports,
            sessions,
            settings,
        }
    }

    /// True if a caller of a public route may also use the views.
    pub fn may_view(&self, head: &RequestHead) -> bool {
        let shows = match self.settings.load().auth {
            AuthMode::None => return true,
            AuthMode::Ingress => true,
            // Without a credential there is nothing to check; such a caller is not counted as
            // refused.
            AuthMode::Passport => {
                self.session_of(head).is_some() || head.headers.contains("authorization")
            }
        };
        shows && self.decide(head, &Need::Scope(scope::ADMIN_VIEW)).is_ok()
    }

    fn decide(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        // The health port's paths.
        if head.path.starts_with("/api/v1/") {
            return self.passport(head, need);
        }
        let settings = self.settings.load();
        match settings.auth {
            AuthMode::Ingress => from_proxy(head, need, &settings.ingress).map_err(|refusal| {
                let peer = Peer::of(head.peer, head.transport);
                self.passports
                    .refused(refusal.reason, peer, head.trace.id(), None);
                refusal.problem
            }),
            AuthMode::None | AuthMode::Passport => match self.session_of(head) {
                // An explicit header wins over the cookie: a program that sends one does not mean a
                // browser's session.
                Some(id) if !head.headers.contains("authorization") => {
                    let held = self.session(head, &id)?;
                    self.resume(&held, head, need)
                }
                _ => self.passport(head, need),
            },
        }
    }

    /// The passport of a session that has not ended.
    fn session(&self, head: &RequestHead, id: &str) -> Result<HeldPassport, Problem> {
        let is_used = !head.headers.contains(IDLE_HEADER);
        self.sessions.find(id, is_used).ok_or_else(|| {
            let peer = Peer::of(head.peer, head.transport);
            self.passports
                .refused(NO_SESSION, peer, head.trace.id(), None);
            Problem::unauthorized("the session has ended; sign in again")
        })
    }

    /// Judges a request by the passport of its session.
    pub fn resume(
        &self,
        held: &HeldPassport,
        head: &RequestHead,
        need: &Need,
    ) -> Result<Principal, Problem> {
        let caller = self.passports.resume(held, head, need)?;
        self.own(caller, head)
    }

    /// Ends sessions until the drain.
    pub fn end_sessions(&self, ctx: &ThreadCtx) {
        while !ctx.shutdown.wait(Deadline::within(SWEEP)) {
            self.sessions.sweep(|held| {
                // Without the feed nothing is known, and the requests of the session are refused meanwhile.
                !matches!(
                    self.passports.still_holds(held),
                    Ok(()) | Err(AuthReject::NoKeys | AuthReject::NoIssuer)
                )
            });
        }
    }

    /// 403 unless the passport of the caller was issued a short time ago, so that a person signs in before an action. Users
    /// that a proxy names, and services by token, certificate or Unix user, have no passports.
    pub fn acts_now(
        &self,
        head: &RequestHead,
        caller: &Principal,
        now_s: u64,
    ) -> Result<(), Problem> {
        if caller.kind == PrincipalKind::Service {
            return Ok(());
        }
        let settings = self.settings.load();
        let sent = head.header("authorization");
        let sent = sent.and_then(|header| header.split_once(' '));
        let issued = match (sent, self.session_of(head)) {
            (Some((_, token)), _) => self.passports.issued_s(token.trim()).ok(),
            (None, Some(id)) => self.sessions.find(&id, true).map(|held| held.issued_s()),
            (None, None) => None,
        };
        if issued.is_some_and(|issued| {
            now_s.saturating_sub(issued) <= settings.session.action_age.as_secs()
        }) {
            return Ok(());
        }
        Err(Problem::new(
            403,
            "sign_in_again",
            "Signed in too long ago",
            "an action needs a passport that was issued within session.action_age; sign in again with `ron console`, after a `ron login` with that first",
        ))
    }

    /// The id in the console's cookie. Where browsers reach the console over TLS, also through a proxy, only the name is
    /// read that no other host can set.
    pub fn session_of(&self, head: &RequestHead) -> Option<String> {
        if head.headers.count("cookie") != 1 {
            return None;
        }
        let cookies = head.header("cookie")?;
        let only_host = self.is_https(head.transport);
        cookie(cookies, HOST_COOKIE).or_else(|| cookie(cookies, COOKIE).filter(|_| !only_host))
    }

    /// Whether browsers reach the console over TLS: here, or at a proxy by an https address in `public_url`.
    pub fn is_https(&self, transport: Transport) -> bool {
        let is_secure = |base: &String| {
            let scheme = base.get(.."https:".len());
            scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
        };
        transport == Transport::Tls || self.passports.bases().iter().any(is_secure)
    }

    /// A passport of the console's own tenant, or a service token.
    fn passport(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        let caller = self.passports.authorize(head, need)?;
        self.own(caller, head)
    }

    fn own(&self, caller: Principal, head: &RequestHead) -> Result<Principal, Problem> {
        let own = caller.tenant == self.settings.load().tenant;
        if own || caller.kind == PrincipalKind::Service {
            return Ok(caller);
        }
        let peer = Peer::of(head.peer, head.transport);
        self.passports
            .refused(OTHER_TENANT, peer, head.trace.id(), None);
        Err(Problem::forbidden(
            "the console is for passports of the tenant in its auth.tenant",
        ))
    }
}

impl Authorizer for Gate {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        self.decide(head, need)
    }

    fn served_at(&self, bases: &[String]) {
        self.passports.served_at(bases);
    }
}

fn cookie(cookies: &str, wanted: &str) -> Option<String> {
    let mut found = cookies.split(';').filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == wanted && !value.is_empty()).then(|| value.to_owned())
    });
    // With two cookies of the same name it would be unclear which one counts, so neither does.
    let id = found.next()?;
    found.next().is_none().then_some(id)
}

/// The head of a request that a handler holds.
pub fn head_of(request: &Request) -> RequestHead {
    RequestHead {
        method: request.method,
        path: request.path.clone(),
        route: request.route,
        headers: request.headers.clone(),
        peer: request.peer,
        transport: request.transport,
        trace: request.trace.clone(),
        // A session rests on its passport alone, which is not bound to a certificate.
        client_cert: None,
    }
}

/// The same request with the token as a bearer token.
pub fn with_bearer(head: &RequestHead, token: &str) -> RequestHead {
    let bearer = format!("Bearer {token}");
    let mut pairs: Vec<(&str, &str)> = head
        .headers
        .iter()
        .filter(|(name, _)| !name.eq_ignore_ascii_case("authorization"))
        .collect();
    pairs.push(("authorization", &bearer));
    RequestHead {
        headers: Headers::from_pairs(&pairs),
        ..head.clone()
    }
}

struct Refusal {
    reason: &'static str,
    problem: Problem,
}

/// The user named by a listed proxy.
fn from_proxy(head: &RequestHead, need: &Need, rules: &Ingress) -> Result<Principal, Refusal> {
    let refuse = |reason, problem| Err(Refusal { reason, problem });
    let wanted = match need {
        Need::Public => return Ok(Principal::public()),
        Need::Identity => None,
        Need::Scope(scope) => Some(*scope),
    };
    let peer = head.peer.ip().to_canonical();
    if !rules.proxies.iter().any(|block| block.contains(peer)) {
        let why = "come through the proxy: this address is not in ingress.proxies";
        return refuse("proxy_peer", Problem::unauthorized(why));
    }
    let one = |name: &str| match head.headers.count(name) {
        0 => Ok(None),
        1 => Ok(head
            .header(name)
            .filter(|text| text.len() <= INGRESS_BYTES_MAX)),
        _ => Err(()),
    };
    let (Ok(user), Ok(groups)) = (one(&rules.header_user), one(&rules.header_groups)) else {
        let why = "the proxy must set each identity header once and drop those of the client";
        return refuse("proxy_repeated", Problem::unauthorized(why));
    };
    let Some(user) = user.map(str::trim).filter(|name| !name.is_empty()) else {
        return refuse(
            "proxy_missing",
            Problem::unauthorized("the proxy named no user"),
        );
    };
    let groups: Vec<&str> = groups.unwrap_or("").split(',').map(str::trim).collect();
    let scopes = scopes_of(&groups, rules);
    if let Some(wanted) = wanted
        && !scopes.iter().any(|held| held == wanted)
    {
        let why = format!("no group of this user stands for {wanted}");
        return refuse("proxy_group", Problem::forbidden(why));
    }
    Ok(Principal {
        name: user.chars().take(128).collect(),
        scopes: scopes.into(),
        kind: PrincipalKind::Service,
        ..Principal::public()
    })
}

fn scopes_of(groups: &[&str], rules: &Ingress) -> Vec<String> {
    let member = |of: &[String]| of.iter().any(|group| groups.contains(&group.as_str()));
    let (admin, operator) = (member(&rules.admins), member(&rules.operators));
    let mut scopes = Vec::new();
    if admin || operator || member(&rules.viewers) {
        scopes.push(scope::ADMIN_VIEW.to_owned());
    }
    if admin || operator {
        scopes.push(scope::ADMIN_OPERATE.to_owned());
    }
    if admin {
        scopes.push(scope::ADMIN_ADMIN.to_owned());
    }
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_issuer::{TestIssuer, settings};
    use ron_http::Method;

    fn head(peer: &str, pairs: &[(&str, &str)]) -> RequestHead {
        RequestHead {
            method: Method::GET,
            path: "/api/overview".into(),
            route: "/api/overview",
            headers: Headers::from_pairs(pairs),
            peer: format!("{peer}:1").parse().expect("an address"),
            transport: Transport::Tcp,
            trace: ron_http::Trace::new("r").unwrap(),
            client_cert: None,
        }
    }

    #[test]
    fn proxies_name_users() {
        let words = |text: &str| vec![text.to_owned()];
        let rules = Ingress {
            proxies: vec!["10.0.0.0/8".parse().expect("a block")],
            header_user: "x-user".into(),
            header_groups: "x-groups".into(),
            viewers: words("staff"),
            operators: words("sre"),
            admins: words("root"),
        };
        let check =
            |peer: &str, pairs: &[(&str, &str)], need: Need, want: Result<&str, (u16, &str)>| {
                let got = from_proxy(&head(peer, pairs), &need, &rules);
                match (got, want) {
                    (Ok(who), Ok(name)) => assert_eq!(who.name, name),
                    (Err(refusal), Err(want)) => {
                        assert_eq!((refusal.problem.status, refusal.reason), want);
                    }
                    (got, want) => panic!(
                        "{:?} instead of {want:?}",
                        got.map(|w| w.name).map_err(|r| r.reason)
                    ),
                }
            };
        let view = Need::Scope(scope::ADMIN_VIEW);
        let admin = Need::Scope(scope::ADMIN_ADMIN);
        let ada = [("X-User", "ada"), ("X-Groups", "x, staff")];
        check("10.1.1.1", &ada, view, Ok("ada"));
        check("11.1.1.1", &ada, view, Err((401, "proxy_peer")));
        check("10.1.1.1", &ada, admin, Err((403, "proxy_group")));
        check(
            "10.1.1.1",
            &[("X-User", "ada"), ("X-Groups", "root")],
            admin,
            Ok("ada"),
        );
        check(
            "10.1.1.1",
            &[("X-Groups", "root")],
            view,
            Err((401, "proxy_missing")),
        );
        check(
            "10.1.1.1",
            &[("X-User", "ada")],
            view,
            Err((403, "proxy_group")),
        );
        let twice = [("X-User", "ada"), ("X-User", "eve"), ("X-Groups", "staff")];
        check("10.1.1.1", &twice, view, Err((401, "proxy_repeated")));
        check("11.1.1.1", &[], Need::Public, Ok("public"));
    }

    /// A gate that passports and browsers reach at these addresses.
    fn gate(bases: &[&str]) -> Gate {
        let issuer = TestIssuer::new();
        let settings = settings("");
        let sessions = issuer.sessions(settings.clone());
        let gate = Gate::new(issuer.passports.clone(), sessions, settings);
        let bases: Vec<String> = bases.iter().map(|base| (*base).to_owned()).collect();
        gate.served_at(&bases);
        gate
    }

    #[test]
    fn the_cookie_is_read_and_nothing_else() {
        let plain = gate(&["http://127.0.0.1:7480"]);
        let proxied = gate(&["http://127.0.0.1:7480", "HTTPS://console.example"]);
        let check = |text: &str, want: Option<&str>| {
            let head = head("1.1.1.1", &[("cookie", text)]);
            assert_eq!(plain.session_of(&head).as_deref(), want, "{text}");
            // Over TLS a plain name may be another host's, wherever TLS ends.
            let want = want.filter(|_| text.contains(HOST_COOKIE));
            assert_eq!(proxied.session_of(&head).as_deref(), want, "{text} proxied");
            let tls = RequestHead {
                transport: Transport::Tls,
                ..head
            };
            assert_eq!(plain.session_of(&tls).as_deref(), want, "{text} over TLS");
        };
        check("ron_admin=abc", Some("abc"));
        check("x=1; ron_admin=abc ; y=2", Some("abc"));
        check("__Host-ron_admin=abc", Some("abc"));
        check("ron_admin=x; __Host-ron_admin=abc", Some("abc"));
        check("xron_admin=abc", None);
        check("ron_admin=", None);
        check("ron_admin=a; ron_admin=b", None);
        let bearing = with_bearer(&head("1.1.1.1", &[("authorization", "Bearer x")]), "y");
        assert_eq!(bearing.bearer(), Some("y"));
    }

    #[test]
    fn a_service_acts_without_a_passport_and_a_person_with_a_new_one() {
        let gate = gate(&[]);
        let caller = |kind: PrincipalKind| Principal {
            kind,
            ..Principal::public()
        };
        // A Unix user or a certificate sends no credential in a header.
        let head = RequestHead {
            transport: Transport::Unix { uid: 7 },
            ..head("127.0.0.1", &[])
        };
        assert!(
            gate.acts_now(&head, &caller(PrincipalKind::Service), 0)
                .is_ok()
        );
        let refused = gate.acts_now(&head, &caller(PrincipalKind::Passport), 0);
        assert_eq!(refused.expect_err("no passport").code, "sign_in_again");
    }
}
