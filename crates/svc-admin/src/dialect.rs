//! Parses the status documents of nodes, both this project's and those of third parties.
//!
//! Tolerant by design: unknown fields, missing fields and unknown health words are not errors,
//! because one console watches services of several versions and vendors. A field that cannot be
//! read is absent.

use ron_proto::admin::{NodePlane, NodeQueue, NodeState, NodeThread};
use ron_proto::status::{EngineDoc, EngineStandbyDoc, LogNodeDoc};
use ron_proto::values::is_control;
use serde_json::Value;

use crate::state::Ready;

/// Maximum length of a text taken from a node, in characters.
const MAX_TEXT: usize = 200;
/// Maximum length of a list taken from a node.
const MAX_LIST: usize = 64;

/// The content of `/api/v1/status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    pub service: Option<String>,
    pub instance: Option<String>,
    pub version: Option<String>,
    pub profile: Option<String>,
    pub uptime_seconds: Option<u64>,
    pub amnesia: Option<bool>,
    pub health: Option<NodeState>,
    pub planes: Vec<NodePlane>,
    pub capabilities: Vec<String>,
    pub log: Option<LogNodeDoc>,
}

/// The content of `/api/v1/topology`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyFacts {
    pub threads: Vec<NodeThread>,
    /// Names of the threads without which the node cannot work.
    pub critical: Vec<String>,
    pub queues: Vec<NodeQueue>,
}

/// Reads a status document; `None` if it is not a JSON object.
pub fn read_status(body: &[u8]) -> Option<Status> {
    let doc = object(body)?;
    Some(Status {
        service: text(&doc, &["service"]),
        instance: text(&doc, &["instance"]),
        version: text(&doc, &["version"]),
        profile: text(&doc, &["profile"]),
        uptime_seconds: number(&doc, &["uptimeSeconds", "uptime_seconds"]),
        amnesia: doc.get("amnesia").and_then(Value::as_bool),
        health: text(&doc, &["health"]).map(|word| health_word(&word)),
        planes: list(&doc, "planes").iter().filter_map(read_plane).collect(),
        capabilities: texts(&doc, "capabilities"),
        log: doc.get("log").and_then(read_log),
    })
}

fn read_log(log: &Value) -> Option<LogNodeDoc> {
    Some(LogNodeDoc {
        node: text(log, &["node"])?,
        active: log.get("active")?.as_bool()?,
        epoch: number(log, &["epoch"])?,
        holder: text(log, &["holder"]),
        entries: number(log, &["entries"])?,
        behind: number(log, &["behind"]).unwrap_or(0),
        active_since_ms: number(log, &["activeSinceMs"]),
        engine: log.get("engine").and_then(read_engine),
    })
}

fn read_engine(engine: &Value) -> Option<EngineDoc> {
    let standby = |one: &Value| {
        Some(EngineStandbyDoc {
            name: text(one, &["name"])?,
            synchronous: one.get("synchronous")?.as_bool()?,
            behind_bytes: number(one, &["behindBytes"]),
        })
    };
    let standbys = list(engine, "standbys");
    Some(EngineDoc {
        seen_ms: number(engine, &["seenMs"])?,
        server: text(engine, &["server"])?,
        standbys: standbys.iter().filter_map(standby).collect(),
        oldest_transaction: number(engine, &["oldestTransaction"])?,
        partitions_ahead: number(engine, &["partitionsAhead"])?.try_into().ok()?,
    })
}

fn read_plane(plane: &Value) -> Option<NodePlane> {
    let health = text(plane, &["health"]).map_or(NodeState::Unknown, |word| health_word(&word));
    Some(NodePlane {
        name: text(plane, &["name"])?,
        health,
        ready: plane
            .get("ready")
            .and_then(Value::as_bool)
            .unwrap_or(health != NodeState::Down),
        restart_count: number(plane, &["restartCount", "restart_count"]).unwrap_or(0),
        reason: text(plane, &["reason", "notes"]).filter(|t| !t.is_empty()),
    })
}

/// Reads a `/readyz` response. 200 is ready unless the body says otherwise; 503 is not ready
/// whatever the body says; text alone never makes a node ready. Other codes mean that the node has
/// no such page.
pub fn read_ready(status: u16, body: &[u8]) -> Option<Ready> {
    let doc = object(body).unwrap_or(Value::Null);
    let said = doc
        .get("ready")
        .or_else(|| doc.get("ok"))
        .and_then(Value::as_bool);
    let ready = match status {
        200..=299 => said.unwrap_or(true),
        503 => false,
        _ => return None,
    };
    let (missing, degraded) = (texts(&doc, "missing"), texts(&doc, "degraded"));
    let draining = missing
        .iter()
        .chain(&degraded)
        .any(|cause| cause.to_ascii_lowercase().contains("drain"));
    Some(Ready {
        ready,
        draining,
        missing,
        degraded,
    })
}

/// Reads a topology document; missing parts stay empty.
pub fn read_topology(body: &[u8]) -> Option<TopologyFacts> {
    let doc = object(body)?;
    let threads = list(&doc, "threads").iter().filter_map(|t| {
        // A pool with no threads in this configuration is not shown.
        let total = number(t, &["count", "total"]).filter(|n| *n > 0)?;
        Some(NodeThread {
            name: pool_name(&text(t, &["name"])?),
            live: number(t, &["live"]),
            total: Some(total),
            restarts: number(t, &["restarts", "restartCount"]),
            job: text(t, &["job"]),
        })
    });
    let queues = list(&doc, "queues").iter().filter_map(|q| {
        Some(NodeQueue {
            name: text(q, &["name"])?,
            capacity: number(q, &["capacity"]),
            overflow: text(q, &["overflow"]),
            from: text(q, &["from"]),
            to: text(q, &["to"]),
            depth: None,
            dropped: None,
            rejected: None,
        })
    });
    let critical = list(&doc, "threads")
        .iter()
        .filter(|t| t.get("critical").and_then(Value::as_bool) == Some(true));
    Some(TopologyFacts {
        critical: critical
            .filter_map(|t| Some(pool_name(&text(t, &["name"])?)))
            .collect(),
        threads: threads.collect(),
        queues: queues.collect(),
    })
}

/// A pool's row ends in a dash, to which the index is added; its plane's name has no dash.
fn pool_name(row: &str) -> String {
    row.trim_end_matches('-').to_owned()
}

/// Maps several vocabularies to one. An unknown word is `unknown`, never healthy.
fn health_word(word: &str) -> NodeState {
    match word.to_ascii_lowercase().as_str() {
        "healthy" | "ok" | "up" | "pass" => NodeState::Healthy,
        "degraded" | "warn" | "warning" => NodeState::Degraded,
        "down" | "fail" | "failed" | "error" | "unhealthy" => NodeState::Down,
        _ => NodeState::Unknown,
    }
}

fn object(body: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Value>(body)
        .ok()
        .filter(Value::is_object)
}

fn text(doc: &Value, names: &[&str]) -> Option<String> {
    names
        .iter()
        .find_map(|name| doc.get(name)?.as_str())
        .map(clip)
}

fn number(doc: &Value, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let value = doc.get(name)?;
        value.as_u64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.is_finite() && *f >= 0.0)
                .map(|f| f as u64)
        })
    })
}

fn list<'a>(doc: &'a Value, name: &str) -> &'a [Value] {
    let all = doc
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    &all[..all.len().min(MAX_LIST)]
}

/// A list of texts; an entry that is an object gives its `cause`, `name` and `why` or `reason`.
fn texts(doc: &Value, name: &str) -> Vec<String> {
    let one = |entry: &Value| {
        if let Some(plain) = entry.as_str() {
            return Some(clip(plain));
        }
        let cause = text(entry, &["cause", "name"])?;
        Some(match text(entry, &["why", "reason"]) {
            Some(why) => format!("{cause}: {why}"),
            None => cause,
        })
    };
    list(doc, name).iter().filter_map(one).collect()
}

/// Makes text from a node fit for the page: one line, bounded length.
fn clip(raw: &str) -> String {
    raw.chars()
        .take(MAX_TEXT)
        .map(|c| if is_control(c) { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn our_own_status_is_read_in_full() {
        let body = br#"{"service":"ron-kms","instance":"a1","version":"0.1.0","profile":"default","uptimeSeconds":12,"ready":true,"health":"degraded","amnesia":false,
            "planes":[{"name":"http","health":"healthy","ready":true,"restartCount":0,"reason":""},{"name":"audit","health":"down","ready":false,"restartCount":3,"reason":"disk full"}],
            "capabilities":["ed25519"],"later":1}"#;
        let got = read_status(body).expect("an object");
        assert_eq!(
            (
                got.service.as_deref(),
                got.uptime_seconds,
                got.health,
                got.amnesia
            ),
            (
                Some("ron-kms"),
                Some(12),
                Some(NodeState::Degraded),
                Some(false)
            )
        );
        assert_eq!(got.planes[0].reason, None);
        assert_eq!(
            (
                got.planes[1].health,
                got.planes[1].restart_count,
                got.planes[1].reason.as_deref()
            ),
            (NodeState::Down, 3, Some("disk full"))
        );
    }

    #[test]
    fn a_node_of_a_shared_log_is_read_as_it_reports() {
        let standby = EngineStandbyDoc {
            name: "s1".to_owned(),
            synchronous: true,
            behind_bytes: None,
        };
        let log = LogNodeDoc {
            node: "http://a".to_owned(),
            active: true,
            epoch: 3,
            holder: Some("http://a".to_owned()),
            entries: 9,
            behind: 0,
            active_since_ms: Some(5),
            engine: Some(EngineDoc {
                seen_ms: 7,
                server: "10.0.0.1:5432".to_owned(),
                standbys: vec![standby],
                oldest_transaction: 11,
                partitions_ahead: 1,
            }),
        };
        let read = |log: Value| {
            let body = serde_json::json!({"service": "ron-ledger", "log": log}).to_string();
            read_status(body.as_bytes()).expect("an object").log
        };
        let mut doc = serde_json::to_value(&log).expect("JSON");
        assert_eq!(read(doc.clone()), Some(log));
        doc["engine"] = Value::from("none");
        assert_eq!(read(doc.clone()).and_then(|log| log.engine), None);
        doc["epoch"] = Value::from("three");
        assert_eq!(read(doc), None, "a part of it would mislead");
    }

    #[test]
    fn readiness_dialects() {
        let check = |status, body: &str, ready: Option<bool>| {
            assert_eq!(
                read_ready(status, body.as_bytes()).map(|r| r.ready),
                ready,
                "{status} {body}"
            );
        };
        check(200, "{\"ready\":true}", Some(true));
        check(200, "{\"ready\":false}", Some(false));
        check(200, "{\"ok\":false}", Some(false));
        check(200, "not ready", Some(true));
        check(200, "", Some(true));
        check(503, "{\"ready\":true}", Some(false));
        check(503, "ready", Some(false));
        check(404, "ready", None);
        check(500, "{\"ready\":true}", None);
        let got = read_ready(503, br#"{"ready":false,"missing":["draining"],"degraded":[{"cause":"jwks","why":"no keys"}]}"#).expect("503");
        assert!(got.draining);
        assert_eq!(got.degraded, ["jwks: no keys"]);
    }

    #[test]
    fn a_topology_is_read() {
        let body = br#"{"service":"x","threads":[{"name":"x-http-","count":4,"live":3,"stage":"front","critical":false,"job":"reads"},
            {"name":"x-writer","count":1,"live":1,"stage":"write","critical":true,"job":"writes"},{"name":"x-idle","count":0,"live":0,"critical":false}],
            "queues":[{"name":"q","capacity":8,"depth":1,"overflow":"reject_new","from":"a","to":"b","when_full":"429"}],"locks":[]}"#;
        let got = read_topology(body).expect("an object");
        assert_eq!(
            got.threads
                .iter()
                .map(|t| t.name.as_str())
                .collect::<Vec<_>>(),
            ["x-http", "x-writer"]
        );
        assert_eq!(got.critical, ["x-writer"]);
        assert_eq!(
            (got.queues[0].capacity, got.queues[0].overflow.as_deref()),
            (Some(8), Some("reject_new"))
        );
    }

    #[test]
    fn foreign_words_are_never_healthy() {
        assert_eq!(health_word("splendid"), NodeState::Unknown);
        assert_eq!(read_status(b"[1]"), None);
        assert_eq!(clip("a\nb\u{1b}[31m"), "a b [31m");
    }

    proptest! {
        #[test]
        fn anything_is_read_or_skipped(body in proptest::collection::vec(any::<u8>(), 0..200), status in any::<u16>()) {
            let _ = (read_status(&body), read_ready(status, &body), read_topology(&body));
        }
    }
}
