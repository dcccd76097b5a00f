//! The views: responses built from the published results of samplers and builder. No handler calls
//! a node.

use std::sync::Arc;
use std::time::Duration;

use ron_http::{Principal, Request, Response};
use ron_proto::admin::{
    EpochList, FacetList, LogHeads, Me, MetricsSummary, NodeStatus, NodeSummary, QueryAnswer,
    QueryKind, QuerySeries, UiConfig,
};
use ron_proto::events::Severity;
use ron_proto::{Problem, Timestamp};
use serde::Serialize;

use super::Console;
use crate::caller;
use crate::derive;
use crate::gate;
use crate::node::{Node, planes};
use crate::promtext::{Item, Labels, Reader};
use crate::rings::{Rings, Series};
use crate::settings::{Language, Theme};
use crate::state::is_unreachable;
use crate::timeline::Wanted;
use crate::view::{Doc, doc};

/// Maximum series in the response of one query.
const QUERY_SERIES: usize = 50;

pub fn ui_config(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let settings = console.settings.load();
    let words = |all: &[&str]| all.iter().map(|&word| word.to_owned()).collect();
    Ok(json(&UiConfig {
        as_of: console.started,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: console.instance.clone(),
        auth_mode: settings.auth.as_str().to_owned(),
        signed_in: console.gate.may_view(&gate::head_of(request)),
        read_only: settings.actions.read_only,
        actions: settings.actions.names(),
        interval_seconds: settings.sampling.interval.as_secs_f64(),
        window_seconds: settings.sampling.window.as_secs_f64(),
        default_theme: settings.theme.as_str().to_owned(),
        themes: words(Theme::WORDS),
        default_language: settings.language.as_str().to_owned(),
        languages: words(Language::WORDS),
    }))
}

pub fn me(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    Ok(json(&whoami(console, &request.principal)))
}

/// The caller as the console sees it.
pub fn whoami(console: &Console, principal: &Principal) -> Me {
    let mode = console.settings.load().auth;
    Me {
        as_of: now(console),
        subject: caller::subject(principal, mode),
        tenant: principal.tenant.to_string(),
        roles: caller::roles(principal, mode),
        auth_mode: mode.as_str().to_owned(),
    }
}

pub fn overview(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    Ok(ready(&console.board.load().overview))
}

pub fn nodes(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    Ok(json(&console.board.load().node_list()))
}

pub fn status(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let (node, summary) = find(console, request)?;
    let view = node.view();
    let said = view.facts.ready.clone().unwrap_or_default();
    let now = console.fleet.clock.unix_ms();
    let unreachable = is_unreachable(&view.facts, now);
    let mut threads = view.topology.threads.clone();
    for thread in &mut threads {
        thread.live = thread.live.filter(|_| !unreachable);
        // The planes come with every poll; the topology is read less often and may be older.
        thread.restarts = view
            .facts
            .planes
            .iter()
            .find(|p| p.name == thread.name)
            .map(|p| p.restart_count);
    }
    Ok(json(&NodeStatus {
        as_of: sampled(console, &node),
        summary,
        health_url: node.spec.health_url.clone(),
        api_url: node.spec.api_url.clone(),
        ready: view
            .facts
            .ready
            .as_ref()
            .map(|r| r.ready)
            .filter(|_| !unreachable),
        missing: said.missing,
        degraded: said.degraded,
        planes: planes(&view, now),
        capabilities: view.status.capabilities.clone(),
        log: view.status.log.clone(),
        queues: view.queues.clone(),
        threads,
        polling: view.polling.clone(),
    }))
}

pub fn metrics_summary(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let (node, _) = find(console, request)?;
    let view = node.view();
    let pick = |which: fn(&ron_proto::admin::NodeRates) -> Option<f64>| {
        view.points.iter().map(|p| which(&p.rates)).collect()
    };
    Ok(json(&MetricsSummary {
        as_of: sampled(console, &node),
        id: node.spec.id.clone(),
        window_seconds: console.fleet.sampling.window.as_secs_f64(),
        current: view.rates.clone(),
        times_ms: view.points.iter().map(|p| p.time_ms).collect(),
        request_rate: pick(|r| r.request_rate),
        error_ratio: pick(|r| r.error_ratio),
        p50_seconds: pick(|r| r.p50_seconds),
        p95_seconds: pick(|r| r.p95_seconds),
        p99_seconds: pick(|r| r.p99_seconds),
    }))
}

pub fn facets(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let (node, _) = find(console, request)?;
    let from = from_ms(console, console.fleet.sampling.window.as_secs());
    // A node that does not answer has no current series; its routes are those of the last answer.
    let mut facets = node.view().last_routes.to_vec();
    if facets.is_empty() {
        facets = node.with_rings(|rings| derive::facets(rings, from));
    }
    for facet in &mut facets {
        for value in [
            &mut facet.request_rate,
            &mut facet.p50_seconds,
            &mut facet.p95_seconds,
            &mut facet.p99_seconds,
        ] {
            *value = value.map(derive::short);
        }
    }
    Ok(json(&FacetList {
        as_of: sampled(console, &node),
        id: node.spec.id.clone(),
        window_seconds: console.fleet.sampling.window.as_secs_f64(),
        facets,
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
    let counter = ["_total", "_count", "_sum", "_bucket"]
        .iter()
        .any(|suffix| name.ends_with(suffix));
    let kind = match request.query_one("kind")? {
        None if counter => QueryKind::Rate,
        None | Some("value") => QueryKind::Value,
        Some("rate") => QueryKind::Rate,
        Some(_) => {
            return Err(Problem::bad_request(
                "the query parameter kind is value or rate",
            ));
        }
    };
    let from = from_ms(console, window);
    let (times_ms, series, truncated) =
        node.with_rings(|rings| select(rings, name, &wanted, kind, from));
    Ok(json(&QueryAnswer {
        as_of: sampled(console, &node),
        id: node.spec.id.clone(),
        name: name.to_owned(),
        kind,
        times_ms,
        series,
        truncated,
    }))
}

pub fn epochs(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let epochs: &EpochList = &console.epochs.load();
    Ok(json(epochs))
}

pub fn audit(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let mut list = console.audit.list();
    list.as_of = list.as_of.max(console.started);
    Ok(json(&list))
}

pub fn timeline(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&["before", "node", "least"])?;
    let bad = |what: &str| Problem::bad_request(format!("the query parameter {what}"));
    let before = request.query_one("before")?.map(str::parse).transpose();
    let least = match request.query_one("least")? {
        None => None,
        Some("info") => Some(Severity::Info),
        Some("warn") => Some(Severity::Warn),
        Some("error") => Some(Severity::Error),
        Some(_) => return Err(bad("least is info, warn or error")),
    };
    let wanted = Wanted {
        before: before.map_err(|_| bad("before is a number"))?,
        node: request.query_one("node")?,
        least,
    };
    Ok(json(&console.timeline.load().page(&wanted)))
}

pub fn log_heads(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let heads: &LogHeads = &console.heads.load();
    Ok(json(heads))
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

pub fn find(console: &Console, request: &Request) -> Result<(Arc<Node>, NodeSummary), Problem> {
    let id = request.param("id");
    let board = console.board.load();
    let summary = board.summary(id);
    match (console.fleet.node(id), summary) {
        (Some(node), Some(summary)) => Ok((node, summary.clone())),
        (Some(_), None) => Err(Problem::unavailable("the console has only just started", 1)),
        (None, _) => Err(Problem::not_found(
            "no node with this id is configured; /api/nodes lists them",
        )),
    }
}

/// Time of the node's last poll: the content of a node's views depends on it.
fn sampled(console: &Console, node: &Node) -> Timestamp {
    node.view()
        .facts
        .polled_at
        .map_or(console.started, Timestamp)
}

pub fn now(console: &Console) -> Timestamp {
    Timestamp(console.fleet.clock.unix_ms())
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

fn from_ms(console: &Console, window_s: u64) -> u64 {
    console
        .fleet
        .clock
        .unix_ms()
        .saturating_sub(window_s.saturating_mul(1000))
}

/// JSON tagged by its content without its time; the front answers 304 to clients that hold this
/// version.
fn json<T: Serialize>(value: &T) -> Response {
    ready(&doc(value))
}

fn ready(doc: &Doc) -> Response {
    if doc.etag.is_empty() {
        return Problem::unavailable("the console has only just started", 1).into();
    }
    Response::bytes(200, "application/json", doc.body.clone())
        .etag(&doc.etag)
        .cache("no-store")
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
