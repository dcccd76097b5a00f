//! `ron audit verify | prove | stat | logs | tail | rotate-key`: the KMS's audit log, checked from its
//! directory or over HTTP with nothing but the verifier key. The commands print nothing before
//! every leaf is read and proved.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use ron_crypto::SecretBytes;
use ron_files::OsDisk;
use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_kms::{AuditReport, LeafCheck, kept_keys};
use ron_service::config::read_secret_file;
use ron_tlog::append::verify_on;
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use ron_tlog::policy::Policy;
use ron_tlog::proof::TlogProof;
use ron_tlog::rotation::KeyChain;
use ron_tlog::tile::{TILE_WIDTH, TilePath, split_bundle};
use ron_tlog::tree::{self, Frontier, Hash, HashReader, complete_root, leaf_hash};

use super::logs::LogsArgs;
use super::rotate::RotateArgs;
use super::{bar, show};
use crate::layout::Layout;
use crate::net;
use crate::verifiers;

/// Timeout of one response of a log that is read over HTTP.
const WAIT: Duration = Duration::from_secs(20);

/// Verify the audit log, prove an entry, count operations, print the last leaves, or rotate the
/// log's signing key.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  ron audit verify\n  ron audit verify --log-dir /backup/audit --vkey ron-kms/...+1234abcd+AQ...\n  ron audit verify --url http://127.0.0.1:7440/audit/v1 --token-file clients/operator.kms.token\n  ron audit prove 17 > leaf-17.tlog-proof\n  ron audit tail -n 3\n  ron audit rotate-key --statement rotation.note"
)]
pub struct AuditArgs {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Subcommand)]
enum AuditCommand {
    /// Check every leaf, the tree, the checkpoint and its signatures; prints one verdict, or the
    /// first bad leaf.
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
    /// Check the logs of all nodes of a key service, with the key of the first; a log that another
    /// names and that is not among them is an error.
    Logs(LogsArgs),
    /// Print the last leaves, one JSON document per line.
    Tail {
        /// Number of leaves to print.
        #[arg(short = 'n', long, default_value_t = 10)]
        lines: usize,
        #[command(flatten)]
        place: AuditPlace,
    },
    /// Make a new signing key for the running KMS's audit log, cross-signed with the current one,
    /// and print it.
    RotateKey(RotateArgs),
}

#[derive(Args)]
struct AuditPlace {
    /// Data directory of `ron up` (or a copy of it).
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Directory of the log, instead of the one in the data directory.
    #[arg(long, conflicts_with = "url")]
    log_dir: Option<PathBuf>,
    /// Read the log over HTTP instead, as in http://127.0.0.1:7440/audit/v1.
    #[arg(long)]
    url: Option<String>,
    /// File with a service token of scope kms:audit, mode 0600; for --url.
    #[arg(long, requires = "url")]
    token_file: Option<PathBuf>,
    /// Verifier key of the log (name+id+key), instead of the one in verifiers.json.
    #[arg(long)]
    vkey: Option<String>,
    /// C2SP tlog-policy file that the checkpoint must satisfy as well.
    #[arg(long)]
    policy: Option<PathBuf>,
}

/// What was read and proved.
pub(super) struct Checked {
    check: LeafCheck,
    leaves: Vec<Hash>,
    last: VecDeque<Vec<u8>>,
    checkpoint: Checkpoint,
    note: String,
    /// The pinned key and the keys that succeeded it.
    keys: Vec<VerifierKey>,
}

/// Which leaves to keep in memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Keep {
    hashes: bool,
    last: usize,
}

pub fn run(args: AuditArgs) -> Result<(), String> {
    match args.command {
        AuditCommand::Verify(place) => println!("{}", place.read(Keep::default())?.verdict()),
        AuditCommand::Prove { index, place } => print!("{}", place.prove(index)?),
        AuditCommand::Stat(place) => print!("{}", place.read(Keep::default())?.stat()),
        AuditCommand::Logs(args) => super::logs::run(args)?,
        AuditCommand::RotateKey(args) => super::rotate::run(args)?,
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

/// Verifies the log in a directory and returns the line to print.
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
        let pin = VerifierKey::parse(&vkey).map_err(|e| format!("the verifier key: {e}"))?;
        let own = layout.root.join("ron-kms/data/audit");
        let dir = self.log_dir.as_deref().unwrap_or(&own);
        let checked = match &self.url {
            Some(url) => Source::new(url, self.token_file.as_deref())?.read(&pin, keep)?,
            None => read_dir(dir, &pin, keep)?,
        };
        if let Some(path) = &self.policy {
            let text = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut policy =
                Policy::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            policy.follow(&checked.keys);
            policy
                .check(
                    &checked.note,
                    &checked.keys,
                    Some(&checked.checkpoint.origin),
                )
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

    /// Ends the input: the leaves must be exactly those that the checkpoint covers.
    fn done(self, note: String, keys: Vec<VerifierKey>) -> Result<Checked, String> {
        let checkpoint = Checkpoint::open(&note, &keys, None).map_err(|e| e.to_string())?;
        self.check.signed_in_time(&note, &keys)?;
        Ok(Checked {
            check: self.check,
            leaves: self.leaves,
            last: self.last,
            checkpoint,
            note,
            keys,
        })
    }
}

pub(super) fn read_dir(dir: &Path, pin: &VerifierKey, keep: Keep) -> Result<Checked, String> {
    let named = |e: &dyn std::fmt::Display| format!("audit log {}: {e}", dir.display());
    // The checkpoint is read before the keys, so that a key that signed it is among them.
    let path = dir.join("checkpoint");
    let note = std::fs::read_to_string(&path).map_err(|e| named(&format!("checkpoint: {e}")))?;
    let keys = kept_keys(dir, pin).map_err(|e| named(&e))?;
    Checkpoint::open(&note, &keys, None).map_err(|e| named(&e))?;
    let bar = bar("audit log");
    let mut taker = Taker::new(keep);
    let verified = verify_on(
        &OsDisk,
        dir,
        &keys,
        &mut |_, leaf, _| taker.take(leaf),
        &mut |done, total| show(&bar, done, total),
    );
    bar.finish_and_clear();
    verified.map_err(|e| named(&e))?;
    taker.done(note, keys).map_err(|e| named(&e))
}

/// A log that is read over HTTP.
struct Source {
    http: Arc<HttpClient>,
    base: String,
    bearer: Option<String>,
}

impl Source {
    fn new(url: &str, token_file: Option<&Path>) -> Result<Self, String> {
        let token = token_file.map(read_secret_file).transpose()?;
        let bearer =
            |t: SecretBytes| format!("Bearer {}", String::from_utf8_lossy(t.expose()).trim());
        Ok(Self {
            http: net::client(),
            base: url.trim_end_matches('/').to_owned(),
            bearer: token.map(bearer),
        })
    }

    /// The document at a path; `None` for 404.
    fn find(&self, path: &str) -> Result<Option<Vec<u8>>, String> {
        let url = format!("{}/{path}", self.base);
        let bearer = self.bearer.as_deref().map(|b| ("Authorization", b));
        let headers: Vec<(&str, &str)> = bearer.into_iter().collect();
        let reply = self
            .http
            .call(Call::get(&url, Deadline::within(WAIT)).headers(&headers))
            .map_err(|e| format!("{url}: {e}"))?;
        match reply.status {
            200 => Ok(Some(reply.body)),
            404 => Ok(None),
            401 | 403 => Err(format!(
                "{url}: entries need --token-file with the scope kms:audit"
            )),
            status => Err(format!("{url}: status {status}")),
        }
    }

    fn get(&self, path: &str) -> Result<Vec<u8>, String> {
        let found = self.find(path)?;
        found.ok_or_else(|| format!("{}/{path}: status 404", self.base))
    }

    /// The pinned key and the keys that succeeded it in the log's published chain.
    fn keys(&self, pin: &VerifierKey) -> Result<Vec<VerifierKey>, String> {
        let Some(text) = self.find("keys")? else {
            return Ok(vec![pin.clone()]);
        };
        let text = String::from_utf8(text).map_err(|_| "the keys are not text")?;
        let chain = KeyChain::parse(&text).map_err(|e| e.to_string())?;
        let led = chain.since(pin);
        led.map(<[VerifierKey]>::to_vec)
            .ok_or_else(|| format!("{}: the pinned key is none of this log's", self.base))
    }

    fn read(&self, pin: &VerifierKey, keep: Keep) -> Result<Checked, String> {
        let note = String::from_utf8(self.get("checkpoint")?);
        let note = note.map_err(|_| "the checkpoint is not text")?;
        let keys = self.keys(pin)?;
        let checkpoint =
            Checkpoint::open(&note, &keys, Some(pin.name())).map_err(|e| e.to_string())?;
        let bar = bar("audit log");
        let (mut taker, mut frontier) = (Taker::new(keep), Frontier::new());
        while frontier.size() < checkpoint.size {
            self.take_bundle(&mut taker, &mut frontier, checkpoint.size)?;
            show(&bar, frontier.size(), checkpoint.size);
        }
        bar.finish_and_clear();
        if frontier.root() != checkpoint.root {
            return Err(format!(
                "the {} leaves served do not hash to the root that was signed for them",
                checkpoint.size
            ));
        }
        taker.done(note, keys)
    }

    /// Reads the next entry bundle.
    fn take_bundle(
        &self,
        taker: &mut Taker,
        frontier: &mut Frontier,
        size: u64,
    ) -> Result<(), String> {
        let first = frontier.size();
        let width = (size - first).min(TILE_WIDTH);
        let path = TilePath::Entries {
            index: first / TILE_WIDTH,
            width: u16::try_from(width).expect("a tile has 256 entries"),
        };
        let bundle = self.get(&path.to_string())?;
        let entries = split_bundle(&bundle).filter(|e| e.len() as u64 == width);
        let entries = entries.ok_or_else(|| format!("leaf {first}: {path} is no whole bundle"))?;
        for entry in entries {
            let at = frontier.size();
            taker
                .take(entry)
                .map_err(|why| format!("leaf {at}: {why}"))?;
            frontier.push(leaf_hash(entry));
        }
        Ok(())
    }
}

impl Checked {
    pub(super) fn origin(&self) -> &str {
        &self.checkpoint.origin
    }

    pub(super) const fn report(&self) -> &AuditReport {
        &self.check.report
    }

    fn verdict(&self) -> String {
        let report = self.report();
        let signatures = report.signatures();
        format!(
            "audit log verified: {} leaves, {} of them under a signed checkpoint, {signatures} signatures by {} keys{}",
            report.size,
            self.checkpoint.size.min(report.size),
            report.keys.len(),
            match report.log_key_rotations {
                0 => String::new(),
                n => format!(", {n} rotations of the log's own key"),
            }
        )
    }

    fn stat(&self) -> String {
        use std::fmt::Write as _;
        let report = self.report();
        let mut text = format!("{}\n", self.verdict());
        let _ = writeln!(text, "origin {}", self.checkpoint.origin);
        if let (Some(first), Some(last)) = (report.first_ts, report.last_ts) {
            let _ = writeln!(text, "from {first} to {last} (Unix milliseconds)");
        }
        for key in report.peer_logs.values() {
            let _ = writeln!(text, "another node has the log {key}");
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
