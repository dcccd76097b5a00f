//! The wallet's configuration keys.

use std::path::PathBuf;
use std::time::Duration;

use ron_kernel::BreakerLimits;
use ron_proto::Amount;
use ron_service::config::Blocks;
use ron_service::pinned::KeyRing;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use crate::balances::MaxAge;
use crate::upstream::{Attempts, CallLimits, StalledAfter};
use crate::webhooks::{self, Timing, WebhookKeys};

ron_service::settings! {
    pub struct Settings {
        /// Base URL of ron-ledger; the URLs of a ledger's nodes have commas between them, and calls go to the active one.
        "ledger.url" => ledger_url: String = "http://127.0.0.1:7460", restart(Clients);
        /// File with the service token for ron-ledger; mode 0600.
        "ledger.token_file" => ledger_token_file: Option<PathBuf>, restart(Clients);
        /// Directory that contains wallet.json and its signature wallet.json.sig.
        "policy.dir" => policy_dir: PathBuf, restart(Files);
        /// Ed25519 public keys, one of which must have signed the policy: base64url, or
        /// NAME=base64url.
        "policy.public_keys" => policy_keys: KeyRing, required, restart(Trust);
        /// Maximum amount of one operation, in minor units.
        "limits.per_op_minor" => per_op_max: Amount = "100000000000000000000", restart(Threads);
        /// Maximum amount per account and UTC day, in minor units.
        "limits.daily_minor" => daily_max: Amount = "10000000000000000000000", restart(Threads);
        /// Number of committer threads; 0 means one per core.
        "wallet.committers" => committers: usize = "0", range("0", "64"), restart(Threads);
        /// When a call is in flight and the ledger has answered nothing for this long, the service is
        /// not ready and refuses new writes.
        "ledger.silent_after" => silent_after: Duration = "120ms", range("10ms", "10s"), restart(Clients);
        /// When one call has been in flight for this long, the service is not ready and refuses new
        /// writes, even while the ledger answers other calls.
        "ledger.hangs_after" => hangs_after: Duration = "500ms", range("10ms", "10s"), restart(Clients);
        /// Maximum number of attempts of one commit, each of at most one second. A commit that was
        /// perhaps carried out is tried again too: its idempotency key makes that safe.
        "ledger.tries" => tries: u32 = "3", range("1", "10"), restart(Clients);
        /// Pause after the first attempt of a commit; each pause is twice the one before. A drain waits
        /// for the end of a pause.
        "ledger.retry_base" => retry_base: Duration = "50ms", range("1ms", "5s"), restart(Clients);
        /// Longest pause between two attempts of a commit, at least `ledger.retry_base`.
        "ledger.retry_cap" => retry_cap: Duration = "1s", range("1ms", "5s"), restart(Clients);
        /// Number of failed calls to the ledger within `ledger.breaker_window` after which the circuit
        /// breaker opens: writes are refused and no call is sent. Refusals by the ledger are not failures.
        "ledger.breaker_failures" => breaker_failures: usize = "20", range("1", "10000"), restart(Clients);
        /// Time in which failed calls to the ledger are counted.
        "ledger.breaker_window" => breaker_window: Duration = "10s", range("100ms", "10m"), restart(Clients);
        /// How long the circuit breaker stays open before it lets calls pass again to probe the ledger.
        "ledger.breaker_open" => breaker_open: Duration = "5s", range("100ms", "10m"), restart(Clients);
        /// Number of calls that must then succeed before all calls pass again; one that fails opens the
        /// circuit breaker again.
        "ledger.breaker_probes" => breaker_probes: u32 = "10", range("1", "1000"), restart(Clients);
        /// Maximum number of ledger entries kept in a local copy, so that repeated requests are
        /// answered while the ledger is unavailable.
        "answers.keep" => answers_keep: u64 = "1000000", range("1000", "100000000"), restart(Files);
        /// How long an answer is kept in the local copy and returned again, byte for byte but for the
        /// `request_id` of a refusal, without asking the ledger. The ledger itself knows every key for ever.
        "answers.keep_for" => answers_keep_for: Duration = "24h", range("1m", "720h"), restart(Files);
        /// Age up to which a balance is answered from the cache while the ledger answers, unless an entry
        /// has changed the account; 0ms asks the ledger each time.
        "balances.fresh_for" => balances_fresh_for: Duration = "250ms", range("0ms", "10s"), restart(Memory);
        /// Age up to which a balance is answered from the cache while the ledger is unavailable, at least
        /// `balances.fresh_for`; the answer states it (`stale_ms`). Older ones are refused with 503.
        "balances.stale_for" => balances_stale_for: Duration = "30s", range("0ms", "1h"), restart(Memory);
        /// Maximum number of accounts in the balance cache.
        "balances.keep" => balances_keep: usize = "100000", range("16", "10000000"), restart(Memory);
        /// Maximum number of writes waiting for a committer, over all committers; when full, writes get
        /// 429.
        "queues.work" => work: usize = "512", range("1", "65536"), restart(Queues);
        /// PostgreSQL database in which the wallet records keys whose outcome is unknown, as libpq takes it; every wallet of the
        /// database then answers for them. Use addresses, and `passfile` instead of a password. Without it they are in a file of
        /// the data directory. Needs a build with the feature `postgres`.
        "records.url" => records_url: Option<String>, restart(Clients);
        /// Schema in the database; wallets of one schema share their records.
        "records.schema" => records_schema: String = "svc_wallet", restart(Clients);
        /// What makes a record durable beyond one host: `standby` for named synchronous standbys, `quorum` for any of several
        /// under a failover manager with a watchdog, `storage` for a database whose storage is replicated.
        "records.durability" => records_durability: EngineDurability = "standby", restart(Clients);
        /// Endpoints that get a message for each entry of their accounts.
        "webhooks" => webhooks: Blocks<WebhookKeys>, restart(Clients);
        /// Maximum time of one delivery of a webhook message.
        "webhook.deadline" => webhook_deadline: Duration = "10s", range("100ms", "60s"), restart(Clients);
        /// Longest pause between two attempts to deliver a message; the first pause is one second, and
        /// each is twice the one before.
        "webhook.retry_cap" => webhook_retry_cap: Duration = "1h", range("1s", "24h"), restart(Clients);
        /// How long a message is tried; then its endpoint is disabled until it is resumed.
        "webhook.give_up_after" => webhook_give_up_after: Duration = "72h", range("1s", "720h"), restart(Clients);
    }
}

/// All configuration keys of svc-wallet.
pub static TABLE: Table = Table {
    service: "svc-wallet",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7470"),
        (ChassisSettings::health_addr, "127.0.0.1:7475"),
        (ChassisSettings::rate_per_second, "1000"),
        (ChassisSettings::burst, "2000"),
        (ChassisSettings::read_share_percent, "10"),
    ],
    keys: Settings::GROUPS,
};

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let settings: Self = config.read().map_err(|problem| vec![problem])?;
        let blocks = &settings.webhooks;
        let mut problems = Vec::new();
        if let Err(why) = webhooks::check(blocks) {
            problems.push(config.problem(Self::webhooks, why));
        }
        let secure = |block: &WebhookKeys| block.url.starts_with("https:");
        if blocks.iter().any(secure) && config.chassis().tls_peer_ca.is_none() {
            let why = "must be set: a webhook has an https URL, and its certificate must be verified \
                       (/etc/ssl/certs/ca-certificates.crt has the public authorities)";
            problems.push(config.problem(ChassisSettings::tls_peer_ca, why));
        }
        if settings.retry_cap < settings.retry_base {
            let why = "must not be shorter than ledger.retry_base, the first pause";
            problems.push(config.problem(Self::retry_cap, why));
        }
        if settings.balances_stale_for < settings.balances_fresh_for {
            let why = "must not be shorter than balances.fresh_for: a balance that is answered while the ledger \
                       answers would be refused while it does not";
            problems.push(config.problem(Self::balances_stale_for, why));
        }
        if let Some(why) = settings.records().and_then(|engine| engine.fault()) {
            problems.push(config.problem(Self::records_url, why));
        }
        if problems.is_empty() {
            Ok(settings)
        } else {
            Err(problems)
        }
    }
}

impl Settings {
    pub fn webhook_timing(&self) -> Timing {
        Timing {
            deadline: self.webhook_deadline,
            retry_cap: self.webhook_retry_cap,
            give_up_after: self.webhook_give_up_after,
        }
    }

    /// The engine of the records; `None` when they are in a file.
    pub fn records(&self) -> Option<Engine> {
        Engine::named(
            self.records_url.as_ref(),
            &self.records_schema,
            self.records_durability,
        )
    }

    pub fn balance_age(&self) -> MaxAge {
        MaxAge {
            fresh: self.balances_fresh_for,
            stale: self.balances_stale_for,
        }
    }

    pub fn call_limits(&self) -> CallLimits {
        CallLimits {
            stalled_after: StalledAfter {
                silent: self.silent_after,
                hangs: self.hangs_after,
            },
            attempts: Attempts {
                tries: self.tries,
                base: self.retry_base,
                cap: self.retry_cap,
            },
            breaker: BreakerLimits {
                failures: self.breaker_failures,
                window: self.breaker_window,
                open_for: self.breaker_open,
                probes: self.breaker_probes,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A configuration with these lines, and whether it is accepted.
    fn read(lines: &str) -> Result<Settings, String> {
        let text = format!(
            "amnesia = true\n[policy]\ndir = \"/etc/x\"\npublic_keys = [\"{}\"]\n{lines}",
            ron_proto::b64::url(&[7; 32])
        );
        let file = Some((Path::new("test.toml"), text.as_str()));
        let problems = |found: Vec<ConfigProblem>| {
            let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
            lines.join("\n")
        };
        let config = Config::load(&TABLE, file, &|_| None, &[]).map_err(problems)?;
        Settings::from_config(&config).map_err(problems)
    }

    #[test]
    fn limits_of_calls_and_ages_are_those_of_the_configuration() {
        let ms = Duration::from_millis;
        let default = read("").unwrap();
        assert_eq!(default.call_limits().breaker, BreakerLimits::default());
        let Attempts { tries, base, cap } = default.call_limits().attempts;
        assert_eq!((tries, base, cap), (3, ms(50), ms(1_000)));
        let MaxAge { fresh, stale } = default.balance_age();
        assert_eq!((fresh, stale), (ms(250), ms(30_000)));
        assert_eq!(default.answers_keep_for, Duration::from_hours(24));

        let set = read(
            "[ledger]\ntries = 5\nretry_base = \"20ms\"\nretry_cap = \"2s\"\nbreaker_failures = 7\n\
             breaker_window = \"3s\"\nbreaker_open = \"4s\"\nbreaker_probes = 2\n\
             [answers]\nkeep_for = \"48h\"\n[balances]\nfresh_for = \"0ms\"\nstale_for = \"5m\"\n",
        );
        let set = set.unwrap();
        let Attempts { tries, base, cap } = set.call_limits().attempts;
        assert_eq!((tries, base, cap), (5, ms(20), ms(2_000)));
        let breaker = BreakerLimits {
            failures: 7,
            window: ms(3_000),
            open_for: ms(4_000),
            probes: 2,
        };
        assert_eq!(set.call_limits().breaker, breaker);
        let MaxAge { fresh, stale } = set.balance_age();
        assert_eq!((fresh, stale), (ms(0), ms(300_000)));
        assert_eq!(set.answers_keep_for, Duration::from_hours(48));
    }

    #[test]
    fn limits_out_of_bounds_are_refused_by_name() {
        let check = |lines: &str, key: &str, says: &str| {
            let why = read(lines).unwrap_err();
            assert!(why.contains(key) && why.contains(says), "{lines}: {why}");
        };
        check("[ledger]\ntries = 0", "ledger.tries", "1");
        check("[ledger]\ntries = 11", "ledger.tries", "10");
        check("[ledger]\nretry_base = \"0ms\"", "ledger.retry_base", "1ms");
        check("[ledger]\nretry_cap = \"6s\"", "ledger.retry_cap", "5s");
        let pauses = "[ledger]\nretry_base = \"2s\"";
        check(pauses, "ledger.retry_cap", "ledger.retry_base");
        check("[ledger]\nbreaker_failures = 0", "breaker_failures", "1");
        check(
            "[ledger]\nbreaker_window = \"1ms\"",
            "breaker_window",
            "100ms",
        );
        check("[ledger]\nbreaker_open = \"1h\"", "breaker_open", "10m");
        check("[ledger]\nbreaker_probes = 0", "breaker_probes", "1");
        check("[answers]\nkeep_for = \"30s\"", "answers.keep_for", "1m");
        check(
            "[balances]\nfresh_for = \"11s\"",
            "balances.fresh_for",
            "10s",
        );
        check("[balances]\nstale_for = \"2h\"", "balances.stale_for", "1h");
        let has_engine = cfg!(feature = "postgres");
        let good =
            "[records]\nurl = \"postgresql://ron@10.0.0.1,10.0.0.2/ron?passfile=/etc/ron/pgpass\"";
        assert_eq!(read(good).is_ok(), has_engine, "{:?}", read(good).err());
        let secret = "[records]\nurl = \"postgresql://ron:secret@10.0.0.1/ron\"";
        let says = if has_engine { "passfile" } else { "postgres" };
        check(secret, "records.url", says);
        check(
            "[records]\ndurability = \"none\"",
            "records.durability",
            "standby",
        );
        let ages = "[balances]\nstale_for = \"100ms\"";
        check(ages, "balances.stale_for", "balances.fresh_for");
    }
}
