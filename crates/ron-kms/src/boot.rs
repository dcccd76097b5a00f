//! Composition of the service: engine, routes, hooks.

use std::sync::Arc;

use ron_custody::store::MIGRATIONS;
use ron_http::{Need, Response, Route};
use ron_kernel::Topology;
use ron_proto::passport::IssuerPolicy;
use ron_proto::{Problem, scope};
use ron_service::config::NoteName;
use ron_service::kept_policy::Versioned as _;
use ron_service::log_engine::{self, EngineLogSpec};
use ron_service::log_host::asker::WitnessSettings;
use ron_service::log_host::{self, Base, LogHost};
use ron_service::log_node::LogNode;
use ron_service::{Boot, Chassis, Running, Service, StartError, Table, signed_policy};
use ron_tlog::store::LogSessions;

use crate::api;
use crate::api::VaultTokens;
use crate::audit::LogRing;
use crate::audit::health::ENGINE;
use crate::audit::leaf::{Draft, Op};
use crate::engine::shared::SharedParts;
use crate::engine::{Engine, EngineParts};
use crate::settings::{Keys, Settings, TABLE};
use crate::topology::TOPOLOGY;

/// Names of the readiness causes that this crate reports, besides those of threads and backends.
pub(crate) const CAUSES: [&str; 9] = [
    "anchor",
    "attestation",
    "audit",
    "checkpoint",
    ENGINE,
    "log_keys",
    "replay",
    "store",
    "witness",
];

/// The key service as a service.
pub struct RonKms;

impl Service for RonKms {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;
    const ENFORCED_CAVEATS: &'static [&'static str] = &["key", "op"];

    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            mut chassis,
            auth,
            data_dir,
        } = boot;
        let witness = WitnessSettings::load(&chassis.config.load(), &settings.keys.witness)
            .map_err(|problem| vec![problem])?;
        let times = witness.as_ref().map(|witness| witness.times.clone());
        chassis.ready.declare(&CAUSES);
        chassis.ready.declare(&log_engine::CAUSES);
        chassis.authorizer = Arc::new(VaultTokens(auth));
        chassis.capabilities(&capabilities(&settings));
        let shared = shared(&chassis, &settings)?;
        let node = shared.as_ref().map(|shared| shared.node.clone());
        let engine = Engine::start(
            settings,
            EngineParts {
                sup: chassis.sup.clone(),
                registry: chassis.registry.clone(),
                km: chassis.km.clone(),
                clock: chassis.clock.clone(),
                random: chassis.random.clone(),
                ready: chassis.ready.clone(),
                room: chassis.room.clone(),
                disk: data_dir.as_ref().map(|_| chassis.disk.clone()),
                home: data_dir,
                witness,
                http: chassis.client.clone(),
                shared,
            },
        )
        .map_err(StartError::failed)?;
        let shown = engine.kms.clone();
        signed_policy::show_version(&chassis.registry, IssuerPolicy::KIND, move || {
            shown.issuer_policy().map_or(0, |policy| policy.version)
        });
        let kms = engine.kms.clone();
        chassis.on_reload(move |new: Settings| {
            // The leaf first: without it the old configuration stays in force.
            kms.log_service(Draft::service(Op::Reload, "configuration reloaded"))
                .map_err(|e| e.to_string())?;
            if let Some(times) = &times {
                new.keys.witness.change(times);
            }
            kms.adopt(new);
            Ok(())
        });
        let kms = engine.kms.clone();
        chassis.on_date_accepted(move |accepted| kms.log_date(accepted.by, accepted.alarm));
        let mut router = api::router(&engine.kms);
        if let Some(reader) = engine.reader {
            if let Some(node) = node {
                let entries = reader.clone();
                chassis.show_log(move || node.doc(entries.size_durable()));
            }
            let host = LogHost {
                reader,
                keys: engine.keys,
                entries_scope: scope::KMS_AUDIT,
                cosigned: engine.cosigned,
            };
            router = router.add_all(log_host::routes(Base::Audit, &host));
            if engine.kms.settings.load().keys.ml_dsa {
                router = router.add(second_vkey_route(engine.kms.ring.clone()));
            }
        }
        chassis.serve(router)
    }
}

/// The sessions with the database of the keys and the log, if there is one.
fn shared(chassis: &Chassis, settings: &Settings) -> Result<Option<SharedParts>, StartError> {
    let keys = &settings.keys;
    let (Some(records), Some(log), Some(NoteName(origin))) =
        (keys.records_engine(), keys.log_engine(), &keys.origin)
    else {
        return Ok(None);
    };
    let guard = format!("{}.store", records.schema);
    let spec = EngineLogSpec {
        engine: &log,
        key: Keys::log_url,
        origin,
        node: origin,
        service: "a key service",
        log: "the audit log",
        guard: Some(&guard),
    };
    let LogSessions {
        batches,
        checkpoints,
        upkeep,
        ..
    } = log_engine::keyless_sessions(chassis, &spec)?;
    let (access, random) = (&chassis.engine_access, &*chassis.random);
    let records = chassis
        .engines
        .records(&records, MIGRATIONS, access, random);
    Ok(Some(SharedParts {
        records: Some(records.map_err(StartError::failed)?),
        sessions: Some([batches, checkpoints]),
        upkeep,
        within: keys.log_commit_within,
        stop: chassis.engine_access.stop.clone(),
        node: LogNode::new(&chassis.registry, origin),
        durability: log.durability,
    }))
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
    names.extend(settings.keys.algs.iter().map(|alg| alg.as_str()));
    names
}
