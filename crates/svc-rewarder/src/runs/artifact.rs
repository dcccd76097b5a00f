//! The artifact writer: makes a computed run durable, then lets it go on to settlement.

use std::path::PathBuf;
use std::time::Duration;

use ron_kernel::{Deadline, Receiver, Recv, Sender, Shutdown, ThreadCtx};

use super::retention::Retention;
use super::worker::{Fuse, Product, ResultItem, crashed, hand_on, report};
use super::{Intent, Job, News, Update, reason};
use crate::inputs::source::Source;
use crate::manifest::dir;
use crate::manifest::table::Table;
use crate::metrics::Metrics;

const IDLE: Duration = Duration::from_secs(5);
/// Time between two looks for what is past its retention.
const SWEEP: Duration = Duration::from_mins(1);

/// What the writer works with.
pub struct ArtifactWriter {
    /// Where run directories are.
    pub root: PathBuf,
    /// Computed runs.
    pub results: Receiver<ResultItem>,
    /// Runs to settle.
    pub intents: Sender<Intent>,
    /// Whether there is an emitter to take them.
    pub emits: bool,
    /// Reports.
    pub updates: Sender<Update>,
    /// Counters.
    pub metrics: Metrics,
    /// What is kept for how long.
    pub retention: Retention,
    /// Called with what went wrong with the disk, or with `None` when it works.
    pub disk: Box<dyn Fn(Option<String>) + Send + Sync>,
}

impl ArtifactWriter {
    /// The thread's body. At shutdown it finishes what is queued.
    pub fn run(&self, ctx: &ThreadCtx) {
        let mut sweep = Deadline::within(Duration::ZERO);
        loop {
            if sweep.expired() {
                self.retention.sweep(&ctx.shutdown);
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

    /// One result.
    pub fn tick(&self, item: ResultItem, shutdown: &Shutdown) {
        let ResultItem { job, outcome } = item;
        let fuse = Fuse::new(&self.updates, &job.run, News::Failed(crashed()));
        let news = match outcome {
            Err(reason) => News::Failed(reason),
            Ok(product) => self.write(&job, &product),
        };
        fuse.disarm();
        // Every live run goes to the emitter, which has it signed and settles it if asked to.
        let go_on = matches!(news, News::Sealed { .. }) && !job.run.dry_run && self.emits;
        report(&self.updates, &job, news, shutdown);
        if go_on {
            let intent = Intent {
                run: job.run.clone(),
                progress: job.progress.clone(),
            };
            // If there is no room at shutdown, the run is found sealed at the next start.
            hand_on(&self.intents, intent, shutdown, || {});
        }
    }

    fn write(&self, job: &Job, product: &Product) -> News {
        let run = &*job.run;
        let target = dir::path(&self.root, &run.tenant, &run.epoch, run.dry_run);
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
            return News::Failed(reason(
                "io",
                format!("artifacts cannot be written: {error}"),
            ));
        }
        (self.disk)(None);
        // The artifacts have their own link to a table that was spooled.
        if let Some(Source::File { path, .. }) = computed.table.as_ref().map(Table::source) {
            let _ = std::fs::remove_file(path); // what stays is swept at the next start
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
                "an invariant broke; nothing is paid"
            );
            return News::Quarantined {
                commitment,
                totals,
                reason: reason(stop.kind(), stop.to_string()),
            };
        }
        let intents = computed.manifest.payouts.map_or(0, |payouts| payouts.count);
        job.progress.sealed(intents);
        News::Sealed {
            commitment,
            totals,
            intents,
        }
    }
}
