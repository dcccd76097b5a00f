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

#[test]
fn a_power_cut_at_any_operation_pays_everyone_once() {
    let pins = verify::Pins {
        policy: ring(1),
        manifest: ring(2),
        unsigned: false,
    };
    for at in 1.. {
        let mut cuts = 0;
        for mode in [CrashMode::LoseAll, CrashMode::Each(at)] {
            let (disk, ledger) = (SimDisk::new(), SimLedger::new(10_000));
            let home = Dir::new(Arc::new(disk.clone()), "/home");
            disk.fail_after(at, FaultKind::PowerOff);
            let accepted = epoch(&disk, &home, &ledger).unwrap_or(false);
            cuts += u64::from(disk.is_off());
            disk.crash(mode);
            let mut life = begin(&home, &ledger).expect("it starts after any power cut");
            if !accepted {
                let ask = inputs(&home).expect("no fault any more");
                let code = status(life.ask("e1", ask, false)).0;
                assert!(matches!(code, 200 | 202), "cut {at}, {mode:?}: {code}");
            }
            life.settle_down();
            let run = life.run("e1");
            assert_eq!(run.state, RunState::Settled, "cut {at}, {mode:?}: {run:?}");
            check_paid(&ledger, ROWS);
            let place = dir::of(&home.join("runs"), &tenant(), &run.epoch, false);
            let verified = verify::verify_run_dir(&place, &pins);
            verified.unwrap_or_else(|error| panic!("cut {at}, {mode:?}: {error}"));
            drop(life);
            begin(&home, &ledger).expect("it starts again");
            for name in ["intake", "spool"] {
                let left = home.join(name).list().expect("the power is on");
                assert_eq!(left, [""; 0], "cut {at}, {mode:?}: left in {name}");
            }
        }
        if cuts == 0 {
            assert!(at > 80, "an epoch of {at} operations");
            return;
        }
    }
}
