//! The HTTP face: one file per resource.

pub mod epochs;
pub mod errors;
pub mod policies;
pub mod snapshots;

use std::path::PathBuf;
use std::sync::Arc;

use ron_http::{ApiInfo, Request, Router};
use ron_kernel::{Sender, SharedClock};
use ron_proto::problem::Problem;
use ron_proto::values::ValueError;

use crate::intake::Task;
use crate::runs::Asked;
use crate::runs::library::Library;
use crate::runs::registry::Registry;

/// What the handlers look at. They read shared records and files; what changes a run goes through
/// the scheduler's queue.
#[derive(Clone)]
pub struct Api {
    /// The run table.
    pub registry: Registry,
    /// Snapshots and policies.
    pub library: Library,
    /// Where run directories are.
    pub artifacts: PathBuf,
    /// To the scheduler.
    pub work_req: Sender<Asked>,
    /// To the intake.
    pub imports: Sender<Task>,
    /// Where uploads wait; on the file system of the library.
    pub uploads: PathBuf,
    /// Whether snapshots that are not here can be fetched.
    pub fetches: bool,
    /// Time.
    pub clock: SharedClock,
    /// Largest body of a snapshot upload, in bytes.
    pub snapshot_bytes_max: u64,
}

impl Api {
    /// All routes.
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
            .chain(policies::routes(&api))
            .chain(snapshots::routes(&api));
        routes.fold(Router::new(info), Router::add)
    }
}

/// A path parameter as its type; 400 names the parameter.
fn param<T>(request: &Request, name: &str) -> Result<T, Problem>
where
    T: std::str::FromStr<Err = ValueError>,
{
    request
        .param(name)
        .parse()
        .map_err(|error: ValueError| Problem::bad_request(error.to_string()))
}
