//! Identity and permission: the types of every authorizer. This crate decides nothing itself; it
//! calls the authorizer after the head and before the body.

use std::sync::Arc;

use ron_proto::ledger::TokenBudget;
use ron_proto::{Caveat, Problem, Tenant};

use crate::head::RequestHead;

/// What a route requires of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing; the authorizer is not called.
    Public,
    Identity,
    /// An identity that holds this scope.
    Scope(&'static str),
}

/// The source of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalKind {
    Public,
    /// A service token, client certificate or Unix user of the configuration.
    Service,
    Passport,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Principal {
    /// The name: a service, a client, the subject of a passport.
    pub name: String,
    /// The client that a passport was issued to, as the issuer names it; `None` without a passport.
    pub client: Option<String>,
    /// The tenant it acts for.
    pub tenant: Tenant,
    /// The scopes it holds.
    pub scopes: Arc<[String]>,
    /// The caveats that narrow them.
    pub caveats: Arc<[Caveat]>,
    /// What it may spend, counted by the ledger.
    pub budgets: Arc<[TokenBudget]>,
    /// The source of the identity.
    pub kind: PrincipalKind,
    /// When set, only keys whose `purpose` path starts with one of these may be used.
    pub key_prefixes: Option<Vec<String>>,
    pub jti: Option<String>,
}

impl Principal {
    /// The caller of a public route.
    pub fn public() -> Self {
        Self {
            name: "public".to_owned(),
            client: None,
            tenant: "default".parse().expect("a constant, valid tenant"),
            scopes: Arc::from([]),
            caveats: Arc::from([]),
            budgets: Arc::from([]),
            kind: PrincipalKind::Public,
            key_prefixes: None,
            jti: None,
        }
    }

    /// True when the scope is among those held.
    pub fn has_scope(&self, scope: &str) -> bool {
        self.scopes.iter().any(|held| held == scope)
    }

    /// True for the installation's own services and its operator: service tokens, certificates and
    /// user ids of tenant `ron`. No passport is: passports are signed with a key of this
    /// installation, so a holder of the issuer's credential could escalate with one.
    pub fn is_installation(&self) -> bool {
        self.kind == PrincipalKind::Service && self.tenant == Tenant::system()
    }
}

/// Decides on the identity of a caller and whether it meets the route's need. Called on a worker,
/// before the body is read; must not wait for the network.
pub trait Authorizer: Send + Sync {
    /// The principal, or 401 (no valid identity), 403 (not allowed), 503 (cannot decide now).
    fn authorize(&self, head: &RequestHead, need: &Need) -> Result<Principal, Problem>;

    /// Called once, before the first request, with the base URLs under which clients reach the
    /// service. An authorizer that wraps another must pass them on, or the inner one accepts no
    /// DPoP proof.
    fn served_at(&self, _bases: &[String]) {}
}

/// Rejects every caller; public routes still answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenyAll;

impl Authorizer for DenyAll {
    fn authorize(&self, _head: &RequestHead, _need: &Need) -> Result<Principal, Problem> {
        Err(Problem::unauthorized("this service accepts no credentials"))
    }
}
