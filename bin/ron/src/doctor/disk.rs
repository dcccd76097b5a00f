//! The disk under a data directory: kind, free space, and the time of one durable write.

use std::fs::{File, OpenOptions, remove_file};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use ron_kernel::{Clock as _, SystemClock};

use super::Report;

/// Number of trial writes.
const WRITES: usize = 50;
/// Content of one trial write.
const BLOCK: [u8; 4096] = [0; 4096];
/// Median time above which every commit waits noticeably.
const SLOW: Duration = Duration::from_millis(10);
/// Median time above which checkpoints are late under load.
const TOO_SLOW: Duration = Duration::from_millis(500);
/// Free bytes below which a busy log fills the disk within a day.
const ROOM_WARN: u64 = 5 << 30;
/// Free bytes below which a service should not start.
const ROOM_FAIL: u64 = 64 << 20;
/// File systems that a reboot empties, by their magic number.
const VOLATILE: [(i64, &str); 2] = [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs")];

/// Checks the disk under `dir`, which exists and is writable.
pub fn check(report: &mut Report, dir: &Path) {
    kind(report, dir);
    room(report, dir);
    match flushes(dir) {
        Err(error) => report.fail(
            "disk writes",
            format!(
                "a trial file in {} cannot be written: {error}",
                dir.display()
            ),
            "make the directory writable for this user",
        ),
        Ok(took) => speed(report, took),
    }
}

fn kind(report: &mut Report, dir: &Path) {
    let Ok(info) = rustix::fs::statfs(dir) else {
        return;
    };
    #[allow(clippy::useless_conversion)] // the field's width differs between platforms
    let magic = i64::from(info.f_type);
    if let Some((_, name)) = VOLATILE.iter().find(|(known, _)| *known == magic) {
        report.warn(
            "disk",
            format!("{} is on {name}: a reboot loses everything", dir.display()),
            "name a directory on a disk with --data-dir",
        );
    }
}

fn room(report: &mut Report, dir: &Path) {
    let Ok(info) = rustix::fs::statvfs(dir) else {
        return;
    };
    let free = info.f_bavail.saturating_mul(info.f_frsize);
    let says = format!("{} MiB free under {}", free >> 20, dir.display());
    let hint = "free some space; a service whose disk is full refuses writes and goes on reading";
    if free < ROOM_FAIL {
        report.fail("disk room", says, hint);
    } else if free < ROOM_WARN {
        report.warn("disk room", says, hint);
    } else {
        report.ok("disk room", says);
    }
}

fn speed(report: &mut Report, mut took: Vec<Duration>) {
    took.sort_unstable();
    let median = took[took.len() / 2];
    let worst = took[took.len() - 1];
    let ms = |d: Duration| format!("{}.{:02} ms", d.as_millis(), d.as_micros() % 1000 / 10);
    let says = format!(
        "a durable write takes {} (median of {WRITES}), {} at worst",
        ms(median),
        ms(worst)
    );
    if median > TOO_SLOW {
        report.fail(
            "disk writes",
            says,
            "use another disk: checkpoints would be late all the time",
        );
    } else if median > SLOW {
        let hint = "commits share a flush, so throughput holds, but each waits for one; prefer a disk with a power-safe cache";
        report.warn("disk writes", says, hint);
    } else {
        report.ok("disk writes", says);
    }
}

/// Duration of each trial write, including its flush.
fn flushes(dir: &Path) -> std::io::Result<Vec<Duration>> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    let took = write_all(file);
    remove_file(&path)?;
    took
}

fn write_all(mut file: File) -> std::io::Result<Vec<Duration>> {
    (0..WRITES)
        .map(|_| {
            let start = SystemClock.now();
            file.write_all(&BLOCK)?;
            file.sync_data()?;
            Ok(SystemClock.now().saturating_duration_since(start))
        })
        .collect()
}
