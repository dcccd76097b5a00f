//! The audit logs of other nodes with the same keys: each log names all others, with the keys that verify them, so that an auditor
//! who has one log learns of every other one. At a start they are named before the first result (`engine::log`); a node that
//! joins later, or rotates the key of its log, is named when the keys are read next.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_custody::store::KeyStore;
use ron_kernel::{Deadline, ReplyWaiter, WaitError, reply};
use ron_proto::receipt::LogReceipt;

use super::Lifecycle;
use crate::audit::entry::{Entry, Items, NotDurable};
use crate::audit::leaf::{Draft, Op};

/// The logs of other nodes that this node's log names.
pub struct PeerLogs {
    /// By origin: the number of the newest key that was named.
    named: BTreeMap<String, u32>,
    /// The leaf that is on its way to the log.
    awaited: Option<Awaited>,
}

struct Awaited {
    origin: String,
    number: u32,
    leaf: ReplyWaiter<Result<LogReceipt, NotDurable>>,
}

impl PeerLogs {
    /// All logs that the store has: they were named at the start.
    pub fn named(store: &KeyStore) -> Self {
        let peers = store.peer_logs();
        Self {
            named: peers
                .map(|log| (log.origin.clone(), log.newest().number))
                .collect(),
            awaited: None,
        }
    }
}

impl Lifecycle {
    /// Names the next log that this node's log does not name yet. Waits for nothing: the leaf is looked for before the next job.
    pub(super) fn name_peer_log(&mut self) {
        if let Some(awaited) = self.peers.awaited.take() {
            match awaited.leaf.wait_again(Deadline::within(Duration::ZERO)) {
                Ok(Ok(_)) => {
                    self.peers.named.insert(awaited.origin, awaited.number);
                }
                Err(WaitError::Timeout) => self.peers.awaited = Some(awaited),
                // The engine was away, or the service stops: named again later.
                Ok(Err(NotDurable)) | Err(WaitError::Dropped) => {}
            }
        }
        if self.peers.awaited.is_some() {
            return;
        }
        let named = &self.peers.named;
        let is_new = |number, origin| named.get(origin) != Some(&number);
        let mut peers = self.store.peer_logs();
        let Some(peer) = peers.find(|log| is_new(log.newest().number, &log.origin)) else {
            return;
        };
        let (Ok(key), Some(credit)) = (peer.verifier(), self.kms.credits.try_acquire()) else {
            return;
        };
        let (to, leaf) = reply();
        let draft = Draft::service(Op::PeerLog, &key.to_string());
        self.peers.awaited = Some(Awaited {
            origin: peer.origin.clone(),
            number: peer.newest().number,
            leaf,
        });
        let entry = Entry::new(Items::from_buf([draft]), to, Items::from_buf([credit]));
        self.kms.enter(entry);
    }
}
