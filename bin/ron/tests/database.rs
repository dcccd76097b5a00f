//! `ron` as a program, with a PostgreSQL primary and its standby: `ron ledger migrate` by the commands of docs/two-hosts.md, and
//! what `ron doctor` and `ron ha status` say of the database and its nodes.
#![cfg(feature = "postgres")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ron_files::Dir;
use ron_ha::cluster::Cluster;
use ron_ha::contract::wait_for;
use ron_ha::services::{private_dir, put, start, stop};
use ron_kms::RonKms;
use ron_service::{DataDir, Running};

const PAGE: &str = include_str!("../../../docs/two-hosts.md");
/// The database in the page's commands.
const IN_PAGE: &str =
    "postgresql://ron_ledger@10.0.0.11,10.0.0.12/ron?target_session_attrs=read-write";

/// The user of the database in the page's commands for a service.
fn user_of(service: &str) -> &'static str {
    match service {
        "kms" => "ron_kms",
        "issuer" => "svc_passport",
        _ => "ron_ledger",
    }
}

fn ron(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ron"))
        .args(args)
        .arg("--data-dir")
        .arg(dir)
        .output()
        .expect("ron runs")
}

fn ok(out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn refused(out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success(), "{said}");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The arguments of the page's command for a service that contains `words`, with this database.
fn of_page(service: &str, words: &str, url: &str) -> Vec<String> {
    let begin = format!("ron {service} migrate");
    let commands = PAGE.lines().filter(|line| line.starts_with(&begin));
    let found = commands
        .filter(|line| line.contains(words))
        .min_by_key(|line| line.len());
    let line = found.unwrap_or_else(|| panic!("no command with {words}"));
    let in_page = IN_PAGE.replace("ron_ledger", user_of(service));
    assert!(line.contains(&in_page) || line.contains("-lost"), "{line}");
    let words = line.split_whitespace().skip(1);
    words
        .map(|word| match word.trim_matches('\'') {
            word if word == in_page => url.to_owned(),
            word => word.to_owned(),
        })
        .collect()
}

/// Moves the ledger by a command that is killed while it waits for the ledger's end, and by another that goes on.
fn interrupted(cluster: &Cluster, dir: &Path) -> String {
    let url = cluster.primary.url();
    let running = DataDir::at(Dir::os(dir.join("ron-ledger/data"))).expect("it is free");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ron"))
        .args(of_page("ledger", "--to 'postgresql", &url))
        .arg("--data-dir")
        .arg(dir)
        .stderr(Stdio::piped())
        .spawn()
        .expect("ron runs");
    let mut said = String::new();
    let stderr = command.stderr.take().expect("a pipe");
    BufReader::new(stderr)
        .read_line(&mut said)
        .expect("a line of text");
    assert!(said.contains("stop the ledger now"), "{said}");
    command.kill().expect("it waits");
    command.wait().expect("it has ended");
    drop(running);
    let run = |words: &str| {
        let args = of_page("ledger", words, &url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ron(dir, &args)
    };
    let said = refused(&run("--to 'postgresql"));
    assert!(said.contains("go on with --resume"), "{said}");
    ok(&run("--resume"))
}

#[test]
fn the_commands_of_the_page_move_a_ledger_there_and_back() {
    let cluster = Cluster::pair();
    let url = cluster.primary.url();
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(&ron(dir, &["init"]));
    let books = dir.join("books.csv");
    let import = |id: &str| {
        let line = format!("id,op,to,asset,amount_minor\n{id},issue,acct:ada,EUR,7\n");
        fs::write(&books, line).expect("a file");
        ron(dir, &["ledger", "import", books.to_str().expect("UTF-8")])
    };
    let run = |words: &str| {
        let args = of_page("ledger", words, &url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ron(dir, &args)
    };
    let root = |said: &str| {
        let (_, rest) = said.split_once("root ").expect("a root");
        rest[..44].to_owned()
    };
    assert!(ok(&import("one")).starts_with("imported: 1 entries"));

    let said = ok(&run("--rehearse"));
    assert!(
        said.starts_with("rehearsed: ") && said.contains("nothing of it is left"),
        "{said}"
    );
    let moved = interrupted(&cluster, dir);
    assert!(moved.contains(&format!("url = \"{url}\"")), "{moved}");
    // The directory is a copy: programs without the database refuse it and say where the ledger is.
    let said = refused(&import("two"));
    assert!(
        said.contains(&url) && said.contains("migrate --to files"),
        "{said}"
    );
    assert!(ok(&ron(dir, &["ledger", "verify"])).starts_with("ledger verified: 1 entries"));
    let said = refused(&run("--to 'postgresql"));
    assert!(said.contains("nothing to move"), "{said}");
    let said = refused(&run("--resume"));
    assert!(said.contains("no migration of it is to be ended"), "{said}");

    let back = ok(&run("--to files --from"));
    assert_eq!(root(&back), root(&moved));
    assert!(ok(&import("two")).starts_with("imported: 1 entries"));
    let said = refused(&run("--to files --from"));
    assert!(
        said.contains("--resume") || said.contains("of its own"),
        "{said}"
    );
    let again = ok(&run("--to 'postgresql"));
    assert!(
        again.contains("moved: 3 leaves") && again.contains("; 1 of them ("),
        "{again}"
    );
    assert_ne!(root(&again), root(&moved));

    // The database is gone, and so is what its servers kept.
    drop(cluster);
    let kept = ok(&run("--database-is-lost"));
    assert!(kept.starts_with("kept: 3 leaves"), "{kept}");
    assert_eq!(root(&kept), root(&again));
    assert!(ok(&import("three")).starts_with("imported: 1 entries"));
    let said = refused(&run("--database-is-lost"));
    assert!(said.contains("of its own already"), "{said}");
}

#[test]
fn the_commands_of_the_page_move_a_key_service_there_and_back() {
    let cluster = Cluster::pair();
    let url = cluster.primary.url();
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(&ron(dir, &["init"]));
    let run = |words: &str| {
        let args = of_page("kms", words, &url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ron(dir, &args)
    };
    let said = ok(&run("--rehearse"));
    assert!(said.starts_with("rehearsed: "), "{said}");
    let verified = ok(&ron(dir, &["audit", "verify"]));
    let moved = ok(&run("--to 'postgresql"));
    for line in [
        &format!("url = \"{url}\""),
        "schema = \"ron_kms\"",
        "[records]",
        "schema = \"ron_kms_keys\"",
        "[audit]\norigin = \"",
        "[seal]\nkey_file = \"",
    ] {
        assert!(moved.contains(line), "{line}: {moved}");
    }
    let data = dir.join("ron-kms/data");
    assert!(!data.join("keys.db").exists());
    assert_eq!(ok(&ron(dir, &["audit", "verify"])), verified);
    let said = refused(&run("--to 'postgresql"));
    assert!(said.contains("nothing to move"), "{said}");
    let said = refused(&run("--resume"));
    assert!(said.contains("no migration of it is to be ended"), "{said}");
    let back = ok(&run("--to files --from"));
    assert!(back.contains("keep audit.origin"), "{back}");
    assert!(data.join("keys.db").exists());
    assert_eq!(ok(&ron(dir, &["audit", "verify"])), verified);
    let said = refused(&run("--to files --from"));
    assert!(said.contains("--resume"), "{said}");
}

#[test]
fn the_commands_of_the_page_move_an_issuer_there_and_back() {
    let cluster = Cluster::pair();
    let url = cluster.primary.url();
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    ok(&ron(dir, &["init"]));
    let run = |words: &str| {
        let args = of_page("issuer", words, &url);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        ron(dir, &args)
    };
    // The first start makes the log, and the first keys are its first entry.
    let mut up = Command::new(env!("CARGO_BIN_EXE_ron"))
        .args(["up", "--base-port", "0", "--data-dir"])
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("ron runs");
    wait_for("the issuer has a log", || {
        let verified = ron(dir, &["revocations", "verify"]);
        verified.status.success() && !ok(&verified).contains(" 0 events")
    });
    let stopped = Command::new("kill").arg(up.id().to_string()).status();
    assert!(stopped.is_ok_and(|status| status.success()));
    up.wait().expect("it has ended");
    let verified = ok(&ron(dir, &["revocations", "verify"]));
    let said = ok(&run("--rehearse"));
    assert!(said.starts_with("rehearsed: "), "{said}");
    let moved = ok(&run("--to 'postgresql"));
    for line in [
        &format!("url = \"{url}\""),
        "schema = \"svc_passport\"",
        "schema = \"svc_passport_records\"",
    ] {
        assert!(moved.contains(line), "{line}: {moved}");
    }
    let said = refused(&run("--to 'postgresql"));
    assert!(said.contains("nothing to move"), "{said}");
    let said = refused(&run("--resume"));
    assert!(said.contains("no migration of it is to be ended"), "{said}");
    ok(&run("--to files --from"));
    assert_eq!(ok(&ron(dir, &["revocations", "verify"])), verified);
    let said = refused(&run("--to files --from"));
    assert!(said.contains("--resume"), "{said}");
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    ok(&ron(dir.path(), &["init"]));
    for (args, why) in [
        (&["--to", "files"][..], "--from"),
        (
            &["--to", "postgresql://a/b", "--from", "postgresql://a/b"],
            "--from goes with --to files",
        ),
        (
            &["--to", "postgresql://a/b", "--rehearse", "--resume"],
            "cannot be used with",
        ),
        (
            &["--to", "postgresql://a:secret@b/c"],
            "must not have a password",
        ),
        (
            &["--to", "postgresql://a/b", "--durability", "much"],
            "has no value",
        ),
        (&["--to", "postgresql://a@127.0.0.1:1/b"], "unavailable"),
    ] {
        for service in ["ledger", "kms", "issuer"] {
            // An issuer that never ran has nothing to move.
            let why = match service {
                "issuer" if why == "unavailable" => "has no passport.db",
                _ => why,
            };
            let said = refused(&ron(dir.path(), &[&[service, "migrate"], args].concat()));
            assert!(said.contains(why), "{service} {args:?}: {said}");
        }
    }
}

/// What `ron doctor` finds about the ledger's database, as `VERDICT SAYS`.
fn doctor(dir: &Path, config: &Path) -> Vec<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_ron"))
        .args(["doctor", "--json", "--service", "ron-ledger", "--config"])
        .arg(config)
        .current_dir(dir)
        .output()
        .expect("ron runs");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings").iter();
    let found = findings.filter(|one| one["about"] == "ron-ledger database");
    let text = |one: &serde_json::Value, name: &str| one[name].as_str().unwrap_or("").to_owned();
    found
        .map(|one| format!("{} {}", text(one, "verdict"), text(one, "says")))
        .collect()
}

#[test]
fn the_doctor_names_what_is_wrong_with_a_database() {
    let cluster = Cluster::pair();
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config.toml");
    let write = |url: &str, more: &str| {
        let text = format!(
            "data_dir = \"{}\"\n[log]\nurl = \"{url}\"\nnode = \"http://10.0.0.1:7460\"\n{more}",
            dir.path().join("data").display()
        );
        fs::write(&config, text).expect("a file");
    };
    let check = |wanted: &[&str]| {
        let found = doctor(dir.path(), &config);
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for (says, start) in found.iter().zip(wanted) {
            assert!(says.starts_with(start), "{says}");
        }
    };
    let (no_witness, no_limit) = (
        "warn no witness remembers the log",
        "warn its user may have any number",
    );
    write(&cluster.primary.url(), "");
    check(&[no_witness, no_limit]);
    cluster
        .primary
        .admin("ALTER ROLE ron CONNECTION LIMIT 30", &[]);
    check(&[no_witness, "ok PostgreSQL "]);
    cluster.primary.set("synchronous_standby_names", "*");
    check(&[
        no_witness,
        "fail synchronous_standby_names must name a standby",
    ]);
    cluster.primary.set("synchronous_standby_names", "another");
    let unnamed = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'";
    wait_for("the standby is not waited for any more", || {
        cluster.primary.admin(unnamed, &[]).int8(0, 0) == Ok(1)
    });
    check(&[no_witness, "fail no standby follows that writes wait for"]);
    write(&cluster.primary.url(), "durability = \"storage\"\n");
    check(&[
        "fail no witness remembers the log",
        "warn its storage is declared",
    ]);
    write("postgresql://ron@127.0.0.1:1/postgres", "");
    check(&[no_witness, "fail it cannot be asked"]);
}

#[test]
fn the_status_shows_key_services() {
    let cluster = Cluster::pair();
    let (url, dir, data) = (cluster.primary.url(), private_dir(), private_dir());
    put(dir.path(), "seal", "ab".repeat(32).as_bytes());
    let shared = start::<RonKms>(&format!(
        "data_dir = \"{}\"\n[records]\nurl = \"{url}\"\n[log]\nurl = \"{url}\"\n[audit]\norigin = \"kms.example/a\"\n\
         [seal]\nkey_file = \"{}\"\n",
        data.path().display(),
        dir.path().join("seal").display(),
    ));
    let alone = start::<RonKms>("amnesia = true\n");
    let status = |nodes: &[&Running], more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ron"));
        command.args(["ha", "status"]).args(more);
        for node in nodes {
            command.args(["--health", &node.health_url()]);
        }
        command.output().expect("ron runs")
    };
    wait_for("the node has asked the database", || {
        status(&[&shared], &[]).status.success()
    });
    let shown = ok(&status(&[&shared], &["--json"]));
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown[0]["service"], "ron-kms");
    assert_eq!(shown[0]["log"]["node"], "kms.example/a");
    assert_eq!(shown[0]["log"]["active"], true);
    let both = status(&[&shared, &alone], &[]);
    let table = String::from_utf8_lossy(&both.stdout).into_owned();
    assert!(
        table.contains("kms.example/a")
            && table.contains(" active ")
            && !table.contains("not active"),
        "{table}"
    );
    let said = refused(&both);
    assert!(said.contains("ron-kms keeps its log in files"), "{said}");
    stop(shared);
    stop(alone);
}
