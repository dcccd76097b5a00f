//! The items of a request after they have run: what becomes of them once their leaves are in the log.

use ron_custody::Refusal;
use ron_custody::index::KeyIndex;
use ron_http::Principal;
use ron_kernel::Deadline;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::audit::entry::{
    DurableLeaves, Items, Label, Logged, PlannedAnswer, PlannedLeaves, Reply, ReplyBody, Timing,
    Unlogged, Waiting, refuse,
};
use crate::audit::proofs::ProofRequest;
use crate::replay::{JournalRecord, Ticket, unreadable_answer};

/// The answer of one item.
pub type Answer<M> = Result<Logged<M>, Refusal>;

/// Completes a remembered answer with what is not remembered.
pub type Again<M> =
    Box<dyn FnOnce(&KeyIndex, (&Principal, Deadline), Logged<M>) -> Answer<M> + Send>;

/// An operation with an id.
pub struct Remembered<M> {
    /// Records the answer under the id.
    ticket: Ticket,
    /// Set where the answer may turn out to be remembered already, by another node.
    again: Option<Again<M>>,
}

impl<M> Remembered<M> {
    pub fn new(ticket: Ticket) -> Self {
        Self {
            ticket,
            again: None,
        }
    }
}

/// One item of a request, after it has run.
pub enum Item<M> {
    /// Done: has a leaf.
    Output(Unlogged<M>, Label, Option<Remembered<M>>),
    /// Refused: has a leaf. With an id where it may have been done before, by another node or with other keys.
    Refusal(Refusal, Label, Option<Remembered<M>>),
    /// Repeated, or never an operation: has no leaf.
    Known(Answer<M>),
}

impl<M> Item<M> {
    pub const fn is_output(&self) -> bool {
        matches!(self, Self::Output(..))
    }

    /// Keeps how the operation completes an answer that turns out to be remembered already.
    pub fn recall_by(&mut self, again: impl FnOnce() -> Again<M>) {
        if let Self::Output(_, _, Some(remembered)) | Self::Refusal(_, _, Some(remembered)) = self {
            remembered.again = Some(again());
        }
    }
}

/// A request that waits for its leaves.
pub struct Answering<M, R> {
    pub caller: Principal,
    pub deadline: Deadline,
    pub responder: ron_http::Responder,
    /// Items with a leaf stand in the order of their leaves.
    pub items: Items<Item<M>>,
    pub render: R,
    pub proof: Option<ProofRequest>,
    pub timing: Timing,
}

impl<M, R> Answering<M, R>
where
    M: Serialize,
    R: FnOnce(Items<Answer<M>>) -> ReplyBody,
{
    pub fn reply(self, mut leaves: DurableLeaves<'_>, journal: &mut Vec<JournalRecord>) -> Reply {
        let mut counted = Items::new();
        let answer = |item| match item {
            Item::Output(unlogged, label, remembered) => {
                counted.push(label);
                let logged = leaves.log(unlogged);
                journal.extend(remembered.map(|r| r.ticket.with(logged.to_json())));
                Ok(logged)
            }
            Item::Refusal(refusal, label, _) => {
                counted.push(label);
                leaves.advance();
                Err(refusal)
            }
            Item::Known(answer) => answer,
        };
        let answers = self.items.into_iter().map(answer).collect();
        Reply {
            responder: self.responder,
            body: (self.render)(answers),
            proof: self.proof,
            counted,
            timing: self.timing,
        }
    }
}

impl<M, R> Waiting for Answering<M, R>
where
    M: Serialize + DeserializeOwned + Send,
    R: FnOnce(Items<Answer<M>>) -> ReplyBody + Send,
{
    fn complete(
        self: Box<Self>,
        leaves: DurableLeaves<'_>,
        journal: &mut Vec<JournalRecord>,
    ) -> Option<Reply> {
        Some(self.reply(leaves, journal))
    }

    fn fail(self: Box<Self>, why: &Refusal) {
        refuse(self.responder, why);
    }

    fn planned(&self, mut leaves: PlannedLeaves<'_>) -> Vec<PlannedAnswer> {
        let mut all = Vec::new();
        for (item, made) in self.items.iter().enumerate() {
            match made {
                Item::Output(unlogged, _, Some(remembered)) => all.push(PlannedAnswer {
                    item,
                    id: remembered.ticket.id(),
                    answer: Some(leaves.answer(unlogged)),
                }),
                Item::Refusal(_, _, Some(remembered)) => {
                    leaves.advance();
                    all.push(PlannedAnswer {
                        item,
                        id: remembered.ticket.id(),
                        answer: None,
                    });
                }
                Item::Output(..) | Item::Refusal(..) => leaves.advance(),
                Item::Known(_) => {}
            }
        }
        all
    }

    fn repeated(
        &mut self,
        item: usize,
        index: &KeyIndex,
        before: Result<Vec<u8>, Refusal>,
    ) -> usize {
        let leaf = |item: &&Item<M>| !matches!(item, Item::Known(_));
        let position = self.items[..item].iter().filter(leaf).count();
        let answer = before.and_then(|json| recalled(&json));
        let made = std::mem::replace(&mut self.items[item], Item::Known(Err(unreadable_answer())));
        let again = match made {
            Item::Output(_, _, Some(remembered)) | Item::Refusal(_, _, Some(remembered)) => {
                remembered.again
            }
            _ => None,
        };
        let answer = match again {
            Some(again) => answer.and_then(|a| again(index, (&self.caller, self.deadline), a)),
            None => answer,
        };
        self.items[item] = Item::Known(answer);
        position
    }
}

/// Parses a remembered answer. The operation was done, so an unreadable answer is no mismatch that a new `op_id` would solve:
/// the caller must not do it again unknowingly.
pub fn recalled<M: DeserializeOwned>(json: &[u8]) -> Answer<M> {
    serde_json::from_slice(json).map_err(|_| unreadable_answer())
}

#[cfg(test)]
mod tests {
    use ron_custody::Cause;

    use super::*;

    #[test]
    fn an_unreadable_remembered_answer_is_an_internal_error() {
        let refusal = recalled::<()>(b"{\"output\":1}").expect_err("not an answer");
        assert_eq!(refusal.cause, Cause::Internal);
    }
}
