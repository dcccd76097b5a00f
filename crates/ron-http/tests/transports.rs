//! Unix sockets and TLS: our front against our client, curl and openssl.
#![allow(clippy::disallowed_methods)] // tests measure real time and start their own clients

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use ron_http::{
    Authorizer, Call, ClientConfig, ClientTls, ClientTlsFiles, Failure, HttpClient, Limits, Listen,
    Need, Principal, RequestHead, Response, Route, Router, ServerTls, ServerTlsFiles, TlsIdentity,
    Transport, UnixEndpoint, reload_tls,
};
use ron_kernel::{Deadline, OsNet};
use ron_proto::Problem;
use support::{Served, free_port, private, router, serve_as, serve_on};
use tempfile::TempDir;

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(8))
}

fn routes() -> Router {
    let large: Arc<[u8]> = (0..5 << 20).map(|i: u32| (i % 251) as u8).collect();
    router()
        .add(Route::get("/hello", Need::Public, |_| {
            Ok(Response::text(200, "hello"))
        }))
        .add(Route::get("/large", Need::Public, move |_| {
            Ok(Response::bytes(200, "x/y", large.clone()))
        }))
        .add(Route::get("/who", Need::Identity, |request| {
            Ok(Response::text(200, request.principal.name.clone()))
        }))
        .add(
            Route::post("/length", Need::Public, |request| {
                Ok(Response::text(200, request.body.len().to_string()))
            })
            .body_cap(1 << 20),
        )
}

/// Names the caller by its connection: user id, certificate or transport.
struct ByTransport;

impl Authorizer for ByTransport {
    fn authorize(&self, head: &RequestHead, _need: &Need) -> Result<Principal, Problem> {
        let name = match (head.transport, &head.client_cert) {
            (Transport::Unix { uid }, _) => format!("uid {uid}"),
            (Transport::Tls, Some(cert)) => {
                format!("cert {} {}", cert.sha256, cert.dns_names.join(" "))
            }
            _ => return Err(Problem::unauthorized("no transport identity")),
        };
        Ok(Principal {
            name,
            ..Principal::public()
        })
    }
}

fn client(tls: Option<ClientTls>) -> HttpClient {
    HttpClient::new(ClientConfig {
        max_response_bytes: 8 << 20,
        tls,
        ..ClientConfig::default()
    })
}

fn text(client: &HttpClient, url: &str) -> String {
    let reply = client.call(Call::get(url, soon())).expect("an answer");
    assert_eq!(reply.status, 200, "{url}");
    String::from_utf8(reply.body).expect("text")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program is installed")
}

#[test]
fn one_front_answers_on_tcp_and_unix_and_knows_the_peer() {
    let dir = private();
    let path = dir.path().join("api.sock");
    let unix = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
    let listen = Listen::from(free_port()).unix(unix);
    let served = serve_as(
        listen,
        routes(),
        Limits::default(),
        2,
        Arc::new(ByTransport),
    );
    assert_eq!(served.front.unix_path(), Some(path.as_path()));
    assert_eq!(served.client().get("/hello").text(), "hello");
    assert_eq!(served.client().get("/who").status, 401);

    let client = client(None);
    let shown = path.display();
    let uid = rustix::process::geteuid().as_raw();
    for _ in 0..20 {
        assert_eq!(
            text(&client, &format!("unix:{shown}:/who")),
            format!("uid {uid}")
        );
    }
    let encoded = path.to_str().expect("text").replace('/', "%2F");
    assert_eq!(
        text(&client, &format!("http+unix://{encoded}/hello")),
        "hello"
    );
    let large = client
        .call(Call::get(&format!("unix:{shown}:/large"), soon()))
        .expect("an answer");
    assert_eq!(large.body.len(), 5 << 20);
    let body = vec![b'x'; 1 << 20];
    let to = format!("unix:{shown}:/length");
    let sent = client
        .call(Call::post_json(&to, body, soon()))
        .expect("an answer");
    assert_eq!(sent.body, (1 << 20).to_string().into_bytes());
    // Connections were reused: one of ours is open, and none was made per call.
    assert!(
        served.front.connections() <= 3,
        "{}",
        served.front.connections()
    );

    let curl = run(Command::new("curl")
        .args(["-sS", "--unix-socket"])
        .arg(&path)
        .arg("http://localhost/who"));
    assert_eq!(String::from_utf8_lossy(&curl.stdout), format!("uid {uid}"));

    served.front.stop_intake();
    served.until("the socket's file is gone", |_| !path.exists());
    let error = client
        .call(Call::get(
            &format!("unix:{}:/hello", dir.path().join("x").display()),
            soon(),
        ))
        .expect_err("nobody is there");
    assert_eq!(error.kind, Failure::NotSent);
}

#[test]
fn our_client_finds_a_socket_whose_path_is_too_long_for_the_kernel() {
    let dir = private();
    let path = dir.path().join("n".repeat(110)).join("api.sock");
    let unix = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
    let short = unix.path().to_owned();
    let served = serve_on(
        Listen::on(OsNet::shared()).unix(unix),
        routes(),
        Limits::default(),
        1,
    );
    assert_eq!(served.front.unix_path(), Some(short.as_path()), "announced");
    assert_eq!(
        text(&client(None), &format!("unix:{}:/hello", path.display())),
        "hello"
    );
    assert_eq!(
        text(&client(None), &format!("unix:{}:/hello", short.display())),
        "hello"
    );
}

#[test]
fn calls_over_unix_sockets_and_handshakes_end_in_time_and_at_shutdown() {
    let dir = private();
    let path = dir.path().join("silent.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let url = format!("unix:{}:/x", path.display());
    let brief = || Deadline::within(Duration::from_millis(300));
    let fails = |client: &HttpClient, url: &str, kind: Failure, limit: Duration| {
        let start = Instant::now();
        let call = Call::post_json(url, b"{}".to_vec(), brief());
        let error = client.call(call).expect_err("no answer");
        assert_eq!(error.kind, kind, "{url}: {error}");
        assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    };
    let limit = Duration::from_secs(20);
    fails(&client(None), &url, Failure::Unknown, limit);
    let pki = Pki::new();
    let silent = free_port();
    let addr = silent.local_addr().expect("bound");
    let https = format!("https://{addr}/x");
    fails(&pki.client(None), &https, Failure::NotSent, limit);
    // A full backlog: the request was not accepted.
    let full = dir.path().join("full.sock");
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let (family, kind) = (
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
    );
    let socket = rustix::net::socket_with(family, kind, flags, None).expect("a socket");
    let name = rustix::net::SocketAddrUnix::new(&full).expect("short");
    rustix::net::bind(&socket, &name).expect("free");
    rustix::net::listen(&socket, 0).expect("bound");
    let _first = UnixStream::connect(&full).expect("one fits");
    let url_full = format!("unix:{}:/x", full.display());
    fails(&client(None), &url_full, Failure::NotSent, limit);

    let calling = client(None);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let start = Instant::now();
            let outcome = calling.call(Call::get(&url, soon()));
            (outcome.is_err(), start.elapsed())
        });
        std::thread::sleep(Duration::from_millis(200));
        calling.shutdown();
        let (failed, took) = running.join().expect("the caller ends");
        assert!(failed && took < Duration::from_secs(3), "{took:?}");
    });
}

/// An authority, a server certificate for localhost, and client certificates.
struct Pki {
    dir: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("signed");
        let pki = Self { dir: private(), ca };
        pki.write("ca.pem", &pki.ca.pem());
        pki
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
        path
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn issue(&self, file: &str, names: &[&str]) -> TlsIdentity {
        self.issue_as(file, names, |_| ())
    }

    fn issue_as(
        &self,
        file: &str,
        names: &[&str],
        edit: fn(&mut CertificateParams),
    ) -> TlsIdentity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("names");
        // Not the authority's name, or the certificate would look self-signed.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, file);
        edit(&mut params);
        let cert = params.signed_by(&key, &self.ca).expect("signed");
        TlsIdentity {
            cert: self.write(&format!("{file}.pem"), &cert.pem()),
            key: self.write(&format!("{file}.key"), &key.serialize_pem()),
        }
    }

    fn server(&self, clients: bool) -> (Served, Arc<ServerTls>) {
        self.server_with(clients, Limits::default())
    }

    fn server_with(&self, clients: bool, limits: Limits) -> (Served, Arc<ServerTls>) {
        let files = ServerTlsFiles {
            identity: self.issue("server", &["localhost", "127.0.0.1"]),
            client_ca: clients.then(|| self.ca()),
        };
        let tls = ServerTls::load(files).expect("good files");
        let listen = Listen::on(OsNet::shared()).tcp(free_port(), Some(tls.clone()));
        let served = serve_as(listen, routes(), limits, 2, Arc::new(ByTransport));
        (served, tls)
    }

    fn client(&self, identity: Option<&TlsIdentity>) -> HttpClient {
        client(Some(
            ClientTls::load(ClientTlsFiles {
                ca: self.ca(),
                identity: identity.cloned(),
            })
            .expect("good files"),
        ))
    }

    fn curl(&self, served: &Served, more: &[&str]) -> Output {
        let url = format!("https://localhost:{}/hello", served.addr().port());
        run(Command::new("curl")
            .args(["-sS", "--max-time", "8", "--noproxy", "*", "--cacert"])
            .arg(self.ca())
            .args(more)
            .arg(url))
    }

    fn openssl(&self, served: &Served, more: &[&str]) -> String {
        let addr = served.addr().to_string();
        let out = Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &addr,
                "-servername",
                "localhost",
                "-CAfile",
            ])
            .arg(self.ca())
            .args(more)
            .stdin(Stdio::null())
            .output()
            .expect("openssl is installed");
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    }
}

#[test]
fn tls_carries_small_and_large_bodies_both_ways() {
    let pki = Pki::new();
    let (served, _tls) = pki.server(false);
    let client = pki.client(None);
    for host in ["localhost", "127.0.0.1"] {
        let url = |path: &str| format!("https://{host}:{}{path}", served.addr().port());
        for _ in 0..20 {
            assert_eq!(text(&client, &url("/hello")), "hello");
        }
        let large = client
            .call(Call::get(&url("/large"), soon()))
            .expect("an answer");
        let want: Vec<u8> = (0..5 << 20).map(|i: u32| (i % 251) as u8).collect();
        assert!(large.body == want, "all bytes, in order");
        for size in [0, 1, 16_384, 100_000, 1 << 20] {
            let to = url("/length");
            let sent = client
                .call(Call::post_json(&to, vec![b'x'; size], soon()))
                .expect("an answer");
            assert_eq!(sent.body, size.to_string().into_bytes());
        }
    }
    assert!(served.front.connections() <= 2, "connections are reused");
    let who = client
        .call(Call::get(&format!("https://{}/who", served.addr()), soon()))
        .expect("an answer");
    assert_eq!(who.status, 401, "no certificate was asked for");
}

#[test]
fn openssl_and_curl_agree_on_version_group_and_chain() {
    let pki = Pki::new();
    let (served, _tls) = pki.server(false);
    let seen = pki.openssl(&served, &["-tls1_3"]);
    assert!(seen.contains("TLSv1.3"), "{seen}");
    assert!(seen.contains("Verify return code: 0 (ok)"), "{seen}");
    assert!(
        !seen.contains("New Session Ticket"),
        "no resumption: {seen}"
    );
    let classic = pki.openssl(&served, &["-tls1_3", "-groups", "X25519"]);
    assert!(classic.contains("Verify return code: 0 (ok)"), "{classic}");
    let old = pki.openssl(&served, &["-tls1_2"]);
    assert!(old.contains("protocol version"), "{old}");
    let h2 = pki.openssl(&served, &["-alpn", "h2"]);
    assert!(h2.contains("no application protocol"), "{h2}");
    let both = pki.openssl(&served, &["-alpn", "h2,http/1.1"]);
    assert!(both.contains("ALPN protocol: http/1.1"), "{both}");

    let curl = pki.curl(&served, &[]);
    let why = String::from_utf8_lossy(&curl.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "hello", "{why}");
    let old = pki.curl(&served, &["--tls-max", "1.2"]);
    assert!(!old.status.success());
    served.until("counted", |s| {
        s.metric("t_http_rejects_total{reason=\"tls_handshake\"}") >= 3
    });
}

#[test]
fn client_certificates_are_asked_for_checked_and_named() {
    let pki = Pki::new();
    let (served, _tls) = pki.server(true);
    let node = pki.issue("node", &["node-7.example"]);
    let url = format!("https://localhost:{}/who", served.addr().port());
    let who = text(&pki.client(Some(&node)), &url);
    let pem = std::fs::read_to_string(&node.cert).expect("written");
    let hash = run(Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(&node.cert));
    let hash = String::from_utf8_lossy(&hash.stdout).trim().to_owned();
    let hash = hash.rsplit('=').next().unwrap_or("").replace(':', "");
    assert_eq!(
        who,
        format!("cert {} node-7.example", hash.to_lowercase()),
        "{pem}"
    );

    let nobody = pki
        .client(None)
        .call(Call::get(&url, soon()))
        .expect_err("a certificate is needed");
    assert_eq!(nobody.kind, Failure::NotSent, "{nobody}");
    assert!(nobody.detail.contains("asks for a certificate"), "{nobody}");
    // Also when the write, not the read, finds the connection closed.
    let url_of_length = format!("https://localhost:{}/length", served.addr().port());
    for size in [10, 1 << 10, 1 << 20].into_iter().cycle().take(9) {
        let call = Call::post_json(&url_of_length, vec![b'x'; size], soon());
        let error = pki.client(None).call(call).expect_err("no certificate");
        assert_eq!(error.kind, Failure::NotSent, "{error}");
    }
    let (other, names) = (Pki::new(), &["node-7.example"]);
    let unknown = other.issue("unknown", names);
    let expired = pki.issue_as("expired", names, |cert| {
        cert.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let servers = pki.issue_as("servers", names, |cert| {
        cert.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    for (what, identity) in [
        ("another authority's", unknown),
        ("expired", expired),
        ("for servers only", servers),
    ] {
        let refused = pki
            .client(Some(&identity))
            .call(Call::get(&url, soon()))
            .expect_err(what);
        assert_eq!(refused.kind, Failure::NotSent, "{what}: {refused}");
    }
    assert_eq!(String::from_utf8_lossy(&pki.curl(&served, &[]).stdout), "");
    let (cert, key) = (
        node.cert.display().to_string(),
        node.key.display().to_string(),
    );
    let good = pki.curl(&served, &["--cert", &cert, "--key", &key]);
    assert_eq!(String::from_utf8_lossy(&good.stdout), "hello");
}

#[test]
fn a_server_that_cannot_prove_its_name_gets_no_request() {
    let (ours, other) = (Pki::new(), Pki::new());
    let (served, _tls) = ours.server(false);
    let call = |client: &HttpClient, url: &str| {
        let call = Call::post_json(url, b"{}".to_vec(), soon());
        let error = client.call(call).expect_err("no trust");
        assert_eq!(error.kind, Failure::NotSent, "{error}");
        error.detail
    };
    let port = served.addr().port();
    let url = format!("https://localhost:{port}/length");
    assert!(call(&other.client(None), &url).contains("not trusted"));
    let wrong = format!("https://[::ffff:127.0.0.1]:{port}/length");
    assert!(call(&ours.client(None), &wrong).contains("not trusted"));
    assert!(call(&client(None), &url).contains("tls.peer_ca_path"));
    // Plain HTTP on a TLS port is not a request, and TLS on a plain port not a handshake.
    let mut plain = served.client();
    plain.send("GET /hello HTTP/1.1\r\nHost: t\r\n\r\n");
    let mut rest = Vec::new();
    let _ = plain.stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
    let clear = serve_on(free_port(), routes(), Limits::default(), 1);
    let url = format!("https://{}/length", clear.addr());
    call(&ours.client(None), &url);
}

#[test]
fn certificates_are_replaced_while_connections_continue() {
    let pki = Pki::new();
    let (served, tls) = pki.server(false);
    let url = format!("https://localhost:{}/hello", served.addr().port());
    let old = pki.client(None);
    assert_eq!(text(&old, &url), "hello");
    let serial = |seen: &str| {
        let start = seen.find("-----BEGIN").expect("a certificate");
        seen[start..start + 500].to_owned()
    };
    let before = serial(&pki.openssl(&served, &["-tls1_3"]));
    pki.issue("server", &["localhost", "127.0.0.1"]);
    assert_eq!(
        serial(&pki.openssl(&served, &["-tls1_3"])),
        before,
        "not yet"
    );
    reload_tls(&[&tls], None).expect("good files");
    assert_ne!(serial(&pki.openssl(&served, &["-tls1_3"])), before);
    assert_eq!(text(&old, &url), "hello");
    let key = pki.dir.path().join("server.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("mode");
    assert!(
        reload_tls(&[&tls], None)
            .expect_err("open to others")
            .to_string()
            .contains("server.key")
    );
    assert_eq!(
        text(&pki.client(None), &url),
        "hello",
        "the last good ones stay"
    );
    // All or nothing: the server certificate stays while the authorities for peers cannot be read.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("mode");
    let ca = pki.dir.path().join("peers.pem");
    std::fs::copy(pki.ca(), &ca).expect("copied");
    let files = ClientTlsFiles {
        ca: ca.clone(),
        identity: None,
    };
    let peers = ClientTls::load(files).expect("good files");
    let before = serial(&pki.openssl(&served, &["-tls1_3"]));
    std::fs::write(&ca, "nothing").expect("written");
    pki.issue("server", &["localhost", "127.0.0.1"]);
    let why = reload_tls(&[&tls], Some(&peers)).expect_err("no authority");
    assert!(why.to_string().contains("peers.pem"), "{why}");
    assert_eq!(serial(&pki.openssl(&served, &["-tls1_3"])), before);
    std::fs::copy(pki.ca(), &ca).expect("copied");
    reload_tls(&[&tls], Some(&peers)).expect("good files");
    assert_ne!(serial(&pki.openssl(&served, &["-tls1_3"])), before);
}

#[test]
fn slow_and_silent_handshakes_end_and_hold_no_worker() {
    let pki = Pki::new();
    let limits = Limits {
        read_timeout: Duration::from_millis(500),
        ..Limits::default()
    };
    let (served, _tls) = pki.server_with(false, limits);
    let start = Instant::now();
    let mut silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(served.addr()).expect("accepted"))
        .collect();
    for stream in &mut silent {
        // The start of a record that claims 512 bytes.
        stream.write_all(&[22, 3, 1, 2, 0, 1]).expect("taken");
    }
    let url = format!("https://localhost:{}/hello", served.addr().port());
    assert_eq!(text(&pki.client(None), &url), "hello");
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let took = start.elapsed();
    assert!(took > Duration::from_millis(400), "{took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    served.until("counted", |s| {
        s.metric("t_http_rejects_total{reason=\"tls_timeout\"}") == 20
    });
}

#[test]
fn the_end_of_a_tls_connection_is_announced() {
    let pki = Pki::new();
    let (served, _tls) = pki.server(false);
    let addr = served.addr().to_string();
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &addr, "-CAfile"])
        .arg(pki.ca())
        .args(["-verify_quiet", "-no_ign_eof", "-msg"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is installed");
    let mut to = openssl.stdin.take().expect("piped");
    to.write_all(b"GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        .expect("taken");
    let out = openssl.wait_with_output().expect("it ends");
    drop(to);
    let seen = String::from_utf8_lossy(&out.stdout);
    assert!(seen.contains("hello"), "{seen}");
    assert!(seen.contains("close_notify"), "{seen}");
}

#[test]
fn draining_ends_tls_and_unix_connections_too() {
    let pki = Pki::new();
    let (served, _tls) = pki.server(false);
    let client = pki.client(None);
    let url = format!("https://localhost:{}/hello", served.addr().port());
    assert_eq!(text(&client, &url), "hello");
    let report = served.sup.drain(Duration::from_secs(5));
    assert_eq!(report.stragglers, Vec::<String>::new());
    assert!(report.took < Duration::from_secs(2), "{:?}", report.took);
    assert!(Path::new(&pki.ca()).exists());
}
