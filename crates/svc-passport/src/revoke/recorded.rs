//! Revocations as they were recorded, newest first, for administrators: with actor and reason, which the feed does not show.

use ron_auth::RevocationView;
use ron_http::{Responder, Response};
use ron_proto::Timestamp;
use ron_proto::passport::{
    RecordedRevocation, RecordedRevocations, RevocationEvent, Revoked, SKEW_S, TTL_S_MAX,
};

use super::{PAGE_MAX, Revoker, StoreFailed};

/// An event and what the feed does not show of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    pub event: RevocationEvent,
    pub actor: String,
    pub reason: String,
}

/// Which revocations a reader asks for.
#[derive(Debug, Clone, Copy)]
pub struct RecordedAsk {
    /// Only events with a smaller number; the newest when absent.
    pub before: Option<u64>,
    /// Only events from this time on.
    pub since: Option<Timestamp>,
    /// Only those in force.
    pub in_force: bool,
    /// Maximum number of revocations in the answer.
    pub limit: usize,
}

impl Revoker {
    pub(super) fn answer_recorded(&self, ask: &RecordedAsk, responder: Responder) {
        let (view, now_s) = (self.view.load(), self.clock.unix_ms() / 1000);
        // After a failure of the log the database may have rows without leaves: they are not in force.
        let end = view.after() + 1;
        let before = ask.before.map_or(end, |before| before.min(end));
        let page = self.stored(|register| {
            list(ask, before, (&view, now_s), |before, limit| {
                register.recorded(before, limit)
            })
        });
        responder.send(page.map(|page| Response::json(200, &page).cache("no-store")));
    }
}

/// One page. It looks at [`PAGE_MAX`] events at most, so that a search for few among many keeps the writer no longer than a page of the
/// feed does.
fn list(
    ask: &RecordedAsk,
    before: u64,
    (view, now_s): (&RevocationView, u64),
    read: impl FnOnce(u64, usize) -> Result<Vec<Recorded>, StoreFailed>,
) -> Result<RecordedRevocations, StoreFailed> {
    let mut page = RecordedRevocations {
        revocations: Vec::new(),
        next: None,
        current_epoch: view.epoch(),
    };
    for Recorded {
        event,
        actor,
        reason,
    } in read(before, PAGE_MAX)?
    {
        if ask.since.is_some_and(|since| event.ts < since) {
            page.next = None;
            break;
        }
        page.next = (event.seq > 1).then_some(event.seq);
        let in_force = match in_force(&event.revoked, view, now_s) {
            None => continue,
            Some(false) if ask.in_force => continue,
            Some(in_force) => in_force,
        };
        page.revocations.push(RecordedRevocation {
            seq: event.seq,
            ts: event.ts,
            revoked: event.revoked,
            actor,
            reason,
            in_force,
        });
        if page.revocations.len() == ask.limit {
            break;
        }
    }
    Ok(page)
}

/// Whether a token may exist that is refused because of this event; `None` for one that revokes nothing.
fn in_force(revoked: &Revoked, view: &RevocationView, now_s: u64) -> Option<bool> {
    match revoked {
        Revoked::Jti { until, .. } => Some(now_s < *until),
        Revoked::Subject { issued_until, .. } => {
            Some(now_s < issued_until.saturating_add(TTL_S_MAX + SKEW_S))
        }
        Revoked::Kid { kid } => Some(view.kid_revoked(kid)),
        // A later epoch refuses all that this one does.
        Revoked::Epoch { epoch } => Some(*epoch == view.epoch()),
        Revoked::Keys { .. } | Revoked::Policy { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use ron_proto::kms::Bytes;
    use ron_proto::passport::RevocationPage;

    use super::*;

    const NOW_S: u64 = 1_000_000;

    fn events() -> Vec<Recorded> {
        let jti = |until| Revoked::Jti {
            jti: "t".to_owned(),
            until,
        };
        let subject = |issued_until| Revoked::Subject {
            subject_ref: "ci".to_owned(),
            issued_until,
        };
        let what = [
            Revoked::Epoch { epoch: 2 },
            jti(NOW_S),
            Revoked::Policy { version: 2 },
            Revoked::Epoch { epoch: 3 },
            subject(NOW_S - TTL_S_MAX - SKEW_S),
            subject(NOW_S - TTL_S_MAX),
            Revoked::Keys { count: 1 },
            jti(NOW_S + 1),
        ];
        let recorded = |(revoked, seq)| Recorded {
            event: RevocationEvent {
                seq,
                ts: Timestamp(seq * 1000),
                revoked,
                salt: Bytes::default(),
                by: Bytes::default(),
            },
            actor: format!("a{seq}"),
            reason: format!("r{seq}"),
        };
        what.into_iter().zip(1..).map(recorded).collect()
    }

    #[test]
    fn pages_are_newest_first_and_name_what_is_in_force() {
        let all = events();
        let mut view = RevocationView::unchecked();
        let page = RevocationPage {
            events: all.iter().map(|one| one.event.clone()).collect(),
            next: 8,
            current_epoch: 3,
            checkpoint: String::new(),
        };
        view.apply(&page, true, 0).unwrap();
        let read = |before: u64, limit: usize| {
            let older = all.iter().rev().filter(|one| one.event.seq < before);
            Ok(older.take(limit).cloned().collect())
        };
        let check = |before: u64, since: Option<u64>, live: bool, limit, want: &[u64], next| {
            let ask = RecordedAsk {
                before: None,
                since: since.map(|s| Timestamp(s * 1000)),
                in_force: live,
                limit,
            };
            let page = list(&ask, before, (&view, NOW_S), read).unwrap();
            let found: Vec<u64> = page.revocations.iter().map(|one| one.seq).collect();
            assert_eq!((found.as_slice(), page.next), (want, next), "{ask:?}");
            page
        };
        let page = check(9, None, false, 100, &[8, 6, 5, 4, 2, 1], None);
        let live: Vec<bool> = page.revocations.iter().map(|one| one.in_force).collect();
        assert_eq!(live, [true, true, false, true, false, false]);
        assert_eq!(
            (&*page.revocations[0].actor, &*page.revocations[0].reason),
            ("a8", "r8")
        );
        check(9, None, true, 100, &[8, 6, 4], None);
        check(9, None, false, 2, &[8, 6], Some(6));
        check(6, None, false, 2, &[5, 4], Some(4));
        check(2, None, false, 2, &[1], None);
        check(9, Some(5), false, 100, &[8, 6, 5], None);
        check(1, None, false, 2, &[], None);
    }
}
