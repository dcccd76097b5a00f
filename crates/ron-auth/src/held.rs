//! Passports that a session holds: verified once, when the session is opened. The session may outlive the passport; it
//! ends when the passport is revoked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_http::{Need, Principal, RequestHead};
use ron_proto::Problem;

use crate::authorizer::{RonAuthorizer, principal_of, scoped};
use crate::cache::Verified;
use crate::reject::AuthReject;

/// A passport that was accepted; see [`RonAuthorizer::hold`].
#[derive(Clone)]
pub struct HeldPassport(Arc<Verified>);

impl std::fmt::Debug for HeldPassport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeldPassport")
    }
}

impl HeldPassport {
    /// When the passport was issued, in unix seconds.
    pub fn issued_s(&self) -> u64 {
        self.0.claims.iat
    }

    /// The passport's subject, and the client that it was issued to.
    pub fn holder(&self) -> (&str, Option<&str>) {
        (&self.0.claims.sub, self.0.claims.client_id.as_deref())
    }

    /// When every session of it has ended, in unix seconds: a session of a passport with caveats ends with it,
    /// because its budgets are counted that long.
    pub fn ends_s(&self) -> Option<u64> {
        (!self.0.caveats.is_empty()).then_some(self.0.claims.exp)
    }
}

impl RonAuthorizer {
    /// Remembers revocations for as long as sessions last beyond their passports. To be called before sessions are opened.
    pub fn retain_revocations(&self, retention: Duration) {
        self.retention_s
            .store(retention.as_secs(), Ordering::Relaxed);
    }

    pub(crate) fn retention_s(&self) -> u64 {
        self.retention_s.load(Ordering::Relaxed)
    }

    /// Verifies a passport for a session. One that is bound to a key or a certificate is refused: it is accepted only
    /// with a proof in each request, which a session does not have.
    pub fn hold(&self, token: &str) -> Result<HeldPassport, AuthReject> {
        let verified = self.passport(token)?;
        if verified.claims.jkt.is_some() || verified.claims.x5t.is_some() {
            return Err(AuthReject::Binding);
        }
        Ok(HeldPassport(verified))
    }

    /// When a passport that is valid now was issued, in unix seconds.
    pub fn issued_s(&self, token: &str) -> Result<u64, AuthReject> {
        Ok(self.passport(token)?.claims.iat)
    }

    /// Whether the passport and those that it was exchanged from are not revoked. [`AuthReject::NoKeys`] says that
    /// this is not known now.
    pub fn still_holds(&self, held: &HeldPassport) -> Result<(), AuthReject> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref().ok_or(AuthReject::NoIssuer)?;
        let keys = self.keys_of(issuer).ok_or(AuthReject::NoKeys)?;
        let mut names = keys.issuers(&issuer.issuer, self.now_s());
        if !names.any(|name| name == held.0.claims.iss) {
            return Err(AuthReject::Issuer);
        }
        let revoked = self.revoked_of(issuer).ok_or(AuthReject::NoKeys)?;
        revoked.check(&held.0.claims)
    }

    /// Judges a request of a session by its passport, as [`ron_http::Authorizer::authorize`] judges one with a token.
    pub fn resume(
        &self,
        held: &HeldPassport,
        head: &RequestHead,
        need: &Need,
    ) -> Result<Principal, Problem> {
        let judge = || {
            self.still_holds(held)?;
            let scope = match need {
                Need::Public => return Ok(Principal::public()),
                Need::Identity => None,
                Need::Scope(scope) => Some(*scope),
            };
            let principal = scoped(principal_of(&held.0), scope)?;
            self.check_caveats(&held.0, &principal, head)?;
            self.count_use(&held.0, head)?;
            Ok(principal)
        };
        let client = held.0.claims.client_id.as_deref();
        judge().map_err(|reject| self.refusal(reject, head, need, client))
    }
}
