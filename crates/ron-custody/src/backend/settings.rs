//! Configuration of the devices: their rows of the configuration table, and the validated settings.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::values::{Purpose, Tenant};
use ron_service::{Config, ConfigProblem};

use super::remote::{Api, RemoteSettings};

ron_service::choice! {
    /// Whether keys sign while their device does not attest them.
    pub enum AttestRequire {
        Never = "never",
        IfAvailable = "if-available",
        Required = "required",
    }
}

ron_service::settings! {
    pub struct DeviceKeys {
        /// Path of the PKCS#11 module, such as /usr/lib/softhsm/libsofthsm2.so. Empty: no such
        /// backend.
        "pkcs11.module" => pkcs11_module: Option<PathBuf>, restart(Devices);
        /// Label of the token. Empty: the module's only token.
        "pkcs11.token" => pkcs11_token: Option<String>, restart(Devices);
        /// The user's PIN: path of a file with mode 0600, or env:NAME for an environment variable.
        "pkcs11.pin" => pkcs11_pin: Option<String>, restart(Devices);
        /// Number of sessions with the token, one thread each.
        "pkcs11.sessions" => pkcs11_sessions: usize = "4", range("1", "64"), restart(Devices);
        /// How the TPM is reached: device:/dev/tpmrm0, swtpm:host=127.0.0.1,port=2321, tabrmd:.
        /// Empty: no such backend.
        "tpm.tcti" => tpm_tcti: Option<String>, restart(Devices);
        /// NV index of a counter in the TPM, such as 0x01800a10, that is created if needed and
        /// advanced at each start: a data directory from before the last start is then refused.
        /// Empty: none. Cannot be unset afterwards.
        "tpm.counter_index" => tpm_counter_index: Option<String>, restart(Devices);
        /// File with mode 0600 that holds the authorisation of the TPM's owner. Empty: the owner
        /// has none.
        "tpm.owner_auth" => tpm_owner_auth: Option<PathBuf>, restart(Devices);
        /// Another key service that wraps and unwraps: base URL of a ron-kms, or of a Vault Transit
        /// mount such as https://vault:8200/v1/transit. Empty: no such backend.
        "remote.url" => remote_url: Option<String>, restart(Devices);
        /// API of that service.
        "remote.api" => remote_api: Api = "ron", restart(Devices);
        /// Credential for that service: path of a file with mode 0600, or env:NAME for an
        /// environment variable.
        "remote.token" => remote_token: Option<String>, restart(Devices);
        /// Tenant of the keys made in another ron-kms: that of the credential.
        "remote.tenant" => remote_tenant: Tenant = "default", restart(Devices);
        /// Purpose of the keys made in another ron-kms.
        "remote.purpose" => remote_purpose: Purpose = "remote", restart(Devices);
        /// Number of threads that call that service.
        "remote.sessions" => remote_sessions: usize = "4", range("1", "64"), restart(Devices);
        /// Seal key of the store as a blob that only this TPM unseals, made with a new store;
        /// instead of seal.key_file.
        "seal.tpm_file" => seal_tpm_file: Option<PathBuf>, restart(Files);
        /// Pause between two probes of a device that answers.
        "backends.probe_every" => probe_every: Duration = "2s", range("100ms", "1m"), reloadable;
        /// After this time without an answer of the device, verifications with its keys are counted
        /// in verify_cache_expired_total.
        "verify_cache.soft_ttl" => soft_ttl: Duration = "5m", range("1s", "24h"), reloadable;
        /// After this time without an answer of the device, verifications with its keys are refused
        /// with 503.
        "verify_cache.hard_ttl" => hard_ttl: Duration = "1h", range("1s", "720h"), reloadable;
        /// Whether keys sign while their device does not attest them: `required` refuses; the
        /// others only report it.
        "attest.require" => attest_require: AttestRequire = "if-available", reloadable;
        /// How often devices have to attest their keys; a failure is retried after 5 s.
        "attest.refresh_every" => attest_every: Duration = "10m", range("200ms", "24h"), reloadable;
    }
}

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
    /// Checks keys that depend on each other.
    pub fn new(config: &Config, keys: &DeviceKeys, problems: &mut Vec<ConfigProblem>) -> Self {
        if keys.soft_ttl > keys.hard_ttl {
            let why = "is longer than verify_cache.hard_ttl; make it shorter";
            problems.push(config.problem(DeviceKeys::soft_ttl, why));
        }
        Self {
            pkcs11: pkcs11(config, keys, problems),
            tpm: tpm(config, keys, problems),
            remote: remote(config, keys, problems),
            probe_every: keys.probe_every,
            soft_ttl: keys.soft_ttl,
            hard_ttl: keys.hard_ttl,
            attest_required: keys.attest_require == AttestRequire::Required,
            attest_every: keys.attest_every,
        }
    }
}

fn pkcs11(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Option<Pkcs11Settings> {
    let Some(module) = &keys.pkcs11_module else {
        let needless = [
            (DeviceKeys::pkcs11_token, &keys.pkcs11_token),
            (DeviceKeys::pkcs11_pin, &keys.pkcs11_pin),
        ];
        for (key, _) in needless.iter().filter(|(_, value)| value.is_some()) {
            problems.push(config.problem(key, "is set without pkcs11.module"));
        }
        return None;
    };
    let Some(pin) = keys.pkcs11_pin.clone() else {
        problems.push(config.problem(
            DeviceKeys::pkcs11_pin,
            "is not set: name the file of the PIN, or env:NAME",
        ));
        return None;
    };
    Some(Pkcs11Settings {
        module: module.clone(),
        token: keys.pkcs11_token.clone().unwrap_or_default(),
        pin,
        sessions: keys.pkcs11_sessions,
    })
}

fn tpm(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Option<TpmSettings> {
    let tcti = keys.tpm_tcti.clone()?;
    if !cfg!(feature = "tpm") {
        let why =
            "is set, but this program was built without it; build with --features ron-kms/tpm";
        problems.push(config.problem(DeviceKeys::tpm_tcti, why));
        return None;
    }
    Some(TpmSettings {
        tcti,
        owner_auth: keys.tpm_owner_auth.clone(),
        counter_index: counter_index(config, keys, problems),
    })
}

/// The NV index of the counter, within the range of TPM 2.0 NV indices.
fn counter_index(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Option<u32> {
    let given = keys.tpm_counter_index.as_ref()?;
    let digits = given.strip_prefix("0x").unwrap_or_default();
    let index = u32::from_str_radix(digits, 16).ok();
    let index = index.filter(|index| (0x0100_0000..=0x01ff_ffff).contains(index));
    if index.is_none() {
        let why = "must be an NV index, 0x01000000 to 0x01ffffff; 0x01800000 and above is usual";
        problems.push(config.problem(DeviceKeys::tpm_counter_index, why));
    }
    index
}

fn remote(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Option<RemoteSettings> {
    let Some(url) = &keys.remote_url else {
        if keys.remote_token.is_some() {
            problems.push(config.problem(DeviceKeys::remote_token, "is set without remote.url"));
        }
        return None;
    };
    if !guarded(url) {
        problems.push(config.problem(
            DeviceKeys::remote_url,
            "must begin with https:// or unix:, or with http:// and a loopback address: secrets go over it",
        ));
    }
    let Some(token) = keys.remote_token.clone() else {
        problems.push(config.problem(
            DeviceKeys::remote_token,
            "is not set: name the file of the credential, or env:NAME",
        ));
        return None;
    };
    Some(RemoteSettings {
        // The HTTP client's URLs separate a socket's path from the request path with a colon.
        url: match url.strip_prefix("unix:") {
            Some(socket) if !socket.contains(':') => format!("{url}:"),
            _ => url.trim_end_matches('/').to_owned(),
        },
        token,
        api: keys.remote_api,
        tenant: keys.remote_tenant.clone(),
        purpose: keys.remote_purpose.clone(),
        sessions: keys.remote_sessions,
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
