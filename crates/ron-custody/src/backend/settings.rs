//! Configuration of the devices: their rows of the configuration table, and the validated settings.

use std::path::PathBuf;
use std::time::Duration;

use ron_service::{Config, ConfigProblem, Key};

use super::remote::{Api, RemoteSettings};

/// Rows of the configuration table.
pub static DEVICE_KEYS: [Key; 19] = [
    Key::path("pkcs11.module", "", "Path of the PKCS#11 module, such as /usr/lib/softhsm/libsofthsm2.so. Empty: no such backend."),
    Key::text("pkcs11.token", "", "Label of the token. Empty: the module's only token."),
    Key::text("pkcs11.pin", "", "The user's PIN: path of a file with mode 0600, or env:NAME for an environment variable."),
    Key::count("pkcs11.sessions", "4", "Number of sessions with the token, one thread each.").range("1", "64"),
    Key::text("tpm.tcti", "", "How the TPM is reached: device:/dev/tpmrm0, swtpm:host=127.0.0.1,port=2321, tabrmd:. Empty: no such backend."),
    Key::text("tpm.counter_index", "", "NV index of a counter in the TPM, such as 0x01800a10, that is created if needed and advanced at each start: a data directory from before the last start is then refused. Empty: none. Cannot be unset afterwards."),
    Key::path("tpm.owner_auth", "", "File with mode 0600 that holds the authorisation of the TPM's owner. Empty: the owner has none."),
    Key::text("remote.url", "", "Another key service that wraps and unwraps: base URL of a ron-kms, or of a Vault Transit mount such as https://vault:8200/v1/transit. Empty: no such backend."),
    Key::choice("remote.api", &["ron", "vault-transit"], "ron", "API of that service."),
    Key::text("remote.token", "", "Credential for that service: path of a file with mode 0600, or env:NAME for an environment variable."),
    Key::text("remote.tenant", "default", "Tenant of the keys made in another ron-kms: that of the credential."),
    Key::text("remote.purpose", "remote", "Purpose of the keys made in another ron-kms."),
    Key::count("remote.sessions", "4", "Number of threads that call that service.").range("1", "64"),
    Key::path("seal.tpm_file", "", "Seal key of the store as a blob that only this TPM unseals, made with a new store; instead of seal.key_file."),
    Key::duration("backends.probe_every", "2s", "Pause between two probes of a device that answers.").range("100ms", "1m"),
    Key::duration("verify_cache.soft_ttl", "5m", "After this time without an answer of the device, verifications with its keys are counted in verify_cache_expired_total.")
        .range("1s", "24h"),
    Key::duration("verify_cache.hard_ttl", "1h", "After this time without an answer of the device, verifications with its keys are refused with 503.")
        .range("1s", "720h"),
    Key::choice("attest.require", &["never", "if-available", "required"], "if-available", "Whether keys sign while their device does not attest them: `required` refuses; the others only report it."),
    Key::duration("attest.refresh_every", "10m", "How often devices have to attest their keys; a failure is retried after 5 s.").range("200ms", "24h"),
];

#[derive(Clone, Debug)]
pub struct DeviceSettings {
    pub pkcs11: Option<Pkcs11Settings>,
    pub tpm: Option<TpmSettings>,
    pub remote: Option<RemoteSettings>,
    /// Pause between two probes.
    pub probe_every: Duration,
    /// See `verify_cache.soft_ttl`.
    pub soft_ttl: Duration,
    /// See `verify_cache.hard_ttl`.
    pub hard_ttl: Duration,
    /// Whether the keys of a device that does not attest may not sign.
    pub attest_required: bool,
    pub attest_every: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Settings {
    pub module: PathBuf,
    /// The token's label, or empty.
    pub token: String,
    /// Path of the PIN's file, or `env:NAME`.
    pub pin: String,
    pub sessions: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmSettings {
    /// TCTI name and configuration.
    pub tcti: String,
    /// File of the owner's authorisation.
    pub owner_auth: Option<PathBuf>,
    /// NV index of the counter of starts.
    pub counter_index: Option<u32>,
}

impl DeviceSettings {
    /// Reads the settings and checks keys that depend on each other.
    pub fn from_config(config: &Config, problems: &mut Vec<ConfigProblem>) -> Self {
        let devices = Self {
            pkcs11: pkcs11(config, problems),
            tpm: tpm(config, problems),
            remote: remote(config, problems),
            probe_every: config.duration("backends.probe_every"),
            soft_ttl: config.duration("verify_cache.soft_ttl"),
            hard_ttl: config.duration("verify_cache.hard_ttl"),
            attest_required: config.str("attest.require") == "required",
            attest_every: config.duration("attest.refresh_every"),
        };
        if devices.soft_ttl > devices.hard_ttl {
            problems.push(config.problem(
                "verify_cache.soft_ttl",
                "is longer than verify_cache.hard_ttl; make it shorter",
            ));
        }
        devices
    }
}

/// A text key's value, unless it is empty.
fn text<'a>(config: &'a Config, key: &str) -> Option<&'a str> {
    config.str_opt(key).filter(|text| !text.is_empty())
}

fn without_feature(config: &Config, key: &str, feature: &str) -> ConfigProblem {
    config.problem(
        key,
        format!(
            "is set, but this program was built without it; build with --features ron-kms/{feature}"
        ),
    )
}

fn pkcs11(config: &Config, problems: &mut Vec<ConfigProblem>) -> Option<Pkcs11Settings> {
    const KEY: &str = "pkcs11.module";
    let Some(module) = config.path_opt(KEY) else {
        for key in ["pkcs11.token", "pkcs11.pin"] {
            if text(config, key).is_some() {
                problems.push(config.problem(key, "is set without pkcs11.module"));
            }
        }
        return None;
    };
    if !cfg!(feature = "pkcs11") {
        problems.push(without_feature(config, KEY, "pkcs11"));
        return None;
    }
    let Some(pin) = text(config, "pkcs11.pin") else {
        problems.push(config.problem(
            "pkcs11.pin",
            "is not set: name the file of the PIN, or env:NAME",
        ));
        return None;
    };
    Some(Pkcs11Settings {
        module: module.to_owned(),
        token: config
            .str_opt("pkcs11.token")
            .unwrap_or_default()
            .to_owned(),
        pin: pin.to_owned(),
        sessions: config.usize("pkcs11.sessions"),
    })
}

fn tpm(config: &Config, problems: &mut Vec<ConfigProblem>) -> Option<TpmSettings> {
    const KEY: &str = "tpm.tcti";
    let tcti = text(config, KEY)?;
    if !cfg!(feature = "tpm") {
        problems.push(without_feature(config, KEY, "tpm"));
        return None;
    }
    Some(TpmSettings {
        tcti: tcti.to_owned(),
        owner_auth: config.path_opt("tpm.owner_auth").map(PathBuf::from),
        counter_index: counter_index(config, problems),
    })
}

/// The NV index of the counter, within the range of TPM 2.0 NV indices.
fn counter_index(config: &Config, problems: &mut Vec<ConfigProblem>) -> Option<u32> {
    let given = text(config, "tpm.counter_index")?;
    let digits = given.strip_prefix("0x").unwrap_or_default();
    let index = u32::from_str_radix(digits, 16).ok();
    let index = index.filter(|index| (0x0100_0000..=0x01ff_ffff).contains(index));
    if index.is_none() {
        let why = "must be an NV index, 0x01000000 to 0x01ffffff; 0x01800000 and above is usual";
        problems.push(config.problem("tpm.counter_index", why));
    }
    index
}

fn remote(config: &Config, problems: &mut Vec<ConfigProblem>) -> Option<RemoteSettings> {
    let Some(url) = text(config, "remote.url") else {
        if text(config, "remote.token").is_some() {
            problems.push(config.problem("remote.token", "is set without remote.url"));
        }
        return None;
    };
    if !guarded(url) {
        problems.push(config.problem(
            "remote.url",
            "must begin with https:// or unix:, or with http:// and a loopback address: secrets go over it",
        ));
    }
    let Some(token) = text(config, "remote.token") else {
        problems.push(config.problem(
            "remote.token",
            "is not set: name the file of the credential, or env:NAME",
        ));
        return None;
    };
    let tenant = config.str("remote.tenant").parse();
    let purpose = config.str("remote.purpose").parse();
    let (Ok(tenant), Ok(purpose)) = (tenant, purpose) else {
        problems.push(config.problem(
            "remote.tenant",
            "and remote.purpose must be 1 to 64 of a-z, 0-9, `.`, `_`, `-`",
        ));
        return None;
    };
    Some(RemoteSettings {
        // The HTTP client's URLs separate a socket's path from the request path with a colon.
        url: match url.strip_prefix("unix:") {
            Some(socket) if !socket.contains(':') => format!("{url}:"),
            _ => url.trim_end_matches('/').to_owned(),
        },
        token: token.to_owned(),
        api: match config.str("remote.api") {
            "vault-transit" => Api::VaultTransit,
            _ => Api::Ron,
        },
        tenant,
        purpose,
        sessions: config.usize("remote.sessions"),
    })
}

/// Whether the connection is protected: TLS, a Unix socket or loopback.
fn guarded(url: &str) -> bool {
    let local = |rest: &str| {
        let host = rest.split('/').next().unwrap_or_default();
        let name = match host.strip_prefix('[') {
            Some(v6) => v6.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name == "localhost"
            || name
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    };
    url.starts_with("https://")
        || url.starts_with("unix:")
        || url.strip_prefix("http://").is_some_and(local)
}

#[cfg(test)]
mod tests {
    use super::guarded;

    #[test]
    fn secrets_go_over_guarded_ways_only() {
        for good in [
            "https://kms.example",
            "unix:/run/ron/kms.sock",
            "http://127.0.0.1:7440",
            "http://[::1]:7440/x",
            "http://localhost",
        ] {
            assert!(guarded(good), "{good}");
        }
        for bad in [
            "http://kms.example",
            "http://10.0.0.1:7440",
            "http://127.0.0.1.example",
            "ftp://127.0.0.1",
            "http://127.0.0.1@kms.example",
        ] {
            assert!(!guarded(bad), "{bad}");
        }
    }
}
