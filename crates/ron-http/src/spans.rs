//! Spans: what became of requests, for a collector of traces.
//!
//! A span is begun with its request, so that the calls which are made for the request are its children, and is handed over
//! when the answer is given. Handing over never waits: a full queue loses the span.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_kernel::random::mix;
use ron_kernel::rate::LineBudget;
use ron_kernel::{Random, Sender};

/// The part of a trace that a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub trace_id: u128,
    pub id: u64,
    /// The span of the client; none for the first of a trace.
    pub parent: Option<u64>,
}

impl Span {
    /// As the value of `traceparent`, for calls that are made for the request.
    pub(crate) fn to_parent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace_id, self.id)
    }
}

/// A span with its end.
#[derive(Debug)]
pub struct EndedSpan {
    pub span: Span,
    /// Id of the request.
    pub request_id: String,
    pub method: &'static str,
    /// Pattern of the route, such as `/v1/ops/{key}`.
    pub route: &'static str,
    pub status: u16,
    pub ended_unix_ms: u64,
    pub took: Duration,
}

/// Where the spans of a front go.
pub struct Spans {
    to: Sender<EndedSpan>,
    budget: LineBudget,
    next: AtomicU64,
}

impl Spans {
    /// At most `per_second` spans are begun in a second. Requests of traces that their client does not record have none.
    pub fn new(to: Sender<EndedSpan>, per_second: u32, random: &dyn Random) -> Arc<Self> {
        Arc::new(Self {
            to,
            budget: LineBudget::new(per_second),
            next: AtomicU64::new(random.u64()),
        })
    }

    /// The span of a request that begins, with its header `traceparent` if that is well formed.
    pub(crate) fn begin(&self, parent: Option<&str>) -> Option<Span> {
        let parent = parent.map(Parent::of);
        if parent.as_ref().is_some_and(|parent| !parent.recorded) || !self.budget.take() {
            return None;
        }
        let parent = parent.filter(|parent| parent.trace_id != 0 && parent.id != 0);
        let fresh = || u128::from(self.fresh()) << 64 | u128::from(self.fresh());
        Some(Span {
            trace_id: parent.as_ref().map_or_else(fresh, |parent| parent.trace_id),
            id: self.fresh(),
            parent: parent.map(|parent| parent.id),
        })
    }

    pub(crate) fn end(&self, span: EndedSpan) {
        let _ = self.to.try_send(span); // a full queue counts it
    }

    /// An id that is not zero.
    fn fresh(&self) -> u64 {
        // Relaxed: only the uniqueness of the value matters.
        let count = self
            .next
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mix(count).max(1)
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Spans")
    }
}

/// The parts of a well-formed `traceparent`.
struct Parent {
    trace_id: u128,
    id: u64,
    recorded: bool,
}

impl Parent {
    fn of(text: &str) -> Self {
        let number = |range| {
            text.get(range)
                .and_then(|digits| u128::from_str_radix(digits, 16).ok())
        };
        Self {
            trace_id: number(3..35).unwrap_or(0),
            id: number(36..52).map_or(0, |id| id as u64), // 16 digits
            recorded: number(53..55).is_some_and(|flags| flags & 1 == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::{KernelMetrics, OsRandom, Overflow, QueueSpec, Registry, queue};

    use super::*;

    static QUEUE: QueueSpec = QueueSpec {
        name: "spans",
        capacity: 4,
        overflow: Overflow::RejectNew,
        from: "a test",
        to: "a test",
        when_full: "it is lost",
    };

    #[test]
    fn spans_continue_recorded_traces_and_are_few() {
        let (to, _from) = queue(&QUEUE, 4, &KernelMetrics::new(&Registry::new("t")));
        let spans = Spans::new(to.clone(), u32::MAX, &OsRandom);
        let begin = |parent| spans.begin(Some(parent));
        let child = begin("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(child.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(child.parent, Some(0x00f0_67aa_0ba9_02b7));
        let again = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01", child.id);
        assert_eq!(child.to_parent(), again);
        assert_eq!(
            begin("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"),
            None,
            "not recorded"
        );
        let root = begin(&format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32))).unwrap();
        assert!(
            root.parent.is_none() && root.trace_id != 0,
            "zero is no trace"
        );
        let first = spans.begin(None).unwrap();
        assert!(first.parent.is_none() && first.trace_id != 0 && first.id != child.id);
        let few = Spans::new(to, 2, &OsRandom);
        let begun = (0..200).filter(|_| few.begin(None).is_some()).count();
        // A second may begin in between, and has spans of its own.
        assert!((2..200).contains(&begun), "{begun}");
    }
}
