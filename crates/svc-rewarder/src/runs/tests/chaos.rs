//! Random histories: crashes, lost calls and answers, an unavailable ledger, a short pool, the loss
//! of all of the service's own state, other inputs for the same epoch, in any order and at any
//! step. The payments of an epoch are those of one manifest, or the epoch is not closed; once
//! everything works again, the epoch gets closed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ron_files::Dir;
use ron_proto::ledger::EpochState;
use ron_proto::rewarder::RunState;

use super::ledger::SimLedger;
use super::life::{Life, inputs, status};
use crate::manifest::{dir, verify};

const EPOCHS: [&str; 2] = ["e1", "e2"];
const FUNDS: u128 = 20_000;

/// Number of rounds; the long test sets `RON_CHAOS_ROUNDS=10000`.
fn rounds() -> u64 {
    let set = std::env::var("RON_CHAOS_ROUNDS").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(60)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn begin(root: &Path, ledger: &Arc<SimLedger>) -> Life {
    let mut life = Life::begin(root, ledger, true);
    life.emitter.retry_pause = Duration::ZERO;
    life
}

fn steps(life: &mut Life, count: u64) {
    for _ in 0..count {
        if !life.step() {
            return;
        }
    }
}

/// Deletes all state of the service, including the inputs.
fn forget(root: &Path) {
    for entry in std::fs::read_dir(root).expect("there").flatten() {
        let path = entry.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.expect("ours");
    }
}

struct Chaos {
    rng: Rng,
    root: tempfile::TempDir,
    ledger: Arc<SimLedger>,
    rows: [usize; 2],
}

impl Chaos {
    fn ask(&self, life: &mut Life, epoch: usize, more: usize) {
        let (name, rows) = (EPOCHS[epoch], self.rows[epoch] + more);
        let ask = inputs(self.root.path(), name, rows, false);
        let _ = life.ask(name, ask, false);
    }

    fn event(&mut self, life: Life) -> Life {
        let mut life = life;
        let count = self.rng.below(8);
        steps(&mut life, count);
        let soon = self.ledger.calls.load(Ordering::SeqCst) + self.rng.below(4);
        let epoch = self.rng.below(2) as usize;
        match self.rng.below(8) {
            0 => self.ledger.lose(soon, false),
            1 => self.ledger.lose(soon, true),
            2 => self.ledger.away.store(1, Ordering::SeqCst),
            3 => self.ledger.away.store(0, Ordering::SeqCst),
            4 => self.ask(&mut life, epoch, 1),
            5 => self.ask(&mut life, epoch, 0),
            6 => {
                drop(life);
                forget(self.root.path());
                life = begin(self.root.path(), &self.ledger);
                self.ask(&mut life, epoch, 0);
            }
            _ => {
                drop(life);
                life = begin(self.root.path(), &self.ledger);
            }
        }
        life
    }

    /// Ends all faults and requests the epochs until they are closed.
    fn heal(&self, mut life: Life) {
        self.ledger.away.store(0, Ordering::SeqCst);
        for lost in [&self.ledger.lose_call, &self.ledger.lose_answer] {
            lost.store(u64::MAX, Ordering::SeqCst);
        }
        let topped = FUNDS - self.start();
        *self
            .ledger
            .books
            .lock()
            .balances
            .entry("pool:default/test".into())
            .or_default() += topped;
        for (at, epoch) in EPOCHS.iter().enumerate() {
            // The ledger may have bound the epoch to either of the requested inputs.
            for more in [0, 1] {
                drop(life);
                life = begin(self.root.path(), &self.ledger);
                life.settle_down();
                self.ask(&mut life, at, more);
                life.settle_down();
            }
            self.check_epoch(&life, epoch);
        }
        let books = self.ledger.books.lock();
        assert_eq!(
            books.balances.values().sum::<u128>(),
            FUNDS,
            "nothing is made or lost"
        );
    }

    /// The pool is short in one history of three.
    fn start(&self) -> u128 {
        if self.rows[0].is_multiple_of(3) {
            9_999
        } else {
            FUNDS
        }
    }

    fn check_epoch(&self, life: &Life, epoch: &str) {
        let asset = "ron".parse().expect("an asset");
        let id = (super::tenant(), epoch.parse().expect("an epoch"), asset);
        let books = self.ledger.books.lock();
        let doc = books.epochs.get(&id).expect("opened in the end");
        assert_eq!(
            doc.state,
            EpochState::Closed,
            "{epoch}: {:?}",
            life.run(epoch)
        );
        let paid: u128 = books
            .paid
            .iter()
            .filter(|((of, _), _)| of == epoch)
            .map(|(_, n)| n)
            .sum();
        assert_eq!(
            (paid, doc.paid_minor.0),
            (doc.amount_minor.0, doc.amount_minor.0)
        );
        let run = life.run(epoch);
        if run.state == RunState::Settled {
            let dir = dir::of(&Dir::os(self.root.path().join("runs")), &id.0, &id.1, None);
            let manifest = verify::read_manifest(&dir).expect("kept");
            assert_eq!(manifest.commitment, doc.commitment);
            assert_eq!(
                manifest.payouts.expect("paid").total_minor,
                doc.amount_minor
            );
        } else {
            let code = run.reason.expect("a reason").code;
            assert_eq!(code, "epoch_conflict", "bound to the other inputs");
        }
    }
}

#[test]
fn random_faults_pay_one_manifest_or_close_nothing() {
    let seed = std::env::var("RON_SEED").ok().and_then(|v| v.parse().ok());
    let seed: u64 = seed.unwrap_or(20_261_121);
    let memory = Path::new("/dev/shm");
    for round in 0..rounds() {
        let mut rng = Rng(seed.wrapping_add(round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let rows = [1 + rng.below(40) as usize, 1 + rng.below(40) as usize];
        let root = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let mut chaos = Chaos {
            rng,
            root: root.expect("a directory"),
            ledger: SimLedger::new(0),
            rows,
        };
        chaos.ledger = SimLedger::new(chaos.start());
        let mut life = begin(chaos.root.path(), &chaos.ledger);
        let ask = inputs(chaos.root.path(), EPOCHS[0], rows[0], false);
        assert_eq!(status(life.ask(EPOCHS[0], ask, false)).0, 202);
        for _ in 0..chaos.rng.below(9) {
            life = chaos.event(life);
        }
        chaos.heal(life);
    }
}
