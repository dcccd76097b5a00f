//! A PostgreSQL primary with a synchronous standby, made for one test: as an unprivileged user, on
//! free ports of 127.0.0.1, with its data in a temporary directory, and gone afterwards.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ron_kernel::{Deadline, OsNet, OsRandom, Random as _, Shutdown};
use ron_pg::{Connection, Param, Rows, Waiter};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::contract::{soon, wait_for};

/// The name by which the primary knows its standby.
const STANDBY: &str = "s1";

/// Settings of both servers, small and without pauses; what the rules of ron-pg check is left alone.
const SETTINGS: [&str; 9] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=60",
    "shared_buffers=32MB",
    "wal_keep_size=256MB",
    "wal_sender_timeout=0",
    "wal_receiver_timeout=0",
    "wal_retrieve_retry_interval=100ms",
    "log_checkpoints=off",
];

/// The newest PostgreSQL that is installed.
pub fn programs() -> PathBuf {
    let installed =
        fs::read_dir("/usr/lib/postgresql").expect("scripts/setup.sh installs PostgreSQL");
    let versions = installed.flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path().join("bin")))
    });
    versions.max().expect("a version of PostgreSQL").1
}

/// A command as an unprivileged user, which ends when the test does, however that ends.
pub fn command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg(programs().join(program));
    // The user has no right to the present directory of the test.
    command.current_dir("/").stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) {
    let out = command
        .output()
        .expect("setpriv and PostgreSQL are installed");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {said}");
}

/// A port for a server that is started again on it: below those that the system gives to outgoing connections, one of which could
/// take it meanwhile.
pub fn free_port() -> u16 {
    loop {
        let port = 15_000 + (OsRandom.u64() % 17_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// For one connection of a test.
pub fn waiter() -> Arc<Waiter> {
    let (_trigger, never) = Shutdown::pair();
    Waiter::new(&OsNet, &never, Duration::ZERO).expect("a poller")
}

/// The processes that a process has started.
pub fn children_of(pid: i32) -> Vec<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// A server of this test, killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    pub port: u16,
    process: Option<Child>,
}

impl Server {
    fn new(dir: PathBuf) -> Self {
        let (port, process) = (free_port(), None);
        Self { dir, port, process }
    }

    pub fn conninfo(&self) -> String {
        format!(
            "hostaddr=127.0.0.1 port={} user=ron dbname=postgres",
            self.port
        )
    }

    /// The database for a service's configuration.
    pub fn url(&self) -> String {
        format!("postgresql://ron@127.0.0.1:{}/postgres", self.port)
    }

    fn start(&mut self) {
        self.spawn();
        wait_for("the server accepts connections", || {
            let ended = |process: &mut Child| process.try_wait().expect("its state").is_some();
            if self.process.as_mut().is_none_or(ended) {
                // Another program of the machine has its port for a moment, or what was killed still has its memory.
                self.spawn();
            }
            self.try_admin().is_some()
        });
    }

    fn spawn(&mut self) {
        let log = self.dir.with_extension("log");
        let log = fs::File::options().create(true).append(true).open(log);
        let log = log.expect("a log file");
        let mut postgres = command("postgres");
        postgres
            .arg("-D")
            .arg(&self.dir)
            .arg("-p")
            .arg(self.port.to_string());
        for setting in SETTINGS {
            postgres.args(["-c", setting]);
        }
        postgres.args(["-c", &format!("cluster_name={STANDBY}")]);
        postgres.stdout(Stdio::null()).stderr(log);
        self.process = Some(postgres.spawn().expect("PostgreSQL starts"));
    }

    fn try_admin(&self) -> Option<Connection> {
        // An administrator's statements do not wait for the standby.
        let conninfo = format!("{} options='-c synchronous_commit=local'", self.conninfo());
        Connection::connect(
            &conninfo,
            &waiter(),
            Deadline::within(Duration::from_secs(10)),
        )
        .ok()
    }

    /// Runs a statement in a session of its own.
    pub fn admin(&self, sql: &str, params: &[Param<'_>]) -> Rows {
        let mut connection = self.try_admin().expect("the server accepts connections");
        let rows = connection.query(sql, params, soon());
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Changes a setting, and waits until sessions have it.
    pub fn set(&self, name: &str, value: &str) {
        self.admin(&format!("ALTER SYSTEM SET {name} = '{value}'"), &[]);
        self.admin("SELECT pg_reload_conf()", &[]);
        let shown = format!("SELECT current_setting('{name}')");
        wait_for("the setting is in force", || {
            self.admin(&shown, &[]).text(0, 0) == Ok(value)
        });
    }

    /// The server's processes, its first one at the end.
    fn pids(&self) -> Vec<Pid> {
        let Some(first) = self.process.as_ref().map(Child::id) else {
            return Vec::new();
        };
        let first = first.cast_signed();
        children_of(first)
            .into_iter()
            .chain(Pid::from_raw(first))
            .collect()
    }

    pub fn signal(&self, signal: Signal) {
        for pid in self.pids() {
            let _ = rustix::process::kill_process(pid, signal); // it may have ended just now
        }
    }

    /// Ends all processes at once, as a crash does.
    fn crash(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut process) = self.process.take() {
            let _ = process.wait(); // ended by the signal
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}

/// A primary and its standby.
#[derive(Debug)]
pub struct Cluster {
    // Before the directory, so that the servers end first.
    pub primary: Server,
    pub standby: Option<Server>,
    _dir: TempDir,
}

impl Cluster {
    /// A server without a standby.
    pub fn alone() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("ron-ha-")
            .tempdir_in("/tmp");
        let dir = dir.expect("a temporary directory");
        if rustix::process::geteuid().is_root() {
            run(Command::new("chown")
                .arg("postgres:postgres")
                .arg(dir.path()));
        }
        let mut primary = Server::new(dir.path().join("a"));
        let options = [
            "-U",
            "ron",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
            "-D",
        ];
        run(command("initdb").args(options).arg(&primary.dir));
        primary.start();
        Self {
            primary,
            standby: None,
            _dir: dir,
        }
    }

    /// Lets the role `tls` in, with the password `secret` over TLS only. Returns its conninfo.
    pub fn add_tls(&self) -> String {
        let dir = &self.primary.dir;
        let (cert, key) = (dir.join("server.crt"), dir.join("server.key"));
        let mut made = command("/usr/bin/openssl");
        made.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ]);
        made.args(["-nodes", "-days", "30", "-subj", "/CN=ron", "-out"]);
        run(made.arg(&cert).arg("-keyout").arg(&key));
        let hba = dir.join("pg_hba.conf");
        let rest = fs::read_to_string(&hba).expect("initdb wrote it");
        let first = "hostssl all tls 127.0.0.1/32 scram-sha-256\nhost all tls all reject\n";
        fs::write(&hba, format!("{first}{rest}")).expect("it can be written");
        let role = "CREATE ROLE tls LOGIN SUPERUSER PASSWORD 'secret'";
        self.primary.admin(role, &[]);
        self.primary.set("ssl", "on");
        format!(
            "hostaddr=127.0.0.1 port={} user=tls password=secret dbname=postgres sslmode=verify-ca \
             sslrootcert={} channel_binding=require",
            self.primary.port,
            cert.display()
        )
    }

    /// A server whose commits wait for a second one.
    pub fn pair() -> Self {
        let mut cluster = Self::alone();
        let mut standby = Server::new(cluster.dir().join("b"));
        let from = cluster.primary.conninfo();
        let options = [
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-d",
            &from,
            "-D",
        ];
        run(command("pg_basebackup").args(options).arg(&standby.dir));
        standby.start();
        cluster.standby = Some(standby);
        cluster.primary.set("synchronous_standby_names", STANDBY);
        cluster.wait_for_standby();
        cluster
    }

    fn dir(&self) -> &Path {
        self.primary
            .dir
            .parent()
            .expect("below the temporary directory")
    }

    fn wait_for_standby(&self) {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        wait_for("the standby is synchronous", || {
            self.primary.admin(sql, &[]).int8(0, 0) == Ok(1)
        });
    }

    /// Stops the standby's processes where they are, or lets them go on.
    pub fn set_standby(&self, reachable: bool) {
        let standby = self.standby.as_ref().expect("a standby");
        if reachable {
            standby.signal(Signal::CONT);
            self.wait_for_standby();
        } else {
            standby.signal(Signal::STOP);
        }
    }

    /// Ends the standby, runs `meanwhile`, and starts it again.
    pub fn without_standby(&mut self, meanwhile: impl FnOnce()) {
        self.standby.as_mut().expect("a standby").crash();
        meanwhile();
        self.standby.as_mut().expect("a standby").start();
        self.wait_for_standby();
    }

    pub fn restart_primary(&mut self) {
        self.primary.crash();
        self.primary.start();
    }

    /// The primary is lost, and with it what the stopped standby had not read from its socket.
    pub fn fail_over(&mut self) {
        let mut standby = self.standby.take().expect("a standby");
        standby.crash();
        self.primary.crash();
        standby.start();
        // Recovery may cancel a statement that stands in its way, and end its session.
        let promoted = "SELECT NOT pg_is_in_recovery() OR pg_promote(true, 60)";
        wait_for("the standby is promoted", || {
            let rows = standby
                .try_admin()
                .and_then(|mut connection| connection.query(promoted, &[], soon()).ok());
            rows.is_some_and(|rows| rows.boolean(0, 0) == Ok(true))
        });
        self.primary = standby;
    }
}
