//! The router: a tree of path segments. Literal segments win over parameters, parameters over a
//! tail.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use crate::auth::Need;
use crate::head::Method;
use crate::openapi::{ApiInfo, document};
use crate::request::{JSON, percent_decode};
use crate::response::Response;
use crate::route::Route;

/// The routes of one listener.
#[derive(Clone, Debug)]
pub struct Router {
    info: ApiInfo,
    pub(crate) routes: Vec<Route>,
}

impl Router {
    /// A router without routes.
    pub fn new(info: ApiInfo) -> Self {
        Self {
            info,
            routes: Vec::new(),
        }
    }

    /// Adds a route. Two routes of one method and shape panic when the front starts.
    #[allow(clippy::should_implement_trait)] // a builder method, not arithmetic
    pub fn add(mut self, route: Route) -> Self {
        self.routes.push(route);
        self
    }

    pub fn add_all(mut self, routes: impl IntoIterator<Item = Route>) -> Self {
        self.routes.extend(routes);
        self
    }

    /// The OpenAPI 3.1 document.
    pub fn openapi(&self) -> serde_json::Value {
        document(&self.info, &self.routes)
    }

    /// The routes, for generated tables.
    pub fn routes(&self) -> impl Iterator<Item = (Method, &'static str, Need, &'static str)> {
        self.routes
            .iter()
            .map(|route| (route.method, route.pattern, route.need, route.summary))
    }

    /// Adds `/openapi.json` and builds the tree.
    pub(crate) fn compile(mut self) -> Compiled {
        let described = self.clone();
        let document: OnceLock<Arc<[u8]>> = OnceLock::new();
        let route = Route::get("/openapi.json", Need::Public, move |_| {
            // Made for its first reader: it takes longer than the rest of a start.
            let document =
                document.get_or_init(|| described.openapi().to_string().into_bytes().into());
            Ok(Response::bytes(200, JSON, document.clone()).cache("public, max-age=60"))
        });
        self.routes
            .push(route.summary("This document").while_draining());
        let mut tree = Node::default();
        for (index, route) in self.routes.iter().enumerate() {
            tree.insert(route, index);
        }
        Compiled {
            routes: self.routes,
            tree,
        }
    }
}

#[derive(Debug, Default)]
struct Node {
    literals: BTreeMap<Box<str>, Node>,
    param: Option<Box<Node>>,
    tail: Option<Box<Node>>,
    /// The routes that end here, by method.
    methods: Vec<(Method, usize)>,
}

/// The name in `{name}`.
fn param_name(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

fn segments(pattern: &str) -> impl Iterator<Item = &str> {
    pattern[1..].split('/')
}

impl Node {
    fn insert(&mut self, route: &Route, index: usize) {
        let mut node = self;
        for segment in segments(route.path()) {
            let Some(name) = param_name(segment) else {
                node = node.literals.entry(segment.into()).or_default();
                continue;
            };
            let next = if name.starts_with('*') {
                &mut node.tail
            } else {
                &mut node.param
            };
            node = next.get_or_insert_default();
        }
        let taken = node
            .methods
            .iter()
            .any(|(method, _)| *method == route.method);
        assert!(!taken, "route {} is there twice", route.name());
        node.methods.push((route.method, index));
    }

    /// The node for a path without its leading slash, among those that serve `method` (any method,
    /// when `None`); `values` collects the values of the parameters.
    fn find<'p>(
        &self,
        method: Option<Method>,
        path: &'p str,
        values: &mut Vec<&'p str>,
    ) -> Option<&Self> {
        let (segment, rest) = match path.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (path, None),
        };
        if let Some(node) = self.literals.get(segment)
            && let Some(found) = node.follow(method, rest, values)
        {
            return Some(found);
        }
        if let Some(node) = self.param.as_deref()
            && !segment.is_empty()
        {
            // Backtracks: a parameter that leads nowhere must not hide a tail.
            let depth = values.len();
            values.push(segment);
            if let Some(found) = node.follow(method, rest, values) {
                return Some(found);
            }
            values.truncate(depth);
        }
        let tail = self
            .tail
            .as_deref()
            .filter(|node| !path.is_empty() && node.serves(method))?;
        values.push(path);
        Some(tail)
    }

    /// The node below this one for the rest of a path, or this node when nothing is left.
    fn follow<'p>(
        &self,
        method: Option<Method>,
        rest: Option<&'p str>,
        values: &mut Vec<&'p str>,
    ) -> Option<&Self> {
        match rest {
            Some(rest) => self.find(method, rest, values),
            None => self.serves(method).then_some(self),
        }
    }

    fn serves(&self, method: Option<Method>) -> bool {
        match method {
            Some(method) => self.route(method).is_some(),
            None => !self.methods.is_empty(),
        }
    }

    fn route(&self, method: Method) -> Option<usize> {
        self.methods
            .iter()
            .find(|(known, _)| *known == method)
            .map(|(_, index)| *index)
    }
}

/// The routes and their tree.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub routes: Vec<Route>,
    tree: Node,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Match<'p> {
    /// A route, with the raw values of its parameters in order.
    Route(usize, Vec<&'p str>),
    /// The path has other methods: the value of `Allow`.
    OtherMethods(String),
    Nothing,
}

impl Compiled {
    /// The route for a method and a raw path. HEAD finds the route of GET; OPTIONS never matches.
    pub(crate) fn find<'p>(&self, method: Method, path: &'p str) -> Match<'p> {
        let Some(relative) = path.strip_prefix('/') else {
            return Match::Nothing;
        };
        let served_by = if method == Method::HEAD {
            Method::GET
        } else {
            method
        };
        let mut values = Vec::new();
        if let Some(node) = self.tree.find(Some(served_by), relative, &mut values)
            && let Some(index) = node.route(served_by)
        {
            return Match::Route(index, values);
        }
        // No route for this method: a path with other methods is 405, an unknown one 404.
        values.clear();
        match self.tree.find(None, relative, &mut values) {
            Some(node) => Match::OtherMethods(allow(&node.methods)),
            None => Match::Nothing,
        }
    }

    /// Names and decodes the parameters of a route; `None` when one cannot be decoded.
    pub(crate) fn params(
        &self,
        route: usize,
        values: &[&str],
    ) -> Option<Vec<(&'static str, String)>> {
        let names = segments(self.routes[route].pattern).filter_map(param_name);
        let named = names.zip(values).map(|(name, value)| {
            let decoded = percent_decode(value, false)?.into_owned();
            Some((name.trim_start_matches('*'), decoded))
        });
        named.collect()
    }
}

/// The `Allow` header of a path with these methods.
fn allow(methods: &[(Method, usize)]) -> String {
    let mut names: Vec<&str> = methods.iter().map(|(method, _)| method.as_str()).collect();
    if names.contains(&"GET") {
        names.push("HEAD");
    }
    names.push("OPTIONS");
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(patterns: &[(Method, &'static str)]) -> Compiled {
        let info = ApiInfo {
            title: "t",
            version: "1",
            description: "",
        };
        let route = |&(method, pattern)| Route::new(method, pattern, Need::Public, |_, _| ());
        Router::new(info)
            .add_all(patterns.iter().map(route))
            .compile()
    }

    #[test]
    fn requests_find_their_route() {
        let routes = compiled(&[
            (Method::GET, "/"),
            (Method::GET, "/v1/things"),
            (Method::POST, "/v1/things"),
            (Method::GET, "/v1/things/{id}"),
            (Method::GET, "/v1/things/special"),
            (Method::POST, "/v1/things/{id}/rotate"),
            (Method::GET, "/log/tile/{*path}"),
            (Method::GET, "/log/tile/head"),
            (Method::DELETE, "/v1/things/{id}"),
        ]);
        let check = |method, path: &str, want: &str| {
            let shown = match routes.find(method, path) {
                Match::Nothing => "nothing".to_owned(),
                Match::OtherMethods(allow) => format!("allow {allow}"),
                Match::Route(index, values) => match routes.params(index, &values) {
                    None => "bad".to_owned(),
                    Some(params) => params
                        .iter()
                        .fold(routes.routes[index].pattern.to_owned(), |all, (k, v)| {
                            format!("{all} {k}={v}")
                        }),
                },
            };
            assert_eq!(shown, want, "{method} {path}");
        };
        check(Method::GET, "/", "/");
        check(Method::GET, "/v1/things", "/v1/things");
        check(Method::HEAD, "/v1/things", "/v1/things");
        check(Method::GET, "/v1/things/special", "/v1/things/special");
        check(Method::GET, "/v1/things/7", "/v1/things/{id} id=7");
        check(Method::GET, "/v1/things/a%2Fb", "/v1/things/{id} id=a/b");
        check(Method::GET, "/v1/things/%zz", "bad");
        check(
            Method::POST,
            "/v1/things/special/rotate",
            "/v1/things/{id}/rotate id=special",
        );
        check(
            Method::GET,
            "/log/tile/0/x001/067",
            "/log/tile/{*path} path=0/x001/067",
        );
        check(Method::GET, "/log/tile/head", "/log/tile/head");
        check(
            Method::GET,
            "/log/tile/head/more",
            "/log/tile/{*path} path=head/more",
        );
        check(Method::GET, "/v1/things/", "nothing");
        check(Method::GET, "/v1", "nothing");
        check(Method::GET, "/v1/thing%73", "nothing");
        check(Method::GET, "//", "nothing");
        check(
            Method::DELETE,
            "/v1/things/special",
            "/v1/things/{id} id=special",
        );
        check(
            Method::DELETE,
            "/v1/things",
            "allow GET, HEAD, OPTIONS, POST",
        );
        check(
            Method::OPTIONS,
            "/v1/things/1/rotate",
            "allow OPTIONS, POST",
        );
        check(Method::GET, "/openapi.json", "/openapi.json");
    }

    #[test]
    fn a_moved_route_answers_elsewhere_under_its_name() {
        let info = ApiInfo {
            title: "t",
            version: "1",
            description: "",
        };
        let moved = |pattern| {
            let route = Route::new(Method::GET, pattern, Need::Public, |_, _| ());
            route.moved("/v1/a/", "/v1/b/c/")
        };
        let patterns = ["/v1/a/x/{id}", "/v1/abc", "/v1/a"];
        let router = Router::new(info).add_all(patterns.map(moved));
        let document = router.openapi();
        let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
        assert_eq!(paths, ["/v1/a", "/v1/abc", "/v1/b/c/x/{id}"]);
        let routes = router.compile();
        let check = |path: &str, want: Option<&str>| match routes.find(Method::GET, path) {
            Match::Route(index, values) => {
                let route = &routes.routes[index];
                assert_eq!(Some(route.pattern), want, "{path}");
                let params = routes.params(index, &values).unwrap();
                assert!(params.iter().all(|param| *param == ("id", "7".to_owned())));
            }
            other => assert_eq!(want, None, "{path} {other:?}"),
        };
        check("/v1/b/c/x/7", Some("/v1/a/x/{id}"));
        check("/v1/a/x/7", None);
        check("/v1/b/x/7", None);
        check("/v1/abc", Some("/v1/abc"));
        check("/v1/a", Some("/v1/a"));
    }

    #[test]
    #[should_panic(expected = "have no parameters")]
    fn a_route_is_not_moved_below_a_parameter() {
        let route = Route::new(Method::GET, "/v1/a/{id}", Need::Public, |_, _| ());
        let _ = route.moved("/v1/a/", "/v1/{x}/");
    }

    #[test]
    #[should_panic(expected = "there twice")]
    fn two_routes_of_one_shape_are_refused() {
        compiled(&[(Method::GET, "/a/{x}"), (Method::GET, "/a/{y}")]);
    }
}
