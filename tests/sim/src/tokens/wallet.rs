//! The wallet as verifier of passports, with its files: what it has seen of the issuer survives its death.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use ron_files::SimDisk;
use ron_service::{Config, Service as _};
use svc_wallet::SvcWallet;

use super::issuer::note_vkey;
use super::{LEDGER, WALLET, issuer_url};
use crate::dates::Date;
use crate::money::services::{Files, Process};
use crate::net::SimNet;

/// The wallet's disk, and the number of its starts.
pub struct Disk {
    image: SimDisk,
    starts: u64,
}

impl Disk {
    pub fn new() -> Self {
        Self {
            image: SimDisk::new(),
            starts: 0,
        }
    }
}

fn config(ip: IpAddr, files: &Files) -> Config {
    let issuer = issuer_url();
    let text = format!(
        "data_dir = \"/sim/data\"\ninsecure_loopback = true\nmax_conns = 64\n\
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

/// Starts it on the files of its last start, which has ended.
pub fn start(net: &SimNet, files: &Files, date: &Date, disk: &mut Disk) -> Process {
    disk.image.kill();
    disk.starts += 1;
    let image = Arc::new(disk.image.clone());
    let config = config(WALLET, files);
    Process::start::<SvcWallet>(net, WALLET, config, 200 + disk.starts, date, Some(image))
}
