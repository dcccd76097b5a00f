//! Retention: what is removed, and when. The artifact writer sweeps periodically.
//!
//! Artifacts are removed some time after their run has reached its final state; a run that may
//! still be signed or paid keeps them, whatever its age. A dry run is forgotten then, and artifacts
//! of dry runs that nobody knows any more are removed at once. A snapshot is removed some time after its
//! last use: stored, stored again, or named by a run that changed. A run directory has its own link
//! to its snapshot, so an epoch stays verifiable for as long as its artifacts exist. The
//! records of live runs are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{ClosedCounter, SharedClock, Shutdown};
use ron_proto::rewarder::RunState;
use ron_proto::values::{ContentId, Tenant};

use super::Run;
use super::registry::Registry;
use crate::library::{Library, file_names, snapshot_name};
use crate::manifest::dir;

/// What is kept for how long. Zero keeps for ever.
pub struct Retention {
    /// Root of the run directories.
    pub root: Dir,
    pub library: Library,
    /// The run table, to find snapshots in use.
    pub registry: Registry,
    /// For artifacts of settled epochs and of dry runs.
    pub artifacts: Duration,
    pub snapshots: Duration,
    pub clock: SharedClock,
    /// Removed items, by kind.
    pub swept: ClosedCounter,
}

impl Retention {
    /// Removes what is past its time, and returns the dry runs that are; returns early at shutdown.
    pub fn sweep(&self, shutdown: &Shutdown) -> Vec<Arc<Run>> {
        let runs: Vec<_> = self.registry.all();
        let mut expired = Vec::new();
        if !self.artifacts.is_zero() {
            let finished = runs.iter().filter(|entry| is_final(&entry.run));
            for run in finished.map(|entry| &entry.run) {
                if shutdown.is_set() {
                    return expired;
                }
                if !self.past(run.updated_at.0, self.artifacts) {
                    continue;
                }
                if run.dry_run {
                    expired.push(Arc::clone(run));
                } else {
                    self.remove(&run.dir(&self.root));
                }
            }
        }
        // This thread writes the artifacts, and a run is in the table before it is computed: what is
        // not in the table belongs to no run.
        if let Err(error) = self.sweep_dry_runs(shutdown) {
            tracing::warn!(event = "sweep_failed", reason = %error, "dry runs were not swept");
        }
        if self.snapshots.is_zero() {
            return expired;
        }
        // The table is read before the directory. That order is safe: a snapshot that a later run
        // uses was renewed before the request for that run was queued.
        let wanted = wanted(runs.iter().map(|entry| &*entry.run));
        if let Err(error) = self.sweep_snapshots(&wanted, shutdown) {
            tracing::warn!(event = "sweep_failed", reason = %error, "snapshots were not swept");
        }
        expired
    }

    /// Removes the artifacts of dry runs that are not in the table.
    fn sweep_dry_runs(&self, shutdown: &Shutdown) -> io::Result<()> {
        let runs = self.registry.all();
        let dry_runs = runs.iter().filter(|entry| entry.run.dry_run);
        let known: BTreeSet<_> = dry_runs
            .map(|entry| entry.run.dir(&self.root).path().to_owned())
            .collect();
        for tenant in file_names(&self.root)? {
            let tenant = self.root.join(&tenant);
            for name in file_names(&tenant)? {
                if shutdown.is_set() {
                    return Ok(());
                }
                let dir = tenant.join(&name);
                if name.starts_with(dir::DRY) && !known.contains(dir.path()) {
                    self.remove(&dir);
                }
            }
        }
        Ok(())
    }

    fn remove(&self, dir: &Dir) {
        let name = dir.path().file_name().unwrap_or_default();
        self.report("artifacts", &name.to_string_lossy(), dir::remove(dir));
    }

    fn sweep_snapshots(&self, wanted: &Wanted, shutdown: &Shutdown) -> io::Result<()> {
        for stored in self.library.stored_snapshots()? {
            if shutdown.is_set() {
                return Ok(());
            }
            let last = match wanted.get(&(stored.tenant.clone(), stored.cid)) {
                Some(Last::Now) => continue,
                Some(Last::At(ms)) => stored.renewed_ms.max(*ms),
                None => stored.renewed_ms,
            };
            if self.past(last, self.snapshots) {
                let name = snapshot_name(&stored.cid);
                self.report("snapshot", &name, self.library.remove(&stored));
            }
        }
        Ok(())
    }

    fn past(&self, since_ms: u64, keep: Duration) -> bool {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        self.clock.unix_ms().saturating_sub(since_ms) >= keep_ms
    }

    fn report(&self, kind: &'static str, name: &str, removed: io::Result<()>) {
        match removed {
            Ok(()) => {
                self.swept.with_label_values(&[kind]).inc();
                tracing::info!(event = "swept", kind, name, "removed: past its retention");
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(event = "sweep_failed", kind, name, reason = %error, "could not be removed");
            }
        }
    }
}

/// True if the artifacts of this run are final: nothing will sign or pay them any more.
fn is_final(run: &Run) -> bool {
    run.is_final() || (run.dry_run && run.at_rest() && run.state != RunState::Failed)
}

/// When a run last used a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    /// Milliseconds since 1970.
    At(u64),
    /// A run that is not finished uses it.
    Now,
}

type Wanted = BTreeMap<(Tenant, ContentId), Last>;

fn wanted<'a>(runs: impl Iterator<Item = &'a Run>) -> Wanted {
    let mut wanted = Wanted::new();
    for run in runs {
        let last = if run.at_rest() {
            Last::At(run.updated_at.0)
        } else {
            Last::Now
        };
        let slot = wanted.entry((run.tenant.clone(), run.snapshot));
        let known = slot.or_insert(last);
        *known = last.max(*known);
    }
    wanted
}
