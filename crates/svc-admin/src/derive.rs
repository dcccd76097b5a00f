//! From raw rings to the displayed figures: request rate, error share, quantiles, routes.
//!
//! Pure functions over [`Rings`]. A figure that a node does not report is `None`, never zero.

use std::collections::BTreeMap;

use ron_proto::admin::{Facet, NodeRates};

use crate::promtext;
use crate::rings::{Rings, Role, Series};

/// The figures of the newest slot: rates since the slot before it.
pub fn rates(rings: &Rings) -> NodeRates {
    let Some((newest, step)) = rings
        .newest()
        .and_then(|n| Some((n, rings.step_seconds(n)?)))
    else {
        return NodeRates::default();
    };
    let (mut reported, mut requests, mut errors) = (false, 0.0, 0.0);
    let mut times = Buckets::default();
    for series in rings.series() {
        match series.role {
            Role::Requests { status_class, ours } => {
                let Some(more) = rings.increase(series, newest) else {
                    continue;
                };
                reported = true;
                if !ours {
                    requests += more;
                    errors += if status_class == 5 { more } else { 0.0 };
                }
            }
            Role::RequestTime { le, waits: false } => {
                times.add(le, rings.increase(series, newest).unwrap_or(0.0));
            }
            _ => {}
        }
    }
    NodeRates {
        request_rate: reported.then_some(requests / step),
        error_ratio: (requests > 0.0).then(|| errors / requests),
        p50_seconds: times.quantile(0.50),
        p95_seconds: times.quantile(0.95),
        p99_seconds: times.quantile(0.99),
    }
}

/// Events of one role within the slots from `from_ms` on.
pub fn events_since(rings: &Rings, role: Role, from_ms: u64) -> u64 {
    let sum: f64 = rings
        .series()
        .iter()
        .filter(|s| s.role == role)
        .filter_map(|s| rings.increase_since(s, from_ms))
        .sum();
    sum.round() as u64
}

/// Requests within the slots from `from_ms` on, without those of monitoring, and how many failed
/// with a 5xx.
pub fn outcomes_since(rings: &Rings, from_ms: u64) -> (u64, u64) {
    let (mut all, mut failed) = (0.0, 0.0);
    for series in rings.series() {
        let Role::Requests {
            status_class,
            ours: false,
        } = series.role
        else {
            continue;
        };
        let more = rings.increase_since(series, from_ms).unwrap_or(0.0);
        all += more;
        failed += if status_class == 5 { more } else { 0.0 };
    }
    (all.round() as u64, failed.round() as u64)
}

/// What a process says of itself and of its disks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Vitals {
    pub cpu_cores: Option<f64>,
    pub memory_bytes: Option<f64>,
    pub open_descriptors: Option<f64>,
    /// Of the disk with the least.
    pub disk_free_bytes: Option<f64>,
}

/// The newest values of the slots from `from_ms` on; processor time as the mean over them.
pub fn vitals(rings: &Rings, from_ms: u64) -> Vitals {
    let mut vitals = Vitals::default();
    let steps = rings.held(from_ms).filter_map(|n| rings.step_seconds(n));
    let seconds: f64 = steps.sum();
    for series in rings.series() {
        let newest = || {
            let mut values = rings.held(from_ms).rev();
            values.find_map(|n| rings.value(series, n))
        };
        match series.role {
            Role::CpuSeconds => {
                let more = rings.increase_since(series, from_ms);
                vitals.cpu_cores = more.filter(|_| seconds > 0.0).map(|more| more / seconds);
            }
            Role::Memory => vitals.memory_bytes = newest(),
            Role::Descriptors => vitals.open_descriptors = newest(),
            Role::DiskFree => {
                let known = vitals.disk_free_bytes;
                vitals.disk_free_bytes = known.into_iter().chain(newest()).reduce(f64::min);
            }
            _ => {}
        }
    }
    vitals
}

/// The newest value of each series of `role`, added up by the label `by`.
pub fn latest_by(rings: &Rings, role: Role, by: &str) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    let Some(newest) = rings.newest() else {
        return out;
    };
    for series in rings.series().iter().filter(|s| s.role == role) {
        if let (Some(value), Some(label)) = (
            rings.value(series, newest),
            promtext::label(series.labels(), by),
        ) {
            *out.entry(label.into_owned()).or_insert(0.0) += value;
        }
    }
    out
}

/// The routes of a node over the slots from `from_ms` on, busiest first, then by name.
pub fn facets(rings: &Rings, from_ms: u64) -> Vec<Facet> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let seconds: f64 = rings
        .held(from_ms)
        .filter_map(|n| rings.step_seconds(n))
        .sum();
    for series in rings.series() {
        let Some(name) = facet_name(series) else {
            continue;
        };
        let more = rings.increase_since(series, from_ms).unwrap_or(0.0);
        let row = rows.entry(name).or_default();
        match series.role {
            Role::Requests { status_class, .. } => {
                row.requests += more;
                row.by_class[usize::from(status_class.min(9))] += more;
                row.total += rings
                    .newest()
                    .and_then(|n| rings.value(series, n))
                    .unwrap_or(0.0);
            }
            Role::RequestTime { le, .. } => row.times.add(le, more),
            _ => {}
        }
    }
    let mut out: Vec<Facet> = rows
        .into_iter()
        .map(|(name, row)| row.facet(name, seconds))
        .collect();
    out.sort_by(|a, b| {
        b.request_rate
            .unwrap_or(0.0)
            .total_cmp(&a.request_rate.unwrap_or(0.0))
            .then_with(|| a.facet.cmp(&b.facet))
    });
    out
}

fn facet_name(series: &Series) -> Option<String> {
    match series.role {
        Role::Requests { ours: false, .. } | Role::RequestTime { .. } => {}
        _ => return None,
    }
    let route = promtext::label(series.labels(), "route")
        .or_else(|| promtext::label(series.labels(), "handler"))?;
    Some(match promtext::label(series.labels(), "method") {
        Some(method) => format!("{method} {route}"),
        None => route.into_owned(),
    })
}

#[derive(Default)]
struct Row {
    requests: f64,
    by_class: [f64; 10],
    total: f64,
    times: Buckets,
}

impl Row {
    fn facet(self, facet: String, seconds: f64) -> Facet {
        let share =
            |class: usize| (self.requests > 0.0).then(|| self.by_class[class] / self.requests);
        Facet {
            facet,
            request_rate: (seconds > 0.0).then(|| self.requests / seconds),
            error_ratio: share(5),
            refused_ratio: share(4),
            p50_seconds: self.times.quantile(0.50),
            p95_seconds: self.times.quantile(0.95),
            p99_seconds: self.times.quantile(0.99),
            requests_total: self.total,
        }
    }
}

/// A cumulative histogram assembled from the buckets of several series with one layout.
#[derive(Clone, Debug, Default)]
pub struct Buckets {
    /// Upper bound and cumulative count, by bound.
    rows: Vec<(f64, f64)>,
}

impl Buckets {
    /// Adds `count` to the bucket up to `le`.
    pub fn add(&mut self, le: f64, count: f64) {
        match self
            .rows
            .binary_search_by(|(bound, _)| bound.total_cmp(&le))
        {
            Ok(at) => self.rows[at].1 += count,
            Err(at) => self.rows.insert(at, (le, count)),
        }
    }

    /// The value below which the share `q` of the observations lies, linear within a bucket; `None`
    /// without observations. Beyond the last finite bound the result is that bound: more is not
    /// known.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let total = self
            .rows
            .iter()
            .map(|(_, count)| *count)
            .fold(0.0, f64::max);
        if total <= 0.0 {
            return None;
        }
        let rank = q * total;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in &self.rows {
            // Scrapes are not atomic: a bucket may lag behind a smaller one.
            let count = count.max(below);
            if count >= rank && count > below {
                return Some(if bound.is_finite() {
                    low + (bound - low) * ((rank - below) / (count - below)).clamp(0.0, 1.0)
                } else {
                    low
                });
            }
            (low, below) = if bound.is_finite() {
                (*bound, count)
            } else {
                (low, count)
            };
        }
        Some(low)
    }
}

/// Reduces points to an even grid of `cells` cells that ends at `end_ms`, oldest first, by average
/// or by maximum.
pub fn on_grid(
    points: impl Iterator<Item = (u64, Option<f64>)>,
    end_ms: u64,
    step_ms: u64,
    cells: usize,
    fold: Fold,
) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0_f64, 0_u32); cells];
    for (time_ms, value) in points {
        let (Some(value), Some(age)) = (value, end_ms.checked_sub(time_ms)) else {
            continue;
        };
        let back = (age / step_ms.max(1)) as usize;
        if let Some(cell) = cells.checked_sub(back + 1).and_then(|at| sums.get_mut(at)) {
            cell.0 = if cell.1 == 0 {
                value
            } else {
                fold.of(cell.0, value)
            };
            cell.1 += 1;
        }
    }
    let finish = |(sum, n): (f64, u32)| {
        (n > 0).then(|| {
            if fold == Fold::Mean {
                sum / f64::from(n)
            } else {
                sum
            }
        })
    };
    sums.into_iter().map(finish).map(|v| v.map(short)).collect()
}

/// How several points of one grid cell become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The sum; the reader divides it.
    Mean,
    Worst,
    Least,
}

impl Fold {
    pub fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Mean => a + b,
            Self::Worst => a.max(b),
            Self::Least => a.min(b),
        }
    }
}

/// Rounds to five significant digits, so that responses stay short.
pub fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 4 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits.clamp(-15, 15));
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promtext::{Item, Reader};
    use proptest::prelude::*;

    fn scrape(rings: &mut Rings, time_ms: u64, body: &str) {
        rings.open(time_ms);
        for item in Reader::new(body.as_bytes()) {
            if let Item::Sample(sample) = item {
                rings.put(&sample);
            }
        }
    }

    fn body(ok: u32, bad: u32, health: u32, fast: u32, slow: u32) -> String {
        format!(
            "x_http_requests_total{{route=\"/v1/a\",method=\"GET\",status=\"200\"}} {ok}\n\
             x_http_requests_total{{route=\"/v1/a\",method=\"GET\",status=\"503\"}} {bad}\n\
             x_http_requests_total{{route=\"/metrics\",method=\"GET\",status=\"200\"}} {health}\n\
             x_http_request_duration_seconds_bucket{{route=\"/v1/a\",method=\"GET\",le=\"0.1\"}} {fast}\n\
             x_http_request_duration_seconds_bucket{{route=\"/v1/a\",method=\"GET\",le=\"0.2\"}} {}\n\
             x_http_request_duration_seconds_bucket{{route=\"/v1/a\",method=\"GET\",le=\"+Inf\"}} {}\n\
             x_queue_depth{{queue=\"work\"}} 7\n",
            fast + slow,
            fast + slow
        )
    }

    #[test]
    fn rates_leave_monitoring_out() {
        let mut rings = Rings::new(4, 100);
        scrape(&mut rings, 1000, &body(10, 0, 5, 10, 0));
        assert_eq!(rates(&rings), NodeRates::default(), "one poll has no rate");
        scrape(&mut rings, 6000, &body(28, 2, 99, 20, 10));
        let got = rates(&rings);
        assert_eq!(got.request_rate, Some(4.0));
        assert_eq!(got.error_ratio, Some(0.1));
        assert_eq!(got.p50_seconds, Some(0.1));
        assert!((got.p95_seconds.expect("observed") - 0.19).abs() < 1e-9);
        scrape(&mut rings, 11000, &body(28, 2, 120, 20, 10));
        assert_eq!(
            rates(&rings),
            NodeRates {
                request_rate: Some(0.0),
                ..NodeRates::default()
            },
            "quiet is zero, not missing"
        );
        assert_eq!(
            latest_by(&rings, Role::QueueDepth, "queue"),
            BTreeMap::from([("work".to_owned(), 7.0)])
        );
        rings.gap(16000);
        assert_eq!(rates(&rings), NodeRates::default(), "no answer has no rate");
    }

    #[test]
    fn a_node_without_request_metrics_reports_none() {
        let mut rings = Rings::new(4, 100);
        scrape(&mut rings, 1000, "up 1\n");
        scrape(&mut rings, 2000, "up 1\n");
        assert_eq!(rates(&rings), NodeRates::default());
    }

    #[test]
    fn facets_are_routes() {
        let mut rings = Rings::new(4, 100);
        scrape(&mut rings, 1000, &body(10, 0, 5, 10, 0));
        scrape(&mut rings, 6000, &body(28, 2, 99, 20, 10));
        let got = facets(&rings, 0);
        assert_eq!(got.len(), 1);
        assert_eq!(
            (
                got[0].facet.as_str(),
                got[0].request_rate,
                got[0].requests_total
            ),
            ("GET /v1/a", Some(4.0), 30.0)
        );
    }

    #[test]
    fn quantiles_at_the_edges() {
        let filled = |rows: &[(f64, f64)]| {
            let mut b = Buckets::default();
            rows.iter().for_each(|(le, n)| b.add(*le, *n));
            b
        };
        assert_eq!(filled(&[]).quantile(0.5), None);
        assert_eq!(
            filled(&[(0.1, 0.0), (f64::INFINITY, 0.0)]).quantile(0.5),
            None
        );
        assert_eq!(
            filled(&[(0.1, 0.0), (f64::INFINITY, 3.0)]).quantile(0.5),
            Some(0.1),
            "beyond the last bound"
        );
        assert_eq!(
            filled(&[(f64::INFINITY, 4.0), (1.0, 4.0)]).quantile(0.5),
            Some(0.5),
            "order does not matter"
        );
        assert_eq!(
            filled(&[(1.0, 4.0), (2.0, 3.0), (f64::INFINITY, 4.0)]).quantile(1.0),
            Some(1.0),
            "a lagging bucket"
        );
    }

    #[test]
    fn grid_cells_end_at_the_end() {
        let points = [
            (100, Some(1.0)),
            (950, Some(3.0)),
            (999, Some(5.0)),
            (1000, None),
            (2000, Some(9.0)),
        ];
        assert_eq!(
            on_grid(points.into_iter(), 1000, 100, 3, Fold::Mean),
            [None, None, Some(4.0)]
        );
        assert_eq!(
            on_grid(points.into_iter(), 1000, 100, 3, Fold::Worst),
            [None, None, Some(5.0)]
        );
        assert_eq!(
            on_grid(points.into_iter(), 1000, 500, 2, Fold::Mean),
            [Some(1.0), Some(4.0)]
        );
    }

    #[test]
    fn short_keeps_five_digits() {
        assert_eq!(
            [
                short(0.0),
                short(1.0 / 3.0),
                short(123_456.7),
                short(0.000_123_456_7)
            ],
            [0.0, 0.333_33, 123_460.0, 0.000_123_46]
        );
    }

    proptest! {
        #[test]
        fn quantiles_grow_with_q_and_stay_in_bounds(counts in proptest::collection::vec(0_u32..50, 1..8), a in 0.0..1.0_f64, b in 0.0..1.0_f64) {
            let mut buckets = Buckets::default();
            let mut sum = 0.0;
            for (at, n) in counts.iter().enumerate() {
                sum += f64::from(*n);
                buckets.add(at as f64 + 1.0, sum);
            }
            let (lo, hi) = (a.min(b), a.max(b));
            match (buckets.quantile(lo), buckets.quantile(hi)) {
                (Some(x), Some(y)) => prop_assert!(x <= y + 1e-9 && x >= 0.0 && y <= counts.len() as f64),
                (None, None) => prop_assert_eq!(sum, 0.0),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
