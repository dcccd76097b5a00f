//! The issuer's configuration keys, and the settings made from them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::policy_note::NAMES_MAX;
use ron_proto::caveat::{CaveatMaxima, IpBlock};
use ron_proto::passport::TTL_S_MAX;
use ron_proto::{Alg, Kid, Timestamp};
use ron_service::config::{Blocks, ByteSize, Uid};
use ron_service::log_host::archive::ArchiveKeys;
use ron_service::log_host::asker::WitnessKeys;
use ron_service::pinned::KeyRing;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use crate::clients::{Client, SECRETS_MAX, SecretHash, client_keys};
use crate::names::{Former, Names};
use crate::policy::{Limits, PqMode, pq_alg};
use crate::sync::Source;

ron_service::settings! {
    /// One `[[clients]]` block.
    pub struct ClientKeys {
        /// The client_id of the client.
        "id" => id: String, range("1", "64");
        /// SHA-256 of the client's secret in hex, as `ron client secret` prints it; two while one
        /// replaces the other. An end of validity follows an @, as in HEX@2027-01-01T00:00:00Z.
        "secret_sha256" => secrets: Vec<SecretHash>;
        /// SHA-256 of client certificates (DER), 64 hex digits each, with which the client
        /// authenticates over TLS.
        "certs" => certs: Vec<String>;
        /// DNS names; a certificate issued under tls.client_ca_path with one of them authenticates
        /// the client.
        "dns_names" => dns_names: Vec<String>;
        /// Public keys of a client that signs assertions (private_key_jwt): a JWK set in JSON, or
        /// one JWK.
        "jwks" => jwks: Option<String>;
    }
}

ron_service::settings! {
    /// One `[[former]]` block.
    pub struct FormerKeys {
        /// The iss that its tokens had.
        "issuer" => issuer: String, range("1", "256");
        /// public_url[0] of that time; the name when absent.
        "public_url" => public_url: Option<String>;
        /// The KMS keys that signed tokens with it: they stay published until the last token has expired.
        "keys" => keys: Vec<Kid>;
        /// When tokens with it were issued no more, as in 2027-01-01T00:00:00.000Z.
        "moved" => moved: Timestamp;
    }
}

ron_service::settings! {
    pub struct Keys {
        /// The iss of every token; a URL, compared byte for byte by verifiers. `ron issuer move` changes it.
        "issuer" => issuer: String = "http://127.0.0.1:7450", restart(Documents);
        /// PostgreSQL database that keeps the log of revocations on two hosts, as libpq takes it; then any number of issuers of one
        /// `issuer` run, and `data_dir` holds a copy. Use addresses, and `passfile` instead of a password. Needs a build with the
        /// feature `postgres`.
        "log.url" => log_url: Option<String>, restart(Clients);
        /// Schema in the database.
        "log.schema" => log_schema: String = "svc_passport", restart(Clients);
        /// What makes a revocation durable beyond one host: `standby` for named synchronous standbys, `quorum` for any of several
        /// under a failover manager with a watchdog, `storage` for a database whose storage is replicated.
        "log.durability" => log_durability: EngineDurability = "standby", restart(Clients);
        /// Maximum time of one commit in the database; after it the commit's outcome is not known yet.
        "log.commit_within" => log_commit_within: Duration = "3s", range("100ms", "1m"), restart(Clients);
        /// With `log.url`: tokens are issued only while the end of the log was read within this time. It is read four times as often.
        "revocation_max_age" => revocation_max_age: Duration = "2s", range("500ms", "1m"), restart(Clients);
        /// PostgreSQL database in which ids of DPoP proofs and client assertions are recorded that were used, as libpq takes it: each
        /// counts once at all issuers of the database. Required with `log.url`. Without it they are in memory, and those of assertions
        /// in the data directory too.
        "records.url" => records_url: Option<String>, restart(Clients);
        /// Schema in the database.
        "records.schema" => records_schema: String = "svc_passport_records", restart(Clients);
        /// What makes a record durable beyond one host, as `log.durability`.
        "records.durability" => records_durability: EngineDurability = "standby", restart(Clients);
        /// Base URL of ron-kms.
        "kms.url" => kms_url: String = "http://127.0.0.1:7440", restart(Clients);
        /// Service token for ron-kms, mode 0600.
        "kms.token_file" => kms_token_file: Option<PathBuf>, restart(Clients);
        /// KMS key that signs tokens with EdDSA; payload policy jwt.
        "kms.key" => key: Kid, restart(Documents);
        /// KMS key that signs tokens with ES256, for audiences that require it.
        "kms.key_es256" => key_es256: Option<Kid>, restart(Documents);
        /// KMS key that signs tokens with RS256, for audiences whose libraries know nothing else; rsa-2048 or longer.
        "kms.key_rs256" => key_rs256: Option<Kid>, restart(Documents);
        /// KMS key that signs the policy note; payload policy note. Empty: no note is served.
        "kms.note_key" => note_key: Option<Kid>, restart(Documents);
        /// A second KMS key that signs the policy note too, while auth.note_vkey of the services is
        /// changed to it.
        "kms.note_key_next" => note_key_next: Option<Kid>, restart(Documents);
        /// Post-quantum tokens: off; mirror (for audiences whose policy names them; without the key
        /// a classical token marked pq.fallback); require (no token without an ML-DSA signature).
        "pq.mode" => pq_mode: PqMode = "off", reloadable;
        /// KMS key that signs tokens with ML-DSA; payload policy jwt.
        "pq.key" => pq_key: Option<Kid>, restart(Documents);
        /// Maximum time of one call to the KMS.
        "kms.timeout" => kms_timeout: Duration = "3s", range("10ms", "1m"), restart(Clients);
        /// How often the keys are read from the KMS.
        "kms.refresh_interval" => kms_refresh: Duration = "5s", range("100ms", "1h"), restart(Threads);
        /// How long verifiers may keep the key sets and the metadata (Cache-Control: max-age). rotation.prepublish of ron-kms
        /// must be longer, and 30 seconds at least, which is how long many verifiers wait between two reads.
        "jwks.max_age" => jwks_max_age: Duration = "1m", range("1s", "24h"), restart(Documents);
        /// How long a key that the KMS lets sign at once is published before it signs; requests wait for it. Services of this
        /// installation have the key by then, verifiers that cache keys do not (see rotation.prepublish of ron-kms).
        "rotation.hold" => hold: Duration = "750ms", range("0s", "5s"), restart(Threads);
        /// Directory with issuer.json and issuer.json.sig.
        "policy.dir" => policy_dir: Option<PathBuf>, restart(Files);
        /// Base URL of issuer.json and issuer.json.sig; when set, it is read instead of policy.dir.
        "policy.url" => policy_url: Option<String>, restart(Clients);
        /// How often the policy is read again, with 20 percent jitter.
        "policy.poll_interval" => policy_poll: Duration = "30s", range("100ms", "24h"), restart(Threads);
        /// Ed25519 keys the policy must be signed with: base64url, or NAME=base64url.
        "policy.public_keys" => policy_keys: KeyRing, required, restart(Trust);
        /// Authorities (PEM) of the URLs with the keys of other issuers; tls.peer_ca_path when absent. For public issuers
        /// the system's, as /etc/ssl/certs/ca-certificates.crt.
        "issuers.ca_path" => issuers_ca: Option<PathBuf>, restart(Files);
        /// How long it is kept which tokens were issued; those that may be valid are kept in any case.
        "issued.retention" => issued_retention: Duration = "2160h", range("1h", "87600h"), restart(Files);
        /// Maximum size of the records of issued tokens, 38 bytes for each; the oldest are deleted first.
        "issued.max_bytes" => issued_max_bytes: ByteSize = "10GiB", range("1MiB", "1TiB"), restart(Files);
        /// Lifetime of a token whose request names none.
        "ttl.default" => ttl: Duration = "15m", range("1s", "1h"), reloadable;
        /// Maximum budget.bytes that a request may name.
        "caveats.max_budget_bytes" => budget_bytes_max: ByteSize = "1MiB", range("1B", "1TiB"), reloadable;
        /// Maximum budget.reqs that a request may name.
        "caveats.max_budget_reqs" => budget_reqs_max: u64 = "100", range("1", "1000000000"), reloadable;
        /// Maximum rate.rps that a request may name.
        "caveats.max_rate_rps" => rate_rps_max: u64 = "5", range("1", "1000000"), reloadable;
        /// Require a fresh nonce in the DPoP proofs of token requests.
        "dpop.require_nonce" => require_nonce: bool = "false", restart(Documents);
        /// Signature checks a second that one peer may cause without authentication, and wrong client credentials a
        /// second that it may send to the OAuth endpoints; each in bursts of 512 or more; 0 for no limit. A peer is an address, a /64 network or a user of this host.
        "verify.checks_per_second" => checks_per_second: u32 = "10000", range("0", "1000000"), restart(Front);
        /// Addresses or blocks of gateways that call /v1/passport/forward over TCP. X-Forwarded-Method, -Uri and -For of listed gateways
        /// describe the request that a token is judged for: list only gateways that set all three themselves. trusted_proxies does not
        /// count here, since a proxy that names peers may pass the other two on as its caller has sent them.
        "forward.proxies" => forward_proxies: Vec<IpBlock>, restart(Front);
        /// User ids of gateways that call it through a Unix socket; they too must set all three headers themselves.
        "forward.proxy_uids" => forward_uids: Vec<Uid>, restart(Front);
        /// Threads that issue; 0 means one per core, at most 8.
        "issue.workers" => workers: usize = "0", range("0", "64"), restart(Threads);
        /// Grants waiting for a signature; full means 429.
        "queues.issue" => issue_queue: usize = "512", range("1", "65536"), restart(Queues);
        /// OAuth clients that may ask for tokens.
        "clients" => clients: Blocks<ClientKeys>, reloadable;
        /// Names that the issuer had before, the first one first, as `ron issuer move` writes them. Policy notes and the log of revocations
        /// are signed under the first one for good, so no block is removed.
        "former" => former: Blocks<FormerKeys>, restart(Documents);
        ..archive: ArchiveKeys;
        ..witness: WitnessKeys;
    }
}

/// All configuration keys of svc-passport.
pub static TABLE: Table = Table {
    service: "svc-passport",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7450"),
        (ChassisSettings::health_addr, "127.0.0.1:7455"),
    ],
    keys: Keys::GROUPS,
};

#[derive(Clone, Debug)]
pub struct Settings {
    pub keys: Keys,
    /// `iss`, now and before.
    pub names: Arc<Names>,
    /// Signing keys, EdDSA first.
    pub signing_keys: Vec<Kid>,
    /// Keys of the policy note, the next one last.
    pub note_keys: Vec<Kid>,
    /// Source of the signed policy.
    pub policy: Source,
    /// Default lifetime, maximum caveats, algorithms.
    pub limits: Limits,
    pub clients: Vec<Client>,
}

impl Settings {
    /// How old the revocations may be by which other nodes issue; `None` when there are no others.
    pub fn others_max_age(&self) -> Option<Duration> {
        self.keys
            .log_url
            .as_ref()
            .map(|_| self.keys.revocation_max_age)
    }

    /// The database of this issuer, if it has one.
    pub fn engine(&self) -> Option<Engine> {
        self.keys
            .log_engine()
            .or_else(|| self.keys.records_engine())
    }
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let keys: Keys = config.read().map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        if let Some(why) = keys.log_engine().and_then(|engine| engine.fault()) {
            problems.push(config.problem(Keys::log_url, why));
        }
        if let Some(why) = keys.records_engine().and_then(|engine| engine.fault()) {
            problems.push(config.problem(Keys::records_url, why));
        }
        if keys.log_url.is_some() && keys.records_url.is_none() {
            let why = "is not set, and log.url is: each of several issuers would take a proof or assertion once";
            problems.push(config.problem(Keys::records_url, why));
        }
        problems.extend(keys.archive.problem(config));
        check_pq(config, &keys, &mut problems);
        check_note_keys(config, &keys, &mut problems);
        check_kinds(config, &keys, &mut problems);
        let names = names(config, &keys, &mut problems);
        let clients = clients(config, &keys, &mut problems);
        let policy = match (&keys.policy_dir, &keys.policy_url) {
            (_, Some(url)) => Source::Url(url.trim_end_matches('/').to_owned()),
            (Some(dir), None) => Source::Dir(dir.clone()),
            (None, None) => {
                let why =
                    "is not set, and policy.url is not either: the issuer policy has no source";
                problems.push(config.problem(Keys::policy_dir, why));
                return Err(problems);
            }
        };
        if !problems.is_empty() {
            return Err(problems);
        }
        let signing_keys = std::iter::once(&keys.key)
            .chain(&keys.key_es256)
            .chain(&keys.key_rs256);
        let note_keys = keys.note_key.iter().chain(&keys.note_key_next);
        Ok(Self {
            names: Arc::new(names),
            signing_keys: signing_keys.cloned().collect(),
            note_keys: note_keys.cloned().collect(),
            policy,
            limits: limits(&keys),
            clients,
            keys,
        })
    }
}

impl Keys {
    /// The engine of the log of revocations; `None` when it is in files.
    pub fn log_engine(&self) -> Option<Engine> {
        Engine::named(self.log_url.as_ref(), &self.log_schema, self.log_durability)
    }

    /// The engine of used ids; `None` when they are this node's alone.
    pub fn records_engine(&self) -> Option<Engine> {
        Engine::named(
            self.records_url.as_ref(),
            &self.records_schema,
            self.records_durability,
        )
    }
}

/// The names of the issuer, without slashes at their ends.
fn names(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) -> Names {
    let plain = |name: &str| name.trim_end_matches('/').to_owned();
    let names = Names {
        now: plain(&keys.issuer),
        former: keys
            .former
            .iter()
            .map(|block| Former {
                issuer: plain(&block.issuer),
                public_url: plain(block.public_url.as_ref().unwrap_or(&block.issuer)),
                keys: block.keys.clone(),
                moved: block.moved,
            })
            .collect(),
    };
    let mut problem = |why: String| problems.push(config.problem(Keys::former, why));
    if names.former.len() > NAMES_MAX {
        problem(format!("has more than {NAMES_MAX} blocks"));
    }
    if !names.former.is_sorted_by_key(|former| former.moved.0) {
        problem("has its blocks in another order than that of `moved`".to_owned());
    }
    for former in &names.former {
        if former.issuer.contains(char::is_whitespace) || former.issuer.is_empty() {
            problem(format!("has {:?}, which is no name", former.issuer));
        }
        if former.keys.contains(&keys.key) {
            problem(format!(
                "has kms.key in the block of {}: a key signs for one name alone",
                former.issuer
            ));
        }
    }
    names
}

/// The key of the policy note, and its successor during a change.
fn check_note_keys(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) {
    let why = match (&keys.note_key, &keys.note_key_next) {
        (None, Some(_)) => "needs kms.note_key, which it is to replace",
        (Some(now), Some(next)) if now == next => "is the same key as kms.note_key",
        _ => return,
    };
    problems.push(config.problem(Keys::note_key_next, why));
}

/// A key signs in the algorithm that its setting names.
fn check_kinds(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) {
    let p256 = |kid: &Kid| kid.alg == Alg::EcdsaP256;
    if keys.key_es256.as_ref().is_some_and(|kid| !p256(kid)) {
        problems.push(config.problem(Keys::key_es256, "must be an ecdsa-p256 key"));
    }
    if keys.key_rs256.as_ref().is_some_and(|kid| !kid.alg.is_rsa()) {
        let why = "must be an rsa-2048, -3072 or -4096 key";
        problems.push(config.problem(Keys::key_rs256, why));
    }
}

/// The ML-DSA key, which `pq.mode` other than off needs.
fn check_pq(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) {
    match &keys.pq_key {
        Some(kid) if pq_alg(kid.alg).is_none() => {
            let why = "must be an ml-dsa-44, -65 or -87 key";
            problems.push(config.problem(Keys::pq_key, why));
        }
        None if keys.pq_mode != PqMode::Off => {
            let why = format!("{} needs pq.key, an ML-DSA key", keys.pq_mode.as_str());
            problems.push(config.problem(Keys::pq_mode, why));
        }
        _ => {}
    }
}

fn limits(keys: &Keys) -> Limits {
    let mut algs = vec!["EdDSA"];
    if keys.key_es256.is_some() {
        algs.push("ES256");
    }
    if keys.key_rs256.is_some() {
        algs.push("RS256");
    }
    Limits {
        ttl_s_default: keys.ttl.as_secs().clamp(1, TTL_S_MAX),
        maxima: CaveatMaxima {
            budget_bytes: keys.budget_bytes_max.0,
            budget_reqs: keys.budget_reqs_max,
            rate_rps: keys.rate_rps_max,
        },
        algs,
        pq: keys.pq_mode,
        pq_algs: keys.pq_key.as_ref().and_then(|kid| pq_alg(kid.alg)),
    }
}

fn clients(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    for block in keys.clients.iter() {
        let id = &block.id;
        let mut problem = |why: String| problems.push(config.problem(Keys::clients, why));
        let mut client = Client {
            id: id.clone(),
            secrets: block.secrets.clone(),
            keys: Vec::new(),
            certs: block.certs.clone(),
            dns_names: block.dns_names.clone(),
        };
        match &block.jwks {
            Some(jwks) => match client_keys(jwks) {
                Ok(keys) => client.keys = keys,
                Err(why) => problem(format!("has a client {id} with a bad jwks: {why}")),
            },
            None if client.secrets.is_empty() && !client.has_certs() => problem(format!(
                "has a client {id} without secret_sha256, jwks, certs and dns_names; set one of them"
            )),
            None => {}
        }
        if client.secrets.len() > SECRETS_MAX {
            problem(format!(
                "has a client {id} with more than {SECRETS_MAX} secrets; remove those that are not in use"
            ));
        }
        for cert in &mut client.certs {
            cert.make_ascii_lowercase();
            if cert.len() != 64 || cert.bytes().any(|b| !b.is_ascii_hexdigit()) {
                problem(format!(
                    "has a client {id} whose certs are not SHA-256 digests in 64 hex digits"
                ));
            }
        }
        if clients.iter().any(|c| c.id == *id) {
            problem(format!("has two clients with the id {id}"));
        }
        clients.push(client);
    }
    clients
}
