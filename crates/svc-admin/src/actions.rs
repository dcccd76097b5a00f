//! The two actions: have a node reload its configuration or shut down, one at a time, each between
//! two lines of the audit. Every check that can refuse an action runs before an action gets here.

use std::path::Path;
use std::sync::Arc;

use ron_http::{Call, CallError, Cause, Failure, HttpClient, Method, Reply, Responder, Response};
use ron_kernel::{Deadline, Receiver, Recv, SharedClock, ThreadCtx};
use ron_proto::admin::ActionAnswer;
use ron_proto::{Problem, Timestamp};
use ron_service::config::read_secret_file;
use serde_json::Value;
use std::time::Duration;
use zeroize::Zeroizing;

use crate::audit::{SharedAudit, line, with_result};
use crate::caller::Caller;
use crate::node::Node;

const IDLE: Duration = Duration::from_secs(60);
/// Maximum lines of a reload's changes that the response contains.
const CHANGES_MAX: usize = 64;

/// An action of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Reload,
    Shutdown,
}

impl Action {
    /// The word in paths, configuration and audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reload => "reload",
            Self::Shutdown => "shutdown",
        }
    }
}

/// An action that passed every gate.
#[derive(Debug)]
pub struct Job {
    pub node: Arc<Node>,
    pub action: Action,
    pub caller: Caller,
    pub timeout: Duration,
    pub responder: Responder,
}

#[derive(Debug)]
pub struct Runner {
    pub client: Arc<HttpClient>,
    pub audit: SharedAudit,
    pub clock: SharedClock,
}

impl Runner {
    /// The body of the adm-act thread.
    pub fn run(&self, jobs: &Receiver<Job>, ctx: &ThreadCtx) {
        loop {
            match jobs.recv(&ctx.shutdown, Deadline::within(IDLE)) {
                Recv::Item(job) => self.act(job),
                Recv::Timeout => {}
                Recv::Shutdown | Recv::Closed => return,
            }
        }
    }

    /// Writes the first audit line, calls the node, writes the second line, and responds.
    fn act(&self, job: Job) {
        let _scope = job.responder.enter();
        let deadline = Deadline::within(job.timeout).earlier(job.responder.deadline());
        // Earlier actions may have taken so long that this one's deadline has passed.
        if deadline.expired() {
            job.responder.send(Problem::deadline_exceeded(
                "the action waited too long; nothing was done",
            ));
            return;
        }
        let entry = line(job.action.as_str(), Some(&job.node.spec.id), &job.caller);
        let started = with_result(entry.clone(), "started", "", "");
        if let Err(problem) = self.audit.commit(started, deadline) {
            job.responder.send(problem);
            return;
        }
        let outcome = self.ask(&job, deadline);
        let written = match &outcome {
            Ok(answer) => with_result(entry, "done", "", &answer.result),
            Err(problem) => {
                let result = if problem.status == 504 {
                    "unknown"
                } else {
                    "failed"
                };
                with_result(entry, result, problem.code, &problem.detail)
            }
        };
        // The node has acted, or may have: the response is sent even if this line cannot be
        // written.
        let _ = self
            .audit
            .commit(written, Deadline::within(Duration::from_secs(1)));
        job.responder.send(match outcome {
            Ok(answer) => Response::json(200, &answer),
            Err(problem) => problem.into(),
        });
    }

    fn ask(&self, job: &Job, deadline: Deadline) -> Result<ActionAnswer, Problem> {
        let spec = &job.node.spec;
        let bearer = match &spec.credential {
            Some(path) => bearer(path).map_err(|why| no_credential(&spec.id, &why))?,
            None => return Err(no_credential(&spec.id, "credential_file is not set for it")),
        };
        let url = format!("{}/api/v1/{}", spec.health_url, job.action.as_str());
        let idempotent = false;
        #[cfg(mutant = "repeated")] // a call that may have arrived is made again
        let idempotent = idempotent || ron_kernel::mutant("repeated");
        let headers = [("authorization", bearer.as_str())];
        let reply = self
            .client
            .call(Call {
                method: Method::POST,
                url: &url,
                headers: &headers,
                body: None,
                content_type: None,
                deadline,
                idempotent,
            })
            .map_err(|error| problem_of(&error, deadline))?;
        self.read(job, &reply)
    }

    fn read(&self, job: &Job, reply: &Reply) -> Result<ActionAnswer, Problem> {
        if !reply.is_success() {
            return Err(refused(reply));
        }
        let said: Value = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
        let text = |value: &Value| {
            value
                .as_str()
                .map(|t| t.chars().take(200).collect::<String>())
        };
        let changes = said["changes"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(ActionAnswer {
            as_of: Timestamp(self.clock.unix_ms()),
            id: job.node.spec.id.clone(),
            action: job.action.as_str().to_owned(),
            result: text(&said["result"]).unwrap_or_else(|| "accepted".to_owned()),
            changes: changes.iter().take(CHANGES_MAX).filter_map(text).collect(),
        })
    }
}

/// The `Authorization` value for a node. Read from its file at each use, so that a new token needs
/// no restart.
pub fn bearer(path: &Path) -> Result<Zeroizing<String>, String> {
    let secret = read_secret_file(path)?;
    let token = std::str::from_utf8(secret.expose()).map_or("", str::trim);
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!("{} does not hold one token", path.display()));
    }
    Ok(Zeroizing::new(format!("Bearer {token}")))
}

fn no_credential(id: &str, why: &str) -> Problem {
    let detail = format!("the console has no credential for {id}: {why}");
    Problem::new(403, "no_credential", "No credential for the node", detail)
}

/// The problem for a call without an answer: it says whether the node may have acted.
pub fn problem_of(error: &CallError, deadline: Deadline) -> Problem {
    let (status, code, title) = match error.kind {
        Failure::NotSent | Failure::BreakerOpen | Failure::Withheld => (
            502,
            "upstream_connect",
            "The node cannot be reached; nothing was done",
        ),
        Failure::BadAnswer | Failure::TooLarge => (
            502,
            "upstream_parse",
            "The node's answer was not understood",
        ),
        Failure::Unknown if error.cause == Cause::Timeout || deadline.expired() => (
            504,
            "upstream_timeout",
            "The node did not answer in time; the outcome is unknown",
        ),
        Failure::Unknown => (
            502,
            "upstream_connect",
            "The connection to the node broke; the outcome is unknown",
        ),
    };
    Problem::new(status, code, title, error.detail.clone())
}

fn refused(reply: &Reply) -> Problem {
    let said = reply.problem();
    let code = said.as_ref().map_or("", |p| p.code.as_str());
    let words = match reply.status {
        401 | 403 => {
            "the node does not let this console act; check its auth.principals and actions.enable_*"
        }
        404 | 405 => "the node has no such action",
        _ => "the node refused",
    };
    if reply.status == 429 {
        return Problem::busy(reply.retry_after_s().unwrap_or(1));
    }
    Problem::upstream_error(format!("{words} (it answered {} {code})", reply.status))
        .with_details(serde_json::json!({ "status": reply.status, "code": code }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_node_that_answers_nothing_in_time_is_a_timeout() {
        let later = Deadline::within(std::time::Duration::from_secs(60));
        let check = |kind, cause, status, code: &str| {
            let error = CallError {
                kind,
                cause,
                detail: "no answer within the deadline".to_owned(),
            };
            let problem = problem_of(&error, later);
            assert_eq!((problem.status, problem.code), (status, code));
        };
        check(Failure::Unknown, Cause::Timeout, 504, "upstream_timeout");
        check(Failure::Unknown, Cause::Other, 502, "upstream_connect");
        check(Failure::TooLarge, Cause::TooLarge, 502, "upstream_parse");
    }

    #[test]
    fn tokens_come_from_private_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("t");
        let check = |text: &str, mode: u32, good: bool| {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(bearer(&path).is_ok(), good, "{mode:o} {text}");
        };
        check("ron_a_b\n", 0o600, true);
        check("ron_a_b", 0o644, false);
        check("two words", 0o600, false);
        check("", 0o600, false);
    }
}
