//! Client certificates at the issuer and at a consumer: a client authenticates with one (RFC 8705),
//! its token is bound to it, and the wallet accepts that token only on connections with this
//! certificate. Called with curl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ron_proto::b64;
use ron_tests::tools::{self, Process, run_in};
use ron_tests::{Fleet, free_port, ok, own_place, takes_passports, until, workspace};
use serde_json::{Value, json};

/// An authority, a server and two clients of it; returns the SHA-256 of the first client's
/// certificate.
fn certificates(dir: &Path) -> [u8; 32] {
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    let openssl = |line: &str| tools::openssl(dir, line);
    openssl(&format!("{new} -keyout ca.key -out ca.pem -subj /CN=ca"));
    for (name, dns) in [
        ("server", "localhost"),
        ("good", "good.example"),
        ("other", "other.example"),
    ] {
        let san = format!("-addext subjectAltName=IP:127.0.0.1,DNS:{dns}");
        let by = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
        openssl(&format!(
            "{new} {by} {san} -keyout {name}.key -out {name}.pem -subj /CN={name}"
        ));
    }
    openssl("x509 -in good.pem -outform DER -out good.der");
    ron_crypto::hash::sha256(&std::fs::read(dir.join("good.der")).unwrap())
}

/// A second instance of a service, with TLS and client certificates; returns its base URL.
fn with_tls(
    dir: &Path,
    fleet: &Fleet,
    name: &str,
    config: &Path,
    more: &[String],
) -> (Process, String) {
    let place = own_place(dir, name);
    let path = |name: &str| dir.join(name).display().to_string();
    let sets = [
        "log.level=error".to_owned(),
        "tls.enabled=true".to_owned(),
        format!("tls.cert_path={}", path("server.pem")),
        format!("tls.key_path={}", path("server.key")),
        format!("tls.client_ca_path={}", path("ca.pem")),
        format!(
            "auth.jwks_url={}/.well-known/jwks.json",
            fleet.api_socket("svc-passport")
        ),
    ];
    let sets = sets.iter().chain(&place.sets).chain(more);
    let process = Process::start(&mut tools::service(name, config, sets));
    let ready = format!("http://127.0.0.1:{}/readyz", place.health);
    tools::wait_listening(("127.0.0.1", place.health));
    until(name, || takes_passports(&fleet.get(&ready, None)));
    (process, format!("https://127.0.0.1:{}", place.api))
}

/// curl with a certificate: status and body.
fn curl(dir: &Path, cert: &str, url: &str, more: &[&str]) -> (String, Value) {
    let (pem, key) = (format!("{cert}.pem"), format!("{cert}.key"));
    let mut args = vec!["--cert", &pem, "--key", &key];
    args.extend(more);
    curl_without(dir, url, &args)
}

/// curl that presents nothing: status and body.
fn curl_without(dir: &Path, url: &str, more: &[&str]) -> (String, Value) {
    let mut args = vec![
        "-s",
        "-m",
        "20",
        "-w",
        "\n%{http_code}",
        "--cacert",
        "ca.pem",
        url,
    ];
    args.extend(more);
    let out = run_in(dir, "curl", &args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').expect("a status");
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    (status.to_owned(), body)
}

/// The issuer's configuration, with a certificate for the operator's client and a client that is known by its DNS name.
fn configured(dir: &Path, fleet: &Fleet, print: &[u8]) -> PathBuf {
    let text = std::fs::read_to_string(fleet.dir().join("svc-passport/config.toml")).unwrap();
    let operator = format!(
        "[[clients]]\nid = \"operator\"\ncerts = [\"{}\"]\n",
        hex::encode(print)
    );
    let named = "\n[[clients]]\nid = \"named\"\ndns_names = [\"good.example\"]\n";
    let text = text.replace("[[clients]]\nid = \"operator\"\n", &operator) + named;
    let config = dir.join("issuer.toml");
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn a_certificate_authenticates_its_client_and_binds_its_tokens() {
    let fleet = Fleet::start();
    let certs = tempfile::tempdir().unwrap();
    let dir = certs.path();
    let print = certificates(dir);
    let config = configured(dir, &fleet, &print);
    let kms = format!("kms.url={}", fleet.api_socket("ron-kms"));
    let (_issuer, issuer) = with_tls(dir, &fleet, "svc-passport", &config, &[kms]);
    let ledger = format!("ledger.url={}", fleet.api_socket("ron-ledger"));
    let wallet = fleet.dir().join("svc-wallet/config.toml");
    let (_wallet, wallet) = with_tls(dir, &fleet, "svc-wallet", &wallet, &[ledger]);

    let url = format!("{issuer}/oauth2/token");
    let grant = "grant_type=client_credentials&audience=svc-wallet&scope=wallet:read";
    let ask = |cert: &str, more: &str| {
        let form = format!("{grant}&{more}");
        curl(dir, cert, &url, &["-d", &form])
    };
    let (status, made) = ask("good", "client_id=operator");
    assert_eq!(status, "200", "{made}");
    assert_eq!(made["token_type"], "Bearer");
    // The metadata say what works here, and where.
    for name in ["oauth-authorization-server", "openid-configuration"] {
        let (status, meta) = curl(dir, "good", &format!("{issuer}/.well-known/{name}"), &[]);
        assert_eq!(status, "200", "{meta}");
        assert_eq!(meta["token_endpoint"], url);
        let ways = meta["token_endpoint_auth_methods_supported"]
            .as_array()
            .unwrap();
        assert!(ways.contains(&"tls_client_auth".into()), "{meta}");
        assert_eq!(meta["tls_client_certificate_bound_access_tokens"], true);
    }
    let token = made["access_token"].as_str().unwrap();
    let claims = ron_auth::hybrid::payload(token).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["cnf"]["x5t#S256"], b64::url(&print));
    let refused = |got: (String, Value), status: &str, word: &str| {
        assert_eq!(
            (got.0.as_str(), &got.1["error"]),
            (status, &word.into()),
            "{}",
            got.1
        );
    };
    refused(ask("other", "client_id=operator"), "401", "invalid_client");
    refused(ask("good", "client_id=nobody"), "401", "invalid_client");
    refused(ask("good", ""), "401", "invalid_client");
    // By the DNS name in the certificate. The policy has no rule for this client, so the next check
    // refuses it.
    refused(ask("good", "client_id=named"), "400", "unauthorized_client");
    refused(ask("other", "client_id=named"), "401", "invalid_client");

    // The wallet accepts it with this certificate only, and not without one.
    let balance = format!("{wallet}/v1/balance?account=a&asset=ron");
    let bearer = format!("Authorization: Bearer {token}");
    let read = |cert: &str| curl(dir, cert, &balance, &["-H", &bearer]);
    let since = Instant::now();
    while read("good").0 == "503" && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50)); // the issuer's keys are being read
    }
    assert_eq!(read("good").0, "200", "{}", read("good").1);
    let (status, problem) = read("other");
    assert_eq!(
        (status.as_str(), &problem["details"]["reason"]),
        ("401", &"binding".into()),
        "{problem}"
    );
    let plain = format!("{}/v1/balance?account=a&asset=ron", fleet.api("svc-wallet"));
    assert_eq!(
        fleet.get(&plain, Some(token)).status,
        401,
        "no TLS, no certificate"
    );

    // An exchange keeps the binding, and needs it.
    let secret: Value =
        serde_json::from_slice(&std::fs::read(fleet.dir().join("clients/operator.json")).unwrap())
            .unwrap();
    let exchange = |more: &str| {
        let form = format!(
            "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&client_id=operator&subject_token={token}\
             &subject_token_type=urn:ietf:params:oauth:token-type:access_token{more}"
        );
        curl(dir, "good", &url, &["-d", &form])
    };
    let (status, narrower) = exchange("&caveat=asset%3Dron");
    assert_eq!(status, "200", "{narrower}");
    let kept = ron_auth::hybrid::payload(narrower["access_token"].as_str().unwrap()).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&kept).unwrap()["cnf"],
        claims["cnf"]
    );
    let secret = format!(
        "&client_secret={}",
        secret["client_secret"].as_str().unwrap()
    );
    refused(exchange(&secret), "400", "invalid_client");

    // Introspection shows the binding.
    let form = format!("client_id=operator&token={token}");
    let (status, shown) = curl(
        dir,
        "good",
        &format!("{issuer}/oauth2/introspect"),
        &["-d", &form],
    );
    assert_eq!(
        (status.as_str(), &shown["active"]),
        ("200", &true.into()),
        "{shown}"
    );
    assert_eq!(shown["cnf"], claims["cnf"]);
}

#[test]
fn clients_with_certificates_have_an_address_of_their_own() {
    let fleet = Fleet::start();
    let certs = tempfile::tempdir().unwrap();
    let dir = certs.path();
    let print = certificates(dir);
    let config = configured(dir, &fleet, &print);
    let port = free_port();
    let more = [
        format!("kms.url={}", fleet.api_socket("ron-kms")),
        format!("mtls.bind_addr=127.0.0.1:{port}"),
    ];
    let (_issuer, issuer) = with_tls(dir, &fleet, "svc-passport", &config, &more);
    let certified = format!("https://127.0.0.1:{port}");

    // Documents are public: no certificate is asked for where others are served too.
    let at = format!("{issuer}/.well-known/oauth-authorization-server");
    let (status, meta) = curl_without(dir, &at, &[]);
    assert_eq!(status, "200", "{meta}");
    assert_eq!(meta["token_endpoint"], format!("{issuer}/oauth2/token"));
    let aliases = json!({
        "token_endpoint": format!("{certified}/oauth2/token"),
        "introspection_endpoint": format!("{certified}/oauth2/introspect"),
        "revocation_endpoint": format!("{certified}/oauth2/revoke"),
    });
    assert_eq!(meta["mtls_endpoint_aliases"], aliases);
    let (status, _) = curl_without(dir, &format!("{issuer}/.well-known/jwks.json"), &[]);
    assert_eq!(status, "200");
    // The certificate of a connection counts where one is asked for; there no connection is without one.
    let form = "grant_type=client_credentials&audience=svc-wallet&client_id=operator";
    let token = |base: &str| format!("{base}/oauth2/token");
    let (status, refused) = curl(dir, "good", &token(&issuer), &["-d", form]);
    assert_eq!(
        (status.as_str(), &refused["error"]),
        ("401", &json!("invalid_client"))
    );
    assert_eq!(
        curl_without(dir, &token(&certified), &["-d", form]).0,
        "000"
    );

    let pem = |name: &str| dir.join(name);
    let out = Command::new("node")
        .arg(workspace().join("tests/interop/mtls.mjs"))
        .args([issuer.as_str(), "operator", "svc-wallet"])
        .args([pem("ca.pem"), pem("good.pem"), pem("good.key")])
        .output()
        .unwrap();
    let said: Value = serde_json::from_str(&ok(&out)).unwrap();
    let bound = json!({"x5t#S256": b64::url(&print)});
    let want = json!({"asked": token(&certified), "status": 200, "bound": bound});
    assert_eq!(said, want);
}
