//! What identifies a request in every service that works for it: its id, and the W3C trace context that came with it.
//!
//! A thread that works for a request holds a [`TraceScope`] meanwhile: its log lines carry the request's id, and the calls
//! that it makes send the id and the context on. The id of a request is the one that its client sent, so one id finds it in
//! the logs of all services.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use ron_kernel::random::mix;
use ron_kernel::rate::LineBudget;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ureq::http::{HeaderMap, HeaderValue};

use crate::ids::ShortId;
use crate::spans::{Span, Spans};

const REQUEST_ID: &str = "x-request-id";
pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";

/// Longest `tracestate` that is passed on, in bytes; a longer one is dropped.
const STATE_MAX: usize = 512;

/// Ids in one log line of a joint call: as many of the longest as a field of a line holds.
const IDS_PER_LINE: usize = 30;
/// Log lines of joint calls in a second; further ones have level debug.
const JOINT_LINES_PER_S: u32 = 100;

thread_local! {
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
}

/// The identity of a request: its id and, if its client sent one, the trace context. Clones share it.
#[derive(Clone)]
pub struct Trace(Arc<Identity>);

struct Identity {
    id: ShortId,
    context: Option<Context>,
    span: Option<Span>,
}

/// The W3C trace context of calls that are made for a request: as it came, or with the request's own span as the parent.
#[derive(Clone)]
struct Context {
    parent: String,
    state: Option<String>,
}

impl Trace {
    /// A trace with an id of 1 to 64 letters, digits, `.`, `_` and `-`, and without a context; `None` for another text.
    pub fn new(id: &str) -> Option<Self> {
        ShortId::parse(id.as_bytes()).map(Self::from)
    }

    /// The trace of a request with this id and the values of its headers `traceparent` and `tracestate`. What is not well
    /// formed is left out. Where spans are exported, the request gets one.
    pub(crate) fn of(
        id: ShortId,
        parent: Option<&str>,
        state: Option<&str>,
        spans: Option<&Spans>,
    ) -> Self {
        let parent = parent.filter(|text| is_parent(text));
        let span = spans.and_then(|spans| spans.begin(parent));
        let context = parent.map(str::to_owned).map(|parent| {
            let state = state.filter(|text| text.len() <= STATE_MAX && text.is_ascii());
            Context {
                // What is called for the request is a part of its own span, not of its client's.
                parent: span.map_or(parent, Span::to_parent),
                state: state.map(str::to_owned),
            }
        });
        let context = context.or_else(|| {
            span.map(|span| Context {
                parent: span.to_parent(),
                state: None,
            })
        });
        Self(Arc::new(Identity { id, context, span }))
    }

    /// The id of the request.
    pub fn id(&self) -> &str {
        self.0.id.as_str()
    }

    /// The part of the trace that the request is, if its span is exported.
    pub(crate) fn span(&self) -> Option<Span> {
        self.0.span
    }

    /// The request that the calling thread works for.
    pub fn current() -> Option<Self> {
        // An error: the thread is ending.
        CURRENT
            .try_with(|now| now.borrow().clone())
            .unwrap_or_default()
    }

    /// Adds the headers of a call that is made for this request.
    fn add_to(&self, headers: &mut HeaderMap) {
        let context = self.0.context.as_ref();
        let pairs = [
            (REQUEST_ID, Some(self.id())),
            (TRACEPARENT, context.map(|context| context.parent.as_str())),
            (
                TRACESTATE,
                context.and_then(|context| context.state.as_deref()),
            ),
        ];
        for (name, value) in pairs {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                headers.insert(name, value);
            }
        }
    }
}

/// Written as its id alone.
impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// Read as an id, without a context.
impl<'de> Deserialize<'de> for Trace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        Self::new(&id).ok_or_else(|| {
            D::Error::custom("a request id is 1 to 64 letters, digits, `.`, `_` and `-`")
        })
    }
}

/// Equal when their ids are.
impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Trace {}

impl From<ShortId> for Trace {
    fn from(id: ShortId) -> Self {
        Self::of(id, None, None, None)
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// While this value lives, the current thread works for a request, or for none.
#[derive(Debug)]
#[must_use = "the thread works for the request only while this value lives"]
pub struct TraceScope {
    outer: Option<Trace>,
}

impl TraceScope {
    /// The thread works for the request with this trace; with `None`, for no request.
    pub fn enter(trace: Option<Trace>) -> Self {
        Self {
            outer: CURRENT.replace(trace),
        }
    }
}

impl Drop for TraceScope {
    fn drop(&mut self) {
        let outer = self.outer.take();
        let _ = CURRENT.try_with(|now| now.replace(outer)); // else the thread is ending
    }
}

/// The calls of a thread, or of several, that are each made for many requests.
#[derive(Debug)]
pub struct JointCalls {
    lines: LineBudget,
}

impl Default for JointCalls {
    fn default() -> Self {
        Self {
            lines: LineBudget::new(JOINT_LINES_PER_S),
        }
    }
}

impl JointCalls {
    /// The trace of a call that is made for these requests: theirs, if all have the same id. Otherwise the call has an id
    /// of its own, made of theirs, and a log line says which requests it is made for. It is a part of the first of their spans.
    pub fn trace<'t>(&self, requests: impl Iterator<Item = &'t Trace> + Clone) -> Option<Trace> {
        let first = requests.clone().next()?;
        if requests.clone().all(|each| each.id() == first.id()) {
            return Some(first.clone());
        }
        let spanned = requests.clone().find(|each| each.0.span.is_some());
        let joint = Trace(Arc::new(Identity {
            id: joint_id(requests.clone()),
            context: spanned.and_then(|each| each.0.context.clone()),
            span: None,
        }));
        self.log(joint.id(), requests);
        Some(joint)
    }

    fn log<'t>(&self, request_id: &str, requests: impl Iterator<Item = &'t Trace>) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let ids: Vec<&str> = requests.map(Trace::id).collect();
        for ids in ids.chunks(IDS_PER_LINE) {
            let requests = ids.join(" ");
            if self.lines.take() {
                tracing::info!(event = "joint_call", request_id, requests);
            } else {
                tracing::debug!(event = "joint_call", request_id, requests);
            }
        }
    }
}

/// Adds the headers that identify the request which the calling thread works for, unless the call names one itself.
pub(crate) fn continue_in(headers: &mut HeaderMap) {
    if let Some(trace) = Trace::current().filter(|_| !headers.contains_key(REQUEST_ID)) {
        trace.add_to(headers);
    }
}

/// An id for the call of several requests. It is made of their ids, because drawing one would cost more than it is worth.
fn joint_id<'t>(requests: impl Iterator<Item = &'t Trace>) -> ShortId {
    let sum = |sum: u64, byte: &u8| mix(sum ^ u64::from(*byte));
    let add = |so_far: u64, each: &'t Trace| each.id().as_bytes().iter().fold(mix(so_far), sum);
    ShortId::of(&format!("joint-{:016x}", requests.fold(0, add)))
}

/// The form of a W3C trace context: `00-<32 hex>-<16 hex>-<2 hex>`.
fn is_parent(text: &str) -> bool {
    let lengths = [2, 32, 16, 2];
    let mut parts = text.split('-');
    lengths.iter().all(|length| {
        parts.next().is_some_and(|part| {
            part.len() == *length && part.bytes().all(|b| b.is_ascii_hexdigit())
        })
    }) && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn trace(parent: Option<&str>, state: Option<&str>) -> Trace {
        Trace::of(ShortId::of("find-me-42"), parent, state, None)
    }

    fn sent(named: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in named {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        continue_in(&mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let all = headers
            .iter()
            .map(|(name, value)| (name.to_string(), text(value)));
        let mut all: Vec<_> = all.collect();
        all.sort();
        all
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn calls_of_a_thread_carry_the_request_that_it_works_for() {
        assert_eq!(sent(&[]), pairs(&[]));
        let outer = TraceScope::enter(Some(trace(Some(PARENT), Some("a=1,b=2"))));
        let all = [
            ("traceparent", PARENT),
            ("tracestate", "a=1,b=2"),
            ("x-request-id", "find-me-42"),
        ];
        assert_eq!(sent(&[]), pairs(&all));
        let own = [("x-request-id", "own")];
        assert_eq!(sent(&own), pairs(&own), "the call names its request itself");
        {
            let _inner = TraceScope::enter(None);
            assert_eq!(sent(&[]), pairs(&[]));
        }
        assert_eq!(Trace::current().unwrap().id(), "find-me-42");
        drop(outer);
        assert!(Trace::current().is_none());
    }

    #[test]
    fn contexts_are_taken_only_when_well_formed() {
        let parent = |text: &str| trace(Some(text), None).0.context.is_some();
        assert!(parent(PARENT));
        for bad in ["", "00", &PARENT[1..], &format!("{PARENT}-00"), "zz-a-b-c"] {
            assert!(!parent(bad), "{bad}");
        }
        let state = |text: &str| {
            let trace = trace(Some(PARENT), Some(text));
            trace.0.context.as_ref().unwrap().state.clone()
        };
        assert_eq!(state("a=1").as_deref(), Some("a=1"));
        assert_eq!(state(&"x".repeat(STATE_MAX + 1)), None);
        assert!(trace(None, Some("a=1")).0.context.is_none());
    }

    #[test]
    fn a_joint_call_has_the_id_of_its_only_request_or_one_of_its_own() {
        let joint = |ids: &[&str]| {
            let all: Vec<Trace> = ids.iter().map(|id| Trace::new(id).unwrap()).collect();
            JointCalls::default()
                .trace(all.iter())
                .map(|trace| trace.id().to_owned())
        };
        assert_eq!(joint(&[]), None);
        assert_eq!(joint(&["a"]).as_deref(), Some("a"));
        assert_eq!(joint(&["a", "a"]).as_deref(), Some("a"));
        let of_two = joint(&["a", "b"]).unwrap();
        assert!(
            of_two.starts_with("joint-") && of_two.len() == 22,
            "{of_two}"
        );
        assert_eq!(joint(&["a", "b"]).unwrap(), of_two);
        for other in [
            &["b", "a"][..],
            &["a", "b", "b"],
            &["ab", "c"],
            &["a", "bc"],
        ] {
            assert_ne!(joint(other).unwrap(), of_two, "{other:?}");
        }
        assert_ne!(joint(&["ab", "c"]), joint(&["a", "bc"]));
    }
}
