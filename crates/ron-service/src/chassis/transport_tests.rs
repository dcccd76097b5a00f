//! Transports of the two ports: TCP, TLS, Unix sockets, sockets held by the service manager.

use std::net::TcpListener;
use std::path::Path;

use ron_http::{Call, ClientConfig};
use ron_kernel::{Deadline, OsNet, exit};

use super::tests::{client, config, get, health_socket, post, start, started};
use super::*;
use ron_proto::status::{Health, ServiceStatus};

#[test]
fn the_plain_health_port_takes_no_actions_and_says_where_they_are_taken() {
    let client = client();
    let refused = |pairs: &[(&str, &str)], words: &str| {
        let running = started(&[pairs, &[("actions.enable_shutdown", "true")]].concat());
        let url = format!("{}/api/v1/shutdown", running.health_url());
        let reply = post(&client, &url, "admin:operate");
        assert_eq!(reply.status, 403);
        let detail = reply.problem().unwrap().detail;
        assert!(detail.contains(words), "{detail}");
        assert!(!running.stop_requested());
        let metrics = format!("{}/metrics", running.health_url());
        assert_eq!(get(&client, &metrics).status, 200, "what is public stays");
    };
    refused(&[], "set health_uds_path");
    let (_dir, socket) = health_socket();
    refused(&[("health_uds_path", &socket)], &socket);
    let open = started(&[
        ("insecure_loopback", "true"),
        ("actions.enable_shutdown", "true"),
    ]);
    let url = format!("{}/api/v1/shutdown", open.health_url());
    assert_eq!(post(&client, &url, "admin:operate").status, 200);
    assert!(open.stop_requested());
}

#[test]
fn a_socket_for_local_programs_stands_beside_that_of_services() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (services, programs) = (path("run/api.sock"), path("client.sock"));
    let running = started(&[("uds_path", &services), ("client_uds_path", &programs)]);
    assert_eq!(running.unix_path().unwrap().to_str(), Some(&*services));
    let mode = |path: &str| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&services), mode(&programs)), (0o600, 0o666));
    for socket in [&services, &programs] {
        let url = format!("unix:{socket}:/version");
        assert_eq!(get(&client(), &url).status, 200);
    }
    drop(running);
    assert!(!Path::new(&programs).exists());
}

#[test]
fn sockets_of_the_service_manager_are_taken_over_where_they_are_the_configured_ones() {
    let held = || TcpListener::bind("127.0.0.1:0").unwrap();
    let text = |socket: &TcpListener| socket.local_addr().unwrap().to_string();
    let (api, health) = (held(), held());
    let pairs = [("bind_addr", text(&api)), ("health_addr", text(&health))];
    let pairs = pairs.each_ref().map(|(key, addr)| (*key, addr.as_str()));
    let copies = |sockets: &[&TcpListener]| {
        let copy = |socket: &&TcpListener| OsNet::adopt(socket.try_clone().unwrap()).unwrap();
        let copies = sockets.iter().map(copy);
        Inherited::from(copies.collect::<Vec<_>>())
    };
    let parts = Parts::bind_beside(&config(&pairs), copies(&[&health, &api])).unwrap();
    let bound = |socket: &SharedListener| socket.local_addr().unwrap().to_string();
    assert_eq!(bound(&parts.api), pairs[0].1);
    assert_eq!(bound(&parts.health), pairs[1].1);
    drop(parts);
    // The ports stay bound: no other process gets them while the service restarts.
    assert!(TcpListener::bind(pairs[0].1).is_err());
    let refused = |pairs: &[(&str, &str)], sockets: &[&TcpListener], words: &[&str]| {
        let error = Parts::bind_beside(&config(pairs), copies(sockets));
        let Err(error) = error else {
            panic!("a socket is left over")
        };
        assert_eq!(error.exit_code(), exit::CONFIG);
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    let other = held();
    refused(
        &pairs,
        &[&api, &health, &other],
        &[&text(&other), pairs[0].1, pairs[1].1, "ListenStream="],
    );
    let only = [pairs[0], pairs[1], ("uds_only", "true"), ("uds_path", "/x")];
    refused(&only, &[&api, &health], &[pairs[0].1, "health_addr"]);
    Parts::bind_beside(&config(&only), copies(&[&health])).unwrap();
}

/// A self-signed certificate for localhost and its key, as PEM files in a directory.
fn certificate(dir: &Path) -> [String; 2] {
    certificate_until(dir, 4096)
}

/// One that ends with the first day of this year.
fn certificate_until(dir: &Path, year: i32) -> [String; 2] {
    use std::os::unix::fs::PermissionsExt as _;
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    let pems = [made.pem(), key.serialize_pem()];
    let paths = ["cert.pem", "key.pem"].map(|name| dir.join(name));
    for (path, pem) in paths.iter().zip(pems) {
        std::fs::write(path, pem).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    paths.map(|path| path.to_str().unwrap().to_owned())
}

#[test]
fn the_api_is_served_over_tls_and_a_unix_socket_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = certificate(dir.path());
    let socket = dir.path().join("run/api.sock");
    let socket = socket.to_str().unwrap().to_owned();
    let pairs = [
        ("tls.enabled", "true"),
        ("tls.cert_path", &cert),
        ("tls.key_path", &key),
        ("uds_path", &socket),
    ];
    let mut running = started(&pairs);
    assert!(running.api_url().starts_with("https://"));
    let metrics = get(&client(), &format!("{}/metrics", running.health_url()));
    let metrics = String::from_utf8(metrics.body).unwrap();
    let name = "svc_sample_certificate_not_after_seconds{use=\"own\"} ";
    let ends = metrics.lines().find_map(|line| line.strip_prefix(name));
    assert!(ends.unwrap().parse::<f64>().unwrap() > 1.8e9, "{ends:?}");
    assert_eq!(running.unix_path().unwrap().to_str(), Some(&*socket));
    let version = |client: &HttpClient, url: String| get(client, &url).status;
    let over_unix = format!("unix:{socket}:/version");
    assert_eq!(version(&client(), over_unix.clone()), 200);
    let trusting = |cert: &str| {
        let files = ron_http::ClientTlsFiles {
            ca: cert.into(),
            identity: None,
        };
        HttpClient::new(ClientConfig {
            tls: Some(ron_http::ClientTls::load(files).unwrap()),
            ..ClientConfig::default()
        })
    };
    let url = format!("https://localhost:{}/version", running.api_addr().port());
    assert_eq!(version(&trusting(&cert), url.clone()), 200);

    // Renewed under the same paths: SIGHUP loads them although no key has changed.
    certificate(dir.path());
    let call = Call::get(&url, Deadline::within(Duration::from_secs(5)));
    assert!(trusting(&cert).call(call.clone()).is_err(), "still the old");
    let config = (*running.config()).clone();
    assert!(running.reload(config.clone()).unwrap().is_empty());
    assert_eq!(version(&trusting(&cert), url.clone()), 200);
    std::fs::remove_file(&key).unwrap();
    let refused = running.reload(config).unwrap_err().to_string();
    assert!(refused.contains("key.pem"), "{refused}");
    assert_eq!(version(&trusting(&cert), url), 200);

    let report = running.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert!(!Path::new(&socket).exists());
}

#[test]
fn an_expired_certificate_is_named_until_it_is_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = certificate_until(dir.path(), 2020);
    let authorities = dir.path().join("authorities.pem");
    let other = tempfile::tempdir().unwrap();
    let [valid, _] = certificate(other.path());
    let pems = [&cert, &valid].map(|path| std::fs::read_to_string(path).unwrap());
    std::fs::write(&authorities, pems.concat()).unwrap();
    let running = started(&[
        ("tls.enabled", "true"),
        ("tls.cert_path", &cert),
        ("tls.key_path", &key),
        ("tls.peer_ca_path", authorities.to_str().unwrap()),
    ]);
    let status = || -> ServiceStatus {
        let url = format!("{}/api/v1/status", running.health_url());
        get(&client(), &url).json().unwrap()
    };
    let said = status();
    assert_eq!((said.ready, said.health), (true, Health::Degraded));
    let plane = said.planes.iter().find(|plane| plane.name == "certificate");
    // Of the authorities one has not expired, and that is enough.
    assert_eq!(
        plane.unwrap().reason.as_deref(),
        Some(
            "the certificate in tls.cert_path expired at 2020-01-01T00:00:00.000Z: put the renewed file in its place and reload (SIGHUP)"
        )
    );
    let cause = "svc_sample_readyz_degraded{cause=\"certificate\"}";
    let metric = || {
        let metrics = get(&client(), &format!("{}/metrics", running.health_url()));
        let metrics = String::from_utf8(metrics.body).unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix(cause));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(
        (running.ready().degraded, metric()),
        (vec!["certificate".to_owned()], "1".to_owned())
    );
    certificate(dir.path());
    running.reload((*running.config()).clone()).unwrap();
    assert_eq!(
        (status().health, metric()),
        (Health::Healthy, "0".to_owned())
    );
}

#[test]
fn a_unix_socket_may_be_the_only_way_to_the_api() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("run/api.sock");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken
        .local_addr()
        .map(|addr| (taken, addr.to_string()))
        .unwrap();
    let pairs = [
        ("bind_addr", taken.1.as_str()),
        ("uds_only", "true"),
        ("uds_path", socket.to_str().unwrap()),
    ];
    Parts::bind(&config(&pairs)).expect("bind_addr is not used");
    let running = started(&pairs);
    assert_eq!(running.api_addr().port(), 0);
    assert_eq!(running.api_url(), format!("unix:{}:", socket.display()));
    assert_eq!(
        get(&client(), &format!("{}/version", running.api_url())).status,
        200
    );
}

#[test]
fn transports_that_cannot_be_had_end_the_start_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let [cert, key] = certificate(dir.path());
    let fails = |pairs: &[(&str, &str)], words: &str| {
        let error = start(&config(pairs), &Arc::default(), None).unwrap_err();
        assert_eq!(error.exit_code(), exit::CONFIG);
        assert!(error.to_string().contains(words), "{error}");
    };
    for key in ["uds_path", "health_uds_path", "client_uds_path"] {
        fails(&[(key, "/dev/null/x.sock")], "/dev/null");
        fails(&[(key, "/dev/null/x.sock")], key);
    }
    fails(&[("tls.peer_ca_path", "/nowhere.pem")], "/nowhere.pem");
    fails(&[("tls.peer_ca_path", &key)], "key.pem");
    let tls = |cert: &str, key: &str, words: &str| {
        let pairs = [
            ("tls.enabled", "true"),
            ("tls.cert_path", cert),
            ("tls.key_path", key),
        ];
        fails(&pairs, words);
    };
    tls("/nowhere.pem", &key, "/nowhere.pem");
    std::process::Command::new("chmod")
        .args(["644", &key])
        .status()
        .unwrap();
    tls(&cert, &key, "chmod 600");
}
