//! The ledger's configuration keys.

use std::time::Duration;

use ron_proto::{Account, Amount};
use ron_service::config::NoteName;
use ron_service::log_host::archive::ArchiveKeys;
use ron_service::log_host::asker::WitnessKeys;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use crate::core::{Limits, REFUSALS_MAX};

ron_service::settings! {
    pub struct Settings {
        /// Identity of the log: the first line of its checkpoints and the name of its key. It cannot
        /// be changed later.
        "log.origin" => origin: NoteName = "ron.local/ledger", range("1", "200"), restart(Documents);
        /// PostgreSQL database that keeps the log on two hosts, as libpq takes it; then any number of ledgers of one origin run, one
        /// of which writes, and `data_dir` holds a copy. Use addresses, and `passfile` instead of a password. Needs a build with the
        /// feature `postgres`.
        "log.url" => log_url: Option<String>, restart(Clients);
        /// Schema in the database.
        "log.schema" => log_schema: String = "ron_ledger", restart(Clients);
        /// What makes an entry durable beyond one host: `standby` for named synchronous standbys, `quorum` for any of several
        /// under a failover manager with a watchdog, `storage` for a database whose storage is replicated.
        "log.durability" => log_durability: EngineDurability = "standby", restart(Clients);
        /// URL under which clients reach this node of a ledger with `log.url`; each node has its own.
        "log.node" => log_node: Option<String>, restart(Clients);
        /// Maximum time of one commit in the database; after it the commit's outcome is not known yet.
        "log.commit_within" => log_commit_within: Duration = "5s", range("100ms", "1m"), restart(Clients);
        /// A standby takes over when reads of the database have shown no sign of life of the node that writes for this long.
        "log.takeover_after" => log_takeover_after: Duration = "3s", range("2s", "1m"), restart(Clients);
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
        ..archive: ArchiveKeys;
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
        let settings: Self = config.read().map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        if let Some(why) = settings.engine().and_then(|engine| engine.url_fault()) {
            problems.push(config.problem(Self::log_url, why));
        }
        if settings.log_url.is_some() != settings.log_node.is_some() {
            let why =
                "log.url and log.node are set together: clients of a standby are told where to go";
            problems.push(config.problem(Self::log_node, why));
        }
        problems.extend(settings.archive.problem(config));
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(problems)
        }
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

    /// The engine of the log; `None` when it is in files.
    pub fn engine(&self) -> Option<Engine> {
        Engine::named(self.log_url.as_ref(), &self.log_schema, self.log_durability)
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
