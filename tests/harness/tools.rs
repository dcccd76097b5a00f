//! Processes of the tests: ended in every case, and fed with input.

use std::ffi::OsStr;
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::{ok, ron_binary, until};

/// A child that is ended by its process id in every case.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Process {
    /// Starts one without standard output.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|e| panic!("{command:?} (see scripts/setup.sh): {e}")))
    }

    /// Ends it by SIGTERM; returns its exit code, also when it ended before.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        self.0.wait().expect("it ends").code()
    }
}

/// Prometheus on a port, with data in `dir`, which reads the health port of each of `services` every second; `more` are further
/// lines of its configuration.
pub fn prometheus(dir: &Path, port: u16, services: &[(&str, u16)], more: &str) -> Command {
    let target = |(name, port): &(&str, u16)| {
        format!("  - targets: ['127.0.0.1:{port}']\n    labels: {{service: {name}}}\n")
    };
    let targets: String = services.iter().map(target).collect();
    let text = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{more}scrape_configs:\n- job_name: ron\n  static_configs:\n{targets}"
    );
    let config = dir.join("prometheus.yml");
    std::fs::write(&config, text).expect("written");
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    let data = dir.join("tsdb");
    command.arg(format!("--storage.tsdb.path={}", data.display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    command
}

/// A desktop whose browser is a script that notes its arguments and keeps a copy of the page.
pub struct Desktop {
    dir: tempfile::TempDir,
}

impl Default for Desktop {
    fn default() -> Self {
        Self::new()
    }
}

impl Desktop {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let opener = dir.path().join("xdg-open");
        let said = dir.path().join("said");
        let said = said.display();
        let script = format!(
            "#!/bin/sh\ncp \"$1\" {said}.page\necho \"$@\" > {said}.new\nmv {said}.new {said}\n"
        );
        std::fs::write(&opener, script).expect("written");
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(&opener, mode).expect("set");
        Self { dir }
    }

    /// Runs the command on this desktop.
    pub fn on<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.dir.path().display()))
            .env("XDG_RUNTIME_DIR", self.dir.path())
    }

    /// The arguments and the page that the browser was started with.
    pub fn opened(&self) -> (String, String) {
        let said = self.dir.path().join("said");
        until("a browser is started", || said.exists());
        let read = |path: &Path| std::fs::read_to_string(path).expect("the script has written it");
        (read(&said), read(&said.with_extension("page")))
    }

    /// Number of pages that are left for the browser.
    pub fn pages(&self) -> usize {
        let pages = std::fs::read_dir(self.dir.path().join("ron-pages"));
        pages.expect("a command has opened a page").count()
    }
}

/// A service with a configuration file and settings of `--set`.
pub fn service<S: AsRef<OsStr>>(
    name: &str,
    config: &Path,
    sets: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(ron_binary().with_file_name(name));
    command.arg("--config").arg(config);
    for set in sets {
        command.arg("--set").arg(set);
    }
    command
}

/// Waits until connections to an address are accepted.
pub fn wait_listening(address: impl ToSocketAddrs) {
    until("it listens", || TcpStream::connect(&address).is_ok());
}

/// Sends a signal, as `-HUP`, to a process that still exists.
pub fn signal(pid: u32, which: &str) {
    let sent = Command::new("kill")
        .args([which, &pid.to_string()])
        .status();
    assert!(sent.expect("kill runs").success(), "{which} to {pid}");
}

/// Runs a command that reads this input.
pub fn fed(command: &mut Command, input: impl AsRef<[u8]>) -> Output {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|e| panic!("{command:?} (see scripts/setup.sh): {e}"));
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_ref()).expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// Runs a program in a directory.
pub fn run_in(dir: &Path, program: &str, args: &[&str]) -> Output {
    let out = Command::new(program).args(args).current_dir(dir).output();
    out.unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Runs `openssl` with words that are separated by single spaces; it must succeed.
pub fn openssl(dir: &Path, line: &str) -> String {
    let args: Vec<&str> = line.split(' ').collect();
    ok(&run_in(dir, "openssl", &args))
}
