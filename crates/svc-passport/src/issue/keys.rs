//! The signing keys as the KMS shows them, kept fresh by one thread, published as one snapshot.

use std::sync::Arc;
use std::time::Duration;

use ron_auth::jwks::JwksSnapshot;
use ron_client::KmsClient;
use ron_kernel::{Deadline, KernelMetrics, Snapshot, ThreadCtx};
use ron_proto::Kid;
use ron_proto::kms::KeyDoc;
use ron_proto::passport::Jwks;

use crate::metrics::Metrics;
use crate::token::SigningKey;

/// What one look at the KMS gave.
#[derive(Debug, Default)]
pub struct IssuerKeys {
    /// Head versions, by JWS algorithm; empty while only a stored key set is known.
    pub heads: Vec<SigningKey>,
    /// The key set that verifiers fetch.
    pub jwks: Jwks,
    /// The same as the bytes that are served.
    pub jwks_json: Arc<[u8]>,
    /// The same for this service's own verification.
    pub verify: JwksSnapshot,
}

type Report = Box<dyn Fn(Result<Option<&Jwks>, String>) + Send + Sync>;

/// Reads and publishes the signing keys.
pub struct KeyKeeper {
    kms: Arc<KmsClient>,
    keys: Vec<Kid>,
    timeout: Duration,
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
        kms: Arc<KmsClient>,
        keys: Vec<Kid>,
        timeout: Duration,
        stored: Jwks,
        (metrics, km): (Metrics, KernelMetrics),
        report: impl Fn(Result<Option<&Jwks>, String>) + Send + Sync + 'static,
    ) -> Self {
        let (verify, jwks_json) = compile(&stored).unwrap_or_default();
        let start = IssuerKeys {
            heads: Vec::new(),
            jwks: stored,
            jwks_json,
            verify,
        };
        Self {
            kms,
            keys,
            timeout,
            published: Snapshot::new(start),
            metrics,
            km,
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
    pub fn head(&self, alg: &str) -> Option<SigningKey> {
        self.published
            .with(|k| k.heads.iter().find(|h| h.jwk.alg == alg).cloned())
    }

    /// What was published last.
    pub fn published(&self) -> Arc<IssuerKeys> {
        self.published.load()
    }

    fn look(&self) -> Result<IssuerKeys, String> {
        let mut heads = Vec::new();
        let mut jwks = Jwks { keys: Vec::new() };
        for kid in &self.keys {
            let doc = self
                .kms
                .key(kid, Deadline::within(self.timeout))
                .map_err(|e| format!("the KMS cannot be read: {e}"))?;
            heads.push(head(&doc).ok_or("the KMS shows a key without its head version")?);
            let verifying = doc
                .versions
                .into_iter()
                .filter(|v| v.version >= doc.min_verify_version);
            jwks.keys.extend(verifying.filter_map(|v| v.jwk));
        }
        let (verify, jwks_json) = compile(&jwks)?;
        Ok(IssuerKeys {
            heads,
            jwks,
            jwks_json,
            verify,
        })
    }
}

fn head(doc: &KeyDoc) -> Option<SigningKey> {
    let version = doc.head_version()?;
    Some(SigningKey {
        key: doc.key.clone(),
        version: version.version,
        jwk: version.jwk.clone()?,
    })
}

fn compile(jwks: &Jwks) -> Result<(JwksSnapshot, Arc<[u8]>), String> {
    let json = serde_json::to_vec(jwks).map_err(|e| e.to_string())?;
    let verify = JwksSnapshot::parse(&json).map_err(|e| e.to_string())?;
    Ok((verify, Arc::from(json)))
}
