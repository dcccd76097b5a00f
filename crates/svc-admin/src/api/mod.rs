//! The JSON API and the page: one router, one guard around every handler.

mod guard;
mod page;
mod views;

use std::sync::Arc;

use ron_http::{ApiInfo, Need, Request, Response, Route, Router};
use ron_proto::admin::{
    FacetList, LogHeads, Me, MetricsSummary, NodeList, NodeStatus, Overview, QueryAnswer, UiConfig,
};
use ron_proto::{Problem, Timestamp, scope};

use crate::config::{AuthMode, Settings};
use crate::logs::Heads;
use crate::sampler::Fleet;
use crate::view::Board;

/// Everything the handlers read. They change nothing.
#[derive(Debug)]
pub struct Console {
    pub fleet: Arc<Fleet>,
    pub board: Arc<Board>,
    pub heads: Arc<Heads>,
    pub settings: Settings,
    pub instance: String,
    pub started: Timestamp,
}

/// The routes of the console.
pub fn router(console: &Arc<Console>) -> Router {
    let info = ApiInfo {
        title: "svc-admin",
        version: env!("CARGO_PKG_VERSION"),
        description: "The operator console: the state of every service of the fleet, with reasons and figures. Read-only.",
    };
    Router::new(info)
        .add_all(page_routes(console))
        .add_all(fleet_routes(console))
        .add_all(node_routes(console))
}

type Serve = fn(&Console, &Request) -> Result<Response, Problem>;

/// A guarded view. In mode none the loopback bind is the gate; otherwise every view asks for the
/// viewer's scope.
fn view(console: &Arc<Console>, pattern: &'static str, serve: Serve) -> Route {
    let need = match console.settings.auth {
        AuthMode::None => Need::Public,
        AuthMode::Passport => Need::Scope(scope::ADMIN_VIEW),
    };
    guarded(console, pattern, need, serve)
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

fn fleet_routes(console: &Arc<Console>) -> [Route; 5] {
    [
        guarded(console, "/api/ui-config", Need::Public, views::ui_config)
            .summary("What the page needs first")
            .returns::<UiConfig>(200),
        view(console, "/api/me", views::me)
            .summary("Who is looking")
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
    ]
}

fn node_routes(console: &Arc<Console>) -> [Route; 4] {
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
        view(console, "/api/nodes/{id}/metrics/query", views::query)
            .summary("Raw series of one metric of a node")
            .query("name", true, "The metric's name.")
            .query(
                "labels",
                false,
                "Labels that must match, as in queue=\"http\",kind=\"x\".",
            )
            .query_as::<u64>(
                "window",
                false,
                "Seconds back from now; all that is held when absent.",
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
