//! A disk whose syncs can be blocked, and what the KMS does meanwhile: signatures wait for their leaves, room runs out, an
//! overdue checkpoint is reported.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ron_files::{Disk, DiskFile, DiskLock, SimDisk};
use ron_http::Response;
use ron_kernel::{Deadline, ReplyWaiter, Shutdown};
use ron_proto::kms::{PayloadPolicy, SignBatch, SignItem, SignRequest};
use ron_proto::values::Alg;

use super::{Rig, memory_settings, signed};
use crate::audit::leaf::{Leaf, OK};

/// Blocks the syncs of files whose name ends in this.
#[derive(Debug)]
struct Gate {
    of: &'static str,
    closed: AtomicBool,
    fail: AtomicBool,
    held: AtomicU64,
}

#[derive(Clone, Debug)]
struct GateDisk {
    inner: SimDisk,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct GateFile {
    inner: Arc<dyn DiskFile>,
    gate: Option<Arc<Gate>>,
}

fn pause(ms: u64) {
    let (_fire, never) = Shutdown::pair();
    never.wait(Deadline::within(Duration::from_millis(ms)));
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Deadline::within(Duration::from_secs(10));
    while !holds() {
        assert!(!until.expired(), "not in time: {what}");
        pause(5);
    }
}

impl GateDisk {
    fn new(of: &'static str) -> Self {
        let gate = Gate {
            of,
            closed: AtomicBool::new(false),
            fail: AtomicBool::new(false),
            held: AtomicU64::new(0),
        };
        Self {
            inner: SimDisk::new(),
            gate: Arc::new(gate),
        }
    }

    fn close(&self) {
        self.gate.closed.store(true, Ordering::SeqCst);
    }

    fn open(&self, fail: bool) {
        self.gate.fail.store(fail, Ordering::SeqCst);
        self.gate.closed.store(false, Ordering::SeqCst);
    }

    fn guard(&self, path: &Path, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let guarded = path.to_string_lossy().ends_with(self.gate.of);
        let gate = guarded.then(|| self.gate.clone());
        Arc::new(GateFile { inner, gate })
    }
}

impl Disk for GateDisk {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open_read(path)
    }
    fn open_write(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.guard(path, self.inner.open_write(path)?))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.guard(path, self.inner.create(path)?))
    }
    fn open_or_create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.guard(path, self.inner.open_or_create(path)?))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DiskLock>>> {
        self.inner.lock(path)
    }
}

impl DiskFile for GateFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            if gate.closed.load(Ordering::SeqCst) {
                gate.held.fetch_add(1, Ordering::SeqCst);
            }
            while gate.closed.load(Ordering::SeqCst) {
                pause(1);
            }
            if gate.fail.load(Ordering::SeqCst) {
                return Err(io::Error::other("the device failed after a long time"));
            }
        }
        self.inner.sync_data()
    }
}

/// Whether this cause stops the service.
fn not_ready_for(rig: &Rig, cause: &str) -> bool {
    let now = ron_service::readiness(&rig.ready, &rig.sup);
    assert_eq!(now.ready, now.missing.is_empty());
    now.missing.iter().any(|missing| missing == cause)
}

/// Credits of the tests: the allowed minimum.
const ROOM: usize = 1000;

/// More requests than there is room for while a sync hangs: as many signatures are made as leaves have room, none of them leaves,
/// and the other requests are refused before anything is signed. Then the sync returns, with success or an error.
fn blocked_sync(fails: bool) {
    let disk = GateDisk::new(".seg");
    let mut settings = memory_settings();
    settings.keys.audit_queue = ROOM;
    settings.keys.sign_queue = 4 * ROOM;
    settings.keys.reserve_wait = Duration::from_millis(2);
    let rig = Rig::start_on(settings, Some(Arc::new(disk.clone()))).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let metrics = &rig.engine.kms.metrics;
    let answered = || {
        let ok = metrics.ops.with_label_values(&["sign", "ed25519", OK]);
        ok.get()
    };
    let refused = || metrics.rejects.with_label_values(&["busy"]).get();
    let durable = rig.engine.kms.log_size();
    disk.close();
    let sent: Vec<ReplyWaiter<Response>> = (0..ROOM + 300)
        .map(|n| {
            let request = SignRequest::message(doc.key.clone(), n.to_string().into_bytes());
            rig.send_sign(&rig.caller, request)
        })
        .collect();
    eventually("all but those with room are refused", || refused() >= 300);
    assert_eq!(disk.gate.held.load(Ordering::SeqCst), 1);
    assert_eq!(
        metrics.evidence.signatures_made.get(),
        ROOM as u64,
        "no more than there is room for"
    );
    assert_eq!(
        answered(),
        0,
        "a signature left before its leaf was durable"
    );
    assert_eq!(rig.engine.kms.log_size(), durable);
    eventually("the disk is reported", || not_ready_for(&rig, "disk"));
    disk.open(fails);
    let got: Vec<_> = sent.into_iter().map(Rig::wait).collect();
    let with = |status: u16| got.iter().filter(|g| g.status == status).count();
    if fails {
        assert_eq!((with(200), with(503), with(429)), (0, ROOM, 300));
        assert!(!rig.ready.snapshot().ready);
    } else {
        assert_eq!((with(200), with(429)), (ROOM, 300));
        let reader = rig.engine.reader.clone().expect("a log");
        let mut seen = std::collections::BTreeSet::new();
        for answer in got.iter().filter(|g| g.status == 200).map(signed) {
            let leaf = Leaf::parse(&reader.entry(answer.receipt.index).expect("durable"));
            assert_eq!(leaf.expect("a leaf").result, OK);
            assert!(seen.insert(answer.receipt.index), "one leaf each");
        }
    }
    assert_eq!(metrics.evidence.signatures_made.get(), ROOM as u64);
    eventually("the disk answers", || !not_ready_for(&rig, "disk"));
    let timeouts = &rig.sup.metrics().io_timeouts;
    assert_eq!(timeouts.with_label_values(&["audit"]).get(), 1);
    rig.sup.drain(Duration::from_secs(5));
}

#[test]
fn a_sync_that_hangs_lets_no_signature_out() {
    blocked_sync(false);
}

#[test]
fn a_sync_that_hangs_and_then_fails_lets_no_signature_out() {
    blocked_sync(true);
}

#[test]
fn a_checkpoint_that_does_not_come_flips_readiness() {
    let disk = GateDisk::new("checkpoint.tmp");
    let mut settings = memory_settings();
    settings.keys.checkpoint_interval = Duration::from_millis(20);
    let rig = Rig::start_on(settings, Some(Arc::new(disk.clone()))).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let request = || SignRequest::message(doc.key.clone(), *b"x");
    eventually("ready", || rig.ready.snapshot().ready);
    disk.close();
    assert_eq!(rig.sign(request()).status, 200);
    eventually("late", || {
        let state = rig.ready.snapshot();
        !state.ready && state.missing.iter().any(|c| c == "checkpoint")
    });
    assert_eq!(rig.sign(request()).status, 200, "signing goes on meanwhile");
    disk.open(false);
    eventually("ready again", || rig.ready.snapshot().ready);
    assert!(rig.engine.kms.metrics.checkpoint_late.get() >= 1);
    assert_eq!(rig.engine.kms.metrics.integrity_failed.get(), 0);
    rig.stop();
}

#[test]
fn many_leaves_bring_a_checkpoint_before_its_time() {
    let mut settings = memory_settings();
    settings.keys.checkpoint_interval = Duration::from_secs(30);
    settings.keys.checkpoint_ops = 100;
    let rig = Rig::start(settings, Some(SimDisk::new())).expect("starts");
    let doc = rig.create("app", Alg::Ed25519, PayloadPolicy::Any, 1);
    let reader = rig.engine.reader.clone().expect("a log");
    let before = reader.checkpoint_size();
    let batch = |n: usize| SignBatch {
        key: Some(doc.key.clone().into()),
        version: None,
        items: vec![
            SignItem {
                message: Some(b"m".to_vec().into()),
                ..SignItem::default()
            };
            n
        ],
    };
    rig.sign_batch(batch(50));
    pause(100);
    assert_eq!(reader.checkpoint_size(), before, "not yet");
    rig.sign_batch(batch(60));
    eventually("a checkpoint", || reader.checkpoint_size() >= before + 110);
    rig.stop();
}
