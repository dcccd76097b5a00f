//! What the ledger answered to the wallet's own writes, handed to the feed, which so need not read it back. Nothing
//! depends on it: the feed reads from the ledger whatever is missing here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ron_kernel::{Receiver, Sender};
use ron_proto::ledger::{Entry, EntryAnswer, Event};

/// Maximum entries that wait for one before them.
const WAITING_MAX: usize = 16_384;

/// The entries of one call, with their answers.
#[derive(Debug)]
pub struct AnsweredCall {
    round: u64,
    entries: Vec<Arc<[Entry]>>,
    answers: Vec<EntryAnswer>,
}

/// Held by the committers, which never wait for the feed.
#[derive(Debug, Clone)]
pub struct OwnWrites {
    calls: Sender<AnsweredCall>,
    round: Arc<AtomicU64>,
}

impl OwnWrites {
    /// To be asked before a call to the ledger, and passed to [`OwnWrites::answered`]: what was sent before the feed
    /// last compared itself with the ledger may have been answered by a state that the ledger has lost.
    pub fn round(&self) -> u64 {
        self.round.load(Ordering::SeqCst)
    }

    pub fn answered(&self, round: u64, entries: Vec<Arc<[Entry]>>, answers: Vec<EntryAnswer>) {
        let call = AnsweredCall {
            round,
            entries,
            answers,
        };
        let _ = self.calls.try_send(call); // full: the feed reads them from the ledger
    }
}

/// Held by the feed, the only reader.
#[derive(Debug)]
pub struct OwnEntries {
    calls: Receiver<AnsweredCall>,
    round: Arc<AtomicU64>,
}

/// Both ends of a queue of answered calls.
pub fn own_writes(
    (calls, answered): (Sender<AnsweredCall>, Receiver<AnsweredCall>),
) -> (OwnWrites, OwnEntries) {
    let round = Arc::<AtomicU64>::default();
    let entries = OwnEntries {
        calls: answered,
        round: round.clone(),
    };
    (OwnWrites { calls, round }, entries)
}

impl OwnEntries {
    /// Begins with an empty set, and with calls that are sent from now on.
    pub fn restart(&self) -> OwnEvents<'_> {
        let round = self.round.fetch_add(1, Ordering::SeqCst) + 1;
        OwnEvents {
            from: self,
            round,
            waiting: BTreeMap::new(),
        }
    }
}

/// Entries that the feed has not reached yet.
#[derive(Debug)]
pub struct OwnEvents<'a> {
    from: &'a OwnEntries,
    round: u64,
    waiting: BTreeMap<u64, Event>,
}

/// What came since the last look.
#[derive(Debug, Default, PartialEq)]
pub struct Gathered {
    /// The wallet has written.
    pub any: bool,
    /// The entries that follow the one asked for, without a gap.
    pub following: Vec<Event>,
    /// The newest of the entries at or before it, which it must agree with.
    pub passed: Option<Event>,
}

impl OwnEvents<'_> {
    /// Takes what the committers have left, and of it what follows entry `after`.
    pub fn gather(&mut self, after: u64) -> Gathered {
        let mut gathered = Gathered::default();
        while let Some(call) = self.from.calls.try_recv() {
            if call.round != self.round {
                continue;
            }
            gathered.any = true;
            let entries = call.entries.iter().flat_map(|entries| entries.iter());
            for (entry, answer) in entries.zip(call.answers) {
                let Some(event) = event_of(entry, answer) else {
                    continue;
                };
                if event.seq > after {
                    self.waiting.insert(event.seq, event);
                } else {
                    gathered.passed = Some(event);
                }
            }
        }
        let rest = self.waiting.split_off(&(after + 1));
        self.waiting = rest;
        let mut next = after + 1;
        while let Some(event) = self.waiting.remove(&next) {
            gathered.following.push(event);
            next += 1;
        }
        if self.waiting.len() > WAITING_MAX {
            self.waiting.clear();
        }
        gathered
    }
}

/// The entry as the ledger's feed has it, if that can be known: this answer is the first to its request, and of a kind of which
/// the ledger stores what it was sent. In others it puts the ids of holds and originals that a request may leave to it.
fn event_of(entry: &Entry, answer: EntryAnswer) -> Option<Event> {
    let stored_as_sent = matches!(
        entry,
        Entry::Issue { .. } | Entry::Transfer { .. } | Entry::Burn { .. } | Entry::Hold { .. }
    );
    if !stored_as_sent || answer.is_replayed() {
        return None;
    }
    let (seq, ts) = answer.receipt().map(|receipt| (receipt.seq, receipt.ts))?;
    Some(Event {
        seq,
        ts,
        entry: entry.clone(),
        answer,
    })
}

#[cfg(test)]
#[path = "own_tests.rs"]
mod tests;
