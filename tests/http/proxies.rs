//! nginx and HAProxy as reverse proxies in front of one of the services' ports, each with a directory of its own and with
//! connections to the service that are used for several clients, as an attacker behind a proxy would want it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ron_tests::tools::Process;
use tempfile::TempDir;

/// A proxy and how it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Takes odd names of headers; sends a body on when it has all of it.
    NginxLenient,
    /// As it is by default, but sends bodies on as they arrive.
    NginxStreaming,
    HaproxyStrict,
    /// With `accept-invalid-http-request`.
    HaproxyLenient,
}

impl Kind {
    /// Whether the service sees a request only when the proxy has read all of it. Then each forwarded request is seen
    /// once; otherwise one that turns out to be invalid half-way may be cut off unseen.
    pub const fn buffers(self) -> bool {
        matches!(self, Self::NginxLenient)
    }
}

/// A running proxy, killed on drop.
pub struct Proxy {
    log: PathBuf,
    _dir: TempDir,
    _child: Process,
    pub addr: SocketAddr,
}

const NGINX: &str = "
master_process off;
daemon off;
pid nginx.pid;
error_log error.log warn;
events { worker_connections 256; }
http {
  log_format seen '$upstream_status $status $request';
  access_log log seen;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  client_max_body_size 16m;
  large_client_header_buffers 8 64k;
  client_header_timeout 1s;
  client_body_timeout 1s;
  lingering_time 1s;
  lingering_timeout 1s;
  SETTINGS
  upstream ours { server BACKEND; keepalive 1; }
  server {
    listen LISTEN;
    location / {
      proxy_pass http://ours;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_set_header Host $http_host;
      proxy_next_upstream off;
      proxy_ignore_client_abort on;
    }
  }
}
";

const LENIENT: &str = "underscores_in_headers on; ignore_invalid_headers off; merge_slashes off;";
const STREAMING: &str = "proxy_request_buffering off;";

/// One thread, so that the threads do not each keep connections of their own to the service. A request that reached no
/// server is logged with `<NOSRV>`.
const HAPROXY: &str = "
global
  nbthread 1
  maxconn 256
  log stdout format raw local0
  tune.maxrewrite 1024
  tune.bufsize 65536
defaults
  mode http
  log global
  log-format \"%s %ST %r\"
  option http-keep-alive
  http-reuse always
  retries 0
  timeout connect 5s
  timeout client 1s
  timeout http-request 1s
  timeout http-keep-alive 1s
  timeout server 10s
frontend in
  bind LISTEN
  SETTINGS
  default_backend out
backend out
  server ours BACKEND pool-max-conn 1
";

fn command(dir: &Path, kind: Kind, backend: SocketAddr, listen: SocketAddr) -> Command {
    let (conf, settings) = match kind {
        Kind::NginxLenient => (NGINX, LENIENT),
        Kind::NginxStreaming => (NGINX, STREAMING),
        Kind::HaproxyStrict => (HAPROXY, ""),
        Kind::HaproxyLenient => (HAPROXY, "option accept-invalid-http-request"),
    };
    let conf = conf
        .replace("BACKEND", &backend.to_string())
        .replace("LISTEN", &listen.to_string())
        .replace("SETTINGS", settings);
    std::fs::write(dir.join("conf"), conf).expect("written");
    let log = File::create(dir.join("log")).expect("a log");
    let path = std::env::var("PATH").unwrap_or_default();
    let program = match kind {
        Kind::NginxLenient | Kind::NginxStreaming => "nginx",
        Kind::HaproxyStrict | Kind::HaproxyLenient => "haproxy",
    };
    let mut command = Command::new(program);
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    if program == "nginx" {
        command
            .arg("-p")
            .arg(dir)
            .args(["-c", "conf", "-e", "error.log"]);
        command.stdout(Stdio::null());
    } else {
        command
            .arg("-db")
            .arg("-f")
            .arg(dir.join("conf"))
            .stdout(log);
    }
    command.stderr(Stdio::inherit());
    command
}

impl Proxy {
    /// Starts one that forwards to `backend`.
    pub fn start(kind: Kind, backend: SocketAddr) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listen = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            free.local_addr().expect("bound")
        };
        let child = command(dir.path(), kind, backend, listen).spawn();
        let child = child.unwrap_or_else(|e| panic!("{kind:?} (see scripts/setup.sh): {e}"));
        let started = Instant::now();
        while TcpStream::connect(listen).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{kind:?} is up"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            log: dir.path().join("log"),
            _dir: dir,
            _child: Process(child),
            addr: listen,
        }
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(&self.log).expect("a log");
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The request lines that were forwarded, in order.
    pub fn forwarded(&self) -> Vec<String> {
        let log = self.log();
        // nginx logs `-` for the status of a server that was not asked, HAProxy `<NOSRV>` for the server; other lines of
        // HAProxy are about itself.
        let sent = log.lines().filter(|line| {
            line.starts_with("ours ") || line.starts_with(|c: char| c.is_ascii_digit())
        });
        sent.map(str::to_owned).collect()
    }
}
