//! `ron ledger`: offline tools for the ledger's log. `verify` proves it, `stat` and `export` show
//! its content, `backup` and `restore` copy it, `import` fills it, `erase` removes texts, `migrate` moves it. `restore`,
//! `import`, `erase` and the end of `migrate` take the lock of the data directory; the others work beside a running ledger.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ron_files::{Dir, OsDisk, Replacement};
use ron_kernel::{Clock as _, SystemClock};
use ron_ledger::verify::{Report, verify_each};
use ron_ledger::{backup, erase};
use ron_proto::Timestamp;
use ron_proto::ledger::{EntryAnswer, Event, TxId};
use ron_service::DataDir;
use ron_tlog::note::VerifierKey;
use serde_json::json;

use self::import::ImportArgs;
use self::migrate::LedgerMigrateArgs;
use crate::check::{self, LogCommand, LogPlace};
use crate::layout::Layout;
use crate::verifiers;

mod import;
mod migrate;

/// Verify, inspect, back up and restore the ledger; import entries, erase texts, move it to a database.
#[derive(Args)]
pub struct LedgerArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Check(LogCommand),
    /// Verify the ledger and count its entries.
    Stat {
        #[command(flatten)]
        place: LogPlace,
        /// Print the counts as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Verify the ledger and write every entry as a line of JSON.
    Export {
        #[command(flatten)]
        place: LogPlace,
        /// File to write, completely or not at all.
        #[arg(long)]
        out: PathBuf,
    },
    /// Copy the ledger while it runs, and verify the copy. It contains the secret key of the
    /// checkpoints.
    Backup {
        #[command(flatten)]
        place: LogPlace,
        /// Directory to make.
        to: PathBuf,
    },
    /// Bring accounts, opening balances and history of another system into the ledger, which must not
    /// be running. Every line has an id, so a repeated import skips what is there; a line that the
    /// ledger would refuse ends it and uses no id. The limits of the wallet do not apply.
    Import {
        #[command(flatten)]
        import: ImportArgs,
        #[command(flatten)]
        place: LogPlace,
    },
    /// Erase memo, metadata and reference of one entry for ever. Key, nonce and limits stay, the entry
    /// still verifies, and `ron ledger verify` counts it as erased. The ledger and the wallet must not
    /// be running; backups and the payee's copy of the receipt are not changed.
    Erase {
        /// Id of the transaction.
        txid: TxId,
        /// Why; recorded in erasures.jsonl of the ledger's data directory.
        #[arg(long)]
        reason: String,
        /// Data directory of `ron up`.
        #[arg(long)]
        data_dir: Option<PathBuf>,
    },
    /// Move the ledger from files to PostgreSQL, or back. No entry is written: roots, receipts and
    /// checkpoints stay valid. On the way there the ledger runs until the command asks for its end; on
    /// the way back it must not be running. Either side is what it was until the last step, so an
    /// interrupted command is run again with --resume. Needs a build with the feature `postgres`.
    Migrate {
        #[command(flatten)]
        migrate: LedgerMigrateArgs,
        #[command(flatten)]
        place: LogPlace,
    },
    /// Verify a backup and make it the ledger of a data directory that has none. The ledger must
    /// not be running.
    Restore {
        #[command(flatten)]
        place: LogPlace,
        /// Directory of the backup.
        from: PathBuf,
    },
}

pub fn run(args: LedgerArgs) -> Result<(), String> {
    match args.command {
        Command::Check(LogCommand::Verify(place)) => check::ledger(place),
        Command::Stat { place, json } => stat(&place, json),
        Command::Export { place, out } => export(&place, &out),
        Command::Backup { place, to } => {
            let (log, vkey) = resolve(&place)?;
            let data = data_of(&log);
            let report = backup::backup(&data, &to, &vkey, &mut |_, _| {})
                .map_err(|e| format!("backup of {}: {e}", data.display()))?;
            println!(
                "backup verified: {} entries in {}",
                report.entries,
                to.display()
            );
            Ok(())
        }
        Command::Restore { place, from } => restore(&place, &from),
        Command::Import { import, place } => {
            let (log, vkey) = resolve(&place)?;
            import::run(&import, &data_of(&log), &vkey)
        }
        Command::Migrate { migrate, place } => {
            let (log, vkey) = resolve(&place)?;
            migrate::run(&migrate, &data_of(&log), &vkey)
        }
        Command::Erase {
            txid,
            reason,
            data_dir,
        } => erase(txid, &reason, data_dir.as_deref()),
    }
}

fn resolve(place: &LogPlace) -> Result<(PathBuf, VerifierKey), String> {
    let (dir, vkey) = place.resolve("ron-ledger/data/log", |v: verifiers::Verifiers| {
        v.ledger_vkey
    })?;
    let vkey = VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?;
    Ok((dir, vkey))
}

/// The data directory of a log directory.
fn data_of(log: &Path) -> PathBuf {
    match log.file_name() {
        Some(name) if name == "log" => log.parent().unwrap_or(log).to_owned(),
        _ => log.to_owned(),
    }
}

fn erase(txid: TxId, reason: &str, data_dir: Option<&Path>) -> Result<(), String> {
    let layout = Layout::new(data_dir)?;
    let (ledger, wallet) = (
        layout.root.join("ron-ledger/data"),
        layout.root.join("svc-wallet/data"),
    );
    let _lock = DataDir::at(Dir::os(&ledger)).map_err(|e| e.to_string())?;
    // The wallet's copy of answers has the texts too; it is made again from the ledger's events.
    let copies = wallet.join("answers");
    if copies.exists() {
        let _lock = DataDir::at(Dir::os(&wallet)).map_err(|e| e.to_string())?;
        std::fs::remove_dir_all(&copies).map_err(|e| format!("{}: {e}", copies.display()))?;
    }
    let by = format!("uid {}", rustix::process::geteuid().as_raw());
    let now = Timestamp(SystemClock.unix_ms());
    let texts =
        erase::erase(&ledger, txid, reason, &by, now).map_err(|e| format!("erase {txid}: {e}"))?;
    println!("erased: {texts} texts of {txid}; backups still hold them");
    Ok(())
}

fn restore(place: &LogPlace, from: &Path) -> Result<(), String> {
    let (log, vkey) = resolve(place)?;
    let data = data_of(&log);
    let _lock = DataDir::at(Dir::os(&data)).map_err(|e| e.to_string())?;
    let report = backup::restore(from, &data, &vkey, &mut |_, _| {})
        .map_err(|e| format!("restore to {}: {e}", data.display()))?;
    println!(
        "restored: {} entries in {}; the next start rebuilds everything else",
        report.entries,
        data.display()
    );
    Ok(())
}

/// Entries by kind and outcome.
type Counts = BTreeMap<(&'static str, &'static str), u64>;

fn stat(place: &LogPlace, as_json: bool) -> Result<(), String> {
    let (dir, vkey) = resolve(place)?;
    let mut counts = Counts::new();
    let mut days: [Option<String>; 2] = [None, None];
    let mut count = |event: Event| {
        let outcome = match &event.answer {
            EntryAnswer::Done { .. } => "done",
            EntryAnswer::Refused { code, .. } => code.as_str(),
        };
        *counts
            .entry((event.entry.kind().as_str(), outcome))
            .or_default() += 1;
        let ts = event.ts.to_string();
        days[0].get_or_insert_with(|| ts.clone());
        days[1] = Some(ts);
        Ok(())
    };
    let report = verify_each(&dir, &vkey, &mut count, &mut |_, _| {})
        .map_err(|e| format!("ledger {}: {e}", dir.display()))?;
    let text = if as_json {
        stat_json(&report, &counts, &days)?
    } else {
        stat_table(&report, &counts, &days)
    };
    println!("{text}");
    Ok(())
}

fn stat_json(r: &Report, counts: &Counts, days: &[Option<String>; 2]) -> Result<String, String> {
    let rows: Vec<_> = counts
        .iter()
        .map(|((kind, outcome), n)| json!({ "kind": kind, "outcome": outcome, "entries": n }))
        .collect();
    let assets: Vec<_> = r
        .assets
        .iter()
        .map(|a| {
            json!({
                "asset": a.asset,
                "issued_minor": a.issued.to_string(),
                "burned_minor": a.burned.to_string(),
                "circulating_minor": a.circulating.to_string(),
            })
        })
        .collect();
    let doc = json!({
        "origin": r.origin, "entries": r.entries, "root": ron_proto::b64::std(&r.root),
        "checkpoint_size": r.checkpoint_size, "accounts": r.accounts, "keys": r.keys, "erased": r.erased,
        "tail_bytes": r.tail_bytes, "first": days[0], "last": days[1], "kinds": rows, "assets": assets,
        "notes": r.notes,
    });
    serde_json::to_string_pretty(&doc).map_err(|e| e.to_string())
}

fn stat_table(r: &Report, counts: &Counts, days: &[Option<String>; 2]) -> String {
    let when = |n: usize| days[n].as_deref().unwrap_or("-");
    let mut lines = vec![
        format!("ledger      {}", r.origin),
        format!("entries     {} ({} to {})", r.entries, when(0), when(1)),
        format!("signed      {} leaves", r.checkpoint_size),
        format!("accounts    {}", r.accounts),
        format!("keys        {}", r.keys),
    ];
    for a in &r.assets {
        lines.push(format!(
            "asset       {}: issued {}, burned {}, circulating {}",
            a.asset, a.issued, a.burned, a.circulating
        ));
    }
    for ((kind, outcome), n) in counts {
        lines.push(format!("  {kind:<12} {outcome:<22} {n:>12}"));
    }
    lines.extend(r.notes.iter().map(|n| format!("note        {n}")));
    lines.join("\n")
}

fn export(place: &LogPlace, out: &Path) -> Result<(), String> {
    let (dir, vkey) = resolve(place)?;
    let failed = |e: std::io::Error| format!("{}: {e}", out.display());
    // A file that was not verified to its end never has its name.
    let mut file = BufWriter::new(Replacement::create(&OsDisk, out, 0o644).map_err(failed)?);
    let mut write = |event: Event| {
        serde_json::to_writer(&mut file, &event).map_err(|e| e.to_string())?;
        file.write_all(b"\n").map_err(|e| e.to_string())
    };
    let checked = verify_each(&dir, &vkey, &mut write, &mut |_, _| {});
    let report = checked.map_err(|e| format!("ledger {}: {e}", dir.display()))?;
    let file = file.into_inner().map_err(|e| failed(e.into_error()))?;
    file.finish().map_err(failed)?;
    println!("exported: {} entries to {}", report.entries, out.display());
    Ok(())
}
