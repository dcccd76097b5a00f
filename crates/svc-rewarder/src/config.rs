//! The one table of configuration keys, and the validated settings made from it.

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
        "Directory with reward.json, reward-*.json and their .sig, each for the tenant it names.",
    ),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 keys whose policies are run: base64url, or NAME=base64url.",
    )
    .required(),
    Key::text(
        "ledger.url",
        "",
        "Base URL of ron-ledger; empty computes and never settles.",
    ),
    Key::path(
        "ledger.token_file",
        "",
        "Service token for ron-ledger, mode 0600.",
    ),
    Key::text(
        "ledger.principal",
        "svc-rewarder",
        "Name under which settlement entries are made.",
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
        "Ed25519 keys a manifest's signature must verify under, as policy.public_keys.",
    ),
    Key::duration(
        "upstream_timeout",
        "5s",
        "Longest time for one call to the ledger or the KMS.",
    )
    .range("10ms", "1m"),
    Key::bool(
        "auto_settle",
        true,
        "Settle every sealed epoch; if false, POST .../settle does.",
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
        "How long an uploaded or fetched snapshot is kept after it was last wanted; 0s keeps it for ever.",
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
        "URL of snapshots that are not here, with {hex} or {cid} for the content id; must answer ranges.",
    ),
    Key::path(
        "snapshot.token_file",
        "",
        "Bearer token for snapshot.url, mode 0600.",
    ),
    Key::size(
        "snapshot.min_rate",
        "64KiB",
        "Slowest source of snapshots, in bytes per second.",
    )
    .range("1KiB", "1GiB"),
    Key::size(
        "limits.max_snapshot_bytes",
        "4GiB",
        "Largest snapshot: body of an upload (413), or fetched from snapshot.url.",
    )
    .range("1KiB", "1TiB"),
    Key::count(
        "limits.max_rows",
        "1000000000",
        "Most rows of one upload, or accounts of one snapshot; more is 413. Packed formats can hold many in few bytes.",
    )
    .range("1", "1000000000000"),
    Key::size(
        "limits.import_memory",
        "256MiB",
        "About how much memory the rows of one upload take; what is beyond is sorted on disk.",
    )
    .range("1MiB", "64GiB"),
    Key::count("concurrency.jobs", "2", "Epochs computed at the same time.").range("1", "64"),
    Key::count(
        "concurrency.compute_workers",
        "0",
        "Threads that share the rows of an epoch; 0 means one per core.",
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

/// All keys of svc-rewarder.
pub static TABLE: Table = Table {
    service: "svc-rewarder",
    env_prefix: "SVC_REWARDER_",
    keys: &[CHASSIS_KEYS, &LISTEN, &KEYS],
};

/// Where to settle.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Ledger base URL.
    pub ledger_url: String,
    /// Service token for it.
    pub ledger_token_file: Option<PathBuf>,
    /// Our name in it.
    pub principal: PrincipalName,
    /// KMS base URL.
    pub kms_url: String,
    /// Service token for it.
    pub kms_token_file: Option<PathBuf>,
    /// The key that signs manifests.
    pub key: Kid,
}

/// Validated settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Operator's policies.
    pub policy_dir: Option<PathBuf>,
    /// Who may sign policies.
    pub policy_keys: KeyRing,
    /// What manifest signatures must verify under.
    pub manifest_keys: KeyRing,
    /// Where to settle; `None` computes only.
    pub settlement: Option<Settlement>,
    /// Budget of one upstream call.
    pub upstream_timeout: Duration,
    /// Settle by itself.
    pub auto_settle: bool,
    /// Budget of one computation.
    pub compute_budget: Duration,
    /// How long artifacts are kept; zero for ever.
    pub retention: Duration,
    /// How long a snapshot is kept after it was last wanted; zero for ever.
    pub snapshot_retention: Duration,
    /// Sealed snapshots beside the uploaded ones.
    pub snapshot_dir: Option<PathBuf>,
    /// Where snapshots are fetched from that are not here.
    pub snapshot_url: Option<String>,
    /// Bearer token for it.
    pub snapshot_token_file: Option<PathBuf>,
    /// Slowest source, in bytes per second.
    pub snapshot_min_rate: u64,
    /// Largest upload or fetched snapshot, in bytes.
    pub snapshot_bytes_max: u64,
    /// Most rows of one upload, and accounts of one snapshot.
    pub rows_max: u64,
    /// About how much memory the rows of one upload take, in bytes.
    pub import_memory: usize,
    /// Threads that seal uploads.
    pub imports: usize,
    /// Threads that take epochs.
    pub jobs: usize,
    /// Threads of the rayon pool.
    pub compute_workers: usize,
}

impl Settings {
    /// Checks what the table alone cannot.
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

/// All of ledger.url, kms.url and kms.key, or none of them.
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
