//! Internals of the parser and the router for the fuzz targets and the test that replays their seeds.
//! No part of the library's interface.

pub use crate::body::Decoded;
pub use crate::head::Field;
use crate::head::{Headers, Method};
pub use crate::parse::{Framing, Head, HeadCaps, HeadScanner, Refusal, parse_head};
use crate::router::{Compiled, Match, Router};
use crate::unpack::{Coding, Fault};

/// A body decoder whose output is the whole body so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyDecoder(crate::body::BodyDecoder);

impl BodyDecoder {
    /// The decoder for a framing; refuses at once a length above the cap.
    pub fn new(framing: Framing, cap: usize) -> Result<Self, Refusal> {
        crate::body::BodyDecoder::new(framing, cap as u64).map(Self)
    }

    /// Moves body bytes from `input` to `out`, which never grows beyond `cap`.
    pub fn feed(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        cap: usize,
    ) -> Result<Decoded, Refusal> {
        let room = cap.saturating_sub(out.len()) as u64;
        self.0.feed(input, out, room)
    }
}

/// Unpacks a body in the named content coding: its bytes, `None` when it is damaged, or an empty
/// error when it is larger than the cap. Other names leave the body as it is.
#[allow(clippy::result_unit_err)] // two outcomes and no words
pub fn unpack(name: &str, packed: &[u8], cap: usize) -> Result<Option<Vec<u8>>, ()> {
    let headers = Headers::from_pairs(&[("content-encoding", name)]);
    match Coding::of(&headers) {
        Ok(Some(coding)) => match coding.unpack(packed, cap) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Fault::Damaged) => Ok(None),
            Err(Fault::TooLarge) => Err(()),
        },
        _ => Ok(Some(packed.to_vec())),
    }
}

/// The compiled routes of a router.
#[derive(Debug)]
pub struct Paths(Compiled);

/// The result of routing a method and a raw path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The route of this pattern, with its parameters, or `None` when one cannot be decoded.
    Route(&'static str, Option<Vec<(&'static str, String)>>),
    /// The path has other methods: the value of `Allow`.
    OtherMethods(String),
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
            Match::Nothing => Place::Nothing,
            Match::OtherMethods(allow) => Place::OtherMethods(allow),
            Match::Route(index, values) => {
                let pattern = self.0.routes[index].pattern;
                Place::Route(pattern, self.0.params(index, &values))
            }
        }
    }
}
