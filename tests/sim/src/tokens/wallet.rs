//! The wallet as verifier of passports, with its files: what it has seen of the issuer survives its death.

use std::sync::Arc;

use ron_files::{SharedDisk, SimDisk};
use svc_wallet::SvcWallet;

use super::issuer::note_vkey;
use super::{LEDGER, WALLET, issuer_url};
use crate::dates::Date;
use crate::money::services::{Files, Process, config};
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

/// What its configuration has beside what never differs.
fn sections(files: &Files) -> String {
    let issuer = issuer_url();
    format!(
        "[auth]\nissuer = \"{issuer}\"\njwks_url = \"{issuer}/.well-known/jwks.json\"\n\
         note_vkey = [{:?}]\nrefresh_interval = \"2s\"\n\
         [ledger]\nurl = \"http://{LEDGER}:80\"\ntoken_file = {:?}\n\
         [policy]\ndir = {:?}\npublic_keys = [\"{}\"]\n[wallet]\ncommitters = 2\n",
        note_vkey(&issuer),
        files.dir.join("ledger.token"),
        files.dir,
        files.policy_key,
    )
}

/// Starts it on the files of its last start, which has ended.
pub fn start(net: &SimNet, files: &Files, date: &Date, disk: &mut Disk) -> Process {
    disk.image.kill();
    disk.starts += 1;
    let image: SharedDisk = Arc::new(disk.image.clone());
    let config = config::<SvcWallet>(WALLET, Some(&image), "max_conns = 64\n", &sections(files));
    Process::start::<SvcWallet>(net, WALLET, config, 200 + disk.starts, date, Some(image))
}
