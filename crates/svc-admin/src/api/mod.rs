//! The JSON API and the page: one router, one guard around every handler.

mod act;
mod guard;
mod metrics;
mod page;
mod session;
mod views;

use std::sync::Arc;
use std::time::Duration;

use ron_http::{ApiInfo, Method, Need, Request, Response, Route, Router};
use ron_kernel::{Sender, Snapshot};
use ron_proto::admin::{
    ActionAnswer, ActionRequest, AuditList, EpochList, FacetList, KeyOverview, LogHeads, Me,
    MetricNames, MetricsSummary, NodeList, NodeStatus, Overview, QueryAnswer, RefreshAnswer,
    SessionCode, SessionRequest, TimelineList, UiConfig,
};
use ron_proto::events::Severity;
use ron_proto::{Problem, Timestamp, scope};

use crate::actions::{Action, Job};
use crate::audit::SharedAudit;
use crate::epochs::Epochs;
use crate::fleet::Fleet;
use crate::gate::Gate;
use crate::history::Histories;
use crate::keys::Keys;
use crate::logs::Heads;
use crate::settings::{AuthMode, Settings};
use crate::timeline::Timeline;
use crate::view::Board;

/// Maximum duration of an action, including the wait for earlier ones.
const ACTION_DEADLINE: Duration = Duration::from_secs(30);

/// The state that handlers read, and the two queues that they fill.
#[derive(Debug)]
pub struct Console {
    pub fleet: Arc<Fleet>,
    pub board: Arc<Board>,
    pub heads: Arc<Heads>,
    pub keys: Arc<Keys>,
    pub epochs: Arc<Epochs>,
    pub timeline: Arc<Timeline>,
    pub history: Arc<Histories>,
    pub audit: SharedAudit,
    pub jobs: Sender<Job>,
    pub gate: Arc<Gate>,
    pub settings: Arc<Snapshot<Settings>>,
    pub instance: String,
    pub started: Timestamp,
}

/// The routes of the console.
pub fn router(console: &Arc<Console>) -> Router {
    let info = ApiInfo {
        title: "svc-admin",
        version: env!("CARGO_PKG_VERSION"),
        description: "The operator console: the state of every service of the fleet, with reasons and figures; with reload and shutdown where the configuration allows them. Who may call what is said for `auth.mode = passport`; behind a proxy (`ingress`) groups stand for the scopes, and with `none` every caller on loopback may view.",
    };
    Router::new(info)
        .add_all(page_routes(console))
        .add_all(fleet_routes(console))
        .add_all(node_routes(console))
        .add_all(change_routes(console))
}

type Serve = fn(&Console, &Request) -> Result<Response, Problem>;

/// A guarded view. In mode none the loopback bind is the gate; in the other modes every view
/// requires the viewer's scope.
fn view(console: &Arc<Console>, pattern: &'static str, serve: Serve) -> Route {
    guarded(console, pattern, viewer(console), serve)
}

fn viewer(console: &Console) -> Need {
    // The mode changes only with a restart, so the routes can be built for it.
    match console.settings.load().auth {
        AuthMode::None => Need::Public,
        AuthMode::Ingress | AuthMode::Passport => Need::Scope(scope::ADMIN_VIEW),
    }
}

fn guarded(console: &Arc<Console>, pattern: &'static str, need: Need, serve: Serve) -> Route {
    let console = console.clone();
    Route::get(pattern, need, move |request| {
        Ok(guard::guarded(&console, request, serve))
    })
    .errors(&[403])
    .while_draining()
}

fn page_routes(console: &Arc<Console>) -> impl Iterator<Item = Route> {
    page::FILES.iter().map(move |file| {
        let (console, tag) = (console.clone(), crate::view::tag(file.bytes));
        let serve = move |request: &Request| {
            let page = |_: &Console, _: &Request| Ok(page::response(file, &tag));
            Ok(guard::guarded(&console, request, page))
        };
        Route::get(file.path, Need::Public, serve)
            .summary(file.about)
            .returns_bytes(200, file.content_type)
            .errors(&[403])
            .while_draining()
    })
}

fn fleet_routes(console: &Arc<Console>) -> [Route; 9] {
    [
        guarded(console, "/api/ui-config", Need::Public, views::ui_config)
            .summary("The page's settings: mode, actions, intervals, theme")
            .returns::<UiConfig>(200),
        view(console, "/api/me", views::me)
            .summary("The caller and its roles")
            .returns::<Me>(200),
        view(console, "/api/overview", views::overview)
            .summary("The whole fleet, problems first")
            .returns::<Overview>(200),
        view(console, "/api/nodes", views::nodes)
            .summary("The nodes, problems first")
            .returns::<NodeList>(200),
        view(console, "/api/log-heads", views::log_heads)
            .summary("Heads of the verifiable logs")
            .returns::<LogHeads>(200),
        view(console, "/api/keys", views::keys)
            .summary("The keys of key services and issuers, and requests that wait for approvals")
            .returns::<KeyOverview>(200),
        view(console, "/api/epochs", views::epochs)
            .summary("Reward epochs, those that need an operator first")
            .returns::<EpochList>(200),
        view(console, "/api/timeline", views::timeline)
            .summary("What happened in the fleet, newest first: events of the services, and states that nodes came into")
            .query_as::<u64>("before", false, "Only lines before this number: `next` of the page before")
            .query_as::<String>("node", false, "Only lines of this node")
            .query_as::<Severity>("least", false, "Only lines that matter at least so much")
            .returns::<TimelineList>(200)
            .errors(&[400]),
        view(console, "/api/audit", views::audit)
            .summary("The last lines of the audit, newest first")
            .returns::<AuditList>(200),
    ]
}

fn node_routes(console: &Arc<Console>) -> [Route; 5] {
    [
        view(console, "/api/nodes/{id}/status", views::status)
            .summary("One node in full")
            .returns::<NodeStatus>(200)
            .errors(&[404]),
        view(
            console,
            "/api/nodes/{id}/metrics/summary",
            views::metrics_summary,
        )
        .summary("Request figures of a node over the window")
        .returns::<MetricsSummary>(200)
        .errors(&[404]),
        view(console, "/api/nodes/{id}/metrics/facets", views::facets)
            .summary("Routes of a node over the window")
            .returns::<FacetList>(200)
            .errors(&[404]),
        view(console, "/api/nodes/{id}/metrics/names", metrics::names)
            .summary("The metrics of a node")
            .returns::<MetricNames>(200)
            .errors(&[404]),
        view(console, "/api/nodes/{id}/metrics/query", metrics::query)
            .summary("The series of one metric of a node: samples within the window, or a point a minute for seven days")
            .query("name", true, "The metric's name; names of series that are kept for seven days begin with node:.")
            .query(
                "labels",
                false,
                "Labels that must match, as in queue=\"http\",kind=\"x\".",
            )
            .query(
                "window",
                false,
                "How far back from now: seconds, or a duration such as 5m; everything held when absent.",
            )
            .query(
                "kind",
                false,
                "value or rate; rate for counters when absent.",
            )
            .returns::<QueryAnswer>(200)
            .errors(&[400, 404]),
    ]
}

/// The routes that are not reads.
fn change_routes(console: &Arc<Console>) -> [Route; 6] {
    let change = |method, pattern, need, serve: Serve| {
        let console = console.clone();
        let handler =
            ron_http::sync(move |request: &Request| Ok(guard::guarded(&console, request, serve)));
        Route::new(method, pattern, need, handler)
    };
    // The handler checks the scope of the action itself, so that a refusal names the caller in the
    // audit.
    let action = |pattern, action| {
        let inner = console.clone();
        Route::new(
            Method::POST,
            pattern,
            viewer(console),
            move |request, responder| {
                act::act(&inner, action, &request, responder);
            },
        )
        .body::<ActionRequest>()
        .deadline(ACTION_DEADLINE)
        .returns::<ActionAnswer>(200)
        .errors(&[400, 403, 404, 429, 502, 503, 504])
    };
    [
        change(Method::POST, "/api/session", Need::Public, session::open)
            .summary("Open a session with a passport or a code")
            .body::<SessionRequest>()
            .returns::<Me>(200)
            .errors(&[400, 401, 403, 409, 503]),
        change(Method::DELETE, "/api/session", Need::Public, session::close)
            .summary("End the session")
            .returns_nothing(204)
            .errors(&[403]),
        change(
            Method::POST,
            "/api/session/code",
            viewer(console),
            session::code,
        )
        .summary("A code that opens one session of the caller's passport")
        .returns::<SessionCode>(200)
        .errors(&[403, 409, 429]),
        change(
            Method::POST,
            "/api/nodes/{id}/refresh",
            viewer(console),
            act::refresh,
        )
        .summary("Poll a node next")
        .returns::<RefreshAnswer>(202)
        .errors(&[403, 404, 429]),
        action("/api/nodes/{id}/reload", Action::Reload)
            .summary("Have a node read its configuration again; needs the scope admin:operate too"),
        action("/api/nodes/{id}/shutdown", Action::Shutdown)
            .summary("Have a node drain and exit; needs the scope admin:admin too"),
    ]
}
