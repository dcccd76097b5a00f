//! What the history gets of a minute: the figures of every node.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::audit::SharedAudit;
use crate::derive;
use crate::fleet::Fleet;
use crate::history::{Figures, Histories, Minute};
use crate::node::{Node, NodeView, Point};

const MINUTE_MS: u64 = 60_000;

/// Notes each minute when it has ended; on the builder's thread.
pub struct Recorder {
    history: Arc<Histories>,
    audit: SharedAudit,
    /// The minute that is under way.
    minute: Option<u64>,
}

impl Recorder {
    pub fn new(history: Arc<Histories>, audit: SharedAudit) -> Self {
        Self {
            history,
            audit,
            minute: None,
        }
    }

    pub fn tick(&mut self, fleet: &Fleet) {
        let now = fleet.clock.unix_ms() / MINUTE_MS;
        let last = self.minute.replace(now);
        // After a jump of the clock the minute that has ended is not known.
        let Some(ended) = last.filter(|last| last + 1 == now) else {
            return;
        };
        let roster = fleet.roster();
        let nodes = roster.nodes.iter().map(|node| {
            let id = node.spec.id.clone();
            (id, figures(node, ended * MINUTE_MS))
        });
        let nodes: BTreeMap<String, Figures> = nodes.collect();
        if nodes.is_empty() {
            return;
        }
        let mut history = (*self.history.load()).clone();
        let minute = history.push(Minute::new(ended, &nodes));
        self.history.store(history);
        self.audit.keep_minute(minute);
    }
}

/// The figures of the minute from `from_ms` on.
fn figures(node: &Node, from_ms: u64) -> Figures {
    let view = node.view();
    let vitals = node.with_rings(|rings| derive::vitals(rings, from_ms));
    let points = || of_minute(&view, from_ms);
    let worst = |pick: fn(&Point) -> Option<f64>| points().filter_map(pick).reduce(f64::max);
    let (mut polls, mut asked, mut failed) = (0.0, 0.0, 0.0);
    for point in points() {
        if let Some(rate) = point.rates.request_rate {
            polls += 1.0;
            asked += rate;
            failed += rate * point.rates.error_ratio.unwrap_or(0.0);
        }
    }
    [
        (polls > 0.0).then(|| asked / polls),
        (asked > 0.0).then(|| failed / asked),
        worst(|point| point.rates.p50_seconds),
        worst(|point| point.rates.p95_seconds),
        worst(|point| point.rates.p99_seconds),
        vitals.cpu_cores,
        vitals.memory_bytes,
        vitals.open_descriptors,
        vitals.disk_free_bytes,
    ]
}

fn of_minute(view: &NodeView, from_ms: u64) -> impl Iterator<Item = &Point> {
    let minute = from_ms..from_ms + MINUTE_MS;
    view.points
        .iter()
        .filter(move |point| minute.contains(&point.time_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::{Audit, Event};
    use crate::history::{History, SERIES};
    use crate::node::tests::{answer, node, sampling};
    use ron_http::{ClientConfig, HttpClient};
    use ron_kernel::{KernelMetrics, ManualClock, Registry};
    use std::time::Duration;

    fn page(requests: u32, failed: u32, cpu: f64) -> String {
        format!(
            "x_http_requests_total{{route=\"/v1/a\",status=\"200\"}} {requests}\n\
             x_http_requests_total{{route=\"/v1/a\",status=\"503\"}} {failed}\n\
             process_cpu_seconds_total {cpu}\nprocess_resident_memory_bytes 5e7\nprocess_open_fds 40\n\
             x_disk_free_bytes{{dir=\"data_dir\"}} 9e9\nx_disk_free_bytes{{dir=\"backup\"}} 4e9\n"
        )
    }

    #[test]
    fn a_minute_is_noted_when_it_has_ended() {
        let start = 60_000 * 100;
        let clock = ManualClock::at(start);
        let registry = Registry::new("t");
        let metrics = KernelMetrics::new(&registry);
        let client = Arc::new(HttpClient::new(ClientConfig::default()));
        let (fleet, _) = Fleet::new(sampling(), client, clock.clone(), metrics.clone());
        fleet.adopt(vec![Arc::new(node("a")), Arc::new(node("b"))]);
        let opened = Audit::open(None, clock.clone(), &registry, &metrics).expect("opens");
        let (audit, queued) = (Arc::new(opened.0), opened.1);
        let history = Arc::new(Histories::new(History::default()));
        let mut recorder = Recorder::new(history.clone(), audit);
        recorder.tick(&fleet);
        let roster = fleet.roster();
        for poll in 0..12 {
            let at = start + u64::from(poll) * 5_000;
            let body = page(poll * 50, poll * 5, f64::from(poll) * 2.5);
            roster.nodes[0].absorb(answer(&body), at, 5_000);
        }
        clock.advance(Duration::from_millis(59_999));
        recorder.tick(&fleet);
        assert!(queued.try_recv().is_none(), "the minute has not ended");
        clock.advance(Duration::from_millis(1));
        recorder.tick(&fleet);
        let Some(Event::Minute(kept)) = queued.try_recv() else {
            panic!("the minute is kept");
        };
        assert_eq!(kept.minute, 100);
        let history = history.load();
        let value = |node: &str, series| history.course(node, series, 0).points[0];
        let of_a = [
            (0, 11.0), // requests per second
            (1, 5.0 / 55.0),
            (5, 0.5),
            (6, 5e7),
            (7, 40.0),
            (8, 4e9), // of the fuller disk
        ];
        for (series, wanted) in of_a {
            let got = value("a", series).expect("it is reported");
            assert!((got - wanted).abs() < wanted / 1_000.0, "{series}: {got}");
        }
        assert_eq!(value("a", 2), None, "no latency is reported");
        for series in 0..SERIES.len() {
            assert_eq!(value("b", series), None, "it has never answered");
        }
        // A clock that jumps leaves no minute behind.
        clock.advance(Duration::from_secs(600));
        recorder.tick(&fleet);
        assert!(queued.try_recv().is_none());
    }
}
