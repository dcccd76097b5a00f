//! What a service keeps in memory stays in bounds, by its own metrics: queues hold no more than they have room for, a front has no
//! more connections than its limit, and after a drain nothing is owed to anybody.

use ron_kernel::{KernelMetrics, Registry};
use ron_sim::ensure;

/// No service of a world may have more connections.
const CONNS_MAX: usize = 128;

/// What has an end when a service does. The name of a metric ends so.
const AT_REST: [&str; 5] = [
    "_http_connections",
    "_http_in_flight",
    "_event_polls",
    "_wallet_inflight",
    "_worker_inflight",
];

/// A metric as it is exported: its name, the rest of its line, and its value.
fn values(text: &str) -> impl Iterator<Item = (&str, &str, f64)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some((name, labels, value.parse().ok()?))
    })
}

/// What is out of bounds; `at_rest` after a drain.
fn excess(registry: &Registry, at_rest: bool) -> Vec<String> {
    let (text, queues) = ron_sim::undivided(|| {
        let queues = KernelMetrics::new(registry).built_queues();
        (registry.render(), queues)
    });
    // Queues of one name show their sum.
    let room = |labels: &str| -> usize {
        let named = |name: &str| labels.contains(&format!("queue=\"{name}\""));
        let of = queues.iter().filter(|queue| named(queue.spec.name));
        of.map(|queue| queue.capacity).sum()
    };
    let is_over = |(name, labels, value): &(&str, &str, f64)| {
        let most = if name.ends_with("_queue_depth") {
            room(labels) as f64
        } else if name.ends_with("_http_connections") {
            CONNS_MAX as f64
        } else {
            f64::INFINITY
        };
        let is_left = at_rest && AT_REST.iter().any(|of| name.ends_with(of)) && *value != 0.0;
        *value > most || is_left
    };
    let over = values(&text).filter(is_over);
    over.map(|(name, labels, value)| format!("{name}{{{labels} {value}"))
        .collect()
}

/// Fails when something is out of bounds.
pub fn check(registry: &Registry, at_rest: bool) {
    let over = excess(registry, at_rest);
    ensure(over.is_empty(), &format!("out of bounds: {over:?}"));
}

#[cfg(test)]
mod tests {
    use ron_kernel::{Overflow, QueueSpec, queue};
    use ron_sim::Sim;

    use super::*;

    static ROW: QueueSpec = QueueSpec {
        name: "row",
        capacity: 2,
        overflow: Overflow::RejectNew,
        from: "a",
        to: "b",
        when_full: "busy",
    };

    #[test]
    fn what_is_out_of_bounds_is_found() {
        let outcome = Sim::new(0).run(|| {
            let registry = Registry::new("t");
            let metrics = KernelMetrics::new(&registry);
            let (sender, _receiver) = queue(&ROW, ROW.capacity, &metrics);
            for number in 0..2 {
                sender.try_send(number).expect("room");
            }
            let found = |at_rest| excess(&registry, at_rest);
            assert!(found(true).is_empty(), "{:?}", found(true));
            // As if there were a second queue whose items have no room.
            let depth = "Items waiting in a queue.";
            registry.gauge_fn("queue_depth", depth, &[("queue", "row")], || 3);
            assert_eq!(found(false).len(), 1, "{:?}", found(false));
            let open = registry.gauge("http_connections", "Open connections.");
            open.set(CONNS_MAX as i64);
            assert_eq!(found(false).len(), 1);
            assert_eq!(found(true).len(), 2);
            open.set(CONNS_MAX as i64 + 1);
            assert_eq!(found(false).len(), 2);
        });
        assert!(outcome.failure.is_none(), "{outcome}");
    }
}
