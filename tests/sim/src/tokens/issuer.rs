//! A stand-in for the issuer: it makes tokens and revokes them, and keeps what it publishes, of now and of before. Written from
//! docs/formats/passport.md; `server.rs` answers with it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ron_crypto::sign::Ed25519Key;
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};
use ron_proto::{Timestamp, b64};
use ron_sim::time;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Ed25519NoteSigner, Note};
use ron_tlog::tree::Frontier;
use serde_json::{Value, json};

use crate::chance::below;

/// How long a key is published before it signs, as `rotation.hold`.
const HOLD: Duration = Duration::from_secs(2);
pub const SUBJECTS: [&str; 3] = ["alice", "bob", "carol"];
/// Life of a token, in seconds, and how much longer verifiers accept it.
const LIFE_S: u64 = 900;
pub const SKEW_S: u64 = 60;

/// What a token may be used for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The wallet issues money by it.
    Issue,
    /// The same, to `user:a` alone.
    Account,
    /// The same, up to 50 at once.
    Ceiling,
    /// Reads of the wallet only.
    ReadOnly,
    /// A token for another service.
    OtherService,
}

/// From when on a token is void.
#[derive(Clone, Copy, Debug)]
pub struct Void {
    pub at: Instant,
    /// The event that says so; a key that leaves the set has none.
    pub event: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub number: usize,
    pub text: String,
    pub kind: Kind,
    /// Unix seconds from which on no verifier accepts it.
    pub ends_s: u64,
    pub void: Option<Void>,
    jti: String,
    subject: &'static str,
    kid: String,
    iat: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    Good,
    Revoked,
    /// Not published any more, nor in the note.
    Gone,
}

struct Key {
    secret: Ed25519Key,
    kid: String,
    published: Instant,
    standing: Standing,
}

/// All that is published after one event.
#[derive(Clone)]
pub struct Published {
    pub jwks: String,
    pub note: String,
    /// Events of the feed.
    pub size: usize,
    pub epoch: u64,
}

pub struct Issuer {
    url: String,
    note_key: Ed25519NoteSigner,
    log_key: Ed25519NoteSigner,
    keys: Vec<Key>,
    pub events: Vec<RevocationEvent>,
    /// The latest is at the end; the number of events grows.
    pub published: Vec<Published>,
    pub tokens: Vec<Token>,
    epoch: u64,
    /// Latest second of issue that is void, with the event.
    subjects: BTreeMap<&'static str, (u64, u64)>,
}

fn signer(name: &str, seed: u8) -> Ed25519NoteSigner {
    Ed25519NoteSigner::new(name, Ed25519Key::from_seed(&[seed; 32])).expect("a good name")
}

fn now_s() -> u64 {
    time::date().as_secs()
}

/// The verifier key of the note, which services pin.
pub fn note_vkey(url: &str) -> String {
    signer(&format!("{url}/policy"), 21).verifier().to_string()
}

impl Issuer {
    pub fn new(url: &str) -> Self {
        let mut issuer = Self {
            url: url.to_owned(),
            note_key: signer(&format!("{url}/policy"), 21),
            log_key: signer(&format!("{url}/revocations"), 22),
            keys: Vec::new(),
            events: Vec::new(),
            published: Vec::new(),
            tokens: Vec::new(),
            epoch: 0,
            subjects: BTreeMap::new(),
        };
        issuer.rotate();
        issuer.rotate();
        issuer
    }

    /// A further key, which signs after the hold.
    pub fn rotate(&mut self) {
        let secret = Ed25519Key::from_seed(&[100 + self.keys.len() as u8; 32]);
        let kid = ron_crypto::jwk::thumbprint_okp(&secret.public());
        self.keys.push(Key {
            secret,
            kid,
            published: time::now(),
            standing: Standing::Good,
        });
        self.announce_keys();
    }

    fn announce_keys(&mut self) {
        let count = self.good().count() as u64;
        self.add(Revoked::Keys { count });
    }

    fn good(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(|k| k.standing == Standing::Good)
    }

    /// The newest key that has been published for long enough.
    fn signing(&self) -> &Key {
        let ready = self.good().filter(|k| k.published + HOLD <= time::now());
        ready.last().or_else(|| self.good().next()).expect("a key")
    }

    /// Appends an event, and publishes what is true with it.
    fn add(&mut self, revoked: Revoked) -> u64 {
        let seq = self.events.len() as u64 + 1;
        self.events.push(RevocationEvent {
            seq,
            ts: Timestamp(time::date().as_millis() as u64),
            revoked,
            salt: Bytes(vec![seq as u8; 16]),
            by: Bytes(vec![7; 32]),
        });
        self.publish();
        seq
    }

    fn publish(&mut self) {
        let jwk = |key: &Key| {
            let x = b64::url(&key.secret.public());
            json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": key.kid, "x": x})
        };
        let jwks = json!({"keys": self.good().map(jwk).collect::<Vec<Value>>()});
        let size = self.events.len();
        let mut text = format!(
            "{0}/policy\nversion {size}\nissuer {0}\nepoch {1}\n",
            self.url, self.epoch
        );
        for key in &self.keys {
            let state = match key.standing {
                Standing::Good => "good",
                Standing::Revoked => "revoked",
                Standing::Gone => continue,
            };
            text += &format!("key {} EdDSA 1 - {state}\n", key.kid);
        }
        text += &format!("revocations {}\n", self.log_key.verifier());
        let note = Note::sign(&text, &[&self.note_key]).expect("a note");
        self.published.push(Published {
            jwks: jwks.to_string(),
            note: note.to_string(),
            size,
            epoch: self.epoch,
        });
    }

    /// A page of these events, with the log's checkpoint over them.
    pub fn page(&self, events: &[RevocationEvent], after: usize, epoch: u64) -> RevocationPage {
        let mut tree = Frontier::new();
        for event in events {
            tree.push(ron_auth::revocation_log::hash(event));
        }
        let head = Checkpoint {
            origin: ron_auth::revocation_log::origin(&self.url),
            size: events.len() as u64,
            root: tree.root(),
        };
        RevocationPage {
            events: events.iter().skip(after).cloned().collect(),
            next: events.len() as u64,
            current_epoch: epoch,
            checkpoint: head.sign(&[&self.log_key]).expect("a checkpoint"),
        }
    }

    /// A new token. `left_s` is how long verifiers accept it, if less than usual.
    pub fn issue(&mut self, kind: Kind, left_s: Option<u64>) {
        let number = self.tokens.len();
        let subject = SUBJECTS[below(3) as usize];
        let now = now_s();
        // It has expired, but for the difference of clocks that verifiers allow.
        let ends_s = left_s.map_or(now + LIFE_S + SKEW_S, |left| now + left);
        let (exp, iat) = (ends_s - SKEW_S, ends_s - SKEW_S - LIFE_S);
        let scope = match kind {
            Kind::ReadOnly => "wallet:read",
            _ => "wallet:read wallet:issue",
        };
        let aud = match kind {
            Kind::OtherService => "ron-ledger",
            _ => "svc-wallet",
        };
        let jti = format!("1.{number:x}.AAAAAAAAAAAAAAAAAAAAAA");
        let mut claims = json!({"iss": self.url, "sub": subject, "aud": aud, "iat": iat, "nbf": iat,
            "exp": exp, "jti": jti, "client_id": "app", "tenant": "default", "scope": scope, "ron_epoch": self.epoch});
        let caveats = match kind {
            Kind::Account => json!([{"type": "ron", "account": "user:a"}]),
            Kind::Ceiling => json!([{"type": "ron", "ceiling.per_op": "50"}]),
            _ => json!([]),
        };
        if caveats != json!([]) {
            claims["authorization_details"] = caveats;
        }
        let key = self.signing();
        let kid = key.kid.clone();
        let header = json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
        let part = |value: &Value| b64::url(value.to_string().as_bytes());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let text = format!("{signed}.{}", b64::url(&key.secret.sign(signed.as_bytes())));
        // An earlier revocation of the subject covers what was issued in its second, too.
        let covered = self
            .subjects
            .get(subject)
            .filter(|(until, _)| iat <= *until);
        let void = covered.map(|(_, event)| Void {
            at: time::now(),
            event: Some(*event),
        });
        self.tokens.push(Token {
            number,
            text,
            kind,
            ends_s,
            void,
            jti,
            subject,
            kid,
            iat,
        });
    }

    fn void(&mut self, event: Option<u64>, is: impl Fn(&Token) -> bool) {
        let at = time::now();
        for token in self.tokens.iter_mut().filter(|token| is(token)) {
            token.void.get_or_insert(Void { at, event });
        }
    }

    pub fn revoke_token(&mut self) {
        let at = below(self.tokens.len() as u64) as usize;
        let token = &self.tokens[at];
        let (jti, until) = (token.jti.clone(), token.ends_s - SKEW_S);
        let event = self.add(Revoked::Jti { jti, until });
        self.void(Some(event), |token| token.number == at);
    }

    pub fn revoke_subject(&mut self) {
        let subject = SUBJECTS[below(3) as usize];
        let until = now_s();
        let event = self.add(Revoked::Subject {
            subject_ref: subject.to_owned(),
            issued_until: until,
        });
        self.subjects.insert(subject, (until, event));
        self.void(Some(event), |t| t.subject == subject && t.iat <= until);
    }

    pub fn raise_epoch(&mut self) {
        self.epoch += 1;
        let epoch = self.epoch;
        let event = self.add(Revoked::Epoch { epoch });
        self.void(Some(event), |_| true);
    }

    pub fn announce_policy(&mut self) {
        let version = self.events.len() as u64;
        self.add(Revoked::Policy { version });
    }

    /// A key that verifiers may know and that is not the only one to sign with; without one there is a further key.
    fn key_to_leave(&mut self) -> Option<usize> {
        let old = |key: &Key| key.standing == Standing::Good && key.published + HOLD <= time::now();
        let old: Vec<usize> = (0..self.keys.len())
            .filter(|at| old(&self.keys[*at]))
            .collect();
        if old.len() < 2 {
            self.rotate();
            return None;
        }
        Some(old[below(old.len() as u64) as usize])
    }

    /// A key is revoked, and leaves the set.
    pub fn revoke_key(&mut self) {
        let Some(at) = self.key_to_leave() else {
            return;
        };
        self.keys[at].standing = Standing::Revoked;
        let kid = self.keys[at].kid.clone();
        let event = self.add(Revoked::Kid { kid: kid.clone() });
        self.void(Some(event), |token| token.kid == kid);
        self.announce_keys();
    }

    /// A key leaves the set, as one that the KMS lets verify no more.
    pub fn withdraw_key(&mut self) {
        let Some(at) = self.key_to_leave() else {
            return;
        };
        self.keys[at].standing = Standing::Gone;
        let kid = self.keys[at].kid.clone();
        self.announce_keys();
        self.void(None, |token| token.kid == kid);
    }
}
