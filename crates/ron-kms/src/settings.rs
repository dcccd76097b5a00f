//! The configuration keys of ron-kms, and the settings made from them.

use ron_proto::kms::KeyBackend;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown, Snapshot};
use ron_proto::values::Alg;
use ron_service::config::{ByteSize, NoteName};
use ron_service::log_host::archive::ArchiveKeys;
use ron_service::log_host::asker::WitnessKeys;
use ron_service::pinned::KeyRing;
use ron_service::records::{Engine, EngineDurability};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

use ron_custody::backend::{DeviceKeys, DeviceSettings};
pub use ron_custody::store::SealSource;

use crate::vault_mount::VaultMount;

ron_service::settings! {
    /// Periods and delays of rotation and destruction.
    #[derive(Copy, PartialEq, Eq)]
    pub struct LifecycleSettings {
        /// How long the next public key of a key with rotate_every is published before it signs
        /// (half of rotate_every where that is shorter).
        "rotation.prepublish" => prepublish: Duration = "1h", range("1s", "720h"), reloadable;
        /// Scheduled rotations come up to this much of rotate_every early, at random, so that keys
        /// made together are not rotated together.
        "rotation.jitter_percent" => jitter_percent: u64 = "10", range("0", "50"), reloadable;
        /// Time between the order to destroy a key and its destruction, when the order names none.
        "destroy.delay" => destroy_delay: Duration = "168h", range("1s", "8784h"), reloadable;
        /// The shortest such time that an order may name. Danger: with a short one a mistake cannot
        /// be cancelled in time.
        "destroy.delay_min" => destroy_delay_min: Duration = "24h", range("1s", "8784h"), reloadable;
    }
}

ron_service::choice! {
    /// Where keys are stored whose request names no backend.
    pub enum LocalBackend {
        File = "file",
        Memory = "memory",
    }
}

ron_service::settings! {
    pub struct Keys {
        /// Where keys are stored: sealed in data_dir, or in memory only (needs amnesia = true).
        "backend" => backend: LocalBackend = "file", restart(Devices);
        /// File of the seal key: 64 hex digits, mode 0600. Empty: data_dir/seal.key, made with a
        /// new store. It protects copies of the database, not this host.
        "seal.key_file" => seal_key_file: Option<PathBuf>, restart(Files);
        /// File of a passphrase, mode 0600, from which Argon2id derives the seal key; instead of
        /// seal.key_file.
        "seal.passphrase_file" => seal_passphrase_file: Option<PathBuf>, restart(Files);
        /// PostgreSQL database that has the sealed keys, as libpq takes it; then any number of ron-kms with the same keys run, each
        /// with an `audit.origin` of its own and all with one seal key. Use addresses, and `passfile` instead of a password.
        /// Required with `log.url`. Needs a build with the feature `postgres`.
        "records.url" => records_url: Option<String>, restart(Clients);
        /// Schema in the database: that of `log.schema` with `_keys` behind it, so that nodes with the same keys find the same ids of
        /// operations.
        "records.schema" => records_schema: String = "ron_kms_keys", restart(Clients);
        /// What makes a change of a key durable beyond one host, as `log.durability`, and the same.
        "records.durability" => records_durability: EngineDurability = "standby", restart(Clients);
        /// The same database as `records.url`, which has the audit log of each node too: a leaf is written only while the keys
        /// are those that it was decided from. Required with `records.url`; `data_dir` holds a copy of this node's log.
        "log.url" => log_url: Option<String>, restart(Clients);
        /// Schema in the database, the same on all nodes.
        "log.schema" => log_schema: String = "ron_kms", restart(Clients);
        /// What makes a leaf durable beyond one host: `standby` for named synchronous standbys, `quorum` for any of several
        /// under a failover manager with a watchdog, `storage` for a database whose storage is replicated.
        "log.durability" => log_durability: EngineDurability = "standby", restart(Clients);
        /// Maximum time of one append in the database; after it the outcome is not known yet.
        "log.commit_within" => log_commit_within: Duration = "3s", range("100ms", "1m"), restart(Clients);
        /// Algorithms that new keys may have.
        "algs" => algs: Vec<Alg> = "ed25519,ecdsa-p256,ecdsa-p384,ecdsa-secp256k1,rsa-2048,rsa-3072,rsa-4096,ml-dsa-44,ml-dsa-65,ml-dsa-87,ed25519+ml-dsa-65,aes128-gcm,aes256-gcm,chacha20-poly1305,aes256-kwp,x25519-hkdf-aes256-gcm,x25519+ml-kem-768,hmac-sha256,hmac-sha384,hmac-sha512,rsa-oaep-2048,rsa-oaep-3072,rsa-oaep-4096,ecdh-p256,ecdh-p384,ecdh-x25519,hkdf-sha256", restart(Devices);
        /// Threads that sign; 0 means one per core.
        "signers" => signers: usize = "0", range("0", "64"), restart(Threads);
        /// Sign requests waiting for a signer; full means 429.
        "queues.sign" => sign_queue: usize = "512", range("1", "65536"), restart(Queues);
        /// Changes of keys that wait for the store thread; full means 429.
        "queues.store" => store_queue: usize = "64", range("1", "4096"), restart(Queues);
        /// Results waiting for their leaf; at least 1000 for a full batch.
        "queues.audit" => audit_queue: usize = "2048", range("1000", "65536"), restart(Queues);
        /// Longest time a sign request may take, queueing included.
        "sign_deadline" => sign_deadline: Duration = "2s", range("10ms", "1m"), reloadable;
        /// Longest wait for room in the audit queue before a 429.
        "audit.reserve_wait" => reserve_wait: Duration = "200ms", range("1ms", "5s"), reloadable;
        /// Leaves after which a checkpoint is signed at once.
        "audit.checkpoint_ops" => checkpoint_ops: u64 = "5000", range("1", "1000000"), reloadable;
        /// Longest time a leaf waits for its checkpoint.
        "audit.checkpoint_interval" => checkpoint_interval: Duration = "1s", range("10ms", "1m"), reloadable;
        /// Directory for a second copy of the newest checkpoint, a file with mode 0600; compared at
        /// start to detect a rollback of data_dir.
        "audit.anchor_dir" => anchor_dir: Option<PathBuf>, restart(Files);
        /// Name of the audit log in its checkpoints. Empty: made with a new store. Cannot change
        /// afterwards.
        "audit.origin" => origin: Option<NoteName>, range("0", "200"), restart(Documents);
        /// How often the whole audit log is verified in the background.
        "audit.scrub_interval" => scrub_interval: Duration = "1h", range("1s", "720h"), reloadable;
        /// Maximum number of leaves in one durable append.
        "audit.batch_leaves" => batch_leaves: usize = "2048", range("1000", "65536"), restart(Memory);
        /// Sign checkpoints a second time with ML-DSA-44; its verifier key is at
        /// /audit/v1/vkey/ml-dsa-44.
        "audit.ml_dsa" => ml_dsa: bool = "false", restart(Documents);
        /// How long an old key of the log keeps signing checkpoints after its rotation, for
        /// verifiers that pin it.
        "audit.log_key_overlap" => log_key_overlap: Duration = "720h", range("0s", "8760h"), reloadable;
        /// Uses of an aes256-gcm version reserved in the store at once; a crash wastes the rest of
        /// a block.
        "nonces.block" => nonce_block: u32 = "65536", range("1", "16777216"), reloadable;
        /// Maximum uses of one aes256-gcm version; after that the key must be rotated. Below 2^32,
        /// the limit of NIST SP 800-38D.
        "nonces.cap" => nonce_cap: u32 = "4294967295", range("1", "4294967295"), reloadable;
        /// Signatures and envelope operations remembered by op_id for 24 hours, also across a
        /// restart; beyond this number the oldest are forgotten early.
        "replay.capacity" => replay_capacity: usize = "131072", range("16", "10000000"), restart(Memory);
        /// Maximum bytes of the remembered answers on disk; beyond that the oldest are forgotten
        /// early.
        "replay.bytes_max" => replay_bytes: ByteSize = "64MiB", range("1MiB", "16GiB"), restart(Memory);
        /// Accepts that remembered answers are damaged or missing: the name of the loss from `replay`
        /// in /readyz. Operation ids among them are forgotten, so a repeated request is performed again.
        "replay.accept_loss" => replay_accept_loss: String = "", restart(Files);
        /// Ed25519 keys that the issuer policy must be signed with: base64url, or NAME=base64url; as
        /// in svc-passport. Keys with payload policy jwt and issuer_policy sign only the tokens that
        /// this policy allows. The private key may be one of this KMS or be kept offline.
        "policy.public_keys" => policy_keys: KeyRing = "", restart(Trust);
        /// Mount of Vault's Transit API, which is served at /v1/MOUNT/ and nowhere else: one or more segments, such as
        /// secrets/transit.
        "vault.mount" => vault_mount: VaultMount = "transit", restart(Front);
        ..lifecycle: LifecycleSettings;
        ..devices: DeviceKeys;
        ..archive: ArchiveKeys;
        ..witness: WitnessKeys;
    }
}

/// All keys of ron-kms.
pub static TABLE: Table = Table {
    service: "ron-kms",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7440"),
        (ChassisSettings::health_addr, "127.0.0.1:7445"),
    ],
    keys: Keys::GROUPS,
};

/// The configuration in force; a reload replaces it.
pub type InForce = Arc<Snapshot<Settings>>;

/// How soon a pausing thread notices a reload.
pub const NOTICE: Duration = Duration::from_secs(1);

/// Pauses for `pause`, read again every second, because a reload may change it. True at shutdown.
pub fn pause_while(shutdown: &Shutdown, mut pause: impl FnMut() -> Duration) -> bool {
    let mut paused = Duration::ZERO;
    loop {
        let left = pause().saturating_sub(paused);
        if left.is_zero() {
            return shutdown.is_set();
        }
        let step = left.min(NOTICE);
        if shutdown.wait(Deadline::within(step)) {
            return true;
        }
        paused += step;
    }
}

/// The configuration keys, and what follows from several of them.
#[derive(Clone, Debug)]
pub struct Settings {
    pub keys: Keys,
    /// The local backend (`file` or `memory`), for keys whose request names no backend.
    pub backend: KeyBackend,
    pub devices: DeviceSettings,
    /// `None` with amnesia on.
    pub data_dir: Option<PathBuf>,
    pub seal: SealSource,
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let keys: Keys = config.read().map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let amnesia = config.chassis().amnesia;
        let backend = match keys.backend {
            // With amnesia on, the default `file` means memory. `memory` without amnesia is reported below.
            LocalBackend::File if !amnesia => KeyBackend::File,
            LocalBackend::File | LocalBackend::Memory => KeyBackend::Memory,
        };
        check_places(config, &keys, backend, &mut problems);
        let devices = DeviceSettings::new(config, &keys.devices, &mut problems);
        check_engine(config, &keys, &devices, &mut problems);
        let seal = seal_source(config, &keys, &mut problems);
        if keys.algs.is_empty() {
            let why = "is empty: name at least one, such as ed25519";
            problems.push(config.problem(Keys::algs, why));
        }
        if keys.lifecycle.destroy_delay < keys.lifecycle.destroy_delay_min {
            let why = "is shorter than destroy.delay_min";
            problems.push(config.problem(LifecycleSettings::destroy_delay, why));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            keys,
            backend,
            devices,
            data_dir: config.chassis().data_dir.clone(),
            seal,
        })
    }
}

impl Settings {
    /// The database of the keys and the audit log, if they are in one.
    pub fn engine(&self) -> Option<Engine> {
        self.keys.log_engine()
    }
}

impl Keys {
    /// The engine of the audit log; `None` when it is in files.
    pub fn log_engine(&self) -> Option<Engine> {
        Engine::named(self.log_url.as_ref(), &self.log_schema, self.log_durability)
    }

    /// The engine of the keys; `None` when they are in a file.
    pub fn records_engine(&self) -> Option<Engine> {
        Engine::named(
            self.records_url.as_ref(),
            &self.records_schema,
            self.records_durability,
        )
    }
}

/// Checks what keys in a database need.
fn check_engine(
    config: &Config,
    keys: &Keys,
    devices: &DeviceSettings,
    problems: &mut Vec<ConfigProblem>,
) {
    if keys.records_url != keys.log_url || keys.records_durability != keys.log_durability {
        let why = "and records.url, and log.durability and records.durability, are set together to the same database: a leaf is \
                   written only while the keys are those that it was decided from";
        return problems.push(config.problem(Keys::log_url, why));
    }
    let Some(engine) = keys.records_engine() else {
        return;
    };
    let schema = format!("{}_keys", keys.log_schema);
    if keys.records_schema != schema {
        let why = format!(
            "is not `{schema}`, which belongs to log.schema = \"{}\": nodes with the same keys must have their logs in one schema, or \
             each would do an operation id once",
            keys.log_schema
        );
        problems.push(config.problem(Keys::records_schema, why));
    }
    if let Some(why) = engine.fault() {
        problems.push(config.problem(Keys::records_url, why));
    }
    if config.chassis().amnesia {
        let why =
            "is set with amnesia = true: each node keeps a copy of its audit log in a data_dir";
        problems.push(config.problem(Keys::records_url, why));
    }
    if keys.origin.is_none() {
        let why = "is empty, and records.url is set: each node with keys in a database needs a name for its audit log";
        problems.push(config.problem(Keys::origin, why));
    }
    if keys.seal_key_file.is_none() && keys.seal_passphrase_file.is_none() {
        let why = "is empty, and records.url is set: give all nodes the same seal key, made with `openssl rand -hex 32`, or one \
                   passphrase";
        problems.push(config.problem(Keys::seal_key_file, why));
    }
    if devices.tpm.is_some() || !devices.pkcs11.is_empty() || devices.remote.is_some() {
        let why = "is set with a device: keys in devices belong to one host";
        problems.push(config.problem(Keys::records_url, why));
    }
}

/// Checks that the backend, `amnesia` and the configured paths agree.
fn check_places(
    config: &Config,
    keys: &Keys,
    backend: KeyBackend,
    problems: &mut Vec<ConfigProblem>,
) {
    problems.extend(keys.archive.problem(config));
    let chassis = config.chassis();
    if backend == KeyBackend::Memory && !chassis.amnesia {
        problems.push(config.problem(
            Keys::backend,
            "is memory, which needs amnesia = true: keys would be lost at the next stop",
        ));
    }
    if backend == KeyBackend::File && chassis.data_dir.is_none() {
        problems.push(config.problem(
            ChassisSettings::data_dir,
            "is not set: the file backend needs one (or set amnesia = true)",
        ));
    }
    let places = [
        (Keys::anchor_dir, &keys.anchor_dir),
        (Keys::seal_key_file, &keys.seal_key_file),
        (Keys::seal_passphrase_file, &keys.seal_passphrase_file),
        (DeviceKeys::seal_tpm_file, &keys.devices.seal_tpm_file),
    ];
    for (key, path) in places {
        if chassis.amnesia && path.is_some() {
            problems.push(config.problem(
                key,
                "is set, but amnesia = true uses nothing on disk; drop one of the two",
            ));
        }
    }
}

fn seal_source(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) -> SealSource {
    if let Some(path) = &keys.devices.seal_tpm_file {
        let problem = |why: &str| config.problem(DeviceKeys::seal_tpm_file, why);
        if keys.seal_key_file.is_some() || keys.seal_passphrase_file.is_some() {
            problems.push(problem(
                "and seal.key_file or seal.passphrase_file are both set; drop one",
            ));
        }
        if keys.devices.tpm_tcti.is_none() {
            problems.push(problem("is set without tpm.tcti"));
        }
        return SealSource::Tpm(path.clone());
    }
    match (&keys.seal_key_file, &keys.seal_passphrase_file) {
        (Some(_), Some(_)) => {
            problems.push(config.problem(
                Keys::seal_key_file,
                "and seal.passphrase_file are both set; drop one",
            ));
            SealSource::Ephemeral
        }
        (Some(path), None) => SealSource::KeyFile {
            path: path.clone(),
            may_create: false,
        },
        (None, Some(path)) => SealSource::Passphrase(path.clone()),
        (None, None) => match &config.chassis().data_dir {
            Some(dir) if !config.chassis().amnesia => SealSource::KeyFile {
                path: dir.join("seal.key"),
                may_create: true,
            },
            _ => SealSource::Ephemeral,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(flags: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
        let flags: Vec<_> = flags
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let config = Config::load(&TABLE, None, &|_| None, &flags)
            .map_err(|p| p.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Settings::from_config(&config).map_err(|p| p.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_signature_ends_after_two_seconds_unless_the_operator_says_otherwise() {
        let default = settings(&[("amnesia", "true")]).expect("defaults");
        assert_eq!(default.keys.sign_deadline, Duration::from_secs(2));
    }

    /// Without the feature `postgres` there is one more problem.
    #[test]
    fn what_keys_in_a_database_need() {
        const URL: &str = "postgresql://kms@10.0.0.1/ron";
        let good = [
            ("data_dir", "/x"),
            ("records.url", URL),
            ("log.url", URL),
            ("audit.origin", "kms.example/a"),
            ("seal.key_file", "/k"),
        ];
        let check = |change: &[(&str, &str)], without: &str, word: &str| {
            let kept = good.iter().filter(|(key, _)| *key != without);
            let flags: Vec<_> = kept.chain(change).copied().collect();
            let problems = settings(&flags).err().unwrap_or_default();
            let others = problems
                .iter()
                .filter(|p| !p.contains("feature `postgres`"));
            let others: Vec<_> = others.collect();
            assert_eq!(others.is_empty(), word.is_empty(), "{without} {others:?}");
            assert!(
                others.iter().all(|p| p.contains(word)),
                "{without} {others:?}"
            );
        };
        check(&[], "", "");
        check(&[], "log.url", "log.url");
        check(&[], "records.url", "log.url");
        check(
            &[("log.url", "postgresql://kms@10.0.0.2/ron")],
            "log.url",
            "log.url",
        );
        check(&[("log.durability", "storage")], "", "log.durability");
        check(&[("log.schema", "other")], "", "records.schema");
        check(&[("records.schema", "other")], "", "records.schema");
        let both = [("log.schema", "kms"), ("records.schema", "kms_keys")];
        check(&both, "", "");
        check(&[], "audit.origin", "audit.origin");
        check(&[], "seal.key_file", "seal.key_file");
        check(&[("seal.passphrase_file", "/p")], "seal.key_file", "");
        check(&[("pkcs11.module", "/m")], "", "pkcs11");
    }

    #[test]
    fn a_mount_that_cannot_be_served_is_refused_by_name() {
        let with = |mount: &str| settings(&[("amnesia", "true"), ("vault.mount", mount)]);
        assert!(with("secrets/transit").is_ok());
        for mount in ["", "kms", "sys/transit", "a//b", "Transit"] {
            let problems = with(mount).expect_err(mount);
            assert!(
                problems.iter().all(|p| p.contains("vault.mount")),
                "{mount}: {problems:?}"
            );
        }
    }

    #[test]
    fn what_goes_together() {
        let check = |flags: &[(&str, &str)], word: Option<&str>| {
            let got = settings(flags);
            match (word, &got) {
                (None, Ok(_)) => {}
                (Some(word), Err(problems)) => {
                    assert!(
                        problems.iter().any(|p| p.contains(word)),
                        "{flags:?}: {problems:?}"
                    );
                }
                _ => panic!("{flags:?}: {got:?}"),
            }
        };
        check(&[("data_dir", "/x")], None);
        check(&[], Some("data_dir"));
        check(&[("amnesia", "true")], None);
        check(
            &[("amnesia", "true"), ("audit.anchor_dir", "/y")],
            Some("audit.anchor_dir"),
        );
        check(
            &[("data_dir", "/x"), ("backend", "memory")],
            Some("amnesia"),
        );
        check(&[("data_dir", "/x"), ("backend", "tpm")], Some("backend"));
        check(&[("data_dir", "/x"), ("algs", "ed25519,rsa")], Some("algs"));
        check(&[("data_dir", "/x"), ("algs", "aes256-gcm")], None);
        check(&[("data_dir", "/x"), ("algs", "aes256")], Some("algs"));
        check(
            &[("data_dir", "/x"), ("nonces.cap", "4294967296")],
            Some("nonces.cap"),
        );
        check(
            &[
                ("data_dir", "/x"),
                ("seal.key_file", "/k"),
                ("seal.passphrase_file", "/p"),
            ],
            Some("seal"),
        );
        check(
            &[("data_dir", "/x"), ("audit.orign", "o")],
            Some("audit.origin"),
        );
        check(
            &[("data_dir", "/x"), ("audit.origin", "a b")],
            Some("audit.origin"),
        );
        let memory = settings(&[("amnesia", "true")]).expect("amnesia");
        assert_eq!(
            (memory.backend, memory.seal),
            (KeyBackend::Memory, SealSource::Ephemeral)
        );
    }

    #[test]
    fn tokens_have_names_modules_and_pins() {
        let check = |text: &str, word: Option<&str>| {
            let file = std::path::Path::new("kms.toml");
            let text = format!("data_dir = \"/x\"\n{text}");
            let config = Config::from_toml(&TABLE, file, &text);
            let got = config.and_then(|config| Settings::from_config(&config));
            match (word, got) {
                (None, Ok(_)) => {}
                (Some(word), Err(problems)) => {
                    let found = problems.iter().any(|p| p.to_string().contains(word));
                    assert!(found, "{text}: {problems:?}");
                }
                (_, got) => panic!("{text}: {got:?}"),
            }
        };
        const MODULE: &str = "[pkcs11]\nmodule = \"/m.so\"\n";
        const FIRST: &str = "token = \"ron\"\npin = \"env:PIN\"\n";
        let block = |name: &str, label: &str| {
            format!(
                "[[pkcs11.tokens]]\nname = \"{name}\"\nlabel = \"{label}\"\npin = \"env:PIN\"\n"
            )
        };
        let (old, new) = (block("old", "o"), block("new", "n"));
        check(&format!("{MODULE}{FIRST}{old}{new}"), None);
        check(&format!("{MODULE}{old}{new}"), None);
        check(&format!("{old}module = \"/m.so\"\n"), None);
        check(MODULE, Some("pkcs11.pin is not set"));
        check(
            &format!("{MODULE}token = \"ron\"\n{old}"),
            Some("pkcs11.pin is not set"),
        );
        check(&old, Some("old: module is not set"));
        check(&format!("{MODULE}{old}{old}"), Some("two tokens `old`"));
        check(
            &format!("{MODULE}{FIRST}{}", block("twin", "ron")),
            Some("one token twice, as pkcs11.token and `twin`"),
        );
        check(&format!("{MODULE}{}", block("No", "x")), Some("name"));
        check(&format!("{MODULE}{}", block("x", "")), Some("label"));
        let many = (0..9).map(|n| block(&format!("t{n}"), &format!("l{n}")));
        let many: String = many.collect();
        check(&format!("{MODULE}{many}"), Some("more than 8 tokens"));
    }
}
