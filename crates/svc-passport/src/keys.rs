//! The issuer's signing keys: read from the KMS by one thread, published as one snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_auth::{Followed, RevocationView};
use ron_auth::{JwksSnapshot, PqRule};
use ron_client::KmsClient;
use ron_kernel::{Deadline, KernelMetrics, SharedClock, Snapshot, ThreadCtx};
use ron_proto::kms::{Jwk, KeyDoc, KeyState, KeyVersionDoc};
use ron_proto::passport::Jwks;
use ron_proto::{Kid, Timestamp};

use crate::metrics::Metrics;
use crate::names::{Names, last_end_s};
use crate::token::{SigningKey, token_jwk};

/// The keys of one read of the KMS.
#[derive(Debug, Default)]
pub struct IssuerKeys {
    /// Head versions; empty while only a stored key set is known.
    pub heads: Vec<Head>,
    /// Versions that are published and do not sign yet.
    pub waiting: Vec<Head>,
    /// Every published key with its validity, oldest first.
    pub validity: Vec<Validity>,
    /// The classical key set that verifiers fetch.
    pub jwks: Jwks,
    /// The same as the bytes that are served.
    pub jwks_json: Arc<[u8]>,
    /// The ML-DSA keys, in a separate set: many clients refuse a whole set because of one key of an unknown kind.
    pub pq_jwks: Jwks,
    /// The same as the bytes that are served.
    pub pq_json: Arc<[u8]>,
    /// Both sets, parsed for this service's own verification.
    pub verify: JwksSnapshot,
    /// The newest version of each key whose last token has expired: the next read begins after it.
    pub expired: BTreeMap<Kid, u32>,
}

/// `kty` of ML-DSA keys.
const AKP: &str = "AKP";

#[derive(Debug, Clone)]
pub struct Head {
    pub key: SigningKey,
    /// When it may sign at the earliest, after it was published. `None` for a key that was the head at the first read, and was published
    /// by an earlier process, if there was one.
    pub from: Option<Instant>,
}

/// The validity of a published key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// RFC 7638 thumbprint of the public key.
    pub kid: String,
    pub alg: String,
    /// Made at (unix seconds).
    pub created_s: u64,
    /// Followed by another version at (unix seconds).
    pub superseded_s: Option<u64>,
}

/// The result of one read, for the report.
#[derive(Debug)]
pub struct KeyRead {
    /// All published keys of both sets; `None` when a read that began later has replaced this one.
    pub published: Option<Jwks>,
    /// Why the configured ML-DSA key cannot sign; `Ok` without one.
    pub pq: Result<(), String>,
}

type Report = Box<dyn Fn(Result<KeyRead, String>) + Send + Sync>;

/// The parts of a [`KeyKeeper`].
pub struct KeeperParts {
    pub kms: Arc<KmsClient>,
    /// Keys to read, EdDSA first.
    pub keys: Vec<Kid>,
    /// Former names of the issuer have keys that are published and sign nothing.
    pub names: Arc<Names>,
    /// The ML-DSA key. If it cannot be read, the others are still used.
    pub pq_key: Option<Kid>,
    pub timeout: Duration,
    /// How long a new head is published before it signs.
    pub hold: Duration,
    /// How long verifiers may keep a key set.
    pub max_age: Duration,
    /// Revocations: revoked keys are not published.
    pub view: Arc<Snapshot<RevocationView>>,
    /// Whether other nodes may announce changes of the keys.
    pub others: bool,
    pub clock: SharedClock,
    pub metrics: Metrics,
    pub km: KernelMetrics,
}

/// How often it is looked whether another node has announced keys.
const POLL: Duration = Duration::from_millis(100);

/// Reads and publishes the signing keys.
pub struct KeyKeeper {
    kms: Arc<KmsClient>,
    keys: Vec<Kid>,
    names: Arc<Names>,
    pq_key: Option<Kid>,
    timeout: Duration,
    /// How long a new head is published before it signs.
    hold: Duration,
    /// How long verifiers may keep a key set.
    max_age: Duration,
    view: Arc<Snapshot<RevocationView>>,
    others: bool,
    clock: SharedClock,
    /// Refreshed by the key thread, and by signing threads and the publisher after a rotation.
    published: Followed<(), IssuerKeys>,
    metrics: Metrics,
    km: KernelMetrics,
    /// Called after each read with its result.
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
        report: impl Fn(Result<KeyRead, String>) + Send + Sync + 'static,
    ) -> Self {
        let mut start = IssuerKeys::default();
        if !stored.keys.is_empty() {
            start.publish(stored.keys).unwrap_or_default();
        }
        let published = Followed::default();
        published.finish(&published.begin(()), start);
        Self {
            kms: parts.kms,
            keys: parts.keys,
            names: parts.names,
            pq_key: parts.pq_key,
            timeout: parts.timeout,
            hold: parts.hold,
            max_age: parts.max_age,
            view: parts.view,
            others: parts.others,
            clock: parts.clock,
            published,
            metrics: parts.metrics,
            km: parts.km,
            report: Box::new(report),
        }
    }

    /// The thread's loop: reads the keys every `every`, and four times a second until the first success. `then` runs after
    /// each read and may return an earlier time for the next one.
    pub fn run(
        &self,
        ctx: &ThreadCtx,
        every: Duration,
        then: impl Fn(&ThreadCtx) -> Option<Duration>,
    ) {
        loop {
            let announced = self.key_changes();
            self.refresh();
            let sooner = then(ctx);
            let pause = if self.published().heads.is_empty() {
                Duration::from_millis(250)
            } else {
                sooner.map_or(every, |pause| pause.min(every))
            };
            if self.wait(ctx, Deadline::within(pause), announced) {
                return;
            }
        }
    }

    fn key_changes(&self) -> u64 {
        self.view.with(RevocationView::key_changes)
    }

    /// Waits, until another node has announced keys that this one has not read yet. True at a shutdown.
    fn wait(&self, ctx: &ThreadCtx, until: Deadline, announced: u64) -> bool {
        loop {
            let step = if self.others {
                until.capped(POLL)
            } else {
                until
            };
            if ctx.shutdown.wait(step) {
                return true;
            }
            if until.expired() || self.key_changes() != announced {
                return false;
            }
        }
    }

    /// Reads the keys now; keeps the last good keys on failure. A read that began earlier never replaces the result of
    /// one that began later.
    pub fn refresh(&self) {
        let timer = self
            .metrics
            .kms_seconds
            .with_label_values(&["key"])
            .start_timer();
        // Numbered before the call, so that a slow read cannot replace the result of a later one.
        let reading = self.published.begin(());
        let read = self.read_keys();
        timer.observe_duration();
        match read {
            Ok((new, pq)) => {
                let all = new.all();
                let newest = self.published.finish(&reading, new);
                let published = newest.then_some(all);
                (self.report)(Ok(KeyRead { published, pq }));
            }
            Err(why) => {
                self.km.upstream_fail.with_label_values(&["ron-kms"]).inc();
                (self.report)(Err(why));
            }
        }
    }

    /// The head of the key for a JWS algorithm.
    pub fn head(&self, alg: &str) -> Option<Head> {
        let keys = self.published();
        keys.heads.iter().find(|h| h.key.jwk.alg == alg).cloned()
    }

    /// Whether the ML-DSA key can sign.
    pub fn pq_ready(&self) -> bool {
        self.published().heads.iter().any(|h| h.key.jwk.kty == AKP)
    }

    /// The head of the first key, which signs status lists.
    pub fn any_head(&self) -> Option<SigningKey> {
        self.published().heads.first().map(|h| h.key.clone())
    }

    /// The keys that were published last.
    pub fn published(&self) -> Arc<IssuerKeys> {
        self.published.of(|()| true).unwrap_or_default()
    }

    fn read_keys(&self) -> Result<(IssuerKeys, Result<(), String>), String> {
        let old = self.published();
        let mut new = IssuerKeys::default();
        let mut published = Vec::new();
        for kid in &self.keys {
            self.read_key(kid, &old, (&mut new, &mut published))?;
        }
        let mut pq = Ok(());
        if let Some(kid) = &self.pq_key {
            pq = self.read_key(kid, &old, (&mut new, &mut published));
            if pq.is_err() && published.iter().all(|jwk: &Jwk| jwk.kty != AKP) {
                // The key could not be read; tokens signed with it must still verify.
                published.extend(old.pq_jwks.keys.iter().cloned());
            }
        }
        for former in self.names.ending(self.clock.unix_ms() / 1000) {
            for kid in &former.keys {
                self.read_former(kid, former.moved_s(), (&mut new, &mut published))?;
            }
        }
        let view = self.view.load();
        // A revoked key is removed from the sets, so that verifiers that follow no feed refuse its tokens too.
        published.retain(|jwk| !view.kid_revoked(&jwk.kid));
        new.publish(published)?;
        Ok((new, pq))
    }

    /// Reads one key: adds its head, if it can sign, and its published versions.
    fn read_key(
        &self,
        kid: &Kid,
        old: &IssuerKeys,
        (new, published): (&mut IssuerKeys, &mut Vec<Jwk>),
    ) -> Result<(), String> {
        let doc = self
            .kms
            .key(kid, Deadline::within(self.timeout))
            .map_err(|e| format!("the KMS cannot be read: {e}"))?;
        let key = signing(&doc, doc.head).ok_or("the KMS shows a key without its head version")?;
        let retired = (doc.state != KeyState::Active && key.jwk.kty == AKP)
            .then(|| format!("the KMS key {kid} is {}", doc.state.as_str()));
        if retired.is_none() {
            new.heads.push(Head {
                from: self.from(old, &key),
                key,
            });
        }
        new.waiting.extend(self.waiting(old, &doc));
        let expired = old.expired.get(kid).copied().unwrap_or(0);
        let after = expired.max(doc.min_verify_version.saturating_sub(1));
        let versions = self
            .kms
            .versions_above(kid, after, self.timeout)
            .map_err(|e| format!("the KMS cannot be read: {e}"))?;
        let head = (doc.head, doc.head_since.unwrap_or_default());
        let read = verifying(&versions, head, self.clock.unix_ms() / 1000);
        new.expired
            .insert(kid.clone(), read.expired.unwrap_or(expired));
        for (validity, jwk) in read.live {
            new.validity.push(validity);
            published.push(jwk);
        }
        retired.map_or(Ok(()), Err)
    }

    /// Reads a key of a former name: adds its versions until the last token of each has expired.
    fn read_former(
        &self,
        kid: &Kid,
        moved_s: u64,
        (new, published): (&mut IssuerKeys, &mut Vec<Jwk>),
    ) -> Result<(), String> {
        let versions = match self.kms.versions_above(kid, 0, self.timeout) {
            // It was destroyed: its tokens are void.
            Err(e) if e.status() == Some(404) => return Ok(()),
            read => read.map_err(|e| format!("the KMS cannot be read: {e}"))?,
        };
        let newest = versions.last().map_or(0, |version| version.version);
        let now_s = self.clock.unix_ms() / 1000;
        for (mut validity, jwk) in verifying(&versions, (newest, Timestamp(0)), now_s).live {
            let end = validity.superseded_s.map_or(moved_s, |at| at.min(moved_s));
            validity.superseded_s = Some(end);
            if validity.end_s().is_some_and(|end| now_s < end) {
                new.validity.push(validity);
                published.push(jwk);
            }
        }
        Ok(())
    }

    /// When a head may sign. A new head is published first and signs after `hold`, so that verifiers have it by then. One that has
    /// waited in the KMS was published then.
    fn from(&self, old: &IssuerKeys, key: &SigningKey) -> Option<Instant> {
        let hold = Some(self.clock.now() + self.hold);
        let before = old.heads.iter().find(|h| h.key.key == key.key);
        let waited = || old.waiting.iter().find(|h| h.key == *key);
        match before {
            Some(before) if before.key.version == key.version => before.from,
            Some(_) => waited().map_or(hold, |waited| waited.from),
            // The first read in this process, of a head that the last process may have published, or not.
            None if self.unknown_to_verifiers(old, &key.jwk.kid) => {
                warn_late(key, 0);
                hold
            }
            None => None,
        }
    }

    /// Whether verifiers have read key sets of this issuer, and none with this key. A revoked key is in none, and signs nothing.
    fn unknown_to_verifiers(&self, old: &IssuerKeys, kid: &str) -> bool {
        let known = old.all().keys;
        !known.is_empty()
            && known.iter().all(|jwk| jwk.kid != kid)
            && !self.view.with(|view| view.kid_revoked(kid))
    }

    /// The version of a key that is published and does not sign yet.
    fn waiting(&self, old: &IssuerKeys, doc: &KeyDoc) -> Option<Head> {
        let waiting = doc.waiting.as_ref()?;
        let key = signing(doc, waiting.version)?;
        if let Some(known) = old.waiting.iter().find(|h| h.key == key) {
            return Some(known.clone());
        }
        if self.is_late(old, &key, waiting.signs_from) {
            let now_ms = self.clock.unix_ms();
            warn_late(&key, waiting.signs_from.0.saturating_sub(now_ms));
        }
        Some(Head {
            key,
            from: Some(self.clock.now() + self.hold),
        })
    }

    /// Whether verifiers may lack a version when it begins to sign. One that an earlier process has published is not late.
    fn is_late(&self, old: &IssuerKeys, key: &SigningKey, signs_from: Timestamp) -> bool {
        let ahead_ms = signs_from.0.saturating_sub(self.clock.unix_ms());
        let published = old.all().keys.iter().any(|jwk| jwk.kid == key.jwk.kid);
        !published && u128::from(ahead_ms) < self.max_age.as_millis()
    }
}

/// Warns of a key that signs before all verifiers have it.
fn warn_late(key: &SigningKey, ahead_ms: u64) {
    tracing::warn!(
        service = "svc-passport",
        event = "key_published_late",
        kid = key.jwk.kid,
        ahead_ms,
        "verifiers may keep a key set for jwks.max_age, and will refuse tokens of this key until they read it again: \
         rotation.prepublish of ron-kms has to be longer, and the issuer has to run meanwhile"
    );
}

impl Validity {
    /// When its last token has expired (unix seconds), counted from its successor: the KMS signs only with the newest
    /// version.
    pub fn end_s(&self) -> Option<u64> {
        self.superseded_s.map(last_end_s)
    }
}

/// The versions of a key, by whether a token that they signed may still be valid.
#[derive(Debug, Default)]
struct Verifying {
    live: Vec<(Validity, Jwk)>,
    /// The newest version whose last token has expired.
    expired: Option<u32>,
}

/// When a version was superseded as the head (unix seconds), or at most when: the KMS says since when the head signs, and not when the
/// versions before it did. Each of them was the head before the one after the next was made.
fn superseded_s(
    versions: &[KeyVersionDoc],
    at: usize,
    (head, head_since): (u32, Timestamp),
) -> Option<u64> {
    let next = versions.get(at + 1).filter(|next| next.version <= head)?;
    let since = match versions.get(at + 2) {
        Some(later) if next.version < head => later.created,
        _ => next.created.max(head_since),
    };
    Some(since.0 / 1000)
}

/// The versions to publish: each until its last token has expired, and the one that waits. `head` is the version that signs, and since
/// when, if not since it was made.
fn verifying(versions: &[KeyVersionDoc], head: (u32, Timestamp), now_s: u64) -> Verifying {
    let mut read = Verifying::default();
    for (at, version) in versions.iter().enumerate() {
        let Some(jwk) = token_jwk(version) else {
            continue;
        };
        let validity = Validity {
            kid: jwk.kid.clone(),
            alg: jwk.alg.clone(),
            created_s: version.created.0 / 1000,
            superseded_s: superseded_s(versions, at, head),
        };
        let counts = validity.end_s().is_none_or(|end| now_s < end);
        #[cfg(mutant = "superseded")] // a key leaves the set with its last signature
        let counts =
            counts && !(ron_kernel::mutant("superseded") && validity.superseded_s.is_some());
        if counts {
            read.live.push((validity, jwk));
        } else {
            read.expired = Some(version.version);
        }
    }
    read
}

fn signing(doc: &KeyDoc, number: u32) -> Option<SigningKey> {
    let version = doc.versions.iter().find(|v| v.version == number)?;
    Some(SigningKey {
        key: doc.key.clone(),
        version: version.version,
        jwk: token_jwk(version)?,
    })
}

impl IssuerKeys {
    /// Splits the keys into the two sets, serialises them and parses them for verification.
    fn publish(&mut self, keys: Vec<Jwk>) -> Result<(), String> {
        let (pq, classical) = keys.into_iter().partition(|jwk| jwk.kty == AKP);
        (self.jwks, self.pq_jwks) = (Jwks { keys: classical }, Jwks { keys: pq });
        let bytes = |jwks: &Jwks| serde_json::to_vec(jwks).map_err(|e| e.to_string());
        let (json, pq_json) = (bytes(&self.jwks)?, bytes(&self.pq_jwks)?);
        let classical = if self.jwks.keys.is_empty() {
            JwksSnapshot::default() // every key is revoked: no token verifies
        } else {
            JwksSnapshot::parse(&json).map_err(|e| e.to_string())?
        };
        // The issuer knows all of its keys, so every signature of a hybrid token must verify.
        let verify = classical.with_pq(&pq_json, PqRule::And);
        self.verify = verify.map_err(|e| e.to_string())?;
        (self.jwks_json, self.pq_json) = (Arc::from(json), Arc::from(pq_json));
        Ok(())
    }

    /// Both sets in one, for the store.
    fn all(&self) -> Jwks {
        let keys = self.jwks.keys.iter().chain(&self.pq_jwks.keys);
        Jwks {
            keys: keys.cloned().collect(),
        }
    }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
