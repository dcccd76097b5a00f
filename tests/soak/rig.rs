//! Six services as processes that can be killed, reloaded and restarted, and their use of the
//! machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_tests::tools::Process;
use ron_tests::{SERVICES, base_port, http_client, ok, ron_binary, ron_on, takes_passports};
use tempfile::TempDir;

/// Maximum wait for a service to be ready again, on a busy machine.
const READY: Duration = Duration::from_secs(60);

/// Bytes resident, threads and descriptors of a process.
#[derive(Clone, Copy, Default)]
pub struct Use {
    pub rss: u64,
    pub threads: u64,
    pub fds: u64,
}

impl Use {
    fn of(pid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Self {
            rss: field("VmRSS:")? * 1024,
            threads: field("Threads:")?,
            fds: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        })
    }

    /// The larger of each.
    pub fn most(self, other: Self) -> Self {
        Self {
            rss: self.rss.max(other.rss),
            threads: self.threads.max(other.threads),
            fds: self.fds.max(other.fds),
        }
    }
}

/// The six services, killed on drop.
pub struct Rig {
    pub dir: TempDir,
    pub http: Arc<HttpClient>,
    base: u16,
    children: Mutex<BTreeMap<&'static str, Process>>,
}

/// Settings of a service of a soak beside its file.
fn own(name: &str) -> &'static [&'static str] {
    match name {
        // In half an hour the log gets more keys than may sign it at a time.
        "ron-kms" => &["--set", "audit.log_key_overlap=20s"],
        _ => &[],
    }
}

impl Rig {
    pub fn start() -> Self {
        let rig = Self {
            dir: tempfile::tempdir().unwrap(),
            http: Arc::new(http_client()),
            base: base_port(),
            children: Mutex::default(),
        };
        ok(&ron_on(
            rig.path(),
            &["init", "--base-port", &rig.base.to_string()],
        ));
        for name in SERVICES {
            rig.run(name);
        }
        for name in SERVICES {
            rig.wait_ready(name);
        }
        rig
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn api(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}", self.port(name))
    }

    /// URL of the API's Unix socket, where service tokens are accepted.
    pub fn socket(&self, name: &str) -> String {
        ron_tests::socket_of(self.path(), name, "api")
    }

    pub fn health(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}", self.port(name) + 5)
    }

    fn port(&self, name: &str) -> u16 {
        let at = SERVICES.iter().position(|s| *s == name).unwrap();
        self.base + 10 * at as u16
    }

    fn run(&self, name: &'static str) {
        let log = self.path().join("run").join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let child = Command::new(ron_binary().with_file_name(name))
            .arg("--config")
            .arg(self.path().join(name).join("config.toml"))
            .args(["--set", "log.level=warn"])
            .args(own(name))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.lock().unwrap().insert(name, Process(child));
    }

    /// `kill -9`, and an immediate restart.
    pub fn kill(&self, name: &'static str) {
        let mut child = self.children.lock().unwrap().remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.run(name);
        self.wait_ready(name);
    }

    pub fn signal(&self, name: &str, signal: &str) {
        let pid = self.children.lock().unwrap()[name].id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success(), "{name} is gone: {}", self.last_words(name));
    }

    pub fn wait_ready(&self, name: &str) {
        let url = format!("{}/readyz", self.health(name));
        let since = Instant::now();
        loop {
            let by = Deadline::within(Duration::from_secs(2));
            let answer = self.http.call(Call::get(&url, by));
            if answer.as_ref().is_ok_and(takes_passports) {
                return;
            }
            assert!(
                since.elapsed() < READY,
                "{name} is not ready ({answer:?}): {}",
                self.last_words(name)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn last_words(&self, name: &str) -> String {
        let log = self.path().join("run").join(format!("{name}.log"));
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// The current use of each service.
    pub fn uses(&self) -> BTreeMap<&'static str, Use> {
        let children = self.children.lock().unwrap();
        let of = |(name, child): (&&'static str, &Process)| Some((*name, Use::of(child.id())?));
        children.iter().filter_map(of).collect()
    }

    /// SIGTERM, callers first; returns the exit codes.
    pub fn stop(&self) -> Vec<(&'static str, Option<i32>)> {
        let mut codes = Vec::new();
        for name in SERVICES.into_iter().rev() {
            let mut child = self.children.lock().unwrap().remove(name).unwrap();
            codes.push((name, child.stop()));
        }
        codes
    }
}
