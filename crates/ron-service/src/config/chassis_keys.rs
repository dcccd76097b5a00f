//! The keys that every service has, and the checks between them.

use super::key::Key;
use super::load::{Config, ConfigProblem};
use std::path::Path;

/// One `[[auth.principals]]` block: who may call with a service token, a client certificate or as a Unix user.
pub const PRINCIPAL_KEYS: &[Key] = &[
    Key::text(
        "name",
        "",
        "Name of the caller, as in the token ron_<name>_...",
    )
    .range("1", "64")
    .required(),
    Key::text("tenant", "default", "Tenant the caller acts for.").range("1", "64"),
    Key::list("scopes", "", "What the caller may do, as in kms:sign."),
    Key::text(
        "sha256",
        "",
        "SHA-256 of the caller's whole service token, in hex; the token itself stays with the caller.",
    ),
    Key::list(
        "certs",
        "",
        "SHA-256 of the caller's client certificates, in hex; they count on TLS with tls.client_ca_path.",
    ),
    Key::list(
        "uids",
        "",
        "User ids the caller's processes run as; they count on the Unix socket.",
    ),
    Key::list(
        "key_prefixes",
        "",
        "If set, the only KMS keys the caller may use, as in ron/issuer/.",
    ),
];

/// Chassis rows. A service repeats a row in its own group to change a default, most often with [`listen_keys`].
pub const CHASSIS_KEYS: &[Key] = &[
    Key::addr(
        "bind_addr",
        "127.0.0.1:0",
        "Address of the API; port 0 takes any free port.",
    ),
    Key::addr(
        "health_addr",
        "127.0.0.1:0",
        "Address of health, metrics, status and actions.",
    ),
    Key::path(
        "uds_path",
        "",
        "Unix socket for the API beside bind_addr, absolute; its directory must have mode 0700, or 0750 for callers in its group.",
    ),
    Key::bool(
        "uds_only",
        false,
        "Serve the API on the Unix socket alone, and not at bind_addr.",
    ),
    Key::path(
        "health_uds_path",
        "",
        "Unix socket for the health port beside health_addr, under the rules of uds_path; the actions reload and shutdown are taken there.",
    ),
    Key::list(
        "uds_allow_uids",
        "",
        "User ids that may connect to uds_path and health_uds_path; empty means only the service's own. Root always may; others must be in the group of their directory.",
    ),
    Key::path(
        "client_uds_path",
        "",
        "Unix socket for the API for local programs of any user (mode 0666), absolute; only passports count there, neither service tokens nor user ids. Nobody else may write to its directory.",
    ),
    Key::list(
        "client_allow_uids",
        "",
        "User ids that may connect to client_uds_path; empty means every user of the host.",
    ),
    Key::list(
        "peer_uids",
        "",
        "User ids that services reached through Unix sockets may run as; empty means the service's own. Anything else that listens there is sent nothing.",
    ),
    Key::bool(
        "insecure_loopback",
        false,
        "Send and accept service tokens over plain TCP on loopback too, and take actions on the plain health port. Dangerous: any user of the host who takes the port of a service that is down receives them, and is the bank or the issuer from then on.",
    ),
    Key::count(
        "max_conns",
        "1024",
        "Open connections; the next one waits up to 100 ms for room, then gets 503 and is closed.",
    )
    .range("1", "100000"),
    Key::duration(
        "read_timeout",
        "5s",
        "Time for a complete request head, and again for its body (408).",
    )
    .range("100ms", "5m"),
    Key::duration(
        "write_timeout",
        "5s",
        "Time for a response to be taken by the client.",
    )
    .range("100ms", "5m"),
    Key::duration(
        "idle_timeout",
        "60s",
        "Time a connection may stay open without a request.",
    )
    .range("1s", "1h"),
    Key::duration(
        "request_deadline",
        "5s",
        "Time for one request, queueing included (504).",
    )
    .range("100ms", "5m"),
    Key::size(
        "limits.max_body_bytes",
        "1MiB",
        "Largest request body (413).",
    )
    .range("1KiB", "64MiB"),
    Key::count(
        "limits.decompress_ratio_cap",
        "10",
        "Largest expansion of a compressed body.",
    )
    .range("1", "100"),
    Key::count(
        "limits.rate_per_second",
        "0",
        "Requests per second for one caller; 0 means no limit.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.burst",
        "0",
        "Requests a caller may send at once above the rate; 0 means one second's worth.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.read_share_percent",
        "0",
        "Share of a caller's burst that only requests that read (GET, HEAD) may use, so that writing at full rate does not shut them out.",
    )
    .range("0", "90")
    .reloadable(),
    Key::count("http.workers", "4", "Threads that run request handlers.").range("1", "64"),
    Key::count(
        "http.max_in_flight",
        "1024",
        "Requests taken in and not answered yet; the next gets 429.",
    )
    .range("1", "65536"),
    Key::count("ops.workers", "1", "Threads that answer the health port.").range("1", "8"),
    Key::duration(
        "drain_deadline",
        "3s",
        "Time to finish what is in hand at shutdown.",
    )
    .range("100ms", "5m"),
    Key::path(
        "data_dir",
        "",
        "Directory for everything durable; created with mode 0700.",
    ),
    Key::bool(
        "amnesia",
        false,
        "Keep everything in memory and write nothing to disk.",
    ),
    Key::bool("tls.enabled", false, "Serve the API over TLS 1.3."),
    Key::path(
        "tls.cert_path",
        "",
        "Certificate chain, PEM; a reload reads this file, and the others of this section, again.",
    ),
    Key::path(
        "tls.key_path",
        "",
        "Private key, PEM; readable by its owner only.",
    ),
    Key::path(
        "tls.client_ca_path",
        "",
        "If set, clients need a certificate from one of these, PEM.",
    ),
    Key::path(
        "tls.peer_ca_path",
        "",
        "If set, https peers are called and must show a certificate from one of these, PEM.",
    ),
    Key::choice(
        "log.format",
        &["json", "compact"],
        "json",
        "How log lines are written to standard error.",
    ),
    Key::choice(
        "log.level",
        &["error", "warn", "info", "debug", "trace"],
        "info",
        "Least serious level that is logged.",
    )
    .reloadable(),
    Key::text(
        "auth.issuer",
        "",
        "The iss that passports must carry; empty refuses all passports.",
    )
    .reloadable(),
    Key::text(
        "auth.jwks_url",
        "",
        "Where the issuer's keys are read, as in unix:/run/ron/svc-passport/api.sock:/.well-known/jwks.json.",
    )
    .reloadable(),
    Key::text(
        "auth.pq",
        "off",
        "Post-quantum signatures of passports: off, or (one good signature is enough), and (all must be good), \
         require (all, and one must be ML-DSA unless marked pq.fallback) or pq_only.",
    )
    .reloadable(),
    Key::text(
        "auth.pq_jwks_url",
        "",
        "Where the issuer's ML-DSA keys are read; empty: /.well-known/jwks-pq.json beside auth.jwks_url.",
    )
    .reloadable(),
    Key::duration(
        "auth.refresh_interval",
        "60s",
        "How often the issuer's keys are read again.",
    )
    .range("1s", "24h")
    .reloadable(),
    Key::text(
        "auth.region",
        "",
        "Region of this instance, for passports limited by the caveat region; empty refuses those.",
    )
    .reloadable(),
    Key::tables(
        "auth.principals",
        PRINCIPAL_KEYS,
        "Callers that need no passport: each is known by a service token, a client certificate or a user id.",
    )
    .reloadable(),
    Key::bool(
        "actions.enable_reload",
        false,
        "Allow POST /api/v1/reload on the health port.",
    )
    .reloadable(),
    Key::bool(
        "actions.enable_shutdown",
        false,
        "Allow POST /api/v1/shutdown on the health port.",
    )
    .reloadable(),
];

/// `bind_addr` and `health_addr` with this service's ports: `&listen_keys("127.0.0.1:7440", "127.0.0.1:7445")`.
pub const fn listen_keys(bind: &'static str, health: &'static str) -> [Key; 2] {
    [
        Key::addr(
            "bind_addr",
            bind,
            "Address of the API; port 0 takes any free port.",
        ),
        Key::addr(
            "health_addr",
            health,
            "Address of health, metrics, status and actions.",
        ),
    ]
}

/// Checks that need more than one key. Skipped for tables without the chassis rows.
pub(super) fn cross_checks(config: &Config) -> Vec<ConfigProblem> {
    let mut problems = Vec::new();
    if !config.values().any(|(name, _)| name == "amnesia") {
        return problems;
    }
    if config.bool("amnesia") && config.is_set("data_dir") {
        problems.push(config.problem(
            "data_dir",
            "is set, but amnesia = true writes nothing to disk; drop one of the two",
        ));
    }
    transport_checks(config, &mut problems);
    if config.str_opt("auth.jwks_url").is_some() != config.str_opt("auth.issuer").is_some() {
        let key = if config.str_opt("auth.jwks_url").is_some() {
            "auth.issuer"
        } else {
            "auth.jwks_url"
        };
        problems.push(config.problem(
            key,
            "must be set too: auth.issuer and auth.jwks_url belong together",
        ));
    }
    let mut names: Vec<&str> = config
        .tables("auth.principals")
        .iter()
        .map(|block| block.str("name"))
        .collect();
    names.sort_unstable();
    for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
        problems.push(config.problem(
            "auth.principals",
            format!("has two blocks named {}", pair[0]),
        ));
    }
    for block in config.tables("auth.principals") {
        let name = block.str("name");
        let digests = block.list("certs").iter().map(String::as_str);
        let digests = digests.chain(Some(block.str("sha256")).filter(|digits| !digits.is_empty()));
        for digits in digests {
            let good = digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            if !good {
                let why = format!("{name}: sha256 and certs must be 64 hex digits each");
                problems.push(config.problem("auth.principals", why));
            }
        }
    }
    problems
}

/// TLS and Unix sockets: what belongs together is there together, and nothing is set in vain.
fn transport_checks(config: &Config, problems: &mut Vec<ConfigProblem>) {
    let identity = ["tls.cert_path", "tls.key_path"];
    let enabled = config.bool("tls.enabled");
    let wanted = enabled || identity.iter().any(|key| config.is_set(key));
    for key in identity.iter().filter(|key| wanted && !config.is_set(key)) {
        let why = "must be set too: a certificate and its key belong together, and TLS needs both";
        problems.push(config.problem(key, why));
    }
    if !enabled && config.is_set("tls.client_ca_path") {
        let why = "is set, but tls.enabled is false, so no client is asked for a certificate";
        problems.push(config.problem("tls.client_ca_path", why));
    }
    let mut sockets: Vec<(&Path, &str)> = Vec::new();
    for key in ["uds_path", "health_uds_path", "client_uds_path"] {
        let Some(path) = config.path_opt(key) else {
            continue;
        };
        if !path.is_absolute() {
            problems.push(config.problem(key, "must be absolute"));
        }
        if let Some((_, other)) = sockets.iter().find(|(known, _)| *known == path) {
            problems.push(config.problem(key, format!("is the same path as {other}")));
        }
        sockets.push((path, key));
    }
    let unused = |list: &str, paths: &[&str]| {
        !config.list(list).is_empty() && !paths.iter().any(|path| config.is_set(path))
    };
    if unused("uds_allow_uids", &["uds_path", "health_uds_path"]) {
        let why = "is set, but neither uds_path nor health_uds_path is, so there is no socket to connect to";
        problems.push(config.problem("uds_allow_uids", why));
    }
    if unused("client_allow_uids", &["client_uds_path"]) {
        let why = "is set, but client_uds_path is not, so there is no socket to connect to";
        problems.push(config.problem("client_allow_uids", why));
    }
    if config.bool("uds_only") && !config.is_set("uds_path") {
        let why = "must be set too: with uds_only there is no other way to the API";
        problems.push(config.problem("uds_path", why));
    }
    if config.bool("uds_only") && enabled {
        let why = "is true, but uds_only leaves no TCP address to serve it at";
        problems.push(config.problem("tls.enabled", why));
    }
    for key in ["uds_allow_uids", "client_allow_uids", "peer_uids"] {
        for uid in config.list(key) {
            if uid.parse::<u32>().is_err() {
                let why =
                    format!("has {uid:?}, which is no user id; list numbers, as in [\"1000\"]");
                problems.push(config.problem(key, why));
            }
        }
    }
}
