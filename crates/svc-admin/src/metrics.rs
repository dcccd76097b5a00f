//! The console's own metrics, beside those of kernel and front.

use std::sync::Arc;

use ron_kernel::Registry;
use ron_proto::admin::NodeState;

use crate::view::Board;

/// Exports the number of nodes in each state. Failed polls are counted by `upstream_fail_total`.
pub fn export(registry: &Registry, board: &Arc<Board>) {
    for state in [
        NodeState::Healthy,
        NodeState::Degraded,
        NodeState::Down,
        NodeState::Unknown,
    ] {
        let board = board.clone();
        registry.gauge_fn(
            "nodes",
            "Watched nodes by state.",
            &[("state", state.as_str())],
            move || {
                board.with(|published| {
                    published
                        .summaries
                        .iter()
                        .filter(|summary| summary.state == state)
                        .count() as i64
                })
            },
        );
    }
}
