//! A key's birth certificate, made and checked with the command line; the check needs no service.

use serde_json::Value;

use super::service::Service;

fn text(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).into_owned()
}

#[test]
fn a_birth_certificate_is_made_and_checked_on_the_command_line() {
    let mut service = Service::start("");
    let key = service.create("ed25519", "file", 1);
    let other = service.create("ed25519", "file", 2);
    let made = service.ron(&["attest", &key, "--nonce", "c0ffee", "--out", "birth.json"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let again = service.ron(&["attest", &other, "--out", "other.json"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let read = |name: &str| -> Value {
        let raw = std::fs::read(service.dir.path().join(name)).unwrap();
        serde_json::from_slice(&raw).unwrap()
    };
    let (good, others) = (read("birth.json"), read("other.json"));
    let vkey = good["evidence"]["vkey"].as_str().unwrap().to_owned();
    // From here on no service is running.
    service.kill();
    let check =
        |file: &str, more: &[&str]| service.ron(&[&["verify-birth", file][..], more].concat());
    let trusted = ["--vkey", &vkey, "--nonce", "c0ffee"];
    let verdict = check("birth.json", &trusted);
    assert!(verdict.status.success(), "{}", text(&verdict.stderr));
    assert!(
        text(&verdict.stdout).contains(&key),
        "{}",
        text(&verdict.stdout)
    );
    assert!(!check("birth.json", &["--nonce", "c0ffef"]).status.success());
    let strange = vkey.replace(&vkey[vkey.len() - 6..], "AAAAA=");
    assert!(!check("birth.json", &["--vkey", &strange]).status.success());
    // No part of one certificate can be put into another.
    for part in ["evidence", "proof"] {
        let mut mixed = good.clone();
        assert_ne!(mixed[part], others[part], "{part}");
        mixed[part] = others[part].clone();
        let name = format!("mixed-{part}.json");
        std::fs::write(service.dir.path().join(&name), mixed.to_string()).unwrap();
        let verdict = check(&name, &["--vkey", &vkey]);
        assert!(
            !verdict.status.success(),
            "{part}: {}",
            text(&verdict.stdout)
        );
    }
}
