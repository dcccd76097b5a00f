//! The six services in one process: each on its own ports, sockets and threads, reached over HTTP
//! as if it were a process of its own. A service is given URLs and credentials and nothing else.
//!
//! This module also holds the way in which commands reach the services of a data directory, in this
//! process or in others: through the Unix sockets, where the kernel reports the user of the
//! listener.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ron_files::OsDisk;
use ron_http::HttpClient;
use ron_kernel::net::{Address, SharedListener};
use ron_kernel::{
    Deadline, GuardedClock, Net as _, OsNet, OsRandom, Registry, ServiceScope, Shutdown,
    ShutdownTrigger,
};
use ron_service::config::{BaseUrl, Value};
use ron_service::records::Postgres;
use ron_service::{Config, ConfigProblem, Descriptor, Parts, Running, Table};

use ron_services::NAMES;
use rustix::process::{Pid, Signal, kill_process};

use crate::layout::{Endpoint, Endpoints, Layout, api_port, owner, read_json, socket_url};
use crate::net;

/// Maximum wait for a service to become ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Maximum wait for the issuer's keys to reach all services.
const PASSPORTS_WITHIN: Duration = Duration::from_secs(2);

fn service(name: &str) -> Result<&'static Descriptor, String> {
    ron_services::find(name).ok_or_else(|| format!("{name} is not one of the services"))
}

/// The table of a service's configuration.
pub fn table(name: &str) -> Result<&'static Table, String> {
    Ok(service(name)?.table)
}

/// A service of a data directory, as a command calls it.
pub struct Reached {
    /// Base URL of its API, or of its health port.
    pub url: String,
    /// A client that sends nothing to a socket on which another user listens.
    pub http: Arc<HttpClient>,
    /// Base URL under which the service knows itself.
    pub public_url: String,
}

/// How to send a secret to a service: through its socket, or over TLS where it has no socket.
pub fn reach(layout: &Layout, name: &str) -> Result<Reached, String> {
    let endpoint = known_endpoint(layout, name)?;
    let url = endpoint.api_socket.unwrap_or_else(|| endpoint.api.clone());
    if url.starts_with("http:") && !net::insecure_loopback() {
        return Err(format!(
            "{name} has no Unix socket and no TLS, and any user of this host can take its port {url} while it is \
             down; set uds_path in {}, or send the secret nevertheless with --insecure-loopback",
            layout.config(name).display()
        ));
    }
    Ok(Reached {
        url,
        http: net::client_of(vec![endpoint.uid]),
        public_url: endpoint.api,
    })
}

/// The same for the health port, where actions are taken.
pub fn reach_health(layout: &Layout, name: &str) -> Result<Reached, String> {
    let endpoint = known_endpoint(layout, name)?;
    Ok(Reached {
        url: endpoint
            .health_socket
            .unwrap_or_else(|| endpoint.health.clone()),
        http: net::client_of(vec![endpoint.uid]),
        public_url: endpoint.health,
    })
}

/// Addresses of a service of a data directory: those of the running `ron up`, otherwise those in
/// the configuration file, for services that are separate processes.
fn known_endpoint(layout: &Layout, name: &str) -> Result<Endpoint, String> {
    if let Some(running) = running(layout)? {
        return running.of(name).cloned();
    }
    let config = load(layout, name, &[])?;
    let settings = config.chassis();
    let data = settings.data_dir.clone();
    let uid = owner(&data.unwrap_or_else(|| layout.data(name)))?;
    let (api, health) = (settings.bind_addr, settings.health_addr);
    Ok(endpoint(&config, api, health, uid))
}

/// The addresses that the `ron up` running on a data directory has written. The recorded user of
/// the services is trusted only if that user, or root, owns the file.
pub fn running(layout: &Layout) -> Result<Option<Endpoints>, String> {
    let file = layout.endpoints();
    if !file.exists() {
        return Ok(None);
    }
    let writer = owner(&file)?;
    let endpoints: Endpoints = read_json(&file)?;
    if !Path::new("/proc").join(endpoints.pid.to_string()).exists() {
        return Ok(None);
    }
    let foreign = |e: &&Endpoint| writer != 0 && e.uid != writer;
    match endpoints.services.iter().find(foreign) {
        None => Ok(Some(endpoints)),
        Some(e) => Err(format!(
            "{} belongs to user {writer}, but says that {} runs as user {}: that is not believed; remove the file \
             and start `ron up` again",
            file.display(),
            e.service,
            e.uid
        )),
    }
}

/// Has the running `ron up` of a data directory read its configuration again; false if there is none.
pub fn reload(layout: &Layout) -> Result<bool, String> {
    let Some(endpoints) = running(layout)? else {
        return Ok(false);
    };
    let pid = i32::try_from(endpoints.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("endpoints.json has no process id")?;
    kill_process(pid, Signal::HUP).map_err(|e| format!("cannot reload `ron up`: {e}"))?;
    Ok(true)
}

/// The endpoint of a service by its configuration, at these addresses.
fn endpoint(config: &Config, api: SocketAddr, health: SocketAddr, uid: u32) -> Endpoint {
    let settings = config.chassis();
    let api_socket = settings.uds_path.as_deref().map(socket_url);
    // A name is what a certificate is for; the address may be that of no host.
    let port = format!(":{}", api.port());
    let mut named = settings.public_urls.iter().map(|BaseUrl(url)| url);
    let api = match &api_socket {
        Some(url) if settings.uds_only => url.clone(),
        _ if settings.tls_enabled => match named.find(|url| url.ends_with(&port)) {
            Some(url) => url.clone(),
            None => format!("https://{api}"),
        },
        _ => format!("http://{api}"),
    };
    Endpoint {
        service: config.service().to_owned(),
        api,
        health: format!("http://{health}"),
        api_socket,
        health_socket: settings.health_uds_path.as_deref().map(socket_url),
        uid,
    }
}

/// The listeners of a service.
struct Ports {
    api: SharedListener,
    mtls: Option<SharedListener>,
    health: SharedListener,
}

/// A failed start: the text for standard error and the exit code.
#[derive(Debug)]
pub struct Failed {
    /// One line per problem.
    pub why: String,
    pub code: u8,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self {
            why,
            code: ron_kernel::exit::CONFIG,
        }
    }
}

pub struct Fleet {
    /// Services in start order.
    pub services: Vec<Running>,
    pub endpoints: Endpoints,
}

impl Fleet {
    /// Binds all ports (those of the configuration; above `base_port` if given; 0: free ones), then
    /// starts all services, which are asked to stop when `stop` fires.
    pub fn start(layout: &Layout, base_port: Option<u16>, stop: &Shutdown) -> Result<Self, Failed> {
        let (mut ports, mut services) = (Vec::new(), Vec::new());
        let uid = rustix::process::geteuid().as_raw();
        for name in NAMES {
            let written = load(layout, name, &[])?;
            refuse_other_data(layout, name, &written)?;
            refuse_other_issuer(layout, name, &written)?;
            let config = load(layout, name, &places(layout, name))?;
            let bound = bind(name, &config, base_port.map_or(At::Configured, At::Above))?;
            let addr =
                |l: &SharedListener| l.local_addr().ok_or("a listener has no address".to_owned());
            let (api, health) = (addr(&bound.api)?, addr(&bound.health)?);
            services.push(endpoint(&config, api, health, uid));
            ports.push(bound);
        }
        let endpoints = Endpoints {
            pid: std::process::id(),
            services,
        };
        // All ports are bound before the first service starts: each start gets the addresses of all
        // services, and a taken port ends the command before anything runs.
        let mut services = Vec::new();
        for (name, ports) in NAMES.iter().zip(ports) {
            services.push(start_one(layout, name, ports, Some(&endpoints), stop)?);
        }
        Ok(Self {
            services,
            endpoints,
        })
    }

    /// Waits until every service is ready, and a moment longer for services that cannot verify
    /// passports yet. False when a service waits for an operator's word about the date.
    pub fn wait_ready(&self) -> Result<bool, String> {
        let deadline = Deadline::within(READY_WITHIN);
        for service in &self.services {
            let Err(state) = service.wait_ready(deadline) else {
                continue;
            };
            // Others may wait for the service that does.
            let doubts = |s: &Running| s.ready().missing.iter().any(|cause| cause == "clock");
            if self.services.iter().any(doubts) {
                return Ok(false);
            }
            return Err(format!(
                "{} is not ready: missing {}",
                service.service(),
                state.missing.join(", ")
            ));
        }
        let (_keep, never) = Shutdown::pair();
        // A service is ready without the issuer's keys; a short wait here spares the first command
        // a refusal.
        let deadline = Deadline::within(PASSPORTS_WITHIN);
        let waits = |s: &Running| s.ready().degraded.iter().any(|cause| cause == "passports");
        while self.services.iter().any(waits) && !deadline.expired() {
            never.wait(Deadline::within(Duration::from_millis(5)));
        }
        Ok(true)
    }

    /// Drains the services in the order in which work flows into them; returns the exit code.
    pub fn drain(mut self) -> u8 {
        let mut code = ron_kernel::exit::OK;
        for name in NAMES.into_iter().rev() {
            let Some(service) = self.services.iter_mut().find(|s| s.service() == name) else {
                continue;
            };
            let within = service.config().chassis().drain_deadline;
            let report = service.drain(within);
            if !report.stragglers.is_empty() {
                eprintln!(
                    "{name}: still running after {within:?}: {}",
                    report.stragglers.join(", ")
                );
            }
            code = code.max(service.exit_code(&report));
        }
        code
    }
}

/// A service that runs only while a data directory is made.
pub struct Temporary {
    running: Running,
    /// Base URL of its API.
    pub url: String,
}

impl Temporary {
    /// Starts the service on its sockets and free ports.
    pub fn start(layout: &Layout, name: &'static str) -> Result<Self, String> {
        let config = load(layout, name, &places(layout, name))?;
        let ports = bind(name, &config, At::Free)?;
        let (_trigger, never) = Shutdown::pair();
        let running = start_one(layout, name, ports, None, &never).map_err(|e| e.why)?;
        running
            .wait_ready(Deadline::within(READY_WITHIN))
            .map_err(|state| {
                format!("{name} is not ready: missing {}", state.missing.join(", "))
            })?;
        Ok(Self {
            url: layout.socket_url(name, "api"),
            running,
        })
    }

    pub fn stop(mut self) -> Result<(), String> {
        let report = self.running.drain(Duration::from_secs(5));
        if report.stragglers.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{} did not stop: {}",
                self.running.service(),
                report.stragglers.join(", ")
            ))
        }
    }
}

/// Where a service listens.
#[derive(Clone, Copy)]
enum At {
    Configured,
    /// At its configured address, with the ports above this one; 0: free ones.
    Above(u16),
    /// On free loopback ports.
    Free,
}

fn bind(name: &str, config: &Config, at: At) -> Result<Ports, String> {
    let listen_at = |addr: SocketAddr| {
        OsNet.bind(&Address::Tcp(addr)).map_err(|e| {
            format!(
                "{name} cannot listen on {addr}: {e}; is another fleet running? \
                 find it with: ss -ltnp 'sport = :{}', or choose other ports with --base-port",
                addr.port()
            )
        })
    };
    let listen = |configured: SocketAddr, above: u16| {
        listen_at(match at {
            At::Configured => configured,
            At::Above(0) => (configured.ip(), 0).into(),
            At::Above(base) => (configured.ip(), api_port(base, name) + above).into(),
            At::Free => (Ipv4Addr::LOCALHOST, 0).into(),
        })
    };
    let mtls = config.chassis().mtls_addr.map(listen_at).transpose()?;
    Ok(Ports {
        api: listen(config.chassis().bind_addr, 0)?,
        mtls,
        health: listen(config.chassis().health_addr, 5)?,
    })
}

fn start_one(
    layout: &Layout,
    name: &'static str,
    ports: Ports,
    endpoints: Option<&Endpoints>,
    stop: &Shutdown,
) -> Result<Running, Failed> {
    let _lines = ServiceScope::enter(name);
    let mut flags = places(layout, name);
    if let (Some(endpoints), "svc-passport") = (endpoints, name) {
        // Public names first: documents carry the first one.
        let config = load(layout, name, &flags)?;
        let named = config.chassis().public_urls.iter();
        let mut urls: Vec<String> = named.map(|BaseUrl(url)| url.clone()).collect();
        urls.push(endpoints.of(name)?.api.clone());
        flags.push(("public_url".to_owned(), urls.join(",")));
    }
    let config = load(layout, name, &flags)?;
    let (of_service, stopped) = Shutdown::pair();
    let _link = link(stop, &of_service);
    let parts = Parts {
        clock: GuardedClock::shared(config.chassis().clock_gap_max),
        random: OsRandom::shared(),
        net: OsNet::shared(),
        disk: Arc::new(OsDisk),
        engines: Arc::new(Postgres),
        cores: ron_kernel::cores(),
        registry: Registry::new(name),
        api: ports.api,
        mtls: ports.mtls,
        health: ports.health,
        instance: name.to_owned(),
        stop: (of_service, stopped),
    };
    (service(name)?.start)(config, parts).map_err(|e| Failed {
        why: format!("{name}: {e}"),
        code: e.exit_code(),
    })
}

/// Has `stop` fire `of_service` until this is dropped: a service that has started is stopped by its drain, when its turn comes.
fn link(stop: &Shutdown, of_service: &ShutdownTrigger) -> Arc<ShutdownTrigger> {
    let link = Arc::new(of_service.clone());
    let linked = Arc::downgrade(&link);
    stop.on_fire(move || {
        if let Some(of_service) = linked.upgrade() {
            of_service.fire();
        }
    });
    link
}

/// The configuration of a service in a file of its own.
pub fn load_file(name: &str, file: &Path) -> Result<Config, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| format!("{} cannot be read: {e}", file.display()))?;
    load_text(name, file, &text)
}

/// The same of a text, which is or will be in `file`.
pub fn load_text(name: &str, file: &Path, text: &str) -> Result<Config, String> {
    let env = |key: &str| std::env::var(key).ok();
    Config::load(table(name)?, Some((file, text)), &env, &[]).map_err(lines)
}

/// Whether a configuration gives a text for a key, as `log.url` where a log is in a database.
pub fn names(config: &Config, key: &str) -> bool {
    let mut values = config.values();
    values.any(|(known, value)| {
        known == key && matches!(value, Value::Text(text) if !text.is_empty())
    })
}

/// The configuration of a service: its file, the environment, then `flags`. If `flags` are given,
/// the console's nodes are those of this data directory.
pub fn load(layout: &Layout, name: &str, flags: &[(String, String)]) -> Result<Config, String> {
    let path = layout.config(name);
    let text = std::fs::read_to_string(&path).map_err(|e| {
        format!(
            "cannot read {}: {e}; make the data directory with `ron init` or `ron up`",
            path.display()
        )
    })?;
    let real = (name == "svc-admin" && !flags.is_empty()).then(|| {
        let layout = layout.clone();
        move |text: &str| real_nodes(text, &layout)
    });
    let text = match &real {
        Some(real) => real(&text),
        None => text,
    };
    let env = |key: &str| std::env::var(key).ok();
    let file = Some((path.as_path(), text.as_str()));
    let config = Config::load(table(name)?, file, &env, flags).map_err(lines)?;
    Ok(match real {
        Some(real) => config.rewritten_by(real),
        None => config,
    })
}

/// One line per problem.
pub fn lines(problems: Vec<ConfigProblem>) -> String {
    let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
    each.join("\n")
}

type Flags = Vec<(String, String)>;

/// Refuses a configuration that reads the keys of another issuer: the services here read those of the issuer here, and would
/// take none of that one's passports.
fn refuse_other_issuer(layout: &Layout, name: &str, config: &Config) -> Result<(), String> {
    let Some(issuer) = &config.auth().issuer else {
        return Ok(());
    };
    // That which `ron init` wrote, also below another directory.
    let url = &issuer.jwks_url;
    if url.ends_with("/run/svc-passport/api.sock/.well-known/jwks.json") {
        return Ok(());
    }
    Err(format!(
        "auth.jwks_url of {name} is {url}, but `ron up` reads the keys of its own issuer: set auth.jwks_url = \"{}\" in {}, or \
         run {name} as a service of its own",
        jwks_url(layout),
        layout.config(name).display(),
    ))
}

/// Refuses a configuration that puts the service's data elsewhere than below the data directory, where every command looks
/// for it. The place that `ron init` wrote is accepted below another directory too: the whole was moved.
fn refuse_other_data(layout: &Layout, name: &str, config: &Config) -> Result<(), String> {
    let here = layout.data(name);
    let usual = here.strip_prefix(&layout.root).unwrap_or(&here);
    match &config.chassis().data_dir {
        Some(dir) if !dir.ends_with(usual) => Err(format!(
            "data_dir of {name} is {}, but the data of all services is below {}: remove data_dir from {} and its \
             variables, and mount or link {} there, or run {name} as a service of its own",
            dir.display(),
            layout.root.display(),
            layout.config(name).display(),
            here.display(),
        )),
        _ => Ok(()),
    }
}

/// Flags that point to this data directory wherever it lies now: files, and the sockets of this
/// service and of its peers.
fn places(layout: &Layout, name: &str) -> Flags {
    let mut flags = Flags::new();
    let mut add = |key: &str, value: String| flags.push((key.to_owned(), value));
    let text = |path: PathBuf| path.display().to_string();
    add("data_dir", text(layout.data(name)));
    add("uds_path", text(layout.socket(name, "api")));
    add("health_uds_path", text(layout.socket(name, "health")));
    // While `ron init` makes the keys, the services that it starts have no issuer yet.
    if name != "svc-admin" && layout.bootstrap().exists() {
        add("auth.jwks_url", jwks_url(layout));
        add("auth.token_file", text(layout.token(name, "svc-passport")));
    }
    for (prefix, callee, callers) in [
        ("kms", "ron-kms", ["svc-passport", "svc-rewarder"]),
        ("ledger", "ron-ledger", ["svc-wallet", "svc-rewarder"]),
    ] {
        if callers.contains(&name) {
            add(&format!("{prefix}.url"), layout.socket_url(callee, "api"));
            add(
                &format!("{prefix}.token_file"),
                text(layout.token(name, callee)),
            );
        }
    }
    if matches!(name, "svc-passport" | "svc-wallet" | "svc-rewarder") {
        add("policy.dir", text(layout.policy()));
    }
    flags
}

/// The URL from which the issuer's keys are read.
pub fn jwks_url(layout: &Layout) -> String {
    layout.socket_url("svc-passport", "api") + "/.well-known/jwks.json"
}

/// The console's nodes; blocks named after this project's services get the sockets and token files
/// of this data directory.
fn real_nodes(text: &str, layout: &Layout) -> String {
    let quoted = |value: String| serde_json::Value::from(value).to_string();
    let mut out = String::with_capacity(text.len());
    let mut current: Option<&str> = None;
    for line in text.lines() {
        let key = line.split('=').next().unwrap_or("").trim();
        let value = match (key, current) {
            ("id", _) => {
                let id = line.split('"').nth(1).unwrap_or("");
                current = NAMES.into_iter().find(|service| *service == id);
                None
            }
            ("health_url", Some(name)) => Some(layout.socket_url(name, "health")),
            ("api_url", Some(name)) => Some(layout.socket_url(name, "api")),
            ("credential_file", Some(name)) => {
                Some(layout.token("svc-admin", name).display().to_string())
            }
            ("jwks_url", None) => Some(jwks_url(layout)),
            ("token_file", None) => {
                let token = layout.token("svc-admin", "svc-passport");
                Some(token.display().to_string())
            }
            _ => None,
        };
        let value = value.map(|value| format!("{key} = {}", quoted(value)));
        out.push_str(value.as_deref().unwrap_or(line));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_nodes_get_new_addresses() {
        let text = "[[nodes]]\nid = \"ron-kms\"\nhealth_url = \"http://x\"\napi_url = \"http://y\"\n[[nodes]]\nid = \"other\"\nhealth_url = \"http://z\"\n";
        let want = "[[nodes]]\nid = \"ron-kms\"\nhealth_url = \"unix:/d/run/ron-kms/health.sock\"\napi_url = \"unix:/d/run/ron-kms/api.sock\"\n[[nodes]]\nid = \"other\"\nhealth_url = \"http://z\"\n";
        let layout = Layout::new(Some(Path::new("/d"))).expect("an absolute place");
        assert_eq!(real_nodes(text, &layout), want);
    }

    #[test]
    fn the_stop_of_all_ends_the_starts_alone() {
        let (all, stop) = Shutdown::pair();
        let [(started, running), (starts, waiting)] = [(); 2].map(|()| Shutdown::pair());
        drop(link(&stop, &started));
        let _link = link(&stop, &starts);
        all.fire();
        assert_eq!((running.is_set(), waiting.is_set()), (false, true));
    }
}
