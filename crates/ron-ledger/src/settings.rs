//! The ledger's configuration keys.

use ron_proto::{Account, Amount};
use ron_service::config::NoteName;
use ron_service::log_host::asker::WitnessKeys;
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use crate::core::{Limits, REFUSALS_MAX};

ron_service::settings! {
    pub struct Settings {
        /// Identity of the log: the first line of its checkpoints and the name of its key. It cannot
        /// be changed later.
        "log.origin" => origin: NoteName = "ron.local/ledger", range("1", "200"), restart(Documents);
        /// Prefixes of the accounts that may fund reward epochs. In any case an epoch is funded only
        /// from a pool of its own tenant: pool:<tenant>/<name>.
        "ledger.pool_prefixes" => pool_prefixes: Vec<Account> = "pool:", reloadable;
        /// Number of entries between two snapshots of the state; a start replays at most this many.
        "ledger.snapshot_every" => snapshot_every: u64 = "1000000", range("1000", "100000000"), restart(Threads);
        /// Maximum number of accounts; a request that would create one more is refused
        /// (limits_exceeded). Settlement is exempt.
        "ledger.accounts_max" => accounts_max: u32 = "4000000000", range("1", "4000000000"), restart(Threads);
        /// Maximum balance of one account in one asset, in minor units; an issue, transfer or capture
        /// that would exceed it is refused (limits_exceeded). Settlement is exempt. The default is
        /// above what can ever be issued.
        "ledger.account_total_max_minor" => account_total_max: Amount = "340282366920938463463374607430768211455", restart(Threads);
        /// Whether an asset must be registered before money of it is issued; an issue of another is
        /// refused (asset_unregistered). Money that is there already can be moved all the same.
        "assets.strict" => strict_assets: bool = "false", restart(Threads);
        /// Maintain the SQLite projection, which serves the history endpoint and ad-hoc queries.
        "ledger.projection" => projection: bool = "true", restart(Threads);
        /// Maximum number of commits waiting for the writer; further ones get 429.
        "queues.commits" => commits: usize = "1024", range("1", "65536"), restart(Queues);
        ..witness: WitnessKeys;
    }
}

/// All configuration keys of ron-ledger.
pub static TABLE: Table = Table {
    service: "ron-ledger",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7460"),
        (ChassisSettings::health_addr, "127.0.0.1:7465"),
    ],
    keys: Settings::GROUPS,
};

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        config.read().map_err(|problem| vec![problem])
    }
}

impl Settings {
    /// The operator's limits, below those of the format.
    pub fn limits(&self) -> Limits {
        Limits {
            accounts: self.accounts_max,
            account_total: self.account_total_max.0,
            registered_assets: self.strict_assets,
            refusals: REFUSALS_MAX,
        }
    }

    pub fn prefixes(&self) -> Vec<String> {
        self.pool_prefixes.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_acceptable_and_bad_values_are_not() {
        let check = |pairs: &[(&str, &str)]| {
            Config::from_pairs(&TABLE, pairs).and_then(|c| Settings::from_config(&c))
        };
        let good = check(&[("data_dir", "/tmp/x")]).unwrap();
        assert_eq!(good.prefixes(), ["pool:"]);
        let format = Limits {
            refusals: REFUSALS_MAX,
            ..Limits::default()
        };
        assert_eq!(good.limits(), format, "none but the format's");
        let tight = [
            ("ledger.accounts_max", "7"),
            ("ledger.account_total_max_minor", "1000"),
            ("assets.strict", "true"),
        ];
        let (accounts, account_total) = (7, 1_000);
        assert_eq!(
            check(&tight).unwrap().limits(),
            Limits {
                accounts,
                account_total,
                registered_assets: true,
                ..format
            }
        );
        assert!(check(&[("ledger.account_total_max_minor", "1.5")]).is_err());
        assert!(check(&[("ledger.accounts_max", "4000000001")]).is_err());
        assert!(check(&[("log.origin", "two words")]).is_err());
        assert!(check(&[("ledger.pool_prefixes", "pool:,white space")]).is_err());
        assert!(check(&[("ledger.snapshot_evry", "5")]).is_err());
    }
}
