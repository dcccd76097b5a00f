//! Messages to the service manager (`NOTIFY_SOCKET`, systemd's `Type=notify`): that the service is ready, that it
//! stops, that it still runs, and a line for `systemctl status`. They are sent by the process's main thread.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use ron_kernel::Deadline;
use ron_proto::status::Readiness;

/// Longest time that the manager is kept waiting for a service whose own start is over: what it waits for then is
/// another service, whose absence must not hold up a boot or the upgrade of a package.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The manager that started this process, if it listens.
pub(crate) struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the process runs.
    alive_every: Option<Duration>,
    alive_at: Deadline,
    /// When it hears that the start is over although the service is not ready.
    ready_by: Deadline,
    is_started: bool,
    status: String,
}

impl Manager {
    /// From the variables of the process. What is wrong with them is in the log: a service runs without a manager.
    pub fn from_env() -> Self {
        let text = |name| std::env::var(name).ok();
        let watchdog = text("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        let every = text("WATCHDOG_USEC").filter(|_| watchdog);
        Self::new(
            text("NOTIFY_SOCKET").as_deref(),
            every.as_deref(),
            READY_WITHIN,
        )
    }

    fn new(socket: Option<&str>, watchdog_usec: Option<&str>, ready_within: Duration) -> Self {
        let to = socket.and_then(|name| match open(name) {
            Ok(to) => Some(to),
            Err(error) => {
                tracing::warn!(event = "manager_not_notified", socket = name, %error);
                None
            }
        });
        let usec = watchdog_usec.and_then(|usec| usec.parse().ok());
        Self {
            to,
            // Half of the time after which the manager takes a silent process for hung.
            alive_every: usec.map(|usec: u64| Duration::from_micros(usec / 2)),
            alive_at: Deadline::within(Duration::ZERO),
            ready_by: Deadline::within(ready_within),
            is_started: false,
            status: String::new(),
        }
    }

    /// Reports to the manager what has changed; called some times a second.
    pub fn notify(&mut self, readiness: impl FnOnce() -> Readiness) {
        if self.to.is_none() {
            return;
        }
        let readiness = readiness();
        let mut lines = Vec::new();
        if !self.is_started && (readiness.ready || self.ready_by.expired()) {
            self.is_started = true;
            lines.push("READY=1".to_owned());
        }
        let status = status(&readiness);
        if status != self.status {
            lines.push(format!("STATUS={status}"));
            self.status = status;
        }
        if let Some(every) = self.alive_every
            && self.alive_at.expired()
        {
            self.alive_at = Deadline::within(every);
            lines.push("WATCHDOG=1".to_owned());
        }
        if !lines.is_empty() {
            self.send(&lines.join("\n"));
        }
    }

    /// Reports to the manager that the service drains.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=drains");
    }

    fn send(&self, text: &str) {
        let Some((socket, to)) = &self.to else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), to) {
            tracing::warn!(event = "manager_not_notified", %error);
        }
    }
}

/// A name that begins with `@` is in the abstract name space.
fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let to = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the thread.
    socket.set_nonblocking(true)?;
    Ok((socket, to))
}

fn status(readiness: &Readiness) -> String {
    let Readiness {
        missing, degraded, ..
    } = readiness;
    match (readiness.ready, degraded.is_empty()) {
        (false, _) => format!("not ready: {}", missing.join(", ")),
        (true, false) => format!("ready, degraded: {}", degraded.join(", ")),
        (true, true) => "ready".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readiness(missing: &[&str], degraded: &[&str]) -> Readiness {
        let texts = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Readiness {
            ready: missing.is_empty(),
            degraded: texts(degraded),
            missing: texts(missing),
            retry_after: None,
        }
    }

    /// A manager's socket, and what it has received since.
    struct Listener(UnixDatagram, tempfile::TempDir);

    impl Listener {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
            socket.set_nonblocking(true).unwrap();
            Self(socket, dir)
        }

        fn name(&self) -> String {
            self.1.path().join("notify").display().to_string()
        }

        fn got(&self) -> Vec<String> {
            let mut got = Vec::new();
            let mut buf = [0; 1024];
            while let Ok(n) = self.0.recv(&mut buf) {
                got.push(String::from_utf8(buf[..n].to_vec()).unwrap());
            }
            got
        }
    }

    #[test]
    fn a_manager_hears_of_readiness_once_it_is_there_and_of_changes() {
        let listener = Listener::new();
        let long = Duration::from_secs(3600);
        let mut manager = Manager::new(Some(&listener.name()), None, long);
        let waits = || readiness(&["ledger"], &["passports"]);
        manager.notify(waits);
        manager.notify(waits);
        assert_eq!(listener.got(), ["STATUS=not ready: ledger"]);
        manager.notify(|| readiness(&[], &["passports"]));
        assert_eq!(
            listener.got(),
            ["READY=1\nSTATUS=ready, degraded: passports"]
        );
        manager.notify(|| readiness(&[], &[]));
        manager.notify(waits);
        manager.stopping();
        let last = [
            "STATUS=ready",
            "STATUS=not ready: ledger",
            "STOPPING=1\nSTATUS=drains",
        ];
        assert_eq!(listener.got(), last);
    }

    #[test]
    fn a_start_ends_without_the_services_that_are_waited_for() {
        let listener = Listener::new();
        let mut manager = Manager::new(Some(&listener.name()), None, Duration::ZERO);
        manager.notify(|| readiness(&["ledger"], &[]));
        assert_eq!(listener.got(), ["READY=1\nSTATUS=not ready: ledger"]);
    }

    #[test]
    fn a_watchdog_hears_at_half_of_its_time() {
        let listener = Listener::new();
        let mut manager = Manager::new(Some(&listener.name()), Some("3600000000"), Duration::ZERO);
        manager.notify(|| readiness(&[], &[]));
        manager.notify(|| readiness(&[], &[]));
        assert_eq!(listener.got(), ["READY=1\nSTATUS=ready\nWATCHDOG=1"]);
        manager.alive_at = Deadline::within(Duration::ZERO);
        manager.notify(|| readiness(&[], &[]));
        assert_eq!(listener.got(), ["WATCHDOG=1"]);
        assert_eq!(manager.alive_every, Some(Duration::from_secs(1800)));
    }

    #[test]
    fn without_a_manager_or_with_one_that_is_gone_a_service_runs() {
        let mut none = Manager::new(None, Some("1000"), Duration::ZERO);
        none.notify(|| panic!("nobody asks"));
        let gone = tempfile::tempdir().unwrap().path().join("notify");
        for name in [gone.to_str().unwrap(), "@ron-no-manager-listens-here"] {
            let mut manager = Manager::new(Some(name), None, Duration::ZERO);
            manager.notify(|| readiness(&[], &[]));
            manager.stopping();
        }
    }
}
