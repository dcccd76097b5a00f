//! A reader of the revocation feed: what it has seen of the log never changes, and each page is covered by a checkpoint of the
//! log's own key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_auth::revocation_log;
use ron_client::{Credential, PassportClient};
use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_proto::passport::{RevocationEvent, RevocationPage};
use ron_sim::{ensure, time};
use ron_tlog::checkpoint::Checkpoint;
use ron_tlog::note::VerifierKey;
use ron_tlog::tree::Frontier;

use super::services::Tokens;
use super::{CALL, ISSUER, issuer_url};
use crate::chance::{below, ms};
use crate::hosts::{self, client_ip};
use crate::net::SimNet;

pub struct Follower {
    client: PassportClient,
    http: Arc<HttpClient>,
    key: Option<VerifierKey>,
    pub events: Vec<RevocationEvent>,
    pub calls: u64,
}

impl Follower {
    pub fn new(net: &SimNet, number: u8) -> Self {
        let http = hosts::client(net.host(client_ip(number)), 3_000 + u64::from(number));
        let http = Arc::new(http);
        let operator = Credential::bearer(&Tokens::written().operator);
        Self {
            client: PassportClient::new(&format!("http://{ISSUER}:80"), operator, http.clone()),
            http,
            key: None,
            events: Vec::new(),
            calls: 0,
        }
    }

    /// Reads until `over` is set.
    pub fn follow(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            // Now and then from the beginning, as a verifier that has started.
            let again = below(4) == 0;
            self.read(again, Duration::from_secs(below(2)));
            time::sleep(ms(below(100)));
        }
    }

    /// The whole log, at the end of a run.
    pub fn read_all(&mut self, by: Instant) {
        while !self.read(true, Duration::ZERO) {
            ensure(time::now() < by, "the feed is not read in time");
            time::sleep(ms(100));
        }
    }

    /// Pins the key of the log at the first read.
    fn pinned(&mut self) -> Option<VerifierKey> {
        if self.key.is_none() {
            let url = format!("http://{ISSUER}:80/revocations/v1/vkey");
            let reply = self
                .http
                .call(Call::get(&url, Deadline::within(CALL)))
                .ok()?;
            let text = String::from_utf8(reply.body).ok()?;
            self.key = (reply.status == 200).then(|| text.trim().parse().expect("a key"));
        }
        self.key.clone()
    }

    /// Whether the feed was read up to its end.
    fn read(&mut self, again: bool, wait: Duration) -> bool {
        let Some(key) = self.pinned() else {
            return false;
        };
        let after = if again { 0 } else { self.events.len() as u64 };
        let page = self.client.events(after, wait, Deadline::within(CALL));
        self.calls += 1;
        let Ok(page) = page else { return false };
        self.take(after, page, &key);
        true
    }

    fn take(&mut self, after: u64, page: RevocationPage, key: &VerifierKey) {
        let known = self.events.len() as u64;
        ensure(
            page.next >= known,
            &format!("the log ends at {}, and had {known} events", page.next),
        );
        for (seq, event) in (after + 1..).zip(page.events) {
            ensure(
                event.seq == seq,
                &format!("{event:?} comes where {seq} is due"),
            );
            match self.events.get(seq as usize - 1) {
                Some(known) => ensure(*known == event, &format!("{known:?} has become {event:?}")),
                None => self.events.push(event),
            }
        }
        ensure(
            page.next == self.events.len() as u64,
            &format!("the page ends at {}, not {}", page.next, self.events.len()),
        );
        let origin = revocation_log::origin(&issuer_url());
        let head = Checkpoint::open(&page.checkpoint, std::slice::from_ref(key), Some(&origin));
        let head = head.unwrap_or_else(|error| panic!("the checkpoint: {error}"));
        let mut tree = Frontier::new();
        for event in &self.events {
            tree.push(revocation_log::hash(event));
        }
        ensure(
            head.size == page.next && head.root == tree.root(),
            &format!("the checkpoint of {} is not that of the page", head.size),
        );
    }
}
