//! `/audit/entries`: the leaves about the caller's own keys. The whole log needs `kms:audit`.

use std::sync::Arc;

use ron_custody::index::KeyIndex;
use ron_custody::rights::{SYSTEM, is_limited};
use ron_http::{Method, Principal, PrincipalKind, Request, Response, Route};
use ron_proto::kms::{AuditEntries, AuditEntry};
use ron_proto::problem::Problem;
use ron_proto::scope;
use ron_proto::values::Kid;
use ron_tlog::ReadError;

use super::{Action, route};
use crate::audit::leaf::{Leaf, Op};
use crate::errors::problem;
use crate::work::Kms;

const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 200;
/// Leaves read for one page, so that a caller with few leaves in a long log does not occupy a worker.
const READ_MAX: u64 = 4_096;

pub fn routes(kms: &Arc<Kms>) -> [Route; 1] {
    [
        route(kms, (Method::GET, "/v1/kms/audit/entries"), scope::KMS_READ, entries)
            .summary("Leaves of the audit log about the caller's own keys and calls, in order")
            .query_as::<u64>("after", false, "skip this many leaves of the log: `next` of the page before")
            .query("key", false, "only leaves about this key")
            .query("op", false, "only leaves of this operation, as `sign`")
            .query_as::<u64>(
                "limit",
                false,
                "1 to 200 leaves, 50 by default; a page ends earlier when 4,096 leaves of the log were read for it",
            )
            .returns::<AuditEntries>(200)
            .errors(&[400, 401, 403, 429, 500, 503, 504]),
    ]
}

/// Filters of a page.
struct Wanted<'a> {
    caller: &'a Principal,
    index: Arc<KeyIndex>,
    key: Option<Kid>,
    op: Option<Op>,
}

impl Wanted<'_> {
    fn has(&self, leaf: &Leaf) -> bool {
        let key: Option<Kid> = leaf.key.as_deref().and_then(|key| key.parse().ok());
        self.op.is_none_or(|op| op == leaf.op)
            && (self.key.is_none() || self.key == key)
            && match &key {
                Some(key) => self.index.may_use(self.caller, key).is_ok(),
                None => self.is_own(leaf),
            }
    }

    /// Whether a leaf that names no key is about the caller's tenant. A credential that is limited to
    /// some keys does not read it.
    fn is_own(&self, leaf: &Leaf) -> bool {
        let system = leaf.tenant == SYSTEM && self.caller.kind == PrincipalKind::Passport;
        leaf.tenant == self.caller.tenant.as_str() && !is_limited(self.caller) && !system
    }
}

fn entries(kms: &Kms, request: &Request) -> Result<Action, Problem> {
    request.query_only(&["after", "key", "op", "limit"])?;
    let after = request.query_as::<u64>("after")?.unwrap_or(0);
    let limit = request.query_as::<usize>("limit")?.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::bad_request(format!(
            "`limit` must be 1..={PAGE_MAX}"
        )));
    }
    let wanted = Wanted {
        caller: &request.principal,
        index: kms.index.load(),
        key: request.query_as("key")?,
        op: request.query_as("op")?,
    };
    if let Some(key) = &wanted.key {
        wanted.index.may_use(wanted.caller, key).map_err(problem)?;
    }
    let page = page(kms, &wanted, after, limit)?;
    Ok(Action::Respond(Response::json(200, &page)))
}

/// Why the reading of a page ends.
enum End {
    Full,
    Unreadable(ReadError),
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        Self::Unreadable(error)
    }
}

fn page(kms: &Kms, wanted: &Wanted<'_>, after: u64, limit: usize) -> Result<AuditEntries, Problem> {
    let Some(log) = &kms.log else {
        return Err(Problem::unavailable("the audit log cannot be read", 60));
    };
    let size = log.size_durable();
    let from = after.min(size);
    let mut page = AuditEntries {
        log: kms.origin.clone(),
        entries: Vec::new(),
        next: from,
        size,
    };
    let read = log.entries(from..size.min(from + READ_MAX), |index, bytes| {
        if page.entries.len() == limit {
            return Err(End::Full);
        }
        page.next = index + 1;
        let leaf =
            Leaf::parse(bytes).map_err(|why| End::Unreadable(ReadError::Damaged { index, why }))?;
        if wanted.has(&leaf) {
            let leaf = String::from_utf8_lossy(bytes).into_owned();
            page.entries.push(AuditEntry { index, leaf });
        }
        Ok(())
    });
    match read {
        Ok(()) | Err(End::Full) => Ok(page),
        Err(End::Unreadable(error)) => {
            tracing::error!(event = "log_read_failed", error = %error);
            Err(Problem::internal(
                "the log could not be read; see the service's log",
            ))
        }
    }
}
