//! Reload, shutdown and refresh: the gates in front of every change; the refusal of a known caller is
//! a line of the audit.

use ron_http::{Peer, Request, Responder, Response};
use ron_kernel::SendError;
use ron_proto::admin::{ActionRequest, RefreshAnswer};
use ron_proto::{Problem, scope};

use super::{Console, guard, views};
use crate::actions::{Action, Job};
use crate::audit::{line, with_result};
use crate::caller::Caller;
use crate::fleet::Event;
use crate::gate::{NO_IDENTITY, head_of};
use crate::settings::{Actions, AuthMode};

/// `POST /api/nodes/{id}/reload` and `/shutdown`: refused here, or passed to the runner, which
/// sends the response.
pub fn act(console: &Console, action: Action, request: &Request, responder: Responder) {
    let settings = console.settings.load();
    let caller = Caller::of(request, settings.auth);
    let job = |responder| Job {
        // The gates found the node; if the roster has changed since, the response is the 404 below.
        node: console
            .fleet
            .node(request.param("id"))
            .expect("the gates found it"),
        action,
        caller: caller.clone(),
        timeout: settings.actions.timeout,
        responder,
    };
    let passed = gates(console, action, request, settings.actions);
    if let Err(problem) = passed {
        if settings.auth == AuthMode::None {
            // Any program of the host may be asking: lines for it would push out those of known
            // callers.
            let peer = Peer::of(request.peer, request.transport);
            let passports = &console.gate.passports;
            passports.refused(NO_IDENTITY, peer, request.trace.id(), None);
        } else {
            let node = console.fleet.node(request.param("id"));
            let id = node.as_ref().map(|n| n.spec.id.as_str());
            let entry = line(action.as_str(), id, &caller);
            let denied = with_result(entry, "denied", problem.code, &problem.detail);
            console.audit.note(denied);
        }
        responder.send(guard::dress(problem.into()));
        return;
    }
    if let Err(SendError::Full(job) | SendError::Closed(job)) =
        console.jobs.try_send(job(responder))
    {
        let problem = Problem::busy(console.jobs.retry_after_s());
        let entry = line(action.as_str(), Some(&job.node.spec.id), &caller);
        console
            .audit
            .note(with_result(entry, "denied", problem.code, &problem.detail));
        job.responder.send(guard::dress(problem.into()));
    }
}

/// Everything that must hold; the cheapest and most specific checks come first.
fn gates(
    console: &Console,
    action: Action,
    request: &Request,
    allowed: Actions,
) -> Result<(), Problem> {
    guard::own_origin(console, request)?;
    let (node, _) = views::find(console, request)?;
    let id = &node.spec.id;
    if allowed.read_only {
        let why = "this console is read-only; set read_only = false to allow actions";
        return Err(Problem::new(403, "read_only", "Read-only", why));
    }
    let (on, key, needed) = match action {
        Action::Reload => (
            allowed.reload,
            "actions.enable_reload",
            scope::ADMIN_OPERATE,
        ),
        Action::Shutdown => (
            allowed.shutdown,
            "actions.enable_shutdown",
            scope::ADMIN_ADMIN,
        ),
    };
    if !on {
        let why = format!("{key} is false in the console's configuration");
        return Err(Problem::new(
            403,
            "action_disabled",
            "Action not enabled",
            why,
        ));
    }
    if !request.principal.has_scope(needed) {
        return Err(Problem::forbidden(format!("this needs the scope {needed}")));
    }
    let now_s = console.fleet.clock.unix_ms() / 1000;
    console
        .gate
        .acts_now(&head_of(request), &request.principal, now_s)?;
    if node.spec.credential.is_none() {
        let why = format!("credential_file is not set for {id}");
        return Err(Problem::new(
            403,
            "no_credential",
            "No credential for the node",
            why,
        ));
    }
    if request.json::<ActionRequest>()?.confirm != *id {
        return Err(Problem::bad_request("confirm must be the node's id"));
    }
    Ok(())
}

/// `POST /api/nodes/{id}/refresh`: polls the node next. Changes nothing, so viewers may do it.
pub fn refresh(console: &Console, request: &Request) -> Result<Response, Problem> {
    guard::own_origin(console, request)?;
    let (node, _) = views::find(console, request)?;
    let id = node.spec.id.clone();
    match console.fleet.events.try_send(Event::Refresh(id.clone())) {
        Ok(()) => Ok(Response::json(
            202,
            &RefreshAnswer {
                as_of: views::now(console),
                id,
            },
        )),
        Err(_) => Err(Problem::busy(console.fleet.events.retry_after_s())),
    }
}
