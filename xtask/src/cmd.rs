//! Commands of tasks: shown, run from the root of the tree, and with an error that says what to do.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::files;
use crate::task::{Failure, Outcome};

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// A signal ends the command that runs (the terminal sends it to both) and starts no further one, so that the task
/// fails in the usual way and removes its directories.
pub fn watch_signals() {
    for signal in [SIGINT, SIGTERM] {
        if let Err(e) = signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED)) {
            eprintln!("xtask: directories stay after an interruption: {e}");
        }
    }
}

/// One command of a task.
pub struct Cmd {
    inner: Command,
    shown: String,
    /// The variables that are set for the command, as a shell would take them.
    shown_env: String,
    is_silent: bool,
    hint: &'static str,
}

impl Cmd {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut inner = Command::new(program);
        inner.current_dir(files::root());
        let tools = files::root().join("target/tools/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        inner.env("PATH", format!("{}:{path}", tools.display()));
        // Of this package, set by `cargo run`; a nested cargo would hand them to what it builds.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                inner.env_remove(name.as_ref());
            }
        }
        let shown = program.to_string_lossy().into_owned();
        Self {
            inner,
            shown,
            shown_env: String::new(),
            is_silent: false,
            hint: "",
        }
    }

    /// `cargo` with arguments that are separated by single spaces.
    pub fn cargo(args: &str) -> Self {
        Self::new("cargo").args(args.split(' '))
    }

    /// A script of `sh`; arguments that follow are `$1` and so on.
    pub fn sh(script: &str) -> Self {
        Self::new("sh").args(["-euc", script, "sh"])
    }

    /// A program that may hold this many descriptors open.
    pub fn with_descriptors(count: u32, program: &Path) -> Self {
        Self::sh(&format!("ulimit -n {count}; exec \"$@\"")).arg(program)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        let arg = arg.as_ref();
        let text = arg.to_string_lossy();
        let plain = |c: char| c.is_alphanumeric() || "-_=./:,+".contains(c);
        if !text.is_empty() && text.chars().all(plain) {
            self.shown = format!("{} {text}", self.shown);
        } else {
            self.shown = format!("{} '{text}'", self.shown);
        }
        self.inner.arg(arg);
        self
    }

    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(self, args: I) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        let value = value.as_ref();
        let value_shown = value.to_string_lossy();
        self.shown_env = format!("{}{name}='{value_shown}' ", self.shown_env);
        self.inner.env(name, value);
        self
    }

    pub fn envs<'a>(self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let set = |cmd: Self, (name, value)| cmd.env(name, value);
        pairs.into_iter().fold(self, set)
    }

    pub fn env_remove(mut self, name: &str) -> Self {
        self.inner.env_remove(name);
        self
    }

    pub fn dir(mut self, dir: &Path) -> Self {
        self.inner.current_dir(dir);
        self
    }

    /// What to do when the command is missing or fails.
    pub fn hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// Neither shows the command nor what it prints.
    pub fn silent(mut self) -> Self {
        self.is_silent = true;
        self.inner.stdout(Stdio::null()).stderr(Stdio::null());
        self
    }

    /// Appends what the command prints to a file.
    pub fn log(mut self, path: &Path) -> Outcome<Self> {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        let file =
            file.map_err(|e| self.failed(&format!("cannot log to {}: {e}", path.display())))?;
        let copy = file.try_clone().map_err(|e| self.failed(&e.to_string()))?;
        self.inner.stdout(file).stderr(copy);
        Ok(self)
    }

    /// Runs the command with the task's own output.
    pub fn run(mut self) -> Outcome {
        self.announce()?;
        let status = self.inner.status();
        let status = status.map_err(|e| self.not_started(&e))?;
        self.succeeded(status)
    }

    /// Runs the command and leaves the judgement of its exit code to the caller.
    pub fn status(mut self) -> Outcome<ExitStatus> {
        self.announce()?;
        let status = self.inner.status();
        status.map_err(|e| self.not_started(&e))
    }

    /// Runs the command, which is not shown; returns what it prints on standard output.
    pub fn output(mut self) -> Outcome<String> {
        let out = self.inner.stderr(Stdio::inherit()).output();
        let out = out.map_err(|e| self.not_started(&e))?;
        self.succeeded(out.status)?;
        Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
    }

    /// Runs a command that is expected to fail; returns what it prints. An error when it succeeds.
    pub fn output_of_failure(mut self) -> Outcome<String> {
        self.announce()?;
        let out = self.inner.output().map_err(|e| self.not_started(&e))?;
        if out.status.success() {
            return Err(self.failed("it succeeds, and should not"));
        }
        let (shown, errors) = (
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr),
        );
        Ok(format!("{shown}{errors}"))
    }

    /// As [`Cmd::output`], for a command that takes long: it is shown.
    pub fn measured(self) -> Outcome<String> {
        self.announce()?;
        self.output()
    }

    /// Runs the command and prints those of its lines (standard output) that `keep` accepts; the others too if it fails.
    /// Returns how many lines it accepted.
    pub fn lines(mut self, keep: impl Fn(&str) -> bool) -> Outcome<usize> {
        self.announce()?;
        let child = self.inner.stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|e| self.not_started(&e))?;
        let (mut kept, mut left_out) = (0, Vec::new());
        if let Some(out) = child.stdout.take() {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if keep(&line) {
                    println!("{line}");
                    kept += 1;
                } else {
                    left_out.push(line);
                }
            }
        }
        let status = child.wait().map_err(|e| self.failed(&e.to_string()))?;
        if !status.success() {
            eprintln!("{}", left_out.join("\n"));
        }
        self.succeeded(status).map(|()| kept)
    }

    /// Starts the command in the background.
    pub fn start(mut self) -> Outcome<Started> {
        self.announce()?;
        let child = self.inner.spawn();
        child.map(Started).map_err(|e| self.not_started(&e))
    }

    fn announce(&self) -> Outcome {
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err(Failure("interrupted".to_owned()));
        }
        if !self.is_silent {
            eprintln!("$ {}{}", self.shown_env, self.shown);
        }
        Ok(())
    }

    fn succeeded(&self, status: ExitStatus) -> Outcome {
        if status.success() {
            return Ok(());
        }
        Err(self.failed(&status.to_string()))
    }

    fn not_started(&self, e: &std::io::Error) -> Failure {
        match e.kind() {
            ErrorKind::NotFound => self.failed("the program is missing"),
            _ => self.failed(&e.to_string()),
        }
    }

    fn failed(&self, why: &str) -> Failure {
        let hint = if self.hint.is_empty() { "" } else { "; " };
        Failure(format!("`{}`: {why}{hint}{}", self.shown, self.hint))
    }
}

/// A command in the background, which is killed when the task ends.
pub struct Started(Child);

impl Started {
    /// Asks the process to end, and waits for it.
    pub fn stop(mut self) -> Outcome {
        let pid = self.0.id().to_string();
        Cmd::new("kill").arg(pid).silent().status()?;
        let ended = self.0.wait();
        ended.map(|_| ()).map_err(|e| Failure(e.to_string()))
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Of a process that was stopped already, both report an error that says so.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fails unless all of these programs are on the `PATH`.
pub fn require(programs: &[&str], hint: &'static str) -> Outcome {
    for program in programs {
        let found = Cmd::sh("command -v \"$1\"").arg(program).output();
        found.map_err(|_| Failure(format!("{program} is missing: {hint}")))?;
    }
    Ok(())
}

/// The seconds since 1970 that stand in files: `SOURCE_DATE_EPOCH`, else the time of the last commit, so that the same
/// tree gives the same bytes.
pub fn source_date() -> String {
    let set = std::env::var("SOURCE_DATE_EPOCH").ok();
    set.unwrap_or_else(|| {
        let committed = Cmd::new("git").args(["log", "-1", "--format=%ct"]).output();
        committed.unwrap_or_else(|_| "0".to_owned())
    })
}

/// Writes the tree of the last commit, and nothing else, to a directory.
pub fn write_commit(dir: &Path) -> Outcome {
    files::create_dir(dir)?;
    Cmd::sh("git archive HEAD | tar -x -C \"$1\"")
        .arg(dir)
        .run()
}
