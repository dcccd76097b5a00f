//! The HTTP API: one file per resource.

pub mod epochs;
pub mod explained;
pub mod files;
pub mod payees;
pub mod policies;
pub mod snapshots;

use std::sync::Arc;

use ron_auth::{RonAuthorizer, caveats};
use ron_files::Dir;
use ron_http::{ApiInfo, Request, Router};
use ron_kernel::{DiskWatches, Sender, SharedClock};
use ron_proto::problem::Problem;
use ron_proto::values::{Account, ValueError};
use ron_service::events::Events;

use self::explained::Explained;
use crate::intake::Task;
use crate::library::Library;
use crate::runs::RunRequest;
use crate::runs::registry::Registry;

/// State the handlers read: shared records and files. Whatever changes a run goes through the
/// scheduler's queue.
#[derive(Clone)]
pub struct Api {
    pub registry: Registry,
    pub library: Library,
    /// Root of the run directories.
    pub artifacts: Dir,
    pub work_req: Sender<RunRequest>,
    pub imports: Sender<Task>,
    /// Directory of incomplete uploads, on the file system of the library so that a link can move
    /// them.
    pub uploads: Dir,
    /// The watches over the writes of handlers and of bodies that are uploaded.
    pub disk_of_handlers: DiskWatches,
    /// Whether the service can fetch snapshots that the library does not have.
    pub fetches: bool,
    /// Plans of epochs whose payouts were explained.
    pub explained: Arc<Explained>,
    /// Counts refusals by caveats.
    pub auth: Arc<RonAuthorizer>,
    pub events: Events,
    pub clock: SharedClock,
    /// Largest body of a snapshot upload, in bytes.
    pub snapshot_bytes_max: u64,
}

impl Api {
    pub fn router(self) -> Router {
        let info = ApiInfo {
            title: "svc-rewarder",
            version: env!("CARGO_PKG_VERSION"),
            description: "Deterministic payouts per epoch: sealed usage and a signed policy become a \
                          manifest, proofs, and settlement through the ledger, exactly once.",
        };
        let api = Arc::new(self);
        let routes = epochs::routes(&api)
            .into_iter()
            .chain(files::routes(&api))
            .chain(payees::routes(&api))
            .chain(policies::routes(&api))
            .chain(snapshots::routes(&api));
        routes.fold(Router::new(info), Router::add)
    }
}

/// What a request reads or changes, as the caveat `account` sees it.
#[derive(Clone, Copy)]
pub enum Concern<'a> {
    /// One account's part of an epoch.
    Account(&'a Account),
    /// Everything else: no token that is limited to an account reaches it.
    All,
}

impl Api {
    /// Enforces the caveat `account`. Every handler calls it first.
    fn check_caveats(&self, request: &Request, concern: Concern<'_>) -> Result<(), Problem> {
        let account = match concern {
            Concern::Account(account) => Some(account),
            Concern::All => None,
        };
        let caveats = &request.principal.caveats;
        caveats::check_operation(caveats, account, None, None).map_err(|reject| {
            self.auth.refused_request(reject.reason(), request);
            Problem::from(reject)
        })
    }
}

/// Parses a path parameter; the problem is a 400 that names the parameter.
fn param<T>(request: &Request, name: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = ValueError>,
{
    request
        .param(name)
        .parse()
        .map_err(|error: ValueError| Problem::bad_request(error.to_string()))
}
