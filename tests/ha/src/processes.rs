//! Services as processes of their own, for tests that kill them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::cluster::free_port;
use crate::contract::wait_for;
use crate::services::{private_dir, put};

/// A service with its configuration; killed when it is dropped.
pub struct Node {
    pub name: &'static str,
    pub program: PathBuf,
    pub dir: TempDir,
    pub url: String,
    /// Of `/readyz`.
    pub health: String,
    process: Option<Child>,
}

impl Node {
    /// `program` is `ha-node`.
    pub fn new(program: &str, name: &'static str) -> Self {
        let dir = private_dir();
        let [url, health] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
        let process = None;
        Self {
            name,
            program: program.into(),
            dir,
            url,
            health,
            process,
        }
    }

    pub fn configure(&self, more: &str) {
        let text = format!(
            "bind_addr = \"{}\"\nhealth_addr = \"{}\"\ndata_dir = \"{}\"\ninsecure_loopback = true\n{more}",
            self.url.trim_start_matches("http://"),
            self.health.trim_start_matches("http://"),
            self.dir.path().join("data").display(),
        );
        put(self.dir.path(), "config.toml", text.as_bytes());
        let data = self.dir.path().join("data");
        fs::create_dir_all(&data).expect("a directory");
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).expect("its mode");
    }

    pub fn start(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log());
        let process = Command::new(&self.program)
            .env("RON_HA_SERVICE", self.name)
            .arg("--config")
            .arg(self.dir.path().join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log.expect("a log file"))
            .spawn();
        self.process = Some(process.expect("it starts"));
    }

    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("it runs");
    }

    pub fn pid(&self) -> Pid {
        let id = self.process.as_ref().expect("it runs").id();
        Pid::from_raw(id.cast_signed()).expect("a process")
    }

    /// Has it drain and end, as a service manager does.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.ended_well();
    }

    /// Waits until it has ended, with success.
    pub fn ended_well(&mut self) {
        let mut process = self.process.take().expect("it runs");
        let mut status = None;
        wait_for("it ends", || {
            status = process.try_wait().expect("its state");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }

    /// Without a chance to write anything.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill(); // it may have ended
            let _ = process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.log()).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!(
                "== {} at {}, newest first:\n{}",
                self.name,
                self.url,
                last.join("\n")
            );
        }
    }
}
