//! Retention: what is removed, and when. The artifact writer sweeps periodically.
//!
//! Artifacts are removed some time after their run has reached its final state; a run that may
//! still be signed or paid keeps them, whatever its age. A snapshot is removed some time after its
//! last use: stored, stored again, or named by a run that changed. A run directory has its own link
//! to its snapshot, so an epoch stays verifiable for as long as its artifacts exist. The run
//! records are kept.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{ClosedCounter, SharedClock, Shutdown};
use ron_proto::rewarder::RunState;
use ron_proto::values::{ContentId, Tenant};

use super::Run;
use super::registry::Registry;
use crate::library::{Library, snapshot_name};
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
    /// Removes what is past its time; returns early at shutdown.
    pub fn sweep(&self, shutdown: &Shutdown) {
        let runs: Vec<_> = self.registry.all();
        if !self.artifacts.is_zero() {
            let finished = runs.iter().filter(|entry| is_final(&entry.run));
            for run in finished.map(|entry| &entry.run) {
                if shutdown.is_set() {
                    return;
                }
                if self.past(run.updated_at.0, self.artifacts) {
                    let target = dir::of(&self.root, &run.tenant, &run.epoch, run.dry_run);
                    let name = target.path().file_name().unwrap_or_default();
                    let name = name.to_string_lossy();
                    self.report("artifacts", &name, dir::remove(&target));
                }
            }
        }
        if self.snapshots.is_zero() {
            return;
        }
        // The table is read before the directory. That order is safe: a snapshot that a later run
        // uses was renewed before the request for that run was queued.
        let wanted = wanted(runs.iter().map(|entry| &*entry.run));
        if let Err(error) = self.sweep_snapshots(&wanted, shutdown) {
            tracing::warn!(event = "sweep_failed", reason = %error, "snapshots were not swept");
        }
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
