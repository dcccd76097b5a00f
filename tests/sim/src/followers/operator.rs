//! An operator who watches the endpoints, and has those that are disabled go on.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ron_kernel::Deadline;
use ron_proto::ledger::Event;
use ron_proto::wallet::{ResumeWebhook, WebhookDoc, WebhookState};
use ron_sim::{ensure, fault, time};

use super::check::due;
use super::receiver::Receiver;
use super::{CALL, Clients, ENDPOINTS, GIVE_UP, GONE, Shared};
use crate::chance::{below, ms};

pub struct Operator {
    clients: Clients,
    receiver: Receiver,
    /// By endpoint: the newest time at which it was disabled, by its first failure, and how many messages it had refused by then.
    disabled: [(u64, u64); ENDPOINTS.len()],
    /// By endpoint: whether a resumption was asked for that has not been seen to take effect. It is only accepted when it is
    /// answered, and takes effect later.
    open: [bool; ENDPOINTS.len()],
}

impl Operator {
    pub fn new(clients: Clients, receiver: &Receiver) -> Self {
        Self {
            clients,
            receiver: receiver.clone(),
            disabled: [(0, 0); ENDPOINTS.len()],
            open: [false; ENDPOINTS.len()],
        }
    }

    fn docs(&self) -> Vec<WebhookDoc> {
        let docs = self.clients.wallet.webhooks(Deadline::within(CALL));
        docs.map(|docs| docs.webhooks).unwrap_or_default()
    }

    /// Every endpoint has its cursor: it gets what happens from then on.
    pub fn starts_before(&mut self, at: Instant) {
        let known = |doc: &WebhookDoc| doc.after > 0;
        loop {
            let docs = self.docs();
            if docs.len() == ENDPOINTS.len() && docs.iter().all(known) {
                return;
            }
            ensure(time::now() < at, "an endpoint has no cursor");
            time::sleep(ms(50));
        }
    }

    pub fn act(&mut self) {
        time::sleep(ms(below(300)));
        for doc in self.docs() {
            if doc.state != WebhookState::Disabled {
                let at = ENDPOINTS.iter().position(|(name, _)| *name == doc.name);
                self.open[at.expect("an endpoint")] = false;
                continue;
            }
            fault::happened("an endpoint is disabled");
            let at = self.is_rightly_disabled(&doc);
            let (name, _) = ENDPOINTS[at];
            if !self.open[at] {
                self.receiver.silence(name);
            }
            time::sleep(ms(below(1_500)));
            self.resume(at, &doc);
        }
    }

    /// It wants no further messages, or has failed for as long as messages are tried.
    fn is_rightly_disabled(&mut self, doc: &WebhookDoc) -> usize {
        let at = ENDPOINTS.iter().position(|(name, _)| *name == doc.name);
        let at = at.expect("an endpoint");
        let since = doc.failing_since.map_or(u64::MAX, |since| since.0);
        let (before, refusals) = self.disabled[at];
        if before == since {
            // It was seen, and could not be resumed.
            return at;
        }
        self.disabled[at] = (since, self.receiver.refusals(&doc.name));
        let refused = self.disabled[at].1 > refusals;
        let now = time::date().as_millis() as u64 + 1;
        let failed = now.saturating_sub(since) >= GIVE_UP.as_millis() as u64;
        ensure(refused || failed, &format!("{doc:?} is disabled too early"));
        at
    }

    fn resume(&mut self, at: usize, doc: &WebhookDoc) {
        let (name, _) = ENDPOINTS[at];
        let after = (below(3) == 0).then(|| below(doc.after + 1).max(2));
        if after.is_some() {
            self.receiver.may_go_back();
        }
        self.receiver.hear(name);
        let resume = ResumeWebhook { after };
        let wallet = &self.clients.wallet;
        let answer = wallet.resume_webhook(name, &resume, Deadline::within(CALL));
        self.open[at] = true;
        ron_sim::note(&format!("{name} is resumed from {after:?}: {answer:?}"));
    }

    /// Every message of these entries is accepted.
    pub fn all_arrive_before(&mut self, log: &[Event], shared: &Shared, at: Instant) {
        let removed = shared.removed.load(Ordering::SeqCst);
        loop {
            let left: Vec<_> = ENDPOINTS
                .iter()
                .filter(|(name, _)| !(removed && *name == GONE))
                .filter_map(|(name, accounts)| {
                    let wanted = due(log, accounts).last()?.seq;
                    let arrivals = self.receiver.arrivals();
                    let mut of = arrivals.iter().filter(|a| a.endpoint == *name);
                    let arrived = of.any(|a| a.accepted && a.message.data.seq >= wanted);
                    (!arrived).then_some((*name, wanted))
                })
                .collect();
            if left.is_empty() {
                return;
            }
            for doc in self.docs() {
                if doc.state == WebhookState::Disabled {
                    let at = self.is_rightly_disabled(&doc);
                    self.resume(at, &doc);
                }
            }
            let late = format!("10 s after the last fault messages are due: {left:?}");
            ensure(time::now() < at, &late);
            time::sleep(ms(100));
        }
    }
}
