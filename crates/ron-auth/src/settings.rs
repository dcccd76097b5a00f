//! The settings of an authorizer, and their checks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_http::url_origin;
use ron_proto::Tenant;
use ron_tlog::note::VerifierKey;

use crate::jwks::PqRule;
use crate::policy_note;
use crate::service_token::good_name;

/// Validated settings of an authorizer.
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
    /// Its name; of an issuer that was moved, its first one. Compared with `iss`, byte for byte, unless its policy note has
    /// other names.
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
    /// The revocation feed, on the host of `jwks_url`.
    pub events_url: String,
    /// File with the service token for the feed, which the issuer does not show to everyone. `None`
    /// where the connection identifies this service, by a user id or a client certificate.
    pub token_file: Option<PathBuf>,
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
    /// User ids on the socket for local programs.
    pub client_uids: Vec<u32>,
    /// If not empty, the prefixes of the only KMS keys it may use.
    pub key_prefixes: Vec<String>,
}

/// What the operator configures: the keys `auth.*`. Not yet validated: see [`AuthConfig::new`].
#[derive(Clone, Debug)]
pub struct AuthSettings {
    pub issuer: Option<String>,
    pub jwks_url: Option<String>,
    pub pq_jwks_url: Option<String>,
    pub pq: PqRule,
    pub note_url: Option<String>,
    pub note_keys: Vec<VerifierKey>,
    pub unpinned: bool,
    pub token_file: Option<PathBuf>,
    pub refresh_interval: Duration,
    pub region: Option<String>,
    pub principals: Vec<PrincipalSettings>,
    pub insecure_loopback: bool,
}

/// One block `[[auth.principals]]`.
#[derive(Clone, Debug)]
pub struct PrincipalSettings {
    pub name: String,
    pub tenant: Tenant,
    pub scopes: Vec<String>,
    /// SHA-256 of the service token, 64 hex digits.
    pub sha256: Option<String>,
    /// SHA-256 of client certificates, 64 hex digits each.
    pub certs: Vec<String>,
    pub uids: Vec<u32>,
    pub client_uids: Vec<u32>,
    pub key_prefixes: Vec<String>,
}

/// A setting that the authorizer cannot work with. Displays as the key and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {why}")]
pub struct AuthFault {
    /// The key, such as `auth.issuer`.
    pub key: &'static str,
    pub why: String,
}

const PRINCIPALS: &str = "auth.principals";

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

    /// Checks the settings of the service with this name. The error has all faults.
    pub fn new(audience: &str, settings: AuthSettings) -> Result<Self, Vec<AuthFault>> {
        let mut faults = Faults::default();
        let issuer = issuer(&settings, &mut faults);
        let entries = settings.principals.into_iter();
        let principals: Vec<ServicePrincipal> =
            entries.map(|entry| principal(entry, &mut faults)).collect();
        for (at, one) in principals.iter().enumerate() {
            for other in &principals[..at] {
                check_distinct(other, one, &mut faults);
            }
        }
        if !faults.0.is_empty() {
            return Err(faults.0);
        }
        Ok(Self {
            issuer,
            principals,
            region: settings.region,
            insecure_loopback: settings.insecure_loopback,
            ..Self::closed(audience)
        })
    }
}

#[derive(Default)]
struct Faults(Vec<AuthFault>);

impl Faults {
    fn add(&mut self, key: &'static str, why: impl Into<String>) {
        let why = why.into();
        self.0.push(AuthFault { key, why });
    }
}

fn issuer(settings: &AuthSettings, faults: &mut Faults) -> Option<IssuerConfig> {
    const TOGETHER: &str = "must be set too: auth.issuer and auth.jwks_url belong together";
    check_pins(settings, faults);
    let (issuer, jwks_url) = match (&settings.issuer, &settings.jwks_url) {
        (None, None) => return None,
        (Some(_), None) => {
            faults.add("auth.jwks_url", TOGETHER);
            return None;
        }
        (None, Some(_)) => {
            faults.add("auth.issuer", TOGETHER);
            return None;
        }
        (Some(issuer), Some(jwks_url)) => (issuer, jwks_url),
    };
    let Some(origin) = url_origin(jwks_url) else {
        let why =
            "must be a URL such as unix:/run/ron/svc-passport/api.sock:/.well-known/jwks.json";
        faults.add("auth.jwks_url", why);
        return None;
    };
    let on_its_host = |url: &Option<String>, path: &str| {
        let url = url.clone();
        url.unwrap_or_else(|| format!("{origin}{path}"))
    };
    Some(IssuerConfig {
        issuer: issuer.clone(),
        jwks_url: jwks_url.clone(),
        pq_jwks_url: on_its_host(&settings.pq_jwks_url, "/.well-known/jwks-pq.json"),
        pq: settings.pq,
        note_url: on_its_host(&settings.note_url, "/v1/passport/policy"),
        note_keys: settings.note_keys.clone(),
        events_url: format!("{origin}/v1/passport/events"),
        token_file: settings.token_file.clone(),
        refresh: settings.refresh_interval,
    })
}

/// Checks the keys that may sign the issuer's policy note. Pins without an issuer are kept for
/// later, but must not contradict `auth.unpinned`.
fn check_pins(settings: &AuthSettings, faults: &mut Faults) {
    const KEY: &str = "auth.note_vkey";
    let pins = &settings.note_keys;
    if settings.unpinned && !pins.is_empty() {
        let why = "is true, but auth.note_vkey is set; drop one of the two";
        faults.add("auth.unpinned", why);
    }
    let Some(issuer) = &settings.issuer else {
        return;
    };
    if pins.is_empty() && !settings.unpinned {
        let why = "must be set where auth.issuer is: the verifier key of the issuer's policy note (`ron issuer trust` shows it). \
                   Without it any process that occupies the issuer's port can make passports; an issuer without notes needs auth.unpinned = true";
        faults.add(KEY, why);
    }
    let name = policy_note::origin(issuer);
    for other in pins.iter().filter(|key| key.name() != name) {
        let why = format!(
            "has a key named {}, but notes of auth.issuer are signed as {name}",
            other.name()
        );
        faults.add(KEY, why);
    }
}

/// A block with faults gives a principal without the faulty parts, so that checks between blocks
/// still find theirs.
fn principal(entry: PrincipalSettings, faults: &mut Faults) -> ServicePrincipal {
    let name = entry.name;
    let mut fault = |why: &str| faults.add(PRINCIPALS, format!("of {name}: {why}"));
    if !good_name(&name) {
        fault("a name is 1 to 64 of a-z, 0-9 and -");
    }
    let no_uids = entry.uids.is_empty() && entry.client_uids.is_empty();
    if entry.sha256.is_none() && entry.certs.is_empty() && no_uids {
        fault(
            "set sha256 (of a service token), certs, uids or client_uids: nothing identifies the caller",
        );
    }
    let sha256 = entry.sha256.and_then(|digits| {
        let read = digest(&digits);
        if read.is_none() {
            fault("sha256 must be the token's SHA-256 in 64 hex digits");
        }
        read
    });
    let mut certs = Vec::new();
    for digits in &entry.certs {
        match digest(digits) {
            Some(read) => certs.push(hex::encode(read)),
            None => fault(
                "certs must be SHA-256 of certificates, each in 64 hex digits (openssl x509 -noout -fingerprint -sha256, without the colons)",
            ),
        }
    }
    let known = |scope: &&String| ron_proto::scope::ALL.contains(&scope.as_str());
    for scope in entry.scopes.iter().filter(|scope| !known(scope)) {
        fault(&format!(
            "{scope} is not a scope; known are {}",
            ron_proto::scope::ALL.join(" ")
        ));
    }
    ServicePrincipal {
        tenant: entry.tenant,
        scopes: entry.scopes.into(),
        sha256,
        certs,
        uids: entry.uids,
        client_uids: entry.client_uids,
        key_prefixes: entry.key_prefixes,
        name,
    }
}

fn digest(digits: &str) -> Option<[u8; 32]> {
    hex::decode(digits).ok()?.try_into().ok()
}

/// A name, a certificate or a user id may identify one principal only.
fn check_distinct(a: &ServicePrincipal, b: &ServicePrincipal, faults: &mut Faults) {
    if a.name == b.name {
        faults.add(PRINCIPALS, format!("has two blocks named {}", a.name));
        return;
    }
    let mut both = |what: String| {
        let why = format!(
            "of {} and {} both have {what}; the caller would be ambiguous",
            a.name, b.name
        );
        faults.add(PRINCIPALS, why);
    };
    for (of_a, of_b) in [(&a.uids, &b.uids), (&a.client_uids, &b.client_uids)] {
        if let Some(uid) = of_a.iter().find(|uid| of_b.contains(uid)) {
            both(format!("the user id {uid}"));
        }
    }
    if let Some(cert) = a.certs.iter().find(|cert| b.certs.contains(cert)) {
        both(format!("the certificate {cert}"));
    }
}

/// Settings for tests, from JSON with the names of the keys; durations are in milliseconds.
#[cfg(test)]
pub(crate) fn from_json(section: &serde_json::Value) -> AuthSettings {
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let list = |value: &serde_json::Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(text)
            .collect()
    };
    let uids = |value: &serde_json::Value| -> Vec<u32> {
        let list = list(value).into_iter();
        list.map(|uid| uid.parse().unwrap()).collect()
    };
    let principal = |block: &serde_json::Value| PrincipalSettings {
        name: text(&block["name"]).unwrap_or_default(),
        tenant: block["tenant"]
            .as_str()
            .unwrap_or("default")
            .parse()
            .unwrap(),
        scopes: list(&block["scopes"]),
        sha256: text(&block["sha256"]),
        certs: list(&block["certs"]),
        uids: uids(&block["uids"]),
        client_uids: uids(&block["client_uids"]),
        key_prefixes: list(&block["key_prefixes"]),
    };
    AuthSettings {
        issuer: text(&section["issuer"]),
        jwks_url: text(&section["jwks_url"]),
        pq_jwks_url: None,
        pq: PqRule::parse(section["pq"].as_str().unwrap_or("off")).unwrap(),
        note_url: None,
        note_keys: list(&section["note_vkey"])
            .iter()
            .map(|line| line.parse().unwrap())
            .collect(),
        unpinned: section["unpinned"] == true,
        token_file: text(&section["token_file"]).map(PathBuf::from),
        refresh_interval: Duration::from_millis(
            section["refresh_interval"].as_u64().unwrap_or(60_000),
        ),
        region: text(&section["region"]),
        principals: section["principals"]
            .as_array()
            .into_iter()
            .flatten()
            .map(principal)
            .collect(),
        insecure_loopback: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_section_is_read() {
        let digest = "ab".repeat(32);
        let config = AuthConfig::new(
            "ron-kms",
            from_json(&json!({
                "issuer": "http://127.0.0.1:7450", "jwks_url": "http://127.0.0.1:7450/.well-known/jwks.json", "refresh_interval": 5000,
                "note_vkey": [vkey("http://127.0.0.1:7450")],
                "principals": [{"name": "svc-passport", "tenant": "ron", "scopes": ["kms:sign"], "sha256": digest, "key_prefixes": ["ron/issuer/"]}]
            })),
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
        let unix = AuthConfig::new("x", from_json(&unix)).unwrap();
        let unix = unix.issuer.unwrap();
        assert_eq!(unix.events_url, "unix:/run/p/api.sock:/v1/passport/events");
        assert_eq!(config.principals[0].sha256, Some([0xab; 32]));
        assert_eq!(config.principals[0].tenant.to_string(), "ron");
        assert_eq!(
            AuthConfig::new("x", from_json(&json!({}))),
            Ok(AuthConfig::closed("x"))
        );
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let blocks = json!([
            {"name": "A", "scopes": ["kms:everything"], "sha256": "ab"},
            {"name": "b", "uids": ["7"]},
            {"name": "b", "uids": ["8"]},
        ]);
        let section = json!({"issuer": "a", "jwks_url": "ftp://x/", "principals": blocks});
        let faults = AuthConfig::new("x", from_json(&section)).expect_err("six faults");
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let wanted = [
            "auth.note_vkey must be set",
            "auth.jwks_url must be a URL",
            "of A: a name is",
            "of A: sha256",
            "of A: kms:everything",
            "two blocks named b",
        ];
        assert_eq!(texts.len(), wanted.len(), "{texts:?}");
        for (text, wanted) in texts.iter().zip(wanted) {
            assert!(text.contains(wanted), "{text}");
        }
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
            let faults = AuthConfig::new("x", from_json(&section)).expect_err(wanted);
            let named = faults
                .iter()
                .filter(|fault| fault.to_string().contains(wanted));
            assert_eq!(named.count(), 1, "{faults:?}");
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
        assert!(AuthConfig::new("x", from_json(&pinned(&|_| ()))).is_ok());
        check(
            pinned(&|s| s["note_vkey"] = json!([])),
            "auth.note_vkey must be set",
        );
        check(
            pinned(&|s| s["unpinned"] = true.into()),
            "drop one of the two",
        );
        check(
            pinned(&|s| s["note_vkey"] = json!([vkey("b")])),
            "has a key named b/policy, but notes of auth.issuer are signed as a/policy",
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
            json!({"principals": [{"name": "a", "uids": ["7"]}, {"name": "b", "uids": ["8", "7"]}]}),
            "the user id 7",
        );
        check(
            json!({"principals": [{"name": "a", "client_uids": ["7"]}, {"name": "b", "client_uids": ["7"]}]}),
            "of a and b both have the user id 7",
        );
        check(
            json!({"principals": [{"name": "a", "certs": [digest_of("AB")]}, {"name": "b", "certs": [digest_of("ab")]}]}),
            "of a and b both have the certificate abab",
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
            "two blocks named a",
        );
    }
}
