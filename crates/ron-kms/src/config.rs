//! The one table of configuration keys, and the validated settings made from it.

use std::path::PathBuf;
use std::time::Duration;

use ron_custody::backend::settings::{DEVICE_KEYS, DeviceSettings};
use ron_custody::keys::material::OFFERED;
use ron_proto::values::Alg;
use ron_service::log_host::asker::{WITNESS_KEYS, WitnessSettings};
use ron_service::{CHASSIS_KEYS, Config, ConfigProblem, Key, Table, listen_keys};

pub use ron_custody::backend::BackendKind;
pub use ron_custody::store::source::SealSource;

pub mod lifecycle;

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7440", "127.0.0.1:7445");

static KEYS: [Key; 22] = [
    Key::choice(
        "backend",
        &["file", "memory"],
        "file",
        "Where keys are stored: sealed in data_dir, or in memory only (needs amnesia = true).",
    ),
    Key::path(
        "seal.key_file",
        "",
        "File of the seal key: 64 hex digits, mode 0600. Empty: data_dir/seal.key, made with a new store. It protects copies of the database, not this host.",
    ),
    Key::path(
        "seal.passphrase_file",
        "",
        "File of a passphrase, mode 0600, from which Argon2id derives the seal key; instead of seal.key_file.",
    ),
    Key::list("algs", "ed25519,ecdsa-p256,ml-dsa-44,ml-dsa-65,ml-dsa-87,ed25519+ml-dsa-65,aes256-gcm,aes256-kwp,x25519-hkdf-aes256-gcm,x25519+ml-kem-768,hmac-sha256", "Algorithms that new keys may have."),
    Key::count("signers", "0", "Threads that sign; 0 means one per core.").range("0", "64"),
    Key::count("queues.sign", "512", "Sign requests waiting for a signer; full means 429.").range("1", "65536"),
    Key::count("queues.store", "64", "Changes of keys that wait for the store thread; full means 429.").range("1", "4096"),
    Key::count("queues.audit", "2048", "Signed results waiting for their leaf; at least 1000 for a full batch.")
        .range("1000", "65536"),
    Key::duration("sign_deadline", "2s", "Longest time a sign request may take, queueing included.").range("10ms", "1m"),
    Key::duration("audit.reserve_wait", "200ms", "Longest wait for room in the audit queue before a 429.").range("1ms", "5s"),
    Key::count("audit.checkpoint_ops", "5000", "Leaves after which a checkpoint is signed at once.").range("1", "1000000"),
    Key::duration("audit.checkpoint_interval", "1s", "Longest time a leaf waits for its checkpoint.").range("10ms", "1m"),
    Key::path("audit.anchor_dir", "", "Directory for a second copy of the newest checkpoint; compared at start to detect a rollback of data_dir."),
    Key::text("audit.origin", "", "Name of the audit log in its checkpoints. Empty: made with a new store. Cannot change afterwards.")
        .range("0", "200"),
    Key::duration("audit.scrub_interval", "1h", "How often the whole audit log is verified in the background.").range("1s", "720h"),
    Key::count("audit.batch_leaves", "2048", "Maximum number of leaves in one durable append.").range("1000", "65536"),
    Key::bool("audit.ml_dsa", false, "Sign checkpoints a second time with ML-DSA-44; its verifier key is at /audit/v1/vkey/ml-dsa-44."),
    Key::duration("audit.log_key_overlap", "720h", "How long an old key of the log keeps signing checkpoints after its rotation, for verifiers that pin it.")
        .range("0s", "8760h"),
    Key::count("nonces.block", "65536", "Uses of an aes256-gcm version reserved in the store at once; a crash wastes the rest of a block.")
        .range("1", "16777216"),
    Key::count("nonces.cap", "4294967295", "Maximum uses of one aes256-gcm version; after that the key must be rotated. Below 2^32, the limit of NIST SP 800-38D.")
        .range("1", "4294967295"),
    Key::count("replay.capacity", "131072", "Signatures and envelope operations remembered by op_id for 24 hours, also across a restart; beyond this number the oldest are forgotten early.")
        .range("16", "10000000"),
    Key::size("replay.bytes_max", "64MiB", "Maximum bytes of the remembered answers on disk; beyond that the oldest are forgotten early.")
        .range("1MiB", "16GiB"),
];

/// All keys of ron-kms.
pub static TABLE: Table = Table {
    service: "ron-kms",
    env_prefix: "RON_KMS_",
    keys: &[
        CHASSIS_KEYS,
        &LISTEN,
        &KEYS,
        &lifecycle::KEYS,
        &DEVICE_KEYS,
        &WITNESS_KEYS,
    ],
};

#[derive(Clone, Debug)]
pub struct Settings {
    /// The local backend (`file` or `memory`), for keys whose request names no backend.
    pub backend: BackendKind,
    pub devices: DeviceSettings,
    /// `None` with amnesia on.
    pub data_dir: Option<PathBuf>,
    pub seal: SealSource,
    /// Algorithms for new keys.
    pub algs: Vec<Alg>,
    /// Signer threads, at least 1.
    pub signers: usize,
    /// Capacity of the sign queue.
    pub sign_queue: usize,
    /// Capacity of the store queue.
    pub store_queue: usize,
    /// Capacity of the audit queue and number of credits.
    pub audit_queue: usize,
    /// Maximum deadline of a job, queueing included.
    pub sign_deadline: Duration,
    /// Maximum wait for room in the audit queue.
    pub reserve_wait: Duration,
    /// Leaves after which a checkpoint is signed at once.
    pub checkpoint_ops: u64,
    /// Longest time a leaf waits for its checkpoint.
    pub checkpoint_interval: Duration,
    /// Directory for the second copy of the newest checkpoint.
    pub anchor_dir: Option<PathBuf>,
    /// `audit.origin`; the store keeps the one it was made with.
    pub origin: Option<String>,
    /// Pause between background verifications.
    pub scrub_interval: Duration,
    /// Maximum leaves of one append; one entry may exceed it.
    pub batch_leaves: usize,
    /// Whether checkpoints carry an ML-DSA-44 line.
    pub ml_dsa: bool,
    /// How long an old key of the log keeps signing after its rotation.
    pub log_key_overlap: Duration,
    pub witness: Option<WitnessSettings>,
    /// Uses of an AES-GCM version reserved at once.
    pub nonce_block: u32,
    /// Maximum uses of an AES-GCM version.
    pub nonce_cap: u32,
    /// Maximum operations remembered by `op_id`.
    pub replay_capacity: usize,
    /// Maximum bytes of their answers on disk.
    pub replay_bytes: u64,
    /// Periods and delays of rotation and destruction.
    pub lifecycle: lifecycle::LifecycleSettings,
}

impl Settings {
    /// Checks what the table alone cannot: keys that depend on each other.
    pub fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let mut problems = Vec::new();
        let amnesia = config.bool("amnesia");
        let backend = match config.str("backend") {
            // With amnesia on, the default `file` means memory. `memory` without amnesia is reported below.
            "file" if !amnesia => BackendKind::File,
            _ => BackendKind::Memory,
        };
        let data_dir = config.path_opt("data_dir").map(PathBuf::from);
        check_places(config, backend, amnesia, &mut problems);
        let devices = DeviceSettings::from_config(config, &mut problems);
        let witness = WitnessSettings::from_config(config);
        let witness = witness.unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let seal = seal_source(config, data_dir.as_deref(), amnesia, &mut problems);
        let algs = algs(config, &mut problems);
        let lifecycle = lifecycle::lifecycle(config, &mut problems);
        let origin = config.str_opt("audit.origin").map(str::to_owned);
        if !problems.is_empty() {
            return Err(problems);
        }
        let signers = match config.usize("signers") {
            0 => ron_kernel::cores().min(64),
            n => n,
        };
        Ok(Self {
            backend,
            devices,
            data_dir,
            seal,
            algs,
            signers,
            sign_queue: config.usize("queues.sign"),
            store_queue: config.usize("queues.store"),
            audit_queue: config.usize("queues.audit"),
            sign_deadline: config.duration("sign_deadline"),
            reserve_wait: config.duration("audit.reserve_wait"),
            checkpoint_ops: config.u64("audit.checkpoint_ops"),
            checkpoint_interval: config.duration("audit.checkpoint_interval"),
            anchor_dir: config.path_opt("audit.anchor_dir").map(PathBuf::from),
            origin,
            scrub_interval: config.duration("audit.scrub_interval"),
            batch_leaves: config.usize("audit.batch_leaves"),
            ml_dsa: config.bool("audit.ml_dsa"),
            log_key_overlap: config.duration("audit.log_key_overlap"),
            witness,
            nonce_block: config.usize("nonces.block") as u32,
            nonce_cap: config.usize("nonces.cap") as u32,
            replay_capacity: config.usize("replay.capacity"),
            replay_bytes: config.size("replay.bytes_max"),
            lifecycle,
        })
    }
}

/// Checks that the backend, `amnesia` and the configured paths agree.
fn check_places(
    config: &Config,
    backend: BackendKind,
    amnesia: bool,
    problems: &mut Vec<ConfigProblem>,
) {
    if backend == BackendKind::Memory && !amnesia {
        problems.push(config.problem(
            "backend",
            "is memory, which needs amnesia = true: keys would be lost at the next stop",
        ));
    }
    if backend == BackendKind::File && !config.is_set("data_dir") {
        problems.push(config.problem(
            "data_dir",
            "is not set: the file backend needs one (or set amnesia = true)",
        ));
    }
    for key in [
        "audit.anchor_dir",
        "seal.key_file",
        "seal.passphrase_file",
        "seal.tpm_file",
    ] {
        if amnesia && config.is_set(key) {
            problems.push(config.problem(
                key,
                "is set, but amnesia = true uses nothing on disk; drop one of the two",
            ));
        }
    }
    let odd = |c: char| c.is_control() || c.is_whitespace() || c == '+';
    if config
        .str_opt("audit.origin")
        .is_some_and(|o| o.contains(odd))
    {
        let why = "may hold no spaces, control characters or `+`";
        problems.push(config.problem("audit.origin", why));
    }
}

fn seal_source(
    config: &Config,
    data_dir: Option<&std::path::Path>,
    amnesia: bool,
    problems: &mut Vec<ConfigProblem>,
) -> SealSource {
    if let Some(path) = config.path_opt("seal.tpm_file") {
        let problem = |why: &str| config.problem("seal.tpm_file", why);
        if config.is_set("seal.key_file") || config.is_set("seal.passphrase_file") {
            problems.push(problem(
                "and seal.key_file or seal.passphrase_file are both set; drop one",
            ));
        }
        if config.str_opt("tpm.tcti").is_none() {
            problems.push(problem("is set without tpm.tcti"));
        }
        return SealSource::Tpm(path.into());
    }
    match (
        config.path_opt("seal.key_file"),
        config.path_opt("seal.passphrase_file"),
    ) {
        (Some(_), Some(_)) => {
            problems.push(config.problem(
                "seal.key_file",
                "and seal.passphrase_file are both set; drop one",
            ));
            SealSource::Ephemeral
        }
        (Some(path), None) => SealSource::KeyFile {
            path: path.into(),
            may_create: false,
        },
        (None, Some(path)) => SealSource::Passphrase(path.into()),
        (None, None) => match data_dir {
            Some(dir) if !amnesia => SealSource::KeyFile {
                path: dir.join("seal.key"),
                may_create: true,
            },
            _ => SealSource::Ephemeral,
        },
    }
}

fn algs(config: &Config, problems: &mut Vec<ConfigProblem>) -> Vec<Alg> {
    let mut algs = Vec::new();
    for name in config.list("algs") {
        match name.parse::<Alg>() {
            Ok(alg) if OFFERED.contains(&alg) => algs.push(alg),
            Ok(alg) => problems.push(config.problem(
                "algs",
                format!("{alg} is not offered by the file and memory backends"),
            )),
            Err(error) => problems.push(config.problem("algs", error.to_string())),
        }
    }
    if algs.is_empty() && problems.is_empty() {
        problems.push(config.problem("algs", "is empty: name at least one, such as ed25519"));
    }
    algs
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
            (BackendKind::Memory, SealSource::Ephemeral)
        );
    }
}
