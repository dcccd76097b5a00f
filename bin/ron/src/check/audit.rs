//! `ron audit verify | prove | stat | tail`: the KMS's audit log, checked from its directory or over HTTP with nothing but the
//! verifier key. Everything is read and proved before anything is said about it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_http::{Call, ClientConfig, HttpClient};
use ron_kernel::Deadline;
use ron_kms::audit::verify::LeafCheck;
use ron_service::config::read_secret_file;
use ron_tlog::append::verify_dir;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use ron_tlog::policy::Policy;
use ron_tlog::proof::TlogProof;
use ron_tlog::tile::{TILE_WIDTH, TilePath, split_bundle};
use ron_tlog::tree::{self, Frontier, Hash, HashReader, complete_root, leaf_hash};

use super::{bar, show};
use crate::layout::Layout;
use crate::verifiers;

/// Longest wait for one answer of a log that is read over HTTP.
const WAIT: Duration = Duration::from_secs(20);
/// Entries between two looks at the progress bar.
const PROGRESS_EVERY: u64 = 4096;

/// Verify the audit log, prove an entry, count, or show its end.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron audit verify\n  ron audit verify --log-dir /backup/audit --vkey ron-kms/...+1234abcd+AQ...\n  ron audit verify --url http://127.0.0.1:7440/audit/v1 --token-file clients/operator.kms.token\n  ron audit prove 17 > leaf-17.tlog-proof\n  ron audit tail -n 3"
)]
pub struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Check every leaf, the tree, the checkpoint and its signatures; one verdict, or the first bad leaf.
    Verify(AuditPlace),
    /// Print the proof (c2sp.org/tlog-proof@v1) that a leaf is in the log.
    Prove {
        /// Index of the leaf, from 0.
        index: u64,
        #[command(flatten)]
        place: AuditPlace,
    },
    /// Count operations, and operations per key, from the leaves.
    Stat(AuditPlace),
    /// Print the last leaves, one JSON document a line.
    Tail {
        /// How many.
        #[arg(short = 'n', long, default_value_t = 10)]
        lines: usize,
        #[command(flatten)]
        place: AuditPlace,
    },
}

#[derive(Args)]
struct AuditPlace {
    /// Data directory of `ron up` (or a copy of it).
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// The log's directory, instead of the one in the data directory.
    #[arg(long, conflicts_with = "url")]
    log_dir: Option<PathBuf>,
    /// Read the log over HTTP instead, as in http://127.0.0.1:7440/audit/v1.
    #[arg(long)]
    url: Option<String>,
    /// Service token with the scope kms:read, for --url; mode 0600.
    #[arg(long, requires = "url")]
    token_file: Option<PathBuf>,
    /// The log's verifier key (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
    /// C2SP tlog-policy file: the checkpoint must satisfy it too.
    #[arg(long)]
    policy: Option<PathBuf>,
}

/// What was read and proved.
struct Checked {
    check: LeafCheck,
    leaves: Vec<Hash>,
    last: VecDeque<Vec<u8>>,
    checkpoint: Checkpoint,
    note: String,
}

/// What of the leaves to keep.
#[derive(Clone, Copy, Default)]
struct Keep {
    hashes: bool,
    last: usize,
}

/// Runs `ron audit`.
pub fn run(args: AuditArgs) -> Result<(), String> {
    match args.command {
        AuditCommand::Verify(place) => println!("{}", place.read(Keep::default())?.verdict()),
        AuditCommand::Prove { index, place } => print!("{}", place.prove(index)?),
        AuditCommand::Stat(place) => print!("{}", place.read(Keep::default())?.stat()),
        AuditCommand::Tail { lines, place } => {
            let keep = Keep {
                last: lines,
                ..Keep::default()
            };
            for leaf in place.read(keep)?.last {
                println!("{}", String::from_utf8_lossy(&leaf));
            }
        }
    }
    Ok(())
}

/// Verdict on the log in a directory.
pub fn dir_verdict(dir: &Path, vkey: &str) -> Result<String, String> {
    let key = VerifierKey::parse(vkey).map_err(|e| format!("the verifier key: {e}"))?;
    Ok(read_dir(dir, &key, Keep::default())?.verdict())
}

impl AuditPlace {
    fn read(&self, keep: Keep) -> Result<Checked, String> {
        let layout = Layout::new(self.data_dir.as_deref())?;
        let vkey = match &self.vkey {
            Some(vkey) => vkey.clone(),
            None => verifiers::read(&layout)?.audit_vkey,
        };
        let key = VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?;
        let own = layout.root.join("ron-kms/data/audit");
        let dir = self.log_dir.as_deref().unwrap_or(&own);
        let checked = match &self.url {
            Some(url) => read_url(url, self.token_file.as_deref(), &key, keep)?,
            None => read_dir(dir, &key, keep)?,
        };
        if let Some(path) = &self.policy {
            let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let policy = Policy::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            policy
                .check(&checked.note, &[key], Some(&checked.checkpoint.origin))
                .map_err(|e| format!("the checkpoint does not satisfy the policy: {e}"))?;
        }
        Ok(checked)
    }

    fn prove(&self, index: u64) -> Result<TlogProof, String> {
        let keep = Keep {
            hashes: true,
            ..Keep::default()
        };
        let checked = self.read(keep)?;
        let size = checked.checkpoint.size;
        if index >= size {
            return Err(format!(
                "leaf {index} is not under the checkpoint, which covers {size}"
            ));
        }
        let leaves = Leaves(&checked.leaves);
        let Ok(hashes) = tree::inclusion_proof(&leaves, index, size);
        Ok(TlogProof {
            extra: None,
            index,
            hashes,
            checkpoint: checked.note,
        })
    }
}

/// The tree of leaf hashes in memory.
struct Leaves<'a>(&'a [Hash]);

impl HashReader for Leaves<'_> {
    type Error = std::convert::Infallible;
    fn node(&self, level: u32, index: u64) -> Result<Hash, Self::Error> {
        let width = 1_usize << level;
        let from = usize::try_from(index).unwrap_or(usize::MAX) * width;
        Ok(complete_root(&self.0[from..from + width]))
    }
}

/// Takes leaves in order.
struct Taker {
    check: LeafCheck,
    leaves: Vec<Hash>,
    last: VecDeque<Vec<u8>>,
    keep: Keep,
}

impl Taker {
    fn new(keep: Keep) -> Self {
        Self {
            check: LeafCheck::default(),
            leaves: Vec::new(),
            last: VecDeque::new(),
            keep,
        }
    }

    fn take(&mut self, leaf: &[u8]) -> Result<(), String> {
        self.check.take(leaf)?;
        if self.keep.hashes {
            self.leaves.push(leaf_hash(leaf));
        }
        if self.keep.last > 0 {
            if self.last.len() == self.keep.last {
                self.last.pop_front();
            }
            self.last.push_back(leaf.to_vec());
        }
        Ok(())
    }

    fn done(self, checkpoint: Checkpoint, note: String) -> Checked {
        Checked {
            check: self.check,
            leaves: self.leaves,
            last: self.last,
            checkpoint,
            note,
        }
    }
}

fn read_dir(dir: &Path, key: &VerifierKey, keep: Keep) -> Result<Checked, String> {
    let named = |e: &dyn std::fmt::Display| format!("audit log {}: {e}", dir.display());
    let path = dir.join("checkpoint");
    let note = std::fs::read_to_string(&path).map_err(|e| named(&format!("checkpoint: {e}")))?;
    let keys = std::slice::from_ref(key);
    let checkpoint = Checkpoint::open(&note, keys, None).map_err(|e| named(&e))?;
    let bar = bar("audit log");
    let mut taker = Taker::new(keep);
    let verified = verify_dir(
        dir,
        key,
        &mut |_, leaf| taker.take(leaf),
        &mut |done, total| show(&bar, done, total),
    );
    bar.finish_and_clear();
    verified.map_err(|e| named(&e))?;
    Ok(taker.done(checkpoint, note))
}

fn read_url(
    url: &str,
    token_file: Option<&Path>,
    key: &VerifierKey,
    keep: Keep,
) -> Result<Checked, String> {
    let http = HttpClient::new(ClientConfig::default());
    let token = token_file.map(read_secret_file).transpose()?;
    let bearer = token.map(|t| format!("Bearer {}", String::from_utf8_lossy(t.expose()).trim()));
    let headers: Vec<(&str, &str)> = bearer
        .as_deref()
        .map(|b| ("Authorization", b))
        .into_iter()
        .collect();
    let base = url.trim_end_matches('/');
    let get = |path: &str| -> Result<Vec<u8>, String> {
        let url = format!("{base}/{path}");
        let reply = http
            .call(Call::get(&url, Deadline::within(WAIT)).headers(&headers))
            .map_err(|e| format!("{url}: {e}"))?;
        match reply.status {
            200 => Ok(reply.body),
            401 | 403 => Err(format!(
                "{url}: entries need --token-file with the scope kms:read"
            )),
            status => Err(format!("{url}: status {status}")),
        }
    };
    let note = String::from_utf8(get("checkpoint")?).map_err(|_| "the checkpoint is not text")?;
    let checkpoint = Checkpoint::open(&note, std::slice::from_ref(key), Some(key.name()))
        .map_err(|e| e.to_string())?;
    let bar = bar("audit log");
    let (mut taker, mut frontier) = (Taker::new(keep), Frontier::new());
    while frontier.size() < checkpoint.size {
        let first = frontier.size();
        let width = (checkpoint.size - first).min(TILE_WIDTH);
        let path = TilePath::Entries {
            index: first / TILE_WIDTH,
            width: u16::try_from(width).expect("a tile has 256 entries"),
        };
        let bundle = get(&path.to_string())?;
        let entries = split_bundle(&bundle).filter(|e| e.len() as u64 == width);
        let entries = entries.ok_or_else(|| format!("leaf {first}: {path} is no whole bundle"))?;
        for entry in entries {
            let at = frontier.size();
            taker
                .take(entry)
                .map_err(|why| format!("leaf {at}: {why}"))?;
            frontier.push(leaf_hash(entry));
            if at.is_multiple_of(PROGRESS_EVERY) {
                show(&bar, at, checkpoint.size);
            }
        }
    }
    bar.finish_and_clear();
    if frontier.root() != checkpoint.root {
        return Err(format!(
            "the {} leaves served do not hash to the root that was signed for them",
            checkpoint.size
        ));
    }
    Ok(taker.done(checkpoint, note))
}

impl Checked {
    fn verdict(&self) -> String {
        let report = &self.check.report;
        let signatures: u64 = report.keys.values().map(|k| k.signatures).sum();
        format!(
            "audit log verified: {} leaves, {} of them under a signed checkpoint, {signatures} signatures by {} keys",
            report.size,
            self.checkpoint.size.min(report.size),
            report.keys.len()
        )
    }

    fn stat(&self) -> String {
        use std::fmt::Write as _;
        let report = &self.check.report;
        let mut text = format!("{}\n", self.verdict());
        let _ = writeln!(text, "origin {}", self.checkpoint.origin);
        if let (Some(first), Some(last)) = (report.first_ts, report.last_ts) {
            let _ = writeln!(text, "from {first} to {last} (Unix milliseconds)");
        }
        for (op, n) in &report.ops {
            let _ = writeln!(text, "{n:>12}  {op}");
        }
        for (key, n) in &report.keys {
            let _ = writeln!(
                text,
                "{:>12}  signatures, {} versions, {} refused  {key}",
                n.signatures, n.versions, n.refused
            );
        }
        text
    }
}
