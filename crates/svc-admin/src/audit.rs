//! The audit: which known callers tried to act on the fleet, and with what result. One thread writes
//! it, durably, to the console's SQLite file; readers take the last lines from a snapshot.
//!
//! **Invariant:** no call to a node is made before the line that announces it is on the disk. A
//! denial never waits: when the queue is full, the line goes to the log only and is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_files::{Dir, DiskRoom};
use ron_kernel::reply::{ReplySender, reply};
use ron_kernel::{
    ClosedCounter, Deadline, DiskWatch, KernelMetrics, Receiver, Recv, Registry, Sender,
    SharedClock, Snapshot, ThreadCtx, queue,
};
use ron_proto::admin::{AuditEntry, AuditList};
use ron_proto::{Problem, Timestamp};
use ron_service::{Store, StoreError};

use crate::caller::Caller;
use crate::history::Minute;
use crate::kept::{self, Contents, RECENT, SeenHead};
use crate::line::Line;
use crate::topology::AUDIT_QUEUE;

const IDLE: Duration = Duration::from_secs(60);
/// A record for the writer's thread.
#[derive(Debug)]
pub enum Event {
    /// A line, and a slot to answer once the line is durable.
    Line(Box<AuditEntry>, Option<ReplySender<bool>>),
    /// The last accepted head of a log, so that a restart does not forget it.
    Head(SeenHead),
    /// The next lines of the timeline.
    Timeline(Vec<Line>),
    /// The next minute of the history.
    Minute(Arc<Minute>),
}

/// The handle for adding and reading lines.
pub struct Audit {
    tx: Sender<Event>,
    recent: Snapshot<Vec<AuditEntry>>,
    dropped: AtomicU64,
    /// `None`: memory.
    home: Option<Dir>,
    clock: SharedClock,
    lines: ClosedCounter,
}

impl std::fmt::Debug for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Audit")
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

impl Audit {
    /// Opens the file in this directory (`None`: memory) and reads what it has.
    pub fn open(
        home: Option<Dir>,
        clock: SharedClock,
        registry: &Registry,
        metrics: &KernelMetrics,
    ) -> Result<(Self, Receiver<Event>, Contents), StoreError> {
        let store = kept::open(home.as_ref())?;
        let (recent, contents) = kept::load(&store)?;
        let (tx, rx) = queue(&AUDIT_QUEUE, AUDIT_QUEUE.capacity, metrics);
        let lines = registry.counter_closed(
            "actions_total",
            "Lines of the audit by action and result.",
            &[("action", &ACTIONS), ("result", &RESULTS)],
        );
        let audit = Self {
            tx,
            recent: Snapshot::new(recent),
            dropped: AtomicU64::new(0),
            home,
            clock,
            lines,
        };
        Ok((audit, rx, contents))
    }

    /// The last lines, newest first.
    pub fn list(&self) -> AuditList {
        let entries = self.recent.load();
        AuditList {
            as_of: entries.first().map_or(Timestamp(0), |entry| entry.at),
            durable: self.home.is_some(),
            dropped: self.dropped.load(Ordering::Relaxed),
            entries: entries.to_vec(),
        }
    }

    /// Queues a line without waiting for it to be durable.
    pub fn note(&self, line: AuditEntry) {
        let line = self.stamp(line);
        if self.tx.try_send(Event::Line(Box::new(line), None)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues a line and waits until it is durable; 503 if that does not happen before the
    /// deadline.
    pub fn commit(&self, line: AuditEntry, deadline: Deadline) -> Result<(), Problem> {
        let line = self.stamp(line);
        #[cfg(mutant = "unannounced")] // the node is called at once
        if ron_kernel::mutant("unannounced") {
            let _ = self.tx.try_send(Event::Line(Box::new(line), None));
            return Ok(());
        }
        let (done, kept) = reply();
        let refused = || Problem::unavailable("the audit cannot be written, so nothing is done", 5);
        self.tx
            .try_send(Event::Line(Box::new(line), Some(done)))
            .map_err(|_| refused())?;
        match kept.wait(deadline) {
            Ok(true) => Ok(()),
            _ => Err(refused()),
        }
    }

    /// Queues an accepted head.
    pub fn keep_head(&self, head: SeenHead) {
        #[cfg(mutant = "forgotten")] // a restart begins with whatever head it is shown
        if ron_kernel::mutant("forgotten") {
            return;
        }
        // A head that is lost here is replaced by the next one.
        let _ = self.tx.try_send(Event::Head(head));
    }

    /// Queues lines of the timeline. Those that are lost here are missing after a restart.
    pub fn keep_lines(&self, lines: Vec<Line>) {
        let _ = self.tx.try_send(Event::Timeline(lines));
    }

    /// Queues a minute of the history. One that is lost here is missing after a restart.
    pub fn keep_minute(&self, minute: Arc<Minute>) {
        let _ = self.tx.try_send(Event::Minute(minute));
    }

    fn stamp(&self, mut line: AuditEntry) -> AuditEntry {
        line.at = Timestamp(self.clock.unix_ms());
        self.lines
            .with_label_values(&[&line.action, &line.result])
            .inc();
        tracing::info!(
            event = "audit",
            action = %line.action,
            node = line.node.as_deref().unwrap_or("-"),
            subject = %line.subject,
            result = %line.result,
            reason = line.reason.as_deref().unwrap_or("-"),
            request_id = %line.request_id,
            peer = %line.peer,
        );
        line
    }

    /// The body of the writer's thread. At shutdown it writes what is still queued.
    pub fn run(
        &self,
        rx: &Receiver<Event>,
        disk: &DiskWatch,
        degraded: &dyn Fn(Option<String>),
        ctx: &ThreadCtx,
    ) {
        let mut store = match kept::open(self.home.as_ref()) {
            Ok(store) => store,
            Err(error) => {
                degraded(Some(error.to_string()));
                // The panic ends the thread: the supervisor starts it again, and the process ends
                // if it keeps failing.
                panic!("the audit cannot be opened: {error}");
            }
        };
        store.watch_disk(disk.clone(), DiskRoom::unlimited());
        degraded(None);
        loop {
            let event = match rx.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(event) => Some(event),
                Recv::Timeout => continue,
                Recv::Shutdown | Recv::Closed => rx.try_recv(),
            };
            let Some(event) = event else { return };
            self.take(&store, event, degraded);
        }
    }

    fn take(&self, store: &Store, event: Event, degraded: &dyn Fn(Option<String>)) {
        let (outcome, done) = match event {
            Event::Line(line, done) => (self.write(store, *line), done),
            Event::Head(head) => (kept::write_head(store, &head), None),
            Event::Timeline(lines) => (kept::write_timeline(store, &lines), None),
            Event::Minute(minute) => (kept::write_minute(store, &minute, kept::BYTES_MAX), None),
        };
        if let Err(error) = &outcome {
            degraded(Some(format!("the audit cannot be written: {error}")));
        }
        if let Some(done) = done {
            let _ = done.send(outcome.is_ok());
        }
    }

    fn write(&self, store: &Store, mut line: AuditEntry) -> Result<(), StoreError> {
        let last = self.recent.load();
        #[cfg(mutant = "shown")] // readers see a line that is not on the disk
        if ron_kernel::mutant("shown") {
            let mut recent = last.to_vec();
            line.seq = last.first().map_or(0, |newest| newest.seq) + 1;
            recent.insert(0, line.clone());
            self.recent.store(recent);
        }
        line.seq = kept::write_line(store, &line)?;
        // Readers see the line only now that it is durable.
        let mut recent = Vec::with_capacity(RECENT.min(last.len() + 1));
        recent.push(line);
        recent.extend(last.iter().take(RECENT - 1).cloned());
        self.recent.store(recent);
        Ok(())
    }
}

/// Values of the audit metric's `action` label.
const ACTIONS: [&str; 3] = ["reload", "shutdown", "session"];
/// Values of the audit metric's `result` label.
const RESULTS: [&str; 5] = ["started", "done", "denied", "failed", "unknown"];

/// A line without a result; the writer adds number and time.
pub fn line(action: &str, node: Option<&str>, caller: &Caller) -> AuditEntry {
    AuditEntry {
        seq: 0,
        at: Timestamp(0),
        action: action.to_owned(),
        node: node.map(str::to_owned),
        subject: caller.subject.clone(),
        roles: caller.roles.clone(),
        result: "done".to_owned(),
        reason: None,
        detail: None,
        request_id: caller.request_id.clone(),
        peer: caller.peer.clone(),
    }
}

/// The same line with a result and a reason.
pub fn with_result(mut line: AuditEntry, result: &str, reason: &str, detail: &str) -> AuditEntry {
    result.clone_into(&mut line.result);
    line.reason = Some(reason.to_owned()).filter(|text| !text.is_empty());
    line.detail = Some(detail.to_owned()).filter(|text| !text.is_empty());
    line
}

pub type SharedAudit = Arc<Audit>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{AUDIT, TOPOLOGY};
    use ron_kernel::{Supervisor, SystemClock};

    fn audit(home: Option<Dir>) -> (Audit, Receiver<Event>, Contents) {
        let registry = Registry::new("t");
        let metrics = KernelMetrics::new(&registry);
        Audit::open(home, SystemClock::shared(), &registry, &metrics).expect("opens")
    }

    #[test]
    fn lines_and_heads_outlive_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Dir::os(dir.path());
        let (audit_1, rx, _) = audit(Some(home.clone()));
        let store = kept::open(Some(&home)).expect("opens");
        let caller = Caller::local("r-1");
        for result in ["started", "done"] {
            audit_1.note(with_result(
                line("reload", Some("a"), &caller),
                result,
                "",
                "",
            ));
        }
        let head = SeenHead {
            id: "a".into(),
            size: 7,
            root: "r".into(),
        };
        audit_1.keep_head(head.clone());
        while let Some(event) = rx.try_recv() {
            audit_1.take(&store, event, &|why| assert_eq!(why, None));
        }
        drop(store);
        let (again, _, Contents { heads, .. }) = audit(Some(home));
        let lines: Vec<_> = again
            .list()
            .entries
            .into_iter()
            .map(|e| (e.seq, e.result))
            .collect();
        assert_eq!(lines, [(2, "done".to_owned()), (1, "started".to_owned())]);
        assert!(again.list().durable);
        assert_eq!(heads, [head]);
    }

    #[test]
    fn no_flipped_byte_changes_a_line_or_a_head() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Dir::os(dir.path());
        let (audit, rx, _) = audit(Some(home.clone()));
        let store = kept::open(Some(&home)).expect("opens");
        for n in 0..20 {
            audit.note(line("reload", Some("a"), &Caller::local("r-1")));
            audit.keep_head(SeenHead {
                id: format!("log-{n}"),
                size: n,
                root: "r".into(),
            });
        }
        while let Some(event) = rx.try_recv() {
            audit.take(&store, event, &|why| assert_eq!(why, None));
        }
        drop(store);
        let (refused, _) = ron_service::store_trial::flip_bytes(&home.file(kept::FILE), 31, |_| {
            kept::open(Some(&home))
        });
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn a_disk_that_hangs_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Dir::os(dir.path());
        let registry = Registry::new("svc_admin");
        let metrics = KernelMetrics::new(&registry);
        let clock = SystemClock::shared();
        let sup = Supervisor::new(&TOPOLOGY, metrics.clone(), clock.clone());
        let opened = Audit::open(Some(home.clone()), clock, &registry, &metrics).expect("opens");
        let (audit, rx) = (Arc::new(opened.0), opened.1);
        let (writer, disk) = (audit.clone(), sup.watch_disk("audit"));
        // Another writer of the file stands for a disk that does not answer; SQLite waits two seconds for it.
        let other = rusqlite::Connection::open(home.file(kept::FILE)).expect("opens");
        let row = TOPOLOGY.threads.iter().find(|row| row.name == AUDIT.name);
        sup.spawn(row.expect("its row"), move |ctx| {
            writer.run(&rx, &disk, &|_| (), ctx);
        });
        let (_keep, never) = ron_kernel::Shutdown::pair();
        let by = Deadline::within(Duration::from_secs(30));
        let mut hung = None;
        other.execute_batch("BEGIN IMMEDIATE").expect("its turn");
        while hung.is_none() && !by.expired() {
            audit.note(line("reload", Some("a"), &Caller::local("r-1")));
            never.wait(Deadline::within(Duration::from_millis(10)));
            hung = sup.hung_disk();
        }
        assert_eq!(hung.map(|hung| hung.op), Some("audit"));
        other.execute_batch("ROLLBACK").expect("done");
        sup.drain(Duration::from_secs(30));
        assert_eq!(sup.hung_disk(), None);
    }

    #[test]
    fn a_line_of_a_later_version_keeps_its_number() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = Dir::os(dir.path());
        let store = kept::open(Some(&home)).expect("opens");
        store
            .write(|tx| {
                tx.execute("INSERT INTO audit VALUES (7, 'of a later version')", [])?;
                Ok::<_, StoreError>(())
            })
            .expect("writes");
        let (audit, rx, _) = audit(Some(home));
        audit.note(line("reload", Some("a"), &Caller::local("r-1")));
        let event = rx.try_recv().expect("queued");
        audit.take(&store, event, &|why| assert_eq!(why, None));
        let numbers: Vec<_> = audit.list().entries.iter().map(|e| e.seq).collect();
        assert_eq!(numbers, [8]);
    }

    #[test]
    fn a_flood_of_denials_is_counted_and_an_action_then_refused() {
        let (audit, _rx, _) = audit(None);
        let caller = Caller::local("r-1");
        for _ in 0..AUDIT_QUEUE.capacity + 5 {
            audit.note(with_result(
                line("reload", Some("a"), &caller),
                "denied",
                "role",
                "",
            ));
        }
        assert_eq!(audit.list().dropped, 5);
        let refused = audit.commit(line("reload", Some("a"), &caller), Deadline::within(IDLE));
        assert_eq!(refused.expect_err("no room").status, 503);
    }
}
