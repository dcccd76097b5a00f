//! The health port: liveness, readiness, metrics, version, status, topology, and the actions.

use std::sync::Arc;

use ron_http::{ApiInfo, Need, Request, Response, Route, Router};
use ron_kernel::{Count, LockSpec, PlaneState, QueueSpec};
use ron_proto::status::{
    Health, LockDoc, Plane, QueueDoc, Readiness, STANDBY, ServiceStatus, ThreadDoc, TopologyDoc,
};
use ron_proto::{Problem, scope};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DateAccepted, ReloadError, Shared};
use crate::config::ChassisSettings;
use crate::events::{Event, EventKind};
use crate::ready::{Effect, readiness, show, surroundings};

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionDoc {
    /// Name of the binary, such as `ron-kms`.
    pub service: String,
    /// Version of the build.
    pub version: String,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionDoc {
    /// `reloaded`, `accepted`, `unchanged` or `stopping`.
    pub result: String,
    /// Changed keys as `key: old -> new`, with secrets redacted; for `accepted` the difference.
    pub changes: Vec<String>,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn version_route(service: &'static str) -> Route {
    Route::get("/version", Need::Public, move |_| {
        Ok(Response::json(
            200,
            &VersionDoc {
                service: service.to_owned(),
                version: VERSION.to_owned(),
            },
        ))
    })
    .summary("Name and version of the service")
    .returns::<VersionDoc>(200)
    .while_draining()
}

pub(super) fn router(shared: &Arc<Shared>) -> Router {
    let info = ApiInfo {
        title: shared.topology.service,
        version: VERSION,
        description: "Health, metrics and actions of one instance.",
    };
    let get = |pattern, summary, serve: fn(&Shared) -> Response| {
        let shared = shared.clone();
        Route::get(pattern, Need::Public, move |_| Ok(serve(&shared)))
            .summary(summary)
            .while_draining()
            .untimed()
    };
    Router::new(info)
        .add(
            get("/healthz", "Whether the process is alive", |_| {
                Response::text(200, "ok\n")
            })
            .returns_bytes(200, "text/plain; charset=utf-8"),
        )
        .add(
            get("/readyz", "Whether the service can serve writes", readyz)
                .returns::<Readiness>(200)
                .returns::<Readiness>(503),
        )
        .add(
            get("/metrics", "Metrics in the Prometheus text format", metrics)
                .returns_bytes(200, METRICS_TYPE),
        )
        .add(version_route(shared.topology.service))
        .add(
            get(
                "/api/v1/status",
                "State of the service and its parts",
                status,
            )
            .returns::<ServiceStatus>(200),
        )
        .add(
            get(
                "/api/v1/topology",
                "Threads, queues and locks of the service",
                topology,
            )
            .returns::<TopologyDoc>(200),
        )
        .add(crate::event_feed::route(shared.event_polls.clone()))
        .add_all(actions(shared))
}

fn actions(shared: &Arc<Shared>) -> [Route; 3] {
    let post = |pattern, summary, act: fn(&Shared, &Request) -> Result<Response, Problem>| {
        let shared = shared.clone();
        Route::post(pattern, Need::Scope(scope::ADMIN_OPERATE), move |request| {
            act(&shared, request)
        })
        .summary(summary)
        .returns::<ActionDoc>(200)
        .errors(&[403, 409, 429, 503])
        .while_draining()
    };
    [
        post("/api/v1/reload", "Reload the configuration file", reload),
        post(
            "/api/v1/shutdown",
            "Drain the service and end the process",
            shutdown,
        ),
        post(
            "/api/v1/clock/accept",
            "Believe the machine's date, which differs from the service's own",
            accept_date,
        ),
    ]
}

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

fn metrics(shared: &Shared) -> Response {
    show(&shared.ready, &shared.sup);
    Response::bytes(200, METRICS_TYPE, shared.registry.render())
}

fn readyz(shared: &Shared) -> Response {
    let readiness = readiness(&shared.ready, &shared.sup);
    let status = if readiness.ready { 200 } else { 503 };
    let response = Response::json(status, &readiness);
    match readiness.retry_after {
        Some(seconds) => response.header("retry-after", seconds.to_string()),
        None => response,
    }
}

fn status(shared: &Shared) -> Response {
    let readiness = readiness(&shared.ready, &shared.sup);
    let config = shared.config.load();
    let mut planes: Vec<Plane> = shared.sup.planes().iter().map(plane).collect();
    planes.extend(
        shared
            .ready
            .causes()
            .into_iter()
            .map(|(name, health, why)| Plane {
                name: name.to_owned(),
                health,
                ready: health != Health::Down,
                restart_count: 0,
                reason: Some(why),
            }),
    );
    let around = surroundings(&shared.ready, &shared.sup).into_iter();
    planes.extend(around.map(|cause| Plane {
        name: cause.name.to_owned(),
        health: match cause.effect {
            Effect::Stops => Health::Down,
            Effect::Degrades => Health::Degraded,
        },
        ready: cause.effect == Effect::Degrades,
        restart_count: 0,
        reason: Some(cause.why),
    }));
    let mut degraded = readiness.degraded.iter();
    let health = match (readiness.ready, degraded.all(|cause| cause == STANDBY)) {
        (false, _) => Health::Down,
        (true, false) => Health::Degraded,
        (true, true) => Health::Healthy,
    };
    let amnesia = config.chassis().amnesia;
    Response::json(
        200,
        &ServiceStatus {
            service: shared.topology.service.to_owned(),
            instance: shared.instance.clone(),
            version: VERSION.to_owned(),
            profile: if amnesia { "amnesia" } else { "durable" }.to_owned(),
            uptime_seconds: shared
                .clock
                .now()
                .saturating_duration_since(shared.started)
                .as_secs(),
            ready: readiness.ready,
            health,
            amnesia,
            planes,
            capabilities: shared.capabilities.get().cloned().unwrap_or_default(),
            recent: shared.ready.recent().answers(),
            log: shared.log.get().map(|log| log()),
        },
    )
}

fn plane(state: &PlaneState) -> Plane {
    let health = match state.live {
        0 => Health::Down,
        live if live < state.total => Health::Degraded,
        _ => Health::Healthy,
    };
    Plane {
        name: state.name.to_owned(),
        health,
        ready: state.live > 0,
        restart_count: u64::from(state.restarts),
        // A healthy plane keeps its last crash as the reason of its restarts; null means that it
        // never crashed.
        reason: state.reason.clone(),
    }
}

fn topology(shared: &Shared) -> Response {
    let planes = shared.sup.planes();
    let threads = shared.topology.threads.iter().map(|row| {
        let state = planes
            .iter()
            .find(|state| state.name == row.name.trim_end_matches('-'));
        ThreadDoc {
            name: row.name.to_owned(),
            count: state.map_or(0, |state| state.total),
            live: state.map_or(0, |state| state.live),
            stage: row.stage.as_str().to_owned(),
            critical: row.critical,
            job: match row.count {
                Count::One => row.job.to_owned(),
                Count::Pool(key) => format!("{} (size: {key})", row.job),
            },
        }
    });
    let metrics = shared.registry.render();
    let mut locks: Vec<LockDoc> = shared.topology.locks.iter().map(lock).collect();
    locks.sort_by_key(|row| row.rank);
    let doc = TopologyDoc {
        service: shared.topology.service.to_owned(),
        threads: threads.collect(),
        queues: shared
            .topology
            .queues
            .iter()
            .map(|row| queue(row, &metrics, shared.registry.prefix()))
            .collect(),
        locks,
    };
    Response::json(200, &doc)
}

/// The depth comes from the metric that the queue itself exports; 0 for a queue that this
/// configuration does not create.
fn queue(row: &QueueSpec, metrics: &str, prefix: &str) -> QueueDoc {
    let line = format!("{prefix}_queue_depth{{queue=\"{}\"}} ", row.name);
    let depth = metrics
        .lines()
        .find_map(|text| text.strip_prefix(&line)?.parse().ok())
        .unwrap_or(0);
    QueueDoc {
        name: row.name.to_owned(),
        capacity: row.capacity as u64,
        depth,
        overflow: row.overflow.as_str().replace(' ', "_"),
        from: row.from.to_owned(),
        to: row.to.to_owned(),
        when_full: row.when_full.to_owned(),
    }
}

fn lock(row: &LockSpec) -> LockDoc {
    LockDoc {
        name: row.name.to_owned(),
        rank: row.rank,
        guards: row.guards.to_owned(),
    }
}

/// Refuses an action that the configuration does not allow, with the key that would.
fn enabled(allowed: bool, key: &str) -> Result<(), Problem> {
    if allowed {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "this action is disabled; set {key} = true to allow it"
    )))
}

fn reload(shared: &Shared, request: &Request) -> Result<Response, Problem> {
    let settings = shared.config.load();
    let allowed = settings.chassis().enable_reload;
    enabled(allowed, ChassisSettings::enable_reload)?;
    tracing::info!(service = shared.topology.service, event = "action", action = "reload", by = %request.principal.name, request_id = request.trace.id());
    match shared.reload_from_file() {
        Ok(diff) => {
            let result = if diff.is_empty() {
                "unchanged"
            } else {
                "reloaded"
            };
            let changes = diff.changes.iter().map(ToString::to_string).collect();
            Ok(Response::json(
                200,
                &ActionDoc {
                    result: result.to_owned(),
                    changes,
                },
            ))
        }
        Err(ReloadError::NeedsRestart(keys)) => {
            let names: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
            Err(Problem::new(
                409,
                "restart_needed",
                "A restart is needed",
                ReloadError::NeedsRestart(keys).to_string(),
            )
            .with_details(serde_json::json!({ "keys": names })))
        }
        Err(ReloadError::Busy) => Err(Problem::in_flight("another reload is in progress")),
        // Paths and line numbers of the host's files belong in its log, not in the answer.
        Err(ReloadError::Invalid(problems)) => Err(Problem::new(
            409,
            "config_invalid",
            "The configuration file is not acceptable",
            format!(
                "{} problems; the service's log names each with its line",
                problems.len()
            ),
        )),
        Err(error @ ReloadError::Refused(_)) => Err(Problem::new(
            409,
            "config_invalid",
            "The configuration was refused",
            error.to_string(),
        )),
    }
}

fn accept_date(shared: &Shared, request: &Request) -> Result<Response, Problem> {
    let alarm = shared.clock.alarm();
    if let Some(alarm) = alarm {
        let by = &request.principal;
        for hook in shared.date_hooks() {
            hook(&DateAccepted { by, alarm })?;
        }
    }
    shared.clock.accept_date();
    tracing::info!(service = shared.topology.service, event = "action", action = "accept_date", by = %request.principal.name, request_id = request.trace.id());
    if let Some(alarm) = alarm {
        let accepted = Event::warn(EventKind::DateAccepted);
        shared.events.publish(accepted.why(alarm));
    }
    Ok(Response::json(
        200,
        &ActionDoc {
            result: alarm.map_or("unchanged", |_| "accepted").to_owned(),
            changes: alarm.iter().map(ToString::to_string).collect(),
        },
    ))
}

fn shutdown(shared: &Shared, request: &Request) -> Result<Response, Problem> {
    let settings = shared.config.load();
    let allowed = settings.chassis().enable_shutdown;
    enabled(allowed, ChassisSettings::enable_shutdown)?;
    tracing::info!(service = shared.topology.service, event = "action", action = "shutdown", by = %request.principal.name, request_id = request.trace.id());
    shared.stop.0.fire();
    Ok(Response::json(
        200,
        &ActionDoc {
            result: "stopping".to_owned(),
            changes: Vec::new(),
        },
    ))
}
