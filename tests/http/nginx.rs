//! nginx as a reverse proxy in front of one of the services' ports, with a prefix directory of its
//! own and one kept-alive connection to the service, as an attacker behind a proxy would want it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ron_tests::tools::Process;
use tempfile::TempDir;

/// A running nginx, killed on drop.
pub struct Nginx {
    dir: TempDir,
    _child: Process,
    pub addr: SocketAddr,
}

const CONF: &str = "
master_process off;
daemon off;
pid nginx.pid;
error_log error.log warn;
events { worker_connections 256; }
http {
  log_format seen '$upstream_status $status $request';
  access_log access.log seen;
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
  underscores_in_headers on;
  ignore_invalid_headers off;
  merge_slashes off;
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

impl Nginx {
    /// Starts one that forwards to `backend`.
    pub fn start(backend: SocketAddr) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listen = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            free.local_addr().expect("bound")
        };
        let conf = CONF
            .replace("BACKEND", &backend.to_string())
            .replace("LISTEN", &listen.to_string());
        std::fs::write(dir.path().join("nginx.conf"), conf).expect("written");
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("nginx")
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .arg("-p")
            .arg(dir.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("nginx runs; scripts/setup.sh installs it");
        let started = Instant::now();
        while TcpStream::connect(listen).is_err() {
            assert!(started.elapsed() < Duration::from_secs(30), "nginx is up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self {
            dir,
            _child: Process(child),
            addr: listen,
        }
    }

    /// The request lines that were forwarded, in order.
    pub fn forwarded(&self) -> Vec<String> {
        let log = std::fs::read(self.dir.path().join("access.log")).expect("a log");
        let log = String::from_utf8_lossy(&log).into_owned();
        let sent = log.lines().filter(|line| !line.starts_with('-'));
        sent.map(str::to_owned).collect()
    }
}
