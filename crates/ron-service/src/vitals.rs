//! Metrics of the process and its host in every service: CPU time, memory, descriptors, disk,
//! certificates.

use std::fs::{read_dir, read_to_string};
use std::path::PathBuf;

use ron_files::Dir;
use ron_kernel::{ClosedGauge, Registry, SharedClock};

use crate::config::ChassisSettings;

/// Ticks per second of the times in `/proc`; Linux fixes it at 100 for user space on every
/// supported architecture.
const USER_HZ: f64 = 100.0;

/// Registers the values that are read at each scrape, and exports the expiry of the certificates,
/// which is read again at each reload.
pub(crate) fn export(
    registry: &Registry,
    settings: &ChassisSettings,
    data_dir: Option<Dir>,
) -> Certificates {
    process(registry);
    registry.gauge_fn(
        "build_info",
        "Always 1; the label is the version of the build.",
        &[("version", env!("CARGO_PKG_VERSION"))],
        || 1,
    );
    if let Some(dir) = data_dir {
        registry.gauge_fn(
            "disk_free_bytes",
            "Free bytes for the service on the file system of a directory.",
            &[("dir", "data_dir")],
            move || free(&dir).unwrap_or(0),
        );
    }
    let certificates = Certificates::new(registry, settings);
    certificates.show();
    certificates
}

/// Exports how far the machine's date is from the one that the service keeps.
pub(crate) fn export_clock(registry: &Registry, clock: &SharedClock) {
    let clock = clock.clone();
    registry.gauge_fn(
        "clock_difference_seconds",
        "Machine's date minus the date that the service keeps, in seconds; 0 while they agree.",
        &[],
        move || clock.alarm().map_or(0, |alarm| alarm.ahead_ms / 1_000),
    );
}

/// The values of the whole process.
fn process(registry: &Registry) {
    registry.process_fn(
        "process_cpu_seconds_total",
        "CPU time of the whole process, in seconds.",
        || cpu_seconds().unwrap_or(0.0),
    );
    registry.process_fn(
        "process_resident_memory_bytes",
        "Resident memory of the whole process, in bytes.",
        || memory("VmRSS:").unwrap_or(0.0),
    );
    registry.process_fn(
        "process_virtual_memory_bytes",
        "Virtual memory of the whole process, in bytes.",
        || memory("VmSize:").unwrap_or(0.0),
    );
    registry.process_fn("process_open_fds", "Open file descriptors.", || {
        read_dir("/proc/self/fd").map_or(0.0, |all| all.count() as f64)
    });
    registry.process_fn(
        "process_max_fds",
        "Maximum number of open file descriptors.",
        || max_fds().unwrap_or(0.0),
    );
    let start = start_seconds().unwrap_or(0.0);
    registry.process_fn(
        "process_start_time_seconds",
        "Start time of the process, in Unix seconds.",
        move || start,
    );
}

/// The expiry of the certificates in use; call [`Certificates::show`] after they were read.
pub(crate) struct Certificates(Vec<(&'static str, PathBuf)>, ClosedGauge);

impl Certificates {
    fn new(registry: &Registry, settings: &ChassisSettings) -> Self {
        let serves = settings.tls_enabled;
        let calls = settings.tls_peer_ca.is_some();
        let files = [
            ("own", &settings.tls_cert, serves || calls),
            ("client_ca", &settings.tls_client_ca, serves),
            ("peer_ca", &settings.tls_peer_ca, calls),
        ];
        let used = files.into_iter().filter(|(_, _, used)| *used);
        let files: Vec<(&str, PathBuf)> = used
            .filter_map(|(name, path, _)| Some((name, path.clone()?)))
            .collect();
        let uses: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        let gauge = registry.gauge_closed(
            "certificate_not_after_seconds",
            "Earliest expiry of the certificates in a file that is in use, in Unix seconds.",
            &[("use", &uses)],
        );
        Self(files, gauge)
    }

    /// Reads the files that the transport has just read.
    pub fn show(&self) {
        for (name, path) in &self.0 {
            // An unreadable file was refused before; the exported value stays that of the
            // certificate in use.
            if let Ok(Some(end)) = ron_http::certificates_end(path) {
                self.1.with_label_values(&[name]).set(end);
            }
        }
    }
}

/// The fields of `/proc/self/stat` after the name, which may contain spaces; the first is field 3
/// of proc(5).
fn stat() -> Option<Vec<f64>> {
    let text = read_to_string("/proc/self/stat").ok()?;
    let fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some(fields.map(|field| field.parse().unwrap_or(0.0)).collect())
}

/// User and system time: fields 14 and 15.
fn cpu_seconds() -> Option<f64> {
    let stat = stat()?;
    Some((stat.get(11)? + stat.get(12)?) / USER_HZ)
}

/// Boot time plus field 22, the ticks from boot to the start.
fn start_seconds() -> Option<f64> {
    let boot = read_to_string("/proc/stat").ok()?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?;
    let boot: f64 = boot.trim().parse().ok()?;
    Some(boot + stat()?.get(19)? / USER_HZ)
}

fn memory(row: &str) -> Option<f64> {
    let status = read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(row))?;
    let kib: f64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

fn max_fds() -> Option<f64> {
    let limits = read_to_string("/proc/self/limits").ok()?;
    let row = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    row.split_ascii_whitespace().next()?.parse().ok()
}

/// Space for an unprivileged user; the reserve that file systems keep for root is not counted.
fn free(dir: &Dir) -> Option<i64> {
    i64::try_from(dir.disk().free_bytes(dir.path()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_figures() {
        assert!(cpu_seconds().is_some_and(|s| s >= 0.0));
        assert!(memory("VmRSS:").is_some_and(|bytes| bytes > 1e5));
        assert!(max_fds().is_some_and(|n| n > 10.0));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let start = start_seconds().unwrap();
        assert!(start > 1e9 && start <= now.as_secs_f64() + 1.0, "{start}");
        assert!(free(&Dir::os("/")).is_some());
        assert_eq!(free(&Dir::os("/no/such/directory")), None);
    }
}
