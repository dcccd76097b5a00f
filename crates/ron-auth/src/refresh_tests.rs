//! Keys are trusted only as far as the policy note vouches for them: against an issuer whose
//! documents the test writes.

use std::path::Path;

use ron_crypto::sign::Ed25519Key;
use ron_files::Dir;
use ron_http::Credential;
use ron_kernel::{LockSpec, ManualClock, RankedMutex, SharedClock};
use ron_proto::Timestamp;
use ron_proto::b64;
use ron_proto::kms::Bytes;
use ron_proto::passport::{RevocationEvent, RevocationPage, Revoked};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::{Ed25519NoteSigner, Note, NoteSigner};
use ron_tlog::tree::Frontier;
use serde_json::{Value, json};

use super::*;
use crate::authorizer::RonAuthorizer;
use crate::revocation_log;
use crate::settings::{AuthConfig, from_json};

const ISSUER: &str = "http://issuer:1";
/// Seed of the key of the revocation log.
const LOG_KEY: u8 = 50;
static LOCK: LockSpec = LockSpec {
    name: "test",
    rank: 1,
    guards: "the fake issuer",
};

/// The answers on the issuer's port; `None` means no answer.
#[derive(Clone, Default)]
struct Served {
    jwks: Value,
    note: Option<String>,
    /// Number of the feed's last event; all events say that the policy changed.
    events: u64,
    /// The first policy version that the events name.
    first: u64,
    /// Seed of the key that signs the log's checkpoint.
    log_key: u8,
}

struct Port(RankedMutex<Served>);

impl Fetch for Port {
    fn get(&self, url: &str, _: &Credential, _: Deadline) -> Result<Vec<u8>, FetchError> {
        let served = self.0.lock().clone();
        if url.ends_with("/jwks.json") {
            return Ok(served.jwks.to_string().into_bytes());
        }
        if url.ends_with("/v1/passport/policy") {
            let note = served.note.map(String::into_bytes);
            return note.ok_or(FetchError::Failed("status 404".into()));
        }
        let after: usize = url.split(['=', '&']).nth(1).unwrap().parse().unwrap();
        let event = |seq: u64| RevocationEvent {
            seq,
            ts: Timestamp(0),
            revoked: Revoked::Policy {
                version: served.first + seq,
            },
            salt: Bytes::default(),
            by: Bytes::default(),
        };
        let events: Vec<RevocationEvent> = (1..=served.events).map(event).collect();
        let mut tree = Frontier::new();
        for event in &events {
            tree.push(revocation_log::hash(event));
        }
        let head = Checkpoint {
            origin: revocation_log::origin(ISSUER),
            size: served.events,
            root: tree.root(),
        };
        let page = RevocationPage {
            next: served.events,
            events: events.into_iter().skip(after).collect(),
            current_epoch: 1,
            checkpoint: head.sign(&[&log_key(served.log_key)]).unwrap(),
        };
        Ok(serde_json::to_vec(&page).unwrap())
    }
    fn close(&self) {}
}

fn note_key(seed: u8) -> Ed25519NoteSigner {
    let name = crate::policy_note::origin(ISSUER);
    Ed25519NoteSigner::new(&name, Ed25519Key::from_seed(&[seed; 32])).unwrap()
}

fn log_key(seed: u8) -> Ed25519NoteSigner {
    let name = revocation_log::origin(ISSUER);
    Ed25519NoteSigner::new(&name, Ed25519Key::from_seed(&[seed; 32])).unwrap()
}

fn key(seed: u8) -> (String, Value) {
    let x = Ed25519Key::from_seed(&[seed; 32]).public();
    let kid = ron_crypto::jwk::thumbprint_okp(&x);
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": b64::url(&x)});
    (kid, jwk)
}

fn jwks(seeds: &[u8]) -> Value {
    let keys: Vec<Value> = seeds.iter().map(|seed| key(*seed).1).collect();
    json!({ "keys": keys })
}

/// A note about these keys, signed by these note keys.
fn note(version: u64, seeds: &[u8], signers: &[u8]) -> String {
    let listed = |seed: &u8| format!("key {} EdDSA 10 - good", key(*seed).0);
    let keys: Vec<String> = seeds.iter().map(listed).collect();
    let text = format!(
        "{ISSUER}/policy\nversion {version}\nissuer {ISSUER}\nrevocations {}\n{}\n",
        log_key(LOG_KEY).verifier(),
        keys.join("\n")
    );
    let keys: Vec<Ed25519NoteSigner> = signers.iter().map(|seed| note_key(*seed)).collect();
    let signers: Vec<&dyn NoteSigner> = keys.iter().map(|key| key as &dyn NoteSigner).collect();
    Note::sign(&text, &signers).unwrap().to_string()
}

impl RonAuthorizer {
    /// A reload of the settings in this JSON; see [`from_json`].
    pub(crate) fn reload_json(&self, section: &Value) -> Result<(), String> {
        let old = self.config();
        let mut settings = from_json(section);
        settings.insecure_loopback = old.insecure_loopback;
        let new =
            AuthConfig::new(&old.audience, settings).map_err(|faults| format!("{faults:?}"))?;
        self.reload(new)
    }
}

fn section(pins: &[u8]) -> Value {
    let lines: Vec<String> = pins
        .iter()
        .map(|seed| note_key(*seed).verifier().to_string())
        .collect();
    json!({"issuer": ISSUER, "jwks_url": "http://issuer:1/jwks.json", "note_vkey": lines})
}

struct Rig {
    auth: Arc<RonAuthorizer>,
    port: Arc<Port>,
    registry: Registry,
}

/// A service that pins note key 100.
fn rig(dir: Option<&Path>) -> Rig {
    let registry = Registry::new("t");
    let clock: SharedClock = ManualClock::at(1_000_000_000);
    let port = Arc::new(Port(RankedMutex::new(&LOCK, Served::default())));
    let config = AuthConfig::new("svc-wallet", from_json(&section(&[100]))).unwrap();
    let auth = RonAuthorizer::with_fetch(config, &registry, clock, port.clone(), dir.map(Dir::os))
        .unwrap();
    Rig {
        auth,
        port,
        registry,
    }
}

impl Rig {
    fn serve(&self, keys: &[u8], note: Option<String>, events: u64) {
        *self.port.0.lock() = Served {
            jwks: jwks(keys),
            note,
            events,
            first: 0,
            log_key: LOG_KEY,
        };
    }

    /// Serves another history of the log with as many events.
    fn fork(&self) {
        self.port.0.lock().first += 1;
    }

    fn feed(&self) -> Result<(), String> {
        self.auth.read_feed_once(0).unwrap()
    }

    fn alarmed(&self, reason: &str, why: &str) {
        let error = self.feed().expect_err(why);
        assert!(error.contains(why), "{error}");
        let told = self.auth.degraded().unwrap_or_default();
        assert!(
            told.contains("known revocations stay in force") && told.contains(why),
            "{told}"
        );
        let counted = format!("t_auth_revocation_log_alarms_total{{reason=\"{reason}\"}} ");
        let text = self.registry.render();
        let line = text.lines().find_map(|line| line.strip_prefix(&counted));
        assert_ne!(line, Some("0"), "{counted}");
    }

    fn read(&self) -> Result<(), String> {
        self.auth.refresh_keys_once().unwrap().map(drop)
    }

    fn believes(&self, seed: u8) -> bool {
        self.auth.keys_now().find(&key(seed).0).is_some()
    }

    fn refused(&self, why: &str) {
        let error = self.read().expect_err(why);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn another_program_on_the_issuers_port_is_not_believed() {
    let rig = rig(None);
    rig.serve(&[9], None, 0);
    rig.refused("the policy note cannot be read: status 404");
    rig.serve(&[9], Some(note(1, &[9], &[200])), 0);
    rig.refused("signed by no key of auth.note_vkey");
    let told = rig.auth.degraded().unwrap();
    assert!(
        told.contains("passports get 503") && told.contains("auth.note_vkey"),
        "{told}"
    );
    rig.serve(&[1], Some(note(1, &[1], &[100])), 0);
    rig.read().unwrap();
    assert!(rig.believes(1));

    // The genuine note, which anybody can fetch and serve, beside the attacker's keys.
    let public = Some(note(1, &[1], &[100]));
    rig.serve(&[9], public.clone(), 0);
    rig.refused("1 keys of the key set are not in the policy note");
    assert!(rig.believes(1) && !rig.believes(9), "the last good ones");
    rig.serve(&[1, 9], public, 0);
    rig.refused("1 keys of the key set are not in the policy note");
    assert!(rig.believes(1) && !rig.believes(9));
    let told = rig.auth.degraded().unwrap_or_default();
    assert_eq!(
        told,
        "the issuer's revocations have not been read yet; passports get 503"
    );
    let counted = "t_auth_keys_ignored_total{reason=\"unlisted\"} 2";
    assert!(rig.registry.render().contains(counted));
}

#[test]
fn an_older_note_is_refused_also_after_a_restart_until_it_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let first = rig(Some(dir.path()));
    first.serve(&[1, 2], Some(note(7, &[1, 2], &[100])), 7);
    first.read().unwrap();
    first.serve(&[1], Some(note(6, &[1], &[100])), 7);
    first.refused("has version 6, older than 7");
    assert!(first.believes(2), "the last good ones");
    let again = rig(Some(dir.path()));
    again.serve(&[1], Some(note(6, &[1], &[100])), 7);
    again.refused("has version 6, older than 7");
    assert!(!again.believes(1));
    again.serve(&[1], Some(note(7, &[1], &[100])), 7);
    again.read().unwrap();

    crate::write_seen(&Dir::os(dir.path()), &crate::AllSeen::new()).unwrap();
    again.serve(&[1], Some(note(2, &[1], &[100])), 2);
    again.refused("has version 2, older than 7");
    again.auth.reload_json(&section(&[100])).unwrap();
    again.read().unwrap();
    assert_eq!(
        crate::read_seen(&Dir::os(dir.path())).unwrap()[ISSUER].note,
        2
    );
}

/// A read that begins later may be answered earlier, and arrive last.
#[test]
fn keys_of_an_older_note_do_not_replace_those_of_a_newer_one() {
    let rig = rig(None);
    let issuer = rig.auth.config().issuer.clone().unwrap();
    let read = || rig.auth.read_keys(&issuer).unwrap().0;
    let [first, second] = [0, 1].map(|_| rig.auth.keys.begin(issuer.clone()));
    rig.serve(&[1, 2], Some(note(7, &[1, 2], &[100])), 7);
    let older = read();
    rig.serve(&[1], Some(note(8, &[1], &[100])), 8);
    let newer = read();
    let finish = |reading, keys: crate::JwksSnapshot| {
        rig.auth.keys.finish_version(reading, keys.note(), keys)
    };
    assert!(finish(&first, newer));
    assert!(!finish(&second, older), "its note is older");
    assert!(rig.believes(1) && !rig.believes(2));
    // What was answered later counts, though its read began earlier.
    rig.serve(&[1, 3], Some(note(9, &[1, 3], &[100])), 9);
    assert!(finish(&first, read()));
    assert!(rig.believes(3));
}

#[test]
fn what_cannot_be_remembered_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(Some(dir.path()));
    dir.close().unwrap();
    rig.serve(&[1], Some(note(7, &[1], &[100])), 7);
    rig.refused("cannot be written");
    assert!(!rig.believes(1));
}

#[test]
fn a_feed_that_ends_before_the_note_hides_revocations() {
    let rig = rig(None);
    rig.serve(&[1], Some(note(7, &[1], &[100])), 0);
    rig.read().unwrap();
    let error = rig.auth.read_feed_once(0).unwrap().unwrap_err();
    assert!(error.contains("ends at event 0"), "{error}");
    assert!(!rig.auth.revoked_now().synced());
    rig.serve(&[1], Some(note(7, &[1], &[100])), 9);
    rig.auth.read_feed_once(0).unwrap().unwrap();
    assert!(rig.auth.revoked_now().synced());
    assert_eq!(rig.auth.degraded(), None);
}

#[test]
fn a_log_that_was_rolled_back_changed_or_signed_by_another_key_is_an_alarm() {
    let dir = tempfile::tempdir().unwrap();
    let first = rig(Some(dir.path()));
    first.serve(&[1], Some(note(3, &[1], &[100])), 5);
    first.feed().unwrap();
    first.read().unwrap();
    assert_eq!(first.auth.degraded(), None);
    // What was seen stays known over a restart.
    let again = rig(Some(dir.path()));
    again.serve(&[1], Some(note(3, &[1], &[100])), 4);
    again.read().unwrap();
    for rig in [&first, &again] {
        rig.serve(&[1], Some(note(3, &[1], &[100])), 4);
        rig.alarmed("rolled_back", "ends at event 4, but event 5 was seen");
        rig.serve(&[1], Some(note(3, &[1], &[100])), 5);
        rig.fork();
        rig.alarmed("forked", "other events than before among the first 5");
        rig.serve(&[1], Some(note(3, &[1], &[100])), 7);
        rig.fork();
        rig.alarmed("forked", "other events than before among the first 5");
        rig.serve(&[1], Some(note(3, &[1], &[100])), 6);
        rig.port.0.lock().log_key = 51;
        rig.alarmed("unsigned", "not signed by the key");
    }
    let synced = |rig: &Rig| rig.auth.revoked_now().synced();
    assert!(
        synced(&first) && !synced(&again),
        "the last good view, or none"
    );
    let version = |rig: &Rig| rig.auth.revoked_now().policy_version();
    assert_eq!(
        version(&first),
        8,
        "events of the other histories count too"
    );

    again.serve(&[1], Some(note(3, &[1], &[100])), 6);
    again.feed().unwrap();
    assert_eq!(again.auth.degraded(), None);
    assert!(synced(&again));
    // The running one was told by the operator that a shorter log is the right one.
    first.serve(&[1], Some(note(2, &[1], &[100])), 2);
    crate::write_seen(&Dir::os(dir.path()), &crate::AllSeen::new()).unwrap();
    first.auth.reload_json(&section(&[100])).unwrap();
    first.read().unwrap();
    first.feed().unwrap();
    assert_eq!((first.auth.degraded(), version(&first)), (None, 8));
    assert_eq!(first.auth.revoked_now().after(), 2);
}

#[test]
fn the_note_key_is_changed_without_a_moment_in_which_nothing_is_believed() {
    let rig = rig(None);
    let step = |pins: &[u8], signers: &[u8]| {
        rig.auth.reload_json(&section(pins)).unwrap();
        assert!(rig.believes(1), "before the next read: pins {pins:?}");
        rig.serve(&[1], Some(note(1, &[1], signers)), 1);
        rig.read().unwrap();
        assert!(rig.believes(1));
    };
    rig.serve(&[1], Some(note(1, &[1], &[100])), 1);
    rig.read().unwrap();
    step(&[100], &[100, 101]); // the issuer signs with both
    step(&[100, 101], &[100, 101]); // then the services pin both
    step(&[101], &[100, 101]); // the new one alone
    step(&[101], &[101]);
    // A key that is no longer pinned vouches for nothing.
    rig.auth.reload_json(&section(&[102])).unwrap();
    assert!(!rig.believes(1));
}

#[test]
fn keys_believed_unseen_do_not_count_once_a_note_key_is_pinned() {
    let rig = rig(None);
    let mut unpinned = section(&[]);
    unpinned["unpinned"] = true.into();
    rig.auth.reload_json(&unpinned).unwrap();
    rig.serve(&[9], None, 0);
    rig.read().unwrap();
    assert!(rig.believes(9));
    rig.auth.reload_json(&section(&[100])).unwrap();
    assert!(!rig.believes(9));
    rig.refused("the policy note cannot be read");
}
