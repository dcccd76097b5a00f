//! The feed of revocations as the authorizer reads it.

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
