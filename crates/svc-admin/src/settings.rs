//! The console's configuration keys, and the settings made from them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use ron_proto::Tenant;
use ron_proto::caveat::IpBlock;
use ron_service::config::{AuthKeys, Blocks, ByteSize, Paths};
use ron_service::{ChassisSettings, Config, ConfigProblem, ServiceSettings, Settings as _, Table};

ron_service::choice! {
    /// Who may use the console.
    pub enum AuthMode {
        /// Every caller that reaches the loopback address; read-only.
        None = "none",
        /// Users that a listed proxy names.
        Ingress = "ingress",
        /// Holders of a passport with `admin:view`.
        Passport = "passport",
    }
}

ron_service::choice! {
    /// Theme of the page.
    pub enum Theme {
        System = "system",
        Light = "light",
        Dark = "dark",
        RedEye = "red-eye",
    }
}

ron_service::choice! {
    /// Language of the page.
    pub enum Language {
        English = "en-US",
        Spanish = "es-ES",
    }
}

ron_service::settings! {
    /// One `[[nodes]]` block: a service to watch.
    pub struct NodeKeys {
        /// Name in URLs and on the page; letters, digits, dots, dashes.
        "id" => id: String, range("1", "64");
        /// Name for people; the id when empty.
        "display_name" => display_name: Option<String>, range("0", "64");
        /// URL of its health port, as in http://127.0.0.1:7445, https://host:7445 or
        /// unix:/run/x.sock.
        "health_url" => health_url: String, range("1", "256");
        /// URL of its API, where log heads are read.
        "api_url" => api_url: Option<String>, range("0", "256");
        /// dev, staging, prod or another word.
        "environment" => environment: String = "dev", range("1", "32");
        /// Path of its verifiable log below api_url, as in /audit/v1.
        "log_path" => log_path: Option<String>, range("0", "128");
        /// The log's verifier key; without it the head is shown as not checked.
        "log_vkey" => log_vkey: Option<String>, range("0", "256");
        /// Verifier keys of witnesses whose signatures the head should carry.
        "log_witnesses" => log_witnesses: Vec<String>;
        /// File (0600) with the service token for actions and epochs; read at each use.
        "credential_file" => credential_file: Option<PathBuf>;
        /// Path of the metrics below health_url.
        "metrics_path" => metrics_path: String = "/metrics", range("1", "128");
    }
}

ron_service::settings! {
    pub struct Keys {
        /// The services to watch.
        "nodes" => nodes: Blocks<NodeKeys>, reloadable;
        /// Prometheus file_sd files (.json, .yml, .yaml) with more services to watch.
        "discovery.files" => discovery_files: Paths, reloadable;
        /// Time between two reads of the discovery files.
        "discovery.interval" => discovery_interval: Duration = "5s", range("250ms", "1h"), restart(Threads);
        /// Disables every action, whatever the other keys allow.
        "read_only" => read_only: bool = "true", reloadable;
        /// Timeout of an action's call to a node.
        "action_timeout" => action_timeout: Duration = "5s", range("100ms", "60s"), restart(Clients);
        /// Time between two polls of a node.
        "sampler.metrics_interval" => interval: Duration = "5s", range("250ms", "1h"), restart(Threads);
        /// How long samples are kept.
        "sampler.metrics_window" => window: Duration = "5m", range("10s", "24h"), restart(Memory);
        /// Timeout of one poll, for all its requests together.
        "sampler.poll_timeout" => poll_timeout: Duration = "3s", range("100ms", "60s"), restart(Clients);
        /// Timeout for connecting to a node.
        "sampler.connect_timeout" => connect_timeout: Duration = "2s", range("50ms", "60s"), restart(Clients);
        /// Maximum size of a response that is read from a node.
        "sampler.max_body_bytes" => max_body_bytes: ByteSize = "4MiB", range("1KiB", "64MiB"), restart(Clients);
        /// Maximum sampler threads; more nodes than this share threads.
        "sampler.max_threads" => max_threads: usize = "128", range("1", "512"), restart(Threads);
        /// Maximum series per node; samples of further series are dropped and counted.
        "sampler.max_series" => max_series: usize = "5000", range("10", "1000000"), restart(Memory);
        /// Who may view the console: none admits every local caller (loopback only), ingress trusts
        /// a listed proxy's headers, passport requires admin:view.
        "auth.mode" => auth_mode: AuthMode = "none", restart(Trust);
        /// Tenant whose passports may use the console; it shows and operates the whole fleet.
        "auth.tenant" => auth_tenant: Tenant = "default", restart(Trust);
        /// How long a session of a browser lasts that nobody uses; an open page alone does not use it.
        "session.idle" => session_idle: Duration = "30m", range("1s", "12h"), reloadable;
        /// Maximum duration of a session of a browser.
        "session.longest" => session_longest: Duration = "12h", range("1s", "12h"), reloadable;
        /// Maximum age of the passport by which a caller reloads or shuts down a node.
        "session.action_age" => session_action_age: Duration = "15m", range("1s", "15m"), reloadable;
        /// Address blocks, as in 10.0.0.0/8, of the proxies whose headers are trusted.
        "ingress.proxies" => ingress_proxies: Vec<IpBlock>, reloadable;
        /// Header with the user's name.
        "ingress.header_user" => ingress_header_user: String = "X-User", range("1", "64"), restart(Trust);
        /// Header with the user's groups, separated by commas.
        "ingress.header_groups" => ingress_header_groups: String = "X-Groups", range("1", "64"), restart(Trust);
        /// Groups that may view.
        "ingress.viewer_groups" => ingress_viewer_groups: Vec<String>, reloadable;
        /// Groups that may view and reload nodes.
        "ingress.operator_groups" => ingress_operator_groups: Vec<String>, reloadable;
        /// Groups that may view, reload and shut down nodes.
        "ingress.admin_groups" => ingress_admin_groups: Vec<String>, reloadable;
        /// Host names under which browsers may reach the console; the bind address is always among
        /// them.
        "allowed_hosts" => allowed_hosts: Vec<String> = "localhost,127.0.0.1,::1", reloadable;
        /// Theme of the page until the user chooses one.
        "ui.theme" => theme: Theme = "system", reloadable;
        /// Language of the page until the user chooses one.
        "ui.language" => language: Language = "en-US", reloadable;
    }
}

/// All configuration keys of svc-admin.
pub static TABLE: Table = Table {
    service: "svc-admin",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7490"),
        (ChassisSettings::health_addr, "127.0.0.1:7495"),
    ],
    keys: Keys::GROUPS,
};

/// A service to watch, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    pub id: String,
    pub display_name: String,
    /// Without a slash at the end.
    pub health_url: String,
    pub api_url: Option<String>,
    pub environment: String,
    pub log: Option<LogSpec>,
    /// File with the service token for this node.
    pub credential: Option<PathBuf>,
    /// Starts with a slash.
    pub metrics_path: String,
}

/// A node's verifiable log, and the key that must have signed its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSpec {
    /// Full URL of the log's routes.
    pub base_url: String,
    pub vkey: Option<String>,
    pub witnesses: Vec<String>,
}

/// Which proxies may name users, and what their groups mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    pub proxies: Vec<IpBlock>,
    pub header_user: String,
    pub header_groups: String,
    pub viewers: Vec<String>,
    pub operators: Vec<String>,
    pub admins: Vec<String>,
}

/// Which actions the configuration allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    pub read_only: bool,
    pub reload: bool,
    pub shutdown: bool,
    pub timeout: Duration,
}

impl Actions {
    /// The names of the allowed actions.
    pub fn names(&self) -> Vec<String> {
        let all = [("reload", self.reload), ("shutdown", self.shutdown)];
        let on = all.iter().filter(|(_, on)| *on && !self.read_only);
        on.map(|(name, _)| (*name).to_owned()).collect()
    }
}

/// How long sessions of browsers last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    pub idle: Duration,
    pub longest: Duration,
    /// For actions, of the passport.
    pub action_age: Duration,
}

/// How nodes are polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub interval: Duration,
    pub window: Duration,
    pub poll_timeout: Duration,
    pub connect_timeout: Duration,
    pub max_body_bytes: u64,
    pub max_threads: usize,
    pub max_series: usize,
}

impl Sampling {
    /// Slots a ring needs to span the window.
    pub fn slots(&self) -> usize {
        (self.window.as_millis() / self.interval.as_millis().max(1)) as usize + 1
    }
}

/// Files that name more nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    pub files: Vec<PathBuf>,
    pub interval: Duration,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub nodes: Vec<NodeSpec>,
    pub sampling: Sampling,
    pub discovery: Discovery,
    pub auth: AuthMode,
    /// Passports of other tenants are refused.
    pub tenant: Tenant,
    pub ingress: Ingress,
    pub actions: Actions,
    pub session: SessionLimits,
    /// Lower case, without ports.
    pub allowed_hosts: Vec<String>,
    pub theme: Theme,
    pub language: Language,
}

impl ServiceSettings for Settings {
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>> {
        let keys: Keys = config.read().map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let nodes = nodes(config, &keys, &mut problems);
        let secure = |url: &String| url.starts_with("https:");
        let https = |n: &NodeSpec| secure(&n.health_url) || n.api_url.as_ref().is_some_and(secure);
        if nodes.iter().any(https) && config.chassis().tls_peer_ca.is_none() {
            let why = "must be set: a node has an https URL, and its certificate must be verified";
            problems.push(config.problem(ChassisSettings::tls_peer_ca, why));
        }
        if keys.window < keys.interval * 2 {
            problems.push(config.problem(
                Keys::window,
                "must be at least twice sampler.metrics_interval, or no rate can be computed",
            ));
        }
        check_mode(config, &keys, &nodes, &mut problems);
        let actions = actions(config, &keys, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let hosts = keys.allowed_hosts.iter();
        let mut allowed_hosts: Vec<String> =
            hosts.map(|host| host.trim().to_ascii_lowercase()).collect();
        allowed_hosts.push(bound(config.chassis()).to_string());
        Ok(Self {
            nodes,
            sampling: Sampling {
                interval: keys.interval,
                window: keys.window,
                poll_timeout: keys.poll_timeout,
                connect_timeout: keys.connect_timeout,
                max_body_bytes: keys.max_body_bytes.0,
                max_threads: keys.max_threads,
                max_series: keys.max_series,
            },
            discovery: Discovery {
                files: keys.discovery_files.0.clone(),
                interval: keys.discovery_interval,
            },
            auth: keys.auth_mode,
            tenant: keys.auth_tenant.clone(),
            ingress: ingress(&keys),
            actions,
            session: SessionLimits {
                idle: keys.session_idle,
                longest: keys.session_longest,
                action_age: keys.session_action_age,
            },
            allowed_hosts,
            theme: keys.theme,
            language: keys.language,
        })
    }
}

/// The address that browsers reach the console at.
fn bound(chassis: &ChassisSettings) -> IpAddr {
    if chassis.uds_only {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        chassis.bind_addr.ip()
    }
}

fn nodes(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) -> Vec<NodeSpec> {
    let mut nodes: Vec<NodeSpec> = Vec::new();
    for block in keys.nodes.iter() {
        match node_spec(block) {
            Ok(node) if nodes.iter().any(|known| known.id == node.id) => {
                let why = format!("has two blocks with the id {}", node.id);
                problems.push(config.problem(Keys::nodes, why));
            }
            Ok(node) => nodes.push(node),
            Err(why) => problems.push(config.problem(Keys::nodes, why)),
        }
    }
    nodes
}

/// The rules of each mode: a console that does not authenticate callers is for loopback, one behind
/// a proxy needs a proxy and a group that may view.
fn check_mode(config: &Config, keys: &Keys, nodes: &[NodeSpec], problems: &mut Vec<ConfigProblem>) {
    match keys.auth_mode {
        AuthMode::None => {
            let bound = bound(config.chassis());
            if !bound.is_loopback() {
                let why =
                    format!("none is for loopback only, and bind_addr is {bound}; use passport");
                problems.push(config.problem(Keys::auth_mode, why));
            }
            if nodes.iter().any(|node| node.environment == "prod") {
                let why = "none is not for a fleet with a prod node; use passport";
                problems.push(config.problem(Keys::auth_mode, why));
            }
        }
        AuthMode::Ingress => {
            let found = ingress(keys);
            let groups = [&found.viewers, &found.operators, &found.admins];
            if found.proxies.is_empty() || groups.iter().all(|group| group.is_empty()) {
                let why = "ingress needs ingress.proxies and at least one of ingress.viewer_groups, ingress.operator_groups, ingress.admin_groups";
                problems.push(config.problem(Keys::auth_mode, why));
            }
        }
        AuthMode::Passport => {
            if config.chassis().auth.issuer.is_none() {
                let why = "must be set when auth.mode is passport";
                problems.push(config.problem(AuthKeys::issuer, why));
            }
        }
    }
}

fn ingress(keys: &Keys) -> Ingress {
    let words = |list: &[String]| -> Vec<String> {
        let trimmed = list.iter().map(|word| word.trim().to_owned());
        trimmed.filter(|word| !word.is_empty()).collect()
    };
    Ingress {
        proxies: keys.ingress_proxies.clone(),
        header_user: keys.ingress_header_user.to_ascii_lowercase(),
        header_groups: keys.ingress_header_groups.to_ascii_lowercase(),
        viewers: words(&keys.ingress_viewer_groups),
        operators: words(&keys.ingress_operator_groups),
        admins: words(&keys.ingress_admin_groups),
    }
}

fn actions(config: &Config, keys: &Keys, problems: &mut Vec<ConfigProblem>) -> Actions {
    let chassis = config.chassis();
    let actions = Actions {
        read_only: keys.read_only,
        reload: chassis.enable_reload,
        shutdown: chassis.enable_shutdown,
        timeout: keys.action_timeout,
    };
    if !actions.read_only && keys.auth_mode == AuthMode::None {
        let why = "false needs callers that are known: set auth.mode to passport or ingress";
        problems.push(config.problem(Keys::read_only, why));
    }
    if !actions.read_only && chassis.data_dir.is_none() && !chassis.amnesia {
        let why = "false needs data_dir, where the audit of actions is kept (or amnesia = true)";
        problems.push(config.problem(Keys::read_only, why));
    }
    actions
}

fn node_spec(block: &NodeKeys) -> Result<NodeSpec, String> {
    let id = block.id.clone();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !id.chars().all(plain) {
        return Err(
            "has an id with other characters than letters, digits, dots, underscores and dashes"
                .to_owned(),
        );
    }
    let url = |key: &str, text: &String| base_url(text).map_err(|why| format!("{id}: {key} {why}"));
    let health_url = url(NodeKeys::health_url, &block.health_url)?;
    let api_url = block.api_url.as_ref();
    let api_url = api_url
        .map(|text| url(NodeKeys::api_url, text))
        .transpose()?;
    let log = match (&block.log_path, &api_url) {
        (None, _) => None,
        (Some(_), None) => return Err(format!("{id}: log_path needs api_url")),
        (Some(path), Some(api)) => Some(LogSpec {
            base_url: format!("{api}/{}", path.trim_matches('/')),
            vkey: block.log_vkey.clone(),
            witnesses: block.log_witnesses.clone(),
        }),
    };
    let metrics_path = block.metrics_path.clone();
    if !metrics_path.starts_with('/') || metrics_path.contains(['#', ' ']) {
        return Err(format!("{id}: metrics_path must start with /"));
    }
    Ok(NodeSpec {
        display_name: block.display_name.clone().unwrap_or_else(|| id.clone()),
        environment: block.environment.clone(),
        id,
        health_url,
        api_url,
        log,
        credential: block.credential_file.clone(),
        metrics_path,
    })
}

/// Validates a base URL, to which paths are appended, and removes a slash at its end.
pub(crate) fn base_url(text: &str) -> Result<String, &'static str> {
    let trimmed = text.trim_end_matches('/');
    if text.contains(['?', '#', '@', ' ']) {
        return Err("must have no user, query, fragment or space");
    }
    if let Some(socket) = trimmed.strip_prefix("unix:") {
        // Only with this suffix is it clear where the socket ends and the path begins.
        let ends = socket
            .rsplit_once('.')
            .is_some_and(|(_, end)| end == "sock")
            || socket.ends_with(':');
        if !socket.starts_with('/') || !ends {
            return Err("must be unix:/path/name.sock, or end with a colon behind another name");
        }
        return Ok(trimmed.to_owned());
    }
    let http = ["http://", "https://", "http+unix://"];
    let rest = http.iter().find_map(|scheme| trimmed.strip_prefix(scheme));
    match rest {
        None => Err("must start with http://, https://, unix:/ or http+unix://"),
        Some("") => Err("must be http://host:port, without user, query or fragment"),
        Some(rest) if rest.starts_with('/') => Err("must name a host"),
        Some(_) => Ok(trimmed.to_owned()),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
