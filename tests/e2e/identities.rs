//! Callers without tokens: a client certificate over TLS, a user id on the Unix socket, called with
//! curl on a `ron-kms` that runs alone.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown};
use ron_tests::tools::{Process, openssl, run_in};
use ron_tests::{base_port, ok, ron_binary, ron_on};

/// An authority, a server and three clients: `good` and `other` of that authority, `foreign`
/// self-signed.
fn certificates(dir: &Path) -> String {
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    for own in ["ca", "foreign"] {
        openssl(
            dir,
            &format!("{new} -keyout {own}.key -out {own}.pem -subj /CN={own}"),
        );
    }
    for name in ["server", "good", "other"] {
        let san = "-addext subjectAltName=IP:127.0.0.1,DNS:localhost";
        let by = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
        openssl(
            dir,
            &format!("{new} {by} {san} -keyout {name}.key -out {name}.pem -subj /CN={name}"),
        );
    }
    let print = openssl(dir, "x509 -in good.pem -noout -fingerprint -sha256");
    let print = print.trim().split('=').nth(1).expect("a fingerprint");
    print.replace(':', "")
}

fn start(dir: &Path, base: u16, fingerprint: &str) -> Process {
    let config = dir.join("ron-kms/config.toml");
    let uid = fs::metadata(dir).expect("there").uid();
    let mut text = fs::read_to_string(&config).expect("made by init");
    write!(
        text,
        "\n[[auth.principals]]\nname = \"by-cert\"\nscopes = [\"kms:read\"]\ncerts = [\"{fingerprint}\"]\n\
         \n[[auth.principals]]\nname = \"by-uid\"\nscopes = [\"kms:read\"]\nuids = [\"{uid}\"]\n"
    )
    .expect("a String takes all");
    fs::write(&config, text).expect("writable");
    let sockets = dir.join("sockets");
    let mut private = fs::DirBuilder::new();
    private.mode(0o700).create(&sockets).expect("made");
    let path = |name: &str| dir.join(name).display().to_string();
    let child = Command::new(ron_binary().with_file_name("ron-kms"))
        .arg("--config")
        .arg(&config)
        .args(["--set", "log.level=warn", "--set", "tls.enabled=true"])
        .args(["--set", &format!("bind_addr=127.0.0.1:{base}")])
        .args(["--set", &format!("tls.cert_path={}", path("server.pem"))])
        .args(["--set", &format!("tls.key_path={}", path("server.key"))])
        .args(["--set", &format!("tls.client_ca_path={}", path("ca.pem"))])
        .args(["--set", &format!("uds_path={}", path("sockets/kms.sock"))])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let kms = Process(child);
    let (_keep, never) = Shutdown::pair();
    let patience = Deadline::within(Duration::from_secs(30));
    let url = format!("http://127.0.0.1:{}/healthz", base + 5);
    while curl(dir, &["-o", "/dev/null", &url]).0 != "200" {
        assert!(!patience.expired(), "ron-kms does not answer");
        never.wait(Deadline::within(Duration::from_millis(50)));
    }
    kms
}

/// Status and body; the status is 000 when there was no response.
fn curl(dir: &Path, args: &[&str]) -> (String, String) {
    let mut all = vec!["-s", "-m", "10", "-w", "\n%{http_code}"];
    all.extend(args);
    let out = run_in(dir, "curl", &all);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn certificates_and_user_ids_name_callers() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let dir = dir.path();
    let base = base_port();
    ok(&ron_on(dir, &["init", "--base-port", &base.to_string()]));
    let fingerprint = certificates(dir);
    let kms = start(dir, base, &fingerprint);

    let keys = format!("https://127.0.0.1:{base}/v1/kms/keys");
    let with = |name: &str, more: &[&str]| {
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key"));
        let mut args = vec!["--cacert", "ca.pem", "--cert", &cert, "--key", &key, &keys];
        args.extend(more);
        curl(dir, &args)
    };
    let (status, body) = with("good", &[]);
    assert_eq!(status, "200", "{body}");
    assert!(body.contains("keys"), "{body}");
    let create = ["-H", "content-type: application/json", "-d", "{}"];
    assert_eq!(with("good", &create).0, "403", "it may only read");
    let (status, body) = with("other", &[]);
    assert_eq!(status, "401", "nobody is known by this one: {body}");
    let token = ["-H", "authorization: Bearer ron_by-cert_x"];
    assert_eq!(with("good", &token).0, "401", "a wrong token stays wrong");
    assert_eq!(with("foreign", &[]).0, "000", "of no authority");
    assert_eq!(curl(dir, &["--cacert", "ca.pem", &keys]).0, "000", "none");

    let socket = ["--unix-socket", "sockets/kms.sock"];
    let here = |more: &[&str]| {
        let url = ["http://localhost/v1/kms/keys"];
        curl(dir, &[&socket[..], &url[..], more].concat())
    };
    assert_eq!(here(&[]).0, "200");
    assert_eq!(here(&create).0, "403");
    assert_eq!(here(&token).0, "401");

    let pid = kms.0.id().to_string();
    ok(&run_in(dir, "kill", &["-TERM", &pid]));
    let mut kms = kms;
    assert_eq!(kms.0.wait().expect("it ends").code(), Some(0));
}
