//! A TPM that counts the starts: a data directory from before the last start is refused.

use std::path::{Path, PathBuf};

use ron_proto::kms::PayloadPolicy;
use ron_proto::values::Alg;

use super::super::{Rig, settings, signed};
use super::swtpm::{Swtpm, flags, quiet};
use super::{in_child, run, var};

fn start(dir: &Path, port: u16, counts: bool) -> Rig {
    let mut all = flags(dir, port);
    if counts {
        all.push(("tpm.counter_index".into(), "0x01800a10".into()));
    }
    let all: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    Rig::start(settings(&all), None).expect("starts")
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    run(std::process::Command::new("cp").arg("-a").arg(from).arg(to));
}

#[test]
fn a_data_directory_from_before_the_last_start_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let name =
        "tests::devices::swtpm_counter::a_data_directory_from_before_the_last_start_is_refused";
    if !in_child(name, || quiet(dir.path())) {
        return;
    }
    let dir = PathBuf::from(var("RON_DIR"));
    let (data, old, newest) = (dir.join("data"), dir.join("old"), dir.join("newest"));
    let mut swtpm = Swtpm::start(&dir.join("tpm"));
    let rig = start(&dir, swtpm.port, true);
    let doc = rig.create("local", Alg::Ed25519, PayloadPolicy::Any, 1);
    let before = signed(&rig.sign_text(&doc, b"x"));
    rig.stop();
    copy(&data, &old);
    for _ in 0..2 {
        let rig = start(&dir, swtpm.port, true);
        signed(&rig.sign_text(&doc, b"x"));
        rig.stop();
    }
    copy(&data, &newest);
    // Log and store are consistent with each other, but old.
    copy(&old, &data);
    let refuses = |port: u16, counts: bool, tampering: i64, word: &str| {
        let rig = start(&dir, port, counts);
        let got = rig.sign_text(&doc, b"x");
        assert_eq!(
            (got.status, got.code().as_str()),
            (
                503,
                match tampering {
                    0 => "audit_unavailable",
                    _ => "audit_tampered",
                }
            )
        );
        assert!(!rig.ready.snapshot().ready);
        let causes = rig.ready.causes();
        let named = causes
            .iter()
            .any(|(name, _, why)| *name == "audit" && why.contains(word));
        assert!(named, "{causes:?}");
        assert_eq!(
            rig.gauge("ron_kms_audit_integrity_failed_total "),
            tampering
        );
        assert!(
            rig.verify(&doc.key, None, b"x", &before.signatures).ok,
            "verify stays up"
        );
        rig.stop();
    };
    refuses(swtpm.port, true, 1, "earlier start");
    copy(&newest, &data);
    refuses(swtpm.port, false, 0, "counter_index");
    swtpm.kill();
    refuses(swtpm.port, true, 0, "cannot be read");
    let outsider = Swtpm::start(&dir.join("another"));
    refuses(outsider.port, true, 1, "replaced or cleared");
    drop(outsider);
    swtpm.again();
    let rig = start(&dir, swtpm.port, true);
    signed(&rig.sign_text(&doc, b"the newest with its own TPM"));
    rig.stop();
}
