//! `ssh` logs in to a local sshd with a key that the service keeps.

use std::net::TcpStream;
use std::process::Stdio;

use ron_tests::tools::Process;
use ron_tests::{free_port, pkcs11_module, until};

use super::{KEYS, Rig, text};

#[test]
fn ssh_logs_in_with_keys_of_the_service() {
    let rig = Rig::start();
    rig.run(
        "ssh-keygen",
        &["-q", "-t", "ed25519", "-N", "", "-f", "host"],
    );
    let keys = rig.run("ssh-keygen", &["-D", text(&pkcs11_module())]);
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!(keys.len(), 3, "{keys:?}");
    let (port, dir) = (free_port(), rig.service.dir.path().display());
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized\nPidFile none\nUsePAM no\n\
         StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
    );
    std::fs::write(rig.at("sshd_config"), config).unwrap();
    let host = std::fs::read_to_string(rig.at("host.pub")).unwrap();
    std::fs::write(rig.at("known"), format!("[127.0.0.1]:{port} {host}")).unwrap();
    // The service manager makes it where sshd is a service; a sshd that is not root needs none.
    let _ = std::fs::create_dir("/run/sshd");
    let mut sshd = rig.program("/usr/sbin/sshd");
    sshd.args(["-D", "-e", "-f", text(&rig.at("sshd_config"))]);
    let mut sshd = Process::start(sshd.stderr(Stdio::null()));
    until("sshd accepts connections", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let (port, user) = (port.to_string(), rig.run("id", &["-un"]));
    let (module, to) = (
        format!("PKCS11Provider={}", pkcs11_module().display()),
        format!("{}@127.0.0.1", user.trim()),
    );
    for ((label, _), key) in KEYS.iter().zip(in_order(&keys)) {
        std::fs::write(rig.at("authorized"), format!("{key}\n")).unwrap();
        let options = [
            "-o",
            "UserKnownHostsFile=known",
            "-o",
            "IdentityFile=none",
            "-o",
            "BatchMode=yes",
            "-o",
            &module,
        ];
        let said = rig.run(
            "ssh",
            &[
                &["-F", "none", "-p", &port][..],
                &options,
                &[&to, "echo", "logged in"],
            ]
            .concat(),
        );
        assert_eq!(said.trim(), "logged in");
        rig.logged(label, 1);
    }
    assert!(rig.audit("tail").contains("\"context\":\"pkcs11 ssh\""));
    let _ = sshd.stop();
}

/// The lines of the keys in the order of [`KEYS`].
fn in_order<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let kinds = ["ecdsa-sha2-nistp256 ", "ecdsa-sha2-nistp384 ", "ssh-rsa "];
    let of = |kind: &str| *lines.iter().find(|line| line.starts_with(kind)).unwrap();
    kinds.map(of).into()
}
