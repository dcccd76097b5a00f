//! What must hold at the end of a run, by the issuer's log of revocations, the KMS's log of signatures, and what the verifier has
//! asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ron_crypto::hash::sha256;
use ron_kms::{Leaf, Op};
use ron_proto::passport::{RevocationEvent, Revoked};
use ron_sim::ensure;

use super::actors::{End, Observations, Revocation, Target, Use};
use super::proofs::Manner;
use super::tokens::Token;

/// Within which the verifier knows of an event on a good network, with the time of a call.
const SOON: Duration = Duration::from_secs(1);
/// The time whose rest after a revocation by subject gives its holder no token.
const SECOND: Duration = Duration::from_secs(1);
/// How long requests may be refused around the revocation of a signing key.
const ROTATION: Duration = Duration::from_secs(3);

/// What a run has shown.
pub struct Evidence<'s> {
    pub seen: &'s Observations,
    /// The whole log of revocations.
    pub events: &'s [RevocationEvent],
    /// Up to which event the verifier had the feed in force, and when.
    pub reached: &'s [(u64, Instant)],
    /// The KMS's leaves about signatures, by their index.
    pub leaves: &'s BTreeMap<u64, Leaf>,
}

fn is_of(target: &Target, revoked: &Revoked) -> bool {
    match (target, revoked) {
        (Target::Jti(a), Revoked::Jti { jti: b, .. })
        | (Target::Subject(a), Revoked::Subject { subject_ref: b, .. })
        | (Target::Kid(a), Revoked::Kid { kid: b }) => a == b,
        (Target::Epoch(a), Revoked::Epoch { epoch: b }) => a == b,
        _ => false,
    }
}

impl Evidence<'_> {
    pub fn check(&self) {
        self.signatures();
        self.revocations();
        for used in &self.seen.uses {
            self.may_be_accepted(used);
            self.does_not_come_back(used);
        }
        let tokens = self.seen.tokens.iter().filter(|token| token.genuine);
        tokens.for_each(|token| self.was_not_void(token));
    }

    /// When the verifier had the event in force.
    fn reached_at(&self, event: u64) -> Option<Instant> {
        let mut reached = self.reached.iter().filter(|(after, _)| *after >= event);
        reached.next().map(|(_, at)| *at)
    }

    /// Every token that anybody was given has its leaf, which is that of no other token.
    fn signatures(&self) {
        let mut by_input = BTreeMap::new();
        for (index, leaf) in self.leaves {
            if leaf.op == Op::Sign && leaf.result == ron_kms::OK {
                let input = leaf.input_sha256.clone().unwrap_or_default();
                by_input.insert((input, leaf.output_sha256.clone()), *index);
            }
        }
        let mut ids = BTreeSet::new();
        for token in self.seen.tokens.iter().filter(|token| token.genuine) {
            let (input, signature) = token.signed();
            let sums = (
                hex::encode(sha256(input.as_bytes())),
                Some(hex::encode(sha256(&signature))),
            );
            let leaf = by_input.get(&sums);
            ensure(
                leaf.is_some() && token.leaf.is_none_or(|index| Some(&index) == leaf),
                &format!("a signature without its leaf, which is {leaf:?}: {token:?}"),
            );
            ensure(
                ids.insert(&token.jti),
                &format!("its id is taken: {token:?}"),
            );
        }
    }

    /// What was acknowledged is in the log once, and the log has nothing that nobody has asked for.
    fn revocations(&self) {
        let mut acknowledged = BTreeSet::new();
        for revocation in &self.seen.revocations {
            let Some(number) = revocation.event else {
                continue;
            };
            let event = self.events.get(number as usize - 1);
            let same = event.is_some_and(|event| is_of(&revocation.target, &event.revoked));
            ensure(
                same && acknowledged.insert(number),
                &format!("{revocation:?} is not in the log, but {event:?}"),
            );
            self.voids_what_was_there(revocation, number);
        }
        for event in self.events {
            let asked = |r: &&Revocation| is_of(&r.target, &event.revoked) && !r.refused;
            let of = |other: &&RevocationEvent| other.revoked.kind() == event.revoked.kind();
            let same = self.events.iter().filter(of);
            let same = same.filter(|other| target(&other.revoked) == target(&event.revoked));
            let asked = self.seen.revocations.iter().filter(asked).count();
            let ours = matches!(event.revoked, Revoked::Keys { .. } | Revoked::Policy { .. });
            ensure(
                ours || same.count() <= asked,
                &format!("asked for {asked} times: {event:?}"),
            );
        }
    }

    /// A holder's tokens that were given before the revocation was asked for are void.
    fn voids_what_was_there(&self, revocation: &Revocation, number: u64) {
        let Target::Subject(subject) = &revocation.target else {
            return;
        };
        let given = |token: &&Token| {
            token.genuine
                && token.timely
                && token.sub == *subject
                && token.answered < revocation.began
        };
        for token in self.seen.tokens.iter().filter(given) {
            ensure(
                token.void(self.events).is_some_and(|void| void <= number),
                &format!("{revocation:?} does not void {token:?}"),
            );
        }
    }

    /// A use that was accepted is one of a token that the issuer gave, and no event had reached the verifier that voids it.
    fn may_be_accepted(&self, used: &Use) {
        if used.end != End::Accepted {
            return;
        }
        let token = &self.seen.tokens[used.token];
        ensure(
            token.genuine,
            &format!("{used:?} of what is made up: {token:?}"),
        );
        let void = token.void(self.events);
        let reached = void.and_then(|event| self.reached_at(event));
        ensure(
            reached.is_none_or(|at| used.began < at),
            &format!("{void:?} had reached the verifier at {reached:?}: {used:?} of {token:?}"),
        );
    }

    /// A token that was refused as a revoked one is not accepted later.
    fn does_not_come_back(&self, used: &Use) {
        let revoked =
            |end: &End| matches!(end, End::Refused(401, why) if why == "revoked" || why == "epoch");
        if !revoked(&used.end) {
            return;
        }
        let token = &self.seen.tokens[used.token];
        let void = token.void(self.events);
        ensure(
            void.is_some(),
            &format!("no event voids it: {used:?} of {token:?}"),
        );
        let later = |other: &&Use| other.token == used.token && other.began >= used.ended;
        let mut later = self.seen.uses.iter().filter(later);
        let again = later.find(|other| other.end == End::Accepted);
        ensure(
            again.is_none(),
            &format!("{again:?} of {token:?}, which was refused: {used:?}"),
        );
    }

    /// A token was not given after its key, its epoch or its holder's tokens of that second were revoked, or a token that it was
    /// exchanged from.
    fn was_not_void(&self, token: &Token) {
        let before = |r: &&Revocation| r.event.is_some() && r.ended < token.asked;
        for revocation in self.seen.revocations.iter().filter(before) {
            let void = match &revocation.target {
                Target::Jti(jti) => token.has_id(jti),
                Target::Kid(kid) => token.has_key(kid),
                Target::Epoch(epoch) => token.epoch < *epoch,
                Target::Subject(subject) => {
                    *subject == token.sub && token.iat <= self.issued_until(revocation)
                }
            };
            ensure(!void, &format!("{token:?} was given after {revocation:?}"));
        }
    }

    /// The last second whose tokens an acknowledged revocation by subject voids.
    fn issued_until(&self, revocation: &Revocation) -> u64 {
        let event = self.events.iter().find(|e| Some(e.seq) == revocation.event);
        match event.map(|event| &event.revoked) {
            Some(Revoked::Subject { issued_until, .. }) => *issued_until,
            other => panic!("{revocation:?} is another event: {other:?}"),
        }
    }

    /// Revocations that may void a token.
    fn voiding<'t>(&'t self, token: &'t Token) -> impl Iterator<Item = &'t Revocation> {
        let all = self.seen.revocations.iter();
        all.filter(|revocation| revocation.may_void(token))
    }

    /// On a good network a good token is accepted at the first try, a void one is not, and every request for a token is answered.
    pub fn check_calm(&self) {
        for used in &self.seen.uses {
            let token = &self.seen.tokens[used.token];
            let text = || format!("{used:?} of {token:?}");
            let good = token.genuine
                && used.manner == Manner::Right
                && self.voiding(token).all(|r| r.began > used.ended);
            ensure(
                !good || used.end == End::Accepted,
                &format!("a good token: {}", text()),
            );
            let void = token.void(self.events);
            let by = self.seen.revocations.iter();
            let mut by = by.filter(|r| void.is_some() && r.event == void);
            let void = by.any(|r| r.ended + SOON < used.began);
            let refused = matches!(used.end, End::Refused(401, _));
            ensure(
                refused || (token.genuine && !void && used.manner == Manner::Right),
                &format!("a void token: {}", text()),
            );
        }
        let keys = || {
            let of_keys = |r: &&Revocation| matches!(r.target, Target::Kid(_));
            self.seen.revocations.iter().filter(of_keys)
        };
        for (began, ended, why) in &self.seen.unissued {
            let near = |r: &Revocation| r.began < *ended + ROTATION && *began < r.ended + ROTATION;
            let subject = |r: &Revocation| {
                matches!(r.target, Target::Subject(_))
                    && r.began < *ended
                    && *began < r.ended + SECOND
            };
            ensure(
                keys().any(near) || self.seen.revocations.iter().any(subject),
                &format!("no token from {began:?} to {ended:?}: {why}"),
            );
        }
    }

    /// Tokens that no event voids, and those that one does, as the verifier has to see them at the end.
    pub fn good_and_void(&self) -> (Vec<&Token>, Vec<&Token>) {
        let all = self.seen.tokens.iter();
        let all = all.filter(|token| token.timely || !token.genuine);
        all.partition(|token| token.genuine && token.void(self.events).is_none())
    }
}

/// What an event is about.
fn target(revoked: &Revoked) -> String {
    match revoked {
        Revoked::Jti { jti: of, .. }
        | Revoked::Subject {
            subject_ref: of, ..
        }
        | Revoked::Kid { kid: of } => of.clone(),
        other => format!("{other:?}"),
    }
}
