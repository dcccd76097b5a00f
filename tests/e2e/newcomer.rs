//! The errors of the first ten minutes: each one says what to do.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use ron_proto::b64;
use ron_tests::{Fleet, base_port, json, ok, ron_binary, ron_on};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A user id that owns nothing.
const NOBODY: &str = "65534";

/// The command must fail, and its output must contain all of these.
#[track_caller]
fn refused(out: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success(), "it went well: {said}");
    assert!(
        matches!(out.status.code(), Some(1 | 2 | 64 | 78)),
        "{:?}: {said}",
        out.status
    );
    for word in words {
        assert!(said.contains(word), "it does not say `{word}`: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

fn service(name: &str, args: &[&str]) -> Output {
    let out = Command::new("timeout")
        .arg("20")
        .arg(ron_binary().with_file_name(name))
        .args(args)
        .output()
        .unwrap();
    assert_ne!(out.status.code(), Some(124), "{name} {args:?} runs");
    out
}

fn up(dir: &Path, port: u16) -> Output {
    Command::new("timeout")
        .arg("60")
        .arg(ron_binary())
        .args(["up", "--base-port", &port.to_string(), "--data-dir"])
        .arg(dir)
        .output()
        .unwrap()
}

/// One data directory for all tests that only read it.
fn made() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        ok(&ron_on(
            dir.path(),
            &["init", "--base-port", &base_port().to_string()],
        ));
        dir
    });
    dir.path()
}

#[test]
fn a_port_that_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let out = service(
        "ron-kms",
        &[
            "--set",
            &format!("bind_addr=127.0.0.1:{port}"),
            "--set",
            "health_addr=127.0.0.1:0",
            "--set",
            &format!("data_dir={}", dir.path().display()),
        ],
    );
    refused(
        &out,
        &["bind_addr", &port.to_string(), "ss -ltnp", "another port"],
    );
    let base = base_port();
    let taken = TcpListener::bind(("127.0.0.1", base + 20)).unwrap();
    let out = up(made(), base);
    let addr = format!("127.0.0.1:{}", base + 20);
    refused(&out, &["ron-ledger", &addr, "ss -ltnp", "--base-port"]);
    drop(taken);
}

#[test]
fn a_base_port_without_room_above_it() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("new");
    for command in ["init", "up", "doctor"] {
        let out = ron_on(&dir, &[command, "--base-port", "65530"]);
        assert_eq!(out.status.code(), Some(2), "{command}: {out:?}");
        refused(&out, &["65530", "--base-port", "up to 65480"]);
        assert!(!dir.exists(), "{command} made something");
    }
}

#[test]
fn a_public_name_without_tls() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("new");
    let out = ron_on(&dir, &["init", "--issuer", "http://id.example.org"]);
    refused(
        &out,
        &["plain http", "use https://id.example.org", "--issuer"],
    );
    assert!(!dir.exists(), "it made something");
}

#[test]
fn ports_that_were_chosen_stay() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (chosen, other) = (base_port(), base_port());
    let init = |port: u16| ron_on(dir, &["init", "--base-port", &port.to_string()]);
    ok(&init(chosen));
    ok(&init(chosen));
    let lost = format!("--base-port {other} was not applied");
    refused(&init(other), &[&lost, "bind_addr", "ron up --base-port"]);
    // Without the flag `ron up` listens where the configuration says.
    let mut up = ron_tests::unhurried(&mut Command::new(ron_binary()))
        .args(["up", "--data-dir"])
        .arg(dir)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(up.stdout.take().unwrap()).lines();
    let said: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| line != "ready")
        .collect();
    let listens = TcpStream::connect(("127.0.0.1", chosen + 55)).is_ok();
    let _ = up.kill();
    let _ = up.wait();
    let said = said.join("\n");
    assert!(
        listens && said.contains(&format!("127.0.0.1:{chosen} ")),
        "{said}"
    );
}

/// A copy of a program that any user may run: other users may not reach the directory of the build.
fn for_anybody(place: &Path, name: &str) -> PathBuf {
    let copy = place.join(name);
    fs::copy(ron_binary().with_file_name(name), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn a_directory_that_is_not_ours() {
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let closed = place.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o555)).unwrap();
    let root =
        fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let run = |name: &str, args: &[&str]| {
        let program = for_anybody(place.path(), name);
        let mut command = Command::new("timeout");
        command.arg("20");
        if root {
            command.args([
                "setpriv",
                "--reuid",
                NOBODY,
                "--regid",
                NOBODY,
                "--clear-groups",
            ]);
        }
        command
            .arg(program)
            .args(args)
            .current_dir("/")
            .output()
            .unwrap()
    };
    let inside = closed.join("data").display().to_string();
    let out = run("ron", &["up", "--base-port", "0", "--data-dir", &inside]);
    refused(&out, &[&inside, "Permission denied", "writable"]);
    let out = run(
        "ron-ledger",
        &[
            "--set",
            "bind_addr=127.0.0.1:0",
            "--set",
            "health_addr=127.0.0.1:0",
            "--set",
            &format!("data_dir={inside}"),
        ],
    );
    refused(
        &out,
        &[&inside, "not writable by this user", "change its owner"],
    );
}

#[test]
fn a_configuration_with_mistakes_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    let said = |text: &str, words: &[&str]| {
        fs::write(&file, text).unwrap();
        let out = service(
            "ron-kms",
            &["check-config", "--config", file.to_str().unwrap()],
        );
        refused(&out, words);
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    said(
        "bind_adr = \"127.0.0.1:1\"\n",
        &["c.toml:1", "bind_adr", "did you mean bind_addr?"],
    );
    said(
        "[log]\nlevle = \"info\"\n",
        &["c.toml:2", "log.levle", "did you mean log.level?"],
    );
    let far = said(
        "favourite_colour = \"red\"\n",
        &["favourite_colour", "print-example"],
    );
    assert!(!far.contains("did you mean"), "{far}");
    said(
        "max_conns = \"many\"\n",
        &["c.toml:1", "max_conns", "number"],
    );
    said("read_timeout = 5\n", &["read_timeout", "5s"]);
    said("read_timeout = \"5 parsecs\"\n", &["read_timeout", "5s"]);
    said("amnesia = \"yes\"\n", &["amnesia", "true or false"]);
    said("bind_addr = \"localhost\"\n", &["bind_addr", "127.0.0.1:"]);
    said(
        "[log]\nlevel = \"loud\"\n",
        &["log.level", "error, warn, info, debug, trace"],
    );
    said("max_conns = 0\n", &["max_conns", "between 1 and 100000"]);
    said("this is no toml\n", &["c.toml:1", "not valid TOML"]);
    // Keys that are good alone and not together, as the start says it.
    said("", &["data_dir", "file backend needs one"]);
    said(
        "amnesia = true\n[seal]\nkey_file = \"/k\"\npassphrase_file = \"/p\"\n",
        &["c.toml:3", "seal.key_file", "seal.passphrase_file"],
    );
    said(
        "amnesia = true\n[vault]\nmount = \"sys/transit\"\n",
        &["c.toml:3", "vault.mount", "begins with sys"],
    );
    let out = service("ron-kms", &["--config", "/no/such.toml"]);
    refused(&out, &["/no/such.toml", "No such file"]);
    let out = service("ron-kms", &["--set", "bind_adr=1"]);
    refused(&out, &["command line", "did you mean bind_addr?"]);
    let out = service(
        "ron-ledger",
        &[
            "--set",
            "bind_addr=127.0.0.1:0",
            "--set",
            "health_addr=127.0.0.1:0",
        ],
    );
    refused(&out, &["data_dir", "amnesia = true"]);
    let out = service("ron-kms", &["chekc-config"]);
    refused(&out, &["chekc-config", "check-config", "--help"]);
}

/// Variables of the environment stand for arguments that are absent, and for no others.
#[test]
fn the_environment_names_the_directory_and_the_key_service() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], named: &[(&str, &str)]| {
        Command::new(ron_binary())
            .args(args)
            .env("HOME", dir.path())
            .env_remove("XDG_STATE_HOME")
            .envs(named.iter().copied())
            .output()
            .unwrap()
    };
    let home = dir.path().join("by-name");
    let home = home.to_str().unwrap();
    ok(&run(&["init"], &[("RON_DATA_DIR", home)]));
    assert!(Path::new(home).join("ron-kms/config.toml").is_file());
    let list = ["kms", "list"];
    let named = [("RON_DATA_DIR", home), ("RON_URL", "http://127.0.0.1:9")];
    refused(&run(&list, &named), &["is not sent over plain TCP"]);
    let given = ["kms", "--url", "unix:/no/such.sock", "list"];
    refused(&run(&given, &named), &["cannot be connected to"]);
    let missing = [("RON_DATA_DIR", home), ("RON_TOKEN_FILE", "/no/such/token")];
    refused(&run(&list, &missing), &["/no/such/token"]);
    refused(&run(&list, &[("RON_DATA_DIR", "")]), &[".local/state/ron"]);
}

/// A start and `check-config` refuse what another user could have written.
#[test]
fn files_that_another_user_could_change() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("c.toml"), dir.path().join("data"));
    fs::create_dir(&data).unwrap();
    fs::write(&file, format!("data_dir = \"{}\"\n", data.display())).unwrap();
    let refuses = |path: &Path, mode: u32, words: &[&str]| {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for command in ["run", "check-config"] {
            let config = file.to_str().unwrap();
            let out = service("ron-ledger", &[command, "--config", config]);
            let name = path.display().to_string();
            refused(&out, &[words, &[&format!("chmod go-w {name}")]].concat());
        }
        fs::set_permissions(path, before).unwrap();
    };
    refuses(&file, 0o666, &["mode 0666"]);
    refuses(&file, 0o620, &["mode 0620"]);
    refuses(&data, 0o777, &["c.toml:1", "data_dir", "mode 0777"]);
    fs::set_permissions(&data, Permissions::from_mode(0o777)).unwrap();
    let out = ron_on(&data, &["init"]);
    assert!(!out.status.success());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("chmod go-w"), "{said}");
    assert_eq!(
        fs::read_dir(&data).unwrap().count(),
        0,
        "nothing is made there"
    );
}

#[test]
fn a_token_that_does_not_do() {
    let fleet = Fleet::start();
    let wallet = fleet.api_socket("svc-wallet");
    let url = format!("{wallet}/v1/balance?account=a&asset=ron");
    let said = |token: Option<&str>, status: u16, words: &[&str]| {
        let problem = json(&fleet.get(&url, token), status);
        let detail = problem["detail"].as_str().unwrap().to_owned();
        for word in words {
            assert!(detail.contains(word), "it does not say `{word}`: {problem}");
        }
    };
    said(
        None,
        401,
        &["Authorization: Bearer", "ron token --audience"],
    );
    said(
        Some("ron_nobody_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        401,
        &["auth.principals"],
    );
    said(Some("not-a-token"), 401, &["three base64url parts"]);
    let other = fleet.token("svc-rewarder", None);
    said(Some(&other), 401, &["another service", "audience"]);
    let narrow = fleet.token("svc-wallet", Some("wallet:transfer"));
    said(Some(&narrow), 403, &["wallet:read", "get a token with it"]);
    said(
        Some(&expired(&fleet, "svc-wallet")),
        401,
        &["expired", "get a new one"],
    );

    let out = fleet.ron(&["token", "--audience", "svc-nowhere"]);
    refused(&out, &["svc-passport", "issuer policy", "svc-wallet, "]);
    let out = fleet.ron(&["token", "--audience", "svc-wallet", "--scope", "wallet:fly"]);
    refused(&out, &["svc-passport", "unknown scope", "scopes_supported"]);
    let out = fleet.ron(&[
        "token",
        "--audience",
        "svc-wallet",
        "--scope",
        "ledger:read",
    ]);
    refused(&out, &["svc-passport", "issuer policy", "ledger:read"]);
    let out = fleet.ron(&["token", "--client", "nobody"]);
    refused(&out, &["clients/nobody.json"]);
    let key = "ron/app/ed25519/01890a5d-ac96-774b-bcce-b302099a8057";
    refused(
        &fleet.ron(&["kms", "get", key]),
        &["no such key", "ron kms list"],
    );
    refused(&fleet.ron(&["kms", "get", "my-key"]), &["my-key", "tenant"]);
    locked(&fleet);
}

/// A token from some minutes ago, signed by the issuer's own key, so that the test need not wait
/// for an expiry.
pub fn expired(fleet: &Fleet, audience: &str) -> String {
    let good = fleet.token(audience, None);
    let (head, rest) = good.split_once('.').unwrap();
    let payload = b64::from_url(rest.split('.').next().unwrap()).unwrap();
    let mut claims: Value = serde_json::from_slice(&payload).unwrap();
    // As old as the KMS accepts for signing.
    let then = claims["iat"].as_u64().unwrap() - 250;
    claims["iat"] = then.into();
    claims["nbf"] = then.into();
    claims["exp"] = (then + 60).into();
    let signed = format!("{head}.{}", b64::url(claims.to_string().as_bytes()));
    let body =
        json!({"key": fleet.bootstrap()["issuer_key"], "message": b64::url(signed.as_bytes())});
    let answer = fleet.kms("sign", &body, 200);
    let signature = answer["signatures"][0]["signature"].as_str().unwrap();
    format!("{signed}.{signature}")
}

/// A second program on the data directory of a running one.
fn locked(fleet: &Fleet) {
    let pid = fleet.pid().to_string();
    let out = up(fleet.dir(), 0);
    refused(&out, &["in use by process", &pid, "stop that process"]);
    let config = fleet.dir().join("ron-kms/config.toml");
    let out = service(
        "ron-kms",
        &[
            "--config",
            config.to_str().unwrap(),
            "--set",
            "bind_addr=127.0.0.1:0",
            "--set",
            "health_addr=127.0.0.1:0",
        ],
    );
    refused(&out, &["in use by process", &pid, "stop that process"]);
}

#[test]
fn a_command_that_is_misspelt_or_a_place_that_is_not_there() {
    let ron = |args: &[&str]| Command::new(ron_binary()).args(args).output().unwrap();
    refused(&ron(&["walet"]), &["walet", "wallet"]);
    refused(&ron(&["audit", "verfy"]), &["verfy", "verify"]);
    refused(&ron(&["kms", "sing"]), &["sing", "sign"]);
    refused(
        &ron(&["up", "--datadir", "x"]),
        &["--datadir", "--data-dir"],
    );
    refused(
        &ron(&["wallet", "issue", "acct:a", "1.5", "--asset", "ron"]),
        &["1.5"],
    );
    for args in [
        &["audit", "verify"][..],
        &["ledger", "verify"],
        &["rewarder", "verify"],
        &["token"],
        &["demo"],
        &["kms", "list"],
        &["policy", "sign", "--kind", "wallet", "/dev/null"],
    ] {
        let out = ron_on(Path::new("/nowhere/at/all"), args);
        refused(&out, &["/nowhere/at/all", "ron init"]);
    }
    let out = ron_on(made(), &["audit", "verify", "--log-dir", "/no/log"]);
    refused(&out, &["/no/log", "No such file"]);
    let out = ron_on(made(), &["ledger", "verify", "--log-dir", "/no/log"]);
    refused(&out, &["/no/log", "holds no log"]);
}

#[test]
fn a_service_that_does_not_run() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("p.json");
    fs::copy(made().join("policy/reward.json"), &file).unwrap();
    fs::copy(
        made().join("policy/reward.json.sig"),
        work.path().join("p.json.sig"),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let usage = work.path().join("u.csv");
    fs::write(&usage, "account,metric,amount\na,collateral,1\n").unwrap();
    let sealed = work.path().join("u.sealed");
    let (usage, sealed) = (usage.to_str().unwrap(), sealed.to_str().unwrap());
    ok(&Command::new(ron_binary())
        .args(["rewarder", "import", usage, "--out", sealed])
        .output()
        .unwrap());
    let key = "ron/app/ed25519/01890a5d-ac96-774b-bcce-b302099a8057";
    let kms = ron_tests::socket_of(made(), "ron-kms", "api");
    let log = format!("{kms}/audit/v1");
    for args in [
        &["token"][..],
        &["token", "verify", "x.y.z"],
        &["token", "revoke", "--jti", "x", "--reason", "y"],
        &["wallet", "balance", "acct:a", "--asset", "ron"],
        &["wallet", "issue", "acct:a", "1", "--asset", "ron"],
        &["kms", "list"],
        &["kms", "list", "--url", &kms],
        &["kms", "create", "--purpose", "app", "--alg", "ed25519"],
        &["kms", "sign", key, "--message", "x"],
        &["kms", "attest", key, "--out", "/dev/null"],
        &["policy", "sign", "--kind", "reward", file],
        &["audit", "rotate-key"],
        &["audit", "verify", "--url", &log],
        &[
            "rewarder",
            "compute",
            "e:1",
            "--snapshot",
            sealed,
            "--policy",
            file,
        ],
        &["rewarder", "settle", "e:1"],
        &["demo"],
    ] {
        let out = ron_on(made(), args);
        refused(&out, &["hint: is the service running?", "ron up"]);
    }
}
