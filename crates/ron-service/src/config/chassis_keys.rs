//! The keys that every service has, and the checks between them.

use std::path::Path;

use ron_tlog::note::VerifierKey;

use super::key::Key;
use super::load::{Config, ConfigProblem};

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
    Key::list(
        "public_url",
        "",
        "Base URLs by which clients reach the API; DPoP proofs must name one, published documents carry the first. Set it behind a proxy, or where bind_addr is no name that clients use; empty: bind_addr.",
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
        "Open connections; the next one waits up to 100 ms for room, then gets 503 and is closed. Above half of them the \
         peer with most loses idle ones, then gets no new ones; a peer is an address, a /64 of IPv6 or a Unix user.",
    )
    .range("1", "100000"),
    Key::list(
        "trusted_proxies",
        "",
        "Addresses or blocks, as in 10.0.0.0/24, whose X-Forwarded-For says which peer a request counts for; their \
         connections count for no peer.",
    ),
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
    Key::size(
        "limits.public_body_bytes",
        "64KiB",
        "Largest request body on routes that anyone may call (413); with valid credentials limits.max_body_bytes.",
    )
    .range("1KiB", "64MiB"),
    Key::size(
        "limits.body_memory",
        "64MiB",
        "Memory for request bodies, unfinished heads and unread answers above 4 KiB each, counted over all services of the \
         process; the next gets 429.",
    )
    .range("1MiB", "16GiB"),
    Key::count(
        "limits.long_polls",
        "256",
        "Requests that wait for news at once; the next gets 429.",
    )
    .range("1", "65536"),
    Key::count(
        "limits.long_polls_per_peer",
        "64",
        "The same for one peer.",
    )
    .range("1", "65536"),
    Key::count(
        "limits.auth_failures_per_second",
        "200",
        "Failed authentications of one peer per second; above it the peer gets 429 before anything is checked; 0 means no limit.",
    )
    .range("0", "1000000"),
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
        "Requests taken in and not answered yet, those that wait for news aside; the next gets 429.",
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
    Key::list(
        "auth.note_vkey",
        "",
        "Verifier keys that may sign the issuer's policy note; `ron issuer trust` shows the present one. Keys that no such note lists are not believed.",
    )
    .reloadable(),
    Key::text(
        "auth.note_url",
        "",
        "Where the policy note is read; empty: /v1/passport/policy beside auth.jwks_url.",
    )
    .reloadable(),
    Key::bool(
        "auth.unpinned",
        false,
        "Believe the key set of an issuer that has no policy note. Over plain http, whoever takes the issuer's port then makes passports.",
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

/// Who may say which keys are the issuer's is known beforehand.
fn pin_checks(config: &Config, problems: &mut Vec<ConfigProblem>) {
    let pins = config.list("auth.note_vkey");
    let unpinned = config.bool("auth.unpinned");
    if config.str_opt("auth.issuer").is_some() && pins.is_empty() && !unpinned {
        let why = "must be set where auth.issuer is: the verifier key of the issuer's policy note (`ron issuer trust` shows it). \
                   Without it whoever takes the issuer's port makes passports; an issuer without notes needs auth.unpinned = true";
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
