//! The one table of configuration keys, and the validated settings made from it.

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
        "Service token for ron-ledger, mode 0600.",
    ),
    Key::path(
        "policy.dir",
        "",
        "Directory with wallet.json and wallet.json.sig.",
    )
    .required(),
    Key::list(
        "policy.public_keys",
        "",
        "Ed25519 keys the policy must be signed with: base64url, or NAME=base64url.",
    )
    .required(),
    Key::text(
        "limits.per_op_minor",
        "100000000000000000000",
        "Most minor units of one operation.",
    ),
    Key::text(
        "limits.daily_minor",
        "10000000000000000000000",
        "Most minor units per account and UTC day.",
    ),
    Key::count(
        "wallet.committers",
        "0",
        "Threads that commit; 0 means one per core.",
    )
    .range("0", "64"),
    Key::duration(
        "ledger.silent_after",
        "120ms",
        "With a call under way and nothing heard from the ledger for so long, the service is not ready and refuses new writes.",
    )
    .range("10ms", "10s"),
    Key::duration(
        "ledger.hangs_after",
        "500ms",
        "The same when one call has been under way for so long, even while the ledger answers others.",
    )
    .range("10ms", "10s"),
    Key::count(
        "answers.keep",
        "1000000",
        "Entries whose answers are copied, so that requests sent again are answered while the ledger is away; at most 24 hours.",
    )
    .range("1000", "100000000"),
    Key::count(
        "balances.keep",
        "100000",
        "Accounts whose balance is remembered.",
    )
    .range("16", "10000000"),
    Key::count(
        "queues.work",
        "512",
        "Writes waiting for a committer, over all committers; full means 429.",
    )
    .range("1", "65536"),
];

/// Chassis defaults that this service changes.
static RATES: [Key; 3] = [
    Key::count(
        "limits.rate_per_second",
        "1000",
        "Requests per second for one caller.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.burst",
        "2000",
        "Requests a caller may send at once above the rate.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.read_share_percent",
        "10",
        "Share of a caller's burst that only requests that read (GET, HEAD) may use, so that writing at full rate does not shut them out.",
    )
    .range("0", "90")
    .reloadable(),
];

/// All keys of svc-wallet.
pub static TABLE: Table = Table {
    service: "svc-wallet",
    env_prefix: "SVC_WALLET_",
    keys: &[CHASSIS_KEYS, &LISTEN, &RATES, &KEYS],
};

/// Validated settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Ledger base URL.
    pub ledger_url: String,
    /// Service token for the ledger.
    pub ledger_token_file: Option<PathBuf>,
    /// Where the signed policy lies.
    pub policy_dir: PathBuf,
    /// The pinned policy key.
    pub policy_keys: KeyRing,
    /// Most minor units of one operation.
    pub per_op_max: Amount,
    /// Most minor units per account and day.
    pub daily_max: Amount,
    /// Committer threads.
    pub committers: usize,
    /// Capacity of each committer's queue.
    pub lane: usize,
    /// When the ledger is stalled.
    pub stalled_after: StalledAfter,
    /// Entries whose answers are copied.
    pub answers_keep: u64,
    /// Accounts whose balance is remembered.
    pub balances_keep: usize,
}

impl Settings {
    /// Checks what the table alone cannot.
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
            lane: config.usize("queues.work").div_ceil(committers),
            stalled_after: StalledAfter {
                silent: config.duration("ledger.silent_after"),
                hangs: config.duration("ledger.hangs_after"),
            },
            answers_keep: config.u64("answers.keep"),
            balances_keep: config.usize("balances.keep"),
        })
    }
}
