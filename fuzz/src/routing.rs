//! The tree of routes compared with the reference, on a table with every kind of overlap.

use std::sync::OnceLock;

use crate::paths::{Pattern, Place, find};
use ron_http::fuzzing::{self, Paths};
use ron_http::{ApiInfo, Method, Need, Response, Route, Router, sync};

const PATTERNS: &[Pattern] = &[
    ("GET", "/"),
    ("GET", "/a"),
    ("POST", "/a"),
    ("GET", "/a/{x}"),
    ("DELETE", "/a/{x}"),
    ("GET", "/a/b"),
    ("PUT", "/a/b"),
    ("POST", "/a/{x}/c"),
    ("GET", "/a/b/d"),
    ("GET", "/a/{x}/d"),
    ("PATCH", "/a/{x}/{y}"),
    ("GET", "/t/{*rest}"),
    ("GET", "/t/b"),
    ("POST", "/t/{x}"),
    ("GET", "/t/b/{x}/{*rest}"),
    ("DELETE", "/{any}/c"),
    ("PUT", "/{*everything}"),
    ("GET", "/openapi.json"), // every router adds it
];

fn paths() -> &'static Paths {
    static PATHS: OnceLock<Paths> = OnceLock::new();
    PATHS.get_or_init(|| {
        let info = ApiInfo {
            title: "fuzz",
            version: "1",
            description: "",
        };
        let own = PATTERNS.iter().filter(|(_, p)| *p != "/openapi.json");
        let route = |(method, pattern): &Pattern| {
            let method = Method::parse(method).expect("a known method");
            let answer = sync(|_| Ok(Response::empty(204)));
            Route::new(method, pattern, Need::Public, answer)
        };
        Paths::new(Router::new(info).add_all(own.map(route)))
    })
}

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Tries one input.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let method = METHODS[usize::from(*first) % METHODS.len()];
    // The characters that a head may contain: printable ASCII.
    let path: String = rest
        .iter()
        .map(|b| char::from(b % 94 + 33))
        .filter(|c| *c != '#' && *c != '?')
        .collect();
    for path in [path.clone(), format!("/{path}")] {
        let got = match paths().find(Method::parse(method).expect("known"), &path) {
            fuzzing::Place::Route(pattern, params) => Place::Route(pattern, params),
            fuzzing::Place::OtherMethods(allow) => Place::OtherMethods(allow),
            fuzzing::Place::Nothing => Place::Nothing,
        };
        assert_eq!(got, find(PATTERNS, method, &path), "{method} {path}");
    }
}
