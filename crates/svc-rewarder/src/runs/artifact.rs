//! The artifact writer: makes a computed run durable. The scheduler records it as sealed, and then passes it on to settlement.

use std::time::Duration;

use ron_files::Dir;
use ron_kernel::{Deadline, Receiver, Recv, Sender, Shutdown, ThreadCtx};

use super::retention::Retention;
use super::worker::{Fuse, Product, ResultItem, crashed, hand_on, report};
use super::{Job, RunEvent, Update, guards, reason};
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::Source;
use crate::manifest::table::Table;
use crate::manifest::{assets, dir, ledger_payouts};
use crate::metrics::Metrics;

const IDLE: Duration = Duration::from_secs(5);
/// Time between two sweeps for artifacts and snapshots past their retention.
const SWEEP: Duration = Duration::from_mins(1);

/// State of the rew-artifact thread.
pub struct ArtifactWriter {
    /// Root of the run directories.
    pub root: Dir,
    pub results: Receiver<ResultItem>,
    pub updates: Sender<Update>,
    pub metrics: Metrics,
    /// What is removed after which time.
    pub retention: Retention,
    /// Called with an error of the disk, or with `None` after a successful write.
    pub disk: Box<dyn Fn(Option<String>) + Send + Sync>,
}

impl ArtifactWriter {
    /// The thread's body. At shutdown it finishes what is queued.
    pub fn run(&self, ctx: &ThreadCtx) {
        let mut sweep = Deadline::within(Duration::ZERO);
        loop {
            if sweep.expired() {
                self.sweep(&ctx.shutdown);
                sweep = Deadline::within(SWEEP);
            }
            match self.results.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(item) => self.tick(item, &ctx.shutdown),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => break,
            }
        }
        while let Some(item) = self.results.try_recv() {
            self.tick(item, &ctx.shutdown);
        }
    }

    /// Removes what is past its retention, and has the scheduler forget the dry runs that are.
    pub fn sweep(&self, shutdown: &Shutdown) {
        for run in self.retention.sweep(shutdown) {
            let update = Update {
                id: run.id(),
                run_key: run.run_key,
                event: RunEvent::Expired,
            };
            hand_on(&self.updates, update, shutdown, || {});
        }
    }

    /// Writes one result and reports it.
    pub fn tick(&self, item: ResultItem, shutdown: &Shutdown) {
        let ResultItem { job, outcome } = item;
        let fuse = Fuse::new(&self.updates, &job.run, RunEvent::Failed(crashed()));
        let event = match outcome {
            Err(reason) => RunEvent::Failed(reason),
            Ok(product) => self.write(&job, &product),
        };
        fuse.disarm();
        report(&self.updates, &job, event, shutdown);
    }

    fn write(&self, job: &Job, product: &Product) -> RunEvent {
        let run = &*job.run;
        let target = run.dir(&self.root);
        let Product {
            computed,
            snapshot,
            policy,
        } = product;
        if let Err(error) = dir::write(&target, computed, snapshot, policy) {
            self.metrics
                .io_errors
                .with_label_values(&["artifacts"])
                .inc();
            (self.disk)(Some(format!("artifacts cannot be written: {error}")));
            return RunEvent::Failed(reason(
                "io",
                format!("artifacts cannot be written: {error}"),
            ));
        }
        (self.disk)(None);
        // A spooled table has been linked into the artifact directory; the spool's own name can go.
        let spooled = computed.each().flat_map(|it| {
            let (table, accounts) = (it.table.as_ref(), it.accounts.as_ref());
            [table.map(Table::source), accounts.map(Sealed::source)]
        });
        for source in spooled.flatten() {
            if let Source::File { path, .. } = source {
                let _ = self.root.disk().remove(path); // a remaining file is swept at the next start
            }
        }
        let (commitment, totals) = (computed.manifest.commitment, computed.manifest.totals);
        if let Some(stop) = &computed.quarantine {
            self.metrics
                .invariant_failures
                .with_label_values(&[stop.kind()])
                .inc();
            tracing::error!(
                event = "run_quarantined",
                kind = stop.kind(),
                "an invariant broke; the run is quarantined and pays nothing"
            );
            return RunEvent::Quarantined {
                commitment,
                totals,
                reason: reason(stop.kind(), stop.to_string()),
            };
        }
        let intents = computed.each().map(|it| ledger_payouts(&it.manifest));
        let intents = intents.sum();
        let release = &policy.policy.release;
        let breaches = guards::breaches(
            &self.root,
            &self.retention.registry,
            run,
            (&target, computed),
            &policy.policy,
        );
        let breaches = match breaches {
            Ok(breaches) => breaches,
            Err(error) => {
                let detail = format!("the payouts cannot be read again: {error}");
                return RunEvent::Failed(reason("io", detail));
            }
        };
        job.progress.sealed(intents);
        RunEvent::Sealed {
            commitment,
            totals,
            assets: assets::totals_of_each(computed),
            accounts: computed.manifest.inputs.accounts,
            intents,
            approvals: release.approvals,
            breaches,
        }
    }
}
