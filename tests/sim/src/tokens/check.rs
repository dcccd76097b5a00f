//! What must hold at the end of a run. That a payment was made is in the ledger's log, also where its answer was lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ron_sim::ensure;

use super::holder::{End, Use};
use super::issuer::Token;

/// Within which the verifier knows of an event on a good network, with the time of a call.
const SOON: Duration = Duration::from_secs(1);

/// What a run has shown, in the order of the uses' begin.
pub struct Evidence<'s> {
    pub tokens: &'s [Token],
    pub uses: &'s [Use],
    /// Keys of the payments in the ledger's log.
    pub paid: &'s BTreeSet<String>,
    /// Up to which event the verifier had the feed in force, and when.
    pub reached: &'s [(u64, Instant)],
}

impl Evidence<'_> {
    fn paid(&self, used: &Use) -> bool {
        self.paid.contains(&used.key)
    }

    /// When the verifier had the event in force.
    fn reached_at(&self, event: u64) -> Option<Instant> {
        let mut reached = self.reached.iter().filter(|(after, _)| *after >= event);
        reached.next().map(|(_, at)| *at)
    }

    pub fn check(&self) {
        for used in self.uses {
            let token = &self.tokens[used.token];
            let paid = self.paid(used);
            let text = || format!("{used:?} of {token:?}");
            ensure(
                paid || used.end != End::Paid,
                &format!("an answer without its payment: {}", text()),
            );
            ensure(
                !paid || used.allowed,
                &format!("the token does not allow it: {}", text()),
            );
            ensure(
                !paid || used.began_s < token.ends_s,
                &format!("it has expired: {}", text()),
            );
            let reached = token.void.and_then(|void| self.reached_at(void.event?));
            ensure(
                !paid || reached.is_none_or(|at| used.began < at),
                &format!("its revocation had reached the verifier: {}", text()),
            );
        }
        for token in self.tokens {
            self.never_comes_back(token);
        }
    }

    /// A void token that was accepted once, and is refused then, is never accepted again.
    fn never_comes_back(&self, token: &Token) {
        let Some(void) = token.void else { return };
        let of: Vec<&Use> = self
            .uses
            .iter()
            .filter(|used| used.token == token.number)
            .collect();
        let known = of
            .iter()
            .filter(|used| self.paid(used))
            .map(|used| used.ended)
            .min();
        let refused = of.iter().filter(|used| {
            let late = used.began >= void.at && known.is_some_and(|known| known <= used.began);
            late && matches!(used.end, End::Refused(401, _))
        });
        let Some(refused) = refused.min_by_key(|used| used.ended) else {
            return;
        };
        let again = of
            .iter()
            .find(|used| self.paid(used) && used.began >= refused.ended);
        ensure(
            again.is_none(),
            &format!("{again:?} of {token:?}, which was refused: {refused:?}"),
        );
    }

    /// On a good network, a good token pays and a void one does not.
    pub fn check_calm(&self) {
        for used in self.uses {
            let token = &self.tokens[used.token];
            let text = || format!("{used:?} of {token:?}");
            let good = used.allowed
                && used.began_s + 1 < token.ends_s
                && token.void.is_none_or(|void| void.at >= used.ended);
            ensure(
                !good || used.end == End::Paid,
                &format!("a good token: {}", text()),
            );
            let void = token.void.is_some_and(|void| void.at + SOON < used.began);
            let refused = matches!(used.end, End::Refused(401, _));
            ensure(!void || refused, &format!("a void token: {}", text()));
        }
    }
}
