//! Checks of one service: its configuration, secrets, ports, and devices.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use ron_kernel::net::Address;
use ron_kernel::{Clock as _, Net as _, OsNet, SystemClock};
use ron_service::Config;
use ron_service::config::Value;

use ron_services::NAMES;

use crate::backup::Recoveries;
use crate::doctor::{Report, archive, database, disk};
use crate::fleet;
use crate::layout::{Layout, api_port};
use crate::status::{self, Answer, Place};

/// Maximum number of files checked under one directory.
const FILES_MAX: usize = 100_000;
/// Tolerated difference by which a file may be newer than the clock, in seconds.
const CLOCK_SLACK_S: i64 = 5;

/// Checks one service whose configuration is in a file of its own.
pub fn check_file(report: &mut Report, name: &str, file: &Path) {
    let Some(config) = configured(report, name, fleet::load_file(name, file)) else {
        return;
    };
    ports(report, name, &config);
    transport(report, name, &config);
    if let Err(problems) = config.check_writers() {
        report.fail(
            &format!("{name} config"),
            fleet::lines(problems).replace('\n', "; "),
            "the service starts only when its own user and root alone can change them",
        );
    }
    if let Some(dir) = &config.chassis().data_dir {
        private(report, name, dir);
        existing_or_parent(report, dir);
    }
    devices(report, &config);
    database::check(report, name, &config);
    archive::check(report, name, &config);
}

/// Checks the six services of a data directory, or the place where the directory is to be made.
pub fn check_fleet(report: &mut Report, layout: &Layout, base_port: u16) {
    existing_or_parent(report, &layout.root);
    if !layout.bootstrap().exists() {
        report.ok(
            "data directory",
            format!(
                "{} is not set up yet; `ron up` does that",
                layout.root.display()
            ),
        );
        for name in NAMES {
            let port = api_port(base_port, name);
            let addrs = [port, port + 5].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
            free(report, name, &addrs);
        }
        return;
    }
    private(report, "data directory", &layout.root);
    recovered(report, layout);
    let running = fleet::running(layout).unwrap_or_else(|why| {
        report.fail("running", why, "find out who has written it");
        None
    });
    if let Some(known) = &running {
        let says = format!("`ron up` runs here as process {}", known.pid);
        report.ok("running", says);
    }
    for name in NAMES {
        let Some(config) = configured(report, name, fleet::load(layout, name, &[])) else {
            continue;
        };
        match holder(layout, name) {
            Some(pid) if running.is_none() => {
                report.ok("running", format!("{name} runs here as process {pid}"));
                state(report, &status::ask(&Place::Host(layout.clone(), name)));
            }
            None if running.is_none() => ports(report, name, &config),
            _ => state(report, &status::ask(&Place::Host(layout.clone(), name))),
        }
        transport(report, name, &config);
        devices(report, &config);
        database::check(report, name, &config);
        archive::check(report, name, &config);
    }
}

/// Says that the directory was restored from a backup, which readers of its logs have to know.
fn recovered(report: &mut Report, layout: &Layout) {
    let all = match Recoveries::of(layout) {
        Ok(all) => all,
        Err(why) => return report.fail("recovery", why, "restore the file from a backup"),
    };
    if let Some(last) = all.recoveries.last() {
        let says = format!(
            "restored at {} from the backup of {}: what was acknowledged in between is lost; recoveries.json has more",
            last.at, last.backup
        );
        report.ok("recovery", says);
    }
}

/// Checks what a service that runs says of itself, if it says anything.
fn state(report: &mut Report, answer: &Answer) {
    let about = format!("{} state", answer.at);
    let says = answer.problems.join("; ");
    let hint = "`ron status` shows all services; docs/runbooks has what to do";
    match answer.state {
        "healthy" => report.ok(&about, "healthy"),
        "degraded" => report.warn(&about, says, hint),
        "down" => report.fail(&about, says, hint),
        _ => report.fail(
            &about,
            format!("it runs and does not answer on its health port: {says}"),
            "it hangs or is overloaded: see its log, and restart it if that says nothing",
        ),
    }
}

/// The URLs to which a service token is sent, each with its key: where a group of keys has a `url`
/// and a token.
fn peers(config: &Config) -> Vec<(&'static str, &str)> {
    let text = |wanted: &str| {
        config.values().find_map(|(key, value)| match value {
            Value::Text(text) if key == wanted => Some(text.as_str()),
            _ => None,
        })
    };
    let tokens = config.values().filter_map(|(key, value)| {
        let group = key
            .strip_suffix(".token_file")
            .or_else(|| key.strip_suffix(".token"))?;
        (*value != Value::Unset && *value != Value::Text(String::new())).then_some(group)
    });
    let urls = tokens.filter_map(|group| {
        let wanted = format!("{group}.url");
        let key = config
            .values()
            .map(|(key, _)| key)
            .find(|key| *key == wanted)?;
        Some((key, text(key)?))
    });
    urls.collect()
}

/// Checks the transport of service tokens: if a service is down, any user of the host can take its
/// plain port.
fn transport(report: &mut Report, name: &str, config: &Config) {
    const SOCKET: &str =
        "give the peer's Unix socket, as in unix:/run/ron/ron-kms/api.sock, or an https URL";
    let about = format!("{name} peers");
    let allowed = config.chassis().insecure_loopback;
    if allowed {
        report.warn(
            &about,
            "insecure_loopback = true: service tokens go over plain TCP, and any user who takes the port of a service \
             that is down receives them",
            "reach the peers through their Unix sockets, and remove insecure_loopback",
        );
    }
    let mut plain: Vec<String> = peers(config)
        .into_iter()
        .flat_map(|(key, urls)| urls.split(',').map(move |url| (key, url.trim())))
        .filter_map(|(key, url)| Some(format!("{key} = {}", plain_http(url)?)))
        .collect();
    let auth = &config.chassis().auth;
    if auth.token_file.is_some()
        && let Some(url) = auth.jwks_url.as_deref().and_then(plain_http)
    {
        plain.push(format!("auth.jwks_url = {url}"));
    }
    // Only the console's table has these keys.
    if let Ok(console) = config.read::<svc_admin::settings::Keys>() {
        for node in console.nodes.iter() {
            if node.credential_file.is_some()
                && let Some(url) = plain_http(&node.health_url)
            {
                plain.push(format!("health_url = {url} of node {}", node.id));
            }
        }
    }
    for what in plain {
        let says = format!("{what} is plain http, over which a service token is ");
        if allowed {
            report.warn(&about, says + "sent in the clear", SOCKET);
        } else {
            report.fail(&about, says + "not sent: its calls fail", SOCKET);
        }
    }
}

fn plain_http(url: &str) -> Option<&str> {
    url.starts_with("http://").then_some(url)
}

/// The process that works in this service's data directory. The process id in the lock file may be
/// stale.
fn holder(layout: &Layout, name: &str) -> Option<u32> {
    let pid = std::fs::read_to_string(layout.data(name).join("LOCK")).ok()?;
    let pid = pid.trim().parse().ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    String::from_utf8_lossy(&line).contains(name).then_some(pid)
}

/// The configuration, if it can be read; faults that its start would find are findings, and the other checks go on.
fn configured(report: &mut Report, name: &str, loaded: Result<Config, String>) -> Option<Config> {
    let about = format!("{name} config");
    let hint = || {
        format!("`{name} --help` lists every key, `{name} print-example` is a file to start from")
    };
    let config = match loaded {
        Ok(config) => config,
        Err(why) => {
            report.fail(&about, why.replace('\n', "; "), hint());
            return None;
        }
    };
    let checked = ron_services::find(name).map_or(Ok(()), |service| (service.check)(&config));
    match checked {
        Ok(()) => report.ok(&about, "every key is known and in its range"),
        Err(problems) => {
            let why = fleet::lines(problems).replace('\n', "; ");
            report.fail(&about, why, hint());
        }
    }
    if config.chassis().auth.unpinned {
        report.warn(
            &about,
            "auth.unpinned is true: any server that answers at auth.jwks_url can issue passports",
            "set auth.note_vkey to the key of the issuer's policy note; without one, read auth.jwks_url over https",
        );
    }
    Some(config)
}

fn ports(report: &mut Report, name: &str, config: &Config) {
    free(
        report,
        name,
        &[config.chassis().bind_addr, config.chassis().health_addr],
    );
}

/// Tries to listen where the service will.
fn free(report: &mut Report, name: &str, addrs: &[SocketAddr]) {
    let about = format!("{name} ports");
    for addr in addrs {
        if let Err(error) = OsNet.bind(&Address::Tcp(*addr)) {
            return report.fail(
                &about,
                format!("{addr} cannot be listened on: {error}"),
                "end the process that uses it (ss -ltnp shows which), or choose another port",
            );
        }
    }
    let each: Vec<String> = addrs.iter().map(ToString::to_string).collect();
    report.ok(&about, format!("{} can be listened on", each.join(" and ")));
}

/// Checks the disk of a directory, or of the nearest existing directory above it.
fn existing_or_parent(report: &mut Report, dir: &Path) {
    match dir.ancestors().find(|place| place.is_dir()) {
        Some(place) => disk::check(report, place),
        None => report.fail(
            "data directory",
            format!("nothing of {} exists", dir.display()),
            "create its parent directory",
        ),
    }
}

/// Files under a data directory that are not as they should be, by fault.
#[derive(Default)]
struct Faults {
    seen: usize,
    /// Secrets that other users may read.
    readable: Vec<PathBuf>,
    /// Files that other users may change.
    writable: Vec<PathBuf>,
    /// Files of another user.
    foreign: Vec<PathBuf>,
    /// Files newer than the clock.
    future: Vec<PathBuf>,
}

impl Faults {
    fn of(dir: &Path, user: u32) -> Self {
        let now_s = (SystemClock.unix_ms() / 1000).cast_signed();
        let (mut faults, mut left) = (Self::default(), vec![dir.to_owned()]);
        while let Some(path) = left.pop() {
            let Ok(meta) = std::fs::symlink_metadata(&path) else {
                continue; // removed meanwhile, or in a directory that has a finding of its own
            };
            faults.seen += 1;
            if meta.uid() != user {
                faults.foreign.push(path.clone());
            }
            if meta.mode() & 0o077 != 0 && is_secret(&path) && !meta.is_symlink() {
                faults.readable.push(path.clone());
            }
            // The users who may write to a socket are its callers.
            let kept = !meta.is_symlink() && !meta.file_type().is_socket();
            if kept && meta.mode() & 0o022 != 0 {
                faults.writable.push(path.clone());
            }
            if meta.mtime() > now_s + CLOCK_SLACK_S {
                faults.future.push(path.clone());
            }
            if meta.is_dir() && left.len() < FILES_MAX {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                left.extend(entries.map(|entry| entry.path()));
            }
        }
        faults
    }
}

/// Checks owner, mode and time of all files under a data directory.
fn private(report: &mut Report, name: &str, dir: &Path) {
    let about = format!("{name} files").replace("directory files", "files");
    let user = rustix::process::geteuid().as_raw();
    let faults = Faults::of(dir, user);
    let at = dir.display();
    let before = report.findings.len();
    let mut found = |about: &str, paths: &[PathBuf], what: &str, hint: String| {
        if let Some(path) = paths.first() {
            let says = format!("{}{what} {}", and_more(paths.len()), path.display());
            report.fail(about, says, hint);
        }
    };
    found(
        &about,
        &faults.readable,
        "others may read",
        format!("chmod -R go= {at}"),
    );
    found(
        &about,
        &faults.writable,
        "others may change",
        format!("chmod -R go-w {at}"),
    );
    found(
        &about,
        &faults.foreign,
        "another user owns",
        format!("run this as the service's user, or: chown -R {user} {at}"),
    );
    found(
        "clock",
        &faults.future,
        "the clock was set back: a time in the future has",
        "correct the clock before a service writes again".to_owned(),
    );
    if report.findings.len() == before {
        let seen = faults.seen;
        let says = format!("{seen} files, all of this user, closed to others as they should be");
        report.ok(&about, says);
    }
}

fn and_more(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        n => format!("{n} files, among them: "),
    }
}

/// True if a file's name indicates a secret.
fn is_secret(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name);
    let ending = path.extension().and_then(|ending| ending.to_str());
    matches!(ending, Some("token" | "key" | "pin")) || parent.is_some_and(|dir| dir == "clients")
}

/// Checks the HSM and the TPM that the key service is configured for.
fn devices(report: &mut Report, config: &Config) {
    // Only the key service's table has these keys.
    let Ok(keys) = config.read::<ron_custody::backend::DeviceKeys>() else {
        return;
    };
    let of_tokens = keys.pkcs11_tokens.iter();
    let modules: BTreeSet<&PathBuf> = of_tokens
        .filter_map(|token| token.module.as_ref())
        .chain(&keys.pkcs11_module)
        .collect();
    for module in modules {
        file(
            report,
            "HSM module",
            module,
            "install the vendor's library, or correct pkcs11.module or module of pkcs11.tokens",
        );
    }
    let tcti = keys.tpm_tcti.as_deref();
    if let Some(device) = tcti.and_then(|tcti| tcti.strip_prefix("device:")) {
        let path = PathBuf::from(device);
        file(
            report,
            "TPM",
            &path,
            "load its driver, or let this user open it (group tss)",
        );
    }
    for (device, answer) in ron_custody::backend::probe_devices(config) {
        match answer {
            Ok(()) => report.ok(&device, "it answers"),
            Err(why) => report.fail(
                &device,
                why,
                "its keys could not sign; docs/backends.md describes the setup",
            ),
        }
    }
}

fn file(report: &mut Report, about: &str, path: &Path, hint: &str) {
    match std::fs::File::open(path) {
        Ok(_) => report.ok(about, format!("{} is there", path.display())),
        Err(error) => report.fail(about, format!("{}: {error}", path.display()), hint),
    }
}
