//! `ron kms ssh-sign`: files and commits, verified by OpenSSH and git, which know nothing of ron.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ron_tests::{Fleet, ok, ron_binary};

const SIGNER: &str = "dev@example.org";

/// Makes a key, and files with its public key: for `ssh-sign`, and as an allowed signer.
fn key(fleet: &Fleet, dir: &Path, (alg, payload): (&str, &str)) -> String {
    let args = [
        "kms",
        "create",
        "--purpose",
        "git",
        "--alg",
        alg,
        "--payload",
        payload,
    ];
    let key = ok(&fleet.ron(&args)).trim().to_owned();
    write_public(fleet, dir, &key);
    key
}

fn write_public(fleet: &Fleet, dir: &Path, key: &str) {
    let line = ok(&fleet.ron(&["kms", "get", key, "--public", "ssh"]));
    std::fs::write(dir.join("id.pub"), &line).unwrap();
    std::fs::write(dir.join("allowed"), format!("{SIGNER} {line}")).unwrap();
}

/// A script that is `ron kms ssh-sign` over this data directory, as git's setting needs one.
fn script(fleet: &Fleet, dir: &Path) -> String {
    let path = dir.join("ssh-sign");
    let text = format!(
        "#!/bin/sh\nexec {} kms --data-dir {} ssh-sign \"$@\"\n",
        ron_binary().display(),
        fleet.dir().display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Whether OpenSSH takes the signature of this file.
fn verifies(dir: &Path, program: &str, file: &str) -> bool {
    let args = [
        "-Y", "verify", "-f", "allowed", "-I", SIGNER, "-n", "file", "-s", "text.sig",
    ];
    let status = Command::new(program)
        .args(args)
        .current_dir(dir)
        .stdin(File::open(dir.join(file)).unwrap())
        .stdout(Stdio::null())
        .status();
    status.unwrap().success()
}

#[test]
fn openssh_verifies_what_the_kms_signed() {
    let fleet = Fleet::start();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let program = script(&fleet, dir);
    // More than a request of the KMS holds: the file is hashed by the program.
    std::fs::write(dir.join("text"), vec![b'x'; 200_000]).unwrap();
    std::fs::write(dir.join("other"), vec![b'y'; 200_000]).unwrap();
    for made in [
        ("ed25519", "any"),
        ("ecdsa-p256", "prehash"),
        ("ecdsa-p384", "any"),
        ("rsa-2048", "prehash"),
    ] {
        let key = key(&fleet, dir, made);
        let sign = |more: &[&str]| {
            let _ = std::fs::remove_file(dir.join("text.sig")); // of the key before
            let args = ["-Y", "sign", "-n", "file", "-f", "id.pub"];
            let mut command = Command::new(&program);
            command.args(args).args(more).arg("text");
            command.current_dir(dir).output().unwrap()
        };
        for more in [&[][..], &["-O", "hashalg=sha256"], &["-U"]] {
            ok(&sign(more));
            assert!(verifies(dir, "ssh-keygen", "text"), "{made:?} {more:?}");
            assert!(!verifies(dir, "ssh-keygen", "other"), "{made:?}");
            // Other operations are ssh-keygen's own.
            assert!(verifies(dir, &program, "text") && !verifies(dir, &program, "other"));
        }
        // After a rotation the public key is another one, and says so.
        ok(&fleet.ron(&["kms", "rotate", &key]));
        let refused = sign(&[]);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && why.contains("signs now, 2"),
            "{why}"
        );
    }
}

#[test]
fn git_signs_commits_and_shows_that_they_are_good() {
    let fleet = Fleet::start();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    key(&fleet, dir, ("ed25519", "any"));
    let program = script(&fleet, dir);
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-C", &at("repo")]).args(args);
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_CONFIG_NOSYSTEM", "1");
        ok(&command.output().unwrap())
    };
    std::fs::create_dir(dir.join("repo")).unwrap();
    git(&["init", "--quiet"]);
    for (name, value) in [
        ("user.name", "Dev"),
        ("user.email", SIGNER),
        ("gpg.format", "ssh"),
        ("gpg.ssh.program", &program),
        ("gpg.ssh.allowedSignersFile", &at("allowed")),
        ("user.signingkey", &at("id.pub")),
    ] {
        git(&["config", name, value]);
    }
    git(&["commit", "--quiet", "--allow-empty", "-S", "-m", "signed"]);
    let shown = git(&["log", "--show-signature", "-1"]);
    assert!(
        shown.contains(&format!("Good \"git\" signature for {SIGNER}")),
        "{shown}"
    );
    git(&["tag", "-s", "v1", "-m", "signed too"]);
    git(&["verify-tag", "v1"]);
}
