//! The machine that the figures were measured on.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Number of flushes timed to describe the disk.
const FLUSHES: usize = 200;

/// The machine and the disk under `dir`, one fact per line.
pub fn facts(dir: &Path) -> Result<String, String> {
    let line = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let found = text.lines().find(|l| l.starts_with(key)).unwrap_or("");
        found
            .split(':')
            .nth(1)
            .unwrap_or("unknown")
            .trim()
            .to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (median, p99) = flushes(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(format!(
        "- CPU: {}, {cores} cores, shared with the load generator\n\
         - memory: {}; kernel {}\n\
         - disk: 4 KiB append and fdatasync: median {median} us, p99 {p99} us ({FLUSHES} times)\n",
        line("/proc/cpuinfo", "model name"),
        line("/proc/meminfo", "MemTotal"),
        kernel.trim(),
    ))
}

fn flushes(dir: &Path) -> std::io::Result<(u128, u128)> {
    let mut file = tempfile::tempfile_in(dir)?;
    let mut took = Vec::with_capacity(FLUSHES);
    for _ in 0..FLUSHES {
        let start = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        took.push(start.elapsed().as_micros());
    }
    took.sort_unstable();
    Ok((took[FLUSHES / 2], took[FLUSHES * 99 / 100]))
}

/// Linux counts CPU time for user space in hundredths of a second on every architecture.
const TICKS: f64 = 100.0;

/// CPU time a process has used, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| e.to_string())?;
    let after = text.rsplit(')').next().unwrap_or("");
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok());
    let (user, system) = ticks(11)
        .zip(ticks(12))
        .ok_or("/proc/<pid>/stat is short")?;
    Ok((user + system) / TICKS)
}

/// A number of `/proc/<pid>/status`, such as `VmRSS` in KiB.
pub fn status(pid: u32, key: &str) -> Result<u64, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| e.to_string())?;
    text.lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| format!("no {key} in /proc/{pid}/status"))
}
