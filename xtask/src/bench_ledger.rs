//! Transfers: through the wallet over HTTP, in PostgreSQL on the same disk in the same run, and in the ledger in
//! process; writes docs/bench/ledger.md.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::bench::{build, built};
use crate::cmd::Cmd;
use crate::files::{self, Removed};
use crate::task::{Args, Failure, Outcome};

const SETTINGS: &str = "-c fsync=on -c synchronous_commit=on -c shared_buffers=1GB -c max_wal_size=8GB \
    -c checkpoint_timeout=30min -c wal_compression=off";

pub fn ledger(args: &Args) -> Outcome {
    let bin = args.path("postgres")?;
    if !bin.join("postgres").exists() {
        return Err(Failure(
            "PostgreSQL 15 is missing: apt-get install postgresql-15, or say where it is with --postgres"
                .to_owned(),
        ));
    }
    let (seconds, clients) = (args.text("seconds"), args.text("clients"));
    let programs = prepare(args)?;
    let place = Removed(args.path("dir")?);
    files::fresh_dir(&place.0)?;
    let wallet = Cmd::with_descriptors(8192, &programs.ours.join("load"))
        .args(["wallet", "--seconds", seconds, "--clients", clients])
        .arg("--dir")
        .arg(place.0.join("fleet"))
        .measured()?;
    files::remove_dir(&place.0.join("fleet"))?;
    let server = Postgres::start(bin, place.0.join("pg"))?;
    let rival = Cmd::with_descriptors(8192, &programs.rival)
        .arg(server.address())
        .arg(seconds)
        .args(clients.split(','))
        .measured()?;
    drop(server);
    let inside = Cmd::new(programs.ours.join("examples/commits"))
        .arg(place.0.join("ledger"))
        .arg(args.text("entries"))
        .measured()?;
    let out = args.path("out")?;
    files::write(&out, &page(args, &wallet, &rival, &inside)?)?;
    println!("wrote {}", out.display());
    Ok(())
}

struct Programs {
    ours: PathBuf,
    rival: PathBuf,
}

fn prepare(args: &Args) -> Outcome<Programs> {
    let profile = args.text("profile");
    let rivals = files::target().join("rivals");
    build(profile, "--workspace --bins --examples")?;
    Cmd::cargo(&format!("build --profile {profile} --manifest-path benches/rivals/Cargo.toml --bin rival-pg --target-dir"))
        .arg(&rivals)
        .run()?;
    Ok(Programs {
        ours: built(profile),
        rival: rivals.join(files::profile_dir(profile)).join("rival-pg"),
    })
}

/// A PostgreSQL server on a Unix socket, stopped when dropped.
struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
    socket: TempDir,
    /// PostgreSQL refuses to run as root.
    as_root: bool,
}

impl Postgres {
    fn start(bin: PathBuf, dir: PathBuf) -> Outcome<Self> {
        files::create_dir(&dir)?;
        let as_root = Cmd::new("id").arg("-u").output()? == "0";
        let socket = files::scratch("pg")?;
        let open = fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o777));
        open.map_err(|e| {
            Failure(format!(
                "cannot open the socket's directory to postgres: {e}"
            ))
        })?;
        if as_root {
            Cmd::new("chown").arg("postgres").arg(&dir).run()?;
        }
        let server = Self {
            bin,
            dir,
            socket,
            as_root,
        };
        server
            .tool("initdb")
            .args(["-A", "trust", "-U", "postgres"])
            .measured()?;
        let options = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}' {SETTINGS}",
            server.socket.path().display()
        );
        server
            .tool("pg_ctl")
            .args(["-w", "-l"])
            .arg(server.dir.join("log"))
            .args(["-o", &options, "start"])
            .measured()?;
        Ok(server)
    }

    fn tool(&self, name: &str) -> Cmd {
        let program = self.bin.join(name);
        let tool = if self.as_root {
            Cmd::new("setpriv")
                .args(["--reuid", "postgres", "--regid", "postgres"])
                .arg("--clear-groups")
                .arg(program)
        } else {
            Cmd::new(program)
        };
        let data = self.dir.join("data");
        tool.dir(&self.dir).arg("-D").arg(data)
    }

    fn address(&self) -> String {
        let socket = self.socket.path().display();
        format!("host={socket} user=postgres dbname=postgres")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let stop = self.tool("pg_ctl").args(["-m", "fast", "-w", "stop"]);
        if let Err(failure) = stop.output() {
            eprintln!("xtask: {failure}");
        }
    }
}

fn page(args: &Args, wallet: &str, rival: &str, inside: &str) -> Outcome<String> {
    let (seconds, entries) = (args.text("seconds"), args.text("entries"));
    let profile = args.text("profile");
    let date = Cmd::new("date").args(["-u", "+%F"]).output()?;
    Ok(format!(
        "# Figures of the wallet and the ledger

Written by `cargo xtask bench-ledger {seconds} {entries}` on {date}, {profile} profile. The load generator runs on the same cores as the services.

## Through the wallet, over HTTP

Each client has one connection, its own account to debit and its own principals; two threads serve all clients. Policy, tokens, rate and
daily limits are on, and each answer is a receipt that is durable (fdatasync) in a verifiable log.

{wallet}

## PostgreSQL 15, the same transfers on the same disk

In its best batched pattern (`benches/rivals/src/bin/rival-pg.rs`): four connections, each commits the waiting transfers with one call
of a prepared function over arrays. The callers are threads of the driver. These figures include no HTTP, no tokens, no limits and no
log of proofs, so compare them with the ledger in process as well as with the wallet.

{rival}

## The ledger in process

The ledger had {entries} transfers between 100,000 accounts before the first figure; every batch is one fdatasync.

{inside}
"
    ))
}
