//! An operator who has nodes reload, and what is in the audit of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ron_http::{Call, Failure, HttpClient, Method, Reply};
use ron_kernel::Deadline;
use ron_proto::admin::{AuditEntry, AuditList};
use ron_sim::{ensure, time};
use serde_json::json;

use super::reader::{get, took_at_most};
use super::{CALL, CONSOLE, NODES, OTHERS};
use crate::chance::below;

/// What an operator was told of a request to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The node was asked.
    Asked,
    /// The node was not asked, and will not be.
    Nothing,
    Open,
}

pub struct Operator {
    http: Arc<HttpClient>,
    /// By the id of the request.
    acts: BTreeMap<String, (&'static str, Effect)>,
}

impl Operator {
    pub const fn new(http: Arc<HttpClient>) -> Self {
        Self {
            http,
            acts: BTreeMap::new(),
        }
    }

    pub fn number(&self) -> usize {
        self.acts.len()
    }

    pub fn act(&mut self) {
        let id = format!("request-{:04}", self.acts.len());
        let (node, _) = NODES[below(NODES.len() as u64) as usize];
        // A viewer may not act, and a typed name must be that of the node.
        let (group, confirm) = match below(8) {
            0 => ("staff", node),
            1 => ("sre", "another"),
            _ => ("sre", node),
        };
        let may = group == "sre" && confirm == node && node != NODES[OTHERS].0;
        let url = format!("http://{CONSOLE}:80/api/nodes/{node}/reload");
        let body = json!({"confirm": confirm}).to_string();
        let begun = time::now();
        let reply = self.http.call(Call {
            method: Method::POST,
            url: &url,
            headers: &[
                ("x-user", "otto"),
                ("x-groups", group),
                ("x-ron-console", "1"),
                ("x-request-id", &id),
            ],
            body: Some(body.into_bytes()),
            content_type: Some("application/json"),
            deadline: Deadline::within(CALL),
            idempotent: false,
        });
        took_at_most(begun, CALL, &url);
        let told = match &reply {
            Ok(reply) => told(reply),
            Err(error) if error.kind == Failure::NotSent => Effect::Nothing,
            Err(_) => Effect::Open,
        };
        ron_sim::report(&format!("{id} of {node} as {group}: {told:?}"));
        let passed = reply.as_ref().is_ok_and(Reply::is_success);
        ensure(may || !passed, &format!("{id} of {node} was not refused"));
        let told = if may { told } else { Effect::Nothing };
        self.acts.insert(id, (node, told));
    }

    /// Each request was made of its node once, if it was said to be made, and not if nothing was said to be done.
    pub fn check(&self, asked: &[Vec<String>; OTHERS]) {
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for (of_node, (name, _)) in asked.iter().zip(NODES) {
            for id in of_node {
                let known = self.acts.get(id).is_some_and(|(node, _)| *node == name);
                ensure(known, &format!("nobody has asked {name} for {id}"));
                *times.entry(id).or_default() += 1;
            }
        }
        for (id, (_, told)) in &self.acts {
            let times = times.get(id.as_str()).copied().unwrap_or(0);
            let right = match told {
                Effect::Asked => times == 1,
                Effect::Nothing => times == 0,
                Effect::Open => times <= 1,
            };
            ensure(right, &format!("{id} was told {told:?}: {times} times"));
        }
        let audit = self.audit();
        for id in asked.iter().flatten() {
            let line = |line: &&AuditEntry| &line.request_id == id && line.result == "started";
            let lines = audit.iter().filter(line).count();
            ensure(lines == 1, &format!("{id} is announced {lines} times"));
        }
    }

    /// The lines, newest first.
    pub fn audit(&self) -> Vec<AuditEntry> {
        let url = format!("http://{CONSOLE}:80/api/audit");
        let reply = get(&self.http, &url, None).expect("the console answers");
        let list: AuditList = serde_json::from_slice(&reply.body).expect("an audit");
        list.entries
    }
}

fn told(reply: &Reply) -> Effect {
    let problem = reply.problem();
    let is = |code: &str| problem.as_ref().is_some_and(|p| p.code == code);
    let says_nothing = problem.as_ref().is_some_and(|p| {
        p.title.contains("nothing was done") || p.detail.contains("nothing is done")
    });
    match reply.status {
        200 => Effect::Asked,
        400..500 => Effect::Nothing,
        502 | 503 if says_nothing => Effect::Nothing,
        502 if is("upstream_error") || is("upstream_parse") => Effect::Asked,
        _ => Effect::Open,
    }
}
