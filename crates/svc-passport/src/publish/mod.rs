//! Signed public documents: status lists and the policy note. One thread signs and caches them on demand: a document
//! is signed again when it is requested and its content has changed or its signature is too old.

mod cleanup;
pub mod holders;
pub mod kept_note;
pub mod note;
pub mod origins;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ron_auth::RevocationView;
use ron_client::{ClientError, KmsClient};
use ron_files::{Dir, FileError};
use ron_http::{Body, Cause, Responder, Response};
use ron_kernel::{Deadline, RankedMutex, Receiver, Recv, SharedClock, Snapshot, ThreadCtx};
use ron_proto::kms::SignRequest;
use ron_proto::passport::{IssuedTokens, StatusBits, StatusListClaims};
use ron_proto::{ContentId, Kid, Problem, b64};
use ron_service::ReadyBoard;
use ron_service::log_host::archive::{ARCHIVE_EVERY, LogArchive};
use ron_tlog::note::{Note, NoteSignature, VerifierKey};

use crate::keys::KeyKeeper;
use crate::lists::{KnownLists, ListRow, bits, list_uri, packed};
use crate::metrics::Metrics;
use crate::names::Names;
use crate::sync::InForce;
use crate::token::SigningKey;
use crate::topology::PUBLISHED;
use crate::trail::{IssuedAsk, Trail};
use cleanup::Cleanup;
use holders::Holders;
use origins::Origins;

/// Validity of a signed list, in seconds; after `LIST_FRESH_S` it is signed again.
const LIST_EXP_S: u64 = 900;
const LIST_FRESH_S: u64 = 450;
/// The list's `ttl` claim: consumers fetch again after this many seconds.
const LIST_TTL_S: u64 = 5;
/// Maximum signed lists in the cache.
const KEPT_MAX: usize = 512;
/// Seconds after which a note is signed again even if it has not changed.
const NOTE_FRESH_S: u64 = 3600;

/// Maximum time for a page of the trail: status lists and notes wait for its end.
const PAGE_TIME: Duration = Duration::from_millis(500);

/// A request to the publishing thread.
#[derive(Debug)]
pub enum PublishEvent {
    Status {
        /// Number of the list.
        list: u64,
        responder: Responder,
    },
    Note(Responder),
    /// The keys that verify the note.
    NoteKey(Responder),
    /// An administrator's request for issued tokens.
    Issued {
        ask: IssuedAsk,
        responder: Responder,
    },
}

#[derive(Clone)]
struct SignedDocument {
    body: Arc<[u8]>,
    /// Hash of the signed content, without its times.
    content: ContentId,
    made_s: u64,
    /// Number of the feed's last event when the content was last computed.
    after: u64,
}

impl SignedDocument {
    /// A note from before the start; signed again as soon as the KMS is available.
    fn before(note: String) -> Self {
        Self {
            content: ContentId::of(note.as_bytes()),
            body: Arc::from(note.into_bytes()),
            made_s: 0,
            after: 0,
        }
    }
}

#[derive(Default)]
struct Cache {
    lists: BTreeMap<u64, SignedDocument>,
    note: Option<(SignedDocument, Vec<VerifierKey>)>,
}

pub struct Publisher {
    pub kms: Arc<KmsClient>,
    pub kms_timeout: Duration,
    pub keys: Arc<KeyKeeper>,
    /// Keys of the note.
    pub note_keys: Vec<Kid>,
    /// Where the last note is kept.
    pub home: Option<Dir>,
    /// `iss` of new tokens is the present one; notes are signed under the first.
    pub names: Arc<Names>,
    /// Base of published URLs.
    pub public_url: String,
    pub view: Arc<Snapshot<RevocationView>>,
    /// Verifier key of the revocation log.
    pub log_key: VerifierKey,
    pub policy: Arc<Snapshot<Option<InForce>>>,
    pub known: Arc<Snapshot<KnownLists>>,
    /// The holders of their tokens.
    pub holders: Arc<Holders>,
    /// What they were exchanged from.
    pub origins: Arc<Origins>,
    pub trail: Arc<Trail>,
    pub clock: SharedClock,
    pub metrics: Metrics,
    /// Degraded while the newest note is refused.
    ready: ReadyBoard,
    kept: RankedMutex<Cache>,
    /// Whether the newest note could not be signed, which was reported.
    unsigned: AtomicBool,
}

/// The parts of a [`Publisher`] except its cache.
pub struct PublisherParts {
    /// The KMS and the longest call to it.
    pub kms: (Arc<KmsClient>, Duration),
    pub keys: Arc<KeyKeeper>,
    /// Keys of the note: one, or two while the second replaces the first.
    pub note_keys: Vec<Kid>,
    /// Directory of the last note; `None` with amnesia on.
    pub home: Option<Dir>,
    /// `iss`, and base of published URLs.
    pub urls: (Arc<Names>, String),
    pub view: Arc<Snapshot<RevocationView>>,
    /// Verifier key of the revocation log.
    pub log_key: VerifierKey,
    pub policy: Arc<Snapshot<Option<InForce>>>,
    pub known: Arc<Snapshot<KnownLists>>,
    /// The holders of their tokens.
    pub holders: Arc<Holders>,
    /// What they were exchanged from.
    pub origins: Arc<Origins>,
    pub trail: Arc<Trail>,
    pub ready: ReadyBoard,
    pub watch: (SharedClock, Metrics),
}

impl Publisher {
    /// Starts with an empty cache, or with the note that an earlier process has stored.
    pub fn new(parts: PublisherParts) -> Self {
        let home = parts.home.as_ref();
        let note = home.and_then(|home| kept_note::load(home, parts.urls.0.first()));
        let note = note.map(|(note, keys)| (SignedDocument::before(note), keys));
        let kept = Cache {
            note,
            ..Cache::default()
        };
        Self {
            kms: parts.kms.0,
            kms_timeout: parts.kms.1,
            keys: parts.keys,
            note_keys: parts.note_keys,
            home: parts.home,
            names: parts.urls.0,
            public_url: parts.urls.1,
            view: parts.view,
            log_key: parts.log_key,
            policy: parts.policy,
            known: parts.known,
            holders: parts.holders,
            origins: parts.origins,
            trail: parts.trail,
            ready: parts.ready,
            clock: parts.watch.0,
            metrics: parts.watch.1,
            kept: RankedMutex::new(&PUBLISHED, kept),
            unsigned: AtomicBool::new(false),
        }
    }

    /// Also archives segments of the log of revocations, between two events.
    pub fn run(
        &self,
        ctx: &ThreadCtx,
        events: &Receiver<PublishEvent>,
        mut archive: Option<LogArchive>,
    ) {
        let records = (
            self.holders.clone(),
            self.origins.clone(),
            self.trail.clone(),
        );
        let errors = self.metrics.io_errors.clone();
        let mut cleanup = Cleanup::new(records, self.clock.clone(), errors);
        loop {
            cleanup.tick();
            let archive = archive.as_mut();
            let pause = archive.map_or(ARCHIVE_EVERY, |archive| archive.step(&ctx.shutdown));
            match events.recv(&ctx.shutdown, Deadline::within(pause)) {
                Recv::Item(event) => self.tick(event),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => {
                    while let Some(event) = events.try_recv() {
                        self.tick(event);
                    }
                    return;
                }
            }
        }
    }

    fn tick(&self, event: PublishEvent) {
        match event {
            PublishEvent::Status { list, responder } => {
                let _scope = responder.enter();
                let answer = self.list(list, responder.deadline()).map(|signed| {
                    Response::bytes(200, "application/statuslist+jwt", Body::from(signed.body))
                        .etag(&signed.content.to_string())
                        .cache("public, max-age=5")
                });
                responder.send(answer);
            }
            PublishEvent::Note(responder) => {
                let _scope = responder.enter();
                let answer = self.note(responder.deadline()).map(|(signed, _)| {
                    Response::text(200, Body::from(signed.body))
                        .etag(&signed.content.to_string())
                        .cache("public, max-age=5")
                });
                responder.send(answer);
            }
            PublishEvent::Issued { ask, responder } => {
                let _scope = responder.enter();
                let page = self.issued(&ask, responder.deadline());
                responder.send(page.map(|page| Response::json(200, &page).cache("no-store")));
            }
            PublishEvent::NoteKey(responder) => {
                let _scope = responder.enter();
                let answer = self.note(responder.deadline()).map(|(_, keys)| {
                    let lines: Vec<String> = keys.iter().map(ToString::to_string).collect();
                    Response::text(200, lines.join("\n") + "\n").cache("public, max-age=60")
                });
                responder.send(answer);
            }
        }
    }

    fn issued(&self, ask: &IssuedAsk, until: Deadline) -> Result<IssuedTokens, Problem> {
        let page = self.trail.page(ask, until.capped(PAGE_TIME)).map_err(|e| {
            tracing::error!(service = "svc-passport", event = "trail_unreadable", why = %e);
            Problem::unavailable("the records of issued tokens cannot be read", 5)
        })?;
        if page.lost > 0 {
            let errors = self.metrics.io_errors.with_label_values(&["trail"]);
            errors.inc_by(page.lost);
            let slots = page.lost;
            tracing::error!(service = "svc-passport", event = "trail_slots_lost", slots);
        }
        Ok(page)
    }

    fn now_s(&self) -> u64 {
        self.clock.unix_ms() / 1000
    }

    fn list(&self, id: u64, until: Deadline) -> Result<SignedDocument, Problem> {
        let row = self.known.load().get(&id).cloned();
        let row = row
            .ok_or_else(|| Problem::not_found("there is no such status list, or it has expired"))?;
        let (view, now_s) = (self.view.load(), self.now_s());
        let kept = self.kept.lock().lists.get(&id).cloned();
        // Signed again at half of its validity, so that consumers never get a list that is about to expire.
        let fresh = |signed: &&SignedDocument| now_s < signed.made_s + LIST_FRESH_S;
        if let Some(signed) = kept.as_ref().filter(fresh)
            && signed.after == view.after()
        {
            return Ok(signed.clone());
        }
        let others = self.void(&row, &view).map_err(|e| {
            tracing::error!(service = "svc-passport", event = "holders_unreadable", why = %e);
            Problem::unavailable("the records of holders and exchanges cannot be read", 5)
        })?;
        let bits = bits(&row, &view, &others);
        let content = ContentId::of(&bits);
        let signed = match kept.filter(|signed| fresh(&signed) && signed.content == content) {
            Some(same) => SignedDocument {
                after: view.after(),
                ..same
            },
            None => SignedDocument {
                body: self.sign_list(&row, &bits, now_s, until)?,
                content,
                made_s: now_s,
                after: view.after(),
            },
        };
        // Locked again only now: no lock is held over the call to the KMS.
        let mut all = self.kept.lock();
        if all.lists.len() >= KEPT_MAX {
            all.lists.pop_first(); // the oldest list, which has the fewest valid tokens
        }
        all.lists.insert(id, signed.clone());
        Ok(signed)
    }

    /// The positions of a list that are void by what was recorded of their tokens.
    fn void(&self, row: &ListRow, view: &RevocationView) -> Result<Vec<u32>, FileError> {
        let of_subjects = self.holders.revoked(row.id, row.opened_s, view)?;
        #[cfg(mutant = "unlisted")] // the tokens of a subject are left out
        let of_subjects = if ron_kernel::mutant("unlisted") {
            Vec::new()
        } else {
            of_subjects
        };
        let of_origins = self.origins.revoked(row.id, view)?;
        Ok([of_subjects, of_origins].concat())
    }

    fn sign_list(
        &self,
        row: &ListRow,
        bits: &[u8],
        now_s: u64,
        until: Deadline,
    ) -> Result<Arc<[u8]>, Problem> {
        let head = self.keys.any_head();
        let key = head.ok_or_else(|| Problem::unavailable("no signing key is known yet", 2))?;
        let claims = StatusListClaims {
            iss: self.names.now.clone(),
            sub: list_uri(self.names.base_of(row.opened_s, &self.public_url), row.id),
            iat: now_s,
            exp: now_s + LIST_EXP_S,
            ttl: LIST_TTL_S,
            status_list: StatusBits {
                bits: 1,
                lst: packed(bits),
            },
        };
        let input = signing_input(&key, &claims)?;
        let request = SignRequest {
            version: Some(key.version),
            scheme: key.scheme(),
            ..SignRequest::message(key.key.clone(), input.as_bytes())
        };
        let signature = match self.sign(&request, until) {
            Err(ClientError::Refused { problem, .. }) if problem.code == "version_not_head" => {
                self.keys.refresh(); // rotated in between: the next request finds the new key
                return Err(Problem::unavailable(
                    "the signing key was rotated just now",
                    1,
                ));
            }
            other => other.map_err(|e| kms_unavailable(&e))?.0,
        };
        Ok(Arc::from(
            format!("{input}.{}", b64::url(&signature)).into_bytes(),
        ))
    }

    /// The note, signed again when its content has changed or is an hour old; the last one while the KMS is unavailable.
    fn note(&self, until: Deadline) -> Result<(SignedDocument, Vec<VerifierKey>), Problem> {
        if self.note_keys.is_empty() {
            return Err(Problem::unavailable(
                "no key for policy notes is configured: set kms.note_key",
                60,
            ));
        }
        let kept = self.kept.lock().note.clone();
        let keys = self.keys.published();
        if keys.heads.is_empty() {
            // Until the KMS has been read, the keys that a note must list are unknown.
            return kept.ok_or_else(|| {
                Problem::unavailable("the signing keys were not read from the KMS yet", 1)
            });
        }
        let policy = self.policy.load();
        let Some(policy) = policy.as_ref() else {
            // The KMS signs no note that names no policy.
            return kept
                .ok_or_else(|| Problem::unavailable("no signed issuer policy was read yet", 1));
        };
        let (view, now_s) = (self.view.load(), self.now_s());
        let text = note::text(
            (&self.names, now_s),
            &self.public_url,
            policy,
            &keys,
            &view,
            &self.log_key,
        );
        let content = ContentId::of(text.as_bytes());
        if let Some((signed, keys)) = &kept
            && signed.content == content
            && now_s < signed.made_s + NOTE_FRESH_S
        {
            return Ok((signed.clone(), keys.clone()));
        }
        match self.sign_note(&text, until) {
            Ok((note, verifiers)) => {
                self.unsigned.store(false, Ordering::Relaxed);
                self.ready.clear("note");
                self.keep(&note, &verifiers);
                let signed = SignedDocument {
                    body: Arc::from(note.to_string().into_bytes()),
                    content,
                    made_s: now_s,
                    after: view.after(),
                };
                self.kept.lock().note = Some((signed.clone(), verifiers.clone()));
                Ok((signed, verifiers))
            }
            Err(unsigned) => {
                let why = unsigned.to_string();
                // Once, and not for each reader: the KMS may be away for long.
                if !self.unsigned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(service = "svc-passport", event = "note_not_signed", %why, kept = kept.is_some());
                }
                if unsigned.is_refused() {
                    self.ready.degrade("note", why);
                }
                kept.ok_or_else(|| unsigned.into())
            }
        }
    }

    /// Stores the note. Called before the note is served: verifiers refuse an older note than they have seen, so a
    /// restart must not fall behind it.
    fn keep(&self, note: &Note, keys: &[VerifierKey]) {
        let Some(home) = &self.home else { return };
        if let Err(e) = kept_note::store(home, note, keys) {
            tracing::error!(service = "svc-passport", event = "note_not_kept", why = %e);
        }
    }

    fn sign_note(&self, text: &str, until: Deadline) -> Result<(Note, Vec<VerifierKey>), Unsigned> {
        let mut note = Note {
            text: text.to_owned(),
            signatures: Vec::new(),
        };
        let mut verifiers = Vec::new();
        for key in &self.note_keys {
            let (signature, verifier) = self.note_signature(key, text, until)?;
            note.signatures.push(signature);
            verifiers.push(verifier);
        }
        if note.verify(&verifiers).map(|signed| signed.len()) != Ok(verifiers.len()) {
            return Err(Unsigned::Broken(
                "the KMS has signed something other than the note",
            ));
        }
        Ok((note, verifiers))
    }

    fn note_signature(
        &self,
        key: &Kid,
        text: &str,
        until: Deadline,
    ) -> Result<(NoteSignature, VerifierKey), Unsigned> {
        let broken = || Unsigned::Broken("the KMS shows no usable key for policy notes");
        let doc = self.kms.key(key, until.capped(self.kms_timeout))?;
        let request = SignRequest {
            version: Some(doc.head),
            ..SignRequest::message(key.clone(), text.as_bytes())
        };
        let (signature, version) = self.sign(&request, until)?;
        let head = doc.head_version().filter(|head| head.version == version);
        let public = head.map(|head| head.public_key.as_slice());
        let public: [u8; 32] = public
            .unwrap_or_default()
            .try_into()
            .map_err(|_| broken())?;
        let name = note::origin(self.names.first());
        let verifier = VerifierKey::ed25519(&name, &public).map_err(|_| broken())?;
        let signature = NoteSignature {
            name,
            key_id: verifier.key_id(),
            signature,
        };
        Ok((signature, verifier))
    }

    fn sign(&self, request: &SignRequest, until: Deadline) -> Result<(Vec<u8>, u32), ClientError> {
        let timer = self
            .metrics
            .kms_seconds
            .with_label_values(&["publish"])
            .start_timer();
        let answer = self.kms.sign(request, until.capped(self.kms_timeout));
        timer.observe_duration();
        let answer = answer.inspect_err(|error| self.metrics.call_failed(error))?;
        let first = answer.signatures.first().ok_or(ClientError::Unknown {
            cause: Cause::Other,
            detail: "the KMS answered without a signature".to_owned(),
        })?;
        Ok((first.signature.as_slice().to_vec(), answer.version))
    }
}

/// Why the note was not signed.
#[derive(Debug, thiserror::Error)]
enum Unsigned {
    #[error("the KMS does not sign the policy note, so the last one is served: {0}")]
    Call(#[from] ClientError),
    #[error("{0}")]
    Broken(&'static str),
}

impl Unsigned {
    /// Whether the next attempt will be refused as well, unless an operator changes something.
    fn is_refused(&self) -> bool {
        match self {
            Self::Call(error) => error
                .status()
                .is_some_and(|status| (400..500).contains(&status) && status != 429),
            Self::Broken(_) => true,
        }
    }
}

impl From<Unsigned> for Problem {
    fn from(unsigned: Unsigned) -> Self {
        match unsigned {
            Unsigned::Call(error) => kms_unavailable(&error),
            Unsigned::Broken(why) => Self::upstream_error(why),
        }
    }
}

fn signing_input(key: &SigningKey, claims: &StatusListClaims) -> Result<String, Problem> {
    let header = serde_json::json!({
        "alg": key.jwk.alg, "kid": key.jwk.kid, "typ": "statuslist+jwt",
    });
    let claims = serde_json::to_vec(claims)
        .map_err(|_| Problem::internal("the status list could not be written"))?;
    let header = header.to_string();
    Ok(format!(
        "{}.{}",
        b64::url(header.as_bytes()),
        b64::url(&claims)
    ))
}

fn kms_unavailable(error: &ClientError) -> Problem {
    tracing::warn!(service = "svc-passport", event = "kms_call_failed", why = %error);
    Problem::unavailable("the KMS does not sign now", 2)
}
