//! svc-passport: issues short-lived capability tokens that the KMS signs.
//!
//! ```text
//!  /issue, /oauth2/token ── policy ──> issue queue ──> pass-issue-* ── one sign_batch ──> ron-kms
//!        │                                                  └── token ──> answer
//!  /revoke, /events ──> revoke queue ──> pass-revoker ── SQLite, then view ──> answer, feed readers
//!  pass-keys ── reads the keys every few seconds ──> snapshot: heads, JWKS
//! ```
//!
//! **Invariants**: this service holds no private key; `exp` is exactly `iat + ttl`; a token's `kid`
//! is always the key that signed it (the KMS call pins the version); a revocation is durable before
//! it is answered; without the KMS issuing stops, verifying and revoking go on.

pub mod api;
pub mod clients;
pub mod config;
pub mod issue;
pub mod metrics;
pub mod policy;
pub mod revoke;
pub mod token;
pub mod topology;

use std::sync::Arc;

use ron_auth::RonAuthorizer;
use ron_auth::revocation::RevocationView;
use ron_client::{Credential, KmsClient};
use ron_kernel::{KernelMetrics, Receiver, Sender, Snapshot, queue};
use ron_proto::passport::{IssuerPolicy, Jwks};
use ron_service::{Chassis, Config, DataDir, Parts, Running, StartError, signed_policy};

use crate::api::Api;
use crate::clients::Clients;
use crate::config::Settings;
use crate::issue::Issuer;
use crate::issue::keys::KeyKeeper;
use crate::metrics::Metrics;
use crate::revoke::{RevocationStore, RevokeEvent, Revoker};
use crate::topology::{ISSUE_QUEUE, ISSUER, KEYS, REVOKE_QUEUE, REVOKER, TOPOLOGY};

/// Starts the service. Returns once its ports answer; the KMS need not be up.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let settings =
        Settings::from_config(&config).map_err(|why| StartError::config_text(why.join("\n")))?;
    let policy = load_policy(&settings, 0).map_err(StartError::config_text)?;
    let data = DataDir::open(&config)?;
    let store = match &data {
        Some(dir) => RevocationStore::open(&dir.join("passport.db")),
        None => RevocationStore::memory(),
    }
    .map_err(StartError::failed)?;
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    let auth = RonAuthorizer::from_section(
        "svc-passport",
        &config.section("auth"),
        &[],
        &chassis.registry,
        chassis.clock.clone(),
    )
    .map_err(StartError::config_text)?;
    auth.on_state(chassis.ready.hook("passports"));
    auth.spawn(&chassis.sup, &TOPOLOGY);
    chassis.authorizer = auth.clone();
    chassis.capabilities(&["issue", "oauth2_client_credentials", "revoke", "verify"]);

    let metrics = Metrics::new(&chassis.registry);
    let kms = Arc::new(kms(&settings, &chassis)?);
    let view = Arc::new(Snapshot::new(replay(&store)?));
    metrics.epoch.set(view.load().epoch() as i64);
    let stored = store.kept_jwks().map_err(StartError::failed)?;
    let (revoke_tx, revoke_rx) = queue(&REVOKE_QUEUE, REVOKE_QUEUE.capacity, &chassis.km);
    let (issue_tx, issue_rx) = queue(&ISSUE_QUEUE, settings.issue_queue, &chassis.km);
    let keys = Arc::new(keeper(
        &settings,
        &chassis,
        &metrics,
        (&kms, stored, revoke_tx.clone()),
    ));
    let policy = Arc::new(Snapshot::new(policy));
    let clients = Arc::new(Snapshot::new(Clients::new(settings.clients.clone())));

    spawn_revoker(&chassis, &metrics, store, &view, revoke_rx);
    spawn_issuers(
        &chassis,
        &settings,
        &metrics,
        (&kms, &keys, &view),
        issue_rx,
    );
    let (every, keeper) = (settings.kms_refresh, keys.clone());
    chassis.sup.spawn(&KEYS, move |ctx| keeper.run(ctx, every));
    on_reload(&chassis, &auth, &policy, &clients);

    let local = parts.api.local_addr().map_err(StartError::failed)?;
    let api = Arc::new(Api {
        public_url: settings
            .public_url
            .unwrap_or_else(|| format!("http://{local}")),
        issuer_url: settings.issuer,
        policy,
        ttl_s_default: settings.ttl_s_default,
        clients,
        keys,
        view,
        issue: issue_tx,
        revoke: revoke_tx,
        clock: chassis.clock.clone(),
        metrics,
    });
    chassis.on_drained(move || drop(data));
    chassis.serve(api::router(&api))
}

/// The signed policy; one older than `at_least` is refused.
fn load_policy(settings: &Settings, at_least: u64) -> Result<IssuerPolicy, String> {
    let signed =
        signed_policy::load::<IssuerPolicy>(&settings.policy_dir, "issuer", &settings.policy_keys)
            .map_err(|e| e.to_string())?;
    if signed.policy.version < at_least {
        return Err(format!(
            "policy issuer.json has version {}, older than {at_least} which is in force",
            signed.policy.version
        ));
    }
    Ok(signed.policy)
}

fn kms(settings: &Settings, chassis: &Chassis) -> Result<KmsClient, StartError> {
    let credential = match &settings.kms_token_file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text)?,
        None => Credential::none(),
    };
    Ok(KmsClient::new(
        &settings.kms_url,
        credential,
        chassis.client.clone(),
    ))
}

/// What the durable events say.
fn replay(store: &RevocationStore) -> Result<RevocationView, StartError> {
    let mut view = RevocationView::unchecked();
    let mut epoch = revoke::EPOCH_FIRST;
    loop {
        let page = store
            .page(view.after(), revoke::PAGE_MAX, epoch)
            .map_err(StartError::failed)?;
        let last = page.events.len() < revoke::PAGE_MAX;
        view.apply(&page, last, 0).map_err(StartError::failed)?;
        epoch = epoch.max(view.epoch());
        if last {
            return Ok(view);
        }
    }
}

fn keeper(
    settings: &Settings,
    chassis: &Chassis,
    metrics: &Metrics,
    (kms, stored, revoke): (&Arc<KmsClient>, Jwks, Sender<RevokeEvent>),
) -> KeyKeeper {
    let ready = chassis.ready.clone();
    ready.missing(
        "kms",
        "the signing keys were not read from the KMS yet: issuing is impossible",
    );
    let report = move |looked: Result<Option<&Jwks>, String>| match looked {
        Ok(changed) => {
            ready.present("kms");
            if let Some(jwks) = changed {
                // Kept by the one writer of the store; if its queue is full the next look tries again.
                let _ = revoke.try_send(RevokeEvent::KeepKeys(jwks.clone()));
            }
        }
        Err(why) => ready.missing("kms", format!("issuing is impossible: {why}")),
    };
    KeyKeeper::new(
        kms.clone(),
        settings.keys.clone(),
        settings.kms_timeout,
        stored,
        (metrics.clone(), chassis.km.clone()),
        report,
    )
}

fn spawn_revoker(
    chassis: &Chassis,
    metrics: &Metrics,
    store: RevocationStore,
    view: &Arc<Snapshot<RevocationView>>,
    events: Receiver<RevokeEvent>,
) {
    let revoker = Revoker::new(
        store,
        view.clone(),
        chassis.clock.clone(),
        metrics.clone(),
        chassis.ready.clone(),
    );
    chassis
        .sup
        .spawn(&REVOKER, move |ctx| revoker.run(ctx, &events));
}

fn spawn_issuers(
    chassis: &Chassis,
    settings: &Settings,
    metrics: &Metrics,
    (kms, keys, view): (
        &Arc<KmsClient>,
        &Arc<KeyKeeper>,
        &Arc<Snapshot<RevocationView>>,
    ),
    jobs: Receiver<issue::IssueJob>,
) {
    let km: KernelMetrics = chassis.km.clone();
    let issuer = Issuer {
        issuer_url: settings.issuer.clone(),
        kms: kms.clone(),
        kms_timeout: settings.kms_timeout,
        keys: keys.clone(),
        view: view.clone(),
        clock: chassis.clock.clone(),
        metrics: metrics.clone(),
        km,
    };
    chassis
        .sup
        .spawn_pool(&ISSUER, settings.workers, move |ctx| issuer.run(ctx, &jobs));
}

fn on_reload(
    chassis: &Chassis,
    auth: &Arc<RonAuthorizer>,
    policy: &Arc<Snapshot<IssuerPolicy>>,
    clients: &Arc<Snapshot<Clients>>,
) {
    let (auth, policy, clients) = (auth.clone(), policy.clone(), clients.clone());
    chassis.on_reload(move |config| {
        let settings = Settings::from_config(config).map_err(|why| why.join("; "))?;
        let new = load_policy(&settings, policy.load().version)?;
        auth.reload(&config.section("auth"))?;
        policy.store(new);
        clients.store(Clients::new(settings.clients));
        Ok(())
    });
}
