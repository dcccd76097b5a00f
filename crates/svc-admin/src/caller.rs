//! The caller of a request: name and roles, as the console shows them and the audit records them.

use ron_http::{Principal, Request};
use ron_proto::scope;

use crate::settings::AuthMode;

/// The caller of a request, as the audit records it.
#[derive(Clone, Debug)]
pub struct Caller {
    pub subject: String,
    pub roles: Vec<String>,
    pub request_id: String,
    pub peer: String,
}

impl Caller {
    /// From a request that passed the gate.
    pub fn of(request: &Request, mode: AuthMode) -> Self {
        Self {
            subject: subject(&request.principal, mode),
            roles: roles(&request.principal, mode),
            request_id: request.trace.id().to_owned(),
            peer: request.peer.ip().to_string(),
        }
    }

    #[cfg(test)]
    pub(crate) fn local(request_id: &str) -> Self {
        Self {
            subject: "local operator".to_owned(),
            roles: vec!["viewer".to_owned()],
            request_id: request_id.to_owned(),
            peer: "127.0.0.1".to_owned(),
        }
    }
}

/// The displayed name of a caller.
pub fn subject(principal: &Principal, mode: AuthMode) -> String {
    if mode == AuthMode::None {
        "local operator".to_owned()
    } else {
        principal.name.clone()
    }
}

/// The roles a caller has: viewer, operator, admin.
pub fn roles(principal: &Principal, mode: AuthMode) -> Vec<String> {
    let named = [
        ("viewer", scope::ADMIN_VIEW),
        ("operator", scope::ADMIN_OPERATE),
        ("admin", scope::ADMIN_ADMIN),
    ];
    let local = mode == AuthMode::None;
    let has = |role: &str, scope: &str| {
        if local {
            role == "viewer"
        } else {
            principal.has_scope(scope)
        }
    };
    let held = named.iter().filter(|(role, scope)| has(role, scope));
    held.map(|(role, _)| (*role).to_owned()).collect()
}
