//! `ron doctor` finds faults before a service does, says how to fix them, and changes nothing.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ron_tests::{Fleet, SERVICES, ok, ron_binary, ron_on};
use serde_json::Value;

/// The findings about each subject: verdict and words.
fn run_doctor(dir: &Path) -> (bool, Vec<(String, String, String)>) {
    let out = ron_on(dir, &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
    let findings = report["findings"].as_array().unwrap().iter().map(|f| {
        let words = format!("{} -> {}", text(f, "says"), text(f, "hint"));
        (text(f, "verdict"), text(f, "about"), words)
    });
    (out.status.success(), findings.collect())
}

/// Exactly one check fails, about this subject, with these words.
#[track_caller]
fn wrong(dir: &Path, about: &str, words: &[&str]) {
    let (healthy, findings) = run_doctor(dir);
    assert!(!healthy, "{findings:?}");
    let wrong: Vec<_> = findings.iter().filter(|f| f.0 == "fail").collect();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert_eq!(wrong[0].1, about, "{wrong:?}");
    for word in words {
        assert!(wrong[0].2.contains(word), "{word}: {wrong:?}");
    }
}

#[track_caller]
fn sound(dir: &Path) -> Vec<(String, String, String)> {
    let (healthy, findings) = run_doctor(dir);
    assert!(healthy, "{findings:?}");
    findings
}

/// All paths under a directory.
fn names(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let inside = |path: PathBuf| {
        if path.is_dir() {
            names(&path)
        } else {
            BTreeSet::from([path])
        }
    };
    entries.flat_map(inside).collect()
}

#[test]
fn the_doctor_finds_what_is_wrong_and_says_what_to_do() {
    let mut fleet = Fleet::start();
    let kept = fleet.keep_dir();
    let dir = kept.path();
    let runs = sound(dir);
    assert!(runs.iter().any(|f| f.1 == "running"), "{runs:?}");
    assert!(runs.iter().any(|f| f.1 == "disk writes"), "{runs:?}");
    let is_database = |path: &&PathBuf| {
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        ending.starts_with("db") || ending.starts_with("sqlite")
    };
    let databases = names(dir);
    let databases: Vec<_> = databases.iter().filter(is_database).collect();
    assert!(databases.len() >= 5, "{databases:?}");
    for path in databases {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }

    // The ports of the configuration are the default ones; the test must not depend on them.
    assert_eq!(fleet.stop(), Some(0));
    for service in SERVICES {
        let config = dir.join(service).join("config.toml");
        let text = fs::read_to_string(&config).unwrap();
        let lines = text.lines().map(|line| match line.split_once(" = ") {
            Some((key @ ("bind_addr" | "health_addr"), _)) => format!("{key} = \"127.0.0.1:0\""),
            _ => line.to_owned(),
        });
        fs::write(&config, lines.collect::<Vec<_>>().join("\n")).unwrap();
    }
    let before = names(dir);
    sound(dir);
    assert_eq!(names(dir), before, "it leaves nothing behind");

    let config = dir.join("svc-wallet/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("bind_adr = \"127.0.0.1:1\"\n{text}")).unwrap();
    wrong(
        dir,
        "svc-wallet config",
        &["bind_adr", "did you mean bind_addr", "--help"],
    );

    let socket = ron_tests::socket_of(dir, "ron-ledger", "api");
    assert!(text.contains(&socket), "{text}");
    let plain = text.replace(&socket, "http://127.0.0.1:7460");
    fs::write(&config, &plain).unwrap();
    let plainly = ["ledger.url = http://127.0.0.1:7460", "unix:/"];
    wrong(dir, "svc-wallet peers", &plainly);
    fs::write(&config, format!("insecure_loopback = true\n{plain}")).unwrap();
    let warned = sound(dir).into_iter().filter(|f| f.1 == "svc-wallet peers");
    let warned: Vec<_> = warned.map(|f| (f.0, f.2)).collect();
    assert!(
        warned.len() == 2 && warned.iter().all(|f| f.0 == "warn"),
        "{warned:?}"
    );
    assert!(warned[0].1.contains("insecure_loopback") && warned[1].1.contains(plainly[0]));
    // The issuer's revocations need a service token, too.
    let socket = ron_tests::socket_of(dir, "svc-passport", "api");
    let plain = text.replace(&socket, "http://127.0.0.1:7450");
    fs::write(&config, &plain).unwrap();
    let plainly = ["auth.jwks_url = http://127.0.0.1:7450/", "unix:/"];
    wrong(dir, "svc-wallet peers", &plainly);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    fs::write(&config, text.replacen("127.0.0.1:0", &addr, 1)).unwrap();
    wrong(dir, "svc-wallet ports", &[&addr, "ss -ltnp"]);
    drop(taken);
    fs::write(&config, &text).unwrap();

    let token = dir.join("svc-wallet/ron-ledger.token");
    let mode = |mode| fs::set_permissions(&token, Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    wrong(dir, "data files", &["ron-ledger.token", "chmod"]);
    mode(0o600);

    let config_mode = |mode| fs::set_permissions(&config, Permissions::from_mode(mode)).unwrap();
    config_mode(0o666);
    wrong(dir, "data files", &["config.toml", "chmod -R go-w"]);
    config_mode(0o600);

    let written = fs::File::options().append(true).open(&token).unwrap();
    let now = SystemTime::now();
    written
        .set_modified(now + Duration::from_secs(3600))
        .unwrap();
    wrong(dir, "clock", &["ron-ledger.token", "set back"]);
    written.set_modified(now).unwrap();

    let kms = dir.join("ron-kms/config.toml");
    let text = fs::read_to_string(&kms).unwrap();
    fs::write(
        &kms,
        format!("{text}\n[pkcs11]\nmodule = \"/nowhere/hsm.so\"\n"),
    )
    .unwrap();
    let (healthy, findings) = run_doctor(dir);
    assert!(!healthy);
    let module = findings.iter().find(|f| f.1 == "HSM module").unwrap();
    assert!(
        module.0 == "fail" && module.2.contains("/nowhere/hsm.so"),
        "{module:?}"
    );
    fs::write(&kms, text).unwrap();
    sound(dir);
}

#[test]
fn a_place_that_is_not_set_up_yet_is_fine_and_one_that_cannot_be_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let port = ron_tests::base_port().to_string();
    let place = dir.path().join("later");
    let out = ron_on(&place, &["doctor", "--base-port", &port]);
    assert!(ok(&out).contains("not set up yet"), "{out:?}");
    assert!(!place.exists());
    let file = dir.path().join("kms.toml");
    fs::write(&file, "bind_addr = 7\n").unwrap();
    let out = std::process::Command::new(ron_binary())
        .args(["doctor", "--service", "ron-kms", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(
        said.contains("FAIL  ron-kms config") && said.contains("bind_addr"),
        "{said}"
    );
}
