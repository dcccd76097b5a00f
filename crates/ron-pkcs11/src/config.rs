//! The module's configuration file: where the service is, who the caller is, and which tokens there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_proto::{Kid, Purpose, Tenant};
use serde::Deserialize;

use crate::names::{self, LABEL};

/// Environment variable with the path of the file; ignored in set-user-id programs.
const VARIABLE: &str = "RON_PKCS11_CONFIG";
const DEFAULT_PATH: &str = "/etc/ron/pkcs11.toml";
/// Maximum number of tokens.
const TOKENS_MAX: usize = 64;
/// Bounds of `timeout_ms`.
const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=60_000;
const TIMEOUT_MS_DEFAULT: u64 = 5_000;

/// The file as it is written.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Written {
    url: String,
    #[serde(default)]
    peer_uids: Vec<u32>,
    token_file: Option<PathBuf>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    quiet: bool,
    #[serde(default)]
    token: Vec<WrittenToken>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    tenant: Tenant,
    purpose: Purpose,
    label: Option<String>,
    #[serde(default)]
    ed25519: bool,
    #[serde(default)]
    keys: BTreeMap<String, Kid>,
}

/// A configuration that was checked.
#[derive(Debug)]
pub struct Config {
    /// Unix sockets of the service, as `unix:/path`; those of several nodes with commas between them.
    pub url: String,
    /// User ids that the service may run as; empty means the caller's own.
    pub peer_uids: Vec<u32>,
    /// File with a passport or service token, read at each call; without it the caller is its user id.
    pub token_file: Option<PathBuf>,
    /// Maximum time of one call, waiting for a busy service included.
    pub timeout: Duration,
    /// Whether failures are not explained on standard error.
    pub quiet: bool,
    /// One token for each, in the order of the slots.
    pub tokens: Vec<TokenConfig>,
}

/// The keys of one purpose of a tenant, as a token.
#[derive(Debug)]
pub struct TokenConfig {
    pub tenant: Tenant,
    pub purpose: Purpose,
    /// At most 32 bytes.
    pub label: String,
    /// 16 characters.
    pub serial: String,
    /// Whether Ed25519 keys are objects too. OpenSSL's engine of that time (libp11 0.4.12) finds no key at all in a token that
    /// has one.
    pub ed25519: bool,
    /// Labels of keys that have a name of their own.
    pub labels: BTreeMap<Kid, String>,
}

/// Reads the file that the environment names, or the usual one. The error says what to change.
pub fn load() -> Result<Config, String> {
    let path = path();
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; {VARIABLE} names the file", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// A set-user-id program must not take its keys from where its caller says.
fn path() -> PathBuf {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    let own = getuid() == geteuid() && getgid() == getegid();
    let named = std::env::var_os(VARIABLE).filter(|path| own && !path.is_empty());
    named.map_or_else(|| Path::new(DEFAULT_PATH).to_owned(), PathBuf::from)
}

fn parse(text: &str) -> Result<Config, String> {
    let written: Written = toml::from_str(text).map_err(|error| error.to_string())?;
    let sockets = written.url.split(',').map(str::trim);
    if !sockets.clone().all(|url| url.starts_with("unix:/")) {
        return Err(
            "url: name the Unix socket of the key service, as in unix:/run/ron/ron-kms/api.sock"
                .to_owned(),
        );
    }
    let timeout_ms = written.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT);
    if !TIMEOUT_MS.contains(&timeout_ms) {
        return Err(format!(
            "timeout_ms: from {} to {}",
            TIMEOUT_MS.start(),
            TIMEOUT_MS.end()
        ));
    }
    if written.token.is_empty() || written.token.len() > TOKENS_MAX {
        return Err(format!(
            "token: name 1 to {TOKENS_MAX} tokens, each with tenant and purpose"
        ));
    }
    let tokens: Vec<_> = written
        .token
        .into_iter()
        .map(token)
        .collect::<Result<_, _>>()?;
    let labels: BTreeSet<_> = tokens.iter().map(|token| &token.label).collect();
    if labels.len() < tokens.len() {
        return Err("token: two tokens have the same label; give each its own".to_owned());
    }
    Ok(Config {
        url: written.url,
        peer_uids: written.peer_uids,
        token_file: written.token_file,
        timeout: Duration::from_millis(timeout_ms),
        quiet: written.quiet,
        tokens,
    })
}

fn token(written: WrittenToken) -> Result<TokenConfig, String> {
    let WrittenToken {
        tenant,
        purpose,
        label,
        ed25519,
        keys,
    } = written;
    let name = format!("{tenant}/{purpose}");
    if label
        .as_ref()
        .is_some_and(|label| label.is_empty() || label.len() > LABEL)
    {
        return Err(format!("token {name}: a label has 1 to {LABEL} bytes"));
    }
    let mut labels = BTreeMap::new();
    for (label, kid) in keys {
        if kid.tenant != tenant || kid.purpose != purpose {
            return Err(format!("token {name}: {kid} is a key of another token"));
        }
        if labels.insert(kid, label).is_some() {
            return Err(format!("token {name}: a key has two labels"));
        }
    }
    Ok(TokenConfig {
        label: label.unwrap_or_else(|| names::label(&name)),
        serial: names::serial(&name),
        tenant,
        purpose,
        ed25519,
        labels,
    })
}

/// One token, `default/web`, of a service at `url`.
#[cfg(test)]
pub fn for_tests(url: &str) -> Config {
    let text = format!(
        "url = \"{url}\"\nquiet = true\ntimeout_ms = 500\n[[token]]\ntenant = \"default\"\npurpose = \"web\"\n"
    );
    parse(&text).expect("a configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "url = \"unix:/run/ron/ron-kms/api.sock\"\n";
    const TOKEN: &str = "[[token]]\ntenant = \"default\"\npurpose = \"web\"\n";

    #[test]
    fn a_short_file_is_enough() {
        let config = parse(&format!("{URL}{TOKEN}")).unwrap();
        assert_eq!(config.timeout, Duration::from_secs(5));
        let [token] = config.tokens.as_slice() else {
            panic!("{config:?}");
        };
        assert_eq!(
            (token.label.as_str(), token.serial.len()),
            ("default/web", 16)
        );
    }

    #[test]
    fn the_examples_of_the_package_and_of_the_page_are_read() {
        let config = parse(include_str!("../../../packaging/pkcs11.toml")).unwrap();
        assert_eq!((config.tokens.len(), config.quiet), (1, false));
        let page = include_str!("../../../docs/pkcs11-module.md");
        let example = page
            .split("```")
            .find(|part| part.starts_with("toml\n# /etc/ron/pkcs11.toml"));
        let config = parse(example.unwrap().trim_start_matches("toml")).unwrap();
        assert_eq!(
            (
                config.tokens[0].label.as_str(),
                config.tokens[0].labels.len()
            ),
            ("web", 1)
        );
    }

    #[test]
    fn keys_get_names() {
        let kid = "default/web/ecdsa-p256/018f8e9e-0000-7000-8000-000000000001";
        let config = parse(&format!("{URL}{TOKEN}[token.keys]\ntls = \"{kid}\"\n")).unwrap();
        let labels = &config.tokens[0].labels;
        assert_eq!(labels.get(&kid.parse().unwrap()).unwrap(), "tls");
    }

    #[test]
    fn mistakes_are_named() {
        let check = |text: String, why: &str| {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        check(
            format!("url = \"http://127.0.0.1:7440\"\n{TOKEN}"),
            "Unix socket",
        );
        check(URL.to_owned(), "1 to 64 tokens");
        check(format!("{URL}{TOKEN}{TOKEN}"), "same label");
        check(format!("{URL}more = 1\n{TOKEN}"), "more");
        check(format!("{URL}timeout_ms = 5\n{TOKEN}"), "timeout_ms");
        check(
            format!("{URL}{TOKEN}label = \"{}\"\n", "x".repeat(33)),
            "1 to 32 bytes",
        );
        let other = "default/app/ecdsa-p256/018f8e9e-0000-7000-8000-000000000001";
        check(
            format!("{URL}{TOKEN}[token.keys]\nx = \"{other}\"\n"),
            "another token",
        );
    }
}
