//! The metrics of a node: any series within the window, and a few for seven days.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_http::{Request, Response};
use ron_proto::Problem;
use ron_proto::admin::{MetricName, MetricNames, QueryAnswer, QueryKind, QuerySeries};

use super::Console;
use super::views::{find, json, sampled};
use crate::derive;
use crate::history::SERIES;
use crate::node::Node;
use crate::promtext::{Item, Labels, Reader};
use crate::rings::{Rings, Series};

/// Maximum series in the response of one query.
const QUERY_SERIES: usize = 50;

pub fn names(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let (node, _) = find(console, request)?;
    let id = &node.spec.id;
    let has_history = console.history.load().has(id);
    let kept = SERIES.iter().map(|(name, _)| MetricName {
        name: (*name).to_owned(),
        series: u64::from(has_history),
        kept: true,
    });
    let counts = node.with_rings(|rings| {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for series in rings.series() {
            *counts.entry(series.name().to_owned()).or_insert(0) += 1;
        }
        counts
    });
    let sampled_now = counts.into_iter().map(|(name, series)| MetricName {
        name,
        series,
        kept: false,
    });
    Ok(json(&MetricNames {
        as_of: sampled(console, &node),
        id: id.clone(),
        metrics: kept.chain(sampled_now).collect(),
    }))
}

pub fn query(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["name", "labels", "window", "kind"])?;
    let (node, _) = find(console, request)?;
    let name = request
        .query_one("name")?
        .ok_or_else(|| Problem::bad_request("the query parameter name is required"))?;
    let wanted = matchers(request.query_one("labels")?.unwrap_or(""))?;
    let window = window_s(request.query_one("window")?)?;
    let now = console.fleet.clock.unix_ms();
    let from = now.saturating_sub(window.saturating_mul(1000));
    let kind = request.query_one("kind")?;
    if let Some(series) = SERIES.iter().position(|(known, _)| *known == name) {
        if !wanted.is_empty() || kind.is_some_and(|kind| kind != "value") {
            return Err(Problem::bad_request(
                "this series is a value without labels: leave labels and kind out",
            ));
        }
        return Ok(json(&of_history(console, &node, series, from)));
    }
    let counter = ["_total", "_count", "_sum", "_bucket"]
        .iter()
        .any(|suffix| name.ends_with(suffix));
    let kind = match kind {
        None if counter => QueryKind::Rate,
        None | Some("value") => QueryKind::Value,
        Some("rate") => QueryKind::Rate,
        Some(_) => {
            return Err(Problem::bad_request(
                "the query parameter kind is value or rate",
            ));
        }
    };
    let (times_ms, series, truncated) =
        node.with_rings(|rings| select(rings, name, &wanted, kind, from));
    Ok(json(&QueryAnswer {
        as_of: sampled(console, &node),
        id: node.spec.id.clone(),
        name: name.to_owned(),
        kind,
        step_seconds: None,
        times_ms,
        series,
        truncated,
    }))
}

/// One of the series that are kept for long.
fn of_history(console: &Console, node: &Node, series: usize, from_ms: u64) -> QueryAnswer {
    let id = &node.spec.id;
    let course = console.history.load().course(id, series, from_ms);
    let series_of_node = QuerySeries {
        labels: String::new(),
        points: course.points,
    };
    QueryAnswer {
        as_of: sampled(console, node),
        id: id.clone(),
        name: SERIES[series].0.to_owned(),
        kind: QueryKind::Value,
        step_seconds: Some(course.step_ms as f64 / 1000.0),
        series: Some(series_of_node)
            .filter(|_| !course.times_ms.is_empty())
            .into_iter()
            .collect(),
        times_ms: course.times_ms,
        truncated: false,
    }
}

/// The series of `name` whose labels contain all `wanted` pairs, with their points from `from_ms`
/// on.
fn select(
    rings: &Rings,
    name: &str,
    wanted: &[(String, String)],
    kind: QueryKind,
    from_ms: u64,
) -> (Vec<u64>, Vec<QuerySeries>, bool) {
    let slots: Vec<u64> = rings.held(from_ms).collect();
    let matches = |series: &&Series| {
        series.name() == name
            && wanted.iter().all(|(key, value)| {
                Labels::new(series.labels()).any(|(k, v)| k == key && v == value.as_str())
            })
    };
    let point = |series: &Series, slot: u64| match kind {
        QueryKind::Value => rings.value(series, slot).filter(|v| v.is_finite()),
        QueryKind::Rate => Some(derive::short(
            rings.increase(series, slot)? / rings.step_seconds(slot)?,
        )),
    };
    let found: Vec<&Series> = rings
        .series()
        .iter()
        .filter(matches)
        .take(QUERY_SERIES + 1)
        .collect();
    let shown = found.iter().take(QUERY_SERIES).map(|series| QuerySeries {
        labels: series.labels().to_owned(),
        points: slots.iter().map(|slot| point(series, *slot)).collect(),
    });
    (
        slots.iter().map(|slot| rings.time_ms(*slot)).collect(),
        shown.collect(),
        found.len() > QUERY_SERIES,
    )
}

/// Parses `a="b",c="d"` by the grammar of the metrics format itself.
fn matchers(text: &str) -> Result<Vec<(String, String)>, Problem> {
    let line = format!("m{{{text}}} 0");
    let mut reader = Reader::new(line.as_bytes());
    match reader.next() {
        Some(Item::Sample(sample)) if reader.next().is_none() => Ok(Labels::new(sample.labels)
            .map(|(k, v)| (k.to_owned(), v.into_owned()))
            .collect()),
        _ => Err(Problem::bad_request(
            "the query parameter labels is written as in queue=\"http\",kind=\"x\"",
        )),
    }
}

/// Parses `90`, `90s` or `5m` to seconds back from now; absent means everything that is held.
fn window_s(text: Option<&str>) -> Result<u64, Problem> {
    let Some(text) = text else {
        return Ok(u64::MAX / 1000);
    };
    let seconds = text.parse::<u64>().map(Duration::from_secs);
    let length = seconds.or_else(|_| ron_service::config::parse_duration(text));
    length.map(|length| length.as_secs()).map_err(|_| {
        Problem::bad_request("the query parameter window is a time, such as 90 (seconds) or 5m")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_follow_the_metrics_grammar() {
        let check = |text: &str, want: Option<&[(&str, &str)]>| {
            let got = matchers(text).ok();
            let want = want.map(|pairs| {
                pairs
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect::<Vec<_>>()
            });
            assert_eq!(got, want, "{text:?}");
        };
        check("", Some(&[]));
        check("queue=\"http\"", Some(&[("queue", "http")]));
        check("a=\"x\",b=\"y\\\"z\"", Some(&[("a", "x"), ("b", "y\"z")]));
        check("queue=http", None);
        check("a=\"x\"} 1\nb{", None);
        check("}", None);
    }

    #[test]
    fn windows_are_seconds_or_times() {
        assert_eq!(window_s(None).unwrap(), u64::MAX / 1000);
        assert_eq!(window_s(Some("90")).unwrap(), 90);
        assert_eq!(window_s(Some("90s")).unwrap(), 90);
        assert_eq!(window_s(Some("5m")).unwrap(), 300);
        for wrong in ["", "-1", "soon", "5 m"] {
            assert!(window_s(Some(wrong)).unwrap_err().detail.contains("5m"));
        }
    }

    #[test]
    fn queries_select_by_name_and_labels() {
        let mut rings = Rings::new(4, 100);
        for (at, n) in [(1000, 1), (2000, 3)] {
            rings.open(at);
            for item in Reader::new(
                format!("q_total{{k=\"a\"}} {n}\nq_total{{k=\"b\"}} 5\nother 1\n").as_bytes(),
            ) {
                if let Item::Sample(sample) = item {
                    rings.put(&sample);
                }
            }
        }
        let (times, series, truncated) = select(
            &rings,
            "q_total",
            &[("k".into(), "a".into())],
            QueryKind::Rate,
            0,
        );
        assert_eq!((times, truncated), (vec![1000, 2000], false));
        assert_eq!(
            series,
            [QuerySeries {
                labels: "k=\"a\"".into(),
                points: vec![None, Some(2.0)]
            }]
        );
        assert_eq!(
            select(&rings, "q_total", &[], QueryKind::Value, 1500)
                .1
                .len(),
            2
        );
        assert_eq!(select(&rings, "none", &[], QueryKind::Value, 0).1, []);
    }
}
