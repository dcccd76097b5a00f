//! The Debian packages: built, installed into a tree of their own, configured as the manual says,
//! and started. Test machines run no service manager, so the test does its work from the unit's own
//! lines: user, directories, credentials, command. The tree is a chroot, so the paths are those of
//! a real host.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ron_http::Call;
use ron_kernel::Deadline;
use ron_tests::tools::Process;
use ron_tests::{
    SERVICES, base_port, http_client, ok, ron_binary, ron_on, takes_passports, until, workspace,
    xtask,
};

/// Runs a command that must succeed; returns its output.
fn run(command: &mut Command) -> String {
    ok(&command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}")))
}

/// A root directory with a package database of its own.
struct Tree {
    dir: tempfile::TempDir,
}

/// One user of the tree.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = Self { dir };
        // Services that are not root must be able to traverse it.
        fs::set_permissions(tree.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for place in [
            "etc",
            "var/lib/dpkg/updates",
            "var/lib/dpkg/info",
            "root",
            "run",
            "srv",
            "tmp",
        ] {
            fs::create_dir_all(tree.at(place)).unwrap();
        }
        fs::set_permissions(tree.at("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(tree.at("var/lib/dpkg/status"), "").unwrap();
        fs::write(tree.at("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
        fs::write(tree.at("etc/group"), "root:x:0:\n").unwrap();
        tree
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn dpkg(&self) -> Command {
        let mut dpkg = Command::new("dpkg");
        // The libraries that the packages depend on are the host's; maintainer scripts run outside
        // of the tree, as for an image.
        dpkg.arg(format!("--root={}", self.dir.path().display()))
            .args([
                "--force-depends",
                "--force-script-chrootless",
                "--log=/dev/null",
            ])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        dpkg
    }

    fn user(&self, name: &str) -> User {
        let text = fs::read_to_string(self.at("etc/passwd")).unwrap();
        let line = text.lines().find(|l| l.split(':').next() == Some(name));
        let fields: Vec<&str> = line
            .unwrap_or_else(|| panic!("no user {name}"))
            .split(':')
            .collect();
        User {
            uid: fields[2].parse().unwrap(),
            gid: fields[3].parse().unwrap(),
        }
    }

    /// Groups that contain this user.
    fn groups(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.at("etc/group")).unwrap();
        let fields = text.lines().map(|l| l.split(':').collect::<Vec<_>>());
        fields
            .filter(|f| f[3].split(',').any(|member| member == name))
            .map(|f| f[2].to_owned())
            .collect()
    }

    /// Copies the shared libraries that a program of the tree needs from the host.
    fn bring_libraries(&self, program: &str) {
        let said = run(Command::new("ldd").arg(self.at(program)));
        for library in said.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = self.at(library);
            if to.exists() {
                continue; // another service runs on it
            }
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
    }
}

/// Builds the packages from the binaries beside this test.
fn build() -> Vec<PathBuf> {
    let bin = ron_binary();
    let profile = bin.parent().unwrap();
    let name = profile.file_name().unwrap().to_str().unwrap();
    let name = if name == "debug" { "dev" } else { name };
    run(xtask()
        .args(["package", "--fast", "--profile", name])
        .env("CARGO_TARGET_DIR", profile.parent().unwrap()));
    let made = fs::read_dir(workspace().join("target/package")).unwrap();
    let mut debs: Vec<PathBuf> = made
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect();
    debs.sort();
    assert_eq!(debs.len(), 8, "{debs:?}");
    debs
}

/// The lines of a unit's `[Service]` section, and the addresses of its socket unit.
struct Unit {
    name: &'static str,
    lines: Vec<(String, String)>,
    held: Vec<String>,
}

/// The addresses of a socket unit, which a drop-in may override.
fn held(tree: &Tree, name: &str) -> Vec<String> {
    let unit = tree.at(&format!("usr/lib/systemd/system/{name}.socket"));
    let changed = tree.at(&format!(
        "etc/systemd/system/{name}.socket.d/addresses.conf"
    ));
    let mut held = Vec::new();
    for file in [unit, changed] {
        let text = fs::read_to_string(file).unwrap_or_default();
        for addr in text.lines().filter_map(|l| l.strip_prefix("ListenStream=")) {
            match addr {
                "" => held.clear(), // an empty line empties the list
                addr => held.push(addr.to_owned()),
            }
        }
    }
    held
}

impl Unit {
    fn read(tree: &Tree, name: &'static str) -> Self {
        let path = tree.at(&format!("usr/lib/systemd/system/{name}.service"));
        let text = fs::read_to_string(path).unwrap();
        let section = text.split("[Service]\n").nth(1).unwrap();
        let section = section.split("\n[").next().unwrap();
        let pairs = section.lines().filter(|line| !line.starts_with('#'));
        let lines = pairs
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let held = held(tree, name);
        Self { name, lines, held }
    }

    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.lines.iter().filter(move |(k, _)| k == key);
        found.map(|(_, value)| value.as_str())
    }

    fn one(&self, key: &str) -> &str {
        let found = self.lines.iter().find(|(k, _)| k == key);
        let Some((_, value)) = found else {
            panic!("{}.service has no {key}=", self.name)
        };
        value
    }

    /// Does what the service manager does before it starts the command.
    fn prepare(&self, tree: &Tree) {
        let user = tree.user(self.one("User"));
        let own = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            chown(path, Some(user.uid), Some(user.gid)).unwrap();
        };
        let data = tree.at(&format!("var/lib/{}", self.one("StateDirectory")));
        fs::create_dir_all(&data).unwrap();
        let mode = u32::from_str_radix(self.one("StateDirectoryMode"), 8).unwrap();
        own(&data, mode);
        let given = tree.at(&format!("run/credentials/{}.service", self.name));
        fs::create_dir_all(&given).unwrap();
        for credential in self.all("LoadCredential") {
            let (id, source) = credential.split_once(':').unwrap();
            fs::copy(tree.at(source), given.join(id)).unwrap();
            own(&given.join(id), 0o400);
        }
        own(&given, 0o500);
    }

    /// Starts the unit's command as the unit's user, inside the tree, by connecting to an address
    /// of its socket unit.
    fn start(&self, tree: &Tree) -> Process {
        let name = self.one("User");
        let user = tree.user(name);
        assert_ne!(user.uid, 0, "{name}");
        // A container may not raise its limit; secrets are then locked as far as the limit allows.
        let memlock = self.one("LimitMEMLOCK").strip_suffix('M').unwrap();
        let memlock_kib = memlock.parse::<u64>().unwrap() << 10;
        let begin = format!(
            "umask {}; command ulimit -l {memlock_kib} 2>/dev/null; exec setpriv --no-new-privs chroot --userspec={}:{} --groups={} {} {}",
            self.one("UMask"),
            user.uid,
            user.gid,
            tree.groups(name)
                .into_iter()
                .chain([user.gid.to_string()])
                .collect::<Vec<_>>()
                .join(","),
            tree.dir.path().display(),
            self.one("ExecStart"),
        );
        let mut activate = Command::new("systemd-socket-activate");
        for addr in &self.held {
            activate.args(["-l", addr]);
        }
        activate
            .args(["-E", "CREDENTIALS_DIRECTORY", "sh", "-c", &begin])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env(
                "CREDENTIALS_DIRECTORY",
                format!("/run/credentials/{}.service", self.name),
            )
            .stdout(Stdio::null())
            .stderr(fs::File::create(tree.at(&format!("root/{}.log", self.name))).unwrap());
        let child = Process(activate.spawn().unwrap());
        until("its ports are held", || {
            TcpStream::connect(&self.held[0]).is_ok()
        });
        child
    }
}

/// Processes, ended by their ids in every case.
struct Running(Vec<(&'static str, Process)>);

impl Running {
    fn stop(mut self, tree: &Tree) {
        for (name, child) in &mut self.0 {
            let code = child.stop();
            let log = fs::read_to_string(tree.at(&format!("root/{name}.log"))).unwrap();
            assert_eq!(code, Some(0), "{name}: {log}");
        }
    }
}

/// Waits until a service reports that it is ready and accepts passports.
fn ready(tree: &Tree, name: &str, port: u16, child: &mut Child) {
    let started = Instant::now();
    let http = http_client();
    let url = format!("http://127.0.0.1:{port}/readyz");
    let log = || fs::read_to_string(tree.at(&format!("root/{name}.log"))).unwrap();
    loop {
        let call = Call::get(&url, Deadline::within(Duration::from_secs(5)));
        if http.call(call).is_ok_and(|reply| takes_passports(&reply)) {
            return;
        }
        if let Some(status) = child.try_wait().unwrap() {
            panic!("{name} ended with {status}: {}", log());
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{name} is not ready: {}",
            log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Files of the tree that belong to a service's user, outside the directories that its unit grants.
fn strays(tree: &Tree, unit: &Unit) -> Vec<PathBuf> {
    let user = tree.user(unit.one("User"));
    let allowed = [
        tree.at(&format!("var/lib/{}", unit.one("StateDirectory"))),
        tree.at(unit.one("ReadWritePaths")),
        tree.at(&format!("run/credentials/{}.service", unit.name)),
    ];
    let mut left = vec![tree.dir.path().to_owned()];
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if allowed.contains(&path) {
            continue;
        }
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.uid() == user.uid {
            found.push(path.clone());
        }
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }
    found
}

/// What every package must contain.
fn contents(tree: &Tree) {
    let there = |path: &str| assert!(tree.at(path).exists(), "/{path} is not in the packages");
    for name in SERVICES {
        there(&format!("usr/bin/{name}"));
        there(&format!("usr/share/man/man8/{name}.8.gz"));
        there(&format!("usr/share/doc/{name}/examples/config.toml"));
        there(&format!("usr/share/doc/{name}/copyright"));
        let completion = tree.at(&format!("usr/share/bash-completion/completions/{name}"));
        run(Command::new("bash").arg("-n").arg(completion));
        run(Command::new("systemd-analyze")
            .args(["security", "--offline=yes", "--threshold=15", "--no-pager"])
            .arg(tree.at(&format!("usr/lib/systemd/system/{name}.service"))));
    }
    for name in ["ron-ledger", "svc-wallet"] {
        there(&two_hosts(name));
    }
    there("usr/sbin/ron-spread");
    for unit in ["ron-backup.service", "ron-backup.timer", "ron.target"] {
        let path = tree.at(&format!("usr/lib/systemd/system/{unit}"));
        let text = fs::read_to_string(path).unwrap();
        // The program must exist where the line says; here that is inside the tree.
        let root = tree.dir.path().display();
        let scratch = tempfile::tempdir().unwrap();
        let copy = scratch.path().join(unit);
        // The timer starts the service of its name.
        let service = tree.at("usr/lib/systemd/system/ron-backup.service");
        fs::copy(service, scratch.path().join("ron-backup.service")).unwrap();
        fs::write(
            &copy,
            text.replace("ExecStart=/", &format!("ExecStart={root}/")),
        )
        .unwrap();
        let out = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&copy)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let ours: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("ron-backup") || line.contains("ron.target"))
            .collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
    there("usr/share/man/man1/ron.1.gz");
    there("usr/share/man/man1/ron-kms-create.1.gz");
    there("usr/share/zsh/vendor-completions/_ron");
    there("usr/share/doc/ron/docs/packaging.md");
}

/// The library, without its symbols, is loaded by a program that speaks PKCS#11, and reads the example of its configuration.
fn module_loads(tree: &Tree) {
    let config = tree.at("usr/share/doc/ron-pkcs11/examples/pkcs11.toml");
    let slots = run(Command::new("pkcs11-tool")
        .arg("--module")
        .arg(tree.at("usr/lib/ron/libron_pkcs11.so"))
        .arg("--list-slots")
        .env("RON_PKCS11_CONFIG", config));
    assert!(slots.contains("default/web"), "{slots}");
}

/// The drop-in for a service whose database is on other hosts.
fn two_hosts(name: &str) -> String {
    format!("usr/share/doc/{name}/examples/two-hosts.conf")
}

/// No unit has a line that the service manager does not know.
fn verified(tree: &Tree) {
    let scratch = tempfile::tempdir().unwrap();
    for name in SERVICES {
        let path = tree.at(&format!("usr/lib/systemd/system/{name}.service"));
        let unit = fs::read_to_string(path).unwrap();
        // The program must exist where the line says; here that is inside the tree.
        let root = tree.dir.path().display();
        let unit = unit.replace("ExecStart=/", &format!("ExecStart={root}/"));
        let copy = scratch.path().join(format!("{name}.service"));
        fs::write(&copy, unit).unwrap();
        let socket = format!("{name}.socket");
        let packed = tree.at(&format!("usr/lib/systemd/system/{socket}"));
        fs::copy(packed, scratch.path().join(&socket)).unwrap();
        let more = tree.at(&two_hosts(name));
        if more.exists() {
            let dir = scratch.path().join(format!("{name}.service.d"));
            fs::create_dir(&dir).unwrap();
            fs::copy(more, dir.join("two-hosts.conf")).unwrap();
        }
        let out = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&copy)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let ours: Vec<&str> = said.lines().filter(|line| line.contains(name)).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

/// Services reach one another through Unix sockets, and each knows the user ids of its callers and
/// its peers.
fn sockets(tree: &Tree) {
    let text =
        |name: &str| fs::read_to_string(tree.at(&format!("etc/ron/{name}/config.toml"))).unwrap();
    let list = |users: &[&str]| {
        let uids = users
            .iter()
            .map(|user| format!("\"{}\"", tree.user(user).uid));
        format!("[{}]", uids.collect::<Vec<_>>().join(", "))
    };
    let wallet = text("svc-wallet");
    for line in [
        "uds_path = \"/run/ron/svc-wallet/api.sock\"".to_owned(),
        "health_uds_path = \"/run/ron/svc-wallet/health.sock\"".to_owned(),
        format!(
            "uds_allow_uids = {}",
            list(&["root", "svc-wallet", "svc-admin"])
        ),
        format!(
            "peer_uids = {}",
            list(&["svc-wallet", "svc-passport", "ron-ledger"])
        ),
    ] {
        assert!(wallet.lines().any(|have| have == line), "{line}: {wallet}");
    }
    assert!(
        wallet.contains("\"unix:/run/ron/ron-ledger/api.sock"),
        "{wallet}"
    );
    for name in SERVICES {
        let dir = fs::metadata(tree.at(&format!("run/ron/{name}"))).unwrap();
        assert_eq!(dir.mode() & 0o7777, 0o2750, "{name}");
        assert_eq!(dir.uid(), tree.user(name).uid);
        for which in ["api", "health"] {
            let socket = fs::metadata(tree.at(&format!("run/ron/{name}/{which}.sock"))).unwrap();
            assert_eq!(socket.mode() & 0o7777, 0o660, "{name} {which}");
            assert_eq!(socket.gid(), dir.gid(), "the group ron-callers");
        }
    }
}

#[test]
fn packages_install_and_their_services_run_as_their_users() {
    if !run(Command::new("id").arg("-u")).starts_with("0\n") {
        println!("not run: installing packages into a tree and changing users needs root");
        return;
    }
    let debs = build();
    let tree = Tree::new();
    run(tree.dpkg().arg("-i").args(&debs));
    contents(&tree);
    module_loads(&tree);
    verified(&tree);
    // As docs/packaging.md says: init, then copy to each service.
    let base = base_port();
    let made = tree.at("srv/ron");
    let ron = tree.at("usr/bin/ron");
    run(Command::new(&ron)
        .args(["init", "--base-port", &base.to_string(), "--data-dir"])
        .arg(&made));
    let spread = |dir: &Path| {
        let mut command = Command::new(tree.at("usr/sbin/ron-spread"));
        command.arg("--root").arg(tree.dir.path()).arg(dir);
        command
    };
    run(&mut spread(&made));
    let again = spread(&made).output().unwrap();
    let why = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && why.contains("already exists"),
        "{why}"
    );
    let units: Vec<Unit> = SERVICES
        .iter()
        .map(|name| Unit::read(&tree, name))
        .collect();
    let mut running = Running(Vec::new());
    for unit in &units {
        tree.bring_libraries(&format!("usr/bin/{}", unit.name));
        unit.prepare(&tree);
        running.0.push((unit.name, unit.start(&tree)));
    }
    for ((name, child), port) in running.0.iter_mut().zip((base + 5..).step_by(10)) {
        ready(&tree, name, port, child);
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let uid = tree.user(name).uid;
        assert!(
            status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}")),
            "{name}: {status}"
        );
        assert!(
            status.contains("CapEff:\t0000000000000000"),
            "{name}: {status}"
        );
    }
    sockets(&tree);
    // The whole loop, over the installed services.
    let demo = run(Command::new(&ron)
        .args(["demo", "--json", "--data-dir"])
        .arg(&made));
    assert_eq!(demo.lines().count(), 5, "{demo}");
    running.stop(&tree);
    for unit in &units {
        let found = strays(&tree, unit);
        assert!(found.is_empty(), "{} wrote {found:?}", unit.name);
    }
    // The programs are removed; their data is not a package's to delete.
    run(tree.dpkg().args(["--purge", "ron"]).args(SERVICES));
    assert!(!tree.at("usr/bin/ron-kms").exists());
    for kept in [
        "etc/ron/ron-kms/seal.key",
        "var/lib/ron-kms",
        "var/lib/ron-ledger",
    ] {
        assert!(tree.at(kept).exists(), "{kept}");
    }
}

/// Users that may connect to a service's socket, as `ron-spread` sets them.
fn callers_of(service: &str) -> BTreeSet<String> {
    let script =
        "eval \"$(sed -n '/^callers_of() {$/,/^}$/p' packaging/ron-spread)\"; callers_of \"$1\"";
    let out = Command::new("sh")
        .args(["-euc", script, "sh", service])
        .current_dir(workspace())
        .output()
        .unwrap();
    ok(&out).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn spread_services_let_in_every_service_that_calls_them() {
    let dir = tempfile::tempdir().unwrap();
    ok(&ron_on(dir.path(), &["init"]));
    let mut checked = 0;
    for service in SERVICES {
        let config = dir.path().join(service).join("config.toml");
        let config = fs::read_to_string(config).unwrap();
        let names = config
            .lines()
            .filter_map(|line| line.strip_prefix("name = \""));
        let names = names.map(|rest| rest.trim_end_matches('"'));
        for caller in names.filter(|name| SERVICES.contains(name)) {
            // A socket is always open to its service's own user.
            let let_in = caller == service || callers_of(service).contains(caller);
            assert!(let_in, "{caller} calls {service}");
            checked += 1;
        }
        if service != "svc-passport" {
            assert!(config.contains("jwks_url"), "{service} takes passports");
            let callers = callers_of("svc-passport");
            assert!(callers.contains(service), "{service} reads keys");
        }
        // Each token that the service uses is a credential of its unit.
        let unit = format!("packaging/systemd/{service}.service");
        let unit = fs::read_to_string(workspace().join(unit)).unwrap();
        let named = config.split('"').filter_map(|word| word.rsplit_once('/'));
        let files = named.map(|(_, file)| file);
        for file in files.filter(|file| file.contains(".token")) {
            let line = format!("LoadCredential={file}:/etc/ron/{service}/{file}\n");
            assert!(unit.contains(&line), "{service}: {line}");
        }
    }
    assert!(checked >= 14, "{checked}");
}
