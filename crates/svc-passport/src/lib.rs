//! svc-passport: issues short-lived capability tokens that the KMS signs.
//!
//! ```text
//!  /issue, /oauth2/token ── policy ──> issue queue ──> pass-issue-* ── one sign_batch ──> ron-kms
//!        │                                                  └── token ──> answer
//!  /revoke, /events ──> revoke queue ──> pass-revoker ── SQLite, then view ──> answer, feed readers
//!  /status, /policy ──> publish queue ──> pass-publish ── signs what has changed ──> ron-kms
//!  pass-keys ── reads the keys every few seconds ──> snapshot: heads, JWKS
//!  pass-policy ── reads the signed policy from files or URL ──> snapshot
//! ```
//!
//! **Invariants**: this service holds no private key; `exp` is exactly `iat + ttl`; a token's `kid`
//! is always the key that signed it (the KMS call pins the version), and was published before; a
//! revocation is durable before it is answered; epochs and policy versions only grow, also across a
//! restart; without the KMS issuing stops, while verification and revocation go on.

pub mod api;
pub mod clients;
pub mod config;
pub mod dpop;
pub mod exchange;
pub mod issue;
mod keys;
mod lists;
pub mod metrics;
pub mod policy;
pub mod publish;
pub mod revoke;
#[cfg(test)]
mod samples;
pub mod sync;
pub mod token;
pub mod topology;

use std::sync::Arc;

use ron_auth::proofs::ProofCache;
use ron_auth::revocation::RevocationView;
use ron_auth::{RonAuthorizer, TokenCache};
use ron_client::{Credential, KmsClient};
use ron_files::{MemoryDisk, OsDisk};
use ron_kernel::{Receiver, Sender, Snapshot, queue};
use ron_proto::passport::Jwks;
use ron_service::{Chassis, Config, DataDir, Parts, Running, StartError, signed_policy};

use crate::api::Api;
use crate::clients::{ClientReject, Clients};
use crate::config::Settings;
use crate::dpop::Proofs;
use crate::issue::Issuer;
use crate::issue::health::IssueHealth;
use crate::keys::{KeeperParts, KeyKeeper, KeyRead};
use crate::lists::{KnownLists, Lists};
use crate::metrics::Metrics;
use crate::policy::{Limits, PqMode};
use crate::publish::holders::Holders;
use crate::publish::{PublishEvent, Publisher, PublisherParts};
use crate::revoke::{RevocationStore, RevokeEvent, Revoker};
use crate::sync::{InForce, PolicyKeeper, Source};
use crate::topology::{
    ASSERTIONS, ISSUE_QUEUE, ISSUER, KEYS, POLICY, PUBLISH_QUEUE, PUBLISHER, REVOKE_QUEUE, REVOKER,
    TOPOLOGY,
};

/// Maximum valid tokens in the cache, whose signatures are not verified again; 1 to 2 KiB each.
const TOKENS_REMEMBERED: usize = 4096;

/// State that the threads share.
struct Core {
    settings: Settings,
    /// Base of published URLs.
    public_url: String,
    metrics: Metrics,
    kms: Arc<KmsClient>,
    health: Arc<IssueHealth>,
    view: Arc<Snapshot<RevocationView>>,
    known: Arc<Snapshot<KnownLists>>,
    policy: Arc<Snapshot<Option<InForce>>>,
    holders: Arc<Holders>,
    /// The key set that is durable.
    kept: Arc<Snapshot<Jwks>>,
    revoke: Sender<RevokeEvent>,
}

/// Starts the service. Returns once its ports answer; the KMS may be unavailable.
pub fn start(config: Config, parts: Parts) -> Result<Running, StartError> {
    let settings =
        Settings::from_config(&config).map_err(|why| StartError::config_text(why.join("\n")))?;
    let data = DataDir::open(&config)?;
    let store = match &data {
        Some(dir) => RevocationStore::open(&dir.join("passport.db")),
        None => RevocationStore::memory(),
    }
    .map_err(StartError::failed)?;
    let mut chassis = Chassis::new(&TOPOLOGY, &config, &parts)?;
    let auth = authorizer(&mut chassis, &config)?;
    let (revoke, revoke_rx) = queue(&REVOKE_QUEUE, REVOKE_QUEUE.capacity, &chassis.km);
    let (issue, issue_rx) = queue(&ISSUE_QUEUE, settings.issue_queue, &chassis.km);
    let (publish, publish_rx) = queue(&PUBLISH_QUEUE, PUBLISH_QUEUE.capacity, &chassis.km);
    let core = Core::new(settings, &chassis, &store, revoke)?;
    let limits = Arc::new(Snapshot::new(core.settings.limits.clone()));
    let keys = Arc::new(core.keeper(&chassis, &limits));
    let policies = core.policies(&chassis)?;
    core.spawn(&chassis, store, &keys, (revoke_rx, issue_rx, publish_rx));
    // A policy in files must be good at start; one behind a URL may arrive later.
    if let Err(why) = policies.refresh()
        && matches!(core.settings.policy, Source::Dir(_))
    {
        return Err(StartError::config_text(why));
    }
    let assertions = Arc::new(ProofCache::new(&ASSERTIONS));
    let clients = Clients::new(core.settings.clients.clone(), assertions.clone());
    let clients = Arc::new(Snapshot::new(clients));
    on_reload(&chassis, &auth, &policies, (&clients, &limits, assertions));
    let every = core.settings.policy_poll;
    chassis
        .sup
        .spawn(&POLICY, move |ctx| policies.run(ctx, every));
    let api = Arc::new(Api {
        public_url: core.public_url,
        issuer_url: core.settings.issuer,
        policy: core.policy,
        limits,
        clients,
        proofs: Proofs::new(core.settings.require_nonce),
        auth,
        keys,
        judged: TokenCache::new(TOKENS_REMEMBERED),
        view: core.view,
        issue,
        revoke: core.revoke,
        publish,
        clock: chassis.clock.clone(),
        metrics: core.metrics,
    });
    // The data directory stays locked until the last thread has ended.
    chassis.on_drained(move || drop(data));
    chassis.serve(api::router(&api))
}

/// Builds the authorizer of both ports and starts its threads.
fn authorizer(chassis: &mut Chassis, config: &Config) -> Result<Arc<RonAuthorizer>, StartError> {
    let auth = RonAuthorizer::from_section(
        api::SERVICE,
        &config.section("auth"),
        &[],
        &chassis.registry,
        chassis.clock.clone(),
        chassis.peers.clone(),
        config.path_opt("data_dir"),
    )
    .map_err(StartError::config_text)?;
    auth.declare_reasons(ClientReject::ALL.map(ClientReject::reason));
    auth.declare_reasons(["issuer_policy", "proofs_several"]);
    auth.on_state(chassis.ready.hook("passports"));
    let causes = ["issue", "policy", "pq", "store", "verify"];
    chassis.ready.declare(&causes);
    auth.spawn(&chassis.sup, &TOPOLOGY);
    chassis.authorizer = auth.clone();
    chassis.capabilities(&[
        "dpop",
        "introspect",
        "issue",
        "oauth2_client_credentials",
        "revoke",
        "status_list",
        "token_exchange",
        "verify",
    ]);
    Ok(auth)
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

/// The record of holders, beside the store, or in memory with amnesia on.
fn holders(settings: &Settings) -> std::io::Result<Holders> {
    match &settings.data_dir {
        Some(dir) => Holders::open(Arc::new(OsDisk), dir.join("holders")),
        None => Holders::open(Arc::new(MemoryDisk::new()), "/holders".into()),
    }
}

/// File of the last signed policy note; `None` with amnesia on.
fn note_file(settings: &Settings) -> Option<std::path::PathBuf> {
    settings
        .data_dir
        .as_ref()
        .map(|dir| dir.join("policy.note"))
}

/// Rebuilds the view of revocations from the durable events.
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

type Queues = (
    Receiver<RevokeEvent>,
    Receiver<issue::IssueJob>,
    Receiver<PublishEvent>,
);

impl Core {
    fn new(
        settings: Settings,
        chassis: &Chassis,
        store: &RevocationStore,
        revoke: Sender<RevokeEvent>,
    ) -> Result<Self, StartError> {
        let core = Self {
            public_url: chassis.public_urls[0].clone(),
            metrics: Metrics::new(&chassis.registry),
            kms: Arc::new(kms(&settings, chassis)?),
            health: Arc::new(IssueHealth::new(chassis.ready.clone())),
            view: Arc::new(Snapshot::new(replay(store)?)),
            known: Arc::new(Snapshot::new(store.lists().map_err(StartError::failed)?)),
            policy: Arc::new(Snapshot::new(None)),
            holders: Arc::new(holders(&settings).map_err(StartError::failed)?),
            kept: Arc::new(Snapshot::new(
                store.kept_jwks().map_err(StartError::failed)?,
            )),
            revoke,
            settings,
        };
        core.metrics.epoch.set(core.view.load().epoch() as i64);
        Ok(core)
    }

    fn keeper(&self, chassis: &Chassis, limits: &Arc<Snapshot<Limits>>) -> KeyKeeper {
        let (limits, kept) = (limits.clone(), self.kept.clone());
        let stored = Jwks::clone(&kept.load());
        let (ready, revoke) = (chassis.ready.clone(), self.revoke.clone());
        let health = self.health.clone();
        if stored.keys.is_empty() {
            ready.missing("verify", "no key set is known yet");
        }
        let report = move |read: Result<KeyRead, String>| match read {
            Ok(read) => {
                let required = limits.load().pq == PqMode::Require;
                match read.pq {
                    Ok(()) => ready.clear("pq"),
                    Err(ref why) => ready.degrade("pq", format!("no ML-DSA signatures: {why}")),
                }
                health.keys(
                    read.pq
                        .or_else(|why| if required { Err(why) } else { Ok(()) }),
                );
                ready.present("verify");
                if let Some(jwks) = read.published {
                    revoke::store_keys(&revoke, &kept, jwks);
                }
            }
            Err(why) => health.keys(Err(why)),
        };
        let parts = KeeperParts {
            kms: self.kms.clone(),
            keys: self.settings.keys.clone(),
            pq_key: self.settings.pq_key.clone(),
            timeout: self.settings.kms_timeout,
            hold: self.settings.hold,
            view: self.view.clone(),
            clock: chassis.clock.clone(),
            metrics: self.metrics.clone(),
            km: chassis.km.clone(),
        };
        KeyKeeper::new(parts, stored, report)
    }

    /// The policy thread's state. A policy in files must be valid at start, and not older than any that was in force.
    fn policies(&self, chassis: &Chassis) -> Result<Arc<PolicyKeeper>, StartError> {
        let in_force = self.policy.clone();
        signed_policy::show_version(&chassis.registry, "issuer", move || {
            in_force.with(|now| now.as_ref().map_or(0, |now| now.policy.version))
        });
        let keeper = PolicyKeeper {
            source: self.settings.policy.clone(),
            keys: self.settings.policy_keys.clone(),
            http: chassis.client.clone(),
            policy: self.policy.clone(),
            view: self.view.clone(),
            revoke: self.revoke.clone(),
            ready: chassis.ready.clone(),
            km: chassis.km.clone(),
        };
        if matches!(keeper.source, Source::Dir(_)) {
            let read = keeper.read().and_then(|new| keeper.is_newer(&new));
            read.map_err(StartError::config_text)?;
        }
        Ok(Arc::new(keeper))
    }

    fn spawn(
        &self,
        chassis: &Chassis,
        store: RevocationStore,
        keys: &Arc<KeyKeeper>,
        (revocations, jobs, documents): Queues,
    ) {
        let revoker = Revoker::new(
            store,
            self.view.clone(),
            self.known.clone(),
            self.kept.clone(),
            (chassis.clock.clone(), self.metrics.clone()),
            chassis.ready.clone(),
        );
        let sup = &chassis.sup;
        sup.spawn(&REVOKER, move |ctx| revoker.run(ctx, &revocations));
        let issuer = Arc::new(self.issuer(chassis, keys));
        let tries = issuer.clone();
        sup.spawn_pool(&ISSUER, self.settings.workers, move |ctx| {
            issuer.run(ctx, &jobs);
        });
        let publisher = Publisher::new(PublisherParts {
            kms: (self.kms.clone(), self.settings.kms_timeout),
            keys: keys.clone(),
            note_keys: self.settings.note_keys.clone(),
            note_file: note_file(&self.settings),
            urls: (self.settings.issuer.clone(), self.public_url.clone()),
            view: self.view.clone(),
            policy: self.policy.clone(),
            known: self.known.clone(),
            holders: self.holders.clone(),
            watch: (chassis.clock.clone(), self.metrics.clone()),
        });
        sup.spawn(&PUBLISHER, move |ctx| publisher.run(ctx, &documents));
        let (every, keeper) = (self.settings.kms_refresh, keys.clone());
        sup.spawn(&KEYS, move |ctx| {
            keeper.run(ctx, every, |ctx| tries.recheck(ctx));
        });
    }

    fn issuer(&self, chassis: &Chassis, keys: &Arc<KeyKeeper>) -> Issuer {
        Issuer {
            issuer_url: self.settings.issuer.clone(),
            public_url: self.public_url.clone(),
            lists: Lists::default(),
            holders: self.holders.clone(),
            revoke: self.revoke.clone(),
            kms: self.kms.clone(),
            kms_timeout: self.settings.kms_timeout,
            keys: keys.clone(),
            health: self.health.clone(),
            view: self.view.clone(),
            clock: chassis.clock.clone(),
            metrics: self.metrics.clone(),
            km: chassis.km.clone(),
        }
    }
}

fn on_reload(
    chassis: &Chassis,
    auth: &Arc<RonAuthorizer>,
    policies: &Arc<PolicyKeeper>,
    (clients, limits, assertions): (
        &Arc<Snapshot<Clients>>,
        &Arc<Snapshot<Limits>>,
        Arc<ProofCache>,
    ),
) {
    let (auth, policies) = (auth.clone(), policies.clone());
    let (clients, limits) = (clients.clone(), limits.clone());
    chassis.on_reload(move |config| {
        let settings = Settings::from_config(config).map_err(|why| why.join("; "))?;
        policies.refresh()?;
        auth.reload(&config.section("auth"))?;
        limits.store(settings.limits);
        clients.store(Clients::new(settings.clients, assertions.clone()));
        Ok(())
    });
}
