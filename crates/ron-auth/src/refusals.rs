//! Refused callers in the log: the first of a kind at once, then one line per second with their
//! number, so that a flood leaves a trace and cannot fill the disk.
//!
//! A kind is a reason and a peer. At most [`LINES_MAX`] kinds are distinguished at one time;
//! further peers share one line per reason. There is no thread behind this: the next refusal, or
//! the next refresh of the issuer's keys or events, writes the lines that are due. Totals by reason
//! are in `auth_failures_total`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ron_http::Peer;
use ron_kernel::{RankedMutex, SharedClock};

use crate::meter::METER_LOCK_SPEC;

/// Maximum kinds with a line of their own.
const LINES_MAX: usize = 64;
/// Time that one line summarizes.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// This many refusals within [`FLOOD_WITHIN`] cause one warning in that time.
const FLOOD: u64 = 100;
const FLOOD_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    reason: &'static str,
    /// `None` for peers beyond the limit.
    peer: Option<Peer>,
    count: u64,
    /// Of the last refusal. A client is named only if it has proved its identity or is in the
    /// configuration.
    client: Option<String>,
    request_id: String,
}

/// A kind that was refused within the last second.
#[derive(Debug)]
struct Recent {
    logged_at: Instant,
    /// Refusals since then that are not in the log yet.
    more: u64,
    client: Option<String>,
    request_id: String,
}

#[derive(Debug, Default)]
struct RefusalLog {
    recent: BTreeMap<(&'static str, Option<Peer>), Recent>,
    /// Start of the current minute, and the refusals in it.
    minute: Option<(Instant, u64)>,
}

pub(crate) struct Refusals {
    book: RankedMutex<RefusalLog>,
    clock: SharedClock,
}

impl Refusals {
    pub fn new(clock: SharedClock) -> Self {
        Self {
            book: RankedMutex::new(&METER_LOCK_SPEC, RefusalLog::default()),
            clock,
        }
    }

    pub fn refused(
        &self,
        reason: &'static str,
        peer: Peer,
        request_id: &str,
        client: Option<&str>,
    ) {
        let now = self.clock.now();
        // Decided under the lock, logged after its release.
        let (mut lines, flood) = {
            let mut book = self.book.lock();
            let mut lines = book.due(now);
            lines.extend(book.add(now, (reason, Some(peer)), request_id, client));
            (lines, book.flooded(now))
        };
        write_lines(&mut lines);
        if flood {
            tracing::warn!(
                event = "auth_refusals_flood",
                count = FLOOD,
                "callers are being refused at more than {FLOOD} a minute; auth_failures_total says why, and the log at level info from where"
            );
        }
    }

    /// Writes the lines that are due.
    pub fn flush(&self) {
        let now = self.clock.now();
        let mut lines = self.book.lock().due(now);
        write_lines(&mut lines);
    }
}

fn write_lines(lines: &mut Vec<Line>) {
    for line in lines.drain(..) {
        tracing::info!(
            event = "auth_refused",
            reason = line.reason,
            peer = %line.peer.map_or_else(|| "others".to_owned(), |peer| peer.to_string()),
            client = line.client,
            count = line.count,
            request_id = line.request_id,
        );
    }
}

impl RefusalLog {
    /// Summarizes the refusals since each kind's last line; kinds without new refusals are dropped.
    fn due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        self.recent.retain(|(reason, peer), recent| {
            if now.saturating_duration_since(recent.logged_at) < LINE_EVERY {
                return true;
            }
            if recent.more == 0 {
                return false;
            }
            lines.push(Line {
                reason,
                peer: *peer,
                count: std::mem::take(&mut recent.more),
                client: recent.client.take(),
                request_id: std::mem::take(&mut recent.request_id),
            });
            recent.logged_at = now;
            true
        });
        lines
    }

    /// The line of a kind's first refusal; later ones are only counted.
    fn add(
        &mut self,
        now: Instant,
        (reason, peer): (&'static str, Option<Peer>),
        request_id: &str,
        client: Option<&str>,
    ) -> Option<Line> {
        let known = self.recent.contains_key(&(reason, peer));
        let room = self.recent.len() < LINES_MAX;
        let peer = peer.filter(|_| known || room);
        let client = client.map(str::to_owned);
        if let Some(recent) = self.recent.get_mut(&(reason, peer)) {
            recent.more += 1;
            recent.client = client;
            request_id.clone_into(&mut recent.request_id);
            return None;
        }
        let first = Recent {
            logged_at: now,
            more: 0,
            client: None,
            request_id: String::new(),
        };
        self.recent.insert((reason, peer), first);
        Some(Line {
            reason,
            peer,
            count: 1,
            client,
            request_id: request_id.to_owned(),
        })
    }

    /// Whether this refusal reaches the flood threshold of its minute.
    fn flooded(&mut self, now: Instant) -> bool {
        let (since, count) = self.minute.get_or_insert((now, 0));
        if now.saturating_duration_since(*since) >= FLOOD_WITHIN {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count == FLOOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_kernel::{Clock as _, ManualClock};

    fn start() -> Instant {
        ManualClock::at(0).now()
    }

    #[expect(clippy::unnecessary_wraps, reason = "as the book holds them")]
    fn ip(n: u32) -> Option<Peer> {
        Some(Peer::V4(n.to_be_bytes().into()))
    }

    #[test]
    fn the_first_of_a_kind_is_told_at_once_and_the_rest_by_the_second() {
        let (mut book, start) = (RefusalLog::default(), start());
        let at = |ms| start + Duration::from_millis(ms);
        let first = book.add(at(0), ("scope", ip(1)), "r1", Some("c")).unwrap();
        assert_eq!((first.count, &*first.request_id), (1, "r1"));
        assert_eq!(first.client.as_deref(), Some("c"));
        assert_eq!(book.add(at(10), ("scope", ip(1)), "r2", None), None);
        assert_eq!(book.add(at(20), ("scope", ip(1)), "r3", Some("d")), None);
        assert!(book.add(at(30), ("expired", ip(1)), "r4", None).is_some());
        assert!(book.add(at(40), ("scope", ip(2)), "r5", None).is_some());
        assert_eq!(book.due(at(999)), []);
        let due = book.due(at(1_040));
        let sums: Vec<_> = due.iter().map(|l| (l.reason, l.peer, l.count)).collect();
        assert_eq!(sums, [("scope", ip(1), 2)], "the others came once");
        assert_eq!(
            (due[0].client.as_deref(), &*due[0].request_id),
            (Some("d"), "r3")
        );
        assert_eq!(book.recent.len(), 1, "what has stopped is forgotten");
        assert_eq!(book.add(at(1_500), ("scope", ip(1)), "r6", None), None);
        assert_eq!(book.due(at(2_040)).len(), 1, "one line a second");
        assert_eq!(book.due(at(3_100)), []);
        assert!(book.recent.is_empty());
    }

    #[test]
    fn lines_are_bounded_however_many_peers_there_are_and_none_is_lost() {
        let (mut book, start) = (RefusalLog::default(), start());
        let mut told = 0;
        for n in 0..10_000 {
            told += book
                .add(start, ("missing", ip(n)), "r", None)
                .map_or(0, |l| l.count);
        }
        assert_eq!(told, LINES_MAX as u64 + 1);
        let due = book.due(start + LINE_EVERY);
        assert_eq!(due.len(), 1);
        assert_eq!((due[0].peer, due[0].count + told), (None, 10_000));
    }

    #[test]
    fn a_flood_is_one_warning_a_minute() {
        let (mut book, start) = (RefusalLog::default(), start());
        let warned =
            |book: &mut RefusalLog, at: Instant| (0..1_000).filter(|_| book.flooded(at)).count();
        assert_eq!(warned(&mut book, start), 1);
        assert_eq!(warned(&mut book, start + Duration::from_secs(59)), 0);
        assert_eq!(warned(&mut book, start + Duration::from_secs(60)), 1);
        assert_eq!(
            (0..99)
                .filter(|_| book.flooded(start + Duration::from_secs(200)))
                .count(),
            0
        );
    }
}
