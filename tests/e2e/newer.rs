//! Files of a newer program are refused by name and number and left unchanged; derived files are
//! made again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use ron_tests::{
    Fleet, SERVICES, copy_tree, json, ok, own_sockets, ron_binary, ron_on, sqlite, workspace,
};
use tempfile::TempDir;

/// A data directory with a little of everything: keys, tokens, one of them revoked, money, paid epochs.
fn current() -> TempDir {
    let mut fleet = Fleet::start();
    ok(&fleet.ron(&["demo"]));
    let id = |n: u8| format!("0190f0a0-0000-7000-8000-0000000009{n:02}");
    let made = serde_json::json!({
        "tenant": "ron", "purpose": "now", "alg": "ed25519", "payload": "any", "op_id": id(1)
    });
    let key = fleet.kms("keys", &made, 201)["key"].clone();
    let sign = serde_json::json!({"key": key, "message": "eA", "op_id": id(2)});
    fleet.kms("sign", &sign, 200);
    let revoke = ["token", "revoke", "--jti", &id(3), "--reason", "a test"];
    ok(&fleet.ron(&revoke));
    assert_eq!(fleet.stop(), Some(0));
    let kept = fleet.keep_dir();
    drop(fleet);
    Arc::into_inner(kept).unwrap()
}

/// Starts one service on a data directory, wherever that is now.
fn start(dir: &Path, name: &str) -> Output {
    let at = |path: &str| dir.join(path).display().to_string();
    let mut set = vec![
        "bind_addr=127.0.0.1:0".to_owned(),
        "health_addr=127.0.0.1:0".to_owned(),
        format!("data_dir={}", at(&format!("{name}/data"))),
    ];
    set.extend(own_sockets(dir, name));
    if matches!(name, "svc-passport" | "svc-rewarder") {
        set.push(format!(
            "kms.token_file={}",
            at(&format!("{name}/ron-kms.token"))
        ));
    }
    if matches!(name, "svc-wallet" | "svc-rewarder") {
        set.push(format!(
            "ledger.token_file={}",
            at(&format!("{name}/ron-ledger.token"))
        ));
    }
    if matches!(name, "svc-passport" | "svc-wallet" | "svc-rewarder") {
        set.push(format!("policy.dir={}", at("policy")));
    }
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "20"]);
    command.arg(ron_binary().with_file_name(name));
    command.args(["--config", &at(&format!("{name}/config.toml"))]);
    for pair in set {
        command.args(["--set", &pair]);
    }
    command.output().unwrap()
}

/// Every file but the lock, which names the last process; sockets have no content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.is_file() && path.file_name().is_some_and(|name| name != "LOCK") {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Puts bytes into a file.
fn patch(file: &Path, at: usize, bytes: &[u8]) {
    let mut all = fs::read(file).unwrap();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(file, all).unwrap();
}

fn replace(file: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(old), "{}: {text}", file.display());
    fs::write(file, text.replace(old, new)).unwrap();
}

/// The one file of a directory.
fn only(dir: &Path) -> PathBuf {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    entries.pop().unwrap()
}

/// A segment's header contains its format under a checksum, which is recomputed.
fn newer_segment(log: &Path) {
    let meta = fs::read_to_string(log.join("log.meta")).unwrap();
    let salt = meta.lines().find_map(|l| l.strip_prefix("salt ")).unwrap();
    let salt = hex::decode(salt).unwrap();
    let file = log.join("00000000.seg");
    patch(&file, 8, &99_u32.to_le_bytes());
    let header = fs::read(&file).unwrap()[..124].to_vec();
    let sum = crc32(&[&salt[..], &header].concat());
    patch(&file, 124, &sum.to_le_bytes());
}

/// CRC-32 (IEEE), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Sealed records as a newer program would write them, with their hashes.
fn newer_record(store: &Path) {
    let program = "import hashlib, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
        db.create_function('sha256', 1, lambda b: hashlib.sha256(b).digest()); \
        db.execute(\"UPDATE versions SET sealed = CAST(x'524b4d5363' || substr(sealed, 6) AS BLOB)\"); \
        db.execute('UPDATE versions SET sealed_sha256 = sha256(sealed)'); db.commit(); db.close()";
    let args = ["-c", program, store.to_str().unwrap()];
    ok(&Command::new("python3").args(args).output().unwrap());
}

type Raise = fn(&Path);

/// Service, file below the data directory, what a newer program would have done to it, and the
/// required words: the file, both versions, what to do.
const REFUSED: [(&str, &str, Raise, [&str; 4]); 14] = [
    (
        "ron-kms",
        "ron-kms/data/keys.db",
        |f| sqlite(f, "PRAGMA user_version = 99"),
        ["keys.db", "99", "up to 4", "newer program"],
    ),
    (
        "ron-kms",
        "ron-kms/data/keys.db",
        newer_record,
        ["keys.db", "format 99", "up to 1", "newer program"],
    ),
    (
        "ron-kms",
        "ron-kms/data/audit/log.meta",
        |f| replace(f, "ron-tlog 3", "ron-tlog 99"),
        ["log.meta", "99", "up to 4", "newer program"],
    ),
    (
        "ron-kms",
        "ron-kms/data/audit",
        newer_segment,
        ["00000000.seg", "99", "up to 3", "newer program"],
    ),
    (
        "ron-kms",
        "ron-kms/data/replay",
        |d| patch(&only(d), 7, &[99]),
        ["replay/", "99", "up to 1", "newer program"],
    ),
    (
        "svc-passport",
        "svc-passport/data/passport.db",
        |f| sqlite(f, "PRAGMA user_version = 99"),
        ["passport.db", "99", "up to 2", "newer program"],
    ),
    (
        "svc-passport",
        "svc-passport/data/revocations/log.meta",
        |f| replace(f, "ron-tlog 3", "ron-tlog 99"),
        ["log.meta", "99", "up to 4", "newer program"],
    ),
    (
        "ron-ledger",
        "ron-ledger/data/log/log.meta",
        |f| replace(f, "ron-tlog 3", "ron-tlog 99"),
        ["log.meta", "99", "up to 4", "newer program"],
    ),
    (
        "ron-ledger",
        "ron-ledger/data/log",
        newer_segment,
        ["00000000.seg", "99", "up to 3", "newer program"],
    ),
    (
        "svc-wallet",
        "svc-wallet/data/unresolved.sqlite",
        |f| sqlite(f, "PRAGMA user_version = 99"),
        ["unresolved.sqlite", "99", "up to 1", "newer program"],
    ),
    (
        "svc-wallet",
        "svc-wallet/data/issuer-notes.json",
        |f| fs::write(f, "{\"format\":99,\"issuers\":{}}").unwrap(),
        ["issuer-notes.json", "99", "knows 2", "newer program"],
    ),
    (
        "svc-rewarder",
        "svc-rewarder/data/rewarder.db",
        |f| sqlite(f, "PRAGMA user_version = 99"),
        ["rewarder.db", "99", "up to 6", "newer program"],
    ),
    (
        "svc-admin",
        "svc-admin/data/admin.db",
        |f| sqlite(f, "PRAGMA user_version = 99"),
        ["admin.db", "99", "up to 3", "newer program"],
    ),
    (
        "ron",
        "bootstrap.json",
        |f| replace(f, "\"format\": 1", "\"format\": 99"),
        ["bootstrap.json", "99", "1", "newer program"],
    ),
];

#[test]
fn what_a_newer_program_wrote_is_refused_and_left_alone() {
    let good = current();
    for (service, file, raise, words) in REFUSED {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("copy");
        copy_tree(good.path(), &dir);
        raise(&dir.join(file));
        let before = files(&dir);
        let out = match service {
            "ron" => ron_on(&dir, &["up", "--base-port", "0"]),
            name => start(&dir, name),
        };
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            !matches!(out.status.code(), None | Some(0 | 124 | 137)),
            "{service} runs on a newer {file}: {said}"
        );
        // The last line for people; not a line of the log.
        let last: Vec<&str> = said.lines().filter(|l| !l.starts_with('{')).collect();
        let last = last.join("\n");
        for word in words {
            assert!(
                last.contains(word),
                "{service}, {file}: no `{word}` in: {said}"
            );
        }
        let after = files(&dir);
        assert_eq!(
            before.keys().collect::<Vec<_>>(),
            after.keys().collect::<Vec<_>>(),
            "{service}, {file}: other files"
        );
        for (path, bytes) in &before {
            assert!(
                after[path] == *bytes,
                "{service} changed {}",
                path.display()
            );
        }
    }
}

#[test]
fn runs_of_a_newer_rewarder_are_not_judged() {
    let good = current();
    let runs = Path::new("svc-rewarder/data/runs/tenant-default");
    let run = runs.join(only(&good.path().join(runs)).file_name().unwrap());
    let cases: [(&str, Raise); 3] = [
        ("run.json", |f| {
            replace(f, "\"version\":1}", "\"version\":99}");
        }),
        ("snapshot.bin", |f| patch(f, 7, &[99])),
        ("payouts.bin", |f| patch(f, 7, &[99])),
    ];
    for (name, raise) in cases {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("copy");
        copy_tree(good.path(), &dir);
        raise(&dir.join(&run).join(name));
        let out = ron_on(&dir, &["rewarder", "verify"]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(name), "{name}: {said}");
        for word in ["99", "newer program"] {
            assert!(said.contains(word), "{name}: no `{word}` in {said}");
        }
    }
}

#[test]
fn what_follows_from_something_else_is_made_again() {
    let dir = current();
    sqlite(
        &dir.path().join("ron-ledger/data/projection.sqlite"),
        "PRAGMA user_version = 99",
    );
    replace(
        &dir.path().join("svc-wallet/data/answers/about"),
        "answers 2 of",
        "answers 99 of",
    );
    let mut fleet = Fleet::start_in(Arc::new(dir));
    let token = fleet.token("svc-wallet", None);
    let url = format!(
        "{}/v1/account/acct:demo-alice/history?after=0&limit=10",
        fleet.api("svc-wallet")
    );
    let mut seen = 0;
    for _ in 0..300 {
        let page = fleet.get(&url, Some(&token));
        seen = match page.status {
            200 => json(&page, 200)["entries"].as_array().unwrap().len(),
            _ => 0,
        };
        if seen == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(seen, 2, "an issue and a transfer");
    // The wallet's feed rebuilds its copy by itself.
    let about = fleet.dir().join("svc-wallet/data/answers/about");
    let mut text = String::new();
    for _ in 0..300 {
        text = fs::read_to_string(&about).unwrap_or_default();
        if text.starts_with("answers 2 of ") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(text.starts_with("answers 2 of "), "{text}");
    assert_eq!(fleet.stop(), Some(0));
}

/// The rows of the table of durable files: pattern and marker.
fn table() -> Vec<(String, String)> {
    let text = fs::read_to_string(workspace().join("docs/formats/versions.md")).unwrap();
    let rows = text.lines().filter(|l| l.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .map(|c| (c[1].trim_matches('`').to_owned(), c[2].to_owned()))
        .collect()
}

/// True if a path matches a pattern, in which `*` stands for anything but a slash.
fn is_of(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((head, rest)) => path.strip_prefix(head).is_some_and(|left| {
            let most = left.find('/').unwrap_or(left.len());
            (0..=most).any(|n| left.is_char_boundary(n) && is_of(rest, &left[n..]))
        }),
    }
}

/// Files for auditors: the ledger's verifier key, and what an epoch is recomputed from.
fn is_public(path: &str) -> bool {
    let below = |dir: &str| path.starts_with(&format!("svc-rewarder/data/{dir}/"));
    path.ends_with("/log.vkey") || ["runs", "snapshots", "policies"].into_iter().any(below)
}

#[test]
fn files_of_services_are_for_their_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = current();
    let (mut seen, mut open) = (0, Vec::new());
    // How many files with a credential or a private key there are, by the end of their names.
    let mut secrets = BTreeMap::new();
    for path in files(dir.path()).keys() {
        let shown = path.strip_prefix(dir.path()).unwrap().display().to_string();
        let ends = |ending: &&str| shown.ends_with(ending);
        let secret = ["/note.key", "/seal.key", ".token", "clients/operator.json"]
            .into_iter()
            .find(ends);
        if secret.is_none() && (!shown.contains("/data/") || is_public(&shown)) {
            continue;
        }
        if let Some(ending) = secret {
            *secrets.entry(ending).or_insert(0) += 1;
        }
        let mode = fs::metadata(path).unwrap().permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            open.push(format!("{shown} {mode:04o}"));
        }
        seen += 1;
    }
    assert_eq!(open, [""; 0]);
    assert!(seen > 30, "{seen}");
    assert_eq!(secrets["/note.key"], 2, "of the ledger and of the issuer");
    assert!(secrets[".token"] >= 15, "{secrets:?}");
    assert_eq!(secrets["/seal.key"] + secrets["clients/operator.json"], 2);
}

#[test]
fn every_file_of_a_data_directory_says_its_version_or_need_not() {
    let dir = current();
    let rows = table();
    let mut used = vec![false; rows.len()];
    for path in files(dir.path()).keys() {
        let path = path.strip_prefix(dir.path()).unwrap().display().to_string();
        let row = rows.iter().position(|(pattern, _)| is_of(pattern, &path));
        let row = row.unwrap_or_else(|| panic!("{path} is not in docs/formats/versions.md"));
        used[row] = true;
    }
    let must = [
        "keys.db",
        "log.meta",
        "passport.db",
        "unresolved.sqlite",
        "rewarder.db",
        "admin.db",
        "bootstrap.json",
    ];
    for ((pattern, marker), used) in rows.iter().zip(used) {
        assert!(!marker.is_empty(), "{pattern}");
        let needed = must.iter().any(|m| pattern.ends_with(m));
        assert!(used || !needed, "no data directory has {pattern}");
    }
    for name in SERVICES {
        assert!(
            rows.iter()
                .any(|(pattern, _)| pattern.starts_with(&format!("{name}/")))
        );
    }
}
