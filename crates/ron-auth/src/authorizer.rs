//! [`RonAuthorizer`]: decides on each request from published snapshots, without I/O.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ron_files::Dir;
use ron_http::{
    Authorizer, ClientCert, ClientConfig, Need, Peer, Principal, PrincipalKind, Request,
    RequestHead, Transport,
};
use ron_kernel::{
    ClosedCounter, Counter, KernelMetrics, Registry, SharedClock, Snapshot, Supervisor, ThreadSpec,
    queue,
};
use ron_proto::Problem;
use ron_proto::passport::{NARROWED_BYTES_MAX, PQ_NARROWED_BYTES_MAX};

use crate::cache::{SignedBy, TokenCache, Verified};
use crate::caveats::{self, CaveatCtx};
use crate::dpop::{Proof, ProofAsk, verify_proof};
use crate::jwks::{JwksSnapshot, PqRule};
use crate::jwt::{self, Expect};
use crate::meter::{METER_LOCK_SPEC, Meter, Metered};
use crate::narrow;
use crate::proofs::ProofCache;
use crate::refresh::{Fetch, HttpFetch, REFRESH_QUEUE_SPEC, Refresher};
use crate::refusals::Refusals;
use crate::reject::AuthReject;
use crate::revocation::RevocationView;
use crate::scheme::{Scheme, credential};
use crate::seen::SeenIssuers;
use crate::service_token;
use crate::settings::{AuthConfig, IssuerConfig, ServicePrincipal};
use crate::trust::Followed;

/// Maximum verified tokens in the cache.
const CACHED_TOKENS_MAX: usize = 16_384;

/// The rows of the two refresh threads in a service's topology.
#[derive(Clone, Copy, Debug)]
pub struct AuthThreads {
    /// Reads the issuer's keys.
    pub keys: &'static ThreadSpec,
    /// Follows the issuer's revocations.
    pub feed: &'static ThreadSpec,
}

/// The authorizer of one service. Create it with [`RonAuthorizer::new`], start its threads
/// with [`RonAuthorizer::spawn`], and pass it to the HTTP front.
pub struct RonAuthorizer {
    pub(crate) config: Snapshot<AuthConfig>,
    pub(crate) keys: Followed<IssuerConfig, JwksSnapshot>,
    pub(crate) revoked: Followed<IssuerConfig, RevocationView>,
    pub(crate) clock: SharedClock,
    pub(crate) refresher: Refresher,
    pub(crate) seen: SeenIssuers,
    /// For how many seconds revocations are kept after the end of their tokens.
    pub(crate) retention_s: AtomicU64,
    cache: TokenCache<Verified>,
    meter: Meter,
    proofs: ProofCache,
    /// Base URLs that the `htu` of a proof may begin with.
    bases: Snapshot<Vec<String>>,
    pub(crate) refusals: Refusals,
    failures: ClosedCounter,
    cache_hits: Counter,
    verifications: Counter,
}

impl std::fmt::Debug for RonAuthorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RonAuthorizer")
            .field("keys", &self.keys_now().len())
            .finish_non_exhaustive()
    }
}

impl RonAuthorizer {
    /// The authorizer of a service. `peers` configures calls to other services, the issuer among
    /// them. `data_dir` holds what was seen of the issuer (`None` in amnesia mode).
    pub fn new(
        config: AuthConfig,
        registry: &Registry,
        clock: SharedClock,
        peers: ClientConfig,
        data_dir: Option<Dir>,
    ) -> Result<Arc<Self>, String> {
        let fetch = Arc::new(HttpFetch::new(&config.audience, peers));
        Self::with_fetch(config, registry, clock, fetch, data_dir)
    }

    /// Like [`Self::new`], with another way to fetch what the issuer publishes; tests use
    /// it.
    pub fn with_fetch(
        config: AuthConfig,
        registry: &Registry,
        clock: SharedClock,
        fetch: Arc<dyn Fetch>,
        data_dir: Option<Dir>,
    ) -> Result<Arc<Self>, String> {
        let seen = SeenIssuers::open(data_dir)?;
        let metrics = KernelMetrics::new(registry);
        let kicks = queue(&REFRESH_QUEUE_SPEC, REFRESH_QUEUE_SPEC.capacity, &metrics);
        Ok(Arc::new(Self {
            config: Snapshot::new(config),
            keys: Followed::default(),
            revoked: Followed::default(),
            refusals: Refusals::new(clock.clone()),
            clock,
            refresher: Refresher::new(fetch, kicks, metrics, registry),
            seen,
            retention_s: AtomicU64::new(0),
            cache: TokenCache::new(CACHED_TOKENS_MAX),
            meter: Meter::new(),
            proofs: ProofCache::new(&METER_LOCK_SPEC),
            bases: Snapshot::new(Vec::new()),
            failures: registry.counter_closed(
                "auth_failures_total",
                "Refused callers by reason.",
                &[("reason", &AuthReject::ALL.map(AuthReject::reason))],
            ),
            cache_hits: registry.counter(
                "auth_cache_hits_total",
                "Passports found in the cache of verified tokens.",
            ),
            verifications: registry.counter(
                "auth_verifications_total",
                "Passports whose signatures were verified.",
            ),
        }))
    }

    /// Starts the two refresh threads.
    pub fn spawn(self: &Arc<Self>, supervisor: &Supervisor, threads: AuthThreads) {
        let AuthThreads { keys, feed } = threads;
        self.refresher
            .close_with(supervisor.stage_token(keys.stage));
        let this = self.clone();
        supervisor.spawn(keys, move |ctx| this.keys_body(ctx));
        let this = self.clone();
        supervisor.spawn(feed, move |ctx| this.feed_body(ctx));
    }

    /// Registers `report`, which gets `Some(why)` while passports cannot be (fully) checked and
    /// `None` when they can. Called once immediately, later from the refresh threads.
    pub fn on_state(&self, report: impl Fn(Option<String>) + Send + Sync + 'static) {
        self.refresher.on_state(Box::new(report));
        self.report_state();
    }

    /// Adopts changed settings. A new issuer starts with no keys and no revocations, so its
    /// passports are refused until both have been read. The caveats that the service checks itself
    /// are code, not configuration, and stay.
    pub fn reload(&self, mut new: AuthConfig) -> Result<(), String> {
        let old = self.config.load();
        new.enforced_caveats.clone_from(&old.enforced_caveats);
        self.seen.read_again()?;
        self.keys.forget_version();
        self.config.store(new);
        self.refresher.kick();
        self.report_state();
        Ok(())
    }

    pub fn config(&self) -> Arc<AuthConfig> {
        self.config.load()
    }

    /// Keys and revocations of the currently configured issuer only. Keys whose note was signed by
    /// a key that is no longer pinned are left out.
    pub(crate) fn keys_of(&self, issuer: &IssuerConfig) -> Option<Arc<JwksSnapshot>> {
        let keys = self.keys.of(|read| read.same_sources(issuer))?;
        issuer.trusts_note_of(keys.signers()).then_some(keys)
    }

    pub(crate) fn revoked_of(&self, issuer: &IssuerConfig) -> Option<Arc<RevocationView>> {
        self.revoked.of(|read| read.same_sources(issuer))
    }

    /// The keys that passports are verified with now; empty without an issuer or before the first
    /// read.
    pub fn keys_now(&self) -> Arc<JwksSnapshot> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref();
        issuer.and_then(|i| self.keys_of(i)).unwrap_or_default()
    }

    /// The revocations that passports are checked against now; see [`Self::keys_now`].
    pub fn revoked_now(&self) -> Arc<RevocationView> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref();
        issuer.and_then(|i| self.revoked_of(i)).unwrap_or_default()
    }

    pub(crate) fn now_s(&self) -> u64 {
        self.clock.unix_ms() / 1000
    }

    /// The base URLs under which clients reach this service.
    pub fn bases(&self) -> Arc<Vec<String>> {
        self.bases.load()
    }

    /// Declares the metric series of refusal reasons that a service has beside those of
    /// [`AuthReject`].
    pub fn declare_reasons<'r>(&self, reasons: impl IntoIterator<Item = &'r str>) {
        self.failures.declare(reasons);
    }

    /// Counts and logs a refused caller. `client` is set only when it has proved its identity or
    /// comes from the configuration, never from unverified input.
    pub fn refused(
        &self,
        reason: &'static str,
        peer: Peer,
        request_id: &str,
        client: Option<&str>,
    ) {
        self.failures.with_label_values(&[reason]).inc();
        self.refusals.refused(reason, peer, request_id, client);
    }

    /// Counts and logs a request that the service itself refuses, as for a caveat that only the service can check.
    pub fn refused_request(&self, reason: &'static str, request: &Request) {
        // A service is named in the configuration; the name in a passport is chosen by its client and must not become a
        // label.
        let caller = &request.principal;
        let service = caller.kind == PrincipalKind::Service;
        let client = service.then_some(caller.name.as_str());
        let peer = Peer::of(request.peer, request.transport);
        self.refused(reason, peer, request.trace.id(), client);
    }

    /// The principal. `client` is set as soon as the identity is proved, also when the request is
    /// refused.
    fn judge(
        &self,
        head: &RequestHead,
        need: &Need,
        client: &mut Option<String>,
    ) -> Result<Principal, AuthReject> {
        let scope = match need {
            Need::Public => return Ok(Principal::public()),
            Need::Identity => None,
            Need::Scope(scope) => Some(*scope),
        };
        let (scheme, token) = match credential(head) {
            // A certificate or a user id counts only when the request carries no token.
            Err(AuthReject::Missing) => {
                let principal = self.by_transport(head).ok_or(AuthReject::Missing)?;
                *client = Some(principal.name.clone());
                return scoped(principal, scope);
            }
            other => other?,
        };
        if scheme == Scheme::Bearer && service_token::looks_like(token) {
            let principal = self.service_caller(token, head)?;
            *client = Some(principal.name.clone());
            return scoped(principal, scope);
        }
        let verified = self.passport(token)?;
        client.clone_from(&verified.claims.client_id);
        let proof = self.check_binding(&verified, scheme, token, head)?;
        let principal = scoped(principal_of(&verified), scope)?;
        self.check_caveats(&verified, &principal, head)?;
        // Checks that consume something come last, when nothing else refuses the request: first the
        // proof, so that a replayed request does not use up the token's budget.
        if let Some(proof) = proof {
            let claims = &verified.claims;
            let holder = claims.client_id.as_deref().unwrap_or(&claims.sub);
            proof.take(&self.proofs, holder, self.now_s())?;
        }
        self.count_use(&verified, head)?;
        Ok(principal)
    }

    /// Checks the binding of a token. A token bound to a key requires the DPoP scheme and exactly
    /// one proof by that key; the id of the proof is not recorded yet. An unbound token must not
    /// use the scheme. A token bound to a certificate counts only on a connection made with that
    /// certificate.
    fn check_binding(
        &self,
        verified: &Verified,
        scheme: Scheme,
        token: &str,
        head: &RequestHead,
    ) -> Result<Option<Proof>, AuthReject> {
        if let Some(x5t) = &verified.claims.x5t
            && head.client_cert.as_deref().and_then(x5t_s256).as_ref() != Some(x5t)
        {
            return Err(AuthReject::Binding);
        }
        let Some(jkt) = &verified.claims.jkt else {
            return match scheme {
                Scheme::Bearer => Ok(None),
                Scheme::Dpop => Err(AuthReject::Proof),
            };
        };
        if scheme == Scheme::Bearer || head.headers.count("dpop") != 1 {
            return Err(AuthReject::Binding);
        }
        let bases = self.bases();
        let ask = ProofAsk {
            method: head.method.as_str(),
            bases: &bases,
            path: &head.path,
            token: Some(token),
            now_s: self.now_s(),
        };
        let proof = verify_proof(head.header("dpop").unwrap_or_default(), &ask)?;
        if proof.jkt != *jkt {
            return Err(AuthReject::Proof);
        }
        Ok(Some(proof))
    }

    fn service_caller(&self, token: &str, head: &RequestHead) -> Result<Principal, AuthReject> {
        let config = self.config.load();
        match head.transport {
            Transport::Tls | Transport::Unix { .. } => {}
            Transport::Tcp if config.insecure_loopback && head.is_from_loopback() => {}
            Transport::Tcp => return Err(AuthReject::PlainTcp),
            Transport::ClientSocket { .. } => return Err(AuthReject::ClientSocket),
        }
        let name = service_token::parse(token).ok_or(AuthReject::ServiceToken)?;
        let entry = config.principals.iter().find(|entry| entry.name == name);
        // An unknown name takes the same time as a known one.
        let known = entry.and_then(|entry| entry.sha256);
        let good = service_token::matches(token, &known.unwrap_or_default());
        let entry = entry.filter(|_| good && known.is_some());
        Ok(service_principal(entry.ok_or(AuthReject::ServiceToken)?))
    }

    /// The caller as the connection identifies it: by client certificate, or by the user id of its
    /// process.
    fn by_transport(&self, head: &RequestHead) -> Option<Principal> {
        let config = self.config.load();
        let mut entries = config.principals.iter();
        let found = match (head.transport, &head.client_cert) {
            (Transport::Tls, Some(cert)) => entries.find(|e| e.certs.contains(&cert.sha256)),
            (Transport::Unix { uid }, _) => entries.find(|e| e.uids.contains(&uid)),
            (Transport::ClientSocket { uid }, _) => entries.find(|e| e.client_uids.contains(&uid)),
            _ => None,
        };
        found.map(service_principal)
    }

    /// Signature and claims from the cache or verified now; time and revocation are checked on
    /// every use.
    pub(crate) fn passport(&self, token: &str) -> Result<Arc<Verified>, AuthReject> {
        let config = self.config.load();
        let issuer = config.issuer.as_ref().ok_or(AuthReject::NoIssuer)?;
        let keys = self.keys_of(issuer).ok_or(AuthReject::NoKeys)?;
        if token.len() > presented_bytes_max(&keys) {
            return Err(AuthReject::Oversize);
        }
        if keys.is_empty() {
            return Err(AuthReject::NoKeys);
        }
        if self.clock.date_unknown().is_some() {
            return Err(AuthReject::NoDate);
        }
        let now_s = self.now_s();
        let hash = ron_crypto::hash::blake3(token.as_bytes());
        let verified = match self.cached(&hash, issuer, &keys, now_s) {
            #[cfg(mutant = "cached")] // what was checked once is not checked again
            Some(verified) if ron_kernel::mutant("cached") => return Ok(verified),
            Some(verified) => {
                verified
                    .claims
                    .check_time(now_s)
                    .inspect_err(|_| self.cache.remove(&hash))?;
                verified
            }
            None => self.verify(token, hash, &config, issuer, &keys, now_s)?,
        };
        let revoked = self.revoked_of(issuer);
        #[cfg(mutant = "unsynced")] // after a start tokens count before the revocations are read
        if revoked.is_none() && ron_kernel::mutant("unsynced") {
            return Ok(verified);
        }
        let revoked = revoked.ok_or(AuthReject::NoKeys)?;
        revoked.check(&verified.claims)?;
        Ok(verified)
    }

    /// A cached token counts only while its issuer and its signing keys are still the configured
    /// ones.
    fn cached(
        &self,
        hash: &[u8; 32],
        issuer: &IssuerConfig,
        keys: &JwksSnapshot,
        now_s: u64,
    ) -> Option<Arc<Verified>> {
        let found = self.cache.find_if(hash, |found| {
            let same_rule = issuer.pq == keys.rule();
            let still = found.by.still(keys);
            #[cfg(mutant = "withdrawn")] // a token counts longer than its key
            let still = still || ron_kernel::mutant("withdrawn");
            let mut names = keys.issuers(&issuer.issuer, now_s);
            let named = names.any(|name| name == found.claims.iss);
            same_rule && named && still
        })?;
        self.cache_hits.inc();
        Some(found)
    }

    fn verify(
        &self,
        token: &str,
        hash: [u8; 32],
        config: &AuthConfig,
        issuer: &IssuerConfig,
        keys: &JwksSnapshot,
        now_s: u64,
    ) -> Result<Arc<Verified>, AuthReject> {
        self.verifications.inc();
        let expect = Expect {
            issuers: &keys.issuers(&issuer.issuer, now_s).collect::<Vec<_>>(),
            audience: &config.audience,
            now_s,
        };
        let root = narrow::root(token);
        let claims = jwt::verify_jwt(root, keys, &expect).inspect_err(|reject| {
            // The key may be newer than our copy; the refresh thread limits how often it reads.
            if *reject == AuthReject::UnknownKid && jwt::unverified_kid(root).is_some() {
                self.refresher.kick();
            }
        })?;
        let claims = narrow::apply(token, claims, now_s)?;
        claims.check_time(now_s)?;
        let verified = Arc::new(Verified {
            by: SignedBy::of(&claims, keys),
            scopes: claims.scopes.clone().into(),
            caveats: claims.caveats.clone().into(),
            budgets: claims.budgets.clone().into(),
            claims,
        });
        self.cache.insert(hash, verified.clone());
        Ok(verified)
    }

    pub(crate) fn check_caveats(
        &self,
        verified: &Verified,
        principal: &Principal,
        head: &RequestHead,
    ) -> Result<(), AuthReject> {
        if verified.caveats.is_empty() {
            return Ok(());
        }
        let config = self.config.load();
        let ctx = CaveatCtx {
            service: &config.audience,
            method: head.method.as_str(),
            path: &head.path,
            peer_ip: head.peer.ip(),
            region: config.region.as_deref(),
            account: None,
            asset: None,
            amount: None,
            tenant: Some(&principal.tenant),
            proof: verified.claims.jkt.as_deref(),
        };
        let enforced: Vec<&str> = config.enforced_caveats.iter().map(String::as_str).collect();
        caveats::check_head(&verified.caveats, &ctx, &enforced)
    }

    pub(crate) fn count_use(
        &self,
        verified: &Verified,
        head: &RequestHead,
    ) -> Result<(), AuthReject> {
        if verified.caveats.is_empty() {
            return Ok(());
        }
        let claims = &verified.claims;
        let mut tokens = vec![Metered {
            jti: &claims.jti,
            exp_s: claims.exp,
            caveats: &verified.caveats,
        }];
        // An exchange gives no new budget: a use is also one of every token before.
        tokens.extend(claims.ancestors.iter().map(|one| Metered {
            jti: &one.jti,
            exp_s: one.exp,
            caveats: &one.counted,
        }));
        self.meter.take(&tokens, body_bytes(head), self.now_s())
    }

    /// Counts and logs a refusal; returns the answer. `client` is known only where it has proved its identity.
    pub(crate) fn refusal(
        &self,
        reject: AuthReject,
        head: &RequestHead,
        need: &Need,
        client: Option<&str>,
    ) -> Problem {
        let peer = Peer::of(head.peer, head.transport);
        self.refused(reject.reason(), peer, head.trace.id(), client);
        let dpop = matches!(credential(head), Ok((Scheme::Dpop, _)));
        match (reject, need) {
            // The scope is public, it is in the OpenAPI document: the answer may name it.
            (AuthReject::Scope, Need::Scope(scope)) => {
                let mut problem = reject.challenging(dpop, Some(scope));
                problem.detail = format!("the caller lacks the scope {scope}; get a token with it");
                problem
            }
            _ => reject.challenging(dpop, None),
        }
    }
}

impl Authorizer for RonAuthorizer {
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem> {
        let mut client = None;
        let judged = self.judge(head, need, &mut client);
        judged.map_err(|reject| self.refusal(reject, head, need, client.as_deref()))
    }

    fn served_at(&self, bases: &[String]) {
        self.bases.store(bases.to_vec());
    }
}

/// Base64url of a certificate's SHA-256, as in `cnf` (RFC 8705 section 3.1).
pub fn x5t_s256(cert: &ClientCert) -> Option<String> {
    let digest = hex::decode(&cert.sha256).ok()?;
    Some(ron_proto::b64::url(&digest))
}

fn presented_bytes_max(keys: &JwksSnapshot) -> usize {
    match keys.rule() {
        PqRule::Off => NARROWED_BYTES_MAX,
        _ => PQ_NARROWED_BYTES_MAX,
    }
}

fn service_principal(entry: &ServicePrincipal) -> Principal {
    Principal {
        name: entry.name.clone(),
        client: None,
        tenant: entry.tenant.clone(),
        scopes: entry.scopes.clone(),
        caveats: Arc::from([]),
        kind: PrincipalKind::Service,
        budgets: Arc::from([]),
        key_prefixes: Some(entry.key_prefixes.clone()).filter(|prefixes| !prefixes.is_empty()),
        jti: None,
    }
}

pub(crate) fn scoped(principal: Principal, scope: Option<&str>) -> Result<Principal, AuthReject> {
    match scope {
        Some(scope) if !principal.has_scope(scope) => Err(AuthReject::Scope),
        _ => Ok(principal),
    }
}

pub(crate) fn principal_of(verified: &Verified) -> Principal {
    Principal {
        name: verified.claims.sub.clone(),
        client: verified.claims.client_id.clone(),
        tenant: verified.claims.tenant.clone(),
        scopes: verified.scopes.clone(),
        caveats: verified.caveats.clone(),
        kind: PrincipalKind::Passport,
        budgets: verified.budgets.clone(),
        key_prefixes: caveats::key_prefixes(&verified.caveats),
        jti: Some(verified.claims.jti.clone()),
    }
}

/// Announced length of the body; `None` when it is not announced (chunked).
fn body_bytes(head: &RequestHead) -> Option<u64> {
    match head.header("content-length") {
        Some(text) => text.parse().ok(),
        None if head.headers.contains("transfer-encoding") => None,
        None => Some(0),
    }
}

#[cfg(test)]
#[path = "authorizer_tests.rs"]
mod tests;
