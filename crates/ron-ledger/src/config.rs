//! The ledger's configuration keys, and the checked settings made from them.

use ron_kernel::Topology;
use ron_service::log_host::asker::{WITNESS_KEYS, WitnessSettings};
use ron_service::{CHASSIS_KEYS, Config, Key, Table, listen_keys};

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7460", "127.0.0.1:7465");

static OWN: [Key; 5] = [
    Key::text(
        "log.origin",
        "ron.local/ledger",
        "The log's identity: first line of its checkpoints and name of its key. Never changes.",
    )
    .range("1", "200"),
    Key::list(
        "ledger.pool_prefixes",
        "pool:",
        "Accounts that reward epochs may be funded from, by prefix.",
    )
    .reloadable(),
    Key::count(
        "ledger.snapshot_every",
        "1000000",
        "Entries between two snapshots of the state; a start replays at most these.",
    )
    .range("1000", "100000000"),
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
            commits: config.usize("queues.commits"),
            witness: WitnessSettings::from_config(config).map_err(|e| e.to_string())?,
        })
    }
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
        assert!(check(&[("log.origin", "two words")]).is_err());
        assert!(check(&[("ledger.pool_prefixes", "pool:,white space")]).is_err());
        assert!(check(&[("ledger.snapshot_evry", "5")]).is_err());
    }
}
