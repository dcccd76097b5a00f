//! The ledger's configuration keys, and the checked settings made from them.

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
        "The log's identity: first line of its checkpoints and name of its key. Never changes.",
    )
    .range("1", "200"),
    Key::list(
        "ledger.pool_prefixes",
        "pool:",
        "Accounts that reward epochs may be funded from, by prefix. Whatever is here, an epoch is funded from a pool of its tenant alone: pool:<tenant>/<name>.",
    )
    .reloadable(),
    Key::count(
        "ledger.snapshot_every",
        "1000000",
        "Entries between two snapshots of the state; a start replays at most these.",
    )
    .range("1000", "100000000"),
    Key::count(
        "ledger.accounts_max",
        "4000000000",
        "Accounts there may be; a request that would make one more is refused (limits_exceeded). Settlement is not bound by it.",
    )
    .range("1", "4000000000"),
    Key::text(
        "ledger.account_total_max_minor",
        "340282366920938463463374607430768211455",
        "Most minor units of one asset in one account; issue, transfer and capture that would bring it above are refused (limits_exceeded). Settlement is not bound by it. The default is as much as can ever be issued.",
    ),
    Key::bool(
        "ledger.projection",
        true,
        "Feed the SQLite projection (history endpoint, queries).",
    ),
    Key::count(
        "queues.commits",
        "1024",
        "Commits waiting for the writer; the next gets 429.",
    )
    .range("1", "65536"),
];

/// All keys.
pub static TABLE: Table = Table {
    service: "ron-ledger",
    env_prefix: "RON_LEDGER_",
    keys: &[CHASSIS_KEYS, &LISTEN, &OWN, &WITNESS_KEYS],
};

/// The service's topology, for the docs.
pub static TOPOLOGY: &Topology = &crate::topology::TOPOLOGY;

/// What the keys say, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    pub origin: String,
    pub pool_prefixes: Vec<String>,
    pub snapshot_every: u64,
    pub projection: bool,
    /// What is refused beyond the bounds of the format.
    pub limits: Limits,
    pub commits: usize,
    /// Who cosigns checkpoints.
    pub witness: Option<WitnessSettings>,
}

impl Settings {
    /// Checks what one key alone cannot tell.
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

/// The reloadable part.
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
