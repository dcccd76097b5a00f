//! The log lines that `ron up` keeps in its data directory: files that are turned over by size, together never larger than
//! `--keep-logs` says.
//!
//! ```text
//!  any thread ── a line, never waits ──> ron-logs ──> logs/ron.log, ron.log.1 ...
//! ```
//!
//! **Invariants:** no thread of a service waits for these files. A line that finds the queue full, or that the disk does not
//! take, is dropped and counted, and the count is logged. Nothing is written before the services hold the locks of their
//! data, so two processes never write to one file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ron_files::{Dir, DiskFile, DiskRoom, NoRoom};
use ron_kernel::{
    Count, Deadline, KernelMetrics, Overflow, QueueSpec, Receiver, Recv, Registry, Sender, Stage,
    Supervisor, SystemClock, ThreadCtx, ThreadSpec, Topology, holds_a_lock, queue,
};
use ron_service::config::parse_size;

/// Names of the files: the one that is being written, then older ones.
pub const FILES: [&str; 8] = [
    "ron.log",
    "ron.log.1",
    "ron.log.2",
    "ron.log.3",
    "ron.log.4",
    "ron.log.5",
    "ron.log.6",
    "ron.log.7",
];
/// How long lines gather before they are written.
const GATHER: Duration = Duration::from_millis(20);
/// Longest wait of the idle thread.
const IDLE: Duration = Duration::from_secs(60);
/// How long the last lines may take when the process ends. A disk that hangs must not keep it.
const LAST_LINES: Duration = Duration::from_secs(2);
/// How often dropped lines are reported at most.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Smallest total size.
const BYTES_MIN: u64 = 1 << 20;

static WRITER: ThreadSpec = ThreadSpec {
    name: "ron-logs",
    count: Count::One,
    stage: Stage::Write,
    critical: false,
    job: "writes log lines to files",
};
static LINES: QueueSpec = QueueSpec {
    name: "log_lines",
    capacity: 4096,
    overflow: Overflow::RejectNew,
    from: "any thread",
    to: "ron-logs",
    when_full: "the line is dropped and counted",
};
static TOPOLOGY: Topology = Topology {
    service: "ron-logs",
    threads: &[WRITER],
    queues: &[LINES],
    locks: &[],
};

/// Parses `--keep-logs`.
pub fn total_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if bytes == 0 || bytes >= BYTES_MIN => Ok(bytes),
        _ => Err("must be 1MiB or more, or 0B to keep none".to_owned()),
    }
}

/// Takes lines from any thread.
#[derive(Clone)]
pub struct LineSink {
    lines: Sender<Box<[u8]>>,
    dropped: Arc<AtomicU64>,
}

impl LineSink {
    /// Never waits.
    pub fn take(&self, line: &[u8]) {
        if holds_a_lock() || self.lines.try_send(line.into()).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The lines of this process on their way to files.
pub struct LogFiles {
    sink: LineSink,
    lines: Receiver<Box<[u8]>>,
    threads: Supervisor,
    /// Dropped lines that were reported, and when.
    reported: (u64, Deadline),
}

impl LogFiles {
    /// Lines wait in memory until [`LogFiles::start`].
    pub fn new() -> Self {
        let registry = Registry::new("ron_logs");
        let metrics = KernelMetrics::new(&registry);
        let threads = Supervisor::new(&TOPOLOGY, metrics.clone(), SystemClock::shared());
        let (to, lines) = queue(&LINES, LINES.capacity, &metrics);
        let dropped = Arc::new(AtomicU64::new(0));
        Self {
            sink: LineSink { lines: to, dropped },
            lines,
            threads,
            reported: (0, Deadline::within(Duration::ZERO)),
        }
    }

    pub fn sink(&self) -> LineSink {
        self.sink.clone()
    }

    /// Writes to files in `dir` from now on, at most `bytes` in all, as long as the disk has `reserve` bytes more.
    pub fn start(&self, dir: &Path, bytes: u64, reserve: u64) {
        let (dir, lines) = (Dir::os(dir), self.lines.clone());
        let (dropped, room) = (self.sink.dropped.clone(), {
            // Of its parent: the directory is made with the first line.
            let parent = Dir::os(dir.path().parent().unwrap_or(dir.path()));
            DiskRoom::of(&parent, reserve, SystemClock::shared())
        });
        self.threads.spawn(&WRITER, move |ctx| {
            write_all(
                ctx,
                &lines,
                &mut Files::new(dir.clone(), bytes, room.clone()),
                &dropped,
            );
        });
    }

    /// Logs how many lines were dropped since the last report.
    pub fn report(&mut self) {
        let dropped = self.sink.dropped.load(Ordering::Relaxed);
        let (known, next) = self.reported;
        if dropped > known && next.expired() {
            self.reported = (dropped, Deadline::within(REPORT_EVERY));
            tracing::warn!(event = "log_lines_dropped", lines = dropped - known);
        }
    }

    /// Writes what waits, as far as the disk takes it.
    pub fn stop(&self) {
        let report = self.threads.drain(LAST_LINES);
        if !report.stragglers.is_empty() {
            eprintln!("the last log lines are not in the files: the disk hangs");
        }
    }
}

/// The thread's body: ends when shut down and the queue is empty.
fn write_all(ctx: &ThreadCtx, lines: &Receiver<Box<[u8]>>, files: &mut Files, dropped: &AtomicU64) {
    let mut some = Vec::new();
    let mut failing = false;
    loop {
        match lines.recv(&ctx.shutdown, Deadline::within(IDLE)) {
            Recv::Item(line) => {
                some.push(line);
                ctx.shutdown.wait(Deadline::within(GATHER));
            }
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => {
                if lines.drain_into(&mut some, LINES.capacity) == 0 {
                    return;
                }
            }
        }
        let room = LINES.capacity.saturating_sub(some.len());
        lines.drain_into(&mut some, room);
        let (written, outcome) = files.write(&some);
        dropped.fetch_add((some.len() - written) as u64, Ordering::Relaxed);
        some.clear();
        // One line for each change, because these lines go to the same place.
        let failed = outcome.is_err();
        match outcome {
            Err(why) if !failing => tracing::warn!(event = "log_files_fail", reason = %why),
            Ok(()) if failing => tracing::info!(event = "log_files_work_again"),
            _ => {}
        }
        failing = failed;
    }
}

/// The files of [`FILES`].
struct Files {
    dir: Dir,
    room: DiskRoom,
    /// Maximum bytes of all files, and of each.
    bytes: u64,
    each: u64,
    /// The newest file and its length; opened with the first line.
    file: Option<(Arc<dyn DiskFile>, u64)>,
}

impl Files {
    fn new(dir: Dir, bytes: u64, room: DiskRoom) -> Self {
        Self {
            dir,
            room,
            bytes,
            each: bytes / FILES.len() as u64,
            file: None,
        }
    }

    fn path(&self, n: usize) -> PathBuf {
        self.dir.file(FILES[n])
    }

    /// Writes lines in their order, and returns how many.
    fn write(&mut self, lines: &[Box<[u8]>]) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < lines.len() {
            match self.write_some(&lines[written..]) {
                Ok(some) => written += some,
                Err(why) => {
                    self.file = None; // reopen at the next write
                    return (written, Err(why));
                }
            }
        }
        (written, Ok(()))
    }

    /// Writes as many lines as the newest file has room for, at least one.
    fn write_some(&mut self, lines: &[Box<[u8]>]) -> io::Result<usize> {
        let full = |e: NoRoom| {
            let why = format!(
                "{} bytes are free, and {} stay free for the data of services",
                e.free, e.reserve
            );
            io::Error::other(why)
        };
        self.room.check().map_err(full)?;
        let mut begun = self.opened()?;
        if begun + lines[0].len() as u64 > self.each && begun > 0 {
            self.turn_over()?;
            begun = self.opened()?;
        }
        let (mut bytes, mut taken) = (Vec::new(), 0);
        for line in lines {
            let end = begun + (bytes.len() + line.len()) as u64;
            if end > self.each && taken > 0 {
                break;
            }
            bytes.extend_from_slice(line);
            taken += 1;
        }
        if let Some((file, len)) = &mut self.file {
            file.write_at(*len, &bytes)?;
            *len += bytes.len() as u64;
        }
        Ok(taken)
    }

    /// Opens the newest file unless it is; returns its length.
    fn opened(&mut self) -> io::Result<u64> {
        if let Some((_, len)) = &self.file {
            return Ok(*len);
        }
        self.dir.create()?;
        self.remove_what_is_too_much()?;
        let file = self.dir.disk().open_or_create(&self.path(0))?;
        let len = file.len()?;
        self.file = Some((file, len));
        Ok(len)
    }

    fn turn_over(&mut self) -> io::Result<()> {
        self.file = None;
        let disk = self.dir.disk();
        for n in (0..FILES.len() - 1).rev() {
            if disk.exists(&self.path(n))? {
                disk.rename(&self.path(n), &self.path(n + 1))?;
            }
        }
        Ok(())
    }

    /// Removes the oldest files that leave no room for a whole new one: an earlier run may have kept more.
    fn remove_what_is_too_much(&self) -> io::Result<()> {
        let disk = self.dir.disk();
        let mut left = self.bytes - self.each;
        for n in 0..FILES.len() {
            if !disk.exists(&self.path(n))? {
                continue;
            }
            let len = disk.open_read(&self.path(n))?.len()?;
            match left.checked_sub(len) {
                // The newest has a share of its own.
                _ if n == 0 && len <= self.each => {}
                Some(rest) => left = rest,
                None => disk.remove(&self.path(n))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: usize, len: usize) -> Box<[u8]> {
        let mut line = format!("{n:08}").into_bytes();
        line.resize(len - 1, b'.');
        line.push(b'\n');
        line.into()
    }

    fn kept(dir: &Path) -> (Vec<usize>, u64) {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for name in FILES.iter().rev() {
            let Ok(text) = std::fs::read_to_string(dir.join(name)) else {
                continue;
            };
            bytes += text.len() as u64;
            all.extend(text.lines().map(|line| line[..8].parse::<usize>().unwrap()));
        }
        (all, bytes)
    }

    #[test]
    fn the_newest_lines_are_kept_in_their_order_and_no_more_than_the_total() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        let files = |bytes| Files::new(Dir::os(&logs), bytes, DiskRoom::unlimited());
        let mut out = files(80_000);
        // Batches of several files' size, and lines after a restart.
        for batch in 0..10 {
            let lines: Vec<_> = (0..300).map(|n| line(batch * 300 + n, 100)).collect();
            assert!(matches!(out.write(&lines), (300, Ok(()))));
            assert!(kept(&logs).1 <= 80_000);
            if batch == 4 {
                out = files(80_000);
            }
        }
        let (all, bytes) = kept(&logs);
        assert!(bytes > 70_000, "{bytes}");
        let first = 3_000 - all.len();
        assert_eq!(all, (first..3_000).collect::<Vec<_>>());
        // A smaller total at the next start.
        let mut out = files(16_000);
        assert!(matches!(out.write(&[line(3_000, 100)]), (1, Ok(()))));
        let (all, bytes) = kept(&logs);
        assert!(bytes <= 16_000 && all.ends_with(&[3_000]), "{bytes}");
        // A line that is larger than a file has one of its own.
        assert!(matches!(out.write(&[line(3_001, 4_000)]), (1, Ok(()))));
        assert!(kept(&logs).0.ends_with(&[3_001]));
    }

    #[test]
    fn lines_that_the_disk_does_not_take_are_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let logs = LogFiles::new();
        let dropped = || logs.sink.dropped.load(Ordering::Relaxed);
        let capacity = LINES.capacity as u64;
        for n in 0..capacity + 5 {
            logs.sink.take(&line(n as usize, 20));
        }
        assert_eq!(dropped(), 5, "the queue is full");
        // A file is where the directory should be.
        let in_the_way = dir.path().join("logs");
        std::fs::write(&in_the_way, "x").unwrap();
        logs.start(&in_the_way, 1 << 20, 0);
        logs.stop();
        assert_eq!(dropped(), 5 + capacity);
    }

    #[test]
    fn nothing_is_written_into_the_reserve_of_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let room = DiskRoom::of(&Dir::os(dir.path()), u64::MAX, SystemClock::shared());
        let mut files = Files::new(Dir::os(dir.path().join("logs")), 1 << 20, room);
        let (written, outcome) = files.write(&[line(0, 20)]);
        assert_eq!(written, 0);
        assert!(outcome.unwrap_err().to_string().contains("bytes are free"));
        assert!(!dir.path().join("logs").exists());
    }

    #[test]
    fn sizes_are_none_or_of_use() {
        assert_eq!(total_size("0B"), Ok(0));
        assert_eq!(total_size("1MiB"), Ok(1 << 20));
        for bad in ["1B", "1023KiB", "5", "1 GiB", "-1B"] {
            assert!(total_size(bad).is_err(), "{bad}");
        }
    }
}
