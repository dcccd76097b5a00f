//! The newest state of each issuer that this service has accepted: its policy note's version and the
//! head of its revocation log, in one small file of the data directory. Older ones are refused even
//! if they are correctly signed, also after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_files::Dir;
use ron_kernel::{Deadline, LockSpec, RankedMutex, Shutdown};
use ron_proto::{b64, strict};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use serde::{Deserialize, Serialize};

/// Name of the file in a data directory.
pub const SEEN_FILE: &str = "issuer-notes.json";
/// Format version of the file.
const FORMAT: u32 = 2;
/// Maximum issuers in the file; a service has one at a time.
const ISSUERS_MAX: usize = 64;
/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Longest wait of a reload for the thread that writes the file.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two looks at whether the file is still being written.
const WRITE_POLL: Duration = Duration::from_millis(5);

/// Not held while the file is read or written: a writer claims the file first ([`State::writing`]).
pub const NOTE_LOCK: LockSpec = LockSpec {
    name: "auth.note",
    rank: 904,
    guards: "the newest policy note and revocation log seen of each issuer, and the claim to write their file; only *-auth-keys, *-auth-feed and a reload take it",
};
static NOTE_LOCK_SPEC: LockSpec = NOTE_LOCK;

/// What was seen of an issuer.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct IssuerRecord {
    /// The highest version of its policy note; 0 if none was read.
    pub note: u64,
    /// The verifier key of its revocation log, from that note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_key: Option<String>,
    /// The newest checkpoint of its revocation log, a signed note: the evidence against an issuer
    /// that shows another history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl IssuerRecord {
    pub fn log_key(&self) -> Option<VerifierKey> {
        self.log_key.as_ref()?.parse().ok()
    }

    /// The head of the log at the newest checkpoint.
    pub fn head(&self) -> Option<Checkpoint> {
        let note = self.checkpoint.as_ref()?;
        Checkpoint::read_unverified(note, None).ok() // verified before it was recorded
    }

    fn is_readable(&self) -> bool {
        self.log_key().is_some() == self.log_key.is_some()
            && self.head().is_some() == self.checkpoint.is_some()
    }
}

/// What was seen, by issuer.
pub type AllSeen = BTreeMap<String, IssuerRecord>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    issuers: AllSeen,
    /// SHA-256 of `issuers` as they are written, so that a changed byte is damage and no other version.
    sum: String,
}

fn sum_of(issuers: &AllSeen) -> Result<String, serde_json::Error> {
    serde_json::to_vec(issuers).map(|text| b64::url(&sha256(&text)))
}

/// Only the format, so that a newer file is distinguished from a damaged one.
#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

/// What was seen, in memory and in the file.
pub(crate) struct SeenIssuers {
    /// `None` in amnesia mode.
    dir: Option<Dir>,
    held: RankedMutex<State>,
}

struct State {
    all: AllSeen,
    /// A thread is writing or reloading the file; no other may do so at the same time.
    writing: bool,
}

impl SeenIssuers {
    /// Loads the file of a data directory; without one everything is kept in memory only.
    pub fn open(dir: Option<Dir>) -> Result<Self, String> {
        let all = dir.as_ref().map_or_else(|| Ok(AllSeen::new()), read_seen)?;
        let state = State {
            all,
            writing: false,
        };
        Ok(Self {
            dir,
            held: RankedMutex::new(&NOTE_LOCK_SPEC, state),
        })
    }

    /// What was seen of this issuer; nothing if it is new.
    pub fn of(&self, issuer: &str) -> IssuerRecord {
        let held = self.held.lock();
        held.all.get(issuer).cloned().unwrap_or_default()
    }

    /// Records a change, durably when this returns. Fails while another thread records one: the
    /// caller reads the issuer again soon.
    pub fn record(
        &self,
        issuer: &str,
        change: impl FnOnce(&mut IssuerRecord),
    ) -> Result<(), String> {
        let Some(next) = self.claim(issuer, change)? else {
            return Ok(());
        };
        let written = match &self.dir {
            Some(dir) => write_seen(dir, &next),
            None => Ok(()),
        };
        let mut held = self.held.lock();
        held.writing = false;
        if written.is_ok() {
            held.all = next;
        }
        written
    }

    /// Everything including the change, and the claim to write it; `None` when nothing changes.
    fn claim(
        &self,
        issuer: &str,
        change: impl FnOnce(&mut IssuerRecord),
    ) -> Result<Option<AllSeen>, String> {
        let mut held = self.held.lock();
        let old = held.all.get(issuer);
        let mut new = old.cloned().unwrap_or_default();
        change(&mut new);
        if old == Some(&new) {
            return Ok(None);
        }
        if held.writing {
            return Err(format!("{SEEN_FILE} is being written or reloaded"));
        }
        let mut next = held.all.clone();
        next.insert(issuer.to_owned(), new);
        if next.len() > ISSUERS_MAX {
            return Err(format!(
                "{SEEN_FILE} names {ISSUERS_MAX} issuers; remove those that are configured no more"
            ));
        }
        held.writing = true;
        Ok(Some(next))
    }

    /// Reloads the file: an operator may have set it back (`ron issuer trust`). Waits for a writer,
    /// which needs a flush: an operator's reload must not depend on the moment.
    pub fn read_again(&self) -> Result<(), String> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let (_never_set, never) = Shutdown::pair();
        let patience = Deadline::within(WRITE_PATIENCE);
        while std::mem::replace(&mut self.held.lock().writing, true) {
            if patience.expired() {
                return Err(format!("{SEEN_FILE} is being written; reload again"));
            }
            never.wait(Deadline::within(WRITE_POLL));
        }
        let read = read_seen(dir);
        let mut held = self.held.lock();
        held.writing = false;
        held.all = read?;
        Ok(())
    }
}

/// What a service has seen, from its data directory; empty if there is no file.
pub fn read_seen(dir: &Dir) -> Result<AllSeen, String> {
    let path = dir.file(SEEN_FILE);
    let fail = |why: String| format!("{}: {why}", path.display());
    let read = dir.read_small(SEEN_FILE, FILE_BYTES_MAX);
    let read = read.map_err(|e| fail(format!("cannot be read: {e}")))?;
    let Some(bytes) = read else {
        return Ok(AllSeen::new());
    };
    let damaged = |e: &dyn std::fmt::Display| {
        fail(format!(
            "is damaged: {e}; `ron issuer trust` rewrites it, after showing the issuer's current note"
        ))
    };
    let format = serde_json::from_slice::<Formatted>(&bytes).map_err(|e| damaged(&e))?;
    if format.format != FORMAT {
        return Err(fail(format!(
            "is of format {}, this program knows {FORMAT}; use a newer program",
            format.format
        )));
    }
    let document: Document = strict::from_slice(&bytes).map_err(|e| damaged(&e))?;
    if sum_of(&document.issuers).map_err(|e| damaged(&e))? != document.sum {
        return Err(damaged(&"its sum does not match"));
    }
    if !document.issuers.values().all(IssuerRecord::is_readable) {
        return Err(damaged(&"a key or checkpoint cannot be parsed"));
    }
    Ok(document.issuers)
}

/// Replaces the file atomically; durable on return.
pub fn write_seen(dir: &Dir, all: &AllSeen) -> Result<(), String> {
    let document = Document {
        format: FORMAT,
        issuers: all.clone(),
        sum: sum_of(all).map_err(|e| e.to_string())?,
    };
    let mut bytes = serde_json::to_vec(&document).map_err(|e| e.to_string())?;
    bytes.push(b'\n');
    dir.write(SEEN_FILE, &bytes)
        .map_err(|e| format!("{} cannot be written: {e}", dir.file(SEEN_FILE).display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use ron_files::trial::Hooked;
    use ron_kernel::{HANGS_AFTER, KernelMetrics, ManualClock, Registry, Supervisor, Topology};

    use super::*;

    fn note(version: u64) -> impl FnOnce(&mut IssuerRecord) {
        move |seen| seen.note = seen.note.max(version)
    }

    #[test]
    fn what_was_seen_survives_a_restart_and_is_kept_by_issuer() {
        let dir = tempfile::tempdir().unwrap();
        let open = || SeenIssuers::open(Some(Dir::os(dir.path()))).unwrap();
        let seen = open();
        assert_eq!(seen.of("a"), IssuerRecord::default());
        seen.record("a", note(7)).unwrap();
        seen.record("a", note(5)).unwrap();
        let head = "i/revocations\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n— i/revocations AAAAAAA=\n";
        seen.record("b", |seen| seen.checkpoint = Some(head.to_owned()))
            .unwrap();
        for seen in [seen, open()] {
            assert_eq!((seen.of("a").note, seen.of("b").note), (7, 0));
            assert_eq!(seen.of("b").head().map(|head| head.size), Some(1));
        }
        let running = open();
        let three = IssuerRecord {
            note: 3,
            ..IssuerRecord::default()
        };
        write_seen(
            &Dir::os(dir.path()),
            &AllSeen::from([("a".to_owned(), three)]),
        )
        .unwrap();
        assert_eq!(running.of("a").note, 7);
        running.read_again().unwrap();
        assert_eq!((running.of("a").note, running.of("b").head()), (3, None));
    }

    #[test]
    fn a_disk_that_hangs_is_noticed() {
        static NOTHING: Topology = Topology {
            service: "t",
            threads: &[],
            queues: &[],
            locks: &[],
        };
        let (clock, registry) = (ManualClock::at(1_000), Registry::new("t"));
        let sup = Supervisor::new(&NOTHING, KernelMetrics::new(&registry), clock.clone());
        let disk = Hooked::new(move |_: &Path| clock.advance(HANGS_AFTER + WRITE_POLL));
        let dir = Dir::new(Arc::new(disk), "/d").watched(sup.watch_disks("files", 1));
        let seen = SeenIssuers::open(Some(dir)).unwrap();
        seen.record("a", note(7)).unwrap();
        let counted = "t_io_timeouts_total{op=\"files\"} 1";
        assert!(registry.render().contains(counted), "{}", registry.render());
    }

    #[test]
    fn a_reload_waits_for_the_thread_that_writes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let seen = SeenIssuers::open(Some(Dir::os(dir.path()))).unwrap();
        let written = seen.claim("a", note(7)).unwrap().unwrap();
        let (_never_set, never) = Shutdown::pair();
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| seen.read_again());
            never.wait(Deadline::within(4 * WRITE_POLL));
            assert!(!reload.is_finished());
            write_seen(&Dir::os(dir.path()), &written).unwrap();
            seen.held.lock().writing = false;
            assert_eq!(reload.join().unwrap(), Ok(()));
        });
        assert_eq!(seen.of("a").note, 7);
        seen.record("a", note(8)).unwrap();
    }

    #[test]
    fn without_a_directory_it_is_kept_in_memory_and_one_that_is_gone_is_an_error() {
        let memory = SeenIssuers::open(None).unwrap();
        memory.record("a", note(7)).unwrap();
        memory.read_again().unwrap();
        assert_eq!(memory.of("a").note, 7);
        let gone = SeenIssuers::open(Some(Dir::os("/nowhere/at/all"))).unwrap();
        assert!(gone.record("a", note(7)).is_err());
        assert_eq!(gone.of("a").note, 0, "what is not durable does not count");
    }

    #[test]
    fn a_damaged_file_and_a_newer_format_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |text: &str, wanted: &str| {
            std::fs::write(dir.path().join(SEEN_FILE), text).unwrap();
            let error = read_seen(&Dir::os(dir.path())).expect_err(text);
            let named = error.contains(SEEN_FILE) && error.contains(wanted);
            assert!(named, "{error}");
        };
        refused("", "damaged");
        refused(
            "{\"format\":2,\"issuers\":{\"a\":{\"note\":-1}},\"sum\":\"\"}",
            "damaged",
        );
        refused("{\"format\":2,\"issuers\":{},\"more\":1}", "damaged");
        let unreadable = IssuerRecord {
            checkpoint: Some("x".to_owned()),
            ..IssuerRecord::default()
        };
        let all = AllSeen::from([("a".to_owned(), unreadable)]);
        write_seen(&Dir::os(dir.path()), &all).unwrap();
        let error = read_seen(&Dir::os(dir.path())).expect_err("unreadable");
        assert!(error.contains("cannot be parsed"), "{error}");
        refused("{\"format\":3,\"issuers\":[]}", "format 3");
        refused(&" ".repeat(FILE_BYTES_MAX as usize + 1), "longer");
    }

    #[test]
    fn a_flipped_byte_is_no_other_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SEEN_FILE);
        SeenIssuers::open(Some(Dir::os(dir.path())))
            .unwrap()
            .record("https://issuer", note(7_113))
            .unwrap();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            match read_seen(&Dir::os(dir.path())) {
                Err(error) => assert!(error.contains(SEEN_FILE), "{error}"),
                // The line feed at the end.
                Ok(all) => assert_eq!((all["https://issuer"].note, at), (7_113, good.len() - 1)),
            }
        }
    }

    #[test]
    fn a_service_remembers_a_bounded_number_of_issuers() {
        let seen = SeenIssuers::open(None).unwrap();
        for n in 0..ISSUERS_MAX {
            seen.record(&n.to_string(), note(1)).unwrap();
        }
        assert!(seen.record("one more", note(1)).is_err());
        seen.record("0", note(2)).unwrap();
    }
}
