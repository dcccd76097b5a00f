//! The table of configuration keys, and the validated settings made from it.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::ledger::PrincipalName;
use ron_proto::values::Kid;
use ron_service::config::{CHASSIS_KEYS, Config, Key, Table, listen_keys};
use ron_service::pinned::{KeyRing, key_ring};

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7480", "127.0.0.1:7485");

static KEYS: [Key; 30] = [
    Key::path(
        "policy.dir",
        "",
        "Directory with reward.json, reward-*.json and their .sig files; each policy serves the tenant it names.",
    ),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 public keys trusted to sign policies: base64url, or NAME=base64url.",
    )
    .required(),
    Key::text(
        "ledger.url",
        "",
        "Base URL of ron-ledger; if empty, epochs are computed and never settled.",
    ),
    Key::path(
        "ledger.token_file",
        "",
        "Service token for ron-ledger, mode 0600.",
    ),
    Key::text(
        "ledger.principal",
        "svc-rewarder",
        "Principal name of the rewarder in the ledger's settlement entries.",
    )
    .range("1", "160"),
    Key::text("kms.url", "", "Base URL of ron-kms, which signs manifests."),
    Key::path(
        "kms.token_file",
        "",
        "Service token for ron-kms, mode 0600.",
    ),
    Key::text(
        "kms.key",
        "",
        "KMS key that signs manifests: ron/manifest/ed25519/<uuid>, payload policy digest.",
    ),
    Key::list(
        "manifest.public_keys",
        "",
        "Ed25519 public keys that a manifest's signature must verify under; same form as policy.public_keys.",
    ),
    Key::duration(
        "upstream_timeout",
        "5s",
        "Timeout of one call to the ledger or the KMS.",
    )
    .range("10ms", "1m"),
    Key::bool(
        "auto_settle",
        true,
        "Settle every sealed epoch automatically; if false, POST /rewarder/epochs/{id}/settle does.",
    ),
    Key::duration(
        "epoch_duration",
        "1h",
        "Length of an epoch; a computation may take half of it.",
    )
    .range("1s", "720h"),
    Key::duration(
        "retention",
        "0s",
        "How long the artifacts of settled epochs and of dry runs are kept; 0s keeps them for ever.",
    )
    .range("0s", "87600h"),
    Key::duration(
        "snapshot.retention",
        "0s",
        "How long an uploaded or fetched snapshot is kept after its last use; 0s keeps it for ever.",
    )
    .range("0s", "87600h"),
    Key::path(
        "snapshot.dir",
        "",
        "Directory of sealed snapshots named <hex>.bin after their content id, beside the uploaded ones.",
    ),
    Key::text(
        "snapshot.url",
        "",
        "URL to fetch missing snapshots from, with {hex} or {cid} for the content id; the server must support ranges.",
    ),
    Key::path(
        "snapshot.token_file",
        "",
        "Bearer token for snapshot.url, mode 0600.",
    ),
    Key::size(
        "snapshot.min_rate",
        "64KiB",
        "Minimum rate of the snapshot source, in bytes per second; a slower fetch is given up.",
    )
    .range("1KiB", "1GiB"),
    Key::size(
        "limits.max_snapshot_bytes",
        "4GiB",
        "Maximum size of a snapshot: the body of an upload (413 above it), or a file fetched from snapshot.url.",
    )
    .range("1KiB", "1TiB"),
    Key::count(
        "limits.max_rows",
        "1000000000",
        "Maximum rows of one upload, or accounts of one snapshot; 413 above it. Compressed formats hold many rows in few bytes.",
    )
    .range("1", "1000000000000"),
    Key::size(
        "limits.import_memory",
        "256MiB",
        "Approximate memory for the rows of one upload; rows beyond it are sorted on disk.",
    )
    .range("1MiB", "64GiB"),
    Key::count("concurrency.jobs", "2", "Epochs computed at the same time.").range("1", "64"),
    Key::count(
        "concurrency.compute_workers",
        "0",
        "Threads that compute one epoch together; 0 means one per core.",
    )
    .range("0", "256"),
    Key::count(
        "concurrency.imports",
        "2",
        "Uploads sealed at the same time.",
    )
    .range("1", "16"),
    Key::count(
        "queues.imports",
        "16",
        "Complete uploads waiting to be sealed; full means 429.",
    )
    .range("1", "1024"),
    Key::count(
        "queues.work_req",
        "512",
        "Requests waiting for the scheduler; full means 429.",
    )
    .range("1", "65536"),
    Key::count("queues.work", "512", "Epochs waiting to be computed.").range("1", "65536"),
    Key::count(
        "queues.results",
        "512",
        "Computed epochs waiting to be written.",
    )
    .range("1", "65536"),
    Key::count(
        "queues.intents",
        "512",
        "Sealed epochs waiting to be settled.",
    )
    .range("1", "65536"),
    Key::count(
        "queues.updates",
        "1024",
        "Reports of the stages waiting for the scheduler.",
    )
    .range("1", "65536"),
];

pub static TABLE: Table = Table {
    service: "svc-rewarder",
    env_prefix: "SVC_REWARDER_",
    keys: &[CHASSIS_KEYS, &LISTEN, &KEYS],
};

#[derive(Clone, Debug)]
pub struct Settlement {
    pub ledger_url: String,
    /// File with the service token for the ledger.
    pub ledger_token_file: Option<PathBuf>,
    pub principal: PrincipalName,
    pub kms_url: String,
    /// File with the service token for the KMS.
    pub kms_token_file: Option<PathBuf>,
    /// KMS key that signs manifests.
    pub key: Kid,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub policy_dir: Option<PathBuf>,
    /// Keys whose policies are run.
    pub policy_keys: KeyRing,
    /// Keys that a manifest's signature must verify under before anything is paid.
    pub manifest_keys: KeyRing,
    /// `None` computes only and never settles.
    pub settlement: Option<Settlement>,
    /// Budget of one call to the ledger or the KMS.
    pub upstream_timeout: Duration,
    pub auto_settle: bool,
    /// Budget of one computation: half of `epoch_duration`.
    pub compute_budget: Duration,
    /// How long artifacts are kept; zero keeps them for ever.
    pub retention: Duration,
    /// How long a snapshot is kept after its last use; zero keeps it for ever.
    pub snapshot_retention: Duration,
    /// Sealed snapshots placed there by others, read beside the uploaded ones.
    pub snapshot_dir: Option<PathBuf>,
    /// URL template for snapshots that the library does not have.
    pub snapshot_url: Option<String>,
    /// File with the bearer token for `snapshot_url`.
    pub snapshot_token_file: Option<PathBuf>,
    /// A source slower than this is given up, in bytes per second.
    pub snapshot_min_rate: u64,
    /// Largest uploaded or fetched snapshot, in bytes.
    pub snapshot_bytes_max: u64,
    /// Maximum rows of one upload, and accounts of one snapshot.
    pub rows_max: u64,
    /// Approximate memory for the rows of one upload, in bytes.
    pub import_memory: usize,
    pub imports: usize,
    /// Epochs computed at the same time.
    pub jobs: usize,
    /// Threads of the rayon pool; the configuration's 0 has become the number of cores.
    pub compute_workers: usize,
}

impl Settings {
    /// Checks what spans several keys; the table has checked each key by itself.
    pub fn from_config(config: &Config) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let policy_keys = key_ring(config, "policy.public_keys", &mut problems);
        let manifest_keys = key_ring(config, "manifest.public_keys", &mut problems);
        let settlement = settlement(config, &mut problems);
        if settlement.is_some() && manifest_keys.is_empty() {
            problems.push("manifest.public_keys is empty; pin the public key of kms.key".into());
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            policy_dir: config.path_opt("policy.dir").map(PathBuf::from),
            policy_keys,
            manifest_keys,
            settlement,
            upstream_timeout: config.duration("upstream_timeout"),
            auto_settle: config.bool("auto_settle"),
            compute_budget: config.duration("epoch_duration") / 2,
            retention: config.duration("retention"),
            snapshot_retention: config.duration("snapshot.retention"),
            snapshot_dir: config.path_opt("snapshot.dir").map(PathBuf::from),
            snapshot_url: config.str_opt("snapshot.url").map(str::to_owned),
            snapshot_token_file: config.path_opt("snapshot.token_file").map(PathBuf::from),
            snapshot_min_rate: config.size("snapshot.min_rate"),
            snapshot_bytes_max: config.size("limits.max_snapshot_bytes"),
            rows_max: config.usize("limits.max_rows") as u64,
            import_memory: usize::try_from(config.size("limits.import_memory"))
                .unwrap_or(usize::MAX),
            imports: config.usize("concurrency.imports"),
            jobs: config.usize("concurrency.jobs"),
            compute_workers: match config.usize("concurrency.compute_workers") {
                0 => ron_kernel::cores(),
                workers => workers,
            },
        })
    }
}

/// Requires all of ledger.url, kms.url and kms.key, or none of them.
fn settlement(config: &Config, problems: &mut Vec<String>) -> Option<Settlement> {
    let set: Vec<(&str, Option<&str>)> = ["ledger.url", "kms.url", "kms.key"]
        .map(|key| (key, config.str_opt(key)))
        .into();
    if set.iter().all(|(_, value)| value.is_none()) {
        return None;
    }
    for (key, _) in set.iter().filter(|(_, value)| value.is_none()) {
        problems.push(format!(
            "{key} is not set; ledger.url, kms.url and kms.key belong together"
        ));
    }
    let mut note = |name: &str, error: String| problems.push(format!("{name}: {error}"));
    let key: Option<Kid> = config.str("kms.key").parse().map_or_else(
        |error: ron_proto::values::ValueError| {
            if config.str_opt("kms.key").is_some() {
                note("kms.key", error.to_string());
            }
            None
        },
        Some,
    );
    let principal: Option<PrincipalName> = config.str("ledger.principal").parse().map_or_else(
        |error: ron_proto::values::ValueError| {
            note("ledger.principal", error.to_string());
            None
        },
        Some,
    );
    Some(Settlement {
        ledger_url: config.str_opt("ledger.url")?.to_owned(),
        ledger_token_file: config.path_opt("ledger.token_file").map(PathBuf::from),
        principal: principal?,
        kms_url: config.str_opt("kms.url")?.to_owned(),
        kms_token_file: config.path_opt("kms.token_file").map(PathBuf::from),
        key: key?,
    })
}
