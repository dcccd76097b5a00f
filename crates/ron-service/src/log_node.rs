//! A node's part in a log that several nodes share, for operators: metrics, and the member `log` of `/api/v1/status`.

use std::sync::Arc;

use ron_kernel::{Counter, Gauge, Registry, Snapshot};
use ron_proto::Timestamp;
use ron_proto::status::{EngineDoc, EngineStandbyDoc, LogNodeDoc};
use ron_tlog::store::{EngineStandby, EngineState};

/// What the thread knows that writes or follows the log.
#[derive(Clone, Debug, Default)]
struct Part {
    epoch: u64,
    holder: Option<String>,
    behind: u64,
    active_since: Option<Timestamp>,
}

/// Written by the log's writer and by the thread that keeps the engine's tables.
#[derive(Debug)]
pub struct LogNode {
    node: String,
    part: Snapshot<Part>,
    engine: Snapshot<Option<EngineDoc>>,
    active: Gauge,
    epoch: Gauge,
    behind: Gauge,
    takeovers: Counter,
    standbys: Gauge,
    standby_bytes: Gauge,
    transactions: Gauge,
    partitions: Gauge,
}

fn gauged(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl LogNode {
    /// The part of the node at the URL `node`, which has not seen the log yet.
    pub fn new(registry: &Registry, node: &str) -> Arc<Self> {
        let made = Self {
            node: node.to_owned(),
            part: Snapshot::new(Part::default()),
            engine: Snapshot::new(None),
            active: registry.gauge("log_active", "1 while this node writes the log."),
            epoch: registry.gauge("log_epoch", "Epoch of the log; each takeover raises it by one."),
            behind: registry.gauge(
                "log_behind_entries",
                "Number of entries of the log that this node does not have yet.",
            ),
            takeovers: registry.counter(
                "log_takeovers_total",
                "Number of times that this node became the one that writes.",
            ),
            standbys: registry.gauge(
                "log_engine_standbys",
                "Number of database servers that writes of the log wait for; -1 before it is known.",
            ),
            standby_bytes: registry.gauge(
                "log_engine_standby_behind_bytes",
                "Bytes that the slowest of these servers has not made durable.",
            ),
            transactions: registry.gauge(
                "log_engine_oldest_transaction",
                "Number of transactions since the oldest that the database still has to tell apart.",
            ),
            partitions: registry.gauge(
                "log_engine_partitions_ahead",
                "Number of partitions of the log that are ready beyond the one in use.",
            ),
        };
        made.standbys.set(-1);
        Arc::new(made)
    }

    /// This node writes under `epoch`, since `now` at the latest.
    pub fn writes(&self, epoch: u64, now: Timestamp) {
        let known = |part: &Part| part.active_since.is_some() && part.epoch == epoch;
        if self.part.with(known) {
            return;
        }
        self.takeovers.inc();
        self.show(Part {
            epoch,
            holder: Some(self.node.clone()),
            behind: 0,
            active_since: Some(now),
        });
    }

    /// This node writes a log that all nodes write, since `now` at the latest.
    pub fn shares(&self, now: Timestamp) {
        if self.part.with(|part| part.active_since.is_none()) {
            self.show(Part {
                active_since: Some(now),
                ..Part::default()
            });
        }
    }

    /// This node follows the one at `holder`.
    pub fn follows(&self, epoch: u64, holder: Option<String>, behind: u64) {
        self.show(Part {
            epoch,
            holder,
            behind,
            active_since: None,
        });
    }

    /// This node does not write any more, and knows nothing else yet.
    pub fn stopped(&self) {
        let wrote = |part: &Part| part.active_since.map(|_| part.epoch);
        if let Some(epoch) = self.part.with(wrote) {
            self.follows(epoch, None, 0);
        }
    }

    fn show(&self, part: Part) {
        self.active.set(part.active_since.is_some().into());
        self.epoch.set(gauged(part.epoch));
        self.behind.set(gauged(part.behind));
        self.part.store(part);
    }

    /// What the engine has said of itself at `now`.
    pub fn engine(&self, state: &EngineState, now: Timestamp) {
        let waited_for = || state.standbys.iter().filter(|one| one.synchronous);
        self.standbys.set(gauged(waited_for().count() as u64));
        let slowest = waited_for().filter_map(|one| one.behind_bytes).max();
        self.standby_bytes.set(gauged(slowest.unwrap_or(0)));
        self.transactions.set(gauged(state.oldest_transaction));
        self.partitions.set(state.partitions_ahead.into());
        let standby = |one: &EngineStandby| EngineStandbyDoc {
            name: one.name.clone(),
            synchronous: one.synchronous,
            behind_bytes: one.behind_bytes,
        };
        self.engine.store(Some(EngineDoc {
            seen_ms: now.0,
            server: state.server.clone(),
            standbys: state.standbys.iter().map(standby).collect(),
            oldest_transaction: state.oldest_transaction,
            partitions_ahead: state.partitions_ahead,
        }));
    }

    /// The state as of now; the node has `entries` of the log.
    pub fn doc(&self, entries: u64) -> LogNodeDoc {
        let part = self.part.load();
        LogNodeDoc {
            node: self.node.clone(),
            active: part.active_since.is_some(),
            epoch: part.epoch,
            holder: part.holder.clone(),
            entries,
            behind: part.behind,
            active_since_ms: part.active_since.map(|since| since.0),
            engine: self.engine.with(Clone::clone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(registry: &Registry, name: &str) -> String {
        let text = registry.render();
        let line = text.lines().find(|line| line.starts_with(name));
        line.unwrap_or_default().to_owned()
    }

    #[test]
    fn a_log_that_all_nodes_write_has_no_holder_and_no_takeover() {
        let registry = Registry::new("t");
        let node = LogNode::new(&registry, "http://a");
        node.shares(Timestamp(50));
        node.shares(Timestamp(60));
        let doc = node.doc(3);
        assert_eq!((doc.active, doc.epoch, doc.holder), (true, 0, None));
        assert_eq!(doc.active_since_ms, Some(50));
        assert_eq!(
            line(&registry, "t_log_takeovers_total"),
            "t_log_takeovers_total 0"
        );
        node.stopped();
        assert!(!node.doc(3).active);
        assert_eq!(line(&registry, "t_log_active"), "t_log_active 0");
    }

    #[test]
    fn a_takeover_is_counted_once_and_ends_with_the_right_to_write() {
        let registry = Registry::new("t");
        let node = LogNode::new(&registry, "http://a");
        node.follows(3, Some("http://b".to_owned()), 7);
        let doc = node.doc(10);
        assert_eq!((doc.active, doc.epoch, doc.behind), (false, 3, 7));
        assert_eq!(doc.holder.as_deref(), Some("http://b"));
        assert_eq!(
            line(&registry, "t_log_behind_entries"),
            "t_log_behind_entries 7"
        );
        node.writes(4, Timestamp(50));
        node.writes(4, Timestamp(60));
        let doc = node.doc(17);
        assert_eq!((doc.active, doc.epoch, doc.behind), (true, 4, 0));
        assert_eq!(
            (doc.active_since_ms, doc.holder),
            (Some(50), Some("http://a".to_owned()))
        );
        assert_eq!(
            line(&registry, "t_log_takeovers_total"),
            "t_log_takeovers_total 1"
        );
        node.stopped();
        let doc = node.doc(17);
        assert_eq!(
            (doc.active, doc.holder, doc.active_since_ms),
            (false, None, None)
        );
        assert_eq!(line(&registry, "t_log_active"), "t_log_active 0");
    }

    #[test]
    fn the_servers_that_writes_wait_for_are_counted() {
        let registry = Registry::new("t");
        let node = LogNode::new(&registry, "http://a");
        let standbys = "t_log_engine_standbys";
        assert_eq!(line(&registry, standbys), format!("{standbys} -1"));
        assert_eq!(node.doc(0).engine, None);
        let standby = |name: &str, synchronous, behind_bytes| EngineStandby {
            name: name.to_owned(),
            synchronous,
            behind_bytes,
        };
        let state = EngineState {
            server: "10.0.0.1:5432".to_owned(),
            standbys: vec![
                standby("s1", true, Some(8)),
                standby("s2", false, Some(900)),
                standby("s3", true, None),
            ],
            oldest_transaction: 12,
            partitions_ahead: 1,
        };
        node.engine(&state, Timestamp(5));
        assert_eq!(line(&registry, standbys), format!("{standbys} 2"));
        let bytes = "t_log_engine_standby_behind_bytes";
        assert_eq!(line(&registry, bytes), format!("{bytes} 8"));
        assert_eq!(node.doc(0).engine.unwrap().standbys.len(), 3);
    }
}
