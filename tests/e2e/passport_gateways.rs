//! The forward endpoint behind gateways: tokens that are bound to a key, with their proofs, behind nginx; and Caddy.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use ron_http::{Method, Reply};
use ron_tests::issuer::bare;
use ron_tests::tools::{Process, wait_listening};
use ron_tests::{Fleet, free_port, ok, workspace};

use crate::passport_interop::{
    nginx, nginx_blocks, nginx_http, nginx_port, replaced, with_public_socket,
};

const ORDERS: &str = "https://orders.example.org/";

/// A client `shop` of a service of others.
struct Shop<'a> {
    fleet: &'a Fleet,
    /// The file with the key of its bound tokens.
    key: String,
}

impl<'a> Shop<'a> {
    fn open(fleet: &'a Fleet, dir: &Path) -> Self {
        let scopes = ["--scope", "orders:read orders:write"];
        ok(&fleet.ron(&[&["audience", "add", ORDERS], &scopes[..]].concat()));
        let client = ["client", "add", "shop", "--audience", ORDERS, "--secret"];
        ok(&fleet.ron(&[&client[..], &scopes[..]].concat()));
        let key = dir.join("holder.key").display().to_string();
        bare(&["token", "key", &key]);
        Self { fleet, key }
    }

    fn token(&self, more: &[&str]) -> String {
        let ask = ["token", "--client", "shop", "--audience", ORDERS];
        let out = self.fleet.ron(&[&ask[..], more].concat());
        ok(&out).trim().to_owned()
    }

    fn proof(&self, token: &str, method: &str, url: &str) -> String {
        let of = ["token", "proof", token, "--key", &self.key];
        let proof = bare(&[&of[..], &["--method", method, "--url", url]].concat());
        proof.trim().to_owned()
    }

    fn presents(&self, url: &str, token: &str, proofs: &[&str], more: &[(&str, &str)]) -> Reply {
        let scheme = format!("DPoP {token}");
        let mut headers = vec![("Authorization", &*scheme)];
        headers.extend(proofs.iter().map(|proof| ("DPoP", *proof)));
        headers.extend(more);
        self.fleet.send(Method::GET, url, None, None, &headers)
    }
}

fn refused(reply: &Reply, error: &str) {
    let challenge = reply.header("www-authenticate").unwrap_or_default();
    assert_eq!(reply.status, 401, "{challenge}");
    assert!(
        challenge.starts_with("DPoP algs=") && challenge.contains(error),
        "{challenge}"
    );
}

#[test]
fn a_bound_token_passes_nginx_with_the_proof_for_the_callers_request() {
    let (fleet, socket, dir) = with_public_socket();
    let shop = Shop::open(&fleet, dir.path());
    let (port, nameless) = (nginx_port(), nginx_port());
    let [_, _, server] = nginx_blocks();
    let www = format!("{}/www", dir.path().display());
    let unix = "unix:/run/ron-public/svc-passport.sock:";
    let server = replaced(&server, "/srv/www", &www);
    let server = replaced(&server, unix, &format!("unix:{socket}:"));
    let base = "&base=https://orders.example.org";
    let at = |port: u16| replaced(&server, "127.0.0.1:8081", &format!("127.0.0.1:{port}"));
    let own = format!("&base=https://other.example&base=http://127.0.0.1:{port}");
    let servers = replaced(&at(port), base, &own) + &replaced(&at(nameless), base, "");
    let _nginx = nginx(dir.path(), &nginx_http(dir.path(), &servers), port);

    let url = format!("http://127.0.0.1:{port}/page.txt");
    let token = shop.token(&["--key", &shop.key]);
    let asked = format!("{url}?a=b");
    let get = |proofs: &[&str]| shop.presents(&asked, &token, proofs, &[]);
    let good = shop.proof(&token, "GET", &url);
    let reply = get(&[&good]);
    assert_eq!((reply.status, &reply.body[..]), (200, &b"the page"[..]));
    assert_eq!(reply.header("x-served-to"), Some("shop"));
    refused(&get(&[&good]), "invalid_dpop_proof");

    let other_path = shop.proof(&token, "GET", &format!("{url}.bak"));
    refused(&get(&[&other_path]), "invalid_dpop_proof");
    let other_method = shop.proof(&token, "POST", &url);
    refused(&get(&[&other_method]), "invalid_dpop_proof");
    let issuer = format!("{}/v1/passport/forward", fleet.api("svc-passport"));
    refused(
        &get(&[&shop.proof(&token, "GET", &issuer)]),
        "invalid_dpop_proof",
    );
    let other_token = shop.token(&["--key", &shop.key, "--ttl", "1m"]);
    refused(
        &get(&[&shop.proof(&other_token, "GET", &url)]),
        "invalid_dpop_proof",
    );
    refused(&get(&[]), "invalid_token");
    let two = [1, 2].map(|_| shop.proof(&token, "GET", &url));
    refused(&get(&[&two[0], &two[1]]), "invalid_token");
    refused(&fleet.get(&url, Some(&token)), "invalid_token");
    // What the caller says of its request does not count, and a proof that did not pass is not used up.
    let said = [
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Uri", "/page.txt.bak"),
    ];
    let reply = shop.presents(&url, &token, &[&other_method], &said);
    refused(&reply, "invalid_dpop_proof");
    let odd = format!("{url}/..//page.txt");
    let reply = shop.presents(&odd, &token, &[&shop.proof(&token, "GET", &odd)], &[]);
    refused(&reply, "invalid_token");
    let write = shop.token(&["--key", &shop.key, "--scope", "orders:write"]);
    let proof = shop.proof(&write, "GET", &url);
    assert_eq!(shop.presents(&url, &write, &[&proof], &[]).status, 403);
    assert_eq!(get(&[&two[0]]).status, 200);
    // A plain token needs no proof, and none makes it a bound one.
    let plain = shop.token(&["--scope", "orders:read"]);
    assert_eq!(fleet.get(&url, Some(&plain)).status, 200);
    let proof = shop.proof(&plain, "GET", &url);
    refused(
        &shop.presents(&url, &plain, &[&proof], &[]),
        "invalid_dpop_proof",
    );
    // A gateway without a name, and a caller that is no gateway.
    let url = format!("http://127.0.0.1:{nameless}/page.txt");
    let proof = shop.proof(&token, "GET", &url);
    refused(
        &shop.presents(&url, &token, &[&proof], &[]),
        "invalid_token",
    );
    let sole = format!("{issuer}?audience={ORDERS}&base=https://evil.example");
    let proof = shop.proof(&token, "GET", "https://evil.example/page.txt");
    let said = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Uri", "/page.txt"),
    ];
    refused(
        &shop.presents(&sole, &token, &[&proof], &said),
        "invalid_token",
    );
    let wrong = format!("{issuer}?audience={ORDERS}&base=https://orders.example.org/api");
    assert_eq!(fleet.get(&wrong, Some(&plain)).status, 400);
}

/// Whether a request has arrived with its body.
fn is_whole(asked: &str) -> bool {
    let Some((head, body)) = asked.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

/// A service that answers with a header that it gets of its caller, and with the body of the request.
fn service(header: &'static str) -> (u16, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = String::new();
            let mut piece = [0; 4096];
            while !is_whole(&asked) {
                match stream.read(&mut piece) {
                    Ok(read) if read > 0 => asked += &String::from_utf8_lossy(&piece[..read]),
                    _ => break,
                }
            }
            if asked.starts_with("stop") {
                return;
            }
            let named = |line: &&str| line.to_lowercase().starts_with(header);
            let names: Vec<&str> = asked.lines().filter(named).collect();
            let body = asked.split("\r\n\r\n").nth(1).unwrap_or_default();
            let said = format!("{} {body}", names.join(" "));
            let length = said.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all((head + &said).as_bytes());
        }
    });
    (port, thread)
}

/// Caddy with the configuration of `docs/nginx.md`, once it listens at the port.
fn caddy(dir: &Path, socket: &str, port: u16, service: u16) -> Process {
    let page = std::fs::read_to_string(workspace().join("docs/nginx.md")).unwrap();
    let site = page.split("```caddy\n").nth(1).unwrap();
    let mut site = site.split("```").next().unwrap().to_owned();
    for (from, into) in [
        ("/run/ron-public/svc-passport.sock", socket.to_owned()),
        (
            "base=https://orders.example.org",
            format!("base=http://127.0.0.1:{port}"),
        ),
        (
            "orders.example.org {",
            format!("http://127.0.0.1:{port} {{\n\tbind 127.0.0.1"),
        ),
        ("127.0.0.1:5000", format!("127.0.0.1:{service}")),
    ] {
        site = replaced(&site, from, &into);
    }
    let config = dir.join("Caddyfile");
    std::fs::write(
        &config,
        format!("{{\n\tadmin off\n\tauto_https off\n}}\n{site}"),
    )
    .unwrap();
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(&config).current_dir(dir);
    for home in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env(home, dir);
    }
    let process = Process::start(command.stderr(Stdio::null()));
    wait_listening(("127.0.0.1", port));
    process
}

#[test]
fn caddy_protects_a_service_with_the_forward_endpoint() {
    let (mut fleet, socket, dir) = with_public_socket();
    let shop = Shop::open(&fleet, dir.path());
    let (service, answers) = service("x-subject:");
    let port = free_port();
    let caddy = caddy(dir.path(), &socket, port, service);
    let url = format!("http://127.0.0.1:{port}/orders/7");
    let reply = fleet.get(&url, None);
    assert_eq!(
        (reply.status, reply.header("www-authenticate")),
        (401, Some("Bearer"))
    );
    assert_eq!(fleet.get(&url, Some("not.a.token")).status, 401);
    let read = shop.token(&["--scope", "orders:read"]);
    let forged = [("X-Subject", "root"), ("X-Forwarded-Method", "GET")];
    let reply = fleet.send(Method::GET, &url, Some(&read), None, &forged);
    let said = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!((reply.status, &*said), (200, "X-Subject: shop "));
    let reply = fleet.send(Method::POST, &url, Some(&read), Some("an order"), &[]);
    let said = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!((reply.status, &*said), (200, "X-Subject: shop an order"));
    assert_eq!(
        fleet
            .get(&url, Some(&shop.token(&["--scope", "orders:write"])))
            .status,
        403
    );
    let (posting, routed, near) = ("method=POST", "route=/orders", "ip_cidr=127.0.0.0/8");
    let forged = [
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Uri", "/orders"),
        ("X-Forwarded-For", "192.0.2.7"),
    ];
    for (caveat, status) in [
        (posting, 403),
        (routed, 200),
        ("route=/reports", 403),
        (near, 200),
        ("ip_cidr=192.0.2.0/24", 403),
    ] {
        let token = shop.token(&["--caveat", caveat]);
        let reply = fleet.send(Method::GET, &url, Some(&token), None, &forged);
        assert_eq!(reply.status, status, "{caveat}");
    }
    let token = shop.token(&["--key", &shop.key]);
    let proof = shop.proof(&token, "GET", &url);
    assert_eq!(shop.presents(&url, &token, &[&proof], &[]).status, 200);
    refused(
        &shop.presents(&url, &token, &[&proof], &[]),
        "invalid_dpop_proof",
    );
    refused(&fleet.get(&url, Some(&token)), "invalid_token");
    drop(shop);
    fleet.kill();
    assert_eq!(
        fleet.get(&url, Some(&read)).status,
        502,
        "the issuer is gone"
    );
    drop(caddy);
    let _ =
        TcpStream::connect(("127.0.0.1", service)).and_then(|mut s| s.write_all(b"stop\r\n\r\n"));
    answers.join().unwrap();
}

#[test]
fn caddy_passes_no_header_of_the_caller_on_where_the_issuers_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("svc-passport.sock");
    let issuer = UnixListener::bind(&socket).unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = issuer.accept().unwrap();
        let mut asked = String::new();
        let mut piece = [0; 4096];
        while !asked.contains("\r\n\r\n") {
            let read = stream.read(&mut piece).unwrap();
            asked += &String::from_utf8_lossy(&piece[..read]);
        }
        let named = "X-Subject: shop\r\nX-Client: shop\r\nX-Scope:\r\n";
        let answer = format!("HTTP/1.1 200 OK\r\n{named}Content-Length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let (service, answers) = service("x-scope:");
    let port = free_port();
    let caddy = caddy(dir.path(), &socket.display().to_string(), port, service);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let asked = "GET /orders/7 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Scope: orders:admin\r\nConnection: close\r\n\r\n";
    let asked = asked.replace("Host: 127.0.0.1", &format!("Host: 127.0.0.1:{port}"));
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!answer.contains("orders:admin"), "{answer}");
    answering.join().unwrap();
    drop(caddy);
    let _ =
        TcpStream::connect(("127.0.0.1", service)).and_then(|mut s| s.write_all(b"stop\r\n\r\n"));
    answers.join().unwrap();
}
