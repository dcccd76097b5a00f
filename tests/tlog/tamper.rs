//! Every way to damage a data directory behind the KMS's back: the next start refuses writes, says
//! why, and still verifies.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ron_kernel::OsRandom;
use ron_tests::{copy_tree, json};
use serde_json::Value;

use crate::node::{Home, Kms, eventually, pause};

struct Prepared {
    home: Home,
    key: String,
    signatures: Value,
    place: tempfile::TempDir,
}

/// A data directory with some history, `now`, and two earlier copies: `old`, and `mid`, since which
/// only signatures were added.
fn prepared() -> Prepared {
    let home = Home::new();
    let place = tempfile::tempdir().expect("dir");
    let kms = home.start(&[]);
    let key = kms.key("app");
    let signed = json(&kms.sign(&key, "kept", Some("wait=3")), 200);
    for n in 0..20 {
        assert_eq!(kms.sign(&key, &format!("one {n}"), None).status, 200);
    }
    kms.stop();
    copy_tree(&home.data(), &place.path().join("old"));
    let kms = home.start(&[]);
    let second = kms.key("later");
    kms.stop();
    copy_tree(&home.data(), &place.path().join("mid"));
    let kms = home.start(&[]);
    for n in 0..20 {
        assert_eq!(kms.sign(&second, &format!("two {n}"), None).status, 200);
    }
    kms.stop();
    copy_tree(&home.data(), &place.path().join("now"));
    Prepared {
        home,
        key,
        signatures: signed["signatures"].clone(),
        place,
    }
}

impl Prepared {
    /// Damages a copy, starts on it, and checks.
    fn check(&self, what: &str, harm: &dyn Fn(&Path, &Path)) {
        let data = self.place.path().join("harmed");
        let _ = std::fs::remove_dir_all(&data);
        copy_tree(&self.place.path().join("now"), &data);
        harm(&data, &self.place.path().join("old"));
        let kms = self.home.start_on(&data, &[]);
        let (status, text) = kms.ready();
        assert_eq!(status, 503, "{what}: {text}");
        assert!(text.contains("\"audit\""), "{what}: {text}");
        assert_refuses(&kms, &self.key, what);
        assert!(
            kms.verifies(&self.key, "kept", &self.signatures),
            "{what}: verify stays up"
        );
        assert!(
            kms.metric("ron_kms_audit_integrity_failed_total ") >= 1.0,
            "{what}"
        );
    }
}

fn assert_refuses(kms: &Kms, key: &str, what: &str) {
    let refused = kms.sign(key, "x", None);
    assert_eq!(json(&refused, 503)["code"], "audit_tampered", "{what}");
    let made = serde_json::json!({"tenant": "ron", "purpose": "p", "alg": "ed25519", "op_id": ron_proto::OpId::from_random(OsRandom.bytes()).to_string()});
    assert_eq!(kms.post("/v1/kms/keys", &made, None).status, 503, "{what}");
}

fn replace(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    copy_tree(from, to);
}

#[test]
fn a_deleted_edited_cut_or_rolled_back_log_is_detected() {
    let p = prepared();
    let segment = "audit/00000000.seg";
    for name in ["audit/log.meta", "audit/checkpoint", segment] {
        p.check(&format!("{name} deleted"), &|data, _| {
            std::fs::remove_file(data.join(name)).expect("removed");
        });
    }
    p.check("the log deleted", &|data, _| {
        std::fs::remove_dir_all(data.join("audit")).expect("removed");
    });
    for name in ["audit/checkpoint", segment, "audit/log.meta"] {
        let bytes = std::fs::read(p.place.path().join("now").join(name)).expect("reads");
        for part in [0, 1, 2] {
            p.check(&format!("{name} cut {part}"), &|data, _| {
                let keep = [0, bytes.len() / 2, bytes.len() - 1][part];
                std::fs::write(data.join(name), &bytes[..keep]).expect("written");
            });
        }
        for at in (0..bytes.len()).step_by(bytes.len() / 6 + 1) {
            p.check(&format!("{name} byte {at} changed"), &|data, _| {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                std::fs::write(data.join(name), bad).expect("written");
            });
        }
    }
    p.check("the log put back", &|data, old| {
        replace(&old.join("audit"), &data.join("audit"));
    });
    // Only signatures were added since: the store does not know of them.
    let mid = p.place.path().join("mid");
    p.check("the log put back a little", &|data, _| {
        replace(&mid.join("audit"), &data.join("audit"));
    });
    p.check("store and log put back, each alone", &|data, _| {
        replace(&mid.join("audit"), &data.join("audit"));
        std::fs::copy(mid.join("keys.db"), data.join("keys.db")).expect("copied");
    });
    for name in ["audit/checkpoint", segment] {
        p.check(&format!("{name} put back"), &|data, old| {
            std::fs::copy(old.join(name), data.join(name)).expect("copied");
        });
    }
    p.check("checkpoint and segment put back", &|data, old| {
        for name in ["audit/checkpoint", segment] {
            std::fs::copy(old.join(name), data.join(name)).expect("copied");
        }
    });
    p.check("the store put back", &|data, old| {
        for name in ["keys.db", "keys.db-wal", "keys.db-shm"] {
            let _ = std::fs::remove_file(data.join(name));
            if old.join(name).exists() {
                std::fs::copy(old.join(name), data.join(name)).expect("copied");
            }
        }
    });
    // Derived files may be missing: they are made again.
    let data = p.place.path().join("harmed");
    replace(&p.place.path().join("now"), &data);
    std::fs::remove_file(data.join("audit/counters.json")).expect("removed");
    let kms = p.home.start_on(&data, &[]);
    kms.wait_ready();
    assert_eq!(kms.sign(&p.key, "goes on", None).status, 200);
}

#[test]
fn an_edit_under_the_running_service_is_found_and_stops_writes() {
    let p = prepared();
    let kms = p.home.start(&[("audit.scrub_interval", "1s")]);
    kms.wait_ready();
    pause(100);
    let segment = p.home.data().join("audit/00000000.seg");
    let mut bytes = std::fs::read(&segment).expect("reads");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    // In place, as a disk editor would: the open file itself changes.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .expect("opens");
    file.write_all_at(&bytes[at..=at], at as u64)
        .expect("written");
    eventually("not ready", || match kms.ready() {
        (503, text) if text.contains("\"audit\"") => Ok(()),
        (_, text) => Err(text),
    });
    assert_refuses(&kms, &p.key, "edited while it runs");
    assert!(kms.verifies(&p.key, "kept", &p.signatures));
}
