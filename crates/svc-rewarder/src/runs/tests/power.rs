//! Power cuts at every operation of the disk, from the first input to the last payment.

use std::error::Error;
use std::sync::Arc;

use ron_files::{CrashMode, Dir, FaultKind, SimDisk};
use ron_proto::rewarder::{ImportKind, RunState};
use ron_service::{Store, StoreError};

use super::check_paid;
use super::ledger::SimLedger;
use super::life::{Life, compute, library_in, ring, signed, status, tenant, usage};
use crate::boot::{MIGRATIONS, sweep_spool};
use crate::inputs::import::{Format, Options, Spill, import};
use crate::inputs::source::Target;
use crate::intake::Scratch;
use crate::manifest::{dir, verify};
use crate::runs::{RunAction, db};

/// More payouts than are kept in memory.
const ROWS: usize = 120;
const NOW_MS: u64 = 1_700_000_000_000;

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
    let place = dir::of(&home.join("runs"), &tenant(), &run.epoch, false);
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

#[test]
fn a_power_cut_at_any_operation_pays_everyone_once() {
    let cuts = |at| [CrashMode::LoseAll, CrashMode::Each(at)].map(Event::Cut);
    let last = (1..).find(|at| !cuts(*at).map(|cut| settles_over(*at, cut)).contains(&true));
    assert!(last > Some(80), "an epoch of {last:?} operations");
}

#[test]
fn a_fault_at_any_operation_pays_everyone_once() {
    let faults = [FaultKind::Io, FaultKind::NoSpace].map(Event::Fault);
    let last = (1..).find(|at| !faults.map(|fault| settles_over(*at, fault)).contains(&true));
    assert!(last > Some(80), "an epoch of {last:?} operations");
}
