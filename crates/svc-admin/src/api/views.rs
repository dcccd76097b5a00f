//! The views: responses built from the published results of samplers and builder. No handler calls
//! a node.

use std::sync::Arc;

use ron_http::{Principal, Request, Response};
use ron_proto::admin::{
    EpochList, FacetList, KeyOverview, LogHeads, Me, MetricsSummary, NodeStatus, NodeSummary,
    UiConfig,
};
use ron_proto::events::Severity;
use ron_proto::{Problem, Timestamp};
use serde::Serialize;

use super::Console;
use crate::caller;
use crate::derive;
use crate::gate;
use crate::node::{Node, planes};
use crate::settings::{Language, Theme};
use crate::state::is_unreachable;
use crate::timeline::Wanted;
use crate::view::{Doc, doc};

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
    let window = console.fleet.sampling.window.as_millis() as u64;
    let from = console.fleet.clock.unix_ms().saturating_sub(window);
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

pub fn keys(console: &Console, request: &Request) -> Result<Response, Problem> {
    request.query_only(&[])?;
    let keys: &KeyOverview = &console.keys.load();
    Ok(json(keys))
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
pub fn sampled(console: &Console, node: &Node) -> Timestamp {
    node.view()
        .facts
        .polled_at
        .map_or(console.started, Timestamp)
}

pub fn now(console: &Console) -> Timestamp {
    Timestamp(console.fleet.clock.unix_ms())
}

/// JSON tagged by its content without its time; the front answers 304 to clients that hold this
/// version.
pub fn json<T: Serialize>(value: &T) -> Response {
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
