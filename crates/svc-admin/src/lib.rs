//! svc-admin: the operator console. One look tells whether the fleet is healthy, what is wrong and why.
//!
//! ```text
//!  nodes' health ports <── sampler threads ──> node.rs: rings + what the node said ── views ──┐
//!                            (promtext, dialect)          │ lock, short                        ▼
//!  logs' checkpoints   <── adm-logs ── heads ──┐          ▼                             adm-view: judge (pure),
//!                                              └───> api/: page and JSON <── board ──── build, tag
//! ```
//!
//! **Invariants:** a request never waits for a node: handlers read what has been published. Memory is bounded by
//! nodes, series and slots. What a node does not report is absent, never zero, and a dead node's figures end.
//! State is a pure function ([`state::judge`]) and every state but healthy has a reason. This console changes
//! nothing: it has no action.

// Figures of other people's metrics are floats that were checked before they are cast.
#![allow(clippy::cast_sign_loss, clippy::unnecessary_wraps)]
#![cfg_attr(test, allow(clippy::float_cmp, clippy::needless_for_each))]

pub mod api;
pub mod config;
pub mod derive;
pub mod dialect;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod promtext;
pub mod rings;
pub mod sampler;
pub mod state;
pub mod topology;
pub mod view;

use std::sync::Arc;

use ron_auth::RonAuthorizer;
use ron_http::{ClientConfig, HttpClient};
use ron_kernel::{Snapshot, Stage};
use ron_proto::Timestamp;
use ron_proto::admin::LogHeads;
use ron_service::{Chassis, Config, Parts, Running, StartError};

use crate::api::Console;
use crate::config::{AuthMode, Settings};
use crate::logs::LogWatch;
use crate::node::Node;
use crate::sampler::Fleet;
use crate::topology::{LOG_HEADS, SAMPLERS, TOPOLOGY, VIEW};
use crate::view::{Builder, empty_board};

/// Starts the console: samplers, builder, log watcher, API and page.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let bound = parts.api.local_addr().map_err(StartError::failed)?;
    let settings = Settings::from_config(&config, bound.ip())?;
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    if settings.auth == AuthMode::None {
        tracing::info!(event = "auth_none", bind = %bound, "everyone who reaches this address may look; actions are off");
    }
    authorize(&mut chassis, &config)?;

    let client = Arc::new(HttpClient::new(ClientConfig {
        user_agent: concat!("svc-admin/", env!("CARGO_PKG_VERSION")).to_owned(),
        max_idle_per_host: 2,
        max_response_bytes: settings.sampling.max_body_bytes,
        connect_timeout: settings.sampling.connect_timeout,
        ..ClientConfig::default()
    }));
    // A look that hangs must not hold up the drain.
    let (closing, stop) = (client.clone(), chassis.sup.stage_token(Stage::Intake));
    stop.on_fire(move || closing.shutdown());

    let console = Arc::new(Console {
        fleet: Arc::new(Fleet {
            nodes: settings
                .nodes
                .iter()
                .map(|spec| Node::new(spec.clone(), settings.sampling))
                .collect(),
            sampling: settings.sampling,
            client: client.clone(),
            clock: chassis.clock.clone(),
            metrics: chassis.km.clone(),
        }),
        board: Arc::new(empty_board()),
        heads: Arc::new(Snapshot::new(LogHeads {
            as_of: Timestamp(chassis.clock.unix_ms()),
            logs: Vec::new(),
        })),
        instance: chassis.instance.clone(),
        started: Timestamp(chassis.clock.unix_ms()),
        settings,
    });
    metrics::export(&chassis.registry, &console.board);
    Builder::default().tick(&console.fleet, &console.board);
    spawn(&chassis, &console, client);
    chassis.capabilities(&["auth:none", "auth:passport", "log-heads", "page"]);
    chassis.serve(api::router(&console))
}

/// Passports and service tokens are judged in every mode: the health port's actions need them.
fn authorize(chassis: &mut Chassis, config: &Config) -> Result<(), StartError> {
    let section = auth_section(config);
    let authorizer = RonAuthorizer::from_section(
        "svc-admin",
        &section,
        &[],
        &chassis.registry,
        chassis.clock.clone(),
    )
    .map_err(StartError::config_text)?;
    authorizer.on_state(chassis.ready.hook("passports"));
    authorizer.spawn(&chassis.sup, &TOPOLOGY);
    let reloaded = authorizer.clone();
    chassis.on_reload(move |new| reloaded.reload(&auth_section(new)));
    chassis.authorizer = authorizer;
    Ok(())
}

/// The `auth` keys without the console's own.
fn auth_section(config: &Config) -> serde_json::Value {
    let mut section = config.section("auth");
    if let Some(map) = section.as_object_mut() {
        map.remove("mode");
    }
    section
}

fn spawn(chassis: &Chassis, console: &Arc<Console>, client: Arc<HttpClient>) {
    let fleet = console.fleet.clone();
    chassis
        .sup
        .spawn_pool(row(SAMPLERS.name), fleet.threads(), move |ctx| {
            fleet.sampler(ctx);
        });
    let (fleet, board) = (console.fleet.clone(), console.board.clone());
    chassis.sup.spawn(row(VIEW.name), move |ctx| {
        Builder::default().run(&fleet, &board, ctx);
    });
    let watch = LogWatch::new(&console.settings.nodes, client, chassis.clock.clone());
    let heads = console.heads.clone();
    chassis
        .sup
        .spawn(row(LOG_HEADS.name), move |ctx| watch.run(&heads, ctx));
}

fn row(name: &str) -> &'static ron_kernel::ThreadSpec {
    ron_service::topology_thread(&TOPOLOGY, name)
}

#[cfg(test)]
mod console_tests;
