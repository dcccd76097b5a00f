//! The feed of revocations as the authorizer reads it.

use ron_http::Credential;
use ron_kernel::{OsRandom, Random as _};

use super::*;

#[test]
fn a_long_history_is_read_in_pages_and_a_shorter_one_adds_its_revocations() {
    let rig = rig();
    rig.auth.refresh_keys_once().unwrap().unwrap();
    let jti = |n: usize| Revoked::Jti {
        jti: format!("x{n}"),
        until: NOW + 900,
    };
    rig.fake.0.lock().events = (0..2500).map(jti).collect();
    rig.auth.read_feed_once(20).unwrap().unwrap();
    assert_eq!(rig.auth.revoked_now().after(), 2500);
    let asked: Vec<String> = rig
        .fake
        .0
        .lock()
        .asked
        .iter()
        .filter(|url| url.contains("events"))
        .cloned()
        .collect();
    assert_eq!(asked.len(), 3);
    assert!(
        asked.iter().all(|url| url.ends_with("wait=0")),
        "the first read must not wait: {asked:?}"
    );
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x2499"))),
        Err(AuthReject::Revoked)
    );
    // A shorter history is an alarm; its revocations count as well.
    rig.fake.0.lock().events = vec![jti(9_000)];
    let why = rig.auth.read_feed_once(0).unwrap().unwrap_err();
    assert!(why.contains("ends at event 1, but event 2500"), "{why}");
    assert_eq!(rig.auth.revoked_now().after(), 2500);
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x9000"))),
        Err(AuthReject::Revoked)
    );
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x2499"))),
        Err(AuthReject::Revoked),
        "what was seen revoked stays so"
    );
    // An outage keeps the known revocations.
    rig.fake.0.lock().events_up = false;
    assert!(rig.auth.read_feed_once(0).unwrap().is_err());
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x7"))),
        Err(AuthReject::Revoked)
    );
    // So is one that was replaced during the outage.
    {
        let mut state = rig.fake.0.lock();
        state.events = (6_000..8_500).map(jti).collect();
        state.events_up = true;
    }
    let why = rig.auth.read_feed_once(0).unwrap().unwrap_err();
    assert!(why.contains("other events than before"), "{why}");
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x7"))),
        Err(AuthReject::Revoked)
    );
    assert_eq!(
        rig.ask(&rig.token(|claims| claims["jti"] = json!("x8000"))),
        Err(AuthReject::Revoked)
    );
}

/// Shows its feed to one token, and remembers which credential came to which path.
struct Guarded {
    issuer: Arc<Fake>,
    token: &'static str,
    came: RankedMutex<Vec<(String, Option<String>)>>,
}

impl Fetch for Guarded {
    fn get(
        &self,
        url: &str,
        credential: &Credential,
        deadline: Deadline,
    ) -> Result<Vec<u8>, FetchError> {
        let came = credential.header().map(str::to_owned);
        let good = came.as_deref() == Some(self.token);
        let path = url.split('?').next().unwrap().to_owned();
        let events = path.ends_with("/events");
        self.came.lock().push((path, came.clone()));
        match came {
            _ if !events || good => self.issuer.get(url, credential, deadline),
            Some(header) if header.ends_with("unscoped") => Err(FetchError::Denied(403)),
            _ => Err(FetchError::Denied(401)),
        }
    }
    fn close(&self) {}
}

#[test]
fn the_token_goes_to_the_feed_alone_and_a_refusal_names_the_setting() {
    use std::os::unix::fs::PermissionsExt as _;
    static CAME: LockSpec = LockSpec {
        name: "test_came",
        rank: 2,
        guards: "credentials that came",
    };
    let dir = std::env::temp_dir().join(format!("ron-feed-{}", OsRandom.u64()));
    std::fs::create_dir(&dir).unwrap();
    let file = dir.join("issuer.token");
    let write = |token: &str| {
        std::fs::write(&file, token).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    let issuer = Arc::new(Guarded {
        issuer: rig().fake,
        token: "Bearer good",
        came: RankedMutex::new(&CAME, Vec::new()),
    });
    let section = |token_file: Option<&std::path::Path>| json!({"issuer": ISSUER, "jwks_url": "http://issuer:1/jwks.json", "unpinned": true, "token_file": token_file});
    let config = AuthConfig::new("ron-ledger", from_json(&section(Some(&file)))).unwrap();
    let registry = Registry::new("t");
    let clock = ManualClock::at(NOW * 1000);
    let auth = RonAuthorizer::with_fetch(config, &registry, clock, issuer.clone(), None).unwrap();
    let refused = |why: &str| {
        let said = auth.read_feed_once(0).unwrap().unwrap_err();
        assert!(said.contains(why), "{said}");
        let degraded = auth.degraded().unwrap();
        assert!(degraded.contains(why), "{degraded}");
    };
    auth.refresh_keys_once().unwrap().unwrap();
    refused("auth.token_file: token file");
    write("wrong");
    refused("status 401: the issuer does not accept the token of auth.token_file");
    write("unscoped");
    refused("status 403: the issuer knows this service");
    write("good");
    auth.read_feed_once(0).unwrap().unwrap();
    assert_eq!(auth.degraded(), None);
    auth.refresh_keys_once().unwrap().unwrap();
    for (path, credential) in issuer.came.lock().iter() {
        assert_eq!(credential.is_some(), path.ends_with("/events"), "{path}");
    }
    // The view stays when the credential is refused later.
    auth.reload_json(&section(None)).unwrap();
    for _ in 0..3 {
        assert!(auth.read_feed_once(0).unwrap().is_err());
    }
    assert!(auth.revoked_now().synced());
    refused("set auth.token_file to a file with a service token");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_session_ends_by_a_revocation_that_arrives_after_the_end_of_its_passport() {
    const LATER_S: u64 = 5 * 60 * 60;
    for (retention, want) in [
        (Duration::from_secs(2 * LATER_S), Err(AuthReject::Revoked)),
        (Duration::ZERO, Ok(())),
    ] {
        let rig = Rig::fresh();
        rig.auth.retain_revocations(retention);
        let held = rig.auth.hold(&rig.token(|_| {})).expect("a good passport");
        assert_eq!(held.holder(), ("alice", Some("c")));
        rig.fake.0.lock().events_up = false;
        assert!(rig.auth.read_feed_once(0).unwrap().is_err());
        rig.clock.advance(Duration::from_secs(LATER_S));
        rig.fake.0.lock().events_up = true;
        rig.fake.0.lock().events = vec![Revoked::Jti {
            jti: "j1".into(),
            until: NOW + 900,
        }];
        // The second read continues the view of the first.
        for _ in 0..2 {
            rig.auth.read_feed_once(0).unwrap().unwrap();
            assert_eq!(rig.auth.still_holds(&held), want);
        }
    }
}
