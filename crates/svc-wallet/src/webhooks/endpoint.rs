//! The `[[webhooks]]` blocks of the configuration, validated.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ron_crypto::secret::SecretBytes;
use ron_proto::ledger::Event;
use ron_proto::{Account, Tenant, b64};
use ron_service::config::read_secret_file;

use crate::policy::matches;
use crate::render::touched;

/// Maximum endpoints; each has a thread that follows the ledger.
const ENDPOINTS_MAX: usize = 16;
/// Maximum secrets of an endpoint: the current one and the one before.
const SECRETS_MAX: usize = 2;
/// Sizes of a secret in bytes, as Standard Webhooks wants them.
const SECRET_MIN: usize = 24;
const SECRET_MAX: usize = 64;
const SECRET_PREFIX: &str = "whsec_";

ron_service::settings! {
    /// One `[[webhooks]]` block: an endpoint that gets a message for each entry of its accounts.
    pub struct WebhookKeys {
        /// Name in /v1/webhooks, metrics and the file of the cursor; lower-case letters, digits,
        /// dashes.
        "name" => name: String, range("1", "32");
        /// Where messages are sent by POST: an https URL, or http on loopback. Redirects are not
        /// followed.
        "url" => url: String, range("1", "512");
        /// Tenant whose administrators of all these accounts, with the scope wallet:admin, see and
        /// resume the endpoint.
        "tenant" => tenant: Tenant = "default";
        /// Accounts whose entries are sent: exact, or a prefix ending in *.
        "accounts" => accounts: Vec<String>;
        /// File (0600) with the secret that signs messages, whsec_ and base64 of 24 to 64 bytes. A
        /// second line holds the previous secret, which signs too while the receiver changes over.
        "secret_file" => secret_file: PathBuf;
    }
}

/// An endpoint that gets messages.
#[derive(Debug)]
pub struct Endpoint {
    pub name: String,
    pub url: String,
    pub tenant: Tenant,
    /// Exact, or a prefix ending in `*`.
    pub accounts: Vec<String>,
    pub secrets: Vec<SecretBytes>,
    /// Its cause on the readiness board.
    pub cause: &'static str,
}

impl Endpoint {
    /// Whether an entry that took effect changed an account of this endpoint.
    pub fn gets(&self, event: &Event) -> bool {
        touched(event).iter().any(|account| self.has(account))
    }

    /// Whether an account is one of this endpoint.
    pub fn has(&self, account: &Account) -> bool {
        let mut patterns = self.accounts.iter();
        patterns.any(|pattern| matches(pattern, account.as_str()))
    }

    /// Reads the secrets of a checked block.
    pub fn open(block: &WebhookKeys) -> Result<Self, String> {
        let text = read_secret_file(&block.secret_file)?;
        let secrets = secrets(text.expose())
            .map_err(|why| format!("{}: {why}", block.secret_file.display()))?;
        Ok(Self {
            // The board knows causes by static names; an endpoint lives as long as its process.
            cause: format!("webhook-{}", block.name).leak(),
            name: block.name.clone(),
            url: block.url.clone(),
            tenant: block.tenant.clone(),
            accounts: block.accounts.clone(),
            secrets,
        })
    }
}

/// What is wrong with the blocks, apart from their secrets.
pub fn check(blocks: &[WebhookKeys]) -> Result<(), String> {
    if blocks.len() > ENDPOINTS_MAX {
        return Err(format!("has more than {ENDPOINTS_MAX} endpoints"));
    }
    let mut names = BTreeSet::new();
    for block in blocks {
        let name = block.name.as_str();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if !name.bytes().all(plain) {
            return Err(format!(
                "{name}: a name has lower-case letters, digits and dashes only"
            ));
        }
        if !names.insert(name) {
            return Err(format!("{name} is there twice"));
        }
        check_url(&block.url).map_err(|why| format!("{name}: url {why}"))?;
        if block.accounts.is_empty() {
            return Err(format!("{name}: accounts must name at least one account"));
        }
        for pattern in &block.accounts {
            let text = pattern.strip_suffix('*').unwrap_or(pattern);
            if !text.is_empty() && text.parse::<Account>().is_err() && !text.ends_with(':') {
                return Err(format!("{name}: {pattern} is no account or prefix of one"));
            }
        }
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), &'static str> {
    let odd = |b: u8| !b.is_ascii_graphic() || b"@#\\\"<>".contains(&b);
    if url.bytes().any(odd) {
        return Err("has a user, a fragment, a space or a character that is not ASCII");
    }
    if url.strip_prefix("https://").is_some_and(has_host) {
        return Ok(());
    }
    let rest = url.strip_prefix("http://").filter(|rest| has_host(rest));
    let rest = rest.ok_or("must start with https:// and a host")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let authority = &rest[..end];
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    if ["127.0.0.1", "localhost", "[::1]"].contains(&host) {
        Ok(())
    } else {
        Err("must be https: messages about money do not leave the host in the clear")
    }
}

fn has_host(rest: &str) -> bool {
    !rest.is_empty() && !rest.starts_with(['/', ':', '?'])
}

fn secrets(text: &[u8]) -> Result<Vec<SecretBytes>, String> {
    let wrong = || {
        format!(
            "each line must be {SECRET_PREFIX} and base64 of {SECRET_MIN} to {SECRET_MAX} bytes, as from: \
             echo {SECRET_PREFIX}$(head -c 32 /dev/urandom | base64)"
        )
    };
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    let lines: Vec<&str> = text.split_whitespace().collect();
    if lines.is_empty() || lines.len() > SECRETS_MAX {
        return Err(format!("has {} secrets, not one or two", lines.len()));
    }
    let one = |line: &&str| {
        let secret = line.strip_prefix(SECRET_PREFIX).ok_or_else(wrong)?;
        let secret = b64::from_std(secret).map_err(|_| wrong())?;
        if (SECRET_MIN..=SECRET_MAX).contains(&secret.len()) {
            Ok(SecretBytes::new(secret))
        } else {
            Err(wrong())
        }
    };
    lines.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_leave_the_host_over_https_only() {
        for good in [
            "https://shop.example.org/hooks?a=1",
            "http://127.0.0.1:8080/",
            "http://localhost/x",
            "http://[::1]:9/x",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "https://",
            "https:///x",
            "https://user@host/",
            "https://host/#x",
            "http://10.0.0.1/",
            "http://127.0.0.1.evil.example/",
            "http://localhost@evil.example/",
            "http://localhost:80.evil.example/",
            "ftp://host/",
            "unix:/run/x.sock",
            "https://host/\u{e4}",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn secrets_are_those_of_the_specification() {
        let long = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        assert_eq!(secrets(long.as_bytes()).unwrap().len(), 1);
        let two = format!("{long}\n{long}\n");
        assert_eq!(secrets(two.as_bytes()).unwrap().len(), 2);
        for bad in [
            String::new(),
            long.replace("whsec_", ""),
            "whsec_c2hvcnQ=".to_owned(),
            format!("{two}{long}"),
            "whsec_%%%".to_owned(),
        ] {
            assert!(secrets(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
