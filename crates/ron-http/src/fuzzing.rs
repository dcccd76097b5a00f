//! What the fuzz targets need of the parser's and the router's inside. It exists in their builds
//! alone, which set `cfg(fuzzing)`.

pub use crate::body::{BodyDecoder, Decoded};
pub use crate::parse::{Field, Framing, Head, HeadCaps, HeadScanner, Refusal, parse_head};
use crate::request::Method;
use crate::router::{Compiled, Found, Router};

/// The compiled routes of a router.
#[derive(Debug)]
pub struct Paths(Compiled);

/// Where a method and a raw path lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To the route of this pattern; its parameters, or nothing when one cannot be decoded.
    Route(&'static str, Option<Vec<(&'static str, String)>>),
    /// To a path with other methods: the value of `Allow`.
    OtherMethods(String),
    /// Nowhere.
    Nothing,
}

impl Paths {
    /// Builds the tree, with `/openapi.json` in it.
    pub fn new(router: Router) -> Self {
        Self(router.compile())
    }

    /// Finds the place of a request.
    pub fn find(&self, method: Method, path: &str) -> Place {
        match self.0.find(method, path) {
            Found::Nothing => Place::Nothing,
            Found::OtherMethods(allow) => Place::OtherMethods(allow),
            Found::Route(index, values) => {
                let pattern = self.0.routes[index].pattern;
                Place::Route(pattern, self.0.params(index, &values))
            }
        }
    }
}
