//! A key service that was restored from a backup: `ron restore`.
//!
//! The restored state is an older one, and what the service did since is not known. So the service does not go on with the log of
//! the backup, which its witnesses know longer, but begins another one under another name. Its first leaf names the log before.
//! Ciphers with counted nonces wrap again when their keys are rotated: numbers of the restored count may have been used.
//!
//! ```text
//!  audit/, as the backup has it ──> audit.1/, kept for verifiers
//!  keys.db ── + a log, with a key of its own ──> audit/ with one leaf, `recover`
//! ```

use ron_custody::backend::Backends;
use ron_custody::store::KeyStore;
use ron_files::Dir;
use ron_kernel::{Registry, SharedClock, SharedRandom};
use ron_proto::kms::KeyBackend;
use ron_proto::values::{Kid, Timestamp};
use ron_service::DataDir;
use ron_tlog::VerifierKey;
use ron_tlog::append::{Log, LogOptions};
use ron_tlog::checkpoint::Checkpoint;

use crate::audit::DIR;
use crate::audit::leaf::{Draft, LEAF_BYTES_MAX, Op};
use crate::audit::writer::{AuditWriter, Counters, LeafMaker};
use crate::engine::log::{ANCHOR_BESIDE, close};
use crate::metrics::Metrics;
use crate::migrate::KeyService;

/// What is told about a restore.
pub struct Restored<'a> {
    /// When the backup was taken.
    pub taken: Timestamp,
    /// The most leaves of the log before that a witness or an anchor shows, if that is known.
    pub witnessed: Option<u64>,
    pub service: &'a KeyService,
    pub random: SharedRandom,
    pub clock: SharedClock,
}

/// The new log, and what is not as before.
#[derive(Debug)]
pub struct Recovered {
    /// The end of the log before, as the backup has it.
    pub before: Checkpoint,
    /// The directory that has it now, in the data directory.
    pub kept_in: String,
    /// Key of the new log; its name is the log's origin.
    pub vkey: VerifierKey,
    /// Keys that wrap again when they are rotated.
    pub closed: Vec<Kid>,
    /// Remembered answers that the backup has not whole.
    pub lost: Vec<String>,
}

impl Restored<'_> {
    /// Begins the new log. The service must not be running; after an error its data has to be restored again.
    pub fn recover(&self) -> Result<Recovered, String> {
        let home = self.service.data();
        let _lock = DataDir::at(home.clone()).map_err(|e| e.to_string())?;
        let now = Timestamp(self.clock.unix_ms());
        let mut store = self.store(now)?;
        if store.tpm_counter().is_some() {
            return Err("the starts of this store are counted in a TPM (tpm.counter_index), which refuses every earlier state: it cannot be restored from a backup".to_owned());
        }
        let before = close(&home.join(DIR), &mut store).map_err(|distrust| distrust.why)?;
        let kept_in = set_aside(home)?;
        let failed = |e: ron_custody::store::StoreError| e.to_string();
        store
            .begin_log(&name_after(&before.origin, now), now)
            .map_err(failed)?;
        let closed = store.close_uses().map_err(failed)?;
        let (_replay, mut journal) = self.service.journal(&store)?;
        let lost = journal.losses().to_vec();
        if !lost.is_empty() {
            journal.accept_losses().map_err(|e| e.to_string())?;
        }
        let recovered = Recovered {
            vkey: store.log().verifier()?,
            before,
            kept_in,
            closed,
            lost,
        };
        self.write_first_leaf(&store, &recovered)?;
        Ok(recovered)
    }

    fn store(&self, now: Timestamp) -> Result<KeyStore, String> {
        // No device is asked: what it holds, it has not lost.
        let backends = Backends::new(KeyBackend::File, Vec::new(), self.clock.clone());
        let settings = self.service.store_settings();
        let opened = KeyStore::open(&settings, backends, self.random.clone(), now);
        opened.map_err(|e| e.to_string())
    }

    fn write_first_leaf(&self, store: &KeyStore, recovered: &Recovered) -> Result<(), String> {
        let dir = self.service.data().join(DIR);
        let mut options = LogOptions::new(&store.log().origin);
        options.entry_bytes_max = LEAF_BYTES_MAX;
        options.random = self.random.clone();
        let log = Log::open(dir.disk().clone(), dir.path(), options).map_err(|e| e.to_string())?;
        let metrics = Metrics::new(&Registry::new("ron-kms"), "file");
        let counters = Counters::default();
        let leaves = LeafMaker::new(counters, None, self.clock.clone(), metrics);
        let mut writer = AuditWriter::new(log, leaves);
        writer.set_store_version(store.version());
        let draft = Draft::service(Op::Recover, &self.context(recovered));
        let appended = writer.append(std::iter::once(draft));
        appended.map(drop).map_err(|e| e.to_string())
    }

    /// What the leaf says. It is a line of text, short of the longest leaf.
    fn context(&self, recovered: &Recovered) -> String {
        let before = &recovered.before;
        let witnessed = match self.witnessed {
            Some(size) => format!(", witnessed {size}"),
            None => String::new(),
        };
        format!(
            "backup {} of {} size {} root {}{witnessed}; {} keys closed for wrapping; operation ids since then are forgotten",
            self.taken,
            before.origin,
            before.size,
            ron_proto::b64::std(&before.root),
            recovered.closed.len(),
        )
    }
}

/// The name of the log that follows: that of the first log, and when it begins.
fn name_after(origin: &str, now: Timestamp) -> String {
    const MARK: &str = "/recovered-";
    let first = origin.split(MARK).next().unwrap_or(origin);
    let when: String = now
        .to_string()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    format!("{first}{MARK}{when}")
}

/// Gives the log's directory the next free name, and removes the copy of its checkpoint. Returns the name.
fn set_aside(home: &Dir) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", home.path().display());
    let mut number = 1;
    let name = loop {
        let name = format!("{DIR}.{number}");
        if !home.exists(&name).map_err(failed)? {
            break name;
        }
        number += 1;
    };
    let disk = home.disk();
    disk.rename(&home.file(DIR), &home.file(&name))
        .map_err(failed)?;
    if home.exists(ANCHOR_BESIDE).map_err(failed)? {
        home.remove(ANCHOR_BESIDE).map_err(failed)?;
    }
    home.sync().map_err(failed)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recovery_names_the_first_log_and_its_time() {
        let first = name_after("ron-kms.local/1a2b", Timestamp(0));
        assert_eq!(first, "ron-kms.local/1a2b/recovered-19700101000000000");
        let second = name_after(&first, Timestamp(1));
        assert_eq!(second, "ron-kms.local/1a2b/recovered-19700101000000001");
    }
}
