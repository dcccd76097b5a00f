//! What is seen of the ledgers while they work, and what must hold at the end: the engine's log, both nodes, the callers and the
//! model agree.

use std::collections::BTreeMap;
use std::time::Instant;

use ron_client::{ClientError, LedgerClient};
use ron_kernel::Deadline;
use ron_proto::Account;
use ron_proto::ledger::{
    AccountDoc, CommitRequest, EntryAnswer, Event, Head, NOT_ACTIVE, TrialBalance,
};
use ron_sim::{ensure, time};
use serde_json::json;

use super::caller::{ACCOUNTS, ASSET, Asked, CALL, clients};
use super::far::Far;
use super::{NODES, url};
use crate::callers::log_of;
use crate::chance::{below, ms};
use crate::ledger::{same_account, same_totals};
use crate::model::Model;
use crate::net::SimNet;

/// Reads at all nodes, and keeps what they have served.
pub struct Auditor {
    nodes: [LedgerClient; 2],
    heads: Vec<Head>,
    accounts: Vec<AccountDoc>,
    totals: Vec<TrialBalance>,
    /// Entries that were read at either of the nodes.
    events: Vec<Event>,
}

impl Auditor {
    pub fn new(net: &SimNet, number: u8, token: &str) -> Self {
        Self {
            nodes: clients(net, number, token).1,
            heads: Vec::new(),
            accounts: Vec::new(),
            totals: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Reads something at some node.
    pub fn act(&mut self) {
        let node = &self.nodes[below(2) as usize];
        match below(6) {
            0 | 1 => self.heads.extend(node.head(Deadline::within(CALL)).ok()),
            2 | 3 => {
                let name: Account = ACCOUNTS[below(4) as usize].parse().expect("an account");
                self.accounts
                    .extend(node.account(&name, Deadline::within(CALL)).ok());
            }
            4 => {
                let asset = ASSET.parse().expect("an asset");
                let totals = node.trial_balance(&asset, &[], Deadline::within(CALL));
                self.totals.extend(totals.ok());
            }
            _ => {
                let from = self
                    .heads
                    .last()
                    .map_or(0, |head| head.seq.saturating_sub(5));
                let page = node.events(from, ms(0), Deadline::within(CALL));
                self.events
                    .extend(page.into_iter().flat_map(|page| page.events));
            }
        }
        time::sleep(ms(below(60)));
    }

    fn head_of(&self, node: usize) -> Option<Head> {
        self.nodes[node].head(Deadline::within(CALL)).ok()
    }

    /// The only node that writes; `None` for none, for two, and when one does not answer.
    fn active(&self) -> Option<usize> {
        let heads = [self.head_of(0)?, self.head_of(1)?];
        let writes: Vec<usize> = (0..2).filter(|at| heads[*at].closed.is_none()).collect();
        let standbys = heads.iter().filter(|head| head.is_of_standby()).count();
        match writes[..] {
            [one] if standbys == 1 => Some(one),
            _ => None,
        }
    }

    /// One node writes, the other is its standby and has the same log.
    pub fn are_one_before(&mut self, by: Instant) -> usize {
        loop {
            if let Some(active) = self.active()
                && let [Some(one), Some(two)] = [self.head_of(0), self.head_of(1)]
                && (one.size, &one.root) == (two.size, &two.root)
            {
                self.heads.extend([one, two]);
                return active;
            }
            let heads = [self.head_of(0), self.head_of(1)];
            let late = format!("10 s after the last fault the nodes are {heads:#?}");
            ensure(time::now() < by, &late);
            time::sleep(ms(50));
        }
    }

    /// A standby writes nothing, and soon says where to go.
    pub fn is_refused_by(&self, standby: usize, by: Instant) {
        let entry = json!({"kind": "issue", "tenant": "t", "principal": "p9", "key": "never",
            "to": ACCOUNTS[0], "asset": ASSET, "amount_minor": "1"});
        let request = serde_json::from_value(json!({"entries": [entry]})).expect("a request");
        let request: CommitRequest = request;
        loop {
            let told = self.nodes[standby].commit_once(&request, Deadline::within(CALL));
            let text = format!("a standby is asked to write: {told:?}");
            let Err(ClientError::Refused {
                status: 503,
                problem,
                ..
            }) = told
            else {
                ensure(false, &text);
                return;
            };
            ensure(problem.code == NOT_ACTIVE, &text);
            let details = problem.details.unwrap_or_default();
            if details.get("active") == Some(&url(NODES[1 - standby]).into()) {
                return;
            }
            ensure(time::now() < by, &text);
            time::sleep(ms(100));
        }
    }

    /// All that callers and readers were told is what the log has.
    pub fn compare(mut self, far: &Far, asked: &[Asked]) {
        let logs = self.nodes.each_ref().map(log_of);
        let shorter = logs[0].len().min(logs[1].len());
        let same = logs[0][..shorter] == logs[1][..shorter];
        ensure(same, "the nodes have two logs");
        let [one, two] = logs;
        let log = if one.len() > shorter { one } else { two };
        self.are_of_the_engine(far);
        for event in &self.events {
            let text = || format!("a node has served {event:?}, which the log does not have");
            let same = log.get(event.seq as usize - 1) == Some(event);
            ensure(same, &text());
        }
        let followed = self.follow(&log);
        ensure(followed.is_ok(), &format!("{followed:?}"));
        let by_key = by_key(&log);
        for request in asked {
            agrees(request, &log, &by_key);
        }
        let foreign = by_key.keys().find(|key| !key.starts_with('c'));
        ensure(foreign.is_none(), &format!("{foreign:?} is in the log"));
    }

    /// Each head that a node has shown is one of the engine's log.
    fn are_of_the_engine(&self, far: &Far) {
        let mut roots = BTreeMap::new();
        let mut end = 0;
        for batch in far.batches() {
            let place = batch.place;
            ensure(
                place.first == end,
                "the batches of the engine follow each other",
            );
            end = place.end();
            roots.insert(end, ron_proto::b64::std(&place.root));
        }
        // A node that has read nothing yet shows an empty log.
        for head in self.heads.iter().filter(|head| head.size > 0) {
            let same = roots.get(&head.size) == Some(&head.root);
            let text = format!("a node has shown a head that is not in the engine: {head:?}");
            ensure(same, &text);
        }
    }

    /// The model decides every entry again, and has what was read at each sequence.
    fn follow(&mut self, log: &[Event]) -> Result<(), String> {
        let mut model = Model::default();
        loop {
            let seq = model.seq();
            for doc in self.accounts.extract_if(.., |doc| doc.seq == seq) {
                same_account(&model, &doc)?;
            }
            for said in self.totals.extract_if(.., |said| said.seq == seq) {
                same_totals(&model, &said)?;
            }
            let rest = &log[seq as usize..];
            if rest.is_empty() {
                break;
            }
            model.take(rest)?;
        }
        match (self.accounts.first(), self.totals.first()) {
            (None, None) => Ok(()),
            left => Err(format!("a state that no sequence has: {left:?}")),
        }
    }
}

/// The entries of a log by their keys; the model has found each once.
fn by_key(log: &[Event]) -> BTreeMap<String, &Event> {
    let keyed = log.iter().filter_map(|event| {
        let key = event.entry.request_key()?;
        Some((key.key.as_str().to_owned(), event))
    });
    keyed.collect()
}

/// What a caller was told of its keys is what the log has, each time.
fn agrees(asked: &Asked, log: &[Event], by_key: &BTreeMap<String, &Event>) {
    let keys: Vec<_> = asked
        .request
        .entries
        .iter()
        .map(|entry| {
            let key = entry.request_key().expect("an entry of a caller has a key");
            key.key.as_str().to_owned()
        })
        .collect();
    for answers in &asked.answers {
        ensure(answers.len() == keys.len(), &format!("{asked:?}"));
        for (answer, key) in answers.iter().zip(&keys) {
            let (EntryAnswer::Done { seq, .. } | EntryAnswer::Refused { seq: Some(seq), .. }) =
                answer
            else {
                ensure(false, &format!("{key} has no entry: {asked:?}"));
                return;
            };
            let text = || {
                format!(
                    "{key} was answered {answer:?}, the log has {:?}",
                    by_key.get(key)
                )
            };
            let event = log.get(*seq as usize - 1);
            let of_key = event.is_some() && by_key.get(key).copied() == event;
            ensure(of_key, &text());
            let Some(event) = event else { return };
            let first = event.answer.clone();
            ensure(first == *answer || first.as_replayed() == *answer, &text());
        }
    }
}
