//! nginx serves TLS with private keys that it never sees. Its master process finds the keys, its workers sign after the fork.

use std::net::TcpStream;
use std::process::Stdio;

use ron_tests::tools::Process;
use ron_tests::{free_port, until};

use super::Rig;

/// Ended by SIGTERM: workers outlive a master that is killed.
struct Nginx(Process);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.stop();
    }
}

/// Workers of a master that is root are root too: a user whom the service knows.
fn configuration(rig: &Rig, port: u16) -> String {
    let of = |label: &str| {
        let (certificate, key) = (rig.certificate(label), Rig::uri(label, "private"));
        format!("ssl_certificate {certificate};\nssl_certificate_key \"engine:pkcs11:{key}\";\n")
    };
    let (ec, rsa, dir) = (of("ec"), of("rsa"), rig.service.dir.path().display());
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary
        .map(|name| format!("{name}_temp_path {dir}/{name};\n"))
        .concat();
    format!(
        "daemon off; pid {dir}/nginx.pid; worker_processes 2; ssl_engine pkcs11; user root;\n\
         env RON_PKCS11_CONFIG; env OPENSSL_CONF;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
         server {{\nlisten 127.0.0.1:{port} ssl;\n{ec}{rsa}ssl_session_tickets off;\nssl_session_cache off;\n\
         location / {{ return 200 \"served\"; }}\n}}\n}}\n"
    )
}

#[test]
fn nginx_serves_tls_with_keys_of_the_service() {
    let rig = Rig::start();
    let port = free_port();
    std::fs::write(rig.at("nginx.conf"), configuration(&rig, port)).unwrap();
    let mut nginx = rig.program("/usr/sbin/nginx");
    nginx.args([
        "-p",
        super::text(rig.service.dir.path()),
        "-e",
        "error.log",
        "-c",
        "nginx.conf",
    ]);
    let _nginx = Nginx(Process::start(nginx.stderr(Stdio::null())));
    until("nginx accepts connections", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let (url, resolve) = (
        format!("https://localhost:{port}/"),
        format!("localhost:{port}:127.0.0.1"),
    );
    let curl = |more: &[&str]| {
        let args = ["-sS", "--max-time", "30", "--resolve", &resolve];
        rig.run("curl", &[&args[..], more, &[&url]].concat())
    };
    for _ in 0..5 {
        assert_eq!(curl(&["--cacert", "ec.crt"]), "served");
    }
    // TLS 1.3 signs by RSA-PSS, TLS 1.2 by PKCS#1 v1.5 too.
    let old = [
        "--tls-max",
        "1.2",
        "--ciphers",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "--cacert",
        "rsa.crt",
    ];
    assert_eq!(curl(&old), "served");
    let connect = format!("127.0.0.1:{port}");
    let said = rig.plain_openssl(&[
        "s_client",
        "-connect",
        &connect,
        "-sigalgs",
        "rsa_pss_rsae_sha256",
        "-CAfile",
        "rsa.crt",
    ]);
    assert!(
        said.contains("Peer signature type: RSA-PSS") && said.contains("Verification: OK"),
        "{said}"
    );
    // One for each certificate, and one for each connection.
    rig.logged("ec", 1 + 5);
    rig.logged("rsa", 1 + 2);
    assert!(rig.audit("tail").contains("\"context\":\"pkcs11 nginx\""));
}
