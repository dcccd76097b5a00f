//! A started service, and the operations of its process on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_http::{FrontHandle, HttpClient};
use ron_kernel::{Deadline, DrainReport, Shutdown, Supervisor, exit};
use ron_proto::status::Readiness;

use super::{ReloadHook, Shared};
use crate::config::{Config, ConfigProblem, Diff, Restart};
use crate::events::{Event, EventKind};
use crate::ready::{RELOAD, ReadyBoard, readiness};

/// Returned by every service's `start`. Dropping it drains the service for at most the configured
/// deadline.
pub struct Running {
    pub(super) shared: Arc<Shared>,
    api: FrontHandle,
    ops: FrontHandle,
    client: Arc<HttpClient>,
    drained: bool,
}

/// Why a reload changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    #[error("the new configuration is not acceptable: {}", join(.0))]
    Invalid(Vec<ConfigProblem>),
    #[error("these keys need a restart: {}", reasons(.0))]
    NeedsRestart(Vec<(&'static str, Restart)>),
    #[error("a part of the service refused it: {0}")]
    Refused(String),
    #[error("another reload is in progress")]
    Busy,
}

impl ReloadError {
    /// The result of the reload as a metric label.
    const fn result(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::NeedsRestart(_) | Self::Refused(_) | Self::Busy => "refused",
        }
    }

    /// What the refusal means for the service, and what to do. Paths and line numbers of the file
    /// are in the log alone.
    fn consequence(&self) -> String {
        let (why, act) = match self {
            Self::Invalid(problems) => (
                match problems.len() {
                    1 => "it has a problem".to_owned(),
                    several => format!("it has {several} problems"),
                },
                "the log names the lines (event reload_refused): correct them and reload (SIGHUP)",
            ),
            Self::NeedsRestart(_) => (
                self.to_string(),
                "restart the service, or undo the change and reload (SIGHUP)",
            ),
            Self::Refused(why) => (why.clone(), "correct it and reload (SIGHUP)"),
            Self::Busy => (self.to_string(), "reload again (SIGHUP)"),
        };
        format!("the changed configuration was refused and the old one is in force: {why}; {act}")
    }

    fn event(&self) -> Event {
        let (reason, number) = match self {
            Self::Invalid(problems) => ("invalid", problems.len()),
            Self::NeedsRestart(keys) => ("needs_restart", keys.len()),
            Self::Refused(_) | Self::Busy => ("refused", 1),
        };
        let event = Event::warn(EventKind::ReloadRefused).reason(reason);
        event.number(number as u64).why(self)
    }
}

fn reasons(keys: &[(&str, Restart)]) -> String {
    let each = keys
        .iter()
        .map(|(key, why)| format!("{key} ({})", why.reason()));
    each.collect::<Vec<_>>().join(", ")
}

fn join(problems: &[ConfigProblem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Running {
    pub(super) fn new(
        shared: Arc<Shared>,
        api: FrontHandle,
        ops: FrontHandle,
        client: Arc<HttpClient>,
    ) -> Self {
        Self {
            shared,
            api,
            ops,
            client,
            drained: false,
        }
    }

    pub fn service(&self) -> &'static str {
        self.shared.topology.service
    }
    pub fn api_addr(&self) -> SocketAddr {
        self.api.addr()
    }
    pub fn health_addr(&self) -> SocketAddr {
        self.ops.addr()
    }
    /// The API's URL: `http://address`, `https://address` with TLS, or `unix:path:` when the Unix
    /// socket replaces the address.
    pub fn api_url(&self) -> String {
        if let (0, Some(path)) = (self.api_addr().port(), self.unix_path()) {
            return format!("unix:{}:", path.display());
        }
        let scheme = self.shared.tls.api.as_ref().map_or("http", |_| "https");
        format!("{scheme}://{}", self.api_addr())
    }
    /// The Unix socket of the API, as clients must name it.
    pub fn unix_path(&self) -> Option<&std::path::Path> {
        self.api.unix_path()
    }
    /// The Unix socket of the health port, as clients must name it.
    pub fn health_unix_path(&self) -> Option<&std::path::Path> {
        self.ops.unix_path()
    }
    /// `http://address` of the health port.
    pub fn health_url(&self) -> String {
        format!("http://{}", self.health_addr())
    }
    /// The body of `/readyz`.
    pub fn ready(&self) -> Readiness {
        readiness(&self.shared.ready, &self.shared.sup)
    }
    pub fn supervisor(&self) -> &Supervisor {
        &self.shared.sup
    }
    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.shared.config.load()
    }
    /// Where the process itself reports what weakens it.
    pub(crate) fn board(&self) -> &ReadyBoard {
        &self.shared.ready
    }
    /// Why the process must end; `None` while it need not.
    pub fn fatal(&self) -> Option<String> {
        self.shared.sup.fatal()
    }
    /// Whether a stop was requested: by an operator (`POST /api/v1/shutdown`), by the process, or by a drain.
    pub fn stop_requested(&self) -> bool {
        self.shared.stop.1.is_set()
    }
    /// Fires when [`Running::stop_requested`] becomes true.
    pub fn stop_token(&self) -> Shutdown {
        self.shared.stop.1.clone()
    }
    /// Fires when [`Running::fatal`] is set.
    pub fn fatal_token(&self) -> Shutdown {
        self.shared.sup.fatal_token()
    }

    /// Waits until the service is ready; at the deadline returns what is missing.
    pub fn wait_ready(&self, deadline: Deadline) -> Result<(), Readiness> {
        loop {
            let ready = self.ready();
            if ready.ready {
                return Ok(());
            }
            let pause = Deadline::within(Duration::from_millis(5)).earlier(deadline);
            if deadline.expired() || self.shared.sup.fatal_token().wait(pause) {
                return Err(ready);
            }
        }
    }

    /// Rereads the configuration file and applies it if a reload may (SIGHUP).
    pub fn reload_from_file(&self) -> Result<Diff, ReloadError> {
        self.shared.reload_from_file()
    }

    /// Applies another configuration of the same table, completely or not at all.
    pub fn reload(&self, new: Config) -> Result<Diff, ReloadError> {
        self.shared.reload(new)
    }

    /// Drains within `within`: readiness goes off, intake stops, in-flight requests are finished,
    /// threads stop stage by stage, last checkpoints are written. A second call does nothing.
    pub fn drain(&mut self, within: Duration) -> DrainReport {
        let deadline = Deadline::within(within);
        self.drained = true;
        let sup = &self.shared.sup;
        sup.begin_drain();
        let events = &self.shared.events;
        events.publish(Event::info(EventKind::Draining));
        self.shared.stop.0.fire();
        self.api.stop_intake();
        // Most of the time is for in-flight requests; their workers must still run to answer them.
        let patience = Deadline::within(within.mul_f32(0.7));
        let (_keep, never) = Shutdown::pair();
        while self.api.in_flight() > 0 && !patience.expired() {
            never.wait(Deadline::within(Duration::from_millis(2)));
        }
        let report = sup.drain(deadline.remaining().max(Duration::from_millis(50)));
        self.client.shutdown();
        for hook in self.shared.take_drained_hooks() {
            hook();
        }
        tracing::info!(
            service = self.service(),
            event = "drained",
            took_ms = u64::try_from(report.took.as_millis()).unwrap_or(u64::MAX),
            stragglers = report.stragglers.join(","),
        );
        report
    }

    /// The exit code of the process after a drain.
    pub fn exit_code(&self, report: &DrainReport) -> u8 {
        if self.fatal().is_some() {
            exit::FATAL
        } else if report.stragglers.is_empty() {
            exit::OK
        } else {
            exit::STRAGGLERS
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.drained {
            let within = self.shared.config.load().chassis().drain_deadline;
            self.drain(within);
        }
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("service", &self.service())
            .field("api", &self.api_addr())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn reload_from_file(&self) -> Result<Diff, ReloadError> {
        self.reload_once(|| self.config.load().reread().map_err(ReloadError::Invalid))
    }

    pub(super) fn reload(&self, new: Config) -> Result<Diff, ReloadError> {
        self.reload_once(|| Ok(new))
    }

    fn reload_once(
        &self,
        read: impl FnOnce() -> Result<Config, ReloadError>,
    ) -> Result<Diff, ReloadError> {
        if self.reloading.swap(true, Ordering::SeqCst) {
            return Err(ReloadError::Busy);
        }
        let started = self.clock.now();
        let outcome = read().and_then(|new| self.apply(new));
        // Before the next reload may begin, whose outcome is the newer one.
        match &outcome {
            Ok(_) => self.ready.clear(RELOAD),
            Err(error) => self.ready.degrade(RELOAD, error.consequence()),
        }
        self.reloading.store(false, Ordering::SeqCst);
        self.reload_seconds.observe(
            self.clock
                .now()
                .saturating_duration_since(started)
                .as_secs_f64(),
        );
        let (result, event) = match &outcome {
            Ok(diff) if diff.is_empty() => {
                let event = Event::info(EventKind::Reloaded).reason("unchanged");
                ("unchanged", event.number(0))
            }
            Ok(diff) => {
                let event = Event::info(EventKind::Reloaded).reason("changed");
                let changes = diff.changes.len() as u64;
                ("ok", event.number(changes).why(diff.summary()))
            }
            Err(error) => (error.result(), error.event()),
        };
        self.events.publish(event);
        self.reloads.with_label_values(&[result]).inc();
        outcome
    }

    fn apply(&self, new: Config) -> Result<Diff, ReloadError> {
        let old = self.config.load();
        let diff = old.diff(&new);
        let restart = diff.needs_restart();
        if !restart.is_empty() {
            return Err(ReloadError::NeedsRestart(restart));
        }
        // Also when no key has changed: renewed certificates, exchanged PINs and tokens keep their
        // paths.
        self.reload_certificates().map_err(ReloadError::Refused)?;
        let hooks: Vec<ReloadHook> = self.reload_hooks();
        for (at, hook) in hooks.iter().enumerate() {
            if let Err(why) = hook(&new) {
                for undone in &hooks[..at] {
                    if let Err(why) = undone(&old) {
                        tracing::error!(service = self.topology.service, event = "reload_undo_failed", reason = %why);
                    }
                }
                return Err(why);
            }
        }
        if !diff.is_empty() {
            self.rates.store(super::rates(new.chassis()));
            self.room.set_reserve(new.chassis().disk_reserve.0);
            self.config.store(new);
        }
        Ok(diff)
    }
}
