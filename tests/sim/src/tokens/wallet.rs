//! The wallet as verifier of passports. Its data directory is a real one, for the record of what it has seen of the issuer; each
//! start has its own, with a copy of the last, because a killed process holds the lock of its directory.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ron_service::{Config, Service as _};
use svc_wallet::SvcWallet;

use super::issuer::note_vkey;
use super::{LEDGER, WALLET, issuer_url};
use crate::money::services::{Files, Process};
use crate::net::SimNet;

/// The wallet's directories of a run.
pub struct Dirs {
    base: PathBuf,
    starts: u64,
}

impl Dirs {
    pub fn new(files: &Files) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let run = RUNS.fetch_add(1, Ordering::SeqCst);
        let base = files
            .dir
            .join(format!("tokens-{}-{run}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        Self { base, starts: 0 }
    }

    fn of(&self, start: u64) -> PathBuf {
        self.base.join(start.to_string())
    }

    /// The directory of the next start.
    fn next(&mut self) -> PathBuf {
        self.starts += 1;
        let dir = self.of(self.starts);
        fs::create_dir_all(&dir).expect("a directory");
        if self.starts > 1 {
            copy(&self.of(self.starts - 1), &dir);
        }
        dir
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// The files of a process that does not run.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let (path, name) = (entry.path(), entry.file_name());
        let text = name.to_string_lossy();
        if path.is_dir() {
            fs::create_dir_all(to.join(&name)).expect("a directory");
            copy(&path, &to.join(&name));
        } else if text != "LOCK" && !text.ends_with("-shm") {
            fs::copy(&path, to.join(&name)).expect("a file");
        }
    }
}

fn config(ip: IpAddr, dir: &Path, files: &Files) -> Config {
    let issuer = issuer_url();
    let text = format!(
        "data_dir = {dir:?}\ninsecure_loopback = true\nmax_conns = 64\n\
         bind_addr = \"{ip}:80\"\nhealth_addr = \"{ip}:81\"\n\
         [http]\nworkers = 2\n\
         [auth]\nissuer = \"{issuer}\"\njwks_url = \"{issuer}/.well-known/jwks.json\"\n\
         note_vkey = [{:?}]\nrefresh_interval = \"2s\"\n\
         [ledger]\nurl = \"http://{LEDGER}:80\"\ntoken_file = {:?}\n\
         [policy]\ndir = {:?}\npublic_keys = [\"{}\"]\n[wallet]\ncommitters = 2\n",
        note_vkey(&issuer),
        files.dir.join("ledger.token"),
        files.dir,
        files.policy_key,
    );
    let config = Config::from_toml(SvcWallet::TABLE, Path::new("sim/config.toml"), &text);
    config.unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// Starts it with the files of its last start.
pub fn start(net: &SimNet, files: &Files, dirs: &mut Dirs) -> Process {
    let config = config(WALLET, &dirs.next(), files);
    Process::start::<SvcWallet>(net, WALLET, config, 200 + dirs.starts)
}
