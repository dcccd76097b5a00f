//! The local copy of answers: entries as received from the ledger's event feed, so that a repeated
//! request is answered while the ledger is unavailable. The copy is a cache: it may lag, it may be
//! deleted, and a missing entry proves nothing.
//!
//! One thread appends to files that are never flushed ([`segments`]) and publishes an index of keys ([`index`]).
//! Readers open the files per lookup; lookups are rare.

pub mod index;
pub mod segments;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, FileError};
use ron_kernel::Snapshot;
use ron_proto::ledger::{Entry, EntryAnswer, Event, RefusalCode, RequestKey};

use crate::inflight::same_request;
use index::{Index, Row};
use segments::{ROWS, Segment};

/// Name of the file that records which ledger the copy belongs to, and the prefix of its content.
const ABOUT: &str = "about";
const FORMAT: &str = "answers 2 of ";
/// Maximum bytes of that file; the origin of a log is shorter than 256.
const ABOUT_MAX: u64 = 1_024;

/// The copy cannot be used. No request depends on it.
#[derive(Debug, thiserror::Error)]
pub enum AnswersError {
    #[error("the copy of answers: {0}")]
    Io(#[from] io::Error),
    #[error("the copy of answers: {0}")]
    File(#[from] FileError),
    #[error("the copy of answers: {0}")]
    Json(#[from] serde_json::Error),
}

/// The answer to a repeated request.
#[derive(Debug, Clone, PartialEq)]
pub enum Replay {
    /// The first answers, one per entry.
    First(Vec<EntryAnswer>),
    /// The key was used for a different request.
    Mismatch,
}

/// State published to readers after every page.
#[derive(Debug, Clone, Default)]
struct View {
    /// First sequence of each pair of files, ascending.
    firsts: Vec<u64>,
    index: Index,
    /// Sequence and time of the last entry.
    applied: u64,
    newest_ms: u64,
    /// Sequence of the oldest entry that readers may serve.
    oldest: u64,
}

/// One lines file and its rows file.
#[derive(Debug, Clone, Copy)]
struct Pair {
    first: u64,
    /// Time of the last entry, in milliseconds since 1970.
    last_ms: u64,
}

/// The only writer of the copy; owned by the feed thread.
#[derive(Debug)]
pub struct Answers {
    dir: Dir,
    keep: u64,
    /// Origin line of the ledger that the copy follows; `None` while unknown.
    origin: Option<String>,
    pairs: VecDeque<Pair>,
    writing: Option<Segment>,
    view: View,
    readers: AnswersReader,
}

impl Answers {
    /// Opens the copy that `readers` read; it keeps at most `keep` entries. A copy that cannot be
    /// read is dropped and rebuilt from the feed. `None` without a data directory.
    pub fn open(readers: &AnswersReader, keep: u64) -> Result<Option<Self>, AnswersError> {
        let Some(dir) = readers.dir.clone() else {
            return Ok(None);
        };
        dir.create()?;
        // An unreadable or foreign file names no ledger, so the copy is rebuilt.
        let about = dir.read_small(ABOUT, ABOUT_MAX).unwrap_or_default();
        let about = about.and_then(|about| String::from_utf8(about).ok());
        let mut answers = Self {
            dir,
            keep,
            origin: about.and_then(|about| about.strip_prefix(FORMAT).map(str::to_owned)),
            pairs: VecDeque::new(),
            writing: None,
            view: View::default(),
            readers: readers.clone(),
        };
        if answers.origin.is_some()
            && let Err(why) = answers.load()
        {
            tracing::warn!(event = "answers_rebuilt", reason = %why);
            answers.origin = None;
        }
        answers.publish();
        Ok(Some(answers))
    }

    fn load(&mut self) -> Result<(), AnswersError> {
        let mut newest: Option<(u64, u64, u32)> = None;
        for first in segments::firsts(&self.dir)? {
            // A power cut may tear a pair and leave the next one whole. The feed continues after the last entry,
            // so a pair behind a gap goes, and its entries come again in order.
            let follows = newest.is_none_or(|(before, rows, _)| before + rows == first);
            let places = if follows {
                segments::places(&self.dir, first)?
            } else {
                Vec::new()
            };
            let Some(last) = places.last() else {
                segments::remove(&self.dir, first)?;
                continue;
            };
            let rows = places.iter().zip(first..);
            let keyed = rows.filter(|(place, _)| place.hash != 0);
            let row = |(place, seq): (&segments::Place, u64)| Row {
                hash: place.hash,
                seq: seq as u32,
            };
            self.view.index.add(keyed.map(row).collect(), |_| true);
            self.view.applied = first + places.len() as u64 - 1;
            self.view.newest_ms = last.ts_ms;
            self.pairs.push_back(Pair {
                first,
                last_ms: last.ts_ms,
            });
            newest = Some((first, places.len() as u64, last.end));
        }
        let open = |(first, rows, end)| Segment::open(&self.dir, first, rows, end);
        self.writing = newest.map(open).transpose()?;
        Ok(())
    }

    /// Checks the copy against the ledger `origin` at sequence `head`. A copy of another ledger, or
    /// one that is ahead of `head`, is dropped; returns true in that case.
    pub fn of_ledger(&mut self, origin: &str, head: u64) -> Result<bool, AnswersError> {
        if self.origin.as_deref() == Some(origin) && self.view.applied <= head {
            return Ok(false);
        }
        let dropped = self.origin.is_some();
        self.start_over(origin, head)?;
        Ok(dropped)
    }

    /// Whether the ledger has the same entry as the copy at this sequence. They differ when the
    /// ledger was restored to an earlier state and has committed other entries since.
    pub fn agrees(&self, theirs: &Event) -> bool {
        let ours = self.readers.at(theirs.seq);
        ours.is_none_or(|ours| ours.ts == theirs.ts && ours.entry == theirs.entry)
    }

    /// Drops everything and starts an empty copy of the ledger `origin`, which is at `head`.
    pub fn start_over(&mut self, origin: &str, head: u64) -> Result<(), AnswersError> {
        self.writing = None;
        self.pairs.clear();
        self.view = View {
            // An empty copy starts at the oldest entry that it would keep.
            applied: head.saturating_sub(self.keep),
            ..View::default()
        };
        self.publish();
        for first in segments::firsts(&self.dir)? {
            segments::remove(&self.dir, first)?;
        }
        let about = format!("{FORMAT}{origin}");
        self.dir.write(ABOUT, about.as_bytes())?;
        self.origin = Some(origin.to_owned());
        Ok(())
    }

    /// Sequence of the last entry in the copy.
    pub const fn applied(&self) -> u64 {
        self.view.applied
    }

    /// Appends entries that follow the last one, and drops the oldest.
    pub fn take(&mut self, events: &[Event]) -> Result<(), AnswersError> {
        let mut rows = Vec::with_capacity(events.len());
        for event in events {
            let full = |s: &Segment| event.seq != s.first + s.rows || s.rows == ROWS;
            if self.writing.as_ref().is_none_or(full) {
                self.roll(event.seq)?;
            }
            let segment = self.writing.as_mut().expect("just made");
            let hash = event.entry.request_key().map_or(0, |key| hash(&key));
            segment.add(hash, event.ts.0, |out| {
                if hash == 0 {
                    return Ok(());
                }
                serde_json::to_writer(out, event)
            })?;
            if hash != 0 {
                let seq = event.seq as u32;
                rows.push(Row { hash, seq });
            }
            self.view.applied = event.seq;
            self.view.newest_ms = event.ts.0;
            if let Some(pair) = self.pairs.back_mut() {
                pair.last_ms = event.ts.0;
            }
        }
        if let Some(segment) = &mut self.writing {
            segment.flush(&self.dir)?;
        }
        let (applied, keep) = (self.view.applied, self.keep);
        let live = |row: Row| applied - whole_seq(row.seq, applied) < keep;
        self.view.index.add(rows, live);
        self.publish();
        Ok(())
    }

    /// Starts the next pair of files and removes pairs whose entries are past the retention.
    fn roll(&mut self, first: u64) -> Result<(), AnswersError> {
        if let Some(mut segment) = self.writing.take() {
            segment.flush(&self.dir)?;
        }
        segments::remove(&self.dir, first)?;
        self.writing = Some(Segment::open(&self.dir, first, 0, 0)?);
        self.pairs.push_back(Pair { first, last_ms: 0 });
        let oldest = (self.view.applied + 1).saturating_sub(self.keep);
        let since = self.view.newest_ms.saturating_sub(self.readers.keep_ms);
        while let (Some(pair), Some(next)) = (self.pairs.front(), self.pairs.get(1))
            && (next.first <= oldest || pair.last_ms < since)
        {
            segments::remove(&self.dir, pair.first)?;
            self.pairs.pop_front();
        }
        Ok(())
    }

    fn publish(&mut self) {
        // Publish after the flush: readers only entry_at up entries that are in the files.
        self.view.firsts = self.pairs.iter().map(|pair| pair.first).collect();
        self.view.oldest = (self.view.applied + 1).saturating_sub(self.keep);
        self.readers.view.store(self.view.clone());
    }
}

/// Read access to the copy, shared by the API handlers.
#[derive(Debug, Clone)]
pub struct AnswersReader {
    dir: Option<Dir>,
    /// Maximum age of an answer that is served, in milliseconds.
    keep_ms: u64,
    view: Arc<Snapshot<View>>,
}

impl AnswersReader {
    /// Reads answers of at most this age, compared with the newest entry, from `dir`; with `None` every
    /// lookup finds nothing.
    pub fn new(dir: Option<Dir>, keep_for: Duration) -> Self {
        Self {
            dir,
            keep_ms: u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX),
            view: Arc::default(),
        }
    }

    /// The answer to a repeated request, if all of its entries are in the copy.
    pub fn replay(&self, request: &[Entry]) -> Option<Replay> {
        let key = request.first()?.request_key()?;
        let found = self.batch(&key, request.len())?;
        replay_of(request, &found)
    }

    /// The entry committed under a key.
    pub fn by_key(&self, key: &RequestKey) -> Option<Event> {
        let view = self.view.load();
        view.index
            .find(hash(key))
            .filter_map(|low| self.entry_at(&view, whole_seq(low, view.applied)))
            .find(|event| event.entry.request_key().as_ref() == Some(key))
    }

    pub fn at(&self, seq: u64) -> Option<Event> {
        self.entry_at(&self.view.load(), seq)
    }

    /// The entry of a key and the ones directly after it, `n` in total.
    pub fn batch(&self, key: &RequestKey, n: usize) -> Option<Vec<Event>> {
        let first = self.by_key(key)?;
        if n <= 1 {
            return Some(vec![first]);
        }
        Some(self.range(first.seq, n as u64))
    }

    /// At most `n` entries from `seq` on; stops at the first one that is not in the copy.
    pub fn range(&self, seq: u64, n: u64) -> Vec<Event> {
        let view = self.view.load();
        let all = (seq..seq.saturating_add(n)).map(|seq| self.entry_at(&view, seq));
        all.take_while(Option::is_some).flatten().collect()
    }

    fn entry_at(&self, view: &View, seq: u64) -> Option<Event> {
        let dir = self.dir.as_ref()?;
        if seq < view.oldest || seq > view.applied {
            return None;
        }
        let pair = view.firsts.partition_point(|first| *first <= seq);
        let first = *view.firsts.get(pair.checked_sub(1)?)?;
        let event = match read(dir, first, seq) {
            Ok(event) => event?,
            Err(why) => {
                tracing::warn!(event = "answers_read_failed", reason = %why);
                return None;
            }
        };
        (event.ts.0 >= view.newest_ms.saturating_sub(self.keep_ms)).then_some(event)
    }
}

fn read(dir: &Dir, first: u64, seq: u64) -> Result<Option<Event>, AnswersError> {
    let line = segments::line(dir, first, seq - first)?;
    let event: Option<Event> = line.map(|l| serde_json::from_slice(&l)).transpose()?;
    Ok(event.filter(|event| event.seq == seq))
}

/// The sequence at or before `applied` whose low half is `low`. Unambiguous because at most 2^32
/// entries are kept.
const fn whole_seq(low: u32, applied: u64) -> u64 {
    applied.saturating_sub((applied as u32).wrapping_sub(low) as u64)
}

/// Whether `asked` has a text where `first`, the entry under its key, has none.
fn lacks_a_text(first: &Entry, asked: &Entry) -> bool {
    let (first, asked) = (first.operands().details, asked.operands().details);
    (first.memo.is_none() && asked.memo.is_some())
        || (first.metadata.is_none() && asked.metadata.is_some())
        || (first.reference.is_none() && asked.reference.is_some())
}

/// Compares a request with the entries under its keys: the first answers, a mismatch, or `None`
/// when some entries of the request are missing.
pub fn replay_of(request: &[Entry], found: &[Event]) -> Option<Replay> {
    let first = found.first()?;
    if matches!(first.entry, Entry::Abandon { .. }) {
        let refused = EntryAnswer::Refused {
            code: RefusalCode::Abandoned,
            seq: Some(first.seq),
            expected: None,
            paid_by: None,
            replayed: true,
        };
        return Some(Replay::First(vec![refused; request.len()]));
    }
    // A text that the ledger's entry lacks may have been erased since. Only the ledger can compare then: a false mismatch
    // would make the caller pay again under a new key.
    let lacking = |(first, asked): (&Event, &Entry)| lacks_a_text(&first.entry, asked);
    if found.iter().zip(request).any(lacking) {
        return None;
    }
    // The first entry alone decides a mismatch, also when the rest of the batch is missing.
    let (head, wanted) = (std::slice::from_ref(&first.entry), &request[..1]);
    if !same_request(head, wanted) {
        return Some(Replay::Mismatch);
    }
    if found.len() < request.len() {
        return None;
    }
    let entries: Vec<Entry> = found.iter().map(|e| e.entry.clone()).collect();
    Some(if same_request(&entries, request) {
        Replay::First(
            found
                .iter()
                .map(|e| e.answer.clone().as_replayed())
                .collect(),
        )
    } else {
        Replay::Mismatch
    })
}

/// 32 bits of a hash over a key with its owner, never 0 because 0 marks an entry without a key.
/// Collisions are harmless: the full key is compared after the lookup.
fn hash(key: &RequestKey) -> u32 {
    let text = format!("{} {} {}", key.tenant, key.principal, key.key);
    segments::part_of(&ron_crypto::hash::blake3(text.as_bytes())).max(1)
}

#[cfg(test)]
mod tests;
