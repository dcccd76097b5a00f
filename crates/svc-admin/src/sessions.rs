//! Sessions of browsers: the browser holds a random id in a cookie, the console the passport that the session was opened
//! with. And codes, each of which opens one session: a command gets one with a passport and hands it to a browser.
//!
//! **Invariants:** ids and codes are kept as hashes and only in memory; a code counts once and for a minute; a session ends
//! when it was idle for `session.idle`, after `session.longest`, or when its passport is revoked. What a page asks for
//! while nobody uses it keeps no session alive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_auth::HeldPassport;
use ron_crypto::hash;
use ron_kernel::{LockSpec, RankedMutex, SharedClock, SharedRandom, Snapshot};
use ron_proto::{Problem, b64};

use crate::settings::Settings;

/// How long a code counts.
pub const CODE_LIFE: Duration = Duration::from_secs(60);
/// Codes at once; a further one is refused.
const CODES_MAX: usize = 64;
/// Sessions at once; a further one ends the one that was unused for longest.
const SESSIONS_MAX: usize = 1024;
/// Seconds that a refused command waits before it asks for a code again.
const RETRY_S: u32 = 5;

/// The lock's row in the topology.
pub const SESSIONS_LOCK: LockSpec = LockSpec {
    name: "sessions",
    rank: 110,
    guards: "sessions of browsers, and codes that open one",
};
static SESSIONS_LOCK_ROW: LockSpec = SESSIONS_LOCK;

type Hash = [u8; 32];

#[derive(Debug)]
pub struct Sessions {
    table: RankedMutex<Table>,
    settings: Arc<Snapshot<Settings>>,
    clock: SharedClock,
    random: SharedRandom,
}

#[derive(Debug, Default)]
struct Table {
    open: BTreeMap<Hash, Session>,
    codes: BTreeMap<Hash, Code>,
}

#[derive(Debug)]
struct Session {
    held: HeldPassport,
    opened: Instant,
    used: Instant,
}

#[derive(Debug)]
struct Code {
    held: HeldPassport,
    until: Instant,
}

impl Sessions {
    pub fn new(
        settings: Arc<Snapshot<Settings>>,
        clock: SharedClock,
        random: SharedRandom,
    ) -> Self {
        Self {
            table: RankedMutex::new(&SESSIONS_LOCK_ROW, Table::default()),
            settings,
            clock,
            random,
        }
    }

    /// A code that opens one session of this passport; 429 when too many wait.
    pub fn code(&self, held: HeldPassport) -> Result<String, Problem> {
        let (text, name) = self.fresh();
        let now = self.clock.now();
        let mut table = self.table.lock();
        table.codes.retain(|_, code| now < code.until);
        if table.codes.len() >= CODES_MAX {
            return Err(Problem::busy(RETRY_S));
        }
        let until = now + CODE_LIFE;
        table.codes.insert(name, Code { held, until });
        Ok(text)
    }

    /// The passport of a code, which is used up.
    pub fn redeem(&self, code: &str) -> Option<HeldPassport> {
        let now = self.clock.now();
        let code = self.table.lock().codes.remove(&named(code))?;
        (now < code.until).then_some(code.held)
    }

    /// Opens a session; returns its id.
    pub fn open(&self, held: HeldPassport) -> String {
        let (id, name) = self.fresh();
        let now = self.clock.now();
        let session = Session {
            held,
            opened: now,
            used: now,
        };
        let mut table = self.table.lock();
        table.open.retain(|_, session| self.lives(session, now));
        if table.open.len() >= SESSIONS_MAX {
            let unused = table.open.iter().min_by_key(|(_, session)| session.used);
            let unused = unused.map(|(name, _)| *name);
            unused.and_then(|name| table.open.remove(&name));
        }
        table.open.insert(name, session);
        id
    }

    /// The passport of a session. `is_used` says that a person uses it.
    pub fn find(&self, id: &str, is_used: bool) -> Option<HeldPassport> {
        let (name, now) = (named(id), self.clock.now());
        let mut table = self.table.lock();
        let session = table.open.get_mut(&name)?;
        if !self.lives(session, now) {
            table.open.remove(&name);
            return None;
        }
        if is_used {
            session.used = now;
        }
        Some(session.held.clone())
    }

    pub fn close(&self, id: &str) {
        self.table.lock().open.remove(&named(id));
    }

    /// Ends the sessions and codes whose passports are `void`. Called every second: the feed forgets the revocation of
    /// a single passport when that has expired, and a session may outlive it.
    pub fn sweep(&self, void: impl Fn(&HeldPassport) -> bool) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let lives = |session: &Session| self.lives(session, now) && !void(&session.held);
        table.open.retain(|_, session| lives(session));
        let counts = |code: &Code| now < code.until && !void(&code.held);
        table.codes.retain(|_, code| counts(code));
    }

    fn lives(&self, session: &Session, now: Instant) -> bool {
        let limits = self.settings.load().session;
        let expired = session.held.ends_s();
        let expired = expired.is_some_and(|end| end <= self.clock.unix_ms() / 1000);
        !expired
            && now.duration_since(session.used) < limits.idle
            && now.duration_since(session.opened) < limits.longest
    }

    fn fresh(&self) -> (String, Hash) {
        let text = b64::url(&self.random.bytes::<32>());
        let name = named(&text);
        (text, name)
    }
}

fn named(secret: &str) -> Hash {
    hash::sha256(secret.as_bytes())
}
