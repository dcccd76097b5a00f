//! svc-admin: the operator console. It shows whether the fleet is healthy, what is wrong and why.
//!
//! ```text
//!  configuration, discovery files ── watch ──> fleet.rs: roster ── adm-sched: due nodes ───┐
//!                                                                                          ▼
//!  nodes' health ports <── adm-samp ── node.rs: rings + last answers ────────┐       (queue polls)
//!                         (promtext, dialect)      │ lock, short             ▼
//!  logs' checkpoints, tiles <── adm-logs ── heads ─┤                  adm-view: state (pure), build, tag
//!  keys <────────────────── adm-logs ── keys ──────┤                         │
//!  rewarders' epochs <── adm-epochs ── epochs ─────┤                         │ board
//!  nodes' events <── adm-events ── timeline ───────┤                         │
//!                                                  └──> api/: page and JSON <┘
//!  rings, once a minute ── adm-view ── history ── adm-audit: admin.db
//!  nodes' reload, shutdown <── adm-act ──(queue actions)── api/act.rs: gates ── adm-audit: durable lines
//! ```
//!
//! **Invariants:** a view never waits for a node: handlers read what has been published. Memory is bounded by
//! nodes, series and slots. A figure that a node does not report is absent, never zero, and a dead node's figures
//! end. The state is a pure function ([`state::judge`]) and every state but healthy has a reason. No call to act
//! is made to a node before the audit line that announces it is durable.

// Figures of other people's metrics are floats that were checked before they are cast.
#![allow(clippy::cast_sign_loss, clippy::unnecessary_wraps)]
#![cfg_attr(test, allow(clippy::float_cmp, clippy::needless_for_each))]

mod actions;
mod api;
mod audit;
mod boot;
mod caller;
mod derive;
mod dialect;
mod discovery;
mod epochs;
mod event_watch;
mod fleet;
mod gate;
mod history;
mod incidents;
mod kept;
mod keys;
mod line;
mod logs;
mod metrics;
mod node;
pub mod promtext;
mod recorder;
mod rings;
mod sampler;
mod sessions;
pub mod settings;
mod state;
mod timeline;
mod topology;
mod view;

pub use boot::SvcAdmin;

#[cfg(test)]
mod acting_tests;
#[cfg(test)]
mod console_tests;
#[cfg(test)]
mod test_issuer;
