//! A start that fails halfway, and the order of the hooks of a reload.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ron_http::{ApiInfo, Router};
use ron_kernel::{Count, Deadline, Stage, ThreadSpec};

use super::*;
use crate::chassis::ReloadError;
use crate::config::{ConfigProblem, Settings as _};

crate::settings! {
    struct Sample {
        /// Items in one batch.
        "batch" => batch: u32 = "8", range("1", "64"), reloadable;
    }
}

impl ServiceSettings for Sample {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let settings: Self = config.read().map_err(|problem| vec![problem])?;
        if settings.batch == 7 {
            return Err(vec![config.problem(Self::batch, "is never 7")]);
        }
        Ok(settings)
    }
}

static TABLE: Table = Table {
    service: "svc-boot",
    defaults: &[],
    keys: Sample::GROUPS,
};
static TOPOLOGY: Topology = crate::topology! {
    service: "svc-boot", prefix: "boot",
    threads: [ThreadSpec { name: "boot-loop", count: Count::One, stage: Stage::Write, critical: true, job: "waits" }],
    queues: [],
    locks: [],
};

/// Threads of the process with names of this service.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    names.retain(|name| name.starts_with("boot-"));
    names
}

fn info() -> ApiInfo {
    ApiInfo {
        title: "svc-boot",
        version: "0",
        description: "A test.",
    }
}

/// Starts a thread; with `batch = 1` it then fails before its API is served.
struct Halfway;

impl Service for Halfway {
    type Settings = Sample;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &TOPOLOGY;

    fn start(boot: Boot<Sample>) -> Result<Running, StartError> {
        let spec = crate::topology_thread(&TOPOLOGY, "boot-loop");
        boot.chassis.sup.spawn(spec, |ctx| {
            while !ctx
                .shutdown
                .wait(Deadline::within(std::time::Duration::from_secs(60)))
            {}
        });
        if boot.settings.batch == 1 {
            let started = boot.chassis.sup.topology().threads;
            let names: Vec<String> = started.into_iter().map(|thread| thread.name).collect();
            return Err(StartError::failed(format!("among {names:?}")));
        }
        boot.chassis.serve(Router::new(info()))
    }
}

#[test]
fn a_failed_start_leaves_no_thread_no_listener_and_no_lock() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let fails = |key: &str, value: &str| {
        let data_dir = dir.to_str().unwrap();
        let config = Config::from_pairs(&TABLE, &[("data_dir", data_dir), (key, value)]).unwrap();
        let parts = Parts::ephemeral("svc-boot").unwrap();
        let health = parts.health.local_addr().unwrap();
        let why = start::<Halfway>(config, parts).expect_err(key).to_string();
        // The kernel lists a joined thread for a moment.
        let gone = Deadline::within(std::time::Duration::from_secs(30));
        while !threads().is_empty() {
            assert!(!gone.expired(), "{:?} after: {why}", threads());
            std::thread::yield_now();
        }
        assert!(std::net::TcpStream::connect(health).is_err());
        drop(DataDir::at(Dir::os(&dir)).expect("the directory is not locked"));
        why
    };
    let why = fails("batch", "1");
    let running = why.contains("boot-loop") && why.contains("boot-ops-poll");
    assert!(running && !why.contains("boot-auth"), "{why}");
    // The authorizer's threads run when the socket turns out to be unusable.
    let file = base.path().join("file");
    std::fs::write(&file, "no directory").unwrap();
    let why = fails("uds_path", file.join("api.sock").to_str().unwrap());
    assert!(why.contains("uds_path"), "{why}");
}

#[test]
fn what_a_start_refuses_as_configuration_is_refused_by_the_check() {
    let refused = |pairs: &[(&str, &str)], word: &str| {
        let config = Config::from_pairs(&TABLE, pairs).unwrap();
        let lines = StartError::Config(check::<Halfway>(&config).expect_err(word)).to_string();
        assert!(lines.contains(word), "{lines}");
        let parts = Parts::ephemeral("svc-boot").unwrap();
        let why = start::<Halfway>(config, parts).expect_err(word);
        assert!(matches!(why, StartError::Config(_)) && why.to_string() == lines);
    };
    refused(&[("amnesia", "true"), ("batch", "7")], "is never 7");
    refused(&[("batch", "8")], "data_dir");
    let good = Config::from_pairs(&TABLE, &[("data_dir", "/x")]).unwrap();
    assert!(check::<Halfway>(&good).is_ok());
}

/// Its threads must not be counted among those of a failed start in another test.
static OTHER_TOPOLOGY: Topology = crate::topology! {
    service: "svc-boot", prefix: "oth", threads: [], queues: [], locks: [],
};
static AUTH: OnceLock<Arc<RonAuthorizer>> = OnceLock::new();
static HOOKS: AtomicU32 = AtomicU32::new(0);

fn region() -> Option<String> {
    AUTH.get().unwrap().config().region.clone()
}

/// Its hook refuses a batch of 13, and counts its calls.
struct Reloading;

impl Service for Reloading {
    type Settings = Sample;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &OTHER_TOPOLOGY;

    fn start(boot: Boot<Sample>) -> Result<Running, StartError> {
        let _ = AUTH.set(boot.auth);
        boot.chassis.on_reload(|settings: Sample| {
            HOOKS.fetch_add(1, Ordering::SeqCst);
            if settings.batch == 13 {
                return Err(format!("in {:?}", region()));
            }
            Ok(())
        });
        boot.chassis.serve(Router::new(info()))
    }
}

#[test]
fn a_reload_checks_the_settings_then_runs_the_services_hooks_and_changes_the_authorizer_last() {
    let config = |pairs: &[(&str, &str)]| {
        let all: Vec<(&str, &str)> = [("amnesia", "true")].iter().chain(pairs).copied().collect();
        Config::from_pairs(&TABLE, &all).unwrap()
    };
    let parts = Parts::ephemeral("svc-boot").unwrap();
    let running = start::<Reloading>(config(&[("auth.region", "old")]), parts).unwrap();
    let reload = |region: &str, batch: &str| {
        running.reload(config(&[("auth.region", region), ("batch", batch)]))
    };
    let refused = reload("new", "7").unwrap_err();
    assert!(matches!(refused, ReloadError::Invalid(_)), "{refused}");
    assert_eq!(HOOKS.load(Ordering::SeqCst), 0);

    let refused = reload("new", "13").unwrap_err();
    let why = "in Some(\"old\")".to_owned();
    assert_eq!(refused, ReloadError::Refused(why));
    assert_eq!(
        (HOOKS.load(Ordering::SeqCst), region().as_deref()),
        (1, Some("old"))
    );

    reload("new", "9").unwrap();
    assert_eq!(
        (HOOKS.load(Ordering::SeqCst), region().as_deref()),
        (2, Some("new"))
    );
}

static FILES_TOPOLOGY: Topology = crate::topology! {
    service: "svc-boot", prefix: "fil", threads: [], queues: [], locks: [],
};

/// Accepts a policy at its start.
struct Accepting;

impl Service for Accepting {
    type Settings = Sample;
    const TABLE: &'static Table = &TABLE;
    const TOPOLOGY: &'static Topology = &FILES_TOPOLOGY;

    fn start(boot: Boot<Sample>) -> Result<Running, StartError> {
        let policy = crate::kept_policy::tests::wallet_policy(1);
        let kept = crate::kept_policy::KeptPolicy::new(boot.data_dir);
        kept.write(&policy).map_err(StartError::failed)?;
        boot.chassis.serve(Router::new(info()))
    }
}

#[test]
fn small_files_are_on_the_disk_of_the_parts_and_watched() {
    let clock = ron_kernel::ManualClock::at(1_800_000_000_000);
    let passes = clock.clone();
    let disk = ron_files::trial::Hooked::new(move |name: &std::path::Path| {
        if name.ends_with("wallet.accepted") {
            passes.advance(ron_kernel::HANGS_AFTER + std::time::Duration::from_millis(1));
        }
    });
    let disk = Arc::new(disk);
    let mut parts = Parts::ephemeral("svc-boot").unwrap();
    parts.clock = clock;
    parts.disk = disk.clone();
    let registry = parts.registry.clone();
    let config = Config::from_pairs(&TABLE, &[("data_dir", "/nowhere/at/all")]).unwrap();
    let running = start::<Accepting>(config, parts).unwrap();
    let counted = "svc_boot_io_timeouts_total{op=\"files\"} 1";
    assert!(registry.render().contains(counted), "{}", registry.render());
    let dir = Dir::new(disk, "/nowhere/at/all");
    assert!(dir.exists("wallet.accepted").unwrap());
    drop(running);
    assert!(!std::path::Path::new("/nowhere").exists());
}
