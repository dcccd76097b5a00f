//! Configuration of the devices: their rows of the configuration table, and the validated settings.

use std::path::PathBuf;
use std::time::Duration;

use ron_proto::kms::KeyBackend;
use ron_proto::values::{Purpose, Tenant, TokenName};
use ron_service::config::{Blocks, SecretSource};
use ron_service::{Config, ConfigProblem};

use super::BackendId;
use super::pkcs11_module::real;
use super::remote::{Api, RemoteSettings};

/// Maximum number of tokens with a name.
const TOKENS_MAX: usize = 8;

ron_service::choice! {
    /// Whether keys sign while their device does not attest them.
    pub enum AttestRequire {
        Never = "never",
        IfAvailable = "if-available",
        Required = "required",
    }
}

ron_service::settings! {
    /// One `[[pkcs11.tokens]]` block: a token beside that of `pkcs11.token`, with a name.
    pub struct TokenKeys {
        /// Name of the token in requests and key documents; its keys are found by it, so it cannot change.
        "name" => name: TokenName;
        /// Path of its PKCS#11 module. Empty: pkcs11.module.
        "module" => module: Option<PathBuf>;
        /// Label of the token.
        "label" => label: String, range("1", "32");
        /// The user's PIN of this token, as pkcs11.pin.
        "pin" => pin: SecretSource, range("1", "4096");
        /// Number of sessions with the token, one thread each.
        "sessions" => sessions: usize = "4", range("1", "64");
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
        "pkcs11.pin" => pkcs11_pin: Option<SecretSource>, restart(Devices);
        /// Number of sessions with the token, one thread each.
        "pkcs11.sessions" => pkcs11_sessions: usize = "4", range("1", "64"), restart(Devices);
        /// Further tokens, at most 8, each with a name that requests give as `token`. With them, pkcs11.pin may be empty: then
        /// there is no token without a name.
        "pkcs11.tokens" => pkcs11_tokens: Blocks<TokenKeys>, restart(Devices);
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
        "remote.token" => remote_token: Option<SecretSource>, restart(Devices);
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
    pub pkcs11: Vec<Pkcs11Settings>,
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
    /// Its name in requests; the token of `pkcs11.token` has none.
    pub name: Option<TokenName>,
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

/// All configured tokens, that without a name first.
fn pkcs11(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<Pkcs11Settings> {
    let mut tokens: Vec<Pkcs11Settings> = unnamed(config, keys, problems).into_iter().collect();
    for block in keys.pkcs11_tokens.iter() {
        let Some(module) = block.module.as_ref().or(keys.pkcs11_module.as_ref()) else {
            let why = format!(
                "{}: module is not set, and pkcs11.module neither",
                block.name
            );
            problems.push(config.problem(DeviceKeys::pkcs11_tokens, why));
            continue;
        };
        tokens.push(Pkcs11Settings {
            name: Some(block.name.clone()),
            module: module.clone(),
            token: block.label.clone(),
            pin: block.pin.0.clone(),
            sessions: block.sessions,
        });
    }
    if let Err(why) = check_tokens(&tokens) {
        problems.push(config.problem(DeviceKeys::pkcs11_tokens, why));
    }
    tokens
}

/// The token of `pkcs11.token`.
fn unnamed(
    config: &Config,
    keys: &DeviceKeys,
    problems: &mut Vec<ConfigProblem>,
) -> Option<Pkcs11Settings> {
    let Some(module) = &keys.pkcs11_module else {
        let needless = [
            (DeviceKeys::pkcs11_token, keys.pkcs11_token.is_some()),
            (DeviceKeys::pkcs11_pin, keys.pkcs11_pin.is_some()),
        ];
        for (key, _) in needless.iter().filter(|(_, is_set)| *is_set) {
            problems.push(config.problem(key, "is set without pkcs11.module"));
        }
        return None;
    };
    let Some(SecretSource(pin)) = keys.pkcs11_pin.clone() else {
        // The module of the blocks only.
        if keys.pkcs11_token.is_none() && !keys.pkcs11_tokens.is_empty() {
            return None;
        }
        problems.push(config.problem(
            DeviceKeys::pkcs11_pin,
            "is not set: name the file of the PIN, or env:NAME",
        ));
        return None;
    };
    Some(Pkcs11Settings {
        name: None,
        module: module.clone(),
        token: keys.pkcs11_token.clone().unwrap_or_default(),
        pin,
        sessions: keys.pkcs11_sessions,
    })
}

/// Checks that names and tokens differ.
fn check_tokens(tokens: &[Pkcs11Settings]) -> Result<(), String> {
    if tokens.iter().filter(|token| token.name.is_some()).count() > TOKENS_MAX {
        return Err(format!("has more than {TOKENS_MAX} tokens"));
    }
    for (at, token) in tokens.iter().enumerate() {
        for earlier in &tokens[..at] {
            if earlier.name == token.name {
                return Err(format!("has two tokens {}", token.shown()));
            }
            if real(&earlier.module) != real(&token.module) {
                continue;
            }
            if earlier.token == token.token {
                return Err(format!(
                    "has one token twice, as {} and {}: each has a label of its own",
                    earlier.shown(),
                    token.shown()
                ));
            }
            if earlier.token.is_empty() {
                return Err(format!(
                    "has another token in the module of pkcs11.module, {}: set pkcs11.token to the label of the first one",
                    token.shown()
                ));
            }
        }
    }
    Ok(())
}

impl Pkcs11Settings {
    /// The identity of its keys' backend.
    pub fn id(&self) -> BackendId {
        BackendId {
            kind: KeyBackend::Pkcs11,
            token: self.name.clone(),
        }
    }

    fn shown(&self) -> String {
        match &self.name {
            Some(name) => format!("`{name}`"),
            None => "pkcs11.token".into(),
        }
    }
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
    let Some(SecretSource(token)) = keys.remote_token.clone() else {
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
    use super::*;

    fn token(name: &str, module: &str, label: &str) -> Pkcs11Settings {
        Pkcs11Settings {
            name: (!name.is_empty()).then(|| name.parse().expect("a name")),
            module: module.into(),
            token: label.into(),
            pin: "env:PIN".into(),
            sessions: 4,
        }
    }

    #[test]
    fn tokens_differ_in_name_and_in_module_or_label() {
        let one = token("", "/m.so", "ron");
        for good in [
            vec![],
            vec![token("", "/m.so", "")],
            vec![one.clone(), token("b", "/m.so", "b")],
            vec![one.clone(), token("b", "/n.so", "ron")],
            vec![token("", "/m.so", ""), token("b", "/n.so", "b")],
        ] {
            assert_eq!(check_tokens(&good), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            (
                vec![token("b", "/m.so", "b"), token("b", "/m.so", "c")],
                "two tokens `b`",
            ),
            (
                vec![one.clone(), token("b", "/m.so", "ron")],
                "one token twice, as pkcs11.token and `b`",
            ),
            (
                vec![token("", "/m.so", ""), token("b", "/m.so", "b")],
                "set pkcs11.token to the label",
            ),
            (
                (0..9)
                    .map(|n| token(&format!("t{n}"), "/m.so", &format!("l{n}")))
                    .collect(),
                "more than 8 tokens",
            ),
        ] {
            let got = check_tokens(&bad).expect_err(why);
            assert!(got.contains(why), "{got}");
        }
    }

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
