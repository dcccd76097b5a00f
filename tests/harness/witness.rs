//! `ron witness` as a process of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ron_tlog::note::VerifierKey;
use tempfile::TempDir;

use crate::tools::Process;
use crate::{free_port, ok, ron_binary};

/// The directory of a witness, which can be started again.
pub struct WitnessHome {
    dir: TempDir,
    name: String,
    logs: String,
    port: u16,
    pub vkey: String,
}

impl WitnessHome {
    pub fn new(name: &str, logs: &[&VerifierKey]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let logs: Vec<String> = logs.iter().map(ToString::to_string).collect();
        let mut home = Self {
            dir,
            name: name.to_owned(),
            logs: logs.join(","),
            port: free_port(),
            vkey: String::new(),
        };
        let printed = ok(&home.command("vkey").output().expect("ron runs"));
        home.vkey.push_str(printed.trim());
        home
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(ron_binary());
        command.args(["witness", what]);
        let sets = [
            format!("name={}", self.name),
            format!("logs={}", self.logs),
            format!("data_dir={}", self.dir.path().join("data").display()),
            format!("bind_addr=127.0.0.1:{}", self.port),
            "health_addr=127.0.0.1:0".into(),
            "log.level=error".into(),
        ];
        for set in sets {
            command.args(["--set", &set]);
        }
        command
    }

    /// Starts it and waits until it is ready.
    pub fn start(&self) -> Process {
        let mut child = self
            .command("run")
            .stdout(Stdio::piped())
            .spawn()
            .expect("ron starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let ready = out
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "ready");
        assert!(ready, "the witness ended: {:?}", child.wait());
        Process(child)
    }

    /// A policy of this witness alone, in a file.
    pub fn policy(&self, logs: &[&VerifierKey], dir: &Path) -> String {
        let line = |log: &&VerifierKey| format!("log {log}\n");
        let logs: String = logs.iter().map(line).collect();
        let text = format!("{logs}witness w {} {}\nquorum w\n", self.vkey, self.url());
        let path = dir.join("witness.policy");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    }
}
