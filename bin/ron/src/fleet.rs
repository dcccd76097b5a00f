//! The six services in one process: each on its own ports and threads, reached over HTTP as if it
//! were a process of its own. A service is handed URLs and credentials, nothing else.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_crypto::OsRandom;
use ron_http::DenyAll;
use ron_kernel::{Deadline, Registry, Shutdown, SystemClock};
use ron_service::chassis::metrics_prefix;
use ron_service::{Config, Parts, Running, Table, logging};

use crate::layout::{Endpoint, Endpoints, Layout, SERVICES, read_json};

/// Longest wait for a service to become ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Longest wait for the issuer's keys to have reached all services.
const PASSPORTS_WITHIN: Duration = Duration::from_secs(2);

/// The table and the start function of a service.
struct Service {
    table: &'static Table,
    start: ron_service::Start,
}

fn service(name: &str) -> Service {
    match name {
        "ron-kms" => Service {
            table: &ron_kms::config::TABLE,
            start: ron_kms::start,
        },
        "svc-passport" => Service {
            table: &svc_passport::config::TABLE,
            start: svc_passport::start,
        },
        "ron-ledger" => Service {
            table: &ron_ledger::config::TABLE,
            start: ron_ledger::start,
        },
        "svc-wallet" => Service {
            table: &svc_wallet::config::TABLE,
            start: svc_wallet::start,
        },
        "svc-rewarder" => Service {
            table: &svc_rewarder::config::TABLE,
            start: svc_rewarder::start,
        },
        _ => Service {
            table: &svc_admin::config::TABLE,
            start: svc_admin::start,
        },
    }
}

/// The table of a service's configuration.
pub fn table(name: &str) -> &'static Table {
    service(name).table
}

/// Addresses of the fleet on a data directory: of the `ron up` that runs there, else those in the
/// configuration files, where separate processes are.
pub fn known_endpoints(layout: &Layout) -> Result<Endpoints, String> {
    let up = layout.endpoints();
    if up.exists() {
        let endpoints: Endpoints = read_json(&up)?;
        if Path::new("/proc").join(endpoints.pid.to_string()).exists() {
            return Ok(endpoints);
        }
    }
    let configured = |name: &&str| -> Result<Endpoint, String> {
        let config = load(layout, name, None, &[])?;
        Ok(Endpoint {
            service: (*name).to_owned(),
            api: api_url(&config),
            health: format!("http://{}", config.addr("health_addr")),
        })
    };
    let services = SERVICES.iter().map(configured).collect::<Result<_, _>>()?;
    Ok(Endpoints { pid: 0, services })
}

/// Where a service's API is by its configuration.
fn api_url(config: &Config) -> String {
    let address = config.addr("bind_addr");
    match config.path_opt("uds_path") {
        Some(path) if config.bool("uds_only") => format!("unix:{}:", path.display()),
        _ if config.bool("tls.enabled") => format!("https://{address}"),
        _ => format!("http://{address}"),
    }
}

/// The two listeners of a service.
struct Ports {
    api: TcpListener,
    health: TcpListener,
}

/// A failed start: the text for standard error and the exit code.
#[derive(Debug)]
pub struct Failed {
    /// One line per problem.
    pub why: String,
    /// Exit code.
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

/// A running fleet.
pub struct Fleet {
    /// Services in start order.
    pub services: Vec<Running>,
    /// Where they are.
    pub endpoints: Endpoints,
}

impl Fleet {
    /// Binds all ports (`base_port` 0: free ones), then starts all services.
    pub fn start(layout: &Layout, base_port: u16) -> Result<Self, Failed> {
        let mut ports = Vec::new();
        for (i, name) in SERVICES.iter().enumerate() {
            ports.push(bind(name, base_port, i as u16 * 10)?);
        }
        let endpoints = endpoints(&ports)?;
        let mut services = Vec::new();
        for (name, ports) in SERVICES.iter().zip(ports) {
            services.push(start_one(layout, name, ports, Some(&endpoints))?);
        }
        Ok(Self {
            services,
            endpoints,
        })
    }

    /// Waits until every service is ready, and a moment longer for those that cannot judge
    /// passports yet.
    pub fn wait_ready(&self) -> Result<(), String> {
        let deadline = Deadline::within(READY_WITHIN);
        for service in &self.services {
            service.wait_ready(deadline).map_err(|state| {
                format!(
                    "{} is not ready: missing {}",
                    service.service(),
                    state.missing.join(", ")
                )
            })?;
        }
        let (_keep, never) = Shutdown::pair();
        let deadline = Deadline::within(PASSPORTS_WITHIN);
        let waits = |s: &Running| s.ready().degraded.iter().any(|cause| cause == "passports");
        while self.services.iter().any(waits) && !deadline.expired() {
            never.wait(Deadline::within(Duration::from_millis(5)));
        }
        Ok(())
    }

    /// Drains the services in the order in which work flows into them; returns the exit code.
    pub fn drain(mut self) -> u8 {
        let mut code = ron_kernel::exit::OK;
        for name in [
            "svc-admin",
            "svc-rewarder",
            "svc-wallet",
            "svc-passport",
            "ron-ledger",
            "ron-kms",
        ] {
            let Some(service) = self.services.iter_mut().find(|s| s.service() == name) else {
                continue;
            };
            let within = service.config().duration("drain_deadline");
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

/// A service that runs while a data directory is made.
pub struct Temporary {
    running: Running,
    /// Its API.
    pub url: String,
}

impl Temporary {
    /// Starts it on free ports.
    pub fn start(layout: &Layout, name: &'static str) -> Result<Self, String> {
        let ports = bind(name, 0, 0)?;
        let running = start_one(layout, name, ports, None).map_err(|e| e.why)?;
        running
            .wait_ready(Deadline::within(READY_WITHIN))
            .map_err(|state| {
                format!("{name} is not ready: missing {}", state.missing.join(", "))
            })?;
        Ok(Self {
            url: running.api_url(),
            running,
        })
    }

    /// Drains it.
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

fn bind(name: &str, base_port: u16, offset: u16) -> Result<Ports, String> {
    let listen = |above: u16| {
        let port = match base_port {
            0 => 0,
            base => base.checked_add(offset + above).ok_or_else(|| {
                format!("--base-port {base} leaves no room for the ports above it")
            })?,
        };
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|e| {
            format!(
                "{name} cannot listen on 127.0.0.1:{port}: {e}; is another fleet running? \
                 find it with: ss -ltnp 'sport = :{port}', or choose other ports with --base-port"
            )
        })
    };
    Ok(Ports {
        api: listen(0)?,
        health: listen(5)?,
    })
}

fn endpoints(ports: &[Ports]) -> Result<Endpoints, String> {
    let url = |l: &TcpListener| -> Result<String, String> {
        let addr: SocketAddr = l.local_addr().map_err(|e| e.to_string())?;
        Ok(format!("http://{addr}"))
    };
    let mut services = Vec::new();
    for (name, ports) in SERVICES.iter().zip(ports) {
        services.push(Endpoint {
            service: (*name).to_owned(),
            api: url(&ports.api)?,
            health: url(&ports.health)?,
        });
    }
    Ok(Endpoints {
        pid: std::process::id(),
        services,
    })
}

fn start_one(
    layout: &Layout,
    name: &'static str,
    ports: Ports,
    endpoints: Option<&Endpoints>,
) -> Result<Running, Failed> {
    let _lines = logging::speak_for(name);
    let mut flags = places(layout, name);
    if let Some(endpoints) = endpoints {
        flags.extend(peers(name, endpoints)?);
    }
    let config = load(layout, name, endpoints, &flags)?;
    let parts = Parts {
        clock: SystemClock::shared(),
        random: Arc::new(OsRandom),
        registry: Registry::new(metrics_prefix(name)),
        api: ports.api,
        health: ports.health,
        authorizer: Arc::new(DenyAll),
        instance: name.to_owned(),
    };
    (service(name).start)(config, parts).map_err(|e| Failed {
        why: format!("{name}: {e}"),
        code: e.exit_code(),
    })
}

/// The configuration of a service: its file, the environment, then `flags`.
pub fn load(
    layout: &Layout,
    name: &str,
    endpoints: Option<&Endpoints>,
    flags: &[(String, String)],
) -> Result<Config, String> {
    let path = layout.config(name);
    let text = std::fs::read_to_string(&path).map_err(|e| {
        format!(
            "cannot read {}: {e}; make the data directory with `ron init` or `ron up`",
            path.display()
        )
    })?;
    let real = endpoints.filter(|_| name == "svc-admin").map(|endpoints| {
        let (endpoints, layout) = (endpoints.clone(), layout.clone());
        move |text: &str| real_nodes(text, &endpoints, &layout)
    });
    let text = match &real {
        Some(real) => real(&text),
        None => text,
    };
    let env = |key: &str| std::env::var(key).ok();
    let file = Some((path.as_path(), text.as_str()));
    let config = Config::load(service(name).table, file, &env, flags).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    Ok(match real {
        Some(real) => config.rewritten_by(real),
        None => config,
    })
}

type Flags = Vec<(String, String)>;

/// Everything that lies in the data directory is found there, wherever the directory is now.
fn places(layout: &Layout, name: &str) -> Flags {
    let mut flags = vec![(
        "data_dir".to_owned(),
        layout.data(name).display().to_string(),
    )];
    let mut add = |key: &str, path: std::path::PathBuf| {
        flags.push((key.to_owned(), path.display().to_string()));
    };
    match name {
        "svc-passport" => {
            add("kms.token_file", layout.token(name, "ron-kms"));
            add("policy.dir", layout.policy());
        }
        "svc-wallet" => {
            add("ledger.token_file", layout.token(name, "ron-ledger"));
            add("policy.dir", layout.policy());
        }
        "svc-rewarder" => {
            add("kms.token_file", layout.token(name, "ron-kms"));
            add("ledger.token_file", layout.token(name, "ron-ledger"));
            add("policy.dir", layout.policy());
        }
        _ => {}
    }
    flags
}

/// Where the others really are.
fn peers(name: &str, endpoints: &Endpoints) -> Result<Flags, String> {
    let passport = &endpoints.of("svc-passport")?.api;
    let mut flags = Vec::new();
    let mut add = |key: &str, value: String| flags.push((key.to_owned(), value));
    if name != "svc-admin" {
        add("auth.jwks_url", format!("{passport}/.well-known/jwks.json"));
    }
    if matches!(name, "svc-passport" | "svc-rewarder") {
        add("kms.url", endpoints.of("ron-kms")?.api.clone());
    }
    if matches!(name, "svc-wallet" | "svc-rewarder") {
        add("ledger.url", endpoints.of("ron-ledger")?.api.clone());
    }
    Ok(flags)
}

/// The console's nodes, with the addresses and token files of this run in the blocks that are named after ours.
fn real_nodes(text: &str, endpoints: &Endpoints, layout: &Layout) -> String {
    let mut out = String::with_capacity(text.len());
    let mut current: Option<&Endpoint> = None;
    for line in text.lines() {
        let key = line.split('=').next().unwrap_or("").trim();
        let replaced = match (key, current) {
            ("id", _) => {
                let id = line.split('"').nth(1).unwrap_or("");
                current = endpoints.services.iter().find(|e| e.service == id);
                None
            }
            ("health_url", Some(e)) => Some(format!("health_url = \"{}\"", e.health)),
            ("api_url", Some(e)) => Some(format!("api_url = \"{}\"", e.api)),
            ("credential_file", Some(e)) => {
                let path = layout.token("svc-admin", &e.service).display().to_string();
                Some(format!(
                    "credential_file = {}",
                    serde_json::Value::from(path)
                ))
            }
            ("jwks_url", None) => endpoints
                .of("svc-passport")
                .ok()
                .map(|e| format!("jwks_url = \"{}/.well-known/jwks.json\"", e.api)),
            _ => None,
        };
        out.push_str(replaced.as_deref().unwrap_or(line));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_nodes_get_new_addresses() {
        let endpoints = Endpoints {
            pid: 1,
            services: vec![Endpoint {
                service: "ron-kms".to_owned(),
                api: "http://127.0.0.1:1".to_owned(),
                health: "http://127.0.0.1:2".to_owned(),
            }],
        };
        let text = "[[nodes]]\nid = \"ron-kms\"\nhealth_url = \"http://x\"\napi_url = \"http://y\"\n[[nodes]]\nid = \"other\"\nhealth_url = \"http://z\"\n";
        let want = "[[nodes]]\nid = \"ron-kms\"\nhealth_url = \"http://127.0.0.1:2\"\napi_url = \"http://127.0.0.1:1\"\n[[nodes]]\nid = \"other\"\nhealth_url = \"http://z\"\n";
        let layout = Layout::new(None).expect("a default place");
        assert_eq!(real_nodes(text, &endpoints, &layout), want);
    }
}
