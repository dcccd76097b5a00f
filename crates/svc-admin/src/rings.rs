//! The samples of one node: one ring per series, all in step, oldest dropped first.
//!
//! Every poll opens one slot in all rings. A series that a scrape does not contain has a gap there,
//! and a poll without an answer leaves a gap in all rings: no value is ever carried forward.
//! Increases are computed between neighbouring slots only; a counter that shrinks has restarted
//! from zero.
//!
//! **Invariant:** memory is bounded by `slots * max_series` values; further series are refused and
//! counted.

use std::collections::HashMap;
use std::sync::Arc;

use crate::promtext::{self, Sample};

/// The meaning of a series for the console. Decided once, when the series is first seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Responses counted by route and status; `ours` marks health checks and scrapes, which are not
    /// traffic.
    Requests {
        status_class: u8,
        ours: bool,
    },
    /// One cumulative bucket of the request time histogram. `waits` marks a long poll: its time is
    /// the caller's wait, not the service's speed.
    RequestTime {
        le: f64,
        waits: bool,
    },
    QueueDepth,
    QueueDropped,
    QueueRejected,
    Restarts,
    LateCheckpoints,
    CpuSeconds,
    Memory,
    Descriptors,
    DiskFree,
    Other,
}

/// Routes of monitoring requests, which the request figures leave out. Wallets ask for the head of the ledger's log many times a
/// second, to see whether it takes writes.
const MONITORING_ROUTES: &[&str] = &[
    "/healthz",
    "/readyz",
    "/metrics",
    "/version",
    "/v1/ledger/head",
];
/// Beginning of the other routes of the health port.
const HEALTH_PORT: &str = "/api/v1/";

/// The last segment of ordered feeds, where callers wait for new events.
const LONG_POLL: &str = "/events";

/// One series and its ring.
#[derive(Clone, Debug)]
pub struct Series {
    key: Arc<str>,
    name_len: usize,
    pub role: Role,
    /// Number of slots opened when a value was last stored.
    seen: u64,
    values: Box<[f64]>,
}

impl Series {
    pub fn name(&self) -> &str {
        &self.key[..self.name_len]
    }

    /// The label block without its braces, still escaped.
    pub fn labels(&self) -> &str {
        let rest = self.key[self.name_len..].trim_start();
        rest.strip_prefix('{')
            .and_then(|r| r.strip_suffix('}'))
            .unwrap_or("")
    }
}

/// All rings of one node.
#[derive(Clone, Debug)]
pub struct Rings {
    slots: usize,
    max_series: usize,
    /// Slots opened so far; the newest is `opened - 1`.
    opened: u64,
    times_ms: Box<[u64]>,
    answered: Box<[bool]>,
    series: Vec<Series>,
    index: HashMap<Arc<str>, usize>,
    /// Expected position of the scrape's next series: exporters keep their order.
    cursor: usize,
    refused: u64,
}

impl Rings {
    /// Rings of `slots` samples (at least 2) for at most `max_series` series.
    pub fn new(slots: usize, max_series: usize) -> Self {
        let slots = slots.max(2);
        Self {
            slots,
            max_series,
            opened: 0,
            times_ms: vec![0; slots].into_boxed_slice(),
            answered: vec![false; slots].into_boxed_slice(),
            series: Vec::new(),
            index: HashMap::new(),
            cursor: 0,
            refused: 0,
        }
    }

    /// Opens the slot of an answered poll at `time_ms`; its values follow by [`Rings::put`].
    pub fn open(&mut self, time_ms: u64) {
        self.advance(time_ms, true);
    }

    /// Records a poll at `time_ms` that brought no answer.
    pub fn gap(&mut self, time_ms: u64) {
        self.advance(time_ms, false);
    }

    fn advance(&mut self, time_ms: u64, answered: bool) {
        if self.opened > 0 && self.opened.is_multiple_of(self.slots as u64) {
            self.forget_ended();
        }
        let slot = self.slot(self.opened);
        self.opened += 1;
        self.times_ms[slot] = time_ms;
        self.answered[slot] = answered;
        self.cursor = 0;
        for series in &mut self.series {
            series.values[slot] = f64::NAN;
        }
    }

    /// Drops the series without a value in any slot.
    fn forget_ended(&mut self) {
        let (opened, slots) = (self.opened, self.slots as u64);
        let before = self.series.len();
        self.series.retain(|s| opened - s.seen < slots);
        if self.series.len() < before {
            self.index = self
                .series
                .iter()
                .enumerate()
                .map(|(at, s)| (s.key.clone(), at))
                .collect();
        }
    }

    fn slot(&self, number: u64) -> usize {
        (number % self.slots as u64) as usize
    }

    /// Stores a value in the open slot. A series beyond the limit is refused and counted.
    pub fn put(&mut self, sample: &Sample<'_>) {
        let expected = self
            .series
            .get(self.cursor)
            .is_some_and(|s| *s.key == *sample.key);
        let at = if expected {
            self.cursor
        } else if let Some(at) = self.index.get(sample.key) {
            *at
        } else if self.series.len() < self.max_series {
            self.add(sample)
        } else {
            self.refused += 1;
            return;
        };
        self.cursor = at + 1;
        let slot = self.slot(self.opened.saturating_sub(1));
        let series = &mut self.series[at];
        series.seen = self.opened;
        series.values[slot] = sample.value;
    }

    fn add(&mut self, sample: &Sample<'_>) -> usize {
        let key: Arc<str> = Arc::from(sample.key);
        let at = self.series.len();
        self.series.push(Series {
            key: key.clone(),
            name_len: sample.name.len(),
            role: role_of(sample.name, sample.labels),
            seen: self.opened,
            values: vec![f64::NAN; self.slots].into_boxed_slice(),
        });
        self.index.insert(key, at);
        at
    }

    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Samples refused because of the series limit, so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// All series, in the order they were first seen.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The numbers of the slots still held whose time is at least `from_ms`, oldest first.
    pub fn held(&self, from_ms: u64) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let oldest = self.opened.saturating_sub(self.slots as u64);
        (oldest..self.opened).filter(move |n| self.times_ms[self.slot(*n)] >= from_ms)
    }

    /// The time of a held slot, in unix milliseconds.
    pub fn time_ms(&self, number: u64) -> u64 {
        self.times_ms[self.slot(number)]
    }

    /// The number of the newest slot.
    pub fn newest(&self) -> Option<u64> {
        self.opened.checked_sub(1)
    }

    /// The value of `series` in a held slot.
    pub fn value(&self, series: &Series, number: u64) -> Option<f64> {
        Some(series.values[self.slot(number)]).filter(|v| !v.is_nan())
    }

    /// Seconds between a held slot and the one before, if both polls were answered.
    pub fn step_seconds(&self, number: u64) -> Option<f64> {
        let before = number
            .checked_sub(1)
            .filter(|n| *n >= self.opened.saturating_sub(self.slots as u64))?;
        let (a, b) = (self.slot(before), self.slot(number));
        let ms = self.times_ms[b].saturating_sub(self.times_ms[a]);
        (self.answered[a] && self.answered[b] && ms > 0).then(|| ms as f64 / 1000.0)
    }

    /// The growth of a counter between a held slot and the one before; `None` when one is missing.
    ///
    /// A series that appears while the node was already being watched counts from zero: exporters
    /// create a label combination with its first event.
    pub fn increase(&self, series: &Series, number: u64) -> Option<f64> {
        self.step_seconds(number)?;
        let now = self.value(series, number)?;
        let before = self.value(series, number - 1).unwrap_or(0.0);
        // A smaller value means that the process restarted and has counted up to `now` since.
        Some(if now >= before { now - before } else { now }).filter(|v| v.is_finite() && *v >= 0.0)
    }

    /// The growth of a counter over the held slots from `from_ms` on; `None` without two answered
    /// neighbours.
    pub fn increase_since(&self, series: &Series, from_ms: u64) -> Option<f64> {
        self.held(from_ms)
            .filter_map(|n| self.increase(series, n))
            .fold(None, |sum, more| Some(sum.unwrap_or(0.0) + more))
    }
}

fn role_of(name: &str, labels: &str) -> Role {
    let is = |suffix: &str| {
        name.strip_suffix(suffix)
            .is_some_and(|head| head.is_empty() || head.ends_with('_'))
    };
    let text = |label: &str| promtext::label(labels, label);
    let ours = || {
        let route = text("route");
        route.is_some_and(|r| MONITORING_ROUTES.contains(&&*r) || r.starts_with(HEALTH_PORT))
    };
    if is("http_requests_total") {
        let status = text("status").or_else(|| text("code"));
        let status_class = status
            .and_then(|s| s.bytes().next())
            .map_or(0, |b| b.wrapping_sub(b'0'));
        return Role::Requests {
            status_class,
            ours: ours(),
        };
    }
    if is("http_request_duration_seconds_bucket") {
        return match text("le").and_then(|le| le.parse().ok()) {
            Some(le) if !ours() => Role::RequestTime {
                le,
                waits: text("route").is_some_and(|r| r.ends_with(LONG_POLL)),
            },
            _ => Role::Other,
        };
    }
    let plain = [
        ("queue_depth", Role::QueueDepth),
        ("queue_dropped_total", Role::QueueDropped),
        ("busy_rejections_total", Role::QueueRejected),
        ("service_restarts_total", Role::Restarts),
        ("checkpoint_late_total", Role::LateCheckpoints),
        ("process_cpu_seconds_total", Role::CpuSeconds),
        ("process_resident_memory_bytes", Role::Memory),
        ("process_open_fds", Role::Descriptors),
        ("disk_free_bytes", Role::DiskFree),
    ];
    plain
        .iter()
        .find(|(suffix, _)| is(suffix))
        .map_or(Role::Other, |(_, role)| *role)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promtext::{Item, Reader};
    use proptest::prelude::*;

    pub fn scrape(rings: &mut Rings, time_ms: u64, body: &str) {
        rings.open(time_ms);
        for item in Reader::new(body.as_bytes()) {
            if let Item::Sample(sample) = item {
                rings.put(&sample);
            }
        }
    }

    fn increases(rings: &Rings, key: &str) -> Vec<Option<f64>> {
        let series = rings
            .series()
            .iter()
            .find(|s| &*s.key == key)
            .expect("the series is held");
        rings.held(0).map(|n| rings.increase(series, n)).collect()
    }

    #[test]
    fn increases_know_resets_gaps_and_births() {
        let mut rings = Rings::new(8, 10);
        scrape(&mut rings, 1000, "a 10\n");
        scrape(&mut rings, 2000, "a 15\nb 4\n");
        scrape(&mut rings, 3000, "a 2\nb 4\n");
        rings.gap(4000);
        scrape(&mut rings, 5000, "a 9\nb 5\n");
        scrape(&mut rings, 6000, "a 10\n");
        assert_eq!(
            increases(&rings, "a"),
            [None, Some(5.0), Some(2.0), None, None, Some(1.0)]
        );
        assert_eq!(
            increases(&rings, "b"),
            [None, Some(4.0), Some(0.0), None, None, None]
        );
    }

    #[test]
    fn oldest_is_dropped_and_ended_series_are_forgotten() {
        let mut rings = Rings::new(3, 10);
        for n in 0..4_u32 {
            scrape(
                &mut rings,
                u64::from(n) * 1000 + 1,
                if n == 0 { "old 1\nnew 1\n" } else { "new 1\n" },
            );
        }
        assert_eq!(
            rings.held(0).map(|n| rings.time_ms(n)).collect::<Vec<_>>(),
            [1001, 2001, 3001]
        );
        assert_eq!(rings.held(2001).count(), 2);
        for n in 4..8_u32 {
            scrape(&mut rings, u64::from(n) * 1000 + 1, "new 1\n");
        }
        assert_eq!(
            rings.series().iter().map(Series::name).collect::<Vec<_>>(),
            ["new"]
        );
        assert_eq!(
            increases(&rings, "new").last(),
            Some(&Some(0.0)),
            "the index follows the series"
        );
    }

    #[test]
    fn series_beyond_the_limit_are_refused_and_counted() {
        let mut rings = Rings::new(3, 2);
        scrape(&mut rings, 1, "a 1\nb 1\nc 1\nd 1\na 2\n");
        assert_eq!((rings.len(), rings.refused()), (2, 2));
    }

    #[test]
    fn roles_follow_names_and_labels() {
        let role = |line: &str| match Reader::new(line.as_bytes()).next() {
            Some(Item::Sample(s)) => role_of(s.name, s.labels),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            role("ron_kms_http_requests_total{route=\"/v1/x\",status=\"503\"} 1"),
            Role::Requests {
                status_class: 5,
                ours: false
            }
        );
        assert_eq!(
            role("http_requests_total{code=\"200\"} 1"),
            Role::Requests {
                status_class: 2,
                ours: false
            }
        );
        assert_eq!(
            role("x_http_requests_total{route=\"/metrics\",status=\"200\"} 1"),
            Role::Requests {
                status_class: 2,
                ours: true
            }
        );
        for (route, ours) in [
            ("/api/v1/events", true),
            ("/v1/ledger/head", true),
            ("/v1/ledger/heads", false),
            ("/api/overview", false),
        ] {
            let line = format!("x_http_requests_total{{route=\"{route}\",status=\"200\"}} 1");
            let wanted = Role::Requests {
                status_class: 2,
                ours,
            };
            assert_eq!(role(&line), wanted, "{route}");
        }
        assert_eq!(role("nothttp_requests_total 1"), Role::Other);
        assert_eq!(
            role("x_http_request_duration_seconds_bucket{route=\"/v1/x\",le=\"+Inf\"} 1"),
            Role::RequestTime {
                le: f64::INFINITY,
                waits: false
            }
        );
        assert_eq!(
            role("x_http_request_duration_seconds_bucket{route=\"/v1/x/events\",le=\"1\"} 1"),
            Role::RequestTime {
                le: 1.0,
                waits: true
            }
        );
        assert_eq!(role("x_queue_depth{queue=\"q\"} 1"), Role::QueueDepth);
    }

    proptest! {
        /// However often a counter restarts, the sum of its increases is what it counted after the
        /// first poll.
        #[test]
        fn growth_is_never_negative_nor_lost(lives in proptest::collection::vec(proptest::collection::vec(0_u32..100, 1..5), 1..5)) {
            let mut rings = Rings::new(64, 4);
            let (mut time, mut want, mut last) = (0, 0.0, None::<u32>);
            for life in &lives {
                let mut value = 0_u32;
                for step in life {
                    value += step;
                    time += 1000;
                    scrape(&mut rings, time, &format!("c {value}\n"));
                    if let Some(before) = last {
                        want += f64::from(if value >= before { value - before } else { value });
                    }
                    last = Some(value);
                }
            }
            let got = rings.increase_since(&rings.series()[0], 0);
            prop_assert_eq!(got.unwrap_or(0.0), want);
        }
    }
}
