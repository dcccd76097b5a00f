//! The configuration keys, and the validated settings made from them.

use std::path::PathBuf;

use ron_proto::Amount;
use ron_service::config::{CHASSIS_KEYS, Config, Key, Table, listen_keys};
use ron_service::pinned::{KeyRing, key_ring};

use crate::upstream::StalledAfter;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7470", "127.0.0.1:7475");

static KEYS: [Key; 12] = [
    Key::text(
        "ledger.url",
        "http://127.0.0.1:7460",
        "Base URL of ron-ledger.",
    ),
    Key::path(
        "ledger.token_file",
        "",
        "File with the service token for ron-ledger; mode 0600.",
    ),
    Key::path(
        "policy.dir",
        "",
        "Directory that contains wallet.json and its signature wallet.json.sig.",
    )
    .required(),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 public keys, one of which must have signed the policy: base64url, or NAME=base64url.",
    )
    .required(),
    Key::text(
        "limits.per_op_minor",
        "100000000000000000000",
        "Maximum amount of one operation, in minor units.",
    ),
    Key::text(
        "limits.daily_minor",
        "10000000000000000000000",
        "Maximum amount per account and UTC day, in minor units.",
    ),
    Key::count(
        "wallet.committers",
        "0",
        "Number of committer threads; 0 means one per core.",
    )
    .range("0", "64"),
    Key::duration(
        "ledger.silent_after",
        "120ms",
        "When a call is in flight and the ledger has answered nothing for this long, the service is not ready and refuses new writes.",
    )
    .range("10ms", "10s"),
    Key::duration(
        "ledger.hangs_after",
        "500ms",
        "When one call has been in flight for this long, the service is not ready and refuses new writes, even while the ledger answers other calls.",
    )
    .range("10ms", "10s"),
    Key::count(
        "answers.keep",
        "1000000",
        "Maximum number of ledger entries kept in a local copy, so that repeated requests are answered while the ledger is unavailable; entries older than 24 hours are dropped.",
    )
    .range("1000", "100000000"),
    Key::count(
        "balances.keep",
        "100000",
        "Maximum number of accounts in the balance cache.",
    )
    .range("16", "10000000"),
    Key::count(
        "queues.work",
        "512",
        "Maximum number of writes waiting for a committer, over all committers; when full, writes get 429.",
    )
    .range("1", "65536"),
];

/// Chassis keys whose default differs in this service.
static RATES: [Key; 3] = [
    Key::count(
        "limits.rate_per_second",
        "1000",
        "Maximum sustained requests per second of one caller.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.burst",
        "2000",
        "Maximum burst: requests that one caller may send at once above the rate.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.read_share_percent",
        "10",
        "Percentage of a caller's burst reserved for reads (GET, HEAD), so that writing at full rate does not block them.",
    )
    .range("0", "90")
    .reloadable(),
];

/// All configuration keys of svc-wallet.
pub static TABLE: Table = Table {
    service: "svc-wallet",
    env_prefix: "SVC_WALLET_",
    keys: &[CHASSIS_KEYS, &LISTEN, &RATES, &KEYS],
};

#[derive(Clone, Debug)]
pub struct Settings {
    pub ledger_url: String,
    pub ledger_token_file: Option<PathBuf>,
    /// Directory of the signed policy.
    pub policy_dir: PathBuf,
    /// The pinned policy keys.
    pub policy_keys: KeyRing,
    /// Maximum minor units of one operation.
    pub per_op_max: Amount,
    /// Maximum minor units per account and UTC day.
    pub daily_max: Amount,
    /// Number of committer threads, at least 1.
    pub committers: usize,
    /// Capacity of each committer's queue.
    pub queue_capacity: usize,
    pub stalled_after: StalledAfter,
    /// Maximum entries in the copy of answers.
    pub answers_keep: u64,
    /// Maximum accounts in the balance cache.
    pub balances_keep: usize,
}

impl Settings {
    /// Checks what the key table cannot express.
    pub fn from_config(config: &Config) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let policy_keys = key_ring(config, "policy.public_keys", &mut problems);
        let mut amount = |name: &str| {
            config.str(name).parse().unwrap_or_else(|e| {
                problems.push(format!("{name}: {e}"));
                Amount(0)
            })
        };
        let per_op_max = amount("limits.per_op_minor");
        let daily_max = amount("limits.daily_minor");
        if !problems.is_empty() {
            return Err(problems);
        }
        let committers = match config.usize("wallet.committers") {
            0 => ron_kernel::cores(),
            n => n,
        };
        Ok(Self {
            ledger_url: config.str("ledger.url").to_owned(),
            ledger_token_file: config.path_opt("ledger.token_file").map(PathBuf::from),
            policy_dir: config
                .path_opt("policy.dir")
                .map(PathBuf::from)
                .unwrap_or_default(),
            policy_keys,
            per_op_max,
            daily_max,
            committers,
            queue_capacity: config.usize("queues.work").div_ceil(committers),
            stalled_after: StalledAfter {
                silent: config.duration("ledger.silent_after"),
                hangs: config.duration("ledger.hangs_after"),
            },
            answers_keep: config.u64("answers.keep"),
            balances_keep: config.usize("balances.keep"),
        })
    }
}
