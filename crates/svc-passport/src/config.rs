//! The one table of configuration keys, and the validated settings made from it.

use std::path::PathBuf;
use std::time::Duration;

use ron_crypto::password;
use ron_proto::Kid;
use ron_proto::passport::TTL_S_MAX;
use ron_service::config::{CHASSIS_KEYS, Config, Key, Table, listen_keys};
use ron_service::pinned::{KeyRing, key_ring};

use crate::clients::Client;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7450", "127.0.0.1:7455");

/// One `[[clients]]` block.
const CLIENT_KEYS: &[Key] = &[
    Key::text("id", "", "client_id.")
        .range("1", "64")
        .required(),
    Key::text(
        "secret_hash",
        "",
        "Argon2id hash of the client's secret, in PHC form.",
    )
    .required()
    .secret(),
];

static KEYS: [Key; 14] = [
    Key::text(
        "issuer",
        "http://127.0.0.1:7450",
        "The iss of every token; a URL, compared byte for byte by verifiers.",
    ),
    Key::text(
        "public_url",
        "",
        "Base of the URLs in the issuer's metadata. Empty: the address the API listens on.",
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
        "KMS key that signs tokens with ES256, for audiences that ask for it.",
    ),
    Key::duration("kms.timeout", "3s", "Longest time for one call to the KMS.").range("10ms", "1m"),
    Key::duration(
        "kms.refresh_interval",
        "5s",
        "How often the keys are read from the KMS.",
    )
    .range("100ms", "1h"),
    Key::path(
        "policy.dir",
        "",
        "Directory with issuer.json and issuer.json.sig.",
    )
    .required(),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 keys the policy must be signed with: base64url, or NAME=base64url.",
    )
    .required(),
    Key::duration(
        "ttl.default",
        "15m",
        "Lifetime of a token where none is asked for.",
    )
    .range("1s", "1h")
    .reloadable(),
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

/// Validated settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `iss`.
    pub issuer: String,
    /// Base of published URLs, if set.
    pub public_url: Option<String>,
    /// KMS base URL.
    pub kms_url: String,
    /// Service token for the KMS.
    pub kms_token_file: Option<PathBuf>,
    /// Signing keys, EdDSA first.
    pub keys: Vec<Kid>,
    /// Longest KMS call.
    pub kms_timeout: Duration,
    /// Pause between looks at the keys.
    pub kms_refresh: Duration,
    /// Where the signed policy lies.
    pub policy_dir: PathBuf,
    /// The pinned policy key.
    pub policy_keys: KeyRing,
    /// Default lifetime, seconds.
    pub ttl_s_default: u64,
    /// Issuer threads.
    pub workers: usize,
    /// Capacity of the issue queue.
    pub issue_queue: usize,
    /// OAuth clients.
    pub clients: Vec<Client>,
    /// `None` in amnesia.
    pub data_dir: Option<PathBuf>,
}

impl Settings {
    /// Checks what the table alone cannot.
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
        let policy_keys = key_ring(config, "policy.public_keys", &mut problems);
        let mut clients: Vec<Client> = Vec::new();
        for block in config.tables("clients") {
            let client = Client {
                id: block.str("id").to_owned(),
                secret_hash: block.str("secret_hash").to_owned(),
            };
            if !password::is_hash(&client.secret_hash) {
                problems.push(format!(
                    "clients: secret_hash of {} is not an Argon2id hash",
                    client.id
                ));
            }
            if clients.iter().any(|c| c.id == client.id) {
                problems.push(format!("clients: {} is there twice", client.id));
            }
            clients.push(client);
        }
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
            public_url: config
                .str_opt("public_url")
                .map(|u| u.trim_end_matches('/').to_owned()),
            kms_url: config.str("kms.url").to_owned(),
            kms_token_file: config.path_opt("kms.token_file").map(PathBuf::from),
            keys,
            kms_timeout: config.duration("kms.timeout"),
            kms_refresh: config.duration("kms.refresh_interval"),
            policy_dir: config
                .path_opt("policy.dir")
                .map(PathBuf::from)
                .unwrap_or_default(),
            policy_keys,
            ttl_s_default: config.duration("ttl.default").as_secs().clamp(1, TTL_S_MAX),
            workers,
            issue_queue: config.usize("queues.issue"),
            clients,
            data_dir,
        })
    }
}
