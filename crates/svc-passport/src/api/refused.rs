//! `GET /v1/passport/clients/refused`: which clients' credentials are guessed or wrong.

use std::sync::Arc;

use ron_http::{Need, Response, Route};
use ron_proto::passport::RefusedClients;
use ron_proto::scope;

use super::Api;

pub fn route(api: &Arc<Api>) -> Route {
    let api = api.clone();
    Route::get(
        "/v1/passport/clients/refused",
        Need::Scope(scope::PASSPORT_ADMIN),
        move |req| {
            req.query_only(&[])?;
            Ok(Response::json(200, &api.refusals.list()).cache("no-store"))
        },
    )
    .summary("Refused authentications since the start, by client and reason.")
    .returns::<RefusedClients>(200)
    .errors(&[400])
}
