//! The rewarder's configuration keys, and the settings made from them.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::ledger::{LEDGER_PRINCIPAL, PrincipalName};
use ron_proto::values::Kid;
use ron_service::config::ByteSize;
use ron_service::pinned::KeyRing;
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

ron_service::settings! {
    pub struct Keys {
        /// Directory with reward.json, reward-*.json and their .sig files; each policy serves the
        /// tenant it names.
        "policy.dir" => policy_dir: Option<PathBuf>, restart(Files);
        /// Ed25519 public keys trusted to sign policies: base64url, or NAME=base64url.
        "policy.public_keys" => policy_keys: KeyRing, required, restart(Trust);
        /// Base URL of ron-ledger, or the URLs of its nodes with commas between them; if empty, epochs are computed and never
        /// settled.
        "ledger.url" => ledger_url: Option<String>, restart(Clients);
        /// Service token for ron-ledger, mode 0600.
        "ledger.token_file" => ledger_token_file: Option<PathBuf>, restart(Clients);
        /// Principal name of the rewarder in the ledger's settlement entries.
        "ledger.principal" => ledger_principal: PrincipalName = "svc-rewarder", range("1", "160"), restart(Documents);
        /// Base URL of ron-kms, which signs manifests.
        "kms.url" => kms_url: Option<String>, restart(Clients);
        /// Service token for ron-kms, mode 0600.
        "kms.token_file" => kms_token_file: Option<PathBuf>, restart(Clients);
        /// KMS key that signs manifests: ron/manifest/ed25519/<uuid>, payload policy digest.
        "kms.key" => kms_key: Option<Kid>, restart(Documents);
        /// Ed25519 public keys that a manifest's signature must verify under; same form as
        /// policy.public_keys.
        "manifest.public_keys" => manifest_keys: KeyRing, restart(Trust);
        /// Timeout of one call to the ledger or the KMS.
        "upstream_timeout" => upstream_timeout: Duration = "5s", range("10ms", "1m"), restart(Clients);
        /// Settle every sealed epoch automatically; if false, POST /rewarder/epochs/{id}/settle
        /// does.
        "auto_settle" => auto_settle: bool = "true", restart(Threads);
        /// Length of an epoch; a computation may take half of it.
        "epoch_duration" => epoch_duration: Duration = "1h", range("1s", "720h"), restart(Documents);
        /// How long the artifacts of settled epochs and of dry runs are kept; 0s keeps them for
        /// ever.
        "retention" => retention: Duration = "0s", range("0s", "87600h"), restart(Threads);
        /// How long an uploaded or fetched snapshot is kept after its last use; 0s keeps it for
        /// ever.
        "snapshot.retention" => snapshot_retention: Duration = "0s", range("0s", "87600h"), restart(Threads);
        /// Directory of sealed snapshots named <hex>.bin after their content id, beside the
        /// uploaded ones.
        "snapshot.dir" => snapshot_dir: Option<PathBuf>, restart(Files);
        /// URL to fetch missing snapshots from, with {hex} or {cid} for the content id; the server
        /// must support ranges.
        "snapshot.url" => snapshot_url: Option<String>, restart(Clients);
        /// Bearer token for snapshot.url, mode 0600.
        "snapshot.token_file" => snapshot_token_file: Option<PathBuf>, restart(Clients);
        /// Minimum rate of the snapshot source, in bytes per second; a slower fetch is given up.
        "snapshot.min_rate" => snapshot_min_rate: ByteSize = "64KiB", range("1KiB", "1GiB"), restart(Clients);
        /// Maximum size of a snapshot: the body of an upload (413 above it), or a file fetched from
        /// snapshot.url.
        "limits.max_snapshot_bytes" => snapshot_bytes_max: ByteSize = "4GiB", range("1KiB", "1TiB"), restart(Threads);
        /// Maximum rows of one upload, or accounts of one snapshot; 413 above it. Compressed
        /// formats hold many rows in few bytes.
        "limits.max_rows" => rows_max: u64 = "1000000000", range("1", "1000000000000"), restart(Threads);
        /// Approximate memory for the rows of one upload; rows beyond it are sorted on disk.
        "limits.import_memory" => import_memory: ByteSize = "256MiB", range("1MiB", "64GiB"), restart(Memory);
        /// Epochs computed at the same time.
        "concurrency.jobs" => jobs: usize = "2", range("1", "64"), restart(Threads);
        /// Threads that compute one epoch together; 0 means one per core.
        "concurrency.compute_workers" => compute_workers: usize = "0", range("0", "256"), restart(Threads);
        /// Uploads sealed at the same time.
        "concurrency.imports" => imports: usize = "2", range("1", "16"), restart(Threads);
        /// Complete uploads waiting to be sealed; full means 429.
        "queues.imports" => queue_imports: usize = "16", range("1", "1024"), restart(Queues);
        /// Requests waiting for the scheduler; full means 429.
        "queues.work_req" => queue_work_req: usize = "512", range("1", "65536"), restart(Queues);
        /// Epochs waiting to be computed.
        "queues.work" => queue_work: usize = "512", range("1", "65536"), restart(Queues);
        /// Computed epochs waiting to be written.
        "queues.results" => queue_results: usize = "512", range("1", "65536"), restart(Queues);
        /// Sealed epochs waiting to be settled.
        "queues.intents" => queue_intents: usize = "512", range("1", "65536"), restart(Queues);
        /// Reports of the stages waiting for the scheduler.
        "queues.updates" => queue_updates: usize = "1024", range("1", "65536"), restart(Queues);
    }
}

/// All configuration keys of svc-rewarder.
pub static TABLE: Table = Table {
    service: "svc-rewarder",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7480"),
        (ChassisSettings::health_addr, "127.0.0.1:7485"),
    ],
    keys: Keys::GROUPS,
};

/// Where and how epochs are settled.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub ledger_url: String,
    pub kms_url: String,
    /// KMS key that signs manifests.
    pub key: Kid,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub keys: Keys,
    /// `None` computes only and never settles.
    pub settlement: Option<Settlement>,
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let keys: Keys = config.read().map_err(|problem| vec![problem])?;
        if keys.ledger_principal.as_str() == LEDGER_PRINCIPAL {
            let why = "is reserved for entries that the ledger makes itself; use another name";
            return Err(vec![config.problem(Keys::ledger_principal, why)]);
        }
        let settlement = settlement(config, &keys)?;
        if settlement.is_some() && keys.manifest_keys.is_empty() {
            let why = "is empty; pin the public key of kms.key";
            return Err(vec![config.problem(Keys::manifest_keys, why)]);
        }
        Ok(Self { keys, settlement })
    }
}

impl Settings {
    /// Budget of one computation.
    pub fn compute_budget(&self) -> Duration {
        self.keys.epoch_duration / 2
    }
}

/// Requires all of ledger.url, kms.url and kms.key, or none of them.
fn settlement(config: &Config, keys: &Keys) -> Result<Option<Settlement>, Vec<ConfigProblem>> {
    match (&keys.ledger_url, &keys.kms_url, &keys.kms_key) {
        (None, None, None) => Ok(None),
        (Some(ledger_url), Some(kms_url), Some(key)) => Ok(Some(Settlement {
            ledger_url: ledger_url.clone(),
            kms_url: kms_url.clone(),
            key: key.clone(),
        })),
        (ledger_url, kms_url, key) => {
            let set = [
                (Keys::ledger_url, ledger_url.is_some()),
                (Keys::kms_url, kms_url.is_some()),
                (Keys::kms_key, key.is_some()),
            ];
            let missing = set.iter().filter(|(_, set)| !set).map(|(key, _)| {
                let why = "is not set; ledger.url, kms.url and kms.key belong together";
                config.problem(key, why)
            });
            Err(missing.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_ledger_is_refused() {
        let check = |principal: &str| {
            let key = ron_proto::b64::url(&[0; 32]);
            let pairs = [
                ("data_dir", "/tmp/x"),
                ("policy.public_keys", key.as_str()),
                ("ledger.principal", principal),
            ];
            Config::from_pairs(&TABLE, &pairs).and_then(|config| Settings::from_config(&config))
        };
        assert!(check("svc-rewarder").is_ok());
        let problems = check(LEDGER_PRINCIPAL).unwrap_err();
        let text = problems[0].to_string();
        assert!(text.contains("is reserved"), "{text}");
    }
}
