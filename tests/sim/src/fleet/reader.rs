//! A reader of the console: whatever it is shown was so, and is shown at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_files::SimDisk;
use ron_http::{Call, CallError, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::admin::{
    AuditEntry, AuditList, LogConsistency, LogHead, LogHeads, LogVerdict, NodeList, NodeRates,
    NodeState, NodeStatus, NodeSummary, Overview, OverviewNode,
};
use ron_sim::{ensure, fault, time};
use serde::de::DeserializeOwned;

use super::node::{RATE, is_on_the_disk};
use super::truth::{Truth, before, number};
use super::{CALL, CONSOLE, NODES, OTHERS, WINDOW};
use crate::chance::{below, ms};

/// Within which a view is shown, whatever the nodes do.
const AT_ONCE: Duration = Duration::from_millis(250);
/// Within which the console knows that a node is lost, or is well again: two polls that wait for their time-out, their pauses, and the
/// console's own.
const NOTICED: Duration = Duration::from_secs(8);
/// Within which a log that was put back is noticed: heads are read every 10 s.
const CHECKED: Duration = Duration::from_secs(25);

/// A GET as a viewer.
pub fn get(http: &HttpClient, url: &str, tag: Option<&str>) -> Result<Reply, CallError> {
    let mut headers = vec![("x-user", "vera"), ("x-groups", "staff")];
    headers.extend(tag.map(|tag| ("if-none-match", tag)));
    http.call(Call {
        method: Method::GET,
        url,
        headers: &headers,
        body: None,
        content_type: None,
        deadline: Deadline::within(CALL),
        idempotent: true,
    })
}

/// A call took no longer than this, and a tenth of it.
pub fn took_at_most(begun: Instant, longest: Duration, what: &str) {
    let took = time::now() - begun;
    ensure(
        took <= longest + longest / 10,
        &format!("{what} took {took:?}"),
    );
}

pub struct Reader {
    http: Arc<HttpClient>,
    truth: Arc<Truth>,
    /// The console's disk.
    disk: SimDisk,
    number: usize,
    /// The last documents, with their tags.
    held: BTreeMap<String, (String, Vec<u8>)>,
    lines: BTreeMap<u64, AuditEntry>,
    heads: BTreeMap<u64, String>,
    newest: u64,
}

impl Reader {
    pub fn new(http: Arc<HttpClient>, truth: &Arc<Truth>, disk: &SimDisk) -> Self {
        Self {
            http,
            truth: truth.clone(),
            disk: disk.clone(),
            number: 0,
            held: BTreeMap::new(),
            lines: BTreeMap::new(),
            heads: BTreeMap::new(),
            newest: 0,
        }
    }

    pub fn number(&self) -> usize {
        self.number
    }

    pub fn act(&mut self) {
        let (node, _) = NODES[below(NODES.len() as u64) as usize];
        match below(8) {
            0..3 => drop(self.overview()),
            3 => self.nodes(),
            4 => self.status(node),
            5 => self.audit(),
            6 => drop(self.heads()),
            _ => self.figures(node),
        }
    }

    /// A document of the console; `None` when the console or the way to it was in trouble.
    fn read<T: DeserializeOwned>(&mut self, path: &str) -> Option<T> {
        let url = format!("http://{CONSOLE}:80{path}");
        let held = self.held.get(path).filter(|_| below(2) == 0).cloned();
        let begun = time::now();
        let reply = get(&self.http, &url, held.as_ref().map(|(tag, _)| tag.as_str()));
        took_at_most(begun, CALL, path);
        let ended = time::now();
        if !self.truth.console_had(begun, ended) {
            let took = ended - begun;
            let shown = reply
                .as_ref()
                .is_ok_and(|reply| reply.is_success() || reply.status == 304);
            ensure(
                shown && took <= AT_ONCE,
                &format!("{path} took {took:?}: {reply:?}"),
            );
        }
        let reply = reply.ok()?;
        let body = match (reply.status, held) {
            (304, Some((_, body))) => {
                fault::happened("a document is the one of before");
                body
            }
            (200, _) => {
                if let Some(tag) = reply.header("etag") {
                    let kept = (tag.to_owned(), reply.body.clone());
                    self.held.insert(path.to_owned(), kept);
                }
                reply.body
            }
            _ => return None,
        };
        self.number += 1;
        let document = serde_json::from_slice(&body);
        ensure(
            document.is_ok(),
            &format!("{path} cannot be read: {:?}", document.as_ref().err()),
        );
        document.ok()
    }

    fn overview(&mut self) -> Option<Overview> {
        let asked = time::now();
        let overview: Overview = self.read("/api/overview")?;
        for row in &overview.nodes {
            self.judge(&row.summary, asked);
            let gone = matches!(row.summary.state, NodeState::Down | NodeState::Unknown);
            ensure(
                !gone || row.rates == NodeRates::default(),
                &format!("a lost node has figures: {row:?}"),
            );
        }
        Some(overview)
    }

    fn nodes(&mut self) {
        let asked = time::now();
        let list: Option<NodeList> = self.read("/api/nodes");
        for summary in list.iter().flat_map(|list| &list.nodes) {
            self.judge(summary, asked);
        }
    }

    fn status(&mut self, node: &str) {
        let asked = time::now();
        if let Some(status) = self.read::<NodeStatus>(&format!("/api/nodes/{node}/status")) {
            self.judge(&status.summary, asked);
        }
    }

    fn figures(&mut self, node: &str) {
        let what = ["metrics/summary", "metrics/facets"][below(2) as usize];
        drop(self.read::<serde_json::Value>(&format!("/api/nodes/{node}/{what}")));
    }

    /// The state of a node was its state within the time in which the console notices changes.
    fn judge(&self, summary: &NodeSummary, asked: Instant) {
        let (at, now) = (number(&summary.id), time::now());
        let troubled = |by| self.truth.node_had(at, before(asked, by), now);
        let right = match summary.state {
            NodeState::Healthy => !self.truth.was_gone(at, before(asked, NOTICED), now),
            NodeState::Down | NodeState::Unknown => troubled(NOTICED),
            NodeState::Degraded => troubled(NOTICED + WINDOW),
        };
        ensure(right, &format!("it was not so: {summary:?}"));
        let words = summary.state == NodeState::Healthy || !summary.reasons.is_empty();
        ensure(words, &format!("a state without a reason: {summary:?}"));
    }

    /// Lines are durable, never change, and have numbers without gaps.
    fn audit(&mut self) {
        let Some(list) = self.read::<AuditList>("/api/audit") else {
            return;
        };
        let newest = list.entries.first().map(|line| &line.request_id);
        let kept = newest.is_none_or(|id| is_on_the_disk(&self.disk, id));
        ensure(list.durable && kept, &format!("{newest:?} is not durable"));
        for pair in list.entries.windows(2) {
            let follows = pair[0].seq == pair[1].seq + 1;
            ensure(follows, &format!("lines are not in order: {pair:?}"));
        }
        for line in list.entries {
            let known = self.lines.entry(line.seq).or_insert_with(|| line.clone());
            ensure(*known == line, &format!("{known:?} has become {line:?}"));
        }
    }

    /// Whatever was seen of the audit is in it.
    pub fn lines_are_in(&self, audit: &[AuditEntry]) {
        for line in self.lines.values() {
            ensure(audit.contains(line), &format!("{line:?} has vanished"));
        }
    }

    /// The head of the ledger's log, which never fails its checks while nobody has changed the log behind its back.
    fn heads(&mut self) -> Option<LogHead> {
        let head = self.head_of_any()?;
        let sound = matches!(head.verdict, LogVerdict::Verified | LogVerdict::Unreachable)
            && head.consistency != LogConsistency::Broken;
        ensure(sound, &format!("a good log fails its checks: {head:?}"));
        if let (LogVerdict::Verified, Some(size), Some(root)) =
            (head.verdict, head.size, &head.root)
        {
            let known = self.heads.entry(size).or_insert_with(|| root.clone());
            ensure(
                known == root,
                &format!("{size} entries had {known}: {head:?}"),
            );
            ensure(
                size >= self.newest,
                &format!("{} entries were shown before: {head:?}", self.newest),
            );
            self.newest = size;
        }
        Some(head)
    }

    fn head_of_any(&mut self) -> Option<LogHead> {
        let heads: LogHeads = self.read("/api/log-heads")?;
        heads
            .logs
            .into_iter()
            .find(|head| head.id == NODES[OTHERS].0)
    }

    /// The console shows that each node answers, and is ready.
    pub fn shows_all_before(&mut self, by: Instant) {
        loop {
            let overview = self.overview();
            let rows = overview.iter().flat_map(|overview| &overview.nodes);
            let answers = |state| matches!(state, NodeState::Healthy | NodeState::Degraded);
            let shown = rows.filter(|row| answers(row.summary.state)).count();
            if shown == NODES.len() {
                return;
            }
            let late = format!("10 s after the last fault: {overview:?}");
            ensure(time::now() < by, &late);
            time::sleep(ms(100));
        }
    }

    /// Nothing is wrong, and figures are those of the nodes.
    pub fn shows_all_as_healthy_before(&mut self, by: Instant) {
        let is_well = |row: &OverviewNode| {
            let is_ours = number(&row.summary.id) == OTHERS;
            let right = |rate: f64| (rate - RATE).abs() <= RATE / 5.0;
            row.summary.state == NodeState::Healthy
                && !row.summary.stale
                && (is_ours || row.rates.request_rate.is_some_and(right))
        };
        loop {
            let overview = self.overview().expect("the console answers");
            if overview.nodes.iter().all(is_well) {
                return;
            }
            ensure(
                time::now() < by,
                &format!("nothing is wrong: {:?}", overview.nodes),
            );
            time::sleep(ms(500));
        }
    }

    /// The head of the log with at least so many entries, once the console has checked it.
    pub fn shows_a_head_of(&mut self, size: u64, by: Instant) -> LogHead {
        loop {
            let head = self.heads().filter(|head| {
                head.verdict == LogVerdict::Verified
                    && head.consistency != LogConsistency::NotProven
                    && head.size >= Some(size)
            });
            if let Some(head) = head {
                return head;
            }
            ensure(time::now() < by, "no head is shown");
            time::sleep(ms(500));
        }
    }

    /// The console says that the log does not continue the head that it has shown, also after a restart.
    pub fn sees_that_it_was_put_back(&mut self, shown: &LogHead) {
        let by = time::now() + CHECKED;
        loop {
            if let Some(head) = self.head_of_any() {
                if head.verdict == LogVerdict::Failed {
                    return;
                }
                let accepted = head.verdict == LogVerdict::Verified && !is_same(&head, shown);
                let text = format!("{head:?} is accepted after {shown:?}");
                ensure(!accepted, &text);
            }
            ensure(time::now() < by, "that the log was put back is not noticed");
            time::sleep(ms(500));
        }
    }
}

/// Whether this head is one that was shown.
fn is_same(one: &LogHead, other: &LogHead) -> bool {
    one.size == other.size && one.root == other.root
}
