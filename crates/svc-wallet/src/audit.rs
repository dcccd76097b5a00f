//! The audit stream: one JSON line per accepted or refused operation, for operators. It is bounded
//! and lossy; losses are counted. The durable record is the ledger.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{Dir, DiskFile};
use ron_http::Trace;
use ron_kernel::{Counter, Deadline, Receiver, Recv, Sender, SharedClock, ThreadCtx};
use ron_proto::ledger::{EntryKey, PrincipalName, RequestKey};
use ron_proto::{Tenant, Timestamp};
use serde::Serialize;

use crate::topology::AUDIT_QUEUE;

/// Maximum bytes of one file.
const FILE_BYTES: u64 = 32 << 20;
/// Names of the records of operations in `audit` of the data directory: the file that is being written, then older ones.
pub const OPERATION_FILES: [&str; 4] = [
    "operations.jsonl",
    "operations.jsonl.1",
    "operations.jsonl.2",
    "operations.jsonl.3",
];
/// Maximum lines of one write: all that the queue holds.
const LINES: usize = AUDIT_QUEUE.capacity;
/// How long lines gather before they are written. Waking the thread for each of them costs the committers more than
/// making the line does.
const GATHER: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Serialize)]
pub struct Line {
    ts: Timestamp,
    tenant: Tenant,
    principal: PrincipalName,
    op: &'static str,
    key: EntryKey,
    /// `done`, `replayed`, `unknown`, or the code of the refusal.
    outcome: &'static str,
    /// Sequence of its ledger entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    /// The request: for a repeated one, that which made the operation.
    #[serde(rename = "request_id", skip_serializing_if = "Option::is_none")]
    request: Option<Trace>,
}

/// Sends lines to the audit thread.
#[derive(Debug, Clone)]
pub struct Audit {
    lines: Sender<Line>,
    clock: SharedClock,
}

impl Audit {
    pub const fn new(lines: Sender<Line>, clock: SharedClock) -> Self {
        Self { lines, clock }
    }

    /// Records one operation; never waits.
    pub fn record(
        &self,
        key: &RequestKey,
        op: &'static str,
        outcome: &'static str,
        (seq, request): (Option<u64>, Option<&Trace>),
    ) {
        let line = Line {
            ts: Timestamp(self.clock.unix_ms()),
            tenant: key.tenant.clone(),
            principal: key.principal.clone(),
            op,
            key: key.key.clone(),
            outcome,
            seq,
            request: request.cloned(),
        };
        // The queue drops its oldest line when it is full, and counts the loss.
        let _ = self.lines.try_send(line);
    }
}

/// The thread's body: ends when shut down and the queue is empty. Without a directory lines are
/// discarded; a failed write is counted in `errors`.
pub fn run(ctx: &ThreadCtx, lines: &Receiver<Line>, dir: Option<Dir>, errors: &Counter) {
    let mut out = dir.map(Stream::new);
    let mut some = Vec::new();
    loop {
        match lines.recv(&ctx.shutdown, Deadline::within(Duration::from_secs(60))) {
            Recv::Item(line) => {
                some.push(line);
                ctx.shutdown.wait(Deadline::within(GATHER));
            }
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => {
                if lines.drain_into(&mut some, LINES) == 0 {
                    return;
                }
            }
        }
        let room = LINES.saturating_sub(some.len());
        lines.drain_into(&mut some, room);
        if let Some(out) = &mut out
            && let Err(why) = out.write(&some)
        {
            errors.inc();
            tracing::warn!(event = "audit_lines_lost", lines = some.len(), reason = %why);
        }
        some.clear();
    }
}

/// The files of [`OPERATION_FILES`].
#[derive(Debug)]
struct Stream {
    dir: Dir,
    /// The newest file and its length; opened with the first line.
    file: Option<(Arc<dyn DiskFile>, u64)>,
}

impl Stream {
    const fn new(dir: Dir) -> Self {
        Self { dir, file: None }
    }

    fn path(&self, n: usize) -> PathBuf {
        self.dir.file(OPERATION_FILES[n])
    }

    fn write(&mut self, lines: &[Line]) -> io::Result<()> {
        let done = self.try_write(lines);
        if done.is_err() {
            self.file = None; // reopen at the next write
        }
        done
    }

    fn try_write(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(lines.len() * 128);
        for line in lines {
            serde_json::to_writer(&mut bytes, line)?;
            bytes.push(b'\n');
        }
        if self.file.as_ref().is_some_and(|(_, n)| *n >= FILE_BYTES) {
            self.file = None;
            for n in (0..OPERATION_FILES.len() - 1).rev() {
                let disk = self.dir.disk();
                if disk.exists(&self.path(n))? {
                    disk.rename(&self.path(n), &self.path(n + 1))?;
                }
            }
        }
        if self.file.is_none() {
            self.dir.create()?;
            let file = self.dir.disk().open_or_create(&self.path(0))?;
            let len = file.len()?;
            self.file = Some((file, len));
        }
        if let Some((file, len)) = &mut self.file {
            file.write_at(*len, &bytes)?;
            *len += bytes.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_turned_over_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = Stream::new(Dir::os(dir.path()));
        let line = Line {
            ts: Timestamp(0),
            tenant: "t".parse().unwrap(),
            principal: "p".parse().unwrap(),
            op: "issue",
            key: "k".parse().unwrap(),
            outcome: "done",
            seq: Some(3),
            request: Trace::new("find-me-42"),
        };
        out.write(std::slice::from_ref(&line)).unwrap();
        let text = std::fs::read_to_string(out.path(0)).unwrap();
        assert_eq!(
            text,
            "{\"ts\":\"1970-01-01T00:00:00.000Z\",\"tenant\":\"t\",\"principal\":\"p\",\"op\":\"issue\",\"key\":\"k\",\"outcome\":\"done\",\"seq\":3,\"request_id\":\"find-me-42\"}\n"
        );
        for _ in 0..6 {
            out.file.as_mut().unwrap().1 = FILE_BYTES;
            out.write(std::slice::from_ref(&line)).unwrap();
        }
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, OPERATION_FILES.len());
        assert_eq!(std::fs::read_to_string(out.path(3)).unwrap(), text);
    }
}
