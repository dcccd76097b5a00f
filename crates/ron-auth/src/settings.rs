//! The `auth` section of a service's configuration, validated.

use std::sync::Arc;
use std::time::Duration;

use ron_http::url_origin;
use ron_proto::Tenant;
use ron_tlog::note::VerifierKey;
use serde::Deserialize;

use crate::jwks::PqRule;
use crate::policy_note;
use crate::service_token::good_name;

/// Settings of an authorizer, from the `auth.*` keys or from code.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthConfig {
    /// This service's name: the required `aud` of passports, and the value for the caveat `svc`.
    pub audience: String,
    /// The issuer; `None` refuses all passports.
    pub issuer: Option<IssuerConfig>,
    pub principals: Vec<ServicePrincipal>,
    /// The region of this instance, for the caveat `region`; without one, tokens with that caveat
    /// are refused.
    pub region: Option<String>,
    /// Caveats of [`crate::caveats::BODY_KEYS`] that this service checks itself.
    pub enforced_caveats: Vec<String>,
    /// Accept service tokens over plain TCP on loopback too.
    pub insecure_loopback: bool,
}

/// The issuer of passports and its URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerConfig {
    /// Compared with `iss`, byte for byte.
    pub issuer: String,
    pub jwks_url: String,
    /// The post-quantum key set; by default on the host of `jwks_url`.
    pub pq_jwks_url: String,
    /// Which signatures must be valid.
    pub pq: PqRule,
    /// The policy note; by default on the host of `jwks_url`.
    pub note_url: String,
    /// Keys that may sign the note. Empty (`auth.unpinned`): any server of the key set is trusted.
    pub note_keys: Vec<VerifierKey>,
    /// The revocation feed; by default on the host of `jwks_url`.
    pub events_url: String,
    /// Time between two reads of the keys.
    pub refresh: Duration,
}

impl IssuerConfig {
    /// Whether keys and revocations read for one configuration are valid for the other.
    pub fn same_sources(&self, other: &Self) -> bool {
        self.pq == other.pq
            && self.issuer == other.issuer
            && self.jwks_url == other.jwks_url
            && self.pq_jwks_url == other.pq_jwks_url
            && self.note_url == other.note_url
            && self.events_url == other.events_url
    }

    /// Whether keys whose note was signed by `signers` are trusted under the current pins.
    pub fn trusts_note_of(&self, signers: &[VerifierKey]) -> bool {
        self.note_keys.is_empty() || self.note_keys.iter().any(|key| signers.contains(key))
    }
}

/// A caller identified by a service token, a client certificate or the user id of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePrincipal {
    pub name: String,
    pub tenant: Tenant,
    pub scopes: Arc<[String]>,
    /// SHA-256 of the whole token.
    pub sha256: Option<[u8; 32]>,
    /// SHA-256 of client certificates (DER), 64 lower-case hex digits each.
    pub certs: Vec<String>,
    /// User ids on the Unix socket.
    pub uids: Vec<u32>,
    /// If not empty, the prefixes of the only KMS keys it may use.
    pub key_prefixes: Vec<String>,
}

/// Other members are the service's own `auth.*` keys; its configuration table has already refused
/// unknown ones.
#[derive(Deserialize)]
struct Section {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_url: String,
    #[serde(default)]
    pq_jwks_url: String,
    #[serde(default)]
    pq: String,
    #[serde(default)]
    note_url: String,
    #[serde(default)]
    note_vkey: Vec<String>,
    #[serde(default)]
    unpinned: bool,
    #[serde(default)]
    events_url: String,
    /// Milliseconds.
    refresh_interval: Option<u64>,
    #[serde(default)]
    region: String,
    #[serde(default)]
    principals: Vec<PrincipalSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PrincipalSection {
    name: String,
    tenant: Option<String>,
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default)]
    sha256: String,
    #[serde(default)]
    certs: Vec<String>,
    #[serde(default)]
    uids: Vec<String>,
    #[serde(default)]
    key_prefixes: Vec<String>,
}

impl AuthConfig {
    /// No issuer, no principals: everything but public routes is refused.
    pub fn closed(audience: &str) -> Self {
        Self {
            audience: audience.to_owned(),
            issuer: None,
            principals: Vec::new(),
            region: None,
            enforced_caveats: Vec::new(),
            insecure_loopback: false,
        }
    }

    /// Parses the section as JSON, durations in milliseconds: `{issuer, jwks_url, note_vkey,
    /// refresh_interval, principals: [{name, tenant, scopes, sha256, certs, uids, key_prefixes}]}`.
    /// The error names the key and what to do.
    pub fn from_section(audience: &str, section: &serde_json::Value) -> Result<Self, String> {
        let section: Section =
            serde_json::from_value(section.clone()).map_err(|error| format!("auth: {error}"))?;
        let mut config = Self::closed(audience);
        config.issuer = issuer(&section)?;
        config.region = Some(section.region).filter(|region| !region.is_empty());
        for entry in section.principals {
            let principal = principal(entry)?;
            if config
                .principals
                .iter()
                .any(|other| other.name == principal.name)
            {
                return Err(format!(
                    "auth.principals: {} is listed twice",
                    principal.name
                ));
            }
            for other in &config.principals {
                check_distinct(other, &principal)?;
            }
            config.principals.push(principal);
        }
        Ok(config)
    }
}

fn issuer(section: &Section) -> Result<Option<IssuerConfig>, String> {
    if section.issuer.is_empty() && section.jwks_url.is_empty() {
        return Ok(None);
    }
    if section.issuer.is_empty() || section.jwks_url.is_empty() {
        return Err("auth.issuer and auth.jwks_url belong together: set both or none".into());
    }
    let origin = url_origin(&section.jwks_url)
        .ok_or("auth.jwks_url must be a URL such as unix:/run/ron/svc-passport/api.sock:/.well-known/jwks.json")?;
    let events_url = match section.events_url.as_str() {
        "" => format!("{origin}/v1/passport/events"),
        url => url.to_owned(),
    };
    let pq_jwks_url = match section.pq_jwks_url.as_str() {
        "" => format!("{origin}/.well-known/jwks-pq.json"),
        url => url.to_owned(),
    };
    let note_url = match section.note_url.as_str() {
        "" => format!("{origin}/v1/passport/policy"),
        url => url.to_owned(),
    };
    let pq = match section.pq.as_str() {
        "" => PqRule::Off,
        word => PqRule::parse(word).ok_or("auth.pq must be off, or, and, require or pq_only")?,
    };
    Ok(Some(IssuerConfig {
        issuer: section.issuer.clone(),
        jwks_url: section.jwks_url.clone(),
        pq_jwks_url,
        pq,
        note_url,
        note_keys: pins(section)?,
        events_url,
        refresh: Duration::from_millis(section.refresh_interval.unwrap_or(60_000)),
    }))
}

/// The keys that may sign the issuer's policy note.
fn pins(section: &Section) -> Result<Vec<VerifierKey>, String> {
    if section.unpinned != section.note_vkey.is_empty() {
        return Err(if section.unpinned {
            "auth.unpinned is true, but auth.note_vkey is set: drop one of the two".into()
        } else {
            "auth.note_vkey must be set where auth.issuer is: the verifier key of the issuer's policy note (`ron issuer trust` shows it). Without it any process that occupies the issuer's port can make passports; an issuer without notes needs auth.unpinned = true".into()
        });
    }
    let name = policy_note::origin(&section.issuer);
    let pin = |line: &String| {
        let key = VerifierKey::parse(line).map_err(|e| format!("auth.note_vkey: {e}"))?;
        if key.name() == name {
            Ok(key)
        } else {
            Err(format!(
                "auth.note_vkey: the key is named {}, but notes of auth.issuer are signed as {name}",
                key.name()
            ))
        }
    };
    section.note_vkey.iter().map(pin).collect()
}

fn principal(entry: PrincipalSection) -> Result<ServicePrincipal, String> {
    let name = entry.name;
    let fail = |why: &str| format!("auth.principals: {name}: {why}");
    if !good_name(&name) {
        return Err("auth.principals: a name is 1 to 64 of a-z, 0-9 and -".into());
    }
    let sha256 = match entry.sha256.as_str() {
        "" => None,
        digits => {
            let bytes = digest(digits);
            let why = "sha256 must be the token's SHA-256 in 64 hex digits";
            Some(bytes.ok_or_else(|| fail(why))?)
        }
    };
    let certs = entry.certs.iter().map(|digits| {
        let why = "certs must be SHA-256 of certificates, each in 64 hex digits (openssl x509 -noout -fingerprint -sha256, without the colons)";
        digest(digits).map(hex::encode).ok_or_else(|| fail(why))
    });
    let certs = certs.collect::<Result<Vec<String>, String>>()?;
    let uids = entry.uids.iter().map(|uid| {
        let why = "uids must be numbers, as in [\"1000\"]";
        uid.parse().map_err(|_| fail(why))
    });
    let uids = uids.collect::<Result<Vec<u32>, String>>()?;
    if sha256.is_none() && certs.is_empty() && uids.is_empty() {
        return Err(fail(
            "set sha256 (of a service token), certs or uids: nothing identifies the caller",
        ));
    }
    for scope in &entry.scopes {
        if !ron_proto::scope::ALL.contains(&scope.as_str()) {
            return Err(fail(&format!(
                "{scope} is not a scope; known are {}",
                ron_proto::scope::ALL.join(" ")
            )));
        }
    }
    let tenant = entry.tenant.unwrap_or_else(|| "default".into());
    let tenant = tenant
        .parse()
        .map_err(|_| fail("tenant must be 1 to 64 of a-z, 0-9, ., _ and -"))?;
    Ok(ServicePrincipal {
        tenant,
        scopes: entry.scopes.into(),
        sha256,
        certs,
        uids,
        key_prefixes: entry.key_prefixes,
        name,
    })
}

fn digest(digits: &str) -> Option<[u8; 32]> {
    hex::decode(digits).ok()?.try_into().ok()
}

/// A certificate or a user id may identify one principal only.
fn check_distinct(a: &ServicePrincipal, b: &ServicePrincipal) -> Result<(), String> {
    let (names, shared) = (
        format!("auth.principals: {} and {}", a.name, b.name),
        "the caller would be ambiguous",
    );
    if let Some(uid) = a.uids.iter().find(|uid| b.uids.contains(uid)) {
        return Err(format!("{names} both have the user id {uid}; {shared}"));
    }
    if let Some(cert) = a.certs.iter().find(|cert| b.certs.contains(cert)) {
        return Err(format!(
            "{names} both have the certificate {cert}; {shared}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_section_is_read() {
        let digest = "ab".repeat(32);
        let config = AuthConfig::from_section(
            "ron-kms",
            &json!({
                "issuer": "http://127.0.0.1:7450", "jwks_url": "http://127.0.0.1:7450/.well-known/jwks.json", "refresh_interval": 5000,
                "note_vkey": [vkey("http://127.0.0.1:7450")],
                "principals": [{"name": "svc-passport", "tenant": "ron", "scopes": ["kms:sign"], "sha256": digest, "key_prefixes": ["ron/issuer/"]}]
            }),
        )
        .unwrap();
        let issuer = config.issuer.unwrap();
        assert_eq!(
            issuer.events_url,
            "http://127.0.0.1:7450/v1/passport/events"
        );
        assert_eq!(issuer.note_url, "http://127.0.0.1:7450/v1/passport/policy");
        assert_eq!(issuer.note_keys.len(), 1);
        assert_eq!(issuer.refresh, Duration::from_secs(5));
        assert_eq!(
            (issuer.pq_jwks_url.as_str(), issuer.pq),
            (
                "http://127.0.0.1:7450/.well-known/jwks-pq.json",
                PqRule::Off
            )
        );
        let unix = json!({"issuer": "i", "unpinned": true, "jwks_url": "unix:/run/p/api.sock:/.well-known/jwks.json"});
        let unix = AuthConfig::from_section("x", &unix).unwrap();
        let unix = unix.issuer.unwrap();
        assert_eq!(unix.events_url, "unix:/run/p/api.sock:/v1/passport/events");
        assert_eq!(config.principals[0].sha256, Some([0xab; 32]));
        assert_eq!(config.principals[0].tenant.to_string(), "ron");
        assert_eq!(
            AuthConfig::from_section("x", &json!({})),
            Ok(AuthConfig::closed("x"))
        );
    }

    fn vkey(issuer: &str) -> String {
        let name = policy_note::origin(issuer);
        VerifierKey::ed25519(&name, &[7; 32]).unwrap().to_string()
    }

    fn digest_of(byte: &str) -> String {
        byte.repeat(32)
    }

    #[test]
    fn faults_are_named() {
        let check = |section: serde_json::Value, wanted: &str| {
            let error = AuthConfig::from_section("x", &section).expect_err(wanted);
            assert!(error.contains(wanted), "{error}");
        };
        let digest = "ab".repeat(32);
        let one = |name: &str, sha: &str, scope: &str| json!({"name": name, "sha256": sha, "scopes": [scope]});
        check(json!({"issuer": "a"}), "belong together");
        let pinned = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut section =
                json!({"issuer": "a", "jwks_url": "http://a/j", "note_vkey": [vkey("a")]});
            change(&mut section);
            section
        };
        assert!(AuthConfig::from_section("x", &pinned(&|_| ())).is_ok());
        check(
            pinned(&|s| s["note_vkey"] = json!([])),
            "auth.note_vkey must be set",
        );
        check(
            pinned(&|s| s["unpinned"] = true.into()),
            "drop one of the two",
        );
        check(
            pinned(&|s| s["note_vkey"] = json!([vkey("a"), "junk"])),
            "not a usable verifier key",
        );
        check(
            pinned(&|s| s["note_vkey"] = json!([vkey("b")])),
            "is named b/policy, but notes of auth.issuer are signed as a/policy",
        );
        check(
            json!({"issuer": "a", "jwks_url": "http://a/jwks.json", "pq": "maybe"}),
            "off, or, and, require or pq_only",
        );
        check(
            json!({"principals": [{"name": "a"}]}),
            "nothing identifies the caller",
        );
        check(
            json!({"principals": [{"name": "a", "certs": ["ab:cd"]}]}),
            "without the colons",
        );
        check(
            json!({"principals": [{"name": "a", "uids": ["root"]}]}),
            "uids must be numbers",
        );
        check(
            json!({"principals": [{"name": "a", "uids": ["7"]}, {"name": "b", "uids": ["8", "7"]}]}),
            "a and b both have the user id 7",
        );
        check(
            json!({"principals": [{"name": "a", "certs": [digest_of("AB")]}, {"name": "b", "certs": [digest_of("ab")]}]}),
            "a and b both have the certificate abab",
        );
        check(
            json!({"issuer": "a", "jwks_url": "ftp://x/"}),
            "auth.jwks_url",
        );
        check(
            json!({"issuer": "a", "jwks_url": "http:///x"}),
            "auth.jwks_url",
        );
        check(
            json!({"issuer": "a", "jwks_url": "http://u@h/x"}),
            "auth.jwks_url",
        );
        check(
            json!({"principals": [one("A", &digest, "kms:sign")]}),
            "a-z",
        );
        check(
            json!({"principals": [one("a", "ab", "kms:sign")]}),
            "64 hex",
        );
        check(
            json!({"principals": [one("a", &digest, "kms:everything")]}),
            "not a scope",
        );
        check(
            json!({"principals": [one("a", &digest, "kms:sign"), one("a", &digest, "kms:sign")]}),
            "twice",
        );
    }
}
