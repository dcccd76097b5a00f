//! Metrics of the process and its host in every service: CPU time, memory, descriptors, disk,
//! certificates.

use std::fs::{read_dir, read_to_string};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ron_files::Dir;
use ron_kernel::{Gauge, Registry, SharedClock};
use ron_proto::Timestamp;

use crate::config::ChassisSettings;

/// Ticks per second of the times in `/proc`; Linux fixes it at 100 for user space on every
/// supported architecture.
const USER_HZ: f64 = 100.0;

/// Registers the values that are read at each scrape.
pub(crate) fn export(registry: &Registry, data_dir: Option<Dir>) {
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

/// The files of certificates in use, with their expiry; call [`Certificates::show`] after they were
/// read. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Certificates(Arc<[CertificateFile]>);

struct CertificateFile {
    key: &'static str,
    path: PathBuf,
    /// The earliest end of validity in the file.
    shown: Gauge,
    /// The end of validity of what the file is used for, in Unix seconds: a chain fails with the first
    /// of its certificates, a list of authorities with the last.
    end: AtomicI64,
    authorities: bool,
}

impl Certificates {
    /// Exports the expiry of the files that these settings use.
    pub fn new(registry: &Registry, settings: &ChassisSettings) -> Self {
        let serves = settings.tls_enabled;
        let calls = settings.tls_peer_ca.is_some();
        let files = [
            (
                ChassisSettings::tls_cert,
                "own",
                &settings.tls_cert,
                serves || calls,
            ),
            (
                ChassisSettings::tls_client_ca,
                "client_ca",
                &settings.tls_client_ca,
                serves,
            ),
            (
                ChassisSettings::tls_peer_ca,
                "peer_ca",
                &settings.tls_peer_ca,
                calls,
            ),
        ];
        let used = files.into_iter().filter(|(.., used)| *used);
        let used = used.filter_map(|(key, name, path, _)| Some((key, name, path.clone()?)));
        let used: Vec<(&str, &str, PathBuf)> = used.collect();
        let uses: Vec<&str> = used.iter().map(|(_, name, _)| *name).collect();
        let gauge = registry.gauge_closed(
            "certificate_not_after_seconds",
            "Earliest expiry of the certificates in a file that is in use, in Unix seconds.",
            &[("use", &uses)],
        );
        let files = used.into_iter().map(|(key, name, path)| CertificateFile {
            key,
            path,
            shown: gauge.with_label_values(&[name]),
            end: AtomicI64::new(i64::MAX),
            authorities: name != "own",
        });
        let certificates = Self(files.collect());
        certificates.show();
        certificates
    }

    /// Reads the files that the transport has just read.
    pub fn show(&self) {
        for file in &*self.0 {
            // An unreadable file was refused before; the exported value stays that of the
            // certificate in use.
            let Ok(Some(ends)) = ron_http::certificate_ends(&file.path) else {
                continue;
            };
            let (Some(first), Some(last)) = (ends.iter().min(), ends.iter().max()) else {
                continue;
            };
            file.shown.set(*first);
            let end = if file.authorities { last } else { first };
            file.end.store(*end, Ordering::Relaxed);
        }
    }

    /// Which certificates have expired at this time, and what to do; `None` when none has.
    pub fn expired(&self, now_ms: u64) -> Option<String> {
        let now = (now_ms / 1_000).cast_signed();
        let ends = self
            .0
            .iter()
            .map(|file| (file.key, file.end.load(Ordering::Relaxed)));
        let each: Vec<String> = ends
            .filter(|(_, end)| *end < now)
            .map(|(key, end)| {
                let at = Timestamp(end.max(0).cast_unsigned() * 1_000);
                format!("the certificate in {key} expired at {at}")
            })
            .collect();
        (!each.is_empty()).then(|| {
            let each = each.join(", ");
            format!("{each}: put the renewed file in its place and reload (SIGHUP)")
        })
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
