//! Three database hosts on one machine, each with etcd, Patroni and PostgreSQL at an address of its own, configured by the files
//! of docs/ha. Ports are those of real hosts; the data is in a temporary directory, and all of it is gone afterwards. They are on the
//! loopback network, or apart: with a network and a disk each ([`crate::apart`]).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_pg::Connection;
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::apart;
use crate::cluster::{children_of, command, programs, run, waiter};
use crate::contract::soon;

const PORTS: [u16; 4] = [2379, 2380, 5432, 8008];
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Of the demo alone: no server listens beyond this machine.
const PASSWORD: &str = "demo";
/// `patroni:demo`
const BASIC: &str = "cGF0cm9uaTpkZW1v";

/// What runs on a host, and where.
#[derive(Debug)]
struct Host {
    name: &'static str,
    address: String,
    dir: PathBuf,
    /// Its number, when it has a network of its own.
    apart: Option<usize>,
    etcd: Option<Child>,
    patroni: Option<Child>,
}

/// Processes of a host that a fault stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of the host.
    All,
    Patroni,
    Etcd,
}

impl Host {
    /// PostgreSQL's processes, which Patroni has started and which outlive it.
    fn postgres(&self) -> Vec<Pid> {
        let file = fs::read_to_string(self.dir.join("postgres/postmaster.pid"));
        let file = file.unwrap_or_default();
        let Some(first) = file
            .lines()
            .next()
            .and_then(|line| line.parse::<i32>().ok())
        else {
            return Vec::new();
        };
        // The number may be that of another program by now.
        let line = fs::read(format!("/proc/{first}/cmdline")).unwrap_or_default();
        if !String::from_utf8_lossy(&line).contains(&*self.dir.to_string_lossy()) {
            return Vec::new();
        }
        Pid::from_raw(first)
            .into_iter()
            .chain(children_of(first))
            .collect()
    }

    fn signal(&self, part: Part, signal: Signal) {
        let started = |child: &Option<Child>| {
            let pid = child.as_ref().map(|child| child.id() as i32);
            pid.and_then(Pid::from_raw)
        };
        let mut pids = Vec::new();
        if part != Part::Etcd {
            pids.extend(started(&self.patroni));
        }
        if part == Part::All {
            pids.extend(self.postgres());
        }
        if part != Part::Patroni {
            pids.extend(started(&self.etcd));
        }
        for pid in pids {
            let _ = rustix::process::kill_process(pid, signal); // it may have ended just now
        }
    }

    fn kill(&mut self, part: Part) {
        // Twice: a process that was being started when the list was made.
        self.signal(part, Signal::KILL);
        self.signal(part, Signal::KILL);
        let killed = match part {
            Part::All => [self.etcd.take(), self.patroni.take()],
            Part::Patroni => [None, self.patroni.take()],
            Part::Etcd => [self.etcd.take(), None],
        };
        for mut child in killed.into_iter().flatten() {
            let _ = child.wait(); // ended by the signal
        }
    }

    /// Starts what does not run.
    fn start(&mut self) {
        for child in [&mut self.etcd, &mut self.patroni] {
            // A full disk ends etcd.
            let ended = child.as_mut().map(Child::try_wait);
            if matches!(ended, Some(Ok(Some(_)))) {
                *child = None;
            }
        }
        let spawn = |program: &str, args: &[&str]| {
            let log = self.dir.join(format!("{program}.log"));
            let log = fs::File::options().create(true).append(true).open(log);
            let log = log.expect("a log file");
            let mut command = command(&format!("/usr/bin/{program}"));
            command
                .args(args)
                .arg(self.dir.join(format!("{program}.yml")));
            if let Some(host) = self.apart {
                command = apart::inside(host, &command);
                command.stdin(Stdio::null());
            }
            command.stdout(log.try_clone().expect("a file")).stderr(log);
            command.spawn().expect("scripts/setup.sh installs it")
        };
        if self.etcd.is_none() {
            self.etcd = Some(spawn("etcd", &["--config-file"]));
        }
        if self.patroni.is_none() {
            self.patroni = Some(spawn("patroni", &[]));
        }
    }
}

/// Three hosts of one database.
#[derive(Debug)]
pub struct Hosts {
    hosts: [Host; 3],
    passfile: PathBuf,
    _dir: TempDir,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            host.kill(Part::All);
            if host.apart.is_some() {
                apart::remove(&host.dir);
            }
        }
    }
}

/// Addresses 1 to 3 of a loopback network on which all ports are free.
pub fn free_network() -> String {
    let first = std::process::id();
    let mut networks = (0..200).map(|n| format!("127.{}.{}", 64 + first % 128, (first + n) % 256));
    let is_free = |network: &String| {
        let mut places =
            (1..=3).flat_map(|host| PORTS.map(|port| format!("{network}.{host}:{port}")));
        places.all(|place| TcpListener::bind(place).is_ok())
    };
    networks.find(is_free).expect("a network with free ports")
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

/// Writes the configuration of a host, from the files of docs/ha.
fn configure(network: &str, is_apart: bool, at: usize, dir: &Path) -> Host {
    let address = |at: usize| format!("{network}.{}", at + 1);
    let member = |at: usize| format!("{}=http://{}:2380", NAMES[at], address(at));
    let client = |at: usize| format!("{}:2379", address(at));
    let (cluster, etcd) = (
        [0, 1, 2].map(member).join(","),
        [0, 1, 2].map(client).join(","),
    );
    let (name, address, home) = (NAMES[at], address(at), dir.join(NAMES[at]));
    let near = if is_apart {
        format!("{network}.0/24")
    } else {
        "127.0.0.0/8".to_owned()
    };
    let (shown, bin) = (home.display().to_string(), programs().display().to_string());
    let places = [
        ("@NAME@", name),
        ("@ADDRESS@", &address),
        ("@DIR@", &shown),
        ("@CLUSTER@", &cluster),
        ("@ETCD@", &etcd),
        ("@NETWORK@", &near),
        ("@BIN@", &bin),
        ("@PATRONI_PASSWORD@", PASSWORD),
        ("@SUPERUSER_PASSWORD@", PASSWORD),
        ("@REPLICATION_PASSWORD@", PASSWORD),
    ];
    fs::create_dir(&home).expect("a directory");
    if is_apart {
        apart::add(at, &home);
    }
    for (file, text) in [
        ("etcd.yml", include_str!("../../../docs/ha/etcd.yml")),
        ("patroni.yml", include_str!("../../../docs/ha/patroni.yml")),
    ] {
        let put = |text: String, (mark, value): &(&str, &str)| text.replace(mark, value);
        write_private(&home.join(file), &places.iter().fold(text.to_owned(), put));
    }
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).expect("its mode");
    if rustix::process::geteuid().is_root() {
        let mut owned = Command::new("chown");
        run(owned.args(["-R", "postgres:postgres"]).arg(&home));
    }
    Host {
        name,
        address,
        dir: home,
        apart: is_apart.then_some(at),
        etcd: None,
        patroni: None,
    }
}

impl Hosts {
    /// Starts the hosts on the loopback network, and waits until one writes and another is its synchronous standby.
    pub fn start() -> Self {
        Self::start_in(&free_network(), false)
    }

    /// The same with a network and a disk for each host, in the namespaces of [`apart::is_inside`].
    pub fn start_apart() -> Self {
        Self::start_in(apart::NETWORK, true)
    }

    fn start_in(network: &str, is_apart: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("ron-ha-")
            .tempdir_in("/tmp");
        let dir = dir.expect("a temporary directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let hosts = [0, 1, 2].map(|at| configure(network, is_apart, at, dir.path()));
        let passfile = dir.path().join("pgpass");
        let line = |user| format!("*:*:*:{user}:{PASSWORD}\n");
        write_private(&passfile, &(line("postgres") + &line("ron_ledger")));
        let mut hosts = Self {
            hosts,
            passfile,
            _dir: dir,
        };
        for host in &mut hosts.hosts {
            host.start();
        }
        hosts.wait_until_whole();
        hosts.admin(&format!(
            "CREATE ROLE ron_ledger LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 40"
        ));
        hosts.admin("CREATE DATABASE ron OWNER ron_ledger");
        hosts
    }

    /// The database for a service's configuration.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .hosts
            .iter()
            .map(|host| format!("{}:5432", host.address))
            .collect();
        let (hosts, passfile) = (hosts.join(","), self.passfile.display());
        format!("postgresql://ron_ledger@{hosts}/ron?passfile={passfile}")
    }

    /// Runs a statement as the superuser, at the primary.
    pub fn admin(&self, sql: &str) {
        let hosts = self
            .hosts
            .each_ref()
            .map(|host| host.address.as_str())
            .join(",");
        let conninfo = format!(
            "hostaddr={hosts} user=postgres dbname=postgres passfile={}",
            self.passfile.display()
        );
        let connection = Connection::connect(&conninfo, &waiter(), soon());
        let done = connection.and_then(|mut connection| connection.query(sql, &[], soon()));
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub fn name(&self, host: usize) -> &'static str {
        self.hosts[host].name
    }

    pub fn signal(&self, host: usize, part: Part, signal: Signal) {
        self.hosts[host].signal(part, signal);
    }

    pub fn kill(&mut self, host: usize, part: Part) {
        self.hosts[host].kill(part);
    }

    /// The directory of all that a host keeps: its disk, when it has one of its own.
    pub fn disk(&self, host: usize) -> &Path {
        &self.hosts[host].dir
    }

    /// Starts again what was killed, or has ended.
    pub fn restart(&mut self, host: usize) {
        self.hosts[host].start();
    }

    /// What Patroni on a host answers: status and body; `None` when it does not within a second.
    fn ask(&self, host: usize, head: &str, body: &str) -> Option<(u16, String)> {
        let address: SocketAddr = format!("{}:8008", self.hosts[host].address).parse().ok()?;
        let limit = Duration::from_secs(if body.is_empty() { 1 } else { 60 });
        let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.0\r\nAuthorization: Basic {BASIC}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer))
    }

    fn host_that_is(&self, what: &str) -> Option<usize> {
        let head = format!("GET /{what}");
        (0..3).find(|host| {
            self.ask(*host, &head, "")
                .is_some_and(|(status, _)| status == 200)
        })
    }

    /// The host that Patroni says is the primary.
    pub fn primary(&self) -> usize {
        self.host_that_is("primary").expect("a primary")
    }

    /// The host without which no commit is answered.
    pub fn synchronous(&self) -> usize {
        self.host_that_is("synchronous")
            .expect("a synchronous standby")
    }

    fn is_whole(&self) -> bool {
        let roles = ["primary", "synchronous"];
        // A standby that is copied or rewound has no lag yet.
        let follow = |body: &str| {
            let known = body.split("\"lag\": ").skip(1);
            let known = known.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            known.count() == 2
        };
        let members = self.ask(0, "GET /cluster", "");
        members.is_some_and(|(_, body)| follow(&body))
            && roles.iter().all(|role| self.host_that_is(role).is_some())
    }

    /// Waits for a primary, its synchronous standby and a third host, five minutes at most.
    pub fn wait_until_whole(&self) {
        let give_up = Deadline::within(Duration::from_secs(300));
        while !self.is_whole() {
            assert!(
                !give_up.expired(),
                "not whole within five minutes:\n{}",
                self.logs()
            );
            pause(Duration::from_millis(500));
        }
    }

    /// Hands the database over to its synchronous standby, as `patronictl switchover` does.
    pub fn switch_over(&self) {
        let (from, to) = (self.primary(), self.synchronous());
        let body = format!(
            "{{\"leader\": \"{}\", \"candidate\": \"{}\"}}",
            self.name(from),
            self.name(to)
        );
        let answer = self.ask(from, "POST /switchover", &body);
        assert!(
            answer.as_ref().is_some_and(|(status, _)| *status == 200),
            "{answer:?}"
        );
    }

    /// The ends of all logs, for a failure.
    pub fn logs(&self) -> String {
        let mut ends = Vec::new();
        for host in &self.hosts {
            for program in ["etcd", "patroni"] {
                let log = fs::read_to_string(host.dir.join(format!("{program}.log")));
                let log = log.unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(15)..].join("\n");
                ends.push(format!("--- {program} on {}\n{end}", host.name));
            }
        }
        ends.join("\n")
    }
}

/// Lets time pass for the servers.
pub fn pause(time: Duration) {
    let (_trigger, never) = Shutdown::pair();
    never.wait(Deadline::within(time));
}
