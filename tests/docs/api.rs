//! `docs/api/`: a page per service from its OpenAPI document, and the table of errors that all of them share.

use std::fmt::Write as _;
use std::fs;

use ron_proto::problem::COMMON;
use ron_tests::workspace;
use serde_json::Value;

use crate::running::{Described, described};
use crate::schema::{line, section, word};
use crate::{compare, regions};

/// What an example needs.
const EXAMPLE: &str = "With `ron up` running on the defaults, `curl` and `jq`:\n";

/// Statuses that the front may answer with on every route; docs/api/README.md explains them.
const EVERYWHERE: [&str; 13] = [
    "400", "408", "413", "414", "415", "417", "429", "431", "500", "501", "503", "504", "505",
];

#[test]
fn api_pages_are_what_the_openapi_documents_say() {
    for service in described() {
        compare(&format!("api/{}.md", service.service), &page(service));
    }
    regions::check("api/README.md", "generated", |part| {
        (part == "errors").then(errors)
    });
}

fn errors() -> String {
    let mut out = String::from("| code | status | retry? | meaning |\n|---|--:|---|---|\n");
    for kind in COMMON {
        let again = if kind.retryable { "yes" } else { "" };
        let _ = writeln!(
            out,
            "| `{}` | {} | {again} | {} |",
            kind.code, kind.status, kind.meaning
        );
    }
    out
}

/// An operation: method, path, and its part of the document.
struct Operation<'a> {
    method: String,
    path: &'a str,
    about: &'a Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let paths = document["paths"].as_object().unwrap();
    let mut all = Vec::new();
    for (path, methods) in paths {
        for (method, about) in methods.as_object().unwrap() {
            all.push(Operation {
                method: method.to_uppercase(),
                path,
                about,
            });
        }
    }
    all
}

fn page(service: &Described) -> String {
    let document = &service.openapi;
    let about = document["info"]["description"].as_str().unwrap();
    let all = operations(document);
    let mut out = format!(
        "# API of {}\n\n{about}\n\nGenerated from the service's own `/openapi.json`; [README.md](README.md) describes \
         what all services share.\n\n| operation | who may call | what it does |\n|---|---|---|\n",
        service.service
    );
    for op in &all {
        let summary = line(op.about["summary"].as_str().unwrap_or(""));
        let _ = writeln!(
            out,
            "| `{} {}` | {} | {summary} |",
            op.method,
            op.path,
            caller(op.about)
        );
    }
    let example = format!("tests/docs/examples/{}.sh", service.service);
    let example = fs::read_to_string(workspace().join(&example)).expect(&example);
    let _ = write!(
        out,
        "\n## Example\n\n{EXAMPLE}\n<!-- run by: api_examples -->\n```sh\n{example}```\n"
    );
    out.push_str("\n## Operations\n");
    for op in &all {
        operation(&mut out, op);
    }
    out.push_str("\n## Types\n");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let _ = write!(out, "\n### {name}\n\n{}", section(schema));
    }
    // A section of a type may end with an empty line itself.
    while out.contains("\n\n\n") {
        out = out.replace("\n\n\n", "\n\n");
    }
    format!("{}\n", out.trim_end())
}

fn caller(operation: &Value) -> String {
    let Some(first) = operation["security"].as_array().and_then(|all| all.first()) else {
        return "anyone".to_owned();
    };
    match first["bearer"].as_array().and_then(|scopes| scopes.first()) {
        Some(scope) => format!("`{}`", scope.as_str().unwrap()),
        None => "anyone with an identity".to_owned(),
    }
}

fn operation(out: &mut String, op: &Operation<'_>) {
    let _ = writeln!(out, "\n### {} {}\n", op.method, op.path);
    let summary = op.about["summary"]
        .as_str()
        .unwrap_or("")
        .trim_end_matches('.');
    let _ = writeln!(out, "{summary}. Who may call: {}.\n", caller(op.about));
    let parameters = op.about["parameters"].as_array().unwrap();
    if !parameters.is_empty() {
        out.push_str("| parameter | in | type | required | meaning |\n|---|---|---|---|---|\n");
        for p in parameters {
            let must = if p["required"] == true { "yes" } else { "" };
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {must} | {} |",
                p["name"].as_str().unwrap(),
                p["in"].as_str().unwrap(),
                word(&p["schema"]),
                line(p["description"].as_str().unwrap_or(""))
            );
        }
        out.push('\n');
    }
    if let Some(content) = op.about["requestBody"]["content"].as_object() {
        let _ = writeln!(out, "Request: {}.\n", bodies(content));
    }
    let mut errors = Vec::new();
    // Statuses with the same answer share a line.
    let mut answers: Vec<(String, String)> = Vec::new();
    for (status, response) in op.about["responses"].as_object().unwrap() {
        let said = match response["content"].as_object() {
            _ if !response["$ref"].is_null() => {
                errors.push(status.as_str());
                continue;
            }
            Some(content) => bodies(content),
            None => "no body".to_owned(),
        };
        match answers.iter_mut().find(|(_, known)| *known == said) {
            Some((statuses, _)) => *statuses = format!("{statuses}, {status}"),
            None => answers.push((status.clone(), said)),
        }
    }
    for (statuses, said) in answers {
        let _ = writeln!(out, "Answer {statuses}: {said}.\n");
    }
    errors.retain(|status| !EVERYWHERE.contains(status));
    if !errors.is_empty() {
        let _ = writeln!(
            out,
            "Errors in addition to those of every route: {}.",
            errors.join(", ")
        );
    }
}

fn bodies(content: &serde_json::Map<String, Value>) -> String {
    let one = |(kind, about): (&String, &Value)| match &about["schema"] {
        Value::Null => format!("`{kind}`"),
        schema if kind == "application/json" => word(schema),
        schema => format!("{} as `{kind}`", word(schema)),
    };
    content.iter().map(one).collect::<Vec<_>>().join(", or ")
}
