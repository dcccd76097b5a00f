//! What was wrong in the world, and when: a console may show a node as well, or as lost, only where that was so.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ron_sim::time;

use super::NODES;
use crate::disk::Hangs;

/// From when until when something was wrong; without an end it still is.
type Span = (Instant, Option<Instant>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A node that cannot be well.
    Gone(usize),
    /// A node that may not be well.
    Node(usize),
    Console,
    Weather,
}

/// None of it is a point of the simulator.
#[derive(Debug, Default)]
pub struct Truth {
    spans: Mutex<Vec<(Of, Span)>>,
    /// Of the node that has a disk: its number, and when that hung.
    hangs: OnceLock<(usize, Arc<Hangs>)>,
}

/// Something that is wrong until it `ends`.
#[derive(Debug)]
pub struct Trouble {
    truth: Arc<Truth>,
    at: usize,
}

impl Trouble {
    pub fn ends(self) {
        self.truth.spans()[self.at].1.1 = Some(time::now());
    }
}

impl Truth {
    fn spans(&self) -> MutexGuard<'_, Vec<(Of, Span)>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, of: Of) -> Trouble {
        let mut spans = self.spans();
        spans.push((of, (time::now(), None)));
        Trouble {
            truth: self.clone(),
            at: spans.len() - 1,
        }
    }

    pub fn node_has_disk(&self, node: usize, hangs: &Arc<Hangs>) {
        let set = self.hangs.set((node, hangs.clone()));
        set.expect("one node has a disk");
    }

    pub fn node_is_gone(self: &Arc<Self>, node: usize) -> Trouble {
        self.begin(Of::Gone(node))
    }

    pub fn node_is_troubled(self: &Arc<Self>, node: usize) -> Trouble {
        self.begin(Of::Node(node))
    }

    pub fn console_is_troubled(self: &Arc<Self>) -> Trouble {
        self.begin(Of::Console)
    }

    pub fn weather_is_bad(self: &Arc<Self>) -> Trouble {
        self.begin(Of::Weather)
    }

    /// Whether something of these was wrong between two times.
    fn had(&self, from: Instant, to: Instant, of: impl Fn(Of) -> bool) -> bool {
        let met = |span: &Span| span.0 <= to && span.1.is_none_or(|end| end >= from);
        self.spans()
            .iter()
            .any(|(what, span)| of(*what) && met(span))
    }

    /// Whether calls of the console may have failed or taken long.
    pub fn console_had(&self, from: Instant, to: Instant) -> bool {
        self.had(from, to, |of| matches!(of, Of::Console | Of::Weather))
    }

    /// Whether the console may have missed answers of a node, or the node may have said that it is not well.
    pub fn node_had(&self, node: usize, from: Instant, to: Instant) -> bool {
        let hung = |(at, hangs): &(usize, Arc<Hangs>)| *at == node && hangs.any(from, to);
        let had = self.had(from, to, |of| match of {
            Of::Gone(at) | Of::Node(at) => at == node,
            Of::Console | Of::Weather => true,
        });
        had || self.hangs.get().is_some_and(hung)
    }

    /// Whether a node was gone for all of the time.
    pub fn was_gone(&self, node: usize, from: Instant, to: Instant) -> bool {
        let all = |span: &Span| span.0 <= from && span.1.is_none_or(|end| end >= to);
        let spans = self.spans();
        let mut of_node = spans.iter().filter(|(of, _)| *of == Of::Gone(node));
        of_node.any(|(_, span)| all(span))
    }
}

/// The number of a node.
pub fn number(id: &str) -> usize {
    let at = NODES.iter().position(|(name, _)| *name == id);
    at.expect("a node of the fleet")
}

/// So long before a time, or the start.
pub fn before(at: Instant, by: Duration) -> Instant {
    at.checked_sub(by).unwrap_or(at)
}
