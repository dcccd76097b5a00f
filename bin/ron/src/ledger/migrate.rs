//! `ron ledger migrate`: the ledger goes from files to PostgreSQL, or back.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use ron_files::Dir;
use ron_kernel::{Clock as _, OsRandom, Random as _, SystemClock};
use ron_ledger::migrate::{Migrated, Move, Step, without_engine};
use ron_service::config::{Setting as _, Value};
use ron_service::records::{Engine, EngineDurability};
use ron_tlog::note::VerifierKey;

use crate::check::{bar, show};

/// Where a ledger is that is in no database.
const FILES: &str = "files";

#[derive(Args)]
pub struct MigrateArgs {
    /// Where the ledger goes: a database, as `log.url` names it (postgresql://...), or `files`.
    #[arg(long, value_name = "URL|files")]
    to: String,
    /// With `--to files`: the database that the ledger is in.
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// With `--to files`, in place of `--from`: the database is lost for good, and this node's copy
    /// becomes the ledger. What only the database had is lost; take the node with the longest copy.
    #[arg(long, conflicts_with_all = ["from", "rehearse", "resume"])]
    database_is_lost: bool,
    /// Schema in the database, as `log.schema`.
    #[arg(long, default_value = "ron_ledger")]
    schema: String,
    /// What makes an entry durable beyond one host, as `log.durability`: standby, quorum or storage.
    #[arg(long, default_value = "standby", value_parser = durability)]
    durability: EngineDurability,
    /// Go on with a migration that was interrupted. What was copied is compared again.
    #[arg(long)]
    resume: bool,
    /// Copy what is signed by now to a schema of its own, report time and rate, and remove the copy.
    /// The ledger goes on as it is.
    #[arg(long, conflicts_with_all = ["resume", "from"])]
    rehearse: bool,
}

fn durability(word: &str) -> Result<EngineDurability, String> {
    EngineDurability::from_value(&Value::Text(word.to_owned()))
}

/// Moves the ledger of this data directory, whose log has this key.
pub fn run(args: &MigrateArgs, data: &Path, vkey: &VerifierKey) -> Result<(), String> {
    let back = args.to == FILES;
    let url = match &args.from {
        _ if args.database_is_lost && back => return without_database(data, vkey),
        Some(_) if !back => return Err("--from goes with --to files".to_owned()),
        None if args.database_is_lost => {
            return Err("--database-is-lost goes with --to files".to_owned());
        }
        None if back => {
            let why = "say with --from which database the ledger is in, or that it is lost: --database-is-lost";
            return Err(why.to_owned());
        }
        Some(from) => from,
        None => &args.to,
    };
    let engine = Engine {
        url: url.clone(),
        schema: args.schema.clone(),
        durability: args.durability,
    };
    let place = place_of(data)?;
    let ledger = Move {
        data: &Dir::os(data),
        place: &place,
        vkey,
        engine: &engine,
        run: OsRandom.u64(),
    };
    let progress = bar("ledger");
    let mut step = |step| {
        match step {
        Step::Entries(done, of) => show(&progress, done, of),
        Step::Stop(by) => progress.suspend(|| {
            eprintln!(
                "all but the end is copied; stop the ledger now ({by}). The command goes on when it has stopped; new entries are copied until then"
            );
        }),
    }
    };
    let begun = SystemClock.now();
    let moved = if back {
        ledger.to_files(args.resume, &mut step)
    } else if args.rehearse {
        ledger.rehearse(&mut step)
    } else {
        ledger.to_engine(args.resume, &mut step)
    };
    progress.finish_and_clear();
    let moved = moved.map_err(|e| failed(&e.to_string(), args))?;
    let took = SystemClock.now().duration_since(begun);
    println!("{}", report(args, data, &moved, took));
    Ok(())
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

/// A data directory, as nodes on other hosts name it.
fn place_of(data: &Path) -> Result<String, String> {
    let path = data.canonicalize();
    let path = path.map_err(|e| format!("{}: {e}", data.display()))?;
    let host = rustix::system::uname();
    let place = format!("{}:{}", host.nodename().to_string_lossy(), path.display());
    Ok(place.replace(char::is_control, "?"))
}

fn failed(why: &str, args: &MigrateArgs) -> String {
    let hint = if cfg!(not(feature = "postgres")) {
        "use the program of the packages, or build it with --features postgres"
    } else if args.rehearse {
        "nothing was changed; the next rehearsal removes what this one has left"
    } else {
        "nothing is lost: the ledger is where it was; after an interruption run the command again with --resume"
    };
    format!("migrate: {why}\nhint: {hint}")
}

fn report(args: &MigrateArgs, data: &Path, moved: &Migrated, took: Duration) -> String {
    let root = ron_proto::b64::std(&moved.root);
    let size = moved.size;
    if args.to == FILES {
        return format!(
            "moved: {size} leaves, root {root}, are a ledger in files in {}\nremove log.url and log.node from its configuration and start it; no node writes to the database any more",
            data.display()
        );
    }
    let (sent, mib) = (moved.sent, moved.bytes as f64 / f64::from(1 << 20));
    if args.rehearse {
        let seconds = took.as_secs_f64().max(0.001);
        return format!(
            "rehearsed: {sent} leaves ({mib:.1} MiB), root {root}, were copied and read back in {seconds:.1} s: {:.0} a second; nothing of it is left in the database",
            sent as f64 / seconds
        );
    }
    format!(
        "moved: {size} leaves, root {root}; {sent} of them ({mib:.1} MiB) were copied now\n{} is this node's copy from now on. Set these keys in its configuration and start it:\n\n[log]\nurl = \"{}\"\nschema = \"{}\"\ndurability = \"{}\"\nnode = \"https://HOST:7460\"   # under which clients reach this node",
        data.join("log").display(),
        args.to,
        args.schema,
        args.durability.as_str()
    )
}

#[cfg(all(test, not(feature = "postgres")))]
mod tests {
    use ron_crypto::sign::Ed25519Key;
    use ron_tlog::note::Ed25519NoteSigner;

    use super::*;

    #[test]
    fn a_program_without_the_feature_says_so() {
        let args = MigrateArgs {
            to: "postgresql://ron@10.0.0.11/ron".to_owned(),
            from: None,
            database_is_lost: false,
            schema: "ron_ledger".to_owned(),
            durability: EngineDurability::Standby,
            resume: false,
            rehearse: false,
        };
        let key = Ed25519NoteSigner::new("a/b", Ed25519Key::from_seed(&[1; 32]));
        let dir = tempfile::tempdir().expect("a directory");
        let refused = run(&args, dir.path(), key.expect("a name").verifier());
        let refused = refused.expect_err("it has no database");
        assert!(
            refused.contains("feature `postgres`") && refused.contains("hint: use the program"),
            "{refused}"
        );
    }
}
