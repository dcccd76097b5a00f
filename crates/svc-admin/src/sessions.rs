//! Sessions of browsers: the browser holds a random id in a cookie, the console the passport that the session was opened
//! with. And codes, each of which opens one session: a command gets one with a passport and hands it to a browser.
//!
//! **Invariants:** ids and codes are kept as hashes and only in memory; a code can be used once, within a minute; a session ends
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

/// How long a code can be used.
pub const CODE_LIFE: Duration = Duration::from_secs(60);
/// Maximum of `session.longest`: for this long the revocation of an expired passport can matter.
pub const LONGEST_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// Codes at once; a further one is refused.
const CODES_MAX: usize = 64;
/// Codes at once of one holder of passports; a further one takes the place of the holder's oldest.
const CODES_OF_ONE_MAX: usize = 4;
/// Sessions at once; a further one ends the one that was unused for longest.
const SESSIONS_MAX: usize = 1024;
/// Sessions at once of one holder of passports; a further one ends the holder's session that was unused for longest.
const SESSIONS_OF_ONE_MAX: usize = 32;
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
        make_room(&mut table.codes, CODES_OF_ONE_MAX, |code| {
            is_of(&code.held, &held).then_some(code.until)
        });
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
        make_room(&mut table.open, SESSIONS_OF_ONE_MAX, |other| {
            is_of(&other.held, &session.held).then_some(other.used)
        });
        make_room(&mut table.open, SESSIONS_MAX, |other| Some(other.used));
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

    /// Ends the sessions and codes whose passports are `void`. Called every second, so that a session that sends no
    /// requests ends as well.
    pub fn sweep(&self, void: impl Fn(&HeldPassport) -> bool) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let lives = |session: &Session| self.lives(session, now) && !void(&session.held);
        table.open.retain(|_, session| lives(session));
        let is_good = |code: &Code| now < code.until && !void(&code.held);
        table.codes.retain(|_, code| is_good(code));
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

/// Whether two passports have the same subject and client.
fn is_of(one: &HeldPassport, other: &HeldPassport) -> bool {
    one.holder() == other.holder()
}

/// Removes the oldest of the entries that have an age, if there are `most` of them.
fn make_room<T>(entries: &mut BTreeMap<Hash, T>, most: usize, age: impl Fn(&T) -> Option<Instant>) {
    let aged = entries
        .iter()
        .filter_map(|(name, entry)| Some((age(entry)?, *name)));
    let aged: Vec<(Instant, Hash)> = aged.collect();
    if aged.len() < most {
        return;
    }
    if let Some((_, oldest)) = aged.into_iter().min() {
        entries.remove(&oldest);
    }
}

fn named(secret: &str) -> Hash {
    hash::sha256(secret.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_issuer::{TestIssuer, settings};

    const SECOND: Duration = Duration::from_secs(1);

    fn start(text: &str) -> (TestIssuer, Sessions) {
        let issuer = TestIssuer::new();
        let sessions = issuer.sessions(settings(text));
        (issuer, sessions)
    }

    #[test]
    fn revocations_are_kept_for_the_longest_session() {
        use ron_service::{Config, ServiceSettings as _};
        let accepts = |longest: Duration| {
            let text = format!("[session]\nlongest = \"{}s\"\n", longest.as_secs());
            let path = std::path::Path::new("t.toml");
            let config = Config::from_toml(&crate::settings::TABLE, path, &text);
            config.is_ok_and(|config| Settings::from_config(&config).is_ok())
        };
        assert!(accepts(LONGEST_MAX) && !accepts(LONGEST_MAX + SECOND));
    }

    #[test]
    fn a_code_counts_once_and_for_a_minute() {
        let (issuer, sessions) = start("");
        let code = || sessions.code(issuer.held("ada", "c")).expect("a code");
        let check = |wait: Duration, want: bool| {
            let code = code();
            issuer.clock.advance(wait);
            assert_eq!(sessions.redeem(&code).is_some(), want, "{wait:?}");
            assert!(sessions.redeem(&code).is_none(), "it counts once");
        };
        check(Duration::ZERO, true);
        check(CODE_LIFE.saturating_sub(SECOND), true);
        check(CODE_LIFE, false);
        assert!(sessions.redeem("another").is_none());
    }

    #[test]
    fn a_holder_takes_the_place_of_no_other() {
        let (issuer, sessions) = start("");
        let other = sessions.code(issuer.held("bob", "c")).expect("a code");
        let of_other = sessions.open(issuer.held("bob", "c"));
        let code = |_| {
            issuer.clock.advance(SECOND);
            sessions.code(issuer.held("ada", "c")).expect("a code")
        };
        let codes: Vec<String> = (0..=CODES_OF_ONE_MAX).map(code).collect();
        let open = |_| {
            issuer.clock.advance(SECOND);
            sessions.open(issuer.held("ada", "c"))
        };
        assert!(sessions.redeem(&other).is_some());
        let good: Vec<bool> = codes.iter().map(|c| sessions.redeem(c).is_some()).collect();
        assert_eq!(good, [false, true, true, true, true]);

        let first = open(0);
        let unused = open(1);
        issuer.clock.advance(SECOND);
        assert!(sessions.find(&first, true).is_some());
        let _: Vec<String> = (2..=SESSIONS_OF_ONE_MAX).map(open).collect();
        let lives = |id: &str| sessions.find(id, false).is_some();
        assert!(lives(&of_other) && lives(&first) && !lives(&unused));
        // The same subject by another client is another holder.
        sessions.open(issuer.held("ada", "d"));
        assert!(lives(&first));
    }

    #[test]
    fn codes_and_sessions_of_all_are_limited() {
        let (issuer, sessions) = start("");
        let holders = SESSIONS_MAX / SESSIONS_OF_ONE_MAX;
        let held: Vec<HeldPassport> = (0..=holders.max(CODES_MAX))
            .map(|n| issuer.held(&format!("u{n}"), "c"))
            .collect();
        let (last, first) = held[..=CODES_MAX].split_last().expect("some");
        for one in first {
            sessions.code(one.clone()).expect("a code");
        }
        assert_eq!(
            sessions.code(last.clone()).expect_err("too many").status,
            429
        );
        let oldest = sessions.open(held[0].clone());
        issuer.clock.advance(SECOND);
        for one in &held[1..=holders] {
            for _ in 0..SESSIONS_OF_ONE_MAX {
                sessions.open(one.clone());
            }
        }
        assert_eq!(sessions.table.lock().open.len(), SESSIONS_MAX);
        assert!(sessions.find(&oldest, true).is_none());
    }

    #[test]
    fn a_session_ends_unused_or_at_last_or_when_it_is_closed() {
        let (issuer, sessions) = start("[session]\nidle = \"10s\"\nlongest = \"25s\"\n");
        let [used, shown, closed] = [(); 3].map(|()| sessions.open(issuer.held("ada", "c")));
        sessions.close(&closed);
        assert!(sessions.find(&closed, true).is_none());
        for _ in 0..2 {
            issuer.clock.advance(9 * SECOND);
            assert!(sessions.find(&used, true).is_some());
        }
        // A page that nobody uses does not keep its session alive.
        let late = sessions.open(issuer.held("ada", "c"));
        issuer.clock.advance(5 * SECOND);
        assert!(sessions.find(&late, false).is_some());
        assert!(sessions.find(&shown, false).is_none());
        issuer.clock.advance(5 * SECOND);
        assert!(sessions.find(&late, false).is_none(), "unused");
        assert!(sessions.find(&used, true).is_none(), "25 s have passed");
        assert!(sessions.table.lock().open.is_empty());
    }

    #[test]
    fn a_sweep_ends_what_is_void_or_over() {
        let (issuer, sessions) = start("[session]\nidle = \"10s\"\n");
        let (ada, bob) = (issuer.held("ada", "c"), issuer.held("bob", "c"));
        let of_ada = sessions.open(ada.clone());
        let of_bob = sessions.open(bob.clone());
        let (code_ada, code_bob) = (sessions.code(ada), sessions.code(bob));
        sessions.sweep(|held| held.holder().0 == "ada");
        assert!(sessions.find(&of_ada, true).is_none());
        assert!(sessions.find(&of_bob, true).is_some());
        assert!(sessions.redeem(&code_ada.expect("a code")).is_none());
        assert!(sessions.redeem(&code_bob.expect("a code")).is_some());
        issuer.clock.advance(10 * SECOND);
        sessions.sweep(|_| false);
        assert!(sessions.table.lock().open.is_empty());
    }
}
