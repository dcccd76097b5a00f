//! An issuer of passports for unit tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_auth::{
    AuthConfig, AuthSettings, Fetch, FetchError, HeldPassport, PqRule, RonAuthorizer,
    revocation_log,
};
use ron_crypto::sign::Ed25519Key;
use ron_http::Credential;
use ron_kernel::{Clock as _, Deadline, ManualClock, OsRandom, Registry, Snapshot};
use ron_proto::b64;
use ron_proto::passport::RevocationPage;
use ron_service::{Config, ServiceSettings as _};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::Ed25519NoteSigner;
use ron_tlog::tree::Frontier;
use serde_json::json;

use crate::sessions::Sessions;
use crate::settings::{Settings, TABLE};

const NAME: &str = "http://issuer:1";
const NOW_S: u64 = 1_800_000_000;

/// Publishes one key, and that nothing is revoked.
struct Publication {
    jwks: String,
}

impl Fetch for Publication {
    fn get(&self, url: &str, _: &Credential, _: Deadline) -> Result<Vec<u8>, FetchError> {
        if url.ends_with("/jwks.json") {
            return Ok(self.jwks.clone().into_bytes());
        }
        let head = Checkpoint {
            origin: revocation_log::origin(NAME),
            size: 0,
            root: Frontier::new().root(),
        };
        let key = Ed25519Key::from_seed(&[9; 32]);
        let signer = Ed25519NoteSigner::new(&head.origin, key).expect("a name");
        let page = RevocationPage {
            events: Vec::new(),
            next: 0,
            current_epoch: 0,
            checkpoint: head.sign(&[&signer]).expect("signed"),
        };
        Ok(serde_json::to_vec(&page).expect("JSON"))
    }

    fn close(&self) {}
}

pub struct TestIssuer {
    pub passports: Arc<RonAuthorizer>,
    pub clock: Arc<ManualClock>,
    key: Ed25519Key,
}

impl TestIssuer {
    pub fn new() -> Self {
        let key = Ed25519Key::from_seed(&[3; 32]);
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": "k1",
            "x": b64::url(&key.public())});
        let config = AuthConfig::new(
            "svc-admin",
            AuthSettings {
                issuer: Some(NAME.to_owned()),
                jwks_url: Some(format!("{NAME}/jwks.json")),
                pq_jwks_url: None,
                pq: PqRule::default(),
                note_url: None,
                note_keys: Vec::new(),
                unpinned: true,
                token_file: None,
                refresh_interval: Duration::from_secs(60),
                region: None,
                principals: Vec::new(),
                insecure_loopback: false,
            },
        );
        let publication = Arc::new(Publication {
            jwks: json!({"keys": [jwk]}).to_string(),
        });
        let clock = ManualClock::at(NOW_S * 1000);
        let registry = Registry::new("t");
        let config = config.expect("valid");
        let passports =
            RonAuthorizer::with_fetch(config, &registry, clock.clone(), publication, None);
        let passports = passports.expect("an authorizer");
        let read = passports.refresh_keys_once().expect("an issuer");
        read.expect("its keys");
        let read = passports.read_feed_once(0).expect("an issuer");
        read.expect("its revocations");
        Self {
            passports,
            clock,
            key,
        }
    }

    pub fn sessions(&self, settings: Arc<Snapshot<Settings>>) -> Sessions {
        Sessions::new(settings, self.clock.clone(), Arc::new(OsRandom))
    }

    /// A passport that this client holds for this subject, issued now.
    pub fn held(&self, subject: &str, client: &str) -> HeldPassport {
        let now_s = self.clock.unix_ms() / 1000;
        let jti = b64::url(&OsRandom.bytes::<16>());
        let claims = json!({"iss": NAME, "sub": subject, "aud": "svc-admin", "iat": now_s, "nbf": now_s,
            "exp": now_s + 900, "jti": jti, "client_id": client, "tenant": "default", "scope": "admin:view",
            "ron_epoch": 0});
        let header = json!({"alg": "EdDSA", "kid": "k1", "typ": "at+jwt"});
        let signed = [header, claims].map(|part| b64::url(part.to_string().as_bytes()));
        let signed = signed.join(".");
        let signature = b64::url(&self.key.sign(signed.as_bytes()));
        let held = self.passports.hold(&format!("{signed}.{signature}"));
        held.expect("a good passport")
    }
}

/// The settings of a configuration.
pub fn settings(text: &str) -> Arc<Snapshot<Settings>> {
    let config = Config::from_toml(&TABLE, Path::new("t.toml"), text).expect("valid");
    Arc::new(Snapshot::new(
        Settings::from_config(&config).expect("valid"),
    ))
}
