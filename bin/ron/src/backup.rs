//! `ron backup` copies the data of all services while they run, and `ron restore` makes a data directory of a copy.
//!
//! ```text
//!  BACKUPS/2026-12-01T03-00-00.123Z/          a backup; the name is the time from which on something may be missing in it
//!    backup.json                              every file with its hash; written last
//!    ron-kms/data/audit/00000000.seg ...      the files of the data directory. Closed segments of logs are links to those of the
//!                                             backup before, so that a backup costs what is new
//! ```
//!
//! **Order.** Callers are copied before the services that they call: an operation that a caller remembers is in the copy of the
//! other. A database is copied in one moment by SQLite. A log only grows, so its checkpoint is copied before its segments; what
//! was half written is cut when the log is opened. The key store is copied before its log, the rows of revocations after theirs:
//! a start completes what is a step behind, and refuses what is ahead.

mod copy;
pub mod manifest;
mod recoveries;
pub mod restore;

use std::path::{Path, PathBuf};

use clap::Args;
use ron_files::{OsDisk, rename_durably};
use ron_kernel::{Clock as _, SystemClock};
use ron_proto::Timestamp;
use ron_services::NAMES;

use self::copy::Copier;
use self::manifest::{Backups, Manifest};
pub use self::recoveries::{Recoveries, Recovery};
use crate::check;
use crate::fleet;
use crate::layout::{Layout, Place, make_dir};
use crate::verifiers;

/// Keys by which a service has its data in a database, which this does not copy.
const ENGINES: [&str; 2] = ["log.url", "records.url"];

/// Back up the data of all services, which may be running, and verify the copy.
///
/// A backup has private keys, tokens and configurations: protect it like the host. Copies that can be made again are left out, as
/// are `run` and `logs`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron backup --to /var/backups/ron\n  ron backup --to /var/backups/ron --keep 14\n  ron restore --from /var/backups/ron --data-dir /srv/ron\n\nThe runbook is docs/runbooks/backup.md."
)]
pub struct BackupArgs {
    /// Directory of the backups, for its owner alone; made if it does not exist. Each backup is a directory in it, and shares the
    /// closed segments of logs with the one before.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Remove the oldest backups there, so that this many are left.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    #[command(flatten)]
    place: Place,
}

pub fn run(args: &BackupArgs) -> Result<(), String> {
    let layout = args.place.layout()?;
    layout.read_bootstrap()?; // a directory that `ron init` has not finished has nothing to lose
    refuse_engines(&layout)?;
    let to = std::path::absolute(&args.to).map_err(|e| format!("{}: {e}", args.to.display()))?;
    if to.starts_with(&layout.root) {
        return Err(format!(
            "{} is in the data directory: a backup belongs on another disk or host",
            to.display()
        ));
    }
    make_dir(&to)?;
    let backups = Backups::open(&to)?;
    let taken = Timestamp(SystemClock.unix_ms());
    let partial = backups.partial(taken);
    make_dir(&partial)?;
    let before = backups.newest()?;
    let mut copier = Copier::new(&layout.root, &partial, before);
    copy_all(&mut copier)?;
    let copied = Layout {
        root: partial.clone(),
    };
    for verdict in verdicts(&copied, &partial)? {
        println!("{verdict}");
    }
    let (new, shared) = copier.bytes();
    let files = copier.done()?;
    let count = files.len();
    Manifest::new(taken, &layout.root, files).write(&partial)?;
    let done = backups.finished(taken);
    let failed = |e: std::io::Error| format!("{}: {e}", done.display());
    rename_durably(&OsDisk, &partial, &done).map_err(failed)?;
    println!(
        "backup: {count} files in {}, {new} bytes copied, {shared} shared with the backup before",
        done.display()
    );
    match args.keep {
        Some(keep) => backups.remove_but(keep as usize),
        None => Ok(()),
    }
}

fn refuse_engines(layout: &Layout) -> Result<(), String> {
    for service in NAMES {
        let config = fleet::load(layout, service, &[])?;
        let mut keys = ENGINES.into_iter();
        if let Some(key) = keys.find(|key| fleet::names(&config, key)) {
            return Err(format!(
                "{service} has data in a database ({key} in {}): back it up with the tools of the database, \
                 and the files of this directory beside it (docs/two-hosts.md)",
                layout.config(service).display()
            ));
        }
    }
    Ok(())
}

/// Callers first, and what each start accepts as a step behind.
fn copy_all(copier: &mut Copier) -> Result<(), String> {
    for service in NAMES {
        // What a service has seen of the issuer's log must not be ahead of the copy of that log.
        copier.file_if_there(&format!("{service}/data/{}", ron_auth::SEEN_FILE))?;
    }
    for service in ["svc-admin", "svc-rewarder", "svc-wallet"] {
        copier.dir(&format!("{service}/data"))?;
    }
    copier.keys("ron-kms/data/keys.db")?;
    copier.dir("ron-kms/data")?;
    copier.log(&format!("svc-passport/data/{}", svc_passport::LOG_DIR))?;
    copier.dir("svc-passport/data")?;
    copier.dir("ron-ledger/data")?;
    copier.dir("")
}

/// Verifies the logs of a copy, and returns a line for each.
fn verdicts(copy: &Layout, at: &Path) -> Result<Vec<String>, String> {
    let keys = verifiers::read(copy)?;
    let failed = |why| format!("the copy in {} does not verify: {why}", at.display());
    let audit = check::audit::dir_verdict(&copy.data("ron-kms").join("audit"), &keys.audit_vkey);
    let revocations = copy.data("svc-passport").join(svc_passport::LOG_DIR);
    let revocations = check::revocations_dir(&revocations, &keys.revocations_vkey);
    let ledger = check::ledger_dir(&copy.data("ron-ledger").join("log"), &keys.ledger_vkey);
    [audit, revocations, ledger]
        .into_iter()
        .map(|verdict| verdict.map_err(failed))
        .collect()
}
