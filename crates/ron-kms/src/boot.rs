//! Composition of the service: engine, routes, hooks.

use std::sync::Arc;

use ron_http::{Need, Response, Route};
use ron_kernel::Topology;
use ron_proto::passport::IssuerPolicy;
use ron_proto::{Problem, scope};
use ron_service::kept_policy::Versioned as _;
use ron_service::log_host::asker::WitnessSettings;
use ron_service::log_host::{self, Base, LogHost};
use ron_service::{Boot, Running, Service, StartError, Table, signed_policy};

use crate::api;
use crate::api::VaultTokens;
use crate::audit::LogRing;
use crate::audit::leaf::{Draft, Op};
use crate::engine::{Engine, EngineParts};
use crate::settings::{Settings, TABLE};
use crate::topology::TOPOLOGY;

/// Names of the readiness causes that this crate reports, besides those of threads and backends.
pub(crate) const CAUSES: [&str; 8] = [
    "anchor",
    "attestation",
    "audit",
    "checkpoint",
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
        chassis.authorizer = Arc::new(VaultTokens(auth));
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
                room: chassis.room.clone(),
                disk: data_dir.as_ref().map(|_| chassis.disk.clone()),
                home: data_dir,
                witness,
                http: chassis.client.clone(),
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
