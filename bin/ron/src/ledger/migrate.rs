//! `ron ledger migrate`: the ledger goes from files to PostgreSQL, or back.

use std::path::{Path, PathBuf};

use clap::Args;
use ron_files::Dir;
use ron_kernel::{OsRandom, Random as _};
use ron_ledger::migrate::{LOG, without_engine};
use ron_service::log_move::{Move, MoveError, Show};
use ron_service::records::{Engine, Postgres};
use ron_tlog::append::Migrated;
use ron_tlog::note::VerifierKey;

use crate::migrate::{self, MigrateArgs, Moves, Order, Way, log_table};

#[derive(Args)]
pub struct LedgerMigrateArgs {
    #[command(flatten)]
    common: MigrateArgs,
    /// With `--to files`, in place of `--from`: the database is lost for good, and this node's copy
    /// becomes the ledger. What only the database had is lost; take the node with the longest copy.
    #[arg(long, conflicts_with_all = ["from", "rehearse", "resume"])]
    database_is_lost: bool,
}

/// The ledger of a data directory, whose log has this key.
struct Ledger {
    data: PathBuf,
    vkey: VerifierKey,
}

impl Moves for Ledger {
    const NAME: &'static str = "ledger";
    const SCHEMA: &'static str = "ron_ledger";

    fn data(&self) -> &Path {
        &self.data
    }

    fn carry_out(&self, order: &Order<'_>, show: Show<'_>) -> Result<Migrated, MoveError> {
        let ledger = Move {
            data: &Dir::os(&self.data),
            log: LOG,
            place: order.place,
            keys: std::slice::from_ref(&self.vkey),
            engine: order.engine,
            engines: &Postgres,
            run: OsRandom.u64(),
        };
        match order.way {
            Way::There => ledger.to_engine(order.is_resumed, show),
            Way::Rehearsal => ledger.rehearse(show),
            Way::Back => ledger.to_files(order.is_resumed, show),
        }
    }

    fn after_there(&self, engine: &Engine) -> String {
        format!(
            "Set these keys in its configuration and start it:\n\n{}\nnode = \"https://HOST:7460\"   # under which clients reach this node",
            log_table(engine)
        )
    }

    fn after_back(&self) -> String {
        "remove log.url and log.node from its configuration and start it; no node writes to the database any more".to_owned()
    }
}

/// Moves the ledger of this data directory, whose log has this key.
pub fn run(args: &LedgerMigrateArgs, data: &Path, vkey: &VerifierKey) -> Result<(), String> {
    let LedgerMigrateArgs {
        common,
        database_is_lost,
    } = args;
    match (common.is_back(), *database_is_lost) {
        (true, true) => return without_database(data, vkey),
        (false, true) => return Err("--database-is-lost goes with --to files".to_owned()),
        (true, false) if common.from.is_none() => {
            let why = "say with --from which database the ledger is in, or that it is lost: --database-is-lost";
            return Err(why.to_owned());
        }
        _ => {}
    }
    let ledger = Ledger {
        data: data.to_owned(),
        vkey: vkey.clone(),
    };
    migrate::run(common, &ledger)
}

fn without_database(data: &Path, vkey: &VerifierKey) -> Result<(), String> {
    let kept = without_engine(&Dir::os(data), vkey, &OsRandom);
    let kept = kept.map_err(|e| {
        let data = data.display();
        format!("migrate: {e}\nhint: the copy is not the ledger; keep a copy of {data} before you try again, because a torn end of its log may be cut")
    })?;
    println!(
        "kept: {} leaves, root {}, are a ledger in files in {}\nremove log.url and log.node from its configuration and start it, or move it to another database; never start a node on the lost one again",
        kept.size,
        ron_proto::b64::std(&kept.root),
        data.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_tlog::note::Ed25519NoteSigner;

    use super::*;

    #[test]
    fn a_database_that_it_cannot_use_is_refused() {
        let key = Ed25519NoteSigner::new("a/b", Ed25519Key::from_seed(&[1; 32]));
        let dir = tempfile::tempdir().expect("a directory");
        migrate::refuses_a_database_that_it_cannot_use(&Ledger {
            data: dir.path().to_owned(),
            vkey: key.expect("a name").verifier().clone(),
        });
    }
}
