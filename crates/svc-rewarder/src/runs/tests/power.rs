//! An epoch on a simulated disk: power cuts and faults at every operation, from the first input to the last payment.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ron_files::{CrashMode, Dir, FaultKind, SimDisk};
use ron_kernel::Deadline;
use ron_proto::rewarder::{ImportKind, RunState};
use ron_service::{Store, StoreError};

use super::check_paid;
use super::ledger::SimLedger;
use super::life::{Life, compute, library_in, ring, signed, status, tenant, usage};
use crate::boot::{MIGRATIONS, sweep_spool};
use crate::inputs::import::{Format, Options, Spill, import};
use crate::inputs::snapshot::Sealed;
use crate::inputs::source::{READABLE, Target};
use crate::intake::Scratch;
use crate::manifest::{dir, verify};
use crate::runs::{RunAction, db};

/// More payouts than are kept in memory.
const ROWS: usize = 120;
const NOW_MS: u64 = 1_700_000_000_000;
const KEEP: Duration = Duration::from_millis(5);

type Tried<T> = Result<T, Box<dyn Error>>;

/// Stores policy and usage, as the intake does; returns the request to compute them.
fn inputs(home: &Dir) -> Tried<RunAction> {
    let library = library_in(home);
    let policy = library.verify(&signed(10_000)).expect("signed");
    library.put_policy(&tenant(), &policy)?;
    let scratch = Scratch::open(home.join("intake"))?;
    let temporary = scratch.temporary();
    let options = Options {
        target: Target::file(&**home.disk(), temporary.path())?,
        spill: Some(Spill {
            memory: 4 << 10,
            dir: scratch.dir().join("import"),
        }),
        ..Options::in_memory(ImportKind::Totals)
    };
    let text = usage(ROWS);
    let sealed = import([(Format::Csv, text.as_bytes())], options);
    let sealed = sealed.map_err(|(_, error)| error)?;
    // An upload in the canonical form is not flushed before the library has it.
    let uploaded = scratch.temporary();
    let file = home.disk().create_with_mode(uploaded.path(), READABLE)?;
    file.write_at(0, &sealed.bytes()?)?;
    let sealed = Sealed::open(&**home.disk(), uploaded.path())?;
    library.put_snapshot(&tenant(), &sealed, NOW_MS)?;
    Ok(compute("e1", &sealed, &policy, None, false))
}

fn begin(home: &Dir, ledger: &Arc<SimLedger>) -> Tried<Life> {
    let store = Store::open_in(home, "rewarder.db", MIGRATIONS)?;
    let runs = store.read(|db| Ok::<_, StoreError>(db::load(db)?))?;
    sweep_spool(home)?;
    Ok(Life::over(home, (Box::new(store), runs), ledger, true)?)
}

/// Computes and settles an epoch until the end or the fault; whether the request was accepted.
fn epoch(disk: &SimDisk, home: &Dir, ledger: &Arc<SimLedger>) -> Tried<bool> {
    let ask = inputs(home)?;
    let mut life = begin(home, ledger)?;
    let accepted = status(life.ask("e1", ask, false)).0 == 202;
    while !disk.is_off() && life.step() {}
    Ok(accepted)
}

/// What happens at an operation of the disk, and to the service after it.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The power fails, and the machine starts again.
    Cut(CrashMode),
    /// The operation fails, and the process is restarted later.
    Fault(FaultKind),
}

/// Settles an epoch over an event at the `at`-th operation of the disk; false when it was over before.
fn settles_over(at: u64, event: Event) -> bool {
    let (disk, ledger) = (SimDisk::new(), SimLedger::new(10_000));
    let home = Dir::new(Arc::new(disk.clone()), "/home");
    let kind = match event {
        Event::Cut(_) => FaultKind::PowerOff,
        Event::Fault(kind) => kind,
    };
    disk.fail_after(at, kind);
    let accepted = epoch(&disk, &home, &ledger).unwrap_or(false);
    let happened = disk.operations() >= at;
    match event {
        Event::Cut(mode) => disk.crash(mode),
        Event::Fault(_) => disk.kill(),
    }
    let mut life = begin(&home, &ledger).expect("it starts again");
    // After a power cut an accepted request goes on by itself. A failed run waits for another request.
    if !accepted || matches!(event, Event::Fault(_)) {
        let ask = inputs(&home).expect("no fault any more");
        let code = status(life.ask("e1", ask, false)).0;
        assert!(matches!(code, 200 | 202), "{event:?} at {at}: {code}");
    }
    life.settle_down();
    let run = life.run("e1");
    assert_eq!(run.state, RunState::Settled, "{event:?} at {at}: {run:?}");
    check_paid(&ledger, ROWS);
    let pins = verify::Pins {
        policy: ring(1),
        manifest: ring(2),
        unsigned: false,
    };
    let place = dir::of(&home.join("runs"), &tenant(), &run.epoch, None);
    let verified = verify::verify_run_dir(&place, &pins);
    verified.unwrap_or_else(|error| panic!("{event:?} at {at}: {error}"));
    drop(life);
    begin(&home, &ledger).expect("it starts again");
    for name in ["intake", "spool"] {
        let left = home.join(name).list().expect("the power is on");
        assert_eq!(left, [""; 0], "{event:?} at {at}: left in {name}");
    }
    happened
}

/// Tries the events at each operation, until none of them happens any more.
fn each(events: impl Fn(u64) -> [Event; 2]) {
    for at in 1.. {
        if !events(at)
            .map(|event| settles_over(at, event))
            .contains(&true)
        {
            assert!(at > 80, "an epoch of {at} operations");
            return;
        }
    }
}

#[test]
fn a_power_cut_at_any_operation_pays_everyone_once() {
    each(|at| [CrashMode::LoseAll, CrashMode::Each(at)].map(Event::Cut));
}

#[test]
fn a_fault_at_any_operation_pays_everyone_once() {
    each(|_| [FaultKind::Io, FaultKind::NoSpace].map(Event::Fault));
}

#[test]
fn what_is_past_its_retention_goes_from_any_disk() {
    let (disk, ledger) = (SimDisk::new(), SimLedger::new(10_000));
    let home = Dir::new(Arc::new(disk.clone()), "/home");
    assert!(epoch(&disk, &home, &ledger).expect("no fault"));
    let mut life = begin(&home, &ledger).expect("it starts again");
    let retention = &mut life.writer.retention;
    (retention.artifacts, retention.snapshots) = (KEEP, KEEP);
    let stored = || library_in(&home).stored_snapshots().expect("readable");
    let dates: Vec<u64> = stored().iter().map(|stored| stored.renewed_ms).collect();
    assert_eq!(dates, [NOW_MS], "when it was stored");
    life.shutdown.wait(Deadline::within(KEEP * 2));
    for _ in 0..2 {
        life.writer.sweep(&life.shutdown);
        for kind in ["artifacts", "snapshot"] {
            let swept = life.writer.retention.swept.with_label_values(&[kind]);
            assert_eq!(swept.get(), 1, "{kind}");
        }
    }
    assert_eq!(stored().len(), 0);
    let runs = home.join("runs").list().expect("the power is on");
    assert_eq!(runs, [""; 0]);
}
