//! The replicated engine on a host of its own: the sessions of nodes with it take time, are lost, or do not reach it, and each write
//! has any outcome that the contract of `LogStore` names.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ron_ha::contract::{Rig as _, TwoHosts as _};
use ron_ha::memory::{Defect, Fault, MemoryBeat, MemoryEngine, MemoryStore};
use ron_kernel::Deadline;
use ron_service::records::{Engine, EngineAccess, Engines, LogClaim};
use ron_sim::{fault, time};
use ron_tlog::store::{
    Appended, Batch, CarriedId, EngineState, Head, LogBeat, LogSessions, LogStore, LogUpkeep,
    MakeBatch, Once, Refusal, StoreError, StoredBatch, Writer,
};

use crate::chance::{below, ms};
use crate::net::SimNet;

/// The host of the engine.
pub const ENGINE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 13));
/// Identity of the log.
pub const LOG: &str = "ron.local/ledger";
/// Usual time of a request to the engine, and of its answer.
const WAY: Duration = Duration::from_micros(200);
/// Longest time for which a tail that only the primary has may be read before the primary is lost.
const TAIL_MS: u64 = 120;

/// For how long a node does not reach the engine after an answer was lost: mostly until the other node has claimed the log.
const LOST_MS: std::ops::Range<u64> = 1_000..6_000;

/// How often what happens to a call, in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Ways that take up to `slow` longer.
    pub slow_ways: u32,
    pub slow: Duration,
    /// Writes with an outcome that is not `done`.
    pub faults: u32,
    /// Of the writes that only the primary has got: those after which it is lost soon.
    pub losses: u32,
}

/// The engine, as its operators and the world see it. Clones are of the same one.
#[derive(Clone, Debug)]
pub struct Far {
    pub engine: MemoryEngine,
    net: SimNet,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    weather: Weather,
    is_away: bool,
    /// Until when a node whose answer was lost does not reach it.
    cuts: BTreeMap<IpAddr, Instant>,
}

impl Far {
    pub fn new(net: &SimNet) -> Self {
        Self {
            engine: MemoryEngine::new(Defect::None),
            net: net.clone(),
            shared: Arc::default(),
        }
    }

    /// The engines as the node on this host has them.
    pub fn of_node(&self, ip: IpAddr) -> Arc<dyn Engines> {
        Arc::new(Way {
            far: self.clone(),
            ip,
        })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_weather(&self, weather: Weather) {
        self.shared().weather = weather;
    }

    /// Every node reaches it again.
    pub fn clear(&self) {
        let mut shared = self.shared();
        shared.weather = Weather::default();
        shared.cuts.clear();
    }

    /// No call reaches it, until it is back.
    pub fn set_away(&self, is_away: bool) {
        self.shared().is_away = is_away;
    }

    /// The primary is lost with what its standby does not have, and the standby takes its place.
    pub fn fail_over(&self) {
        if self.engine.unreplicated() > 0 {
            fault::happened("a provisional tail is lost");
        }
        self.engine.fail_over();
    }

    /// All batches of the log.
    pub fn batches(&self) -> Vec<Batch> {
        let mut store = self.engine.store(LOG, "auditor");
        let all = store.read_from(0, usize::MAX, Deadline::within(WAY));
        let all = all.expect("the engine in memory answers");
        all.into_iter().map(|stored| stored.batch).collect()
    }
}

/// The way of one node to the engine.
#[derive(Clone, Debug)]
struct Way {
    far: Far,
    ip: IpAddr,
}

impl Engines for Way {
    fn log_sessions(
        &self,
        _engine: &Engine,
        log: &LogClaim<'_>,
        _access: &EngineAccess,
    ) -> io::Result<LogSessions> {
        let session = || Session {
            way: self.clone(),
            store: self.far.engine.store(log.log, log.holder),
            is_undecided: false,
        };
        Ok(LogSessions {
            batches: Box::new(session()),
            checkpoints: Box::new(session()),
            beat: Box::new(Beat {
                way: self.clone(),
                beat: self.far.engine.beat(log.log),
            }),
            upkeep: Box::new(Upkeep(self.clone())),
        })
    }
}

fn unavailable(why: &str) -> StoreError {
    Refusal::Unavailable(why.to_owned()).into()
}

impl Way {
    /// One way takes its time, at most until the deadline.
    fn takes(&self, deadline: Deadline) {
        let weather = self.far.shared().weather;
        let mut takes = WAY / 2 + WAY * below(100) as u32 / 100;
        if weather.slow_ways > 0
            && fault::happens("an answer of the engine is slow", weather.slow_ways)
        {
            takes += ms(below(weather.slow.as_millis() as u64));
        }
        time::sleep(takes.min(deadline.remaining()));
    }

    fn is_cut(&self) -> bool {
        let shared = self.far.shared();
        let cut = shared.cuts.get(&self.ip);
        shared.is_away
            || cut.is_some_and(|until| *until > time::now())
            || self.far.net.are_parted(self.ip, ENGINE)
    }

    /// A request arrives, or nothing was sent.
    fn arrives(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.takes(deadline);
        if self.is_cut() {
            fault::happened("the engine is not reached");
            // No connection: refused at once, or not answered.
            if below(2) == 0 {
                time::sleep(deadline.remaining());
            }
            return Err(unavailable("it is not reached"));
        }
        if deadline.expired() {
            return Err(unavailable("it has not answered in time"));
        }
        Ok(())
    }

    /// A read, which may end without an answer.
    fn reads<T>(
        &self,
        deadline: Deadline,
        read: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.arrives(deadline)?;
        let read = read()?;
        self.takes(deadline);
        if self.is_cut() {
            time::sleep(deadline.remaining());
        }
        if deadline.expired() {
            return Err(unavailable("it has not answered in time"));
        }
        Ok(read)
    }

    /// What becomes of the next write.
    fn fate(&self) -> Option<Fault> {
        let weather = self.far.shared().weather;
        if weather.faults == 0 || u64::from(weather.faults) <= below(1_000_000) {
            return None;
        }
        let (fate, name) = match below(6) {
            0 => (Fault::Refused, "a write is refused"),
            1 => (Fault::UnknownDone, "the answer of a done write is lost"),
            2 => (Fault::UnknownNot, "a write is lost"),
            3 => (Fault::UnknownLate, "a write comes late"),
            _ => (Fault::UnknownLocal, "a write is at the primary alone"),
        };
        fault::happened(name);
        Some(fate)
    }

    fn writes<T>(
        &self,
        deadline: Deadline,
        write: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.arrives(deadline)?;
        let fate = self.fate();
        if let Some(fate) = fate {
            self.far.engine.fail_next(fate);
        }
        // Nothing else runs in between.
        let written = write();
        self.far.engine.forget_faults();
        if !matches!(written, Err(StoreError::Unknown(_))) {
            self.takes(deadline);
            return written;
        }
        let losses = self.far.shared().weather.losses;
        if fate == Some(Fault::UnknownLocal) && u64::from(losses) > below(1_000_000) {
            time::sleep(ms(below(TAIL_MS)));
            self.far.fail_over();
        }
        if fate.is_some() && below(4) == 0 {
            fault::happened("a node loses the engine with an answer");
            let until = time::now() + ms(LOST_MS.start + below(LOST_MS.end - LOST_MS.start));
            self.far.shared().cuts.insert(self.ip, until);
        }
        // The connection is lost, or the answer does not come.
        if fate.is_none() || below(3) == 0 {
            time::sleep(deadline.remaining());
        }
        written
    }
}

/// A session for batches or checkpoints.
#[derive(Debug)]
struct Session {
    way: Way,
    store: MemoryStore,
    /// An append of it has no known outcome.
    is_undecided: bool,
}

impl LogStore for Session {
    fn head(&mut self, deadline: Deadline) -> Result<Head, StoreError> {
        self.way.reads(deadline, || self.store.head(deadline))
    }

    fn claim(&mut self, seen: u64, deadline: Deadline) -> Result<Head, StoreError> {
        let claimed = self
            .way
            .writes(deadline, || self.store.claim(seen, deadline));
        if claimed.as_ref().is_ok_and(|head| head.epoch > 1) {
            fault::happened("the log is claimed again");
        }
        if claimed == Err(StoreError::Fenced) && self.is_undecided {
            fault::happened("a write without an outcome is fenced");
        }
        self.is_undecided &= matches!(
            claimed,
            Err(StoreError::Unknown(_) | StoreError::Refused(_))
        );
        claimed
    }

    fn append_guarded(
        &mut self,
        version: Option<u64>,
        writer: Writer,
        once: &[Once],
        batch: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        let appended = self.way.writes(deadline, || {
            let store = &mut self.store;
            store.append_guarded(version, writer, once, batch, deadline)
        });
        self.is_undecided |= matches!(appended, Err(StoreError::Unknown(_)));
        if appended == Err(StoreError::Fenced) {
            fault::happened("a writer is fenced");
        }
        appended
    }

    fn append_run(
        &mut self,
        epoch: u64,
        run: &[Batch],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        self.way
            .writes(deadline, || self.store.append_run(epoch, run, deadline))
    }

    fn read_from(
        &mut self,
        first: u64,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        self.way.reads(deadline, || {
            self.store.read_from(first, bytes_max, deadline)
        })
    }

    fn confirm(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        self.way.writes(deadline, || self.store.confirm(deadline))
    }

    fn put_checkpoint(
        &mut self,
        writer: Writer,
        size: u64,
        note: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        self.way.writes(deadline, || {
            self.store.put_checkpoint(writer, size, note, deadline)
        })
    }

    fn checkpoint(&mut self, deadline: Deadline) -> Result<Option<(u64, String)>, StoreError> {
        self.way.reads(deadline, || self.store.checkpoint(deadline))
    }
}

#[derive(Debug)]
struct Beat {
    way: Way,
    beat: MemoryBeat,
}

impl LogBeat for Beat {
    fn beat(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        self.way.reads(deadline, || self.beat.beat(deadline))
    }

    fn observe(&mut self, deadline: Deadline) -> Result<u64, StoreError> {
        self.way.reads(deadline, || self.beat.observe(deadline))
    }
}

/// The engine in memory needs no tables.
#[derive(Debug)]
struct Upkeep(Way);

impl LogUpkeep for Upkeep {
    fn install(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        self.0.reads(deadline, || Ok(()))
    }

    fn tend(&mut self, deadline: Deadline) -> Result<EngineState, StoreError> {
        self.0.reads(deadline, || Ok(EngineState::default()))
    }

    fn carry_ids(&mut self, _ids: &[CarriedId], _deadline: Deadline) -> Result<(), StoreError> {
        Err(Refusal::Rejected("nothing is moved here".to_owned()).into())
    }

    fn ids_after(
        &mut self,
        _scope: &str,
        _after: &str,
        _limit: usize,
        _deadline: Deadline,
    ) -> Result<Vec<CarriedId>, StoreError> {
        Err(Refusal::Rejected("nothing is moved here".to_owned()).into())
    }

    fn remove(&mut self, _deadline: Deadline) -> Result<(), StoreError> {
        Err(Refusal::Rejected("nothing is rehearsed here".to_owned()).into())
    }
}

/// Any weather of the engine.
pub fn any_weather() -> Weather {
    Weather {
        slow_ways: [0, 20_000, 200_000][below(3) as usize],
        slow: ms([5, 80, 1_200][below(3) as usize]),
        faults: [0, 50_000, 300_000][below(3) as usize],
        losses: [0, 300_000, 1_000_000][below(3) as usize],
    }
}

/// The standby of the engine is away for a while: writes wait.
pub fn lose_standby(far: &Far, time: Duration) {
    fault::happened("the engine's standby is away");
    far.engine.set_standby(false);
    time::sleep(time);
    far.engine.set_standby(true);
}
