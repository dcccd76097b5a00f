//! The one table of configuration keys, and the validated settings made from it.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::Kid;
use ron_proto::caveat::CaveatMaxima;
use ron_proto::passport::TTL_S_MAX;
use ron_service::config::{CHASSIS_KEYS, Config, Key, Table, listen_keys};
use ron_service::pinned::{KeyRing, key_ring};

use crate::clients::{Client, SECRETS_MAX, client_keys};
use crate::policy::{Limits, PqMode, pq_alg};
use crate::sync::Source;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7450", "127.0.0.1:7455");

const CLIENT_KEYS: &[Key] = &[
    Key::text("id", "", "client_id.")
        .range("1", "64")
        .required(),
    Key::list(
        "secret_sha256",
        "",
        "SHA-256 of the client's secret in hex, as `ron client secret` prints it; two while one replaces the other. An end of validity follows an @, as in HEX@2027-01-01T00:00:00Z.",
    ),
    Key::list(
        "certs",
        "",
        "SHA-256 of client certificates (DER), 64 hex digits each, with which the client authenticates over TLS.",
    ),
    Key::list(
        "dns_names",
        "",
        "DNS names; a certificate issued under tls.client_ca_path with one of them authenticates the client.",
    ),
    Key::text(
        "jwks",
        "",
        "Public keys of a client that signs assertions (private_key_jwt): a JWK set in JSON, or one JWK.",
    ),
];

static KEYS: [Key; 24] = [
    Key::text(
        "issuer",
        "http://127.0.0.1:7450",
        "The iss of every token; a URL, compared byte for byte by verifiers.",
    ),
    Key::text("kms.url", "http://127.0.0.1:7440", "Base URL of ron-kms."),
    Key::path(
        "kms.token_file",
        "",
        "Service token for ron-kms, mode 0600.",
    ),
    Key::text(
        "kms.key",
        "",
        "KMS key that signs tokens with EdDSA; payload policy jwt.",
    )
    .required(),
    Key::text(
        "kms.key_es256",
        "",
        "KMS key that signs tokens with ES256, for audiences that require it.",
    ),
    Key::text(
        "kms.note_key",
        "",
        "KMS key that signs the policy note; payload policy note. Empty: no note is served.",
    ),
    Key::text(
        "kms.note_key_next",
        "",
        "A second KMS key that signs the policy note too, while auth.note_vkey of the services is changed to it.",
    ),
    Key::text(
        "pq.mode",
        "off",
        "Post-quantum tokens: off; mirror (for audiences whose policy names them; without the key a classical \
         token marked pq.fallback); require (no token without an ML-DSA signature).",
    )
    .reloadable(),
    Key::text(
        "pq.key",
        "",
        "KMS key that signs tokens with ML-DSA; payload policy jwt.",
    ),
    Key::duration("kms.timeout", "3s", "Maximum time of one call to the KMS.").range("10ms", "1m"),
    Key::duration(
        "kms.refresh_interval",
        "5s",
        "How often the keys are read from the KMS.",
    )
    .range("100ms", "1h"),
    Key::duration(
        "rotation.hold",
        "750ms",
        "How long a new key is published before it signs; requests wait for it.",
    )
    .range("0s", "5s"),
    Key::path(
        "policy.dir",
        "",
        "Directory with issuer.json and issuer.json.sig.",
    ),
    Key::text(
        "policy.url",
        "",
        "Base URL of issuer.json and issuer.json.sig; when set, it is read instead of policy.dir.",
    ),
    Key::duration(
        "policy.poll_interval",
        "30s",
        "How often the policy is read again, with 20 percent jitter.",
    )
    .range("100ms", "24h"),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 keys the policy must be signed with: base64url, or NAME=base64url.",
    )
    .required(),
    Key::duration(
        "ttl.default",
        "15m",
        "Lifetime of a token whose request names none.",
    )
    .range("1s", "1h")
    .reloadable(),
    Key::size(
        "caveats.max_budget_bytes",
        "1MiB",
        "Maximum budget.bytes that a request may name.",
    )
    .range("1", "1TiB")
    .reloadable(),
    Key::count(
        "caveats.max_budget_reqs",
        "100",
        "Maximum budget.reqs that a request may name.",
    )
    .range("1", "1000000000")
    .reloadable(),
    Key::count(
        "caveats.max_rate_rps",
        "5",
        "Maximum rate.rps that a request may name.",
    )
    .range("1", "1000000")
    .reloadable(),
    Key::bool(
        "dpop.require_nonce",
        false,
        "Require a fresh nonce in the DPoP proofs of token requests.",
    ),
    Key::count(
        "issue.workers",
        "0",
        "Threads that issue; 0 means one per core, at most 8.",
    )
    .range("0", "64"),
    Key::count(
        "queues.issue",
        "512",
        "Grants waiting for a signature; full means 429.",
    )
    .range("1", "65536"),
    Key::tables("clients", CLIENT_KEYS, "OAuth clients.").reloadable(),
];

/// All keys of svc-passport.
pub static TABLE: Table = Table {
    service: "svc-passport",
    env_prefix: "SVC_PASSPORT_",
    keys: &[CHASSIS_KEYS, &LISTEN, &KEYS],
};

#[derive(Clone, Debug)]
pub struct Settings {
    /// `iss`.
    pub issuer: String,
    pub kms_url: String,
    /// Service token for the KMS.
    pub kms_token_file: Option<PathBuf>,
    /// Signing keys, EdDSA first.
    pub keys: Vec<Kid>,
    /// The ML-DSA key, if configured.
    pub pq_key: Option<Kid>,
    /// Maximum time of a KMS call.
    pub kms_timeout: Duration,
    /// Pause between two reads of the keys.
    pub kms_refresh: Duration,
    /// Keys of the policy note, the next one last.
    pub note_keys: Vec<Kid>,
    /// How long a new key is published before it signs.
    pub hold: Duration,
    /// Source of the signed policy.
    pub policy: Source,
    /// Pause between two reads of the policy.
    pub policy_poll: Duration,
    /// The pinned policy key.
    pub policy_keys: KeyRing,
    /// Default lifetime, maximum caveats, algorithms.
    pub limits: Limits,
    /// Whether DPoP proofs need a nonce.
    pub require_nonce: bool,
    pub workers: usize,
    /// Capacity of the issue queue.
    pub issue_queue: usize,
    pub clients: Vec<Client>,
    /// `None` with amnesia on.
    pub data_dir: Option<PathBuf>,
}

impl Settings {
    /// Reads the settings and checks keys that depend on each other.
    pub fn from_config(config: &Config) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut keys = Vec::new();
        for name in ["kms.key", "kms.key_es256"] {
            if let Some(text) = config.str_opt(name) {
                match text.parse() {
                    Ok(kid) => keys.push(kid),
                    Err(e) => problems.push(format!("{name}: {e}")),
                }
            }
        }
        let pq_key = pq_key(config, &mut problems);
        let policy_keys = key_ring(config, "policy.public_keys", &mut problems);
        let clients = clients(config, &mut problems);
        let note_keys = note_keys(config, &mut problems);
        let dir = config.path_opt("policy.dir").map(PathBuf::from);
        let url = config.str_opt("policy.url");
        let policy = match (dir, url) {
            (_, Some(url)) => Source::Url(url.trim_end_matches('/').to_owned()),
            (Some(dir), None) => Source::Dir(dir),
            (None, None) => {
                problems.push(
                    "the issuer policy has no source: set policy.dir or policy.url".to_owned(),
                );
                Source::Dir(PathBuf::new())
            }
        };
        let data_dir = config.path_opt("data_dir").map(PathBuf::from);
        if data_dir.is_none() && !config.bool("amnesia") {
            problems
                .push("data_dir is missing: name a directory, or set amnesia = true".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let workers = match config.usize("issue.workers") {
            0 => ron_kernel::cores().min(8),
            n => n,
        };
        Ok(Self {
            issuer: config.str("issuer").trim_end_matches('/').to_owned(),
            kms_url: config.str("kms.url").to_owned(),
            kms_token_file: config.path_opt("kms.token_file").map(PathBuf::from),
            keys,
            limits: limits(config, pq_key.as_ref()),
            pq_key,
            kms_timeout: config.duration("kms.timeout"),
            kms_refresh: config.duration("kms.refresh_interval"),
            note_keys,
            hold: config.duration("rotation.hold"),
            policy,
            policy_poll: config.duration("policy.poll_interval"),
            policy_keys,
            require_nonce: config.bool("dpop.require_nonce"),
            workers,
            issue_queue: config.usize("queues.issue"),
            clients,
            data_dir,
        })
    }
}

/// The key of the policy note, and its successor during a change.
fn note_keys(config: &Config, problems: &mut Vec<String>) -> Vec<Kid> {
    let mut keys = Vec::new();
    for name in ["kms.note_key", "kms.note_key_next"] {
        let Some(text) = config.str_opt(name) else {
            continue;
        };
        match text.parse::<Kid>() {
            Ok(kid) if keys.contains(&kid) => {
                problems.push(format!("{name} is the same key as kms.note_key"));
            }
            Ok(kid) => keys.push(kid),
            Err(e) => problems.push(format!("{name}: {e}")),
        }
    }
    let set = |name: &str| config.str_opt(name).is_some();
    if set("kms.note_key_next") && !set("kms.note_key") {
        problems.push("kms.note_key_next needs kms.note_key, which it is to replace".to_owned());
    }
    keys
}

/// The ML-DSA key, which `pq.mode` other than off needs.
fn pq_key(config: &Config, problems: &mut Vec<String>) -> Option<Kid> {
    let mode = config.str("pq.mode");
    let Some(parsed) = PqMode::parse(mode) else {
        problems.push(format!(
            "pq.mode: {mode} is not one of off, mirror, require"
        ));
        return None;
    };
    let Some(text) = config.str_opt("pq.key") else {
        if parsed != PqMode::Off {
            problems.push(format!("pq.mode {mode} needs pq.key, an ML-DSA key"));
        }
        return None;
    };
    match text.parse::<Kid>() {
        Ok(kid) if pq_alg(kid.alg).is_some() => return Some(kid),
        Ok(_) => problems.push("pq.key must be an ml-dsa-44, -65 or -87 key".to_owned()),
        Err(e) => problems.push(format!("pq.key: {e}")),
    }
    None
}

fn limits(config: &Config, pq_key: Option<&Kid>) -> Limits {
    let mut algs = vec!["EdDSA"];
    if config.str_opt("kms.key_es256").is_some() {
        algs.push("ES256");
    }
    Limits {
        ttl_s_default: config.duration("ttl.default").as_secs().clamp(1, TTL_S_MAX),
        maxima: CaveatMaxima {
            budget_bytes: config.size("caveats.max_budget_bytes"),
            budget_reqs: config.u64("caveats.max_budget_reqs"),
            rate_rps: config.u64("caveats.max_rate_rps"),
        },
        algs,
        pq: PqMode::parse(config.str("pq.mode")).unwrap_or_default(),
        pq_algs: pq_key.and_then(|kid| pq_alg(kid.alg)),
    }
}

fn clients(config: &Config, problems: &mut Vec<String>) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    for block in config.tables("clients") {
        let id = block.str("id").to_owned();
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mut client = Client {
            secrets: Vec::new(),
            keys: Vec::new(),
            certs: block.list("certs").to_vec(),
            dns_names: block.list("dns_names").to_vec(),
            id,
        };
        let id = &client.id;
        if let Some(jwks) = filled(block.str("jwks")) {
            match client_keys(&jwks) {
                Ok(keys) => client.keys = keys,
                Err(why) => problems.push(format!("clients: jwks of {id}: {why}")),
            }
        } else if block.list("secret_sha256").is_empty() && !client.has_certs() {
            problems.push(format!(
                "clients: {id} needs a secret_sha256, jwks, certs or dns_names"
            ));
        }
        for text in block.list("secret_sha256") {
            match text.parse() {
                Ok(kept) => client.secrets.push(kept),
                Err(why) => problems.push(format!("clients: secret_sha256 of {id}: {why}")),
            }
        }
        if client.secrets.len() > SECRETS_MAX {
            problems.push(format!(
                "clients: {id} has more than {SECRETS_MAX} secrets; remove those that are not in use"
            ));
        }
        for cert in &mut client.certs {
            cert.make_ascii_lowercase();
            if cert.len() != 64 || cert.bytes().any(|b| !b.is_ascii_hexdigit()) {
                problems.push(format!(
                    "clients: certs of {id} must be SHA-256 digests in 64 hex digits"
                ));
            }
        }
        if clients.iter().any(|c| c.id == *id) {
            problems.push(format!("clients: {id} is configured twice"));
        }
        clients.push(client);
    }
    clients
}
