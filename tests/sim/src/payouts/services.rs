//! The rewarder and its ledger as processes, and the tokens of their callers.

use std::sync::OnceLock;

use ron_auth::service_token;
use ron_files::SharedDisk;
use ron_ledger::RonLedger;
use ron_proto::b64;
use svc_rewarder::SvcRewarder;

use super::plan::policy_key;
use super::{KMS, LEDGER, REWARDER, kms};
use crate::dates::Date;
use crate::money::services::{self, Process, config, principal};
use crate::net::SimNet;

/// Tokens of the callers, and the file with that of the rewarder.
pub struct Tokens {
    pub operator: String,
    pub treasury: String,
    pub auditor: String,
    rewarder: String,
    file: std::path::PathBuf,
}

impl Tokens {
    pub fn written() -> &'static Self {
        static TOKENS: OnceLock<Tokens> = OnceLock::new();
        TOKENS.get_or_init(|| {
            let rewarder = service_token::generate("svc-rewarder", &[41; 32]);
            let dir = services::scratch("sim-payouts");
            services::put(&dir, "rewarder.token", rewarder.as_bytes());
            Self {
                operator: service_token::generate("operator", &[42; 32]),
                treasury: service_token::generate("treasury", &[43; 32]),
                auditor: service_token::generate("auditor", &[44; 32]),
                rewarder,
                file: dir.join("rewarder.token"),
            }
        })
    }
}

/// How the rewarder is configured, beside what never differs.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub auto_settle: bool,
}

const CONNS: &str = "max_conns = 64\n";

/// The ledger at its start of this number; without a disk in memory.
pub fn ledger(net: &SimNet, start: u64, date: &Date, disk: Option<SharedDisk>) -> Process {
    let tokens = Tokens::written();
    let more = format!(
        "[ledger]\nprojection = false\n{}{}{}",
        principal(
            "ron",
            "svc-rewarder",
            &tokens.rewarder,
            &["ledger:settle", "ledger:read"]
        ),
        principal("ron", "treasury", &tokens.treasury, &["ledger:commit"]),
        principal(
            "ron",
            "auditor",
            &tokens.auditor,
            &["ledger:read", "ledger:audit"]
        ),
    );
    let config = config::<RonLedger>(LEDGER, disk.as_ref(), CONNS, &more);
    Process::start::<RonLedger>(net, LEDGER, config, 300 + start, date, disk)
}

/// The rewarder at its start of this number.
pub fn rewarder(
    net: &SimNet,
    manner: Manner,
    start: u64,
    date: &Date,
    disk: SharedDisk,
) -> Process {
    let tokens = Tokens::written();
    let top = format!(
        "{CONNS}upstream_timeout = \"2s\"\nauto_settle = {}\n",
        manner.auto_settle
    );
    let more = format!(
        "[policy]\npublic_keys = [\"{}\"]\n\
         [ledger]\nurl = \"http://{LEDGER}:80\"\ntoken_file = {:?}\n\
         [kms]\nurl = \"http://{KMS}:80\"\nkey = \"{}\"\n\
         [manifest]\npublic_keys = [\"{}\"]\n\
         [concurrency]\njobs = 2\ncompute_workers = 1\nimports = 1\n{}",
        b64::url(&policy_key().public()),
        tokens.file,
        kms::KID,
        kms::pinned(),
        principal(
            "default",
            "operator",
            &tokens.operator,
            &["rewarder:run", "rewarder:read"]
        ),
    );
    let config = config::<SvcRewarder>(REWARDER, Some(&disk), &top, &more);
    Process::start::<SvcRewarder>(net, REWARDER, config, 400 + start, date, Some(disk))
}
