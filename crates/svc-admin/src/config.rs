//! The configuration of svc-admin: one table of keys, and the settings made from it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ron_proto::caveat::IpBlock;
use ron_service::config::{CHASSIS_KEYS, Config, ConfigProblem, Key, SubTable, Table, listen_keys};

static LISTEN: [Key; 2] = listen_keys("127.0.0.1:7490", "127.0.0.1:7495");

/// Keys of one `[[nodes]]` block: a service to watch.
pub static NODE_KEYS: &[Key] = &[
    Key::text(
        "id",
        "",
        "Name in URLs and on the page; letters, digits, dots, dashes.",
    )
    .range("1", "64")
    .required(),
    Key::text("display_name", "", "Name for people; the id when empty.").range("0", "64"),
    Key::text(
        "health_url",
        "",
        "URL of its health port, as in http://127.0.0.1:7445, https://host:7445 or unix:/run/x.sock.",
    )
    .range("1", "256")
    .required(),
    Key::text("api_url", "", "URL of its API, where log heads are read.").range("0", "256"),
    Key::text("environment", "dev", "dev, staging, prod or another word.").range("1", "32"),
    Key::text(
        "log_path",
        "",
        "Path of its verifiable log below api_url, as in /audit/v1.",
    )
    .range("0", "128"),
    Key::text(
        "log_vkey",
        "",
        "The log's verifier key; without it the head is shown as not checked.",
    )
    .range("0", "256"),
    Key::list(
        "log_witnesses",
        "",
        "Verifier keys of witnesses whose signatures the head should carry.",
    ),
    Key::path(
        "credential_file",
        "",
        "File (0600) with the service token for actions and epochs; read at each use.",
    ),
    Key::text(
        "metrics_path",
        "/metrics",
        "Path of the metrics below health_url.",
    )
    .range("1", "128"),
];

static KEYS: &[Key] = &[
    Key::tables("nodes", NODE_KEYS, "The services to watch.").reloadable(),
    Key::list(
        "discovery.files",
        "",
        "Prometheus file_sd files (.json, .yml, .yaml) with more services to watch.",
    )
    .reloadable(),
    Key::duration(
        "discovery.interval",
        "5s",
        "Time between two reads of the discovery files.",
    )
    .range("250ms", "1h"),
    Key::bool(
        "read_only",
        true,
        "Disables every action, whatever the other keys allow.",
    )
    .reloadable(),
    Key::duration(
        "action_timeout",
        "5s",
        "Timeout of an action's call to a node.",
    )
    .range("100ms", "60s"),
    Key::duration(
        "sampler.metrics_interval",
        "5s",
        "Time between two polls of a node.",
    )
    .range("250ms", "1h"),
    Key::duration(
        "sampler.metrics_window",
        "5m",
        "How long samples are kept.",
    )
    .range("10s", "24h"),
    Key::duration(
        "sampler.poll_timeout",
        "3s",
        "Timeout of one poll, for all its requests together.",
    )
    .range("100ms", "60s"),
    Key::duration(
        "sampler.connect_timeout",
        "2s",
        "Timeout for connecting to a node.",
    )
    .range("50ms", "60s"),
    Key::size(
        "sampler.max_body_bytes",
        "4MiB",
        "Maximum size of a response that is read from a node.",
    )
    .range("1KiB", "64MiB"),
    Key::count(
        "sampler.max_threads",
        "128",
        "Maximum sampler threads; more nodes than this share threads.",
    )
    .range("1", "512"),
    Key::count(
        "sampler.max_series",
        "5000",
        "Maximum series per node; samples of further series are dropped and counted.",
    )
    .range("10", "1000000"),
    Key::choice(
        "auth.mode",
        &["none", "ingress", "passport"],
        "none",
        "Who may view the console: none admits every local caller (loopback only), ingress trusts a listed proxy's headers, passport requires admin:view.",
    ),
    Key::list(
        "ingress.proxies",
        "",
        "Address blocks, as in 10.0.0.0/8, of the proxies whose headers are trusted.",
    )
    .reloadable(),
    Key::text("ingress.header_user", "X-User", "Header with the user's name.").range("1", "64"),
    Key::text(
        "ingress.header_groups",
        "X-Groups",
        "Header with the user's groups, separated by commas.",
    )
    .range("1", "64"),
    Key::list("ingress.viewer_groups", "", "Groups that may view.").reloadable(),
    Key::list(
        "ingress.operator_groups",
        "",
        "Groups that may view and reload nodes.",
    )
    .reloadable(),
    Key::list(
        "ingress.admin_groups",
        "",
        "Groups that may view, reload and shut down nodes.",
    )
    .reloadable(),
    Key::list(
        "allowed_hosts",
        "localhost,127.0.0.1,::1",
        "Host names under which browsers may reach the console; the bind address is always among them.",
    )
    .reloadable(),
    Key::choice(
        "ui.theme",
        &["system", "light", "dark", "red-eye"],
        "system",
        "Theme of the page until the user chooses one.",
    )
    .reloadable(),
    Key::choice(
        "ui.language",
        &["en-US", "es-ES"],
        "en-US",
        "Language of the page until the user chooses one.",
    )
    .reloadable(),
];

pub static TABLE: Table = Table {
    service: "svc-admin",
    env_prefix: "SVC_ADMIN_",
    keys: &[CHASSIS_KEYS, &LISTEN, KEYS],
};

/// Who may use the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// Every caller that reaches the loopback address; read-only.
    None,
    /// Users that a listed proxy names.
    Ingress,
    /// Holders of a passport with `admin:view`.
    Passport,
}

impl AuthMode {
    /// The word in the configuration and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ingress => "ingress",
            Self::Passport => "passport",
        }
    }
}

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
    pub ingress: Ingress,
    pub actions: Actions,
    /// Lower case, without ports.
    pub allowed_hosts: Vec<String>,
    pub theme: String,
    pub language: String,
}

impl Settings {
    /// Checks what the table cannot: uniqueness, URLs, and rules between keys. `bound` is the
    /// address the API actually listens on.
    pub fn from_config(config: &Config, bound: IpAddr) -> Result<Self, Vec<ConfigProblem>> {
        let mut problems = Vec::new();
        let mut nodes: Vec<NodeSpec> = Vec::new();
        for block in config.tables("nodes") {
            match node_spec(block) {
                Ok(node) if nodes.iter().any(|known| known.id == node.id) => {
                    problems.push(
                        config.problem("nodes", format!("has two blocks with the id {}", node.id)),
                    );
                }
                Ok(node) => nodes.push(node),
                Err(why) => problems.push(config.problem("nodes", why)),
            }
        }
        let secure = |url: &String| url.starts_with("https:");
        let https = |n: &NodeSpec| secure(&n.health_url) || n.api_url.as_ref().is_some_and(secure);
        if nodes.iter().any(https) && config.path_opt("tls.peer_ca_path").is_none() {
            let why = "must be set: a node has an https URL, and its certificate must be verified";
            problems.push(config.problem("tls.peer_ca_path", why));
        }
        let sampling = Sampling {
            interval: config.duration("sampler.metrics_interval"),
            window: config.duration("sampler.metrics_window"),
            poll_timeout: config.duration("sampler.poll_timeout"),
            connect_timeout: config.duration("sampler.connect_timeout"),
            max_body_bytes: config.size("sampler.max_body_bytes"),
            max_threads: config.usize("sampler.max_threads"),
            max_series: config.usize("sampler.max_series"),
        };
        if sampling.window < sampling.interval * 2 {
            problems.push(config.problem(
                "sampler.metrics_window",
                "must be at least twice sampler.metrics_interval, or no rate can be computed",
            ));
        }
        let auth = auth_mode(config, bound, &nodes, &mut problems);
        let ingress = ingress(config, auth, &mut problems);
        let actions = actions(config, auth, &mut problems);
        let mut allowed_hosts: Vec<String> = config
            .list("allowed_hosts")
            .iter()
            .map(|h| h.trim().to_ascii_lowercase())
            .collect();
        allowed_hosts.push(bound.to_string());
        let (theme, language) = (
            config.str("ui.theme").to_owned(),
            config.str("ui.language").to_owned(),
        );
        if problems.is_empty() {
            Ok(Self {
                nodes,
                sampling,
                discovery: Discovery {
                    files: config
                        .list("discovery.files")
                        .iter()
                        .map(PathBuf::from)
                        .collect(),
                    interval: config.duration("discovery.interval"),
                },
                auth,
                ingress,
                actions,
                allowed_hosts,
                theme,
                language,
            })
        } else {
            Err(problems)
        }
    }
}

/// The mode, with the rules for a console that does not authenticate callers.
fn auth_mode(
    config: &Config,
    bound: IpAddr,
    nodes: &[NodeSpec],
    problems: &mut Vec<ConfigProblem>,
) -> AuthMode {
    if config.str("auth.mode") == "ingress" {
        return AuthMode::Ingress;
    }
    if config.str("auth.mode") != "none" {
        if config.str_opt("auth.issuer").is_none() {
            let why = "must be set when auth.mode is passport";
            problems.push(config.problem("auth.issuer", why));
        }
        return AuthMode::Passport;
    }
    if !bound.is_loopback() {
        let why = format!("none is for loopback only, and bind_addr is {bound}; use passport");
        problems.push(config.problem("auth.mode", why));
    }
    if nodes.iter().any(|node| node.environment == "prod") {
        let why = "none is not for a fleet with a prod node; use passport";
        problems.push(config.problem("auth.mode", why));
    }
    AuthMode::None
}

/// The rules for proxies; the mode needs at least one proxy and one group that may view.
fn ingress(config: &Config, auth: AuthMode, problems: &mut Vec<ConfigProblem>) -> Ingress {
    let words = |key: &str| -> Vec<String> {
        let trimmed = config.list(key).iter().map(|word| word.trim().to_owned());
        trimmed.filter(|word| !word.is_empty()).collect()
    };
    let mut proxies = Vec::new();
    for text in words("ingress.proxies") {
        match text.parse::<IpBlock>() {
            Ok(block) => proxies.push(block),
            Err(_) => problems.push(config.problem(
                "ingress.proxies",
                format!("{text} is not an address block such as 127.0.0.1/32"),
            )),
        }
    }
    let found = Ingress {
        proxies,
        header_user: config.str("ingress.header_user").to_ascii_lowercase(),
        header_groups: config.str("ingress.header_groups").to_ascii_lowercase(),
        viewers: words("ingress.viewer_groups"),
        operators: words("ingress.operator_groups"),
        admins: words("ingress.admin_groups"),
    };
    let nobody = found.viewers.is_empty() && found.operators.is_empty() && found.admins.is_empty();
    if auth == AuthMode::Ingress && (found.proxies.is_empty() || nobody) {
        let why = "ingress needs ingress.proxies and at least one of ingress.viewer_groups, ingress.operator_groups, ingress.admin_groups";
        problems.push(config.problem("auth.mode", why));
    }
    found
}

fn actions(config: &Config, auth: AuthMode, problems: &mut Vec<ConfigProblem>) -> Actions {
    let actions = Actions {
        read_only: config.bool("read_only"),
        reload: config.bool("actions.enable_reload"),
        shutdown: config.bool("actions.enable_shutdown"),
        timeout: config.duration("action_timeout"),
    };
    if !actions.read_only && auth == AuthMode::None {
        let why = "false needs callers that are known: set auth.mode to passport or ingress";
        problems.push(config.problem("read_only", why));
    }
    if !actions.read_only && config.path_opt("data_dir").is_none() && !config.bool("amnesia") {
        let why = "false needs data_dir, where the audit of actions is kept (or amnesia = true)";
        problems.push(config.problem("read_only", why));
    }
    actions
}

fn node_spec(block: &SubTable) -> Result<NodeSpec, String> {
    let id = block.str("id").to_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !id.chars().all(plain) {
        return Err(
            "has an id with other characters than letters, digits, dots, underscores and dashes"
                .to_owned(),
        );
    }
    let url = |key: &str| base_url(block.str(key)).map_err(|why| format!("{id}: {key} {why}"));
    let health_url = url("health_url")?;
    let api_url = if block.str("api_url").is_empty() {
        None
    } else {
        Some(url("api_url")?)
    };
    let log = match (block.str_opt("log_path"), &api_url) {
        (None, _) => None,
        (Some(_), None) => return Err(format!("{id}: log_path needs api_url")),
        (Some(path), Some(api)) => Some(LogSpec {
            base_url: format!("{api}/{}", path.trim_matches('/')),
            vkey: block.str_opt("log_vkey").map(str::to_owned),
            witnesses: block.list("log_witnesses").to_vec(),
        }),
    };
    let metrics_path = block.str("metrics_path").to_owned();
    if !metrics_path.starts_with('/') || metrics_path.contains(['#', ' ']) {
        return Err(format!("{id}: metrics_path must start with /"));
    }
    Ok(NodeSpec {
        display_name: block.str_opt("display_name").unwrap_or(&id).to_owned(),
        environment: block.str("environment").to_owned(),
        id,
        health_url,
        api_url,
        log,
        credential: block.path_opt("credential_file").map(PathBuf::from),
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
#[path = "config_tests.rs"]
mod tests;
