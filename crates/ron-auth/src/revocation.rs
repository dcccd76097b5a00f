//! The issuer's revocations: epochs, tokens, subjects, keys. Built from the issuer's ordered event
//! feed. Pure; the thread that reads the feed is in `feed`.

use std::collections::BTreeSet;

use ron_proto::passport::{RevocationPage, Revoked, SKEW_S, TTL_S_MAX};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::tree::{Frontier, Hash};

use crate::expiring::Expiring;
use crate::jwt::Claims;
use crate::reject::AuthReject;
use crate::revocation_log;

/// Maximum entries; beyond it all passports are refused until entries have expired.
const ENTRIES_MAX: usize = 1_000_000;

/// All revocations up to one event. Passports are refused until `synced`, or a restart would accept
/// a revoked one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RevocationView {
    synced: bool,
    /// Number of the last applied event.
    after: u64,
    epoch: u64,
    /// Token id -> Unix seconds after which no check can matter.
    jtis: Expiring,
    /// Subject -> tokens issued up to then (Unix seconds) are void.
    subjects: Expiring,
    kids: BTreeSet<String>,
    /// Number of announced changes of the issuer's key set.
    key_changes: u64,
    /// The highest announced version of the issuer policy.
    policy_version: u64,
    /// The tree of the revocation log up to the last applied event.
    tree: Frontier,
    /// An earlier head of the log that the events must lead through, and how they did.
    known: Option<KnownHead>,
    /// For how many seconds entries stay after the end of every token that they can match.
    retention_s: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct KnownHead {
    size: u64,
    root: Hash,
    met: Met,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Met {
    NotYet,
    Same,
    Other,
}

/// Why events are not the history of the log that was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryLost {
    #[error(
        "the revocation log ends at event {got}, but event {seen} was seen before: it was rolled back"
    )]
    RolledBack { got: u64, seen: u64 },
    #[error(
        "the revocation log has other events than before among the first {size}: its history was changed"
    )]
    Forked { size: u64 },
}

/// The feed shows no faithful continuation of the revocation log that was seen before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LogAlarm {
    #[error("its checkpoint is not signed by the key that the policy note names: {0}")]
    Unsigned(String),
    #[error("its events are not those of its checkpoint of {size}")]
    Altered { size: u64 },
    #[error(
        "{0}; if the issuer was restored from a backup, revoke again what it lost and accept it with `ron issuer trust`"
    )]
    History(HistoryLost),
}

impl LogAlarm {
    pub const REASONS: [&'static str; 4] = ["altered", "forked", "rolled_back", "unsigned"];

    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "unsigned",
            Self::Altered { .. } => "altered",
            Self::History(HistoryLost::RolledBack { .. }) => "rolled_back",
            Self::History(HistoryLost::Forked { .. }) => "forked",
        }
    }
}

/// The feed does not continue where this view ends: read it again from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the revocation feed does not continue after event {after}")]
pub struct FeedGap {
    pub after: u64,
}

impl RevocationView {
    /// For verifiers without a feed: tests and offline tools.
    pub fn unchecked() -> Self {
        Self {
            synced: true,
            ..Self::default()
        }
    }

    /// An empty view whose events must lead through this head of the log.
    pub fn through(known: Option<&Checkpoint>) -> Self {
        let known = known.filter(|head| head.size > 0);
        Self {
            known: known.map(|head| KnownHead {
                size: head.size,
                root: head.root,
                met: Met::NotYet,
            }),
            ..Self::default()
        }
    }

    /// Keeps entries for longer than any token is valid: for a holder of sessions that outlive their tokens. An event may
    /// arrive long after the end of the token, when the feed was cut meanwhile.
    pub fn retaining(self, retention_s: u64) -> Self {
        Self {
            retention_s,
            ..self
        }
    }

    /// Whether the events so far lead through the known head.
    pub fn history(&self) -> Result<(), HistoryLost> {
        match &self.known {
            None => Ok(()),
            Some(known) => match known.met {
                Met::Same => Ok(()),
                Met::Other => Err(HistoryLost::Forked { size: known.size }),
                Met::NotYet => Err(HistoryLost::RolledBack {
                    got: self.after,
                    seen: known.size,
                }),
            },
        }
    }

    /// Root of the log's tree after the last applied event.
    pub fn root(&self) -> Hash {
        self.tree.root()
    }

    pub fn synced(&self) -> bool {
        self.synced
    }
    /// The event number after which the feed must continue.
    pub fn after(&self) -> u64 {
        self.after
    }
    /// Tokens of lower epochs are void.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
    pub fn len(&self) -> usize {
        self.jtis.len() + self.subjects.len() + self.kids.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of announced changes of the issuer's key set.
    pub fn key_changes(&self) -> u64 {
        self.key_changes
    }
    /// The highest announced version of the issuer policy; 0 before the first.
    pub fn policy_version(&self) -> u64 {
        self.policy_version
    }
    /// Whether every token of this key is revoked.
    pub fn kid_revoked(&self, kid: &str) -> bool {
        self.kids.contains(kid)
    }
    /// Keys whose tokens are all revoked.
    pub fn kids(&self) -> impl Iterator<Item = &str> {
        self.kids.iter().map(String::as_str)
    }
    /// Revoked subjects, each with the Unix second up to which tokens issued to it are void.
    pub fn subjects(&self) -> impl Iterator<Item = (&str, u64)> {
        self.subjects.iter()
    }
    /// The last Unix second whose tokens of this subject are revoked.
    pub fn void_until(&self, subject: &str) -> Option<u64> {
        self.subjects.until(subject)
    }
    /// The revoked token ids that begin with `prefix`.
    pub fn jtis_of<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.jtis.of(prefix)
    }

    /// Merges an earlier view of the same issuer: a revocation that was seen stays, even if the
    /// issuer returns with a history that lacks it.
    pub fn absorb(&mut self, earlier: &Self) {
        self.epoch = self.epoch.max(earlier.epoch);
        self.policy_version = self.policy_version.max(earlier.policy_version);
        self.kids.extend(earlier.kids.iter().cloned());
        for (jti, until) in earlier.jtis.iter() {
            self.jtis.extend(jti, until);
        }
        for (subject, until) in earlier.subjects.iter() {
            self.subjects.extend(subject, until);
        }
    }

    /// Refuses a revoked token, and one that was exchanged from a revoked token.
    pub fn check(&self, claims: &Claims) -> Result<(), AuthReject> {
        if !self.synced || self.len() > ENTRIES_MAX {
            return Err(AuthReject::NoKeys);
        }
        let earlier = claims.epoch < self.epoch;
        #[cfg(mutant = "epoch")] // tokens of earlier epochs count
        let earlier = earlier && !ron_kernel::mutant("epoch");
        if earlier {
            return Err(AuthReject::Epoch);
        }
        let from = &claims.ancestors;
        let kids = [Some(&claims.kid), claims.pq_kid.as_ref()]
            .into_iter()
            .flatten();
        let mut kids = kids.chain(from.iter().flat_map(|one| &one.kids));
        let mut jtis = std::iter::once(&claims.jti).chain(from.iter().map(|one| &one.jti));
        let subject_void = self
            .void_until(&claims.sub)
            .is_some_and(|until| claims.iat <= until);
        if subject_void
            || kids.any(|kid| self.kids.contains(kid))
            || jtis.any(|jti| self.jtis.until(jti).is_some())
        {
            return Err(AuthReject::Revoked);
        }
        Ok(())
    }

    /// Applies the next page. `last_page` means that the issuer had no more events at that moment.
    pub fn apply(
        &mut self,
        page: &RevocationPage,
        last_page: bool,
        now_s: u64,
    ) -> Result<(), FeedGap> {
        let gap = FeedGap { after: self.after };
        // A shorter history or a lower epoch than before: the issuer lost its store or is a
        // different one.
        if page.next < self.after || (self.synced && page.current_epoch < self.epoch) {
            return Err(gap);
        }
        for event in &page.events {
            if event.seq != self.after + 1 {
                return Err(gap);
            }
            self.after = event.seq;
            self.tree.push(revocation_log::hash(event));
            if let Some(known) = &mut self.known
                && known.size == self.after
            {
                let same = self.tree.root() == known.root;
                known.met = if same { Met::Same } else { Met::Other };
            }
            match &event.revoked {
                Revoked::Jti { jti, until } => {
                    self.jtis.extend(jti, *until);
                }
                Revoked::Subject {
                    subject_ref,
                    issued_until,
                } => {
                    self.subjects.extend(subject_ref, *issued_until);
                }
                Revoked::Kid { kid } => {
                    self.kids.insert(kid.clone());
                }
                Revoked::Epoch { epoch } => self.epoch = self.epoch.max(*epoch),
                Revoked::Keys { .. } => self.key_changes += 1,
                Revoked::Policy { version } => {
                    self.policy_version = self.policy_version.max(*version);
                }
            }
        }
        self.epoch = self.epoch.max(page.current_epoch);
        self.synced |= last_page;
        self.forget(now_s);
        Ok(())
    }

    /// Drops entries that no unexpired token can match, after the view's retention.
    fn forget(&mut self, now_s: u64) {
        if let Some(end_s) = now_s.checked_sub(2 * SKEW_S + self.retention_s) {
            self.jtis.forget(end_s);
            if let Some(end_s) = end_s.checked_sub(TTL_S_MAX) {
                self.subjects.forget(end_s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ron_proto::Timestamp;
    use ron_proto::kms::Bytes;
    use ron_proto::passport::RevocationEvent;

    fn claims() -> Claims {
        Claims {
            iss: "i".into(),
            sub: "alice".into(),
            iat: 1_000,
            nbf: 1_000,
            exp: 1_900,
            jti: "j1".into(),
            client_id: None,
            tenant: "default".parse().unwrap(),
            scopes: Vec::new(),
            epoch: 3,
            caveats: Vec::new(),
            kid: "k1".into(),
            jkt: None,
            pq_kid: None,
            x5t: None,
            ancestors: Vec::new(),
            budgets: Vec::new(),
        }
    }

    fn page(after: u64, revoked: Vec<Revoked>, epoch: u64) -> RevocationPage {
        let events: Vec<RevocationEvent> = revoked
            .into_iter()
            .zip(after + 1..)
            .map(|(revoked, seq)| RevocationEvent {
                seq,
                ts: Timestamp(0),
                revoked,
                salt: Bytes::default(),
                by: Bytes::default(),
            })
            .collect();
        RevocationPage {
            next: after + events.len() as u64,
            events,
            current_epoch: epoch,
            checkpoint: String::new(),
        }
    }

    #[test]
    fn each_kind_of_revocation_refuses_what_it_should() {
        let check = |revoked: Revoked, wanted: Result<(), AuthReject>| {
            let mut view = RevocationView::default();
            view.apply(&page(0, vec![revoked.clone()], 0), true, 1_100)
                .unwrap();
            assert_eq!(view.check(&claims()), wanted, "{revoked:?}");
        };
        let revoked = Err(AuthReject::Revoked);
        check(
            Revoked::Jti {
                jti: "j1".into(),
                until: 1_900,
            },
            revoked,
        );
        check(
            Revoked::Jti {
                jti: "j2".into(),
                until: 1_900,
            },
            Ok(()),
        );
        check(
            Revoked::Subject {
                subject_ref: "alice".into(),
                issued_until: 1_000,
            },
            revoked,
        );
        check(
            Revoked::Subject {
                subject_ref: "alice".into(),
                issued_until: 999,
            },
            Ok(()),
        );
        check(
            Revoked::Subject {
                subject_ref: "bob".into(),
                issued_until: 5_000,
            },
            Ok(()),
        );
        check(Revoked::Kid { kid: "k1".into() }, revoked);
        check(Revoked::Kid { kid: "k2".into() }, Ok(()));
        check(Revoked::Epoch { epoch: 4 }, Err(AuthReject::Epoch));
        check(Revoked::Epoch { epoch: 3 }, Ok(()));
    }

    #[test]
    fn nothing_is_accepted_before_the_feed_was_read_to_its_end() {
        let mut view = RevocationView::default();
        assert_eq!(view.check(&claims()), Err(AuthReject::NoKeys));
        view.apply(&page(0, vec![Revoked::Epoch { epoch: 1 }], 1), false, 0)
            .unwrap();
        assert_eq!(
            view.check(&claims()),
            Err(AuthReject::NoKeys),
            "there are more pages"
        );
        view.apply(&page(1, vec![], 1), true, 0).unwrap();
        assert_eq!(view.check(&claims()), Ok(()));
    }

    #[test]
    fn gaps_repeats_and_a_shorter_history_are_noticed() {
        let mut view = RevocationView::default();
        view.apply(&page(0, vec![Revoked::Epoch { epoch: 1 }; 5], 1), true, 0)
            .unwrap();
        assert_eq!(view.after(), 5);
        let check = |page: &RevocationPage| {
            assert_eq!(
                view.clone().apply(page, true, 0),
                Err(FeedGap { after: 5 }),
                "{page:?}"
            );
        };
        check(&page(6, vec![Revoked::Epoch { epoch: 2 }], 2));
        check(&page(4, vec![Revoked::Epoch { epoch: 2 }], 2));
        check(&page(2, vec![], 1));
        check(&page(5, vec![], 0));
    }

    proptest! {
        /// A revoked token stays refused for as long as any verifier would accept it.
        #[test]
        fn a_revocation_outlives_its_token(now in 1_000u64..1_959, kind in 0..3) {
            let mut view = RevocationView::default();
            let revoked = match kind {
                0 => Revoked::Jti { jti: "j1".into(), until: 1_900 },
                1 => Revoked::Subject { subject_ref: "alice".into(), issued_until: 1_000 },
                _ => Revoked::Kid { kid: "k1".into() },
            };
            view.apply(&page(0, vec![revoked], 0), true, 1_000).unwrap();
            view.apply(&page(1, vec![], 0), true, now).unwrap();
            prop_assert!(claims().check_time(now).is_ok());
            prop_assert_eq!(view.check(&claims()), Err(AuthReject::Revoked));
        }
    }

    #[test]
    fn what_was_seen_once_stays_when_the_history_is_read_again() {
        let mut old = RevocationView::default();
        let revoked = vec![
            Revoked::Kid { kid: "k9".into() },
            Revoked::Epoch { epoch: 3 },
            Revoked::Jti {
                jti: "5.1.x".into(),
                until: 1_900,
            },
        ];
        old.apply(&page(0, revoked, 3), true, 1_000).unwrap();
        let mut new = RevocationView::default();
        new.apply(&page(0, vec![Revoked::Keys { count: 2 }], 1), true, 1_000)
            .unwrap();
        new.absorb(&old);
        assert_eq!((new.epoch(), new.len(), new.key_changes()), (3, 2, 1));
        assert!(new.kid_revoked("k9"));
        assert_eq!(new.jtis_of("5.").collect::<Vec<_>>(), ["5.1.x"]);
        assert_eq!(new.jtis_of("6.").count(), 0);
    }

    #[test]
    fn a_page_forgets_what_has_expired_and_nothing_else() {
        const LIVE: u64 = 1_000;
        let mut view = RevocationView::default();
        let jti = |n: u64| Revoked::Jti {
            jti: format!("1.1.{n}"),
            until: if n < 10 { 2_000 } else { 9_000 + n },
        };
        view.apply(&page(0, (0..LIVE).map(jti).collect(), 0), true, 1_000)
            .unwrap();
        let empty = RevocationPage {
            next: LIVE,
            ..page(LIVE, vec![], 0)
        };
        view.apply(&empty, true, 2_000 + 2 * SKEW_S - 1).unwrap();
        assert_eq!(view.len() as u64, LIVE);
        view.apply(&empty, true, 2_000 + 2 * SKEW_S).unwrap();
        assert_eq!(view.len() as u64, LIVE - 10, "the expired are forgotten");
    }

    #[test]
    fn events_must_lead_through_the_known_head() {
        let kid = |kid: &str| Revoked::Kid { kid: kid.into() };
        let read = |known: Option<&Checkpoint>, all: &[&str]| {
            let mut view = RevocationView::through(known);
            let all = all.iter().map(|name| kid(name)).collect();
            view.apply(&page(0, all, 1), true, 0).unwrap();
            view
        };
        let first = read(None, &["a", "b"]);
        let head = Checkpoint {
            origin: "o".into(),
            size: 2,
            root: first.root(),
        };
        let check = |all: &[&str], wanted| assert_eq!(read(Some(&head), all).history(), wanted);
        check(&["a", "b"], Ok(()));
        check(&["a", "b", "c"], Ok(()));
        check(&["a"], Err(HistoryLost::RolledBack { got: 1, seen: 2 }));
        check(&[], Err(HistoryLost::RolledBack { got: 0, seen: 2 }));
        let forked = Err(HistoryLost::Forked { size: 2 });
        check(&["a", "c"], forked);
        check(&["b", "a"], forked);
        check(&["a", "c", "b"], forked);
    }

    #[test]
    fn expired_entries_are_forgotten() {
        let mut view = RevocationView::default();
        let revoked = vec![
            Revoked::Jti {
                jti: "j1".into(),
                until: 1_900,
            },
            Revoked::Subject {
                subject_ref: "alice".into(),
                issued_until: 1_000,
            },
        ];
        view.apply(&page(0, revoked, 0), true, 1_000).unwrap();
        assert_eq!(view.len(), 2);
        view.apply(&page(2, vec![], 0), true, 100_000).unwrap();
        assert!(view.is_empty());
    }

    #[test]
    fn a_view_with_a_retention_keeps_what_arrives_after_the_end_of_its_tokens() {
        const RETENTION_S: u64 = 12 * 60 * 60;
        let both = || {
            let jti = Revoked::Jti {
                jti: "j1".into(),
                until: 1_900,
            };
            let subject = Revoked::Subject {
                subject_ref: "bob".into(),
                issued_until: 1_000,
            };
            page(0, vec![jti, subject], 0)
        };
        let check = |retention_s: u64, now_s: u64, jti: bool, subject: bool| {
            let mut view = RevocationView::default().retaining(retention_s);
            view.apply(&both(), true, now_s).unwrap();
            let revoked = view.check(&claims()) == Err(AuthReject::Revoked);
            assert_eq!(
                (revoked, view.void_until("bob").is_some()),
                (jti, subject),
                "{now_s}"
            );
        };
        let gone = 1_900 + 2 * SKEW_S;
        check(0, gone - 1, true, true);
        check(0, gone, false, true);
        check(RETENTION_S, gone, true, true);
        check(RETENTION_S, gone + RETENTION_S - 1, true, true);
        check(RETENTION_S, gone + RETENTION_S, false, true);
        let gone = 1_000 + 2 * SKEW_S + TTL_S_MAX + RETENTION_S;
        check(RETENTION_S, gone - 1, false, true);
        check(RETENTION_S, gone, false, false);
    }
}
