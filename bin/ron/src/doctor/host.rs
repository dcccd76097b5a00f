//! Checks of what all services of this host share: the clock, limits of the process, swap.

use ron_kernel::{Clock as _, SystemClock};
use rustix::process::{Resource, getrlimit};

use super::Report;

/// Open files that a service needs beside its connections (1,024 by default).
const FILES_MIN: u64 = 2048;
/// Locked memory that secrets need, in bytes.
const LOCKED_MIN: u64 = 1 << 20;
/// 2026-01-01: no service of this version ran before.
const EARLIEST_UNIX_MS: u64 = 1_767_225_600_000;

/// Checks the host.
pub fn check(report: &mut Report) {
    clock(report);
    let files = getrlimit(Resource::Nofile).current;
    match files {
        Some(n) if n < FILES_MIN => report.warn(
            "open files",
            format!("at most {n}"),
            format!("raise it to {FILES_MIN} or more: ulimit -n, or LimitNOFILE= of the unit"),
        ),
        _ => report.ok("open files", limit(files)),
    }
    let locked = getrlimit(Resource::Memlock).current;
    match locked {
        Some(n) if n < LOCKED_MIN => report.warn(
            "locked memory",
            format!("at most {n} bytes: some secrets may be swapped out"),
            "raise it to 8 MiB: ulimit -l, or LimitMEMLOCK= of the unit",
        ),
        _ => report.ok("locked memory", limit(locked)),
    }
    swap(report);
}

fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "no limit".into(), |n| format!("at most {n}"))
}

fn clock(report: &mut Report) {
    let now = SystemClock.unix_ms();
    if now < EARLIEST_UNIX_MS {
        return report.fail(
            "clock",
            "it is set to a time before 2026",
            "set it (timedatectl set-ntp true): tokens and checkpoints carry the time",
        );
    }
    let known = [
        "/run/systemd/timesync/synchronized",
        "/run/chrony/chronyd.pid",
        "/run/chronyd.pid",
        "/run/ntpd.pid",
    ];
    if known.iter().any(|path| std::path::Path::new(path).exists()) {
        report.ok("clock", "a time service keeps it");
    } else {
        report.warn(
            "clock",
            "no time service was found; a token is refused when clocks differ by more than a minute",
            "run chrony or systemd-timesyncd on every host",
        );
    }
}

fn swap(report: &mut Report) {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let devices: Vec<&str> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    if devices.is_empty() {
        report.ok("swap", "none");
    } else {
        report.warn(
            "swap",
            format!(
                "{} is in use; keys are in locked memory, payloads are not",
                devices.join(", ")
            ),
            "encrypt it, or turn it off: swapoff -a",
        );
    }
}
