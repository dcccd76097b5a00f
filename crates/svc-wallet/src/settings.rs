//! The wallet's configuration keys.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::Amount;
use ron_service::config::Blocks;
use ron_service::pinned::KeyRing;
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use crate::upstream::StalledAfter;
use crate::webhooks::{self, Timing, WebhookKeys};

ron_service::settings! {
    pub struct Settings {
        /// Base URL of ron-ledger.
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
        /// Maximum number of ledger entries kept in a local copy, so that repeated requests are
        /// answered while the ledger is unavailable; entries older than 24 hours are dropped.
        "answers.keep" => answers_keep: u64 = "1000000", range("1000", "100000000"), restart(Files);
        /// Maximum number of accounts in the balance cache.
        "balances.keep" => balances_keep: usize = "100000", range("16", "10000000"), restart(Memory);
        /// Maximum number of writes waiting for a committer, over all committers; when full, writes get
        /// 429.
        "queues.work" => work: usize = "512", range("1", "65536"), restart(Queues);
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

    pub fn stalled_after(&self) -> StalledAfter {
        StalledAfter {
            silent: self.silent_after,
            hangs: self.hangs_after,
        }
    }
}
