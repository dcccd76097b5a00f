//! Signatures and envelopes of the KMS, and a SoftHSM token by three ways: directly, through the KMS, through PARSEC.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::bench::{build, built, places};
use crate::cmd::{Cmd, require};
use crate::files;
use crate::task::{Args, Failure, Outcome};

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const PIN: &str = "648219";

/// A fresh SoftHSM token, gone when the task ends.
struct Token {
    work: TempDir,
    slot: String,
}

impl Token {
    fn new() -> Outcome<Self> {
        let work = files::scratch("token")?;
        files::create_dir(&work.path().join("tokens"))?;
        let config = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
            work.path().join("tokens").display()
        );
        files::write(&work.path().join("softhsm2.conf"), &config)?;
        let mut token = Self {
            work,
            slot: String::new(),
        };
        let printed = token
            .user("softhsm2-util".as_ref())
            .args(["--init-token", "--free", "--label", "bench"])
            .args(["--so-pin", "12345678", "--pin", PIN])
            .measured()?;
        let slot = printed.rsplit(|c: char| !c.is_ascii_digit()).next();
        slot.unwrap_or("").clone_into(&mut token.slot);
        Ok(token)
    }

    /// A command that sees the token.
    fn user(&self, program: &Path) -> Cmd {
        Cmd::new(program).env("SOFTHSM2_CONF", self.work.path().join("softhsm2.conf"))
    }

    /// A file of the PIN that only its owner reads, as the programs want it.
    fn pin_file(&self) -> Outcome<PathBuf> {
        let path = self.work.path().join("pin");
        files::write(&path, "")?;
        let mode = fs::set_permissions(&path, fs::Permissions::from_mode(0o600));
        mode.map_err(|e| Failure(format!("cannot close {} to others: {e}", path.display())))?;
        files::write(&path, &format!("{PIN}\n"))?;
        Ok(path)
    }
}

/// What docs/bench/kms.md reports, in one run on one machine.
pub fn kms(args: &Args) -> Outcome {
    let (seconds, profile) = (args.text("seconds"), args.text("profile"));
    let dir = args.path("dir")?;
    let _places = places(&dir, &["kms", "fair", "envelope"])?;
    files::create_dir(&dir.join("kms"))?;
    files::create_dir(&dir.join("fair"))?;
    build(profile, "--workspace --bins --examples")?;
    let load = built(profile).join("load");
    println!("## The library alone");
    Cmd::new(&load).args(["raw", "--seconds", seconds]).run()?;
    if Path::new(MODULE).exists() {
        let token = Token::new()?;
        let pin = token.pin_file()?;
        println!("\n## A SoftHSM token, called directly");
        token
            .user(&load)
            .args(["token", "--seconds", seconds, "--module", MODULE])
            .arg("--pin-file")
            .arg(&pin)
            .run()?;
        let service = token.user(&load);
        durable(args, service, &built(profile), &dir, Some(&pin))?;
    } else {
        eprintln!("no SoftHSM here: apt-get install softhsm2");
        durable(args, Cmd::new(&load), &built(profile), &dir, None)?;
    }
    println!("\n## One tenant beside another");
    Cmd::new(&load)
        .args(["kms-fair", "--seconds", seconds, "--dir"])
        .arg(dir.join("fair"))
        .run()?;
    println!("\n## Envelope operations");
    Cmd::new(&load)
        .args(["fleet", "--only", "envelope", "--seconds", seconds])
        .arg("--dir")
        .arg(dir.join("envelope"))
        .run()
}

/// The service with durable audit, and with the token if there is one.
fn durable(args: &Args, load: Cmd, programs: &Path, dir: &Path, pin: Option<&Path>) -> Outcome {
    println!("\n## The service, durable audit on");
    let mut load = load
        .args(["kms", "--seconds", args.text("seconds"), "--dir"])
        .arg(dir.join("kms"))
        .arg("--kms")
        .arg(programs.join("ron-kms"));
    if let Some(pin) = pin {
        load = load.args(["--module", MODULE, "--pin-file"]).arg(pin);
    }
    load.run()
}

/// P-256 signatures in the same kind of token through a PARSEC service.
pub fn parsec(args: &Args) -> Outcome {
    let needed = "apt-get install cmake libclang-dev softhsm2";
    require(&["cmake", "softhsm2-util"], needed)?;
    let target = files::target().join("parsec");
    let program = parsec_programs(&target)?;
    let token = Token::new()?;
    let socket = token.work.path().join("parsec.sock");
    let config = token.work.path().join("config.toml");
    files::write(&config, &parsec_config(&token, &socket))?;
    let mut service = token.user(&program).arg("-c").arg(&config).start()?;
    let is_socket = || fs::metadata(&socket).is_ok_and(|m| m.file_type().is_socket());
    for _ in 0..100 {
        if is_socket() || service.ended().is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    if !is_socket() {
        return Err(Failure(
            "PARSEC did not start within 10 s; its messages are above".to_owned(),
        ));
    }
    println!("## The same kind of token through PARSEC 1.5");
    Cmd::new(target.join("release/ron-rival-parsec"))
        .args([args.text("seconds"), "1", "4", "16"])
        .env(
            "PARSEC_SERVICE_ENDPOINT",
            format!("unix:{}", socket.display()),
        )
        .run()?;
    service.stop()
}

/// Builds the client, and the service unless `RON_PARSEC` names one; the path of the service.
fn parsec_programs(target: &Path) -> Outcome<PathBuf> {
    // A libclang that came alone (as the one of PyPI) has no headers of its own.
    let headers = if let Ok(set) = std::env::var("BINDGEN_EXTRA_CLANG_ARGS") {
        set
    } else {
        let include = Cmd::new("cc").arg("-print-file-name=include").output()?;
        format!("-I{include}")
    };
    let set = std::env::var_os("RON_PARSEC").map(PathBuf::from);
    let program = set.unwrap_or_else(|| target.join("tools/bin/parsec"));
    if !program.exists() {
        Cmd::cargo("install parsec-service --version 1.5.0 --locked --features pkcs11-provider,unix-peer-credentials-authenticator --root")
            .arg(target.join("tools"))
            .arg("--target-dir")
            .arg(target)
            .env("BINDGEN_EXTRA_CLANG_ARGS", &headers)
            .hint("LIBCLANG_PATH says where libclang.so is when it is not found")
            .run()?;
    }
    Cmd::cargo("build --release --manifest-path benches/rivals/parsec/Cargo.toml --target-dir")
        .arg(target)
        .env("BINDGEN_EXTRA_CLANG_ARGS", &headers)
        .run()?;
    Ok(program)
}

fn parsec_config(token: &Token, socket: &Path) -> String {
    format!(
        r#"[core_settings]
log_level = "error"
allow_root = true
[listener]
listener_type = "DomainSocket"
timeout = 2000
socket_path = "{}"
[authenticator]
auth_type = "UnixPeerCredentials"
[[key_manager]]
name = "keys"
manager_type = "SQLite"
store_path = "{}"
[[provider]]
provider_type = "Pkcs11"
key_info_manager = "keys"
library_path = "{MODULE}"
slot_number = {}
user_pin = "{PIN}"
"#,
        socket.display(),
        token.work.path().join("keys.sqlite3").display(),
        token.slot
    )
}
