//! Composition of the service: store, keys, policy, threads, queues, routes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::{ProofCache, RevocationView};
use ron_auth::{RonAuthorizer, TokenCache};
use ron_client::{Credential, KmsClient};
use ron_files::{Dir, MemoryDisk, SharedDisk};
use ron_http::{ClientConfig, ClientTls, ClientTlsFiles, HttpClient, Proxies};
use ron_kernel::atomic::AtomicBool;
use ron_kernel::{Receiver, Sender, Snapshot, TokenBuckets, Topology, queue};
use ron_proto::passport::{Jwks, VERIFY_BATCH_MAX};
use ron_service::kept_policy::KeptPolicy;
use ron_service::log_engine;
use ron_service::log_host::archive::{ArchiveAfter, ArchiveParts, LogArchive};
use ron_service::log_host::asker::Published;
use ron_service::log_host::cosign::WitnessTimes;
use ron_service::log_host::{Base, routes};
use ron_service::{Boot, Chassis, Running, Service, StartError, Table, signed_policy};
use ron_tlog::note::VerifierKey;

use crate::api::forwarded::Gateways;
use crate::api::{self, Api};
use crate::clients::{ClientReject, Clients, UsedAssertion};
use crate::dpop::Proofs;
use crate::external::ExternalReject;
use crate::external::keys::{self as issuer_keys, FetchedKeys, KeyReader};
use crate::issue::health::IssueHealth;
use crate::issue::numbers::Numbers;
use crate::issue::{self, Issuer};
use crate::keys::{KeeperParts, KeyKeeper, KeyRead};
use crate::lists::{KnownLists, Lists};
use crate::metrics::Metrics;
use crate::node::{self, Node};
use crate::once::{self, Once};
use crate::open::{Opened, open_register};
use crate::policy::{Limits, PqMode};
use crate::publish::holders::Holders;
use crate::publish::origins::Origins;
use crate::publish::{PublishEvent, Publisher, PublisherParts};
use crate::refused::ClientRefusals;
use crate::revoke::{self, Register, RevokeEvent, Revoker};
use crate::settings::{Keys, Settings, TABLE};
use crate::sync::{InForce, PolicyKeeper};
use crate::topology::{
    ASSERTIONS, ISSUE_QUEUE, ISSUER, ISSUERS, ISSUERS_QUEUE, KEYS, POLICY, PUBLISH_QUEUE,
    PUBLISHER, REVOKE_QUEUE, REVOKER, TOPOLOGY,
};
use crate::trail::{Retention, Trail};
use crate::witness;

/// Maximum valid tokens in the cache, whose signatures are not verified again; 1 to 2 KiB each.
const TOKENS_REMEMBERED: usize = 4096;
/// Maximum number of peers whose signature checks are counted at one time.
const PEERS_MAX: usize = 4096;

/// State that the threads share.
struct Core {
    settings: Settings,
    /// `None` with amnesia on.
    data_dir: Option<Dir>,
    /// Base of published URLs.
    public_url: String,
    metrics: Metrics,
    kms: Arc<KmsClient>,
    health: Arc<IssueHealth>,
    view: Arc<Snapshot<RevocationView>>,
    log_key: VerifierKey,
    known: Arc<Snapshot<KnownLists>>,
    policy: Arc<Snapshot<Option<InForce>>>,
    holders: Arc<Holders>,
    origins: Arc<Origins>,
    trail: Arc<Trail>,
    /// The key set that is durable.
    kept: Arc<Snapshot<Jwks>>,
    revoke: Sender<RevokeEvent>,
}

/// The issuer as a service.
pub struct SvcPassport;

impl Service for SvcPassport {
    type Settings = Settings;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;

    /// Starts the service. Returns once its ports answer; the KMS may be unavailable.
    fn start(boot: Boot<Settings>) -> Result<Running, StartError> {
        let Boot {
            settings,
            chassis,
            auth,
            data_dir,
        } = boot;
        let mut opened = open_register(&settings, data_dir.as_ref(), &chassis)?;
        let used = opened.register.store().assertions();
        let used = used.map_err(StartError::failed)?;
        let host = opened.host();
        declare(&chassis, &auth);
        let (revoke, revoke_rx) = queue(&REVOKE_QUEUE, REVOKE_QUEUE.capacity, &chassis.km);
        let (issue, issue_rx) = queue(&ISSUE_QUEUE, settings.keys.issue_queue, &chassis.km);
        let (publish, publish_rx) = queue(&PUBLISH_QUEUE, PUBLISH_QUEUE.capacity, &chassis.km);
        let core = Core::new(settings, data_dir, &chassis, &opened, revoke)?;
        let limits = Arc::new(Snapshot::new(core.settings.limits.clone()));
        let keys = Arc::new(core.keeper(&chassis, &limits));
        let policies = core.policies(&chassis)?;
        let queues = (revoke_rx, issue_rx, publish_rx);
        let node = opened.node.take();
        let head = node.as_ref().map(|node| node.head.clone());
        let witnesses = opened.witnesses.take();
        let times = witnesses.as_ref().map(|(_, times)| times.clone());
        let witness = witness::spawn(&chassis, witnesses, &host, head, core.revoke.clone());
        let register = (opened.register, node.as_ref(), witness);
        let archive_after = core.spawn(&chassis, register, &keys, queues);
        node::spawn(&chassis, node, host.reader.clone());
        follow_policy(&chassis, &policies, core.settings.keys.policy_poll);
        let assertions = Arc::new(ProofCache::new(&ASSERTIONS));
        let clients = core.clients(&assertions, &used, chassis.clock.unix_ms() / 1000);
        let logs = (times, archive_after);
        on_reload(&chassis, &policies, logs, (&clients, &limits, assertions));
        let once = node::once(&chassis, core.settings.keys.records_engine())?;
        let (issuer_keys, wanted_keys) = core.issuer_keys(&chassis)?;
        let api = Arc::new(Api {
            proofs: core.proofs(&chassis, once.as_ref()),
            others_max_age: core.settings.others_max_age(),
            public_url: core.public_url,
            certs_at: certs_at(&chassis),
            cached: format!(
                "public, max-age={}",
                core.settings.keys.jwks_max_age.as_secs()
            ),
            names: core.settings.names,
            policy: core.policy,
            policies,
            limits,
            clients,
            refusals: ClientRefusals::new(chassis.clock.clone()),
            once,
            proxies: proxies(&chassis),
            gateways: gateways(&core.settings.keys),
            issuer_keys,
            wanted_keys,
            auth,
            keys,
            checks: shares(core.settings.keys.checks_per_second),
            guesses: shares(core.settings.keys.checks_per_second),
            judged: TokenCache::new(TOKENS_REMEMBERED),
            view: core.view,
            issue,
            revoke: core.revoke,
            publish,
            clock: chassis.clock.clone(),
            metrics: core.metrics,
        });
        chassis.serve(api::router(&api).add_all(routes(Base::Revocations, &host)))
    }
}

/// The proxies that name the sender of a request.
fn proxies(chassis: &Chassis) -> Proxies {
    let listed = |config: &ron_service::Config| config.chassis().trusted_proxies.clone();
    Proxies::at(chassis.config.with(listed))
}

/// The gateways whose description of a request counts at the forward endpoint.
fn gateways(keys: &Keys) -> Gateways {
    Gateways {
        proxies: Proxies::at(keys.forward_proxies.clone()),
        uids: keys.forward_uids.clone(),
    }
}

/// Base of the URLs at which clients present certificates: of the address for them alone, else of
/// the only one, if it asks for them.
fn certs_at(chassis: &Chassis) -> Option<String> {
    let asked = chassis
        .config
        .with(|config| config.chassis().tls_client_ca.is_some());
    let bases = [&chassis.mtls_urls, &chassis.public_urls];
    let first = bases.into_iter().find_map(|urls| urls.first());
    first.filter(|_| asked).cloned()
}

/// Puts the signed policy in force, and starts the thread that does so again. The KMS may be unavailable: then it comes into force later.
fn follow_policy(chassis: &Chassis, policies: &Arc<PolicyKeeper>, every: Duration) {
    if let Err(why) = policies.refresh() {
        policies.refused(&why);
    }
    let keeper = policies.clone();
    chassis
        .sup
        .spawn(&POLICY, move |ctx| keeper.run(ctx, every));
}

/// Signature checks or wrong credentials by peer. A full batch always fits in a burst.
fn shares(per_second: u32) -> Option<TokenBuckets> {
    let burst = per_second.max(VERIFY_BATCH_MAX as u32);
    (per_second > 0).then(|| TokenBuckets::new(per_second, burst, PEERS_MAX))
}

/// Declares the reasons of refusals, the readiness causes and the capabilities.
fn declare(chassis: &Chassis, auth: &RonAuthorizer) {
    auth.declare_reasons(ClientReject::ALL.map(ClientReject::reason));
    auth.declare_reasons(ExternalReject::ALL.map(ExternalReject::reason));
    auth.declare_reasons(["client_guesses", "issuer_policy", "proofs_several"]);
    auth.declare_reasons(["proofs_untaken"]);
    let causes = [
        "issue", "issuers", "note", "policy", "pq", "store", "verify",
    ];
    chassis.ready.declare(&causes);
    chassis.ready.declare(&log_engine::CAUSES);
    chassis.ready.declare(&[revoke::READ_CAUSE, once::CAUSE]);
    chassis.ready.declare(&[witness::LOG_CAUSE, "witness"]);
    chassis.capabilities(&[
        "dpop",
        "introspect",
        "issue",
        "jwt_bearer",
        "oauth2_client_credentials",
        "revoke",
        "status_list",
        "token_exchange",
        "verify",
    ]);
}

fn kms(settings: &Settings, chassis: &Chassis) -> Result<KmsClient, StartError> {
    let credential = match &settings.keys.kms_token_file {
        Some(path) => Credential::from_file(path).map_err(StartError::config_text)?,
        None => Credential::none(),
    };
    Ok(KmsClient::new(
        &settings.keys.kms_url,
        credential,
        chassis.client.clone(),
    ))
}

fn issuer_threads(settings: &Settings, chassis: &Chassis) -> usize {
    chassis.sup.pool_size(settings.keys.workers, 8)
}

type Queues = (
    Receiver<RevokeEvent>,
    Receiver<issue::IssueJob>,
    Receiver<PublishEvent>,
);

impl Core {
    fn new(
        settings: Settings,
        data_dir: Option<Dir>,
        chassis: &Chassis,
        opened: &Opened,
        revoke: Sender<RevokeEvent>,
    ) -> Result<Self, StartError> {
        // Beside the store, or in memory with amnesia on.
        let (disk, home): (SharedDisk, _) = match &data_dir {
            Some(dir) => (dir.disk().clone(), dir.path()),
            None => (Arc::new(MemoryDisk::new()), Path::new("/")),
        };
        let holders = Holders::open(disk.clone(), home.join("holders"));
        let origins = Origins::open(disk.clone(), home.join("origins"));
        let store = opened.register.store();
        let grants = Arc::new(Snapshot::new(store.grants().map_err(StartError::failed)?));
        // In memory, no longer than tokens may be valid.
        let kept = data_dir.is_some().then_some(settings.keys.issued_retention);
        let retention = Retention {
            s: kept.unwrap_or_default().as_secs(),
            bytes_max: settings.keys.issued_max_bytes.0,
        };
        let trail = Trail::open(disk, home.join("issued"), grants, retention);
        let core = Self {
            public_url: chassis.public_urls[0].clone(),
            metrics: Metrics::new(&chassis.registry),
            kms: Arc::new(kms(&settings, chassis)?),
            health: Arc::new(IssueHealth::new(chassis.ready.clone())),
            view: Arc::new(Snapshot::new(opened.view.clone())),
            log_key: opened.log_key.clone(),
            known: Arc::new(Snapshot::new(store.lists().map_err(StartError::failed)?)),
            policy: Arc::new(Snapshot::new(None)),
            holders: Arc::new(holders.map_err(StartError::failed)?),
            origins: Arc::new(origins.map_err(StartError::failed)?),
            trail: Arc::new(trail.map_err(StartError::failed)?),
            kept: Arc::new(Snapshot::new(
                store.kept_jwks().map_err(StartError::failed)?,
            )),
            revoke,
            settings,
            data_dir,
        };
        core.metrics.epoch.set(core.view.load().epoch() as i64);
        Ok(core)
    }

    /// The clients of the configuration, with the assertions that they have used.
    fn clients(
        &self,
        assertions: &Arc<ProofCache>,
        used: &[UsedAssertion],
        now_s: u64,
    ) -> Arc<Snapshot<Clients>> {
        let clients = Clients::new(self.settings.clients.clone(), assertions.clone());
        clients.restore(used, now_s);
        Arc::new(Snapshot::new(clients))
    }

    fn proofs(&self, chassis: &Chassis, once: Option<&Arc<Once>>) -> Proofs {
        let require_nonce = self.settings.keys.require_nonce;
        Proofs::new(require_nonce, &*chassis.random, once.cloned())
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
            keys: self.settings.signing_keys.clone(),
            names: self.settings.names.clone(),
            pq_key: self.settings.keys.pq_key.clone(),
            timeout: self.settings.keys.kms_timeout,
            hold: self.settings.keys.hold,
            max_age: self.settings.keys.jwks_max_age,
            view: self.view.clone(),
            others: self.settings.keys.log_url.is_some(),
            clock: chassis.clock.clone(),
            metrics: self.metrics.clone(),
            km: chassis.km.clone(),
        };
        KeyKeeper::new(parts, stored, report)
    }

    /// The policy thread's state. A policy in files must be valid at the first start.
    fn policies(&self, chassis: &Chassis) -> Result<Arc<PolicyKeeper>, StartError> {
        let in_force = self.policy.clone();
        signed_policy::show_version(&chassis.registry, "issuer", move || {
            in_force.with(|now| now.as_ref().map_or(0, |now| now.policy.version))
        });
        let keeper = PolicyKeeper {
            source: self.settings.policy.clone(),
            disk: chassis.disk.clone(),
            keys: self.settings.keys.policy_keys.clone(),
            http: chassis.client.clone(),
            policy: self.policy.clone(),
            view: self.view.clone(),
            revoke: self.revoke.clone(),
            kept: KeptPolicy::new(self.data_dir.clone()),
            kms: self.kms.clone(),
            kms_timeout: self.settings.keys.kms_timeout,
            ready: chassis.ready.clone(),
            km: chassis.km.clone(),
            random: chassis.random.clone(),
            putting: AtomicBool::new(false),
        };
        keeper.resume().map_err(StartError::config_text)?;
        Ok(Arc::new(keeper))
    }

    /// Starts the threads; with an archive of the log, returns what a reload changes of it.
    fn spawn(
        &self,
        chassis: &Chassis,
        (register, node, witness): (Register, Option<&Node>, Option<Sender<Published>>),
        keys: &Arc<KeyKeeper>,
        (revocations, jobs, documents): Queues,
    ) -> Option<ArchiveAfter> {
        let parts = ArchiveParts {
            clock: &chassis.clock,
            ready: &chassis.ready,
            registry: &chassis.registry,
        };
        let archive = self.settings.keys.archive.of(register.archiver(), parts);
        let archive_after = archive.as_ref().map(LogArchive::after);
        let revoker = Revoker::new(
            register,
            self.view.clone(),
            self.known.clone(),
            (self.kept.clone(), self.trail.grants.clone()),
            (chassis.clock.clone(), self.metrics.clone()),
            chassis.ready.clone(),
        );
        let revoker = revoker.witnessed(witness);
        let revoker = match node {
            Some(node) => revoker.sharing(node.times()),
            None => revoker,
        };
        let sup = &chassis.sup;
        sup.spawn(&REVOKER, move |ctx| revoker.run(ctx, &revocations));
        let issuer = Arc::new(self.issuer(chassis, keys, node));
        let tries = issuer.clone();
        let workers = issuer_threads(&self.settings, chassis);
        sup.spawn_pool(&ISSUER, workers, move |ctx| {
            issuer.run(ctx, &jobs);
        });
        let publisher = Publisher::new(PublisherParts {
            kms: (self.kms.clone(), self.settings.keys.kms_timeout),
            keys: keys.clone(),
            note_keys: self.settings.note_keys.clone(),
            home: self.data_dir.clone(),
            urls: (self.settings.names.clone(), self.public_url.clone()),
            view: self.view.clone(),
            log_key: self.log_key.clone(),
            policy: self.policy.clone(),
            known: self.known.clone(),
            holders: self.holders.clone(),
            origins: self.origins.clone(),
            trail: self.trail.clone(),
            ready: chassis.ready.clone(),
            watch: (chassis.clock.clone(), self.metrics.clone()),
        });
        sup.spawn(&PUBLISHER, move |ctx| {
            publisher.run(ctx, &documents, archive.clone());
        });
        let (every, keeper) = (self.settings.keys.kms_refresh, keys.clone());
        sup.spawn(&KEYS, move |ctx| {
            keeper.run(ctx, every, |ctx| tries.recheck(ctx));
        });
        archive_after
    }

    /// Starts the thread that reads the keys of other issuers.
    fn issuer_keys(
        &self,
        chassis: &Chassis,
    ) -> Result<(Arc<Snapshot<FetchedKeys>>, Sender<String>), StartError> {
        let own = self.settings.keys.issuers_ca.clone().map(|ca| {
            let files = ClientTlsFiles { ca, identity: None };
            ClientTls::load(files).map_err(|e| StartError::config_text(e.to_string()))
        });
        let peers = chassis.peers.clone();
        let http = HttpClient::new(ClientConfig {
            max_response_bytes: issuer_keys::BYTES_MAX,
            breaker: None,
            tls: own.transpose()?.or_else(|| peers.tls.clone()),
            ..peers
        });
        let (wanted, asked) = queue(&ISSUERS_QUEUE, ISSUERS_QUEUE.capacity, &chassis.km);
        let keys = Arc::new(Snapshot::new(FetchedKeys::default()));
        let reader = KeyReader {
            http,
            policy: self.policy.clone(),
            keys: keys.clone(),
            ready: chassis.ready.clone(),
            km: chassis.km.clone(),
            clock: chassis.clock.clone(),
        };
        chassis
            .sup
            .spawn(&ISSUERS, move |ctx| reader.run(ctx, &asked));
        Ok((keys, wanted))
    }

    fn issuer(&self, chassis: &Chassis, keys: &Arc<KeyKeeper>, node: Option<&Node>) -> Issuer {
        Issuer {
            calls: ron_http::JointCalls::default(),
            names: self.settings.names.clone(),
            public_url: self.public_url.clone(),
            lists: Lists::default(),
            holders: self.holders.clone(),
            origins: self.origins.clone(),
            trail: self.trail.clone(),
            numbers: Numbers::new(self.trail.grants.clone(), self.revoke.clone()),
            revoke: self.revoke.clone(),
            kms: self.kms.clone(),
            kms_timeout: self.settings.keys.kms_timeout,
            keys: keys.clone(),
            health: self.health.clone(),
            view: self.view.clone(),
            head: node.map(|node| node.head.clone()),
            policy: self.policy.clone(),
            clock: chassis.clock.clone(),
            random: chassis.random.clone(),
            metrics: self.metrics.clone(),
            km: chassis.km.clone(),
        }
    }
}

fn on_reload(
    chassis: &Chassis,
    policies: &Arc<PolicyKeeper>,
    (witness_times, archive_after): (Option<WitnessTimes>, Option<ArchiveAfter>),
    (clients, limits, assertions): (
        &Arc<Snapshot<Clients>>,
        &Arc<Snapshot<Limits>>,
        Arc<ProofCache>,
    ),
) {
    let policies = policies.clone();
    let (clients, limits) = (clients.clone(), limits.clone());
    chassis.on_reload(move |settings: Settings| {
        policies.read_now()?;
        if let Some(times) = &witness_times {
            settings.keys.witness.change(times);
        }
        if let Some(after) = &archive_after {
            after.change(&settings.keys.archive);
        }
        limits.store(settings.limits);
        clients.store(Clients::new(settings.clients, assertions.clone()));
        Ok(())
    });
}
