//! `ron init --host`: services that other hosts reach, with TLS. Another host is another loopback address here.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ron_http::{Call, ClientConfig, ClientTls, ClientTlsFiles, HttpClient};
use ron_kernel::Deadline;
use ron_tests::{Fleet, base_port, json, ok, read_json, ron_on};

const HOST: &str = "127.0.0.2";

fn certificate(dir: &Path) -> [String; 2] {
    let own = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| dir.join(name));
    fs::write(&cert, own.cert.pem()).unwrap();
    fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    [cert, key].map(|path| path.display().to_string())
}

#[test]
fn a_host_with_a_certificate_serves_others_and_one_without_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let [cert, key] = certificate(place.path());
    let new = place.path().join("new");
    let refused = |args: &[&str], words: &[&str]| {
        let out = ron_on(&new, &[&["init"], args].concat());
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{args:?}");
        for word in words {
            assert!(said.contains(word), "it does not say `{word}`: {said}");
        }
        assert!(!new.exists(), "{args:?} made something");
    };
    let files = ["--tls-cert", &cert, "--tls-key", &key];
    let with = |host: &'static str| [&["--host", host], &files[..]].concat();
    let without = [
        "plain http",
        "--tls-cert",
        "--issuer https://ron.example.org",
    ];
    refused(&["--host", "ron.example.org"], &without);
    refused(
        &with("ron.example.org"),
        &["cert.pem is not for ron.example.org"],
    );
    refused(&with("https://ron.example.org"), &["without scheme"]);
    refused(&["--tls-cert", &cert], &["--host"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&with(HOST), &["key.pem"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();

    let dir = Arc::new(tempfile::tempdir().unwrap());
    let base = base_port();
    let port = base.to_string();
    let init = [&["init", "--base-port", &port], &*with(HOST)].concat();
    let said = ok(&ron_on(dir.path(), &init));
    let issuer = format!("https://{HOST}:{}", base + 10);
    assert!(
        said.contains(&issuer) && said.contains("svc-admin and the health ports"),
        "{said}"
    );
    assert_eq!(
        read_json(&dir.path().join("bootstrap.json"))["issuer"],
        issuer
    );
    assert!(ok(&ron_on(dir.path(), &init)).contains("already complete"));
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap();
    fs::write(place.path().join("other.pem"), other.cert.pem()).unwrap();
    fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    let cert_of_other = place.path().join("other.pem").display().to_string();
    let args = [
        "init",
        "--host",
        "other",
        "--tls-cert",
        &cert_of_other,
        "--tls-key",
        &key,
    ];
    let out = ron_on(dir.path(), &args);
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(why.contains("--host other was not applied"), "{why}");
    let [cert, _] = certificate(place.path());

    // `ron up` serves at that address, with the certificate.
    let fleet = Fleet::start_in(dir);
    let wallet = fleet.api("svc-wallet");
    assert!(wallet.starts_with(&format!("https://{HOST}:")), "{wallet}");
    let token = fleet.token("svc-wallet", None);
    let tls = ClientTls::load(ClientTlsFiles {
        ca: cert.into(),
        identity: None,
    });
    let http = HttpClient::new(ClientConfig {
        tls: Some(tls.unwrap()),
        ..ClientConfig::default()
    });
    let bearer = format!("Bearer {token}");
    let get = |url: &str| {
        let mut call = Call::get(url, Deadline::within(Duration::from_secs(20)));
        let headers = [("Authorization", &*bearer)];
        call.headers = &headers;
        http.call(call)
    };
    let read = get(&format!("{wallet}/v1/balance?account=a&asset=ron")).unwrap();
    assert!(matches!(read.status, 200 | 404), "{}", read.status);
    let keys = format!(
        "{}/.well-known/openid-configuration",
        fleet.api("svc-passport")
    );
    let about = json(&get(&keys).unwrap(), 200);
    assert_eq!(about["issuer"], issuer);
    let uri = about["jwks_uri"].as_str().unwrap();
    assert!(uri.starts_with(&issuer), "{uri}");
    // Plain http is not served there, and the console and the health ports are on loopback as before.
    let plain = wallet.replace("https:", "http:");
    assert!(get(&format!("{plain}/version")).map_or(true, |reply| reply.status == 400));
    for url in [fleet.api("svc-admin"), fleet.health("svc-wallet")] {
        let port = url.strip_prefix("http://127.0.0.1:").expect(&url);
        let port: u16 = port.parse().unwrap();
        assert!(TcpStream::connect((HOST, port)).is_err(), "{url}");
    }
}
