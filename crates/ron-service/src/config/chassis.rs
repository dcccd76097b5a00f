//! The configuration keys of every service, and the checks between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ron_auth::{AuthConfig, AuthSettings, PqRule, PrincipalSettings};
use ron_files::{Dir, DiskRoom};
use ron_kernel::SharedClock;
use ron_proto::Tenant;
use ron_proto::caveat::IpBlock;
use ron_tlog::note::VerifierKey;

use super::problem::{ConfigProblem, Origin};
use super::setting::{Blocks, ByteSize, Settings as _, SubTable, Uid};

crate::choice! {
    /// Form of the log lines.
    #[derive(clap::ValueEnum)]
    pub enum LogFormat {
        Json = "json",
        Compact = "compact",
    }
}

crate::choice! {
    /// Minimum level of events that are logged.
    #[derive(clap::ValueEnum)]
    pub enum LogLevel {
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
}

/// A URL under which clients reach the service: `https://wallet.example.org`, without a slash at the
/// end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(pub String);

impl FromStr for BaseUrl {
    type Err = &'static str;
    fn from_str(url: &str) -> Result<Self, Self::Err> {
        const WHY: &str = "which is not a URL such as https://wallet.example.org, without user, query or fragment";
        let schemes = ["http://", "https://"];
        let rest = schemes.iter().find_map(|scheme| url.strip_prefix(scheme));
        let rest = rest.ok_or(WHY)?;
        let odd = |b: u8| !b.is_ascii_graphic() || b"@?#\\\"<>".contains(&b);
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.bytes().any(odd) {
            return Err(WHY);
        }
        Ok(Self(url.trim_end_matches('/').to_owned()))
    }
}

crate::settings! {
    /// One `[[auth.principals]]` block: a caller with a service token, a client certificate or a Unix
    /// user id.
    pub struct PrincipalKeys {
        /// Name of the caller, as in its token ron_<name>_...
        "name" => name: String, range("1", "64");
        /// Tenant that the caller acts for.
        "tenant" => tenant: Tenant = "default";
        /// Scopes of the caller, such as kms:sign.
        "scopes" => scopes: Vec<String>;
        /// SHA-256 of the caller's whole service token, in hex; only the caller has the token
        /// itself.
        "sha256" => sha256: Option<String>;
        /// SHA-256 of the caller's client certificates, in hex; they are accepted over TLS with
        /// tls.client_ca_path.
        "certs" => certs: Vec<String>;
        /// User ids of the caller's processes; they are accepted on the Unix socket.
        "uids" => uids: Vec<Uid>;
        /// User ids of the caller's programs on client_uds_path, the socket for local programs.
        "client_uids" => client_uids: Vec<Uid>;
        /// If set, prefixes of the only KMS keys that the caller may use, such as ron/issuer/.
        "key_prefixes" => key_prefixes: Vec<String>;
    }
}

crate::settings! {
    /// The keys `auth.*`, from which the authorizer's [`AuthConfig`] is made.
    pub struct AuthKeys {
        /// Name of the issuer of passports, their iss; empty refuses all passports. An issuer that was moved keeps its first name here: its policy note has the others.
        "auth.issuer" => issuer: Option<String>, reloadable;
        /// URL of the issuer's key set, such as
        /// unix:/run/ron/svc-passport/api.sock:/.well-known/jwks.json.
        "auth.jwks_url" => jwks_url: Option<String>, reloadable;
        /// Verifier keys that may sign the issuer's policy note; `ron issuer trust` shows the
        /// current one. Issuer keys that no such note lists are ignored.
        "auth.note_vkey" => note_keys: Vec<VerifierKey>, reloadable;
        /// URL of the policy note; empty means /v1/passport/policy on the host of auth.jwks_url.
        "auth.note_url" => note_url: Option<String>, reloadable;
        /// Trust the key set of an issuer that has no policy note. Over plain http, any process
        /// that occupies the issuer's port can then make passports.
        "auth.unpinned" => unpinned: bool = "false", reloadable;
        /// File (0600) with the service token by which this service reads the issuer's revocations;
        /// read at each use. Empty where the issuer knows the service by its user id or client
        /// certificate.
        "auth.token_file" => token_file: Option<PathBuf>, reloadable;
        /// Post-quantum signatures of passports: off, or (one valid signature is enough), and (all
        /// must be valid), require (all, and one must be ML-DSA unless marked pq.fallback) or
        /// pq_only.
        "auth.pq" => pq: PqRule = "off", reloadable;
        /// URL of the issuer's ML-DSA key set; empty means /.well-known/jwks-pq.json on the host of
        /// auth.jwks_url.
        "auth.pq_jwks_url" => pq_jwks_url: Option<String>, reloadable;
        /// Interval between two reads of the issuer's keys.
        "auth.refresh_interval" => refresh_interval: Duration = "60s", range("1s", "24h"), reloadable;
        /// Region of this instance, for passports with the caveat region; empty refuses those
        /// passports.
        "auth.region" => region: Option<String>, reloadable;
        /// Callers without a passport, each identified by a service token, a client certificate or
        /// a user id.
        "auth.principals" => principals: Blocks<PrincipalKeys>, reloadable;
    }
}

crate::settings! {
    /// The keys of every service; a service may have other defaults.
    pub struct ChassisSettings {
        /// Address of the API; port 0 takes any free port.
        "bind_addr" => bind_addr: SocketAddr = "127.0.0.1:0", restart(Sockets);
        /// Address of health, metrics, status and actions.
        "health_addr" => health_addr: SocketAddr = "127.0.0.1:0", restart(Sockets);
        /// Base URLs by which clients reach the API; DPoP proofs must name one, published documents
        /// carry the first. Set it behind a proxy, or when clients do not use bind_addr; empty
        /// means bind_addr.
        "public_url" => public_urls: Vec<BaseUrl>, restart(Documents);
        /// Unix socket for the API beside bind_addr, absolute; its directory must have mode 0700,
        /// or 0750 for callers in its group.
        "uds_path" => uds_path: Option<PathBuf>, restart(Sockets);
        /// Serve the API on the Unix socket alone, and not at bind_addr.
        "uds_only" => uds_only: bool = "false", restart(Sockets);
        /// Unix socket for the health port beside health_addr, with the same rules as uds_path; it
        /// accepts the actions reload and shutdown.
        "health_uds_path" => health_uds_path: Option<PathBuf>, restart(Sockets);
        /// User ids that may connect to uds_path and health_uds_path; empty means only the
        /// service's own. Root always may; other users must be in the group of the directory.
        "uds_allow_uids" => uds_allow_uids: Vec<Uid>, restart(Sockets);
        /// Unix socket for the API for local programs of any user (mode 0666), absolute; it accepts
        /// passports and the user ids of auth.principals[].client_uids, no service tokens. No other
        /// user may have write access to its directory.
        "client_uds_path" => client_uds_path: Option<PathBuf>, restart(Sockets);
        /// User ids that may connect to client_uds_path; empty means every user of the host.
        "client_allow_uids" => client_allow_uids: Vec<Uid>, restart(Sockets);
        /// User ids under which services called through Unix sockets may run; empty means the
        /// service's own. Nothing is sent to a process that listens there under another user id.
        "peer_uids" => peer_uids: Vec<Uid>, restart(Clients);
        /// Send and accept service tokens over plain TCP on loopback too, and accept actions on the
        /// plain health port. Dangerous: any user of the host who occupies the port of a stopped
        /// service receives these tokens and can act as the bank or the issuer from then on.
        "insecure_loopback" => insecure_loopback: bool = "false", restart(Clients);
        /// Maximum open connections; the next one waits up to 100 ms for a free place, then gets
        /// 503 and is closed. Above half of the limit the peer with the most connections loses idle
        /// ones, then gets no new ones; a peer is an address, a /64 of IPv6 or a Unix user.
        "max_conns" => max_conns: usize = "1024", range("1", "100000"), restart(Front);
        /// Addresses or blocks, such as 10.0.0.0/24, of proxies whose X-Forwarded-For names the
        /// peer of a request; their own connections count for no peer.
        "trusted_proxies" => trusted_proxies: Vec<IpBlock>, restart(Front);
        /// Maximum time for a complete request head, and again for its body (408).
        "read_timeout" => read_timeout: Duration = "5s", range("100ms", "5m"), restart(Front);
        /// Maximum time for the client to read a response.
        "write_timeout" => write_timeout: Duration = "5s", range("100ms", "5m"), restart(Front);
        /// Maximum time that a connection may stay open without a request.
        "idle_timeout" => idle_timeout: Duration = "60s", range("1s", "1h"), restart(Front);
        /// Maximum time for one request, including queueing (504).
        "request_deadline" => request_deadline: Duration = "5s", range("100ms", "5m"), restart(Front);
        /// Maximum request body (413).
        "limits.max_body_bytes" => body_max: ByteSize = "1MiB", range("1KiB", "64MiB"), restart(Front);
        /// Maximum request body on public routes (413); with valid credentials
        /// limits.max_body_bytes applies.
        "limits.public_body_bytes" => public_body_max: ByteSize = "64KiB", range("1KiB", "64MiB"), restart(Front);
        /// Maximum memory for request bodies, unfinished heads and unread responses above 4 KiB
        /// each, over all services of the process; further requests get 429.
        "limits.body_memory" => body_memory: ByteSize = "64MiB", range("1MiB", "16GiB"), restart(Front);
        /// Bytes that must stay free on the disk of data_dir: with less, writes are refused until
        /// there is room again.
        "limits.disk_reserve" => disk_reserve: ByteSize = "64MiB", range("0B", "1024TiB"), reloadable;
        /// Maximum long polls at one time; further ones get 429.
        "limits.long_polls" => long_polls: usize = "256", range("1", "65536"), restart(Front);
        /// Maximum long polls of one peer at one time; further ones get 429.
        "limits.long_polls_per_peer" => long_polls_per_peer: usize = "64", range("1", "65536"), restart(Front);
        /// Maximum failed authentications per second of one peer; above it the peer gets 429 before
        /// any credential is checked; 0 means no limit.
        "limits.auth_failures_per_second" => auth_failures_per_second: u32 = "200", range("0", "1000000"), restart(Front);
        /// Maximum ratio of decompressed to compressed body size.
        "limits.decompress_ratio_cap" => decompress_ratio: usize = "10", range("1", "100"), restart(Front);
        /// Maximum sustained requests per second of one caller; 0 means no limit.
        "limits.rate_per_second" => rate_per_second: u32 = "0", range("0", "1000000"), reloadable;
        /// Maximum burst: requests that one caller may send at once above the rate; 0 means one
        /// second's worth.
        "limits.burst" => burst: u32 = "0", range("0", "1000000"), reloadable;
        /// Percentage of a caller's burst reserved for reads (GET, HEAD), so that writing at full
        /// rate does not block them.
        "limits.read_share_percent" => read_share_percent: u32 = "0", range("0", "90"), reloadable;
        /// Number of threads that run request handlers.
        "http.workers" => http_workers: usize = "4", range("1", "64"), restart(Threads);
        /// Maximum in-flight requests, not counting long polls; further ones get 429.
        "http.max_in_flight" => max_in_flight: usize = "1024", range("1", "65536"), restart(Front);
        /// Number of threads that serve the health port.
        "ops.workers" => ops_workers: usize = "1", range("1", "8"), restart(Threads);
        /// Maximum time to finish in-flight work at shutdown.
        "drain_deadline" => drain_deadline: Duration = "3s", range("100ms", "5m"), reloadable;
        /// Directory of all durable data; created with mode 0700.
        "data_dir" => data_dir: Option<PathBuf>, restart(Files);
        /// Maximum time between the newest entry of a log and a start; after a longer one nothing is
        /// written until `ron clock accept` confirms the machine's date.
        "clock.max_gap" => clock_gap_max: Duration = "30d", range("1h", "3650d"), restart(Files);
        /// Keep everything in memory and write nothing to disk.
        "amnesia" => amnesia: bool = "false", restart(Files);
        /// Serve the API over TLS 1.3.
        "tls.enabled" => tls_enabled: bool = "false", restart(Sockets);
        /// Certificate chain, PEM; a reload rereads all files of this section.
        "tls.cert_path" => tls_cert: Option<PathBuf>, restart(Files);
        /// Private key, PEM; must be readable by its owner only.
        "tls.key_path" => tls_key: Option<PathBuf>, restart(Files);
        /// If set, clients must present a certificate issued by one of these authorities, PEM; with
        /// mtls.bind_addr only at that address.
        "tls.client_ca_path" => tls_client_ca: Option<PathBuf>, restart(Files);
        /// Second address of the API, for clients that have a certificate of tls.client_ca_path: there
        /// they must present it, and at bind_addr they are not asked for one.
        "mtls.bind_addr" => mtls_addr: Option<SocketAddr>, restart(Sockets);
        /// Base URLs by which clients reach mtls.bind_addr, as public_url is for bind_addr; empty means
        /// mtls.bind_addr.
        "mtls.public_url" => mtls_urls: Vec<BaseUrl>, restart(Documents);
        /// If set, the service may call https peers, which must present a certificate issued by one
        /// of these authorities, PEM.
        "tls.peer_ca_path" => tls_peer_ca: Option<PathBuf>, restart(Files);
        /// Format of the log lines on standard error.
        "log.format" => log_format: LogFormat = "json", restart(Logger);
        /// Minimum level of events that are logged.
        "log.level" => log_level: LogLevel = "info", reloadable;
        /// Address of a collector that takes spans of requests as OTLP over HTTP in JSON, such as
        /// http://127.0.0.1:4318/v1/traces; empty sends none.
        "otlp.url" => otlp_url: Option<String>, restart(Clients);
        /// Maximum spans per second, of requests whose traceparent is sampled and of those without one; further requests have none.
        "otlp.spans_per_second" => otlp_spans_per_second: u32 = "100", range("1", "100000"), restart(Clients);
        /// Allow POST /api/v1/reload on the health port.
        "actions.enable_reload" => enable_reload: bool = "false", reloadable;
        /// Allow POST /api/v1/shutdown on the health port.
        "actions.enable_shutdown" => enable_shutdown: bool = "false", reloadable;
        ..auth: AuthKeys;
    }
}

impl ChassisSettings {
    /// The room on the disk of the data directory; there is none in amnesia mode.
    pub fn disk_room(&self, data_dir: Option<&Dir>, clock: &SharedClock) -> DiskRoom {
        match data_dir {
            Some(dir) => DiskRoom::of(dir, self.disk_reserve.0, clock.clone()),
            None => DiskRoom::unlimited(),
        }
    }
}

/// Reads the chassis settings of a service from values that the loader has accepted, and checks keys
/// that depend on each other.
pub(super) fn read(
    service: &str,
    values: &SubTable,
    origins: &BTreeMap<&'static str, Origin>,
) -> Result<(ChassisSettings, AuthConfig), Vec<ConfigProblem>> {
    let settings = ChassisSettings::read(values).map_err(|problem| vec![problem])?;
    let mut problems = Problems {
        origins,
        found: Vec::new(),
    };
    if settings.amnesia && settings.data_dir.is_some() {
        problems.add(
            ChassisSettings::data_dir,
            "is set, but amnesia = true writes nothing to disk; drop one of the two",
        );
    }
    check_tls(&settings, &mut problems);
    check_sockets(&settings, &mut problems);
    let schemes = ["http://", "https://", "unix:/"];
    let is_address = |url: &String| schemes.iter().any(|scheme| url.starts_with(scheme));
    if settings
        .otlp_url
        .as_ref()
        .is_some_and(|url| !is_address(url))
    {
        let why = "is not an address such as http://127.0.0.1:4318/v1/traces";
        problems.add(ChassisSettings::otlp_url, why);
    }
    match AuthConfig::new(service, auth_settings(&settings)) {
        Ok(auth) if problems.found.is_empty() => return Ok((settings, auth)),
        Ok(_) => {}
        Err(faults) => {
            for fault in faults {
                problems.add(fault.key, fault.why);
            }
        }
    }
    Err(problems.found)
}

/// The problems found so far, with the places where their keys were set.
struct Problems<'a> {
    origins: &'a BTreeMap<&'static str, Origin>,
    found: Vec<ConfigProblem>,
}

impl Problems<'_> {
    fn add(&mut self, key: &str, why: impl Into<String>) {
        self.found.push(ConfigProblem {
            origin: self.origins.get(key).cloned().unwrap_or(Origin::Default),
            key: key.to_owned(),
            why: why.into(),
        });
    }
}

fn auth_settings(settings: &ChassisSettings) -> AuthSettings {
    let auth = settings.auth.clone();
    let principals = auth
        .principals
        .0
        .into_iter()
        .map(|block| PrincipalSettings {
            name: block.name,
            tenant: block.tenant,
            scopes: block.scopes,
            sha256: block.sha256,
            certs: block.certs,
            uids: block.uids.into_iter().map(|Uid(uid)| uid).collect(),
            client_uids: block.client_uids.into_iter().map(|Uid(uid)| uid).collect(),
            key_prefixes: block.key_prefixes,
        });
    AuthSettings {
        principals: principals.collect(),
        issuer: auth.issuer,
        jwks_url: auth.jwks_url,
        pq_jwks_url: auth.pq_jwks_url,
        pq: auth.pq,
        note_url: auth.note_url,
        note_keys: auth.note_keys,
        unpinned: auth.unpinned,
        token_file: auth.token_file,
        refresh_interval: auth.refresh_interval,
        region: auth.region,
        insecure_loopback: settings.insecure_loopback,
    }
}

/// Checks that the files of TLS are set together, and none without effect.
fn check_tls(settings: &ChassisSettings, problems: &mut Problems) {
    let identity = [
        (ChassisSettings::tls_cert, settings.tls_cert.is_some()),
        (ChassisSettings::tls_key, settings.tls_key.is_some()),
    ];
    let wanted = settings.tls_enabled || identity.iter().any(|(_, set)| *set);
    for (key, _) in identity.iter().filter(|(_, set)| wanted && !set) {
        let why = "must be set too: a certificate and its key belong together, and TLS needs both";
        problems.add(key, why);
    }
    if !settings.tls_enabled && settings.tls_client_ca.is_some() {
        let why = "is set, but tls.enabled is false, so no client is asked for a certificate";
        problems.add(ChassisSettings::tls_client_ca, why);
    }
    if settings.mtls_addr.is_some() && settings.tls_client_ca.is_none() {
        let why = "needs tls.client_ca_path: the authorities of the certificates that clients present there";
        problems.add(ChassisSettings::mtls_addr, why);
    }
    if settings
        .mtls_addr
        .is_some_and(|addr| addr.port() != 0 && addr == settings.bind_addr)
    {
        let why = "is bind_addr; clients with a certificate need an address of their own";
        problems.add(ChassisSettings::mtls_addr, why);
    }
    if settings.mtls_addr.is_none() && !settings.mtls_urls.is_empty() {
        let why = "is set, but mtls.bind_addr is not, so there is no address to reach";
        problems.add(ChassisSettings::mtls_urls, why);
    }
    if settings.uds_only && settings.tls_enabled {
        let why = "is true, but uds_only leaves no TCP address to serve it at";
        problems.add(ChassisSettings::tls_enabled, why);
    }
}

/// Checks the Unix sockets: their paths differ, and no key of them is set without effect.
fn check_sockets(settings: &ChassisSettings, problems: &mut Problems) {
    let sockets = [
        (ChassisSettings::uds_path, &settings.uds_path),
        (ChassisSettings::health_uds_path, &settings.health_uds_path),
        (ChassisSettings::client_uds_path, &settings.client_uds_path),
    ];
    for (at, (key, path)) in sockets.iter().enumerate() {
        let Some(path) = path else { continue };
        if !path.is_absolute() {
            problems.add(key, "must be absolute");
        }
        let mut earlier = sockets[..at].iter();
        if let Some((other, _)) = earlier.find(|(_, known)| known.as_ref() == Some(path)) {
            problems.add(key, format!("is the same path as {other}"));
        }
    }
    let no_service_socket = settings.uds_path.is_none() && settings.health_uds_path.is_none();
    if no_service_socket && !settings.uds_allow_uids.is_empty() {
        let why = "is set, but neither uds_path nor health_uds_path is, so there is no socket to connect to";
        problems.add(ChassisSettings::uds_allow_uids, why);
    }
    if settings.client_uds_path.is_none() && !settings.client_allow_uids.is_empty() {
        let why = "is set, but client_uds_path is not, so there is no socket to connect to";
        problems.add(ChassisSettings::client_allow_uids, why);
    }
    if settings.uds_only && settings.uds_path.is_none() {
        let why = "must be set too: with uds_only there is no other way to the API";
        problems.add(ChassisSettings::uds_path, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_has_a_scheme_a_host_and_nothing_after_its_path() {
        for good in [
            "https://a.example",
            "http://[::1]:7470",
            "https://a.example/wallet/",
        ] {
            assert!(good.parse::<BaseUrl>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "a.example",
            "ftp://a",
            "https://",
            "https:///x",
            "http://:80",
            "https://u@a",
            "https://a?x",
            "https://a#x",
            "https://a b",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad}");
        }
    }
}
