//! The ledger's configuration keys, and the validated settings made from them.

use ron_kernel::Topology;
use ron_proto::Amount;
use ron_service::log_host::asker::{WITNESS_KEYS, WitnessSettings};
use ron_service::{CHASSIS_KEYS, Config, Key, Table, listen_keys};

use crate::core::Limits;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7460", "127.0.0.1:7465");

static OWN: [Key; 7] = [
    Key::text(
        "log.origin",
        "ron.local/ledger",
        "Identity of the log: the first line of its checkpoints and the name of its key. It cannot be changed later.",
    )
    .range("1", "200"),
    Key::list(
        "ledger.pool_prefixes",
        "pool:",
        "Prefixes of the accounts that may fund reward epochs. In any case an epoch is funded only from a pool of its own tenant: pool:<tenant>/<name>.",
    )
    .reloadable(),
    Key::count(
        "ledger.snapshot_every",
        "1000000",
        "Number of entries between two snapshots of the state; a start replays at most this many.",
    )
    .range("1000", "100000000"),
    Key::count(
        "ledger.accounts_max",
        "4000000000",
        "Maximum number of accounts; a request that would create one more is refused (limits_exceeded). Settlement is exempt.",
    )
    .range("1", "4000000000"),
    Key::text(
        "ledger.account_total_max_minor",
        "340282366920938463463374607430768211455",
        "Maximum balance of one account in one asset, in minor units; an issue, transfer or capture that would exceed it is refused (limits_exceeded). Settlement is exempt. The default is above what can ever be issued.",
    ),
    Key::bool(
        "ledger.projection",
        true,
        "Maintain the SQLite projection, which serves the history endpoint and ad-hoc queries.",
    ),
    Key::count(
        "queues.commits",
        "1024",
        "Maximum number of commits waiting for the writer; further ones get 429.",
    )
    .range("1", "65536"),
];

/// All configuration keys of ron-ledger.
pub static TABLE: Table = Table {
    service: "ron-ledger",
    env_prefix: "RON_LEDGER_",
    keys: &[CHASSIS_KEYS, &LISTEN, &OWN, &WITNESS_KEYS],
};

/// The service's topology, for the generated docs.
pub static TOPOLOGY: &Topology = &crate::topology::TOPOLOGY;

#[derive(Clone, Debug)]
pub struct Settings {
    pub origin: String,
    pub pool_prefixes: Vec<String>,
    pub snapshot_every: u64,
    pub projection: bool,
    /// The operator's limits, below those of the format.
    pub limits: Limits,
    pub commits: usize,
    /// Witnesses that cosign checkpoints.
    pub witness: Option<WitnessSettings>,
}

impl Settings {
    /// Checks what the key table cannot express.
    pub fn from_config(config: &Config) -> Result<Self, String> {
        let origin = config.str("log.origin").to_owned();
        if !ron_tlog::note::valid_name(&origin) {
            return Err("log.origin must be a key name: no spaces and no plus sign".to_owned());
        }
        Ok(Self {
            origin,
            pool_prefixes: pool_prefixes(config)?,
            snapshot_every: config.u64("ledger.snapshot_every"),
            projection: config.bool("ledger.projection"),
            limits: limits(config)?,
            commits: config.usize("queues.commits"),
            witness: WitnessSettings::from_config(config).map_err(|e| e.to_string())?,
        })
    }
}

fn limits(config: &Config) -> Result<Limits, String> {
    let name = "ledger.account_total_max_minor";
    let total: Amount = config
        .str(name)
        .parse()
        .map_err(|e| format!("{name}: {e}"))?;
    let accounts = u32::try_from(config.u64("ledger.accounts_max"))
        .map_err(|_| "ledger.accounts_max: there can be at most 4000000000".to_owned())?;
    Ok(Limits {
        accounts,
        account_total: total.0,
    })
}

/// The pool prefixes, which a reload may change.
pub fn pool_prefixes(config: &Config) -> Result<Vec<String>, String> {
    let list = config.list("ledger.pool_prefixes").to_vec();
    let good = |p: &String| !p.is_empty() && p.parse::<ron_proto::Account>().is_ok();
    match list.iter().find(|p| !good(p)) {
        Some(_) => {
            Err("ledger.pool_prefixes: each must be the beginning of an account name".to_owned())
        }
        None => Ok(list),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_acceptable_and_bad_values_are_not() {
        let check = |pairs: &[(&str, &str)]| {
            Config::from_pairs(&TABLE, pairs)
                .map_err(|p| p[0].to_string())
                .and_then(|c| Settings::from_config(&c))
        };
        let good = check(&[("data_dir", "/tmp/x")]).unwrap();
        assert_eq!(good.pool_prefixes, ["pool:"]);
        assert_eq!(good.limits, Limits::default(), "none but the format's");
        let tight = [
            ("ledger.accounts_max", "7"),
            ("ledger.account_total_max_minor", "1000"),
        ];
        let (accounts, account_total) = (7, 1_000);
        assert_eq!(
            check(&tight).unwrap().limits,
            Limits {
                accounts,
                account_total
            }
        );
        assert!(check(&[("ledger.account_total_max_minor", "1.5")]).is_err());
        assert!(check(&[("ledger.accounts_max", "4000000001")]).is_err());
        assert!(check(&[("log.origin", "two words")]).is_err());
        assert!(check(&[("ledger.pool_prefixes", "pool:,white space")]).is_err());
        assert!(check(&[("ledger.snapshot_evry", "5")]).is_err());
    }
}
