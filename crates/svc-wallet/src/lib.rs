//! svc-wallet: issue, transfer, burn and balance for callers who hold a passport.
//!
//! ```text
//!  POST ── caveats, policy ──> work queue (by account) ──> wal-commit-* ── one call per batch ──> ron-ledger
//!                                                              └── receipt or refusal ──> answer
//!  GET  ── caveats, policy ──> ron-ledger ──> answer
//! ```
//!
//! **Invariants**: the wallet owns no truth: nonces, funds, replays and daily totals are decided by
//! the ledger in one atomic step; an unknown outcome pins its key until the ledger tells it; writes
//! of one account keep their order.

pub mod api;
pub mod commit;
pub mod config;
pub mod metrics;
pub mod policy;
pub mod topology;

use std::sync::Arc;
use std::time::Duration;

use ron_auth::{RonAuthorizer, caveats};
use ron_client::{Credential, LedgerClient};
use ron_kernel::{Deadline, Snapshot, ThreadCtx, queue};
use ron_proto::wallet::WalletPolicy;
use ron_service::{
    Chassis, Config, DataDir, Parts, ReadyBoard, Running, StartError, signed_policy,
};

use crate::api::Api;
use crate::commit::{Committer, Lanes, Pinned};
use crate::config::Settings;
use crate::metrics::Metrics;
use crate::topology::{COMMITTER, PROBE, TOPOLOGY, WORK_QUEUE};

/// Pause between two looks at the ledger.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Pause while the ledger does not answer.
const PROBE_AGAIN: Duration = Duration::from_millis(100);

/// Starts the service. Returns once its ports answer; the ledger need not be up.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let settings =
        Settings::from_config(&config).map_err(|why| StartError::config_text(why.join("\n")))?;
    let policy = load_policy(&settings, 0).map_err(StartError::config_text)?;
    // The wallet keeps nothing there yet, but two of them on one directory would be a mistake.
    let data = DataDir::open(&config)?;
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    let auth = RonAuthorizer::from_section(
        "svc-wallet",
        &config.section("auth"),
        &caveats::BODY_KEYS,
        &chassis.registry,
        chassis.clock.clone(),
    )
    .map_err(StartError::config_text)?;
    auth.on_state(chassis.ready.hook("passports"));
    auth.spawn(&chassis.sup, &TOPOLOGY);
    chassis.authorizer = auth.clone();
    chassis.capabilities(&["burn", "issue", "transfer"]);

    let metrics = Metrics::new(&chassis.registry);
    let credential = match &settings.ledger_token_file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text)?,
        None => Credential::none(),
    };
    let ledger = Arc::new(LedgerClient::new(
        &settings.ledger_url,
        credential,
        chassis.client.clone(),
    ));
    let pinned = Arc::new(Pinned::default());
    let lanes = spawn_committers(&chassis, &settings, &metrics, &ledger, &pinned);
    let (probed, ready) = (ledger.clone(), chassis.ready.clone());
    ready.missing("ledger", "the ledger has not answered yet");
    chassis
        .sup
        .spawn(&PROBE, move |ctx| probe(ctx, &probed, &ready));
    let policy = Arc::new(Snapshot::new(policy));
    on_reload(&chassis, &auth, &policy);

    let api = Arc::new(Api {
        policy,
        per_op_max: settings.per_op_max,
        daily_max: settings.daily_max,
        lanes,
        pinned,
        ledger,
        clock: chassis.clock.clone(),
        metrics,
    });
    chassis.on_drained(move || drop(data));
    chassis.serve(api::router(&api))
}

/// The signed policy; one older than `at_least` is refused.
fn load_policy(settings: &Settings, at_least: u64) -> Result<WalletPolicy, String> {
    let signed =
        signed_policy::load::<WalletPolicy>(&settings.policy_dir, "wallet", &settings.policy_keys)
            .map_err(|e| e.to_string())?;
    if signed.policy.version < at_least {
        return Err(format!(
            "policy wallet.json has version {}, older than {at_least} which is in force",
            signed.policy.version
        ));
    }
    Ok(signed.policy)
}

fn spawn_committers(
    chassis: &Chassis,
    settings: &Settings,
    metrics: &Metrics,
    ledger: &Arc<LedgerClient>,
    pinned: &Arc<Pinned>,
) -> Lanes {
    let lanes = (0..settings.committers).map(|_| queue(&WORK_QUEUE, settings.lane, &chassis.km));
    let (senders, receivers): (Vec<_>, Vec<_>) = lanes.unzip();
    let committer = Committer {
        ledger: ledger.clone(),
        pinned: pinned.clone(),
        clock: chassis.clock.clone(),
        metrics: metrics.clone(),
        km: chassis.km.clone(),
    };
    chassis
        .sup
        .spawn_pool(&COMMITTER, settings.committers, move |ctx| {
            committer.run(ctx, &receivers[ctx.index]);
        });
    Lanes::new(senders)
}

/// Readiness follows the ledger's answer.
fn probe(ctx: &ThreadCtx, ledger: &LedgerClient, ready: &ReadyBoard) {
    loop {
        let pause = match ledger.head(Deadline::within(Duration::from_secs(1))) {
            Ok(_) => {
                ready.present("ledger");
                PROBE_EVERY
            }
            Err(e) => {
                ready.missing("ledger", format!("the ledger does not answer: {e}"));
                PROBE_AGAIN
            }
        };
        if ctx.shutdown.wait(Deadline::within(pause)) {
            return;
        }
    }
}

fn on_reload(chassis: &Chassis, auth: &Arc<RonAuthorizer>, policy: &Arc<Snapshot<WalletPolicy>>) {
    let (auth, policy) = (auth.clone(), policy.clone());
    chassis.on_reload(move |config| {
        let settings = Settings::from_config(config).map_err(|why| why.join("; "))?;
        let new = load_policy(&settings, policy.load().version)?;
        auth.reload(&config.section("auth"))?;
        policy.store(new);
        Ok(())
    });
}
