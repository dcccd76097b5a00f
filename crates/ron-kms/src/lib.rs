//! ron-kms: custody of keys and signing, with an audit log that third parties can verify.
//!
//! ```text
//!  HTTP workers ──> sign queue ──> signers ──────────┐ room for the leaf is reserved first
//!       │                            │ checkpoints   ▼
//!       │                            ▼            audit queue ──> kms-audit: append, fdatasync,
//!       ├──> store queue ──> kms-store ──────────────^                then the answers leave
//!       │                      │ SQLite, sealed      kms-ckpt: signed checkpoints
//!       │                      ▼
//!       └── verify, read <── KeyIndex (snapshot: key, version, public and private key at once)
//! ```
//!
//! **Invariants.** No signature leaves before its leaf is durable. A private key leaves memory only
//! sealed. A signature, its version and its public key come from one snapshot. One thread writes
//! the store, one writes the log. When the log cannot be trusted or written, nothing is signed or
//! changed, and verification still works.
//!
//! The engine works without HTTP ([`embedded::Custody`]); [`start`] puts it on the chassis.

#![cfg_attr(test, allow(clippy::items_after_statements, clippy::needless_collect))]

pub mod api;
pub mod attest;
pub mod audit;
pub mod config;
pub mod embedded;
pub mod engine;
pub mod metrics;
pub mod replay;
pub mod topology;
pub mod work;

use std::sync::Arc;

use ron_auth::RonAuthorizer;
use ron_http::{Need, Response, Route};
use ron_proto::{Problem, scope};
use ron_service::log_host::{self, Base, LogHost};
use ron_service::{Chassis, Config, DataDir, Parts, Running, StartError};

use api::transit::VaultTokens;
use audit::LogRing;
use audit::leaf::Op;
use config::Settings;
use engine::{Engine, EngineParts};
use topology::TOPOLOGY;

/// Names of the readiness causes that this crate reports, besides those of threads and backends.
const CAUSES: [&str; 7] = [
    "anchor",
    "attestation",
    "audit",
    "checkpoint",
    "log_keys",
    "store",
    "witness",
];

/// Starts the service on the sockets of `parts`. Installs no signal handler or logger, reads no environment
/// variable and never exits the process.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let settings = Settings::from_config(&config).map_err(StartError::Config)?;
    let data_dir = DataDir::open(&config)?;
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    let authorizer = RonAuthorizer::from_section(
        TOPOLOGY.service,
        &config.section("auth"),
        &[],
        &chassis.registry,
        chassis.clock.clone(),
        chassis.peers.clone(),
        config.path_opt("data_dir"),
    )
    .map_err(StartError::config_text)?;
    authorizer.on_state(chassis.ready.hook("passports"));
    chassis.ready.declare(&CAUSES);
    authorizer.spawn(&chassis.sup, &TOPOLOGY);
    chassis.authorizer = Arc::new(VaultTokens(authorizer.clone()));
    chassis.capabilities(&capabilities(&settings));
    let engine = Engine::start(
        settings,
        EngineParts {
            sup: chassis.sup.clone(),
            registry: chassis.registry.clone(),
            km: chassis.km.clone(),
            clock: chassis.clock.clone(),
            random: chassis.random.clone(),
            ready: chassis.ready.clone(),
            disk: None,
            http: chassis.client.clone(),
        },
    )
    .map_err(StartError::failed)?;
    let (kms, backends) = (engine.kms.clone(), engine.backends.clone());
    chassis.on_reload(move |config| {
        authorizer.reload(&config.section("auth"))?;
        backends.nudge();
        kms.log_service(Op::Reload, "configuration reloaded")
            .map_err(|e| e.to_string())
    });
    // The directory stays locked until the last thread has ended: another process must not open the store before.
    chassis.on_drained(move || drop(data_dir));
    let mut router = api::router(&engine.kms);
    if let Some(reader) = engine.reader {
        let host = LogHost {
            reader,
            keys: engine.keys,
            entries_scope: scope::KMS_READ,
            cosigned: engine.cosigned,
        };
        router = router.add_all(log_host::routes(Base::Audit, &host));
        if engine.kms.settings.ml_dsa {
            router = router.add(second_vkey_route(engine.kms.ring.clone()));
        }
    }
    chassis.serve(router)
}

fn second_vkey_route(ring: Arc<LogRing>) -> Route {
    Route::get("/audit/v1/vkey/ml-dsa-44", Need::Public, move |_| {
        let vkey = ring
            .second_vkey()
            .ok_or_else(|| Problem::not_found("checkpoints have no second signature"))?;
        Ok(Response::text(200, format!("{vkey}\n")).cache("public, max-age=60"))
    })
    .summary("The verifier key of the ML-DSA-44 line of the log's checkpoints")
    .returns_bytes(200, "text/plain; charset=utf-8")
    .while_draining()
}

fn capabilities(settings: &Settings) -> Vec<&'static str> {
    let mut names = vec!["audit", "sign", "verify", settings.backend.as_str()];
    names.extend(settings.algs.iter().map(|alg| alg.as_str()));
    names
}

#[cfg(test)]
mod tests;
