//! The history of the nodes: a few figures of each, one point a minute for seven days. What is older is for Prometheus.
//!
//! **Invariant:** a figure takes two bytes per minute in memory, and the file has the same numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ron_kernel::Snapshot;
use serde::{Deserialize, Serialize};

use crate::derive::{Fold, short};

/// Minutes that memory and file keep.
pub const KEPT_MIN: u64 = 7 * 24 * 60;
const MINUTE_MS: u64 = 60_000;
/// Points of an answer; a longer time has larger steps.
const POINTS: u64 = 720;

/// The figures, in the order of the file: new ones come last, at most 24. A colon marks names that are no exporter's.
pub const SERIES: [(&str, Fold); 9] = [
    ("node:request_rate", Fold::Mean),
    ("node:error_ratio", Fold::Worst),
    ("node:latency_p50_seconds", Fold::Worst),
    ("node:latency_p95_seconds", Fold::Worst),
    ("node:latency_p99_seconds", Fold::Worst),
    ("node:cpu_cores", Fold::Mean),
    ("node:memory_bytes", Fold::Worst),
    ("node:open_descriptors", Fold::Worst),
    ("node:disk_free_bytes", Fold::Least),
];
const _: () = assert!(SERIES.len() <= 24);

/// The figures of a node, in the order of [`SERIES`].
pub type Figures = [Option<f64>; SERIES.len()];

/// One minute of all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "MinuteRow", into = "MinuteRow")]
pub struct Minute {
    /// Minutes since 1970.
    pub minute: u64,
    /// Sorted; minutes with the same nodes share them.
    ids: Arc<[String]>,
    /// The packed figures of each node.
    packed: Box<[[u16; SERIES.len()]]>,
}

/// A minute in the file; one of an earlier version has fewer figures.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MinuteRow {
    minute: u64,
    nodes: BTreeMap<String, Vec<u16>>,
}

impl From<MinuteRow> for Minute {
    fn from(row: MinuteRow) -> Self {
        let figures = row.nodes.values().map(|figures| {
            let mut all = [MISSING; SERIES.len()];
            all.iter_mut().zip(figures).for_each(|(to, of)| *to = *of);
            all
        });
        Self {
            minute: row.minute,
            packed: figures.collect(),
            ids: row.nodes.into_keys().collect(),
        }
    }
}

impl From<Minute> for MinuteRow {
    fn from(minute: Minute) -> Self {
        let nodes = minute.ids.iter().cloned();
        let figures = minute.packed.iter().map(|figures| figures.to_vec());
        Self {
            minute: minute.minute,
            nodes: nodes.zip(figures).collect(),
        }
    }
}

impl Minute {
    pub fn new(minute: u64, nodes: &BTreeMap<String, Figures>) -> Self {
        Self {
            minute,
            ids: nodes.keys().cloned().collect(),
            packed: nodes.values().map(|figures| figures.map(pack)).collect(),
        }
    }

    fn figure(&self, node: &str, series: usize) -> Option<f64> {
        let at = self.ids.binary_search_by(|id| id.as_str().cmp(node)).ok()?;
        unpack(self.packed[at][series])
    }
}

/// The published minutes, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    minutes: VecDeque<Arc<Minute>>,
}

pub type Histories = Snapshot<History>;

/// One figure of a node over time.
#[derive(Debug, PartialEq)]
pub struct Course {
    pub step_ms: u64,
    /// The start of each step, without holes.
    pub times_ms: Vec<u64>,
    pub points: Vec<Option<f64>>,
}

impl History {
    /// Adds the newest minute. Minutes after it are those of a clock that was ahead.
    pub fn push(&mut self, mut minute: Minute) -> Arc<Minute> {
        let (at, oldest) = (minute.minute, minute.minute.saturating_sub(KEPT_MIN));
        while self.minutes.back().is_some_and(|last| last.minute >= at) {
            self.minutes.pop_back();
        }
        let is_old = |first: &Arc<Minute>| first.minute < oldest;
        while self.minutes.front().is_some_and(is_old) {
            self.minutes.pop_front();
        }
        if let Some(last) = self.minutes.back().filter(|last| last.ids == minute.ids) {
            minute.ids = last.ids.clone();
        }
        let minute = Arc::new(minute);
        self.minutes.push_back(minute.clone());
        minute
    }

    /// Whether the history has the node.
    pub fn has(&self, node: &str) -> bool {
        let has = |minute: &Arc<Minute>| minute.ids.iter().any(|id| id == node);
        self.minutes.iter().rev().any(has)
    }

    /// One of [`SERIES`] of a node, from this time on.
    pub fn course(&self, node: &str, series: usize, from_ms: u64) -> Course {
        let fold = SERIES[series].1;
        let first = self
            .minutes
            .partition_point(|m| m.minute < from_ms / MINUTE_MS);
        let kept = || self.minutes.range(first..);
        let (Some(first), Some(last)) = (kept().next(), kept().next_back()) else {
            return Course {
                step_ms: MINUTE_MS,
                times_ms: Vec::new(),
                points: Vec::new(),
            };
        };
        let step = (last.minute - first.minute + 1).div_ceil(POINTS);
        let start = first.minute / step;
        let steps = (last.minute / step - start + 1) as usize;
        let mut cells = vec![(None, 0.0); steps];
        for minute in kept() {
            let Some(value) = minute.figure(node, series) else {
                continue;
            };
            let cell = &mut cells[(minute.minute / step - start) as usize];
            *cell = (
                Some(cell.0.map_or(value, |sum| fold.of(sum, value))),
                cell.1 + 1.0,
            );
        }
        let mean = |(value, n): (Option<f64>, f64)| match fold {
            Fold::Mean => value.map(|sum| sum / n),
            Fold::Worst | Fold::Least => value,
        };
        Course {
            step_ms: step * MINUTE_MS,
            times_ms: (0..steps as u64)
                .map(|cell| (start + cell) * step * MINUTE_MS)
                .collect(),
            points: cells
                .into_iter()
                .map(|cell| mean(cell).map(short))
                .collect(),
        }
    }
}

/// Codes of a figure in two bytes: none, zero, and by the logarithm what is from 2^-40 to 2^53, 0.05 % exact.
const MISSING: u16 = 0;
const ZERO: u16 = 1;
const LEAST: u16 = 2;
const PER_OCTAVE: f64 = 700.0;
const OCTAVES_BELOW_ONE: f64 = 40.0;

fn pack(value: Option<f64>) -> u16 {
    match value {
        Some(0.0) => ZERO,
        Some(value) if value > 0.0 && value.is_finite() => {
            let code = (value.log2() + OCTAVES_BELOW_ONE) * PER_OCTAVE + f64::from(LEAST);
            code.round().clamp(f64::from(LEAST), f64::from(u16::MAX)) as u16
        }
        _ => MISSING,
    }
}

fn unpack(code: u16) -> Option<f64> {
    match code {
        MISSING => None,
        ZERO => Some(0.0),
        code => {
            let octaves = f64::from(code - LEAST) / PER_OCTAVE - OCTAVES_BELOW_ONE;
            Some(octaves.exp2())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A minute in which the node has this request rate and free disk.
    fn minute(at: u64, node: &str, rate: f64, free: f64) -> Minute {
        let mut figures = [None; SERIES.len()];
        (figures[0], figures[8]) = (Some(rate), Some(free));
        Minute::new(at, &BTreeMap::from([(node.to_owned(), figures)]))
    }

    fn near(points: &[Option<f64>], wanted: &[Option<f64>]) {
        let close = |(a, b): (&Option<f64>, &Option<f64>)| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() <= b / 1_000.0,
            (a, b) => a == b,
        };
        let all = points.iter().zip(wanted).all(close);
        assert!(all && points.len() == wanted.len(), "{points:?} {wanted:?}");
    }

    #[test]
    fn a_course_has_holes_where_nothing_was_recorded() {
        let mut history = History::default();
        for (at, rate) in [(100, 5.0), (101, 0.0), (104, 7.0)] {
            history.push(minute(at, "a", rate, 1e12));
        }
        let course = history.course("a", 0, 0);
        assert_eq!(course.step_ms, 60_000);
        assert_eq!(course.times_ms[0], 6_000_000);
        near(
            &course.points,
            &[Some(5.0), Some(0.0), None, None, Some(7.0)],
        );
        assert_eq!(history.course("a", 1, 0).points, [None; 5], "not reported");
        assert_eq!(history.course("a", 0, 104 * 60_000).points.len(), 1);
        assert!(history.course("a", 0, u64::MAX).points.is_empty());
        assert!(history.has("a") && !history.has("b"));
    }

    #[test]
    fn a_long_time_has_larger_steps() {
        let mut history = History::default();
        let from = 1_000_000;
        for at in from..=from + KEPT_MIN + 50 {
            let (rate, free) = ((at % 2) as f64, (at % 10 + 1) as f64);
            history.push(minute(at, "a", rate, free));
        }
        assert_eq!(history.minutes.len() as u64, KEPT_MIN + 1);
        let course = history.course("a", 0, 0);
        assert_eq!(course.step_ms, 15 * 60_000);
        assert!(course.points.len() as u64 <= POINTS + 1);
        let inside = &course.points[1..course.points.len() - 1];
        let mean = |point: &Option<f64>| point.is_some_and(|mean| (0.4..0.6).contains(&mean));
        assert!(inside.iter().all(mean), "{inside:?}");
        let least = history.course("a", 8, 0).points;
        near(&least[1..2], &[Some(1.0)]);
        let ids = history.minutes.iter().map(|m| Arc::as_ptr(&m.ids));
        let shared: std::collections::BTreeSet<_> =
            ids.map(<*const [String]>::cast::<u8>).collect();
        assert_eq!(shared.len(), 1, "minutes share the names of nodes");
    }

    #[test]
    fn a_clock_that_was_ahead_leaves_nothing() {
        let mut history = History::default();
        for at in [10, 11, 500, 11, 12] {
            history.push(minute(at, "a", at as f64, 1.0));
        }
        let kept: Vec<u64> = history.minutes.iter().map(|m| m.minute).collect();
        assert_eq!(kept, [10, 11, 12]);
    }

    #[test]
    fn a_row_of_an_earlier_version_lacks_figures_and_one_of_a_later_has_more() {
        let row = r#"{"minute":7,"nodes":{"b":[1,0],"a":[]}}"#;
        let read: Minute = serde_json::from_str(row).unwrap();
        assert_eq!(
            (read.figure("b", 0), read.figure("b", 1)),
            (Some(0.0), None)
        );
        assert_eq!((read.figure("a", 0), read.figure("b", 8)), (None, None));
        let more = format!(r#"{{"minute":7,"nodes":{{"a":{:?}}}}}"#, [1; 30]);
        let read: Minute = serde_json::from_str(&more).unwrap();
        assert_eq!(read.figure("a", 8), Some(0.0));
        let whole = minute(9, "a", 12.5, 3e11);
        let again: Minute = serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
        assert_eq!(again, whole);
    }

    #[test]
    fn what_is_no_figure_is_missing() {
        for none in [None, Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(unpack(pack(none)), None, "{none:?}");
        }
        assert_eq!(unpack(pack(Some(0.0))), Some(0.0));
    }

    proptest! {
        #[test]
        fn figures_are_kept_to_a_thousandth(value in 1e-12_f64..9e15) {
            let kept = unpack(pack(Some(value))).unwrap();
            prop_assert!((kept - value).abs() <= value / 1_000.0, "{value} {kept}");
        }
    }
}
