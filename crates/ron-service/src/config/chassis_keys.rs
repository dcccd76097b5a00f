//! The configuration keys of every service, and the checks across keys.

use std::path::Path;

use ron_tlog::note::VerifierKey;

use super::key::Key;
use super::load::{Config, ConfigProblem};

/// One `[[auth.principals]]` block: a caller with a service token, a client certificate or a Unix
/// user id.
pub const PRINCIPAL_KEYS: &[Key] = &[
    Key::text(
        "name",
        "",
        "Name of the caller, as in its token ron_<name>_...",
    )
    .range("1", "64")
    .required(),
    Key::text("tenant", "default", "Tenant that the caller acts for.").range("1", "64"),
    Key::list("scopes", "", "Scopes of the caller, such as kms:sign."),
    Key::text(
        "sha256",
        "",
        "SHA-256 of the caller's whole service token, in hex; only the caller has the token itself.",
    ),
    Key::list(
        "certs",
        "",
        "SHA-256 of the caller's client certificates, in hex; they are accepted over TLS with tls.client_ca_path.",
    ),
    Key::list(
        "uids",
        "",
        "User ids of the caller's processes; they are accepted on the Unix socket.",
    ),
    Key::list(
        "key_prefixes",
        "",
        "If set, prefixes of the only KMS keys that the caller may use, such as ron/issuer/.",
    ),
];

/// Chassis rows. A service repeats a row in its own group to change a default, usually with
/// [`listen_keys`].
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
    Key::list(
        "public_url",
        "",
        "Base URLs by which clients reach the API; DPoP proofs must name one, published documents carry the first. Set it behind a proxy, or when clients do not use bind_addr; empty means bind_addr.",
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
        "Unix socket for the health port beside health_addr, with the same rules as uds_path; it accepts the actions reload and shutdown.",
    ),
    Key::list(
        "uds_allow_uids",
        "",
        "User ids that may connect to uds_path and health_uds_path; empty means only the service's own. Root always may; other users must be in the group of the directory.",
    ),
    Key::path(
        "client_uds_path",
        "",
        "Unix socket for the API for local programs of any user (mode 0666), absolute; it accepts only passports, neither service tokens nor user ids. No other user may have write access to its directory.",
    ),
    Key::list(
        "client_allow_uids",
        "",
        "User ids that may connect to client_uds_path; empty means every user of the host.",
    ),
    Key::list(
        "peer_uids",
        "",
        "User ids under which services called through Unix sockets may run; empty means the service's own. Nothing is sent to a process that listens there under another user id.",
    ),
    Key::bool(
        "insecure_loopback",
        false,
        "Send and accept service tokens over plain TCP on loopback too, and accept actions on the plain health port. Dangerous: any user of the host who occupies the port of a stopped service receives these tokens and can act as the bank or the issuer from then on.",
    ),
    Key::count(
        "max_conns",
        "1024",
        "Maximum open connections; the next one waits up to 100 ms for a free place, then gets 503 and is closed. Above half of the limit the \
         peer with the most connections loses idle ones, then gets no new ones; a peer is an address, a /64 of IPv6 or a Unix user.",
    )
    .range("1", "100000"),
    Key::list(
        "trusted_proxies",
        "",
        "Addresses or blocks, such as 10.0.0.0/24, of proxies whose X-Forwarded-For names the peer of a request; their \
         own connections count for no peer.",
    ),
    Key::duration(
        "read_timeout",
        "5s",
        "Maximum time for a complete request head, and again for its body (408).",
    )
    .range("100ms", "5m"),
    Key::duration(
        "write_timeout",
        "5s",
        "Maximum time for the client to read a response.",
    )
    .range("100ms", "5m"),
    Key::duration(
        "idle_timeout",
        "60s",
        "Maximum time that a connection may stay open without a request.",
    )
    .range("1s", "1h"),
    Key::duration(
        "request_deadline",
        "5s",
        "Maximum time for one request, including queueing (504).",
    )
    .range("100ms", "5m"),
    Key::size(
        "limits.max_body_bytes",
        "1MiB",
        "Maximum request body (413).",
    )
    .range("1KiB", "64MiB"),
    Key::size(
        "limits.public_body_bytes",
        "64KiB",
        "Maximum request body on public routes (413); with valid credentials limits.max_body_bytes applies.",
    )
    .range("1KiB", "64MiB"),
    Key::size(
        "limits.body_memory",
        "64MiB",
        "Maximum memory for request bodies, unfinished heads and unread responses above 4 KiB each, over all services of the \
         process; further requests get 429.",
    )
    .range("1MiB", "16GiB"),
    Key::count(
        "limits.long_polls",
        "256",
        "Maximum long polls at one time; further ones get 429.",
    )
    .range("1", "65536"),
    Key::count(
        "limits.long_polls_per_peer",
        "64",
        "Maximum long polls of one peer at one time; further ones get 429.",
    )
    .range("1", "65536"),
    Key::count(
        "limits.auth_failures_per_second",
        "200",
        "Maximum failed authentications per second of one peer; above it the peer gets 429 before any credential is checked; 0 means no limit.",
    )
    .range("0", "1000000"),
    Key::count(
        "limits.decompress_ratio_cap",
        "10",
        "Maximum ratio of decompressed to compressed body size.",
    )
    .range("1", "100"),
    Key::count(
        "limits.rate_per_second",
        "0",
        "Maximum sustained requests per second of one caller; 0 means no limit.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.burst",
        "0",
        "Maximum burst: requests that one caller may send at once above the rate; 0 means one second's worth.",
    )
    .range("0", "1000000")
    .reloadable(),
    Key::count(
        "limits.read_share_percent",
        "0",
        "Percentage of a caller's burst reserved for reads (GET, HEAD), so that writing at full rate does not block them.",
    )
    .range("0", "90")
    .reloadable(),
    Key::count("http.workers", "4", "Number of threads that run request handlers.").range("1", "64"),
    Key::count(
        "http.max_in_flight",
        "1024",
        "Maximum in-flight requests, not counting long polls; further ones get 429.",
    )
    .range("1", "65536"),
    Key::count("ops.workers", "1", "Number of threads that serve the health port.").range("1", "8"),
    Key::duration(
        "drain_deadline",
        "3s",
        "Maximum time to finish in-flight work at shutdown.",
    )
    .range("100ms", "5m"),
    Key::path(
        "data_dir",
        "",
        "Directory of all durable data; created with mode 0700.",
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
        "Certificate chain, PEM; a reload rereads all files of this section.",
    ),
    Key::path(
        "tls.key_path",
        "",
        "Private key, PEM; must be readable by its owner only.",
    ),
    Key::path(
        "tls.client_ca_path",
        "",
        "If set, clients must present a certificate issued by one of these authorities, PEM.",
    ),
    Key::path(
        "tls.peer_ca_path",
        "",
        "If set, the service may call https peers, which must present a certificate issued by one of these authorities, PEM.",
    ),
    Key::choice(
        "log.format",
        &["json", "compact"],
        "json",
        "Format of the log lines on standard error.",
    ),
    Key::choice(
        "log.level",
        &["error", "warn", "info", "debug", "trace"],
        "info",
        "Minimum level of events that are logged.",
    )
    .reloadable(),
    Key::text(
        "auth.issuer",
        "",
        "Required iss of passports; empty refuses all passports.",
    )
    .reloadable(),
    Key::text(
        "auth.jwks_url",
        "",
        "URL of the issuer's key set, such as unix:/run/ron/svc-passport/api.sock:/.well-known/jwks.json.",
    )
    .reloadable(),
    Key::list(
        "auth.note_vkey",
        "",
        "Verifier keys that may sign the issuer's policy note; `ron issuer trust` shows the current one. Issuer keys that no such note lists are ignored.",
    )
    .reloadable(),
    Key::text(
        "auth.note_url",
        "",
        "URL of the policy note; empty means /v1/passport/policy on the host of auth.jwks_url.",
    )
    .reloadable(),
    Key::bool(
        "auth.unpinned",
        false,
        "Trust the key set of an issuer that has no policy note. Over plain http, any process that occupies the issuer's port can then make passports.",
    )
    .reloadable(),
    Key::text(
        "auth.pq",
        "off",
        "Post-quantum signatures of passports: off, or (one valid signature is enough), and (all must be valid), \
         require (all, and one must be ML-DSA unless marked pq.fallback) or pq_only.",
    )
    .reloadable(),
    Key::text(
        "auth.pq_jwks_url",
        "",
        "URL of the issuer's ML-DSA key set; empty means /.well-known/jwks-pq.json on the host of auth.jwks_url.",
    )
    .reloadable(),
    Key::duration(
        "auth.refresh_interval",
        "60s",
        "Interval between two reads of the issuer's keys.",
    )
    .range("1s", "24h")
    .reloadable(),
    Key::text(
        "auth.region",
        "",
        "Region of this instance, for passports with the caveat region; empty refuses those passports.",
    )
    .reloadable(),
    Key::tables(
        "auth.principals",
        PRINCIPAL_KEYS,
        "Callers without a passport, each identified by a service token, a client certificate or a user id.",
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

/// `bind_addr` and `health_addr` with this service's ports: `&listen_keys("127.0.0.1:7440",
/// "127.0.0.1:7445")`.
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

/// Checks across keys. Skipped for tables without the chassis rows.
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
    for text in config.list("trusted_proxies") {
        if let Err(why) = text.parse::<ron_proto::caveat::IpBlock>() {
            problems.push(config.problem("trusted_proxies", format!("has {text:?}: {why}")));
        }
    }
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
    pin_checks(config, &mut problems);
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

/// Checks that the trusted note keys are configured, because the issuer's keys depend on them.
fn pin_checks(config: &Config, problems: &mut Vec<ConfigProblem>) {
    let pins = config.list("auth.note_vkey");
    let unpinned = config.bool("auth.unpinned");
    if config.str_opt("auth.issuer").is_some() && pins.is_empty() && !unpinned {
        let why = "must be set where auth.issuer is: the verifier key of the issuer's policy note (`ron issuer trust` shows it). \
                   Without it any process that occupies the issuer's port can make passports; an issuer without notes needs auth.unpinned = true";
        problems.push(config.problem("auth.note_vkey", why));
    }
    if unpinned && !pins.is_empty() {
        let why = "is true, but auth.note_vkey is set; drop one of the two";
        problems.push(config.problem("auth.unpinned", why));
    }
    for line in pins {
        if let Err(error) = VerifierKey::parse(line) {
            problems.push(config.problem("auth.note_vkey", format!("has a line that is {error}")));
        }
    }
}

/// Checks TLS and Unix sockets: keys that belong together are set together, and no key is set
/// without effect.
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
    for url in config.list("public_url") {
        if !crate::chassis::is_base_url(url) {
            let why = "must list URLs such as https://wallet.example.org, without user, query or fragment";
            problems.push(config.problem("public_url", why));
        }
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
