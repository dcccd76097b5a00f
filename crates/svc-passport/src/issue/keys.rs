//! The signing keys as the KMS shows them, kept fresh by one thread, published as one snapshot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_auth::RevocationView;
use ron_auth::jwks::JwksSnapshot;
use ron_client::KmsClient;
use ron_kernel::{Deadline, KernelMetrics, SharedClock, Snapshot, ThreadCtx};
use ron_proto::Kid;
use ron_proto::kms::KeyDoc;
use ron_proto::passport::Jwks;

use crate::metrics::Metrics;
use crate::token::SigningKey;

/// What one look at the KMS gave.
#[derive(Debug, Default)]
pub struct IssuerKeys {
    /// Head versions, by JWS algorithm; empty while only a stored key set is known.
    pub heads: Vec<Head>,
    /// Every published key with its times, oldest first.
    pub validity: Vec<Validity>,
    /// The key set that verifiers fetch.
    pub jwks: Jwks,
    /// The same as the bytes that are served.
    pub jwks_json: Arc<[u8]>,
    /// The same for this service's own verification.
    pub verify: JwksSnapshot,
}

/// A head version.
#[derive(Debug, Clone)]
pub struct Head {
    /// The key.
    pub key: SigningKey,
    /// Signs from then on: published first, used later. `None` for the key that was there at the start.
    pub from: Option<Instant>,
}

/// When a key signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// Its thumbprint.
    pub kid: String,
    /// JWS algorithm.
    pub alg: String,
    /// Made at (unix seconds).
    pub created_s: u64,
    /// Followed by another version at (unix seconds).
    pub superseded_s: Option<u64>,
}

type Report = Box<dyn Fn(Result<Option<&Jwks>, String>) + Send + Sync>;

/// What a keeper works with.
pub struct KeeperParts {
    /// The KMS.
    pub kms: Arc<KmsClient>,
    /// Keys to read, EdDSA first.
    pub keys: Vec<Kid>,
    /// Longest call.
    pub timeout: Duration,
    /// How long a new head waits before it signs.
    pub hold: Duration,
    /// Revoked keys are not published.
    pub view: Arc<Snapshot<RevocationView>>,
    /// Clock.
    pub clock: SharedClock,
    /// Own metrics.
    pub metrics: Metrics,
    /// Common metrics.
    pub km: KernelMetrics,
}

/// Reads and publishes the signing keys.
pub struct KeyKeeper {
    kms: Arc<KmsClient>,
    keys: Vec<Kid>,
    timeout: Duration,
    /// How long a new head waits before it signs.
    hold: Duration,
    view: Arc<Snapshot<RevocationView>>,
    clock: SharedClock,
    published: Snapshot<IssuerKeys>,
    metrics: Metrics,
    km: KernelMetrics,
    /// Told after each look: the reason while the KMS cannot be read, and the set when it changed.
    report: Report,
}

impl std::fmt::Debug for KeyKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyKeeper")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl KeyKeeper {
    /// Starts from the key set that was stored last, so that verification works before the KMS does.
    pub fn new(
        parts: KeeperParts,
        stored: Jwks,
        report: impl Fn(Result<Option<&Jwks>, String>) + Send + Sync + 'static,
    ) -> Self {
        let start = if stored.keys.is_empty() {
            IssuerKeys::default()
        } else {
            let (verify, jwks_json) = compile(&stored).unwrap_or_default();
            IssuerKeys {
                jwks: stored,
                jwks_json,
                verify,
                ..IssuerKeys::default()
            }
        };
        Self {
            kms: parts.kms,
            keys: parts.keys,
            timeout: parts.timeout,
            hold: parts.hold,
            view: parts.view,
            clock: parts.clock,
            published: Snapshot::new(start),
            metrics: parts.metrics,
            km: parts.km,
            report: Box::new(report),
        }
    }

    /// The thread's loop: looks every `every`, and four times a second until the first success.
    pub fn run(&self, ctx: &ThreadCtx, every: Duration) {
        loop {
            self.refresh();
            let pause = if self.published.with(|k| k.heads.is_empty()) {
                Duration::from_millis(250)
            } else {
                every
            };
            if ctx.shutdown.wait(Deadline::within(pause)) {
                return;
            }
        }
    }

    /// Looks now; keeps the last good keys on failure.
    pub fn refresh(&self) {
        let timer = self
            .metrics
            .kms_seconds
            .with_label_values(&["key"])
            .start_timer();
        let looked = self.look();
        timer.observe_duration();
        match looked {
            Ok(new) => {
                let changed = self.published.with(|old| old.jwks != new.jwks);
                let jwks = new.jwks.clone();
                self.published.store(new);
                (self.report)(Ok(changed.then_some(&jwks)));
            }
            Err(why) => {
                self.km.upstream_fail.with_label_values(&["ron-kms"]).inc();
                (self.report)(Err(why));
            }
        }
    }

    /// The head of the key for a JWS algorithm.
    pub fn head(&self, alg: &str) -> Option<Head> {
        self.published
            .with(|k| k.heads.iter().find(|h| h.key.jwk.alg == alg).cloned())
    }

    /// The head of the first key: what is not for one audience is signed with it.
    pub fn any_head(&self) -> Option<SigningKey> {
        self.published
            .with(|k| k.heads.first().map(|h| h.key.clone()))
    }

    /// What was published last.
    pub fn published(&self) -> Arc<IssuerKeys> {
        self.published.load()
    }

    fn look(&self) -> Result<IssuerKeys, String> {
        let old = self.published.load();
        let mut new = IssuerKeys::default();
        for kid in &self.keys {
            let doc = self
                .kms
                .key(kid, Deadline::within(self.timeout))
                .map_err(|e| format!("the KMS cannot be read: {e}"))?;
            let key = head(&doc).ok_or("the KMS shows a key without its head version")?;
            new.heads.push(Head {
                from: self.from(&old, &key),
                key,
            });
            new.validity.extend(validity(&doc));
            let verifying = doc
                .versions
                .into_iter()
                .filter(|v| v.version >= doc.min_verify_version);
            new.jwks.keys.extend(verifying.map(|v| v.jwk));
        }
        let view = self.view.load();
        new.jwks.keys.retain(|jwk| !view.kid_revoked(&jwk.kid));
        (new.verify, new.jwks_json) = compile(&new.jwks)?;
        Ok(new)
    }

    /// A head that takes another's place is published now and signs later, so that verifiers have it by then.
    fn from(&self, old: &IssuerKeys, key: &SigningKey) -> Option<Instant> {
        let before = old.heads.iter().find(|h| h.key.key == key.key)?;
        if before.key.version == key.version {
            before.from
        } else {
            Some(self.clock.now() + self.hold)
        }
    }
}

fn validity(doc: &KeyDoc) -> Vec<Validity> {
    let versions = doc
        .versions
        .iter()
        .filter(|v| v.version >= doc.min_verify_version);
    let of = |v: &ron_proto::kms::KeyVersionDoc| Validity {
        kid: v.jwk.kid.clone(),
        alg: v.jwk.alg.clone(),
        created_s: v.created.0 / 1000,
        superseded_s: doc.version(v.version + 1).map(|next| next.created.0 / 1000),
    };
    versions.map(of).collect()
}

fn head(doc: &KeyDoc) -> Option<SigningKey> {
    let version = doc.head_version()?;
    Some(SigningKey {
        key: doc.key.clone(),
        version: version.version,
        jwk: version.jwk.clone(),
    })
}

fn compile(jwks: &Jwks) -> Result<(JwksSnapshot, Arc<[u8]>), String> {
    let json = serde_json::to_vec(jwks).map_err(|e| e.to_string())?;
    let verify = if jwks.keys.is_empty() {
        JwksSnapshot::default() // every key is revoked: nothing verifies
    } else {
        JwksSnapshot::parse(&json).map_err(|e| e.to_string())?
    };
    Ok((verify, Arc::from(json)))
}
