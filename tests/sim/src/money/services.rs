//! The services as processes: a group of threads each, started by `ron_service::start` as their binaries do it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ron_auth::service_token;
use ron_crypto::sign::Ed25519Key;
use ron_files::{MemoryDisk, SharedDisk};
use ron_kernel::net::Address;
use ron_kernel::{Net as _, Registry, SeededRandom, Shutdown};
use ron_ledger::RonLedger;
use ron_proto::policy::{PolicySig, policy_message};
use ron_proto::{b64, jcs};
use ron_service::records::{Postgres, SharedEngines};
use ron_service::{Config, Parts, Service};
use ron_sim::sync::Gate;
use ron_sim::thread::JoinHandle;
use ron_sim::{Group, ensure, time};
use serde_json::json;
use svc_wallet::SvcWallet;

use super::{LEDGER, WALLET};
use crate::bounds;
use crate::dates::Date;
use crate::net::SimNet;

/// Operators' files, which are real: written once by the process, read by the services as they are.
pub struct Files {
    pub dir: PathBuf,
    pub policy_key: String,
    /// Of the callers of the wallet, of the wallet itself, and of the auditor.
    pub bank: String,
    wallet: String,
    pub auditor: String,
}

impl Files {
    pub fn written() -> &'static Self {
        static FILES: OnceLock<Files> = OnceLock::new();
        FILES.get_or_init(Self::write)
    }

    fn write() -> Self {
        let dir = scratch("sim-world");
        let wallet = service_token::generate("svc-wallet", &[1; 32]);
        put(&dir, "ledger.token", wallet.as_bytes());
        let key = Ed25519Key::from_seed(&[7; 32]);
        let policy = json!({"version": 1, "rules": [{
            "principal": "*",
            "actions": ["read", "issue", "transfer", "burn", "hold", "reverse", "admin"],
            "accounts": ["*"],
            "assets": ["*"],
        }]});
        let bytes = jcs::canonicalize(&policy);
        let sig = PolicySig {
            alg: "ed25519".to_owned(),
            key: b64::url(&key.public()),
            value: b64::url(&key.sign(&policy_message("wallet", &bytes))),
        };
        put(&dir, "wallet.json", &bytes);
        let sig = ron_service::signed_policy::signature_bytes(&sig).expect("a document");
        put(&dir, "wallet.json.sig", &sig);
        Self {
            dir,
            policy_key: b64::url(&key.public()),
            bank: service_token::generate("bank", &[2; 32]),
            auditor: service_token::generate("auditor", &[3; 32]),
            wallet,
        }
    }
}

/// A directory beside the running program.
pub fn scratch(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    let dir = exe.with_file_name(name);
    fs::create_dir_all(&dir).expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("its mode");
    dir
}

/// Writes a file whole: other processes write the same bytes to it, and read it.
pub fn put(dir: &Path, name: &str, bytes: &[u8]) {
    let own = dir.join(format!("{name}.{}", std::process::id()));
    fs::write(&own, bytes).expect("a file");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(&own, dir.join(name)).expect("its name");
}

/// A process of the world.
pub struct Process {
    pub group: Group,
    registry: Registry,
    stop: Arc<Gate>,
    life: Option<JoinHandle<()>>,
}

/// Twelve copies of a request of each client have room: above half of the limit the peer with the most is refused new ones.
const CONNS: &str = "max_conns = 128\n";

/// The configuration of a service: keys before all sections, and sections.
pub fn config<S: Service>(ip: IpAddr, disk: Option<&SharedDisk>, top: &str, more: &str) -> Config {
    let data = match disk {
        Some(_) => "data_dir = \"/sim/data\"",
        None => "amnesia = true",
    };
    let text = format!(
        "{data}\ninsecure_loopback = true\n\
         bind_addr = \"{ip}:80\"\nhealth_addr = \"{ip}:81\"\n{top}\
         [http]\nworkers = 2\n{more}"
    );
    // A path that does not exist: nothing of the machine is judged.
    let config = Config::from_toml(S::TABLE, Path::new("sim/config.toml"), &text);
    config.unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// A caller with a service token; a service itself is of the tenant `ron`.
pub fn principal(tenant: &str, name: &str, token: &str, scopes: &[&str]) -> String {
    let hash = service_token::hash(token);
    format!(
        "[[auth.principals]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsha256 = \"{hash}\"\nscopes = {scopes:?}\n"
    )
}

impl Process {
    pub fn start<S: Service>(
        net: &SimNet,
        ip: IpAddr,
        config: Config,
        seed: u64,
        date: &Date,
        disk: Option<SharedDisk>,
    ) -> Self {
        Self::start_with::<S>(net, ip, config, seed, date, disk, Arc::new(Postgres))
    }

    /// With these engines for a log that several nodes share.
    pub fn start_with<S: Service>(
        net: &SimNet,
        ip: IpAddr,
        config: Config,
        seed: u64,
        date: &Date,
        disk: Option<SharedDisk>,
        engines: SharedEngines,
    ) -> Self {
        let name = S::TABLE.service;
        let registry = Registry::new(name);
        let group = Group::new(name);
        let stop = Arc::new(Gate::new());
        let date = date.clone();
        let (host, of_process, until) = (net.host(ip), registry.clone(), stop.clone());
        let life = group.spawn(name, move || {
            let bind = |port| {
                let address = Address::Tcp(SocketAddr::new(ip, port));
                host.bind(&address).expect("a free port")
            };
            let parts = Parts {
                clock: date.clock(),
                random: Arc::new(SeededRandom::new(seed)),
                api: bind(80),
                mtls: None,
                health: bind(81),
                net: Arc::new(host),
                disk: disk.unwrap_or_else(|| Arc::new(MemoryDisk::new())),
                engines,
                cores: 2,
                registry: of_process,
                instance: name.to_owned(),
                stop: Shutdown::pair(),
            };
            let running = ron_service::start::<S>(config, parts);
            let mut running = match running {
                Ok(running) => running,
                // EIO or ENOSPC, which a world plans: its service manager starts the service again.
                Err(error)
                    if ["os error 5)", "os error 28)"]
                        .iter()
                        .any(|e| format!("{error:?}").contains(e)) =>
                {
                    ron_sim::note(&format!("{name} did not start: {error:?}"));
                    return;
                }
                Err(error) => panic!("{name}: {error:?}"),
            };
            let for_ever = time::now() + Duration::from_secs(86_400);
            until.wait(for_ever);
            ensure(
                running.fatal().is_none(),
                &format!("{name} gave up: {:?}", running.fatal()),
            );
            let report = running.drain(Duration::from_secs(10));
            ensure(
                report.stragglers.is_empty(),
                &format!("{name}: {:?}", report.stragglers),
            );
        });
        let life = Some(life.expect("a thread"));
        Self {
            group,
            registry,
            stop,
            life,
        }
    }

    /// Drains it, and waits for its end.
    pub fn stop(&mut self) {
        self.stop.open();
        let life = self.life.take().expect("it is stopped once");
        life.join().expect("it is not killed");
        bounds::check(&self.registry, true);
    }

    /// Nothing that it keeps in memory is out of bounds now.
    pub fn check_bounds(&self) {
        bounds::check(&self.registry, false);
    }

    /// No thread of it has panicked, also where the panic was caught, and no request was given up without an answer, also
    /// where its caller has sent it again.
    pub fn check_no_panics(&self) {
        self.check_bounds();
        let text = ron_sim::undivided(|| self.registry.render());
        let panics = text.lines().filter(|line| {
            let counts = [
                "_http_handler_panics_total",
                // The ledger gives up the long polls of a wallet that is gone.
                "svc_wallet_http_dropped_responders_total",
                "_service_restarts_total",
            ];
            let counted = counts.iter().any(|name| {
                line.split(['{', ' '])
                    .next()
                    .is_some_and(|l| l.ends_with(name))
            });
            counted && !line.starts_with('#') && !line.ends_with(" 0")
        });
        let panics: Vec<_> = panics.collect();
        ensure(
            panics.is_empty(),
            &format!("threads have panicked, or requests were given up: {panics:?}"),
        );
    }
}

/// The ledger at its start of this number; without a disk in memory.
pub fn ledger(
    net: &SimNet,
    files: &Files,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
) -> Process {
    ledger_with(net, files, start, date, disk, false)
}

/// The same, with or without its projection.
pub fn ledger_with(
    net: &SimNet,
    files: &Files,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
    projection: bool,
) -> Process {
    let more = format!(
        "[ledger]\nprojection = {projection}\n{}{}",
        principal(
            "ron",
            "svc-wallet",
            &files.wallet,
            &["ledger:commit", "ledger:read"]
        ),
        principal(
            "ron",
            "auditor",
            &files.auditor,
            &["ledger:read", "ledger:audit"]
        ),
    );
    let config = config::<RonLedger>(LEDGER, disk.as_ref(), CONNS, &more);
    Process::start::<RonLedger>(net, LEDGER, config, start, date, disk)
}

/// The wallet at its start of this number; without a disk in memory.
pub fn wallet(
    net: &SimNet,
    files: &Files,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
) -> Process {
    wallet_with(net, files, start, date, disk, "")
}

/// The same, with further sections of its configuration.
pub fn wallet_with(
    net: &SimNet,
    files: &Files,
    start: u64,
    date: &Date,
    disk: Option<SharedDisk>,
    sections: &str,
) -> Process {
    let scopes =
        ["read", "issue", "transfer", "burn", "hold", "admin"].map(|s| format!("wallet:{s}"));
    let scopes = scopes.each_ref().map(String::as_str);
    // With its files a key is soon said to be open, and must not be forgotten.
    let tries = if disk.is_some() { 1 } else { 3 };
    let more = format!(
        "[ledger]\nurl = \"http://{LEDGER}:80\"\ntries = {tries}\ntoken_file = {:?}\n\
         [policy]\ndir = {:?}\npublic_keys = [\"{}\"]\n[wallet]\ncommitters = 2\n{}{sections}",
        files.dir.join("ledger.token"),
        files.dir,
        files.policy_key,
        principal("default", "bank", &files.bank, &scopes),
    );
    let config = config::<SvcWallet>(WALLET, disk.as_ref(), CONNS, &more);
    Process::start::<SvcWallet>(net, WALLET, config, 100 + start, date, disk)
}
