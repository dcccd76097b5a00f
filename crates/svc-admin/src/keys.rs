//! Reads the keys of key services and issuers in the background, so that page requests wait for neither. Only the scope to read
//! keys is used; what a key service does not show to the console is not shown by it.

use std::sync::Arc;
use std::time::Duration;

use ron_client::encode;
use ron_http::{Call, HttpClient, Reply};
use ron_kernel::{Deadline, SharedClock, Snapshot};
use ron_proto::Timestamp;
use ron_proto::admin::{IssuerKey, IssuerView, KeyApproval, KeyOverview, KeySource, KeyView};
use ron_proto::kms::{ApprovalDoc, ApprovalList, KeyDoc, KeyList, QuarantinedKey};
use serde::de::DeserializeOwned;

use crate::actions::bearer;
use crate::fleet::Fleet;
use crate::node::Node;

/// Time between two readings of a node.
const PACE_MS: u64 = 30_000;
/// Timeout for one page.
const READ: Duration = Duration::from_secs(2);
/// Timeout for all of one node.
const READ_ALL: Duration = Duration::from_secs(10);
/// Maximum pages of a list read from one node; a page has 200 keys, or 50 requests that wait for approvals.
const PAGES_MAX: usize = 3;
/// Services whose keys are read.
const KMS: &str = "ron-kms";
const ISSUER: &str = "svc-passport";
/// What an operator has to do when the console may not read keys.
const HINT: &str = "give the console a service token of this node with the scope kms:read: a principal svc-admin with it in auth.principals there, its token in credential_file of this node here";

pub type Keys = Snapshot<KeyOverview>;

pub fn empty(as_of: Timestamp) -> KeyOverview {
    KeyOverview {
        as_of,
        sources: Vec::new(),
        approvals: Vec::new(),
        keys: Vec::new(),
        issuers: Vec::new(),
    }
}

/// The reader, on the thread that reads heads of logs.
#[derive(Debug)]
pub struct KeyWatch {
    pub client: Arc<HttpClient>,
    pub clock: SharedClock,
}

/// The keys of one node.
#[derive(Default)]
struct NodeKeys {
    keys: Vec<KeyView>,
    approvals: Vec<KeyApproval>,
    issuer: Option<IssuerView>,
    truncated: bool,
    approvals_truncated: bool,
}

impl KeyWatch {
    /// One round, if it is time for one. A node that cannot be read keeps what was read before, with the problem beside it.
    pub fn tick(&self, fleet: &Fleet, published: &Keys) {
        let (before, now) = (published.load(), self.clock.unix_ms());
        let roster = fleet.roster();
        let kind = |node: &Arc<Node>| {
            let service = node.view().status.service.clone();
            let service = service.filter(|service| [KMS, ISSUER].contains(&service.as_str()))?;
            Some((node.clone(), service))
        };
        let nodes: Vec<(Arc<Node>, String)> = roster.nodes.iter().filter_map(kind).collect();
        let age = now.saturating_sub(before.as_of.unix_ms());
        // A node that came since is read at once.
        if nodes.len() == before.sources.len() && age < PACE_MS {
            return;
        }
        let mut all = empty(Timestamp(now));
        for (node, service) in &nodes {
            let found = match service.as_str() {
                KMS => self.read_keys(node),
                _ => self.read_issuer(node),
            };
            self.add(&mut all, &before, node, found);
        }
        all.approvals.sort_by_key(|approval| approval.created);
        all.keys
            .sort_by(|a, b| (rank(a), &a.key).cmp(&(rank(b), &b.key)));
        published.store(all);
    }

    fn add(
        &self,
        all: &mut KeyOverview,
        before: &KeyOverview,
        node: &Node,
        found: Result<NodeKeys, String>,
    ) {
        let id = &node.spec.id;
        let mut source = KeySource {
            node: id.clone(),
            read_at: Some(Timestamp(self.clock.unix_ms())),
            problem: None,
            truncated: false,
            approvals_truncated: false,
        };
        match found {
            Ok(found) => {
                source.truncated = found.truncated;
                source.approvals_truncated = found.approvals_truncated;
                all.keys.extend(found.keys);
                all.approvals.extend(found.approvals);
                all.issuers.extend(found.issuer);
            }
            Err(problem) => {
                let last = before.sources.iter().find(|last| last.node == *id);
                source.read_at = last.and_then(|last| last.read_at);
                source.truncated = last.is_some_and(|last| last.truncated);
                source.approvals_truncated = last.is_some_and(|last| last.approvals_truncated);
                source.problem = Some(problem);
                let keys = before.keys.iter().filter(|key| key.node == *id);
                all.keys.extend(keys.cloned());
                let approvals = before.approvals.iter().filter(|one| one.node == *id);
                all.approvals.extend(approvals.cloned());
                let issuers = before.issuers.iter().filter(|issuer| issuer.node == *id);
                all.issuers.extend(issuers.cloned());
            }
        }
        all.sources.push(source);
    }

    fn read_keys(&self, node: &Node) -> Result<NodeKeys, String> {
        let api = api_of(node)?;
        let path = node.spec.credential.as_deref();
        let path = path.ok_or_else(|| format!("no credential_file is configured: {HINT}"))?;
        let bearer = bearer(path)?;
        let until = Deadline::within(READ_ALL);
        let get = |path: &str| {
            let headers = [("authorization", bearer.as_str())];
            let reply = self.get(&format!("{api}{path}"), &headers, until)?;
            match reply.status {
                401 | 403 => Err(format!("answered {}: {HINT}", reply.status)),
                _ => success(reply),
            }
        };
        let id = &node.spec.id;
        let mut found = NodeKeys::default();
        found.truncated = pages(&get, "/v1/kms/keys?limit=200", |list: KeyList| {
            found.keys.extend(list.keys.iter().map(|key| view(id, key)));
            let damaged = list.quarantined.iter();
            found.keys.extend(damaged.map(|key| quarantined(id, key)));
            list.next
        })?;
        // Each has the body of the request, which may be long.
        found.approvals_truncated =
            pages(&get, "/v1/kms/approvals?limit=50", |list: ApprovalList| {
                let waiting = list.requests.into_iter();
                found.approvals.extend(waiting.map(|doc| approval(id, doc)));
                list.next
            })?;
        Ok(found)
    }

    fn read_issuer(&self, node: &Node) -> Result<NodeKeys, String> {
        let url = format!("{}/v1/passport/policy", api_of(node)?);
        let note = success(self.get(&url, &[], Deadline::within(READ_ALL))?)?;
        let text = std::str::from_utf8(&note.body).map_err(|_| "the policy note is no text")?;
        let issuer = read_note(&node.spec.id, text);
        let issuer = issuer.ok_or("the policy note was not understood")?;
        Ok(NodeKeys {
            issuer: Some(issuer),
            ..NodeKeys::default()
        })
    }

    fn get(&self, url: &str, headers: &[(&str, &str)], until: Deadline) -> Result<Reply, String> {
        let call = Call::get(url, until.capped(READ)).headers(headers);
        self.client.call(call).map_err(|error| error.detail)
    }
}

/// Reads the pages of a list, at most [`PAGES_MAX`]; true when there are more. `take` gives where the next page begins.
fn pages<T: DeserializeOwned>(
    get: &impl Fn(&str) -> Result<Reply, String>,
    path: &str,
    mut take: impl FnMut(T) -> Option<String>,
) -> Result<bool, String> {
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let page = get(&format!("{path}{after}"))?.json();
        let Some(next) = take(page.map_err(|error| error.detail)?) else {
            return Ok(false);
        };
        after = format!("&after={}", encode(&next));
    }
    Ok(true)
}

fn api_of(node: &Node) -> Result<&str, String> {
    let api = node.spec.api_url.as_deref();
    api.ok_or_else(|| "no api_url is configured for this node".to_owned())
}

fn success(reply: Reply) -> Result<Reply, String> {
    if reply.is_success() {
        return Ok(reply);
    }
    Err(format!("answered {}", reply.status))
}

/// Sort order: keys that are out of use or about to go first, destroyed ones last.
fn rank(key: &KeyView) -> u8 {
    match key.state.as_str() {
        "quarantined" => 0,
        "pending_destruction" => 1,
        "retired" => 3,
        "destroyed" => 4,
        _ => 2,
    }
}

fn view(node: &str, key: &KeyDoc) -> KeyView {
    KeyView {
        node: node.to_owned(),
        key: key.key.to_string(),
        state: key.state.as_str().to_owned(),
        description: key.description.clone(),
        backend: Some(key.backend.clone()),
        version: Some(key.head),
        // The list has no versions; a first version that was not published before is as old as the key.
        version_since: key
            .head_since
            .or_else(|| Some(key.created).filter(|_| key.head == 1)),
        waiting: key.waiting.as_ref().map(|waiting| waiting.version),
        next_rotation: key.waiting.as_ref().map_or_else(
            || key.rotation.as_ref().map(|rotation| rotation.next),
            |waiting| Some(waiting.signs_from),
        ),
        destroy_at: key.destroy_at,
        problem: None,
    }
}

fn quarantined(node: &str, key: &QuarantinedKey) -> KeyView {
    KeyView {
        node: node.to_owned(),
        key: key.key.to_string(),
        state: "quarantined".to_owned(),
        description: None,
        backend: None,
        version: None,
        version_since: None,
        waiting: None,
        next_rotation: None,
        destroy_at: None,
        problem: Some(key.reason.clone()),
    }
}

fn approval(node: &str, doc: ApprovalDoc) -> KeyApproval {
    KeyApproval {
        node: node.to_owned(),
        id: doc.id.0.to_string(),
        key: doc.key.to_string(),
        op: doc.op.as_str().to_owned(),
        requester: doc.requester,
        needed: doc.needed,
        approved_by: doc.approved_by,
        created: doc.created,
        expires: doc.expires,
    }
}

/// The lines of a policy note that the console shows; lines with another first word are skipped. Its signature is for verifiers,
/// which pin the key of the note.
fn read_note(node: &str, text: &str) -> Option<IssuerView> {
    let mut view = IssuerView {
        node: node.to_owned(),
        issuer: String::new(),
        epoch: 0,
        revocations: 0,
        policy: None,
        keys: Vec::new(),
    };
    // The signatures follow after an empty line.
    for line in text.lines().take_while(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["issuer", name] => name.clone_into(&mut view.issuer),
            ["version", number] => view.revocations = number.parse().ok()?,
            ["epoch", number] => view.epoch = number.parse().ok()?,
            ["policy", number, _] => view.policy = Some(number.parse().ok()?),
            ["key", kid, alg, from, until, state] => view.keys.push(IssuerKey {
                kid: kid.to_owned(),
                alg: alg.to_owned(),
                signs_from: seconds(from)?,
                verifies_until: match until {
                    "-" => None,
                    until => Some(seconds(until)?),
                },
                revoked: state == "revoked",
            }),
            _ => {}
        }
    }
    view.keys
        .sort_by_key(|key| std::cmp::Reverse(key.signs_from));
    Some(view).filter(|view| !view.issuer.is_empty())
}

fn seconds(text: &str) -> Option<Timestamp> {
    let seconds: u64 = text.parse().ok()?;
    seconds.checked_mul(1_000).map(Timestamp)
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
