//! The OpenAPI 3.1 document, generated from the routes and the schemas of their types, so that it
//! cannot contradict the code.

use ron_proto::{ProblemBody, problem};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::auth::Need;
use crate::head::Method;
use crate::limits::WAIT_MAX_S;
use crate::route::{FORM, QueryParam, Reads, Returns, Route};

/// The `info` of the OpenAPI document.
#[derive(Clone, Debug)]
pub struct ApiInfo {
    pub title: &'static str,
    pub version: &'static str,
    pub description: &'static str,
}

/// The document of these routes.
pub(crate) fn document(info: &ApiInfo, routes: &[Route]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut schemas = settings.into_generator();
    let problem_schema = reference::<ProblemBody>(&mut schemas);
    let mut paths = Map::new();
    // OpenAPI 3.1 has no place for methods outside the registry.
    for route in routes.iter().filter(|r| r.method != Method::LIST) {
        let path = route.path().replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.method.as_str().to_lowercase()] =
            operation(route, &mut schemas, &problem_schema);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": info.title,
            "version": info.version,
            "description": info.description,
        },
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(true),
            "responses": error_responses(routes, &problem_schema),
            "securitySchemes": { "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "A passport (JWT) or a service token.",
            }},
        },
    })
}

fn reference<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

fn operation(route: &Route, schemas: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut responses = Map::new();
    for (status, returns) in &route.returns {
        let entry = responses.entry(status.to_string()).or_insert_with(
            || json!({ "description": meaning(*status), "headers": headers(*status) }),
        );
        match returns {
            Returns::Nothing => {}
            Returns::Bytes(kind) => entry["content"][*kind] = json!({}),
            Returns::Json(schema) => {
                entry["content"]["application/json"] =
                    json!({ "schema": schema(schemas).to_value() });
            }
        }
    }
    for status in statuses(route) {
        if let Some(own) = responses.get_mut(&status.to_string()) {
            // The route has its own form for this error; the front's own answers are problems.
            own["content"]["application/problem+json"] = json!({ "schema": problem });
        } else {
            let shared = format!("#/components/responses/E{status}");
            responses.insert(status.to_string(), json!({ "$ref": shared }));
        }
    }
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": parameters(route, schemas),
        "security": security(route.need),
        "responses": responses,
    });
    let content = match route.reads {
        Reads::Nothing => None,
        Reads::Json(schema) => {
            Some(json!({ "application/json": { "schema": schema(schemas).to_value() } }))
        }
        Reads::Form(schema) => Some(json!({ FORM: { "schema": schema(schemas).to_value() } })),
        Reads::Bytes([]) => Some(json!({ "*/*": {} })),
        Reads::Bytes(types) => {
            let kinds = types.iter().map(|kind| ((*kind).to_owned(), json!({})));
            Some(Value::Object(kinds.collect()))
        }
    };
    if let Some(content) = content {
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

/// The error statuses of a route: its own, and those of the front before or instead of it.
fn statuses(route: &Route) -> Vec<u16> {
    let mut all = vec![
        400, 408, 413, 414, 415, 417, 429, 431, 500, 501, 503, 504, 505,
    ];
    match route.need {
        Need::Public => {}
        Need::Identity => all.push(401),
        Need::Scope(_) => all.extend([401, 403]),
    }
    if route.spool.is_some() {
        all.push(507);
    }
    all.extend_from_slice(&route.errors);
    all.sort_unstable();
    all.dedup();
    all
}

fn operation_id(route: &Route) -> String {
    let words: String = route
        .pattern
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    let words = words
        .split('_')
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join("_");
    format!("{}_{}", route.method.as_str().to_lowercase(), words)
}

fn security(need: Need) -> Value {
    match need {
        Need::Public => json!([]),
        Need::Identity => json!([{ "bearer": [] }]),
        Need::Scope(scope) => json!([{ "bearer": [scope] }]),
    }
}

fn parameters(route: &Route, schemas: &mut SchemaGenerator) -> Vec<Value> {
    let mut all = Vec::new();
    for segment in route.pattern.split('/') {
        if let Some(name) = segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) {
            all.push(json!({
                "name": name.trim_start_matches('*'),
                "in": "path",
                "required": true,
                "schema": { "type": "string", "minLength": 1 },
            }));
        }
    }
    for QueryParam {
        name,
        required,
        about,
        schema,
    } in &route.query
    {
        let schema = schema(schemas).to_value();
        all.push(json!({
            "name": name, "in": "query", "required": required, "description": about,
            "schema": schema,
        }));
    }
    if route.long_poll && !route.query.iter().any(|param| param.name == "wait") {
        all.push(json!({
            "name": "wait", "in": "query", "required": false,
            "description": "Seconds to wait for a change before an empty answer.",
            "schema": { "type": "integer", "minimum": 0, "maximum": WAIT_MAX_S },
        }));
    }
    if route.idempotency_key {
        all.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": true,
            "description": "Sending the same again with the same key is safe and tells the outcome. Bare, or as a quoted string.",
            "schema": { "type": "string", "pattern": "^([A-Za-z0-9._:-]{1,64}|\"[A-Za-z0-9._:-]{1,64}\")$" },
        }));
    }
    all
}

/// The headers of an answer under a status.
fn headers(status: u16) -> Value {
    let mut headers = json!({ "X-Request-Id": {
        "description": "The request's id: the client's own, or one made here.",
        "schema": { "type": "string" },
    }});
    if matches!(status, 429 | 503) {
        headers["Retry-After"] = json!({ "schema": { "type": "integer", "minimum": 1 } });
    }
    headers
}

/// The description of a status: its problem codes, or a sentence.
fn meaning(status: u16) -> String {
    let known = problem::COMMON.iter().filter(|kind| kind.status == status);
    let codes: Vec<&str> = known.map(|kind| kind.code).collect();
    match codes.as_slice() {
        [] => success(status).to_owned(),
        codes => codes.join(", "),
    }
}

/// One shared response per error status that any route may give.
fn error_responses(routes: &[Route], schema: &Value) -> Map<String, Value> {
    let mut all: Vec<u16> = routes.iter().flat_map(statuses).collect();
    all.sort_unstable();
    all.dedup();
    let response = |status: &u16| {
        let response = json!({
            "description": meaning(*status),
            "headers": headers(*status),
            "content": { "application/problem+json": { "schema": schema } },
        });
        (format!("E{status}"), response)
    };
    all.iter().map(response).collect()
}

fn success(status: u16) -> &'static str {
    match status {
        200 => "Done.",
        201 => "Created.",
        202 => "Accepted; the outcome follows.",
        204 => "Done; no content.",
        304 => "Not modified.",
        507 => "insufficient_storage",
        505 => "Only HTTP/1.1 and 1.0 are spoken here.",
        _ => "See the detail.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::Router;

    #[derive(JsonSchema)]
    #[allow(dead_code)] // only its schema is used
    struct Thing {
        name: String,
        parent: Option<Box<Thing>>,
    }

    fn sample() -> Value {
        let info = ApiInfo {
            title: "t",
            version: "1",
            description: "d",
        };
        Router::new(info)
            .add(
                Route::new(
                    Method::POST,
                    "/v1/{tenant}/things",
                    Need::Scope("x:y"),
                    |_, _| (),
                )
                .body::<Thing>()
                .returns::<Thing>(201)
                .errors(&[409])
                .idempotency_key(),
            )
            .add(
                Route::new(Method::GET, "/tiles/{*path}", Need::Public, |_, _| ())
                    .returns_bytes(200, "application/octet-stream")
                    .errors(&[404])
                    .query("after", false, "Where to go on.")
                    .long_poll(),
            )
            .openapi()
    }

    /// Calls `visit` with every `$ref` of a document.
    fn references(value: &Value, visit: &mut dyn FnMut(&str)) {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    match value.as_str() {
                        Some(target) if key == "$ref" => visit(target),
                        _ => references(value, visit),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = sample();
        let mut seen = 0;
        references(&document, &mut |target| {
            seen += 1;
            let pointer = target.strip_prefix('#').expect("all references are local");
            assert!(
                document.pointer(pointer).is_some(),
                "{target} leads nowhere"
            );
        });
        assert!(seen > 10);
    }

    #[test]
    fn operations_say_what_they_need_read_and_answer() {
        let document = sample();
        let post = &document["paths"]["/v1/{tenant}/things"]["post"];
        assert_eq!(post["operationId"], "post_v1_tenant_things");
        assert_eq!(post["security"], json!([{ "bearer": ["x:y"] }]));
        for status in ["201", "400", "401", "403", "409", "413", "504"] {
            assert!(post["responses"].get(status).is_some(), "{status}");
        }
        let names: Vec<_> = post["parameters"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|p| p["name"].as_str().expect("text"))
            .collect();
        assert_eq!(names, ["tenant", "Idempotency-Key"]);
        let get = &document["paths"]["/tiles/{path}"]["get"];
        assert_eq!(get["security"], json!([]));
        assert!(get["responses"].get("401").is_none());
        assert!(get["responses"].get("404").is_some());
        assert_eq!(get["parameters"][2]["name"], "wait");
        assert_eq!(
            document["components"]["responses"]["E503"]["description"],
            "unavailable, draining"
        );
    }

    #[test]
    fn an_error_in_a_form_of_its_own_stands_beside_that_of_the_front() {
        let info = ApiInfo {
            title: "t",
            version: "1",
            description: "d",
        };
        let route = Route::new(Method::GET, "/v1/own", Need::Public, |_, _| ());
        let document = Router::new(info).add(route.returns::<Thing>(503)).openapi();
        let response = &document["paths"]["/v1/own"]["get"]["responses"]["503"];
        let of = |kind: &str| response["content"][kind]["schema"]["$ref"].as_str();
        assert_eq!(of("application/json"), Some("#/components/schemas/Thing"));
        let problem = of("application/problem+json");
        assert_eq!(problem, Some("#/components/schemas/ProblemBody"));
        assert!(response["headers"].get("Retry-After").is_some());
    }
}
