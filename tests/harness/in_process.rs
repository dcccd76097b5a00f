//! One service of a data directory in the test's own process, with a clock that fails in chosen threads: the way to make a
//! thread of a real service panic without a hook in the service.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ron_kernel::{Clock, ClockAlarm, Deadline, GuardedClock, SharedClock, Shutdown};
use ron_service::{Config, Parts, Running};

/// A guarded clock whose reading panics once in each thread that is named to it.
#[derive(Debug)]
pub struct FailingClock {
    clock: SharedClock,
    /// Names of threads, and how often each may read the clock before.
    doomed: Mutex<Vec<(String, u32)>>,
}

impl FailingClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: GuardedClock::shared(Duration::from_hours(24)),
            doomed: Mutex::default(),
        })
    }

    /// Makes a thread panic when it reads the clock the next time but `later`.
    pub fn kill(&self, thread: &str, later: u32) {
        self.doomed.lock().unwrap().push((thread.to_owned(), later));
    }

    /// Whether every thread that was named has panicked.
    pub fn all_killed(&self) -> bool {
        self.doomed.lock().unwrap().is_empty()
    }

    fn read(&self) -> &dyn Clock {
        let now = std::thread::current();
        let doomed = {
            let mut doomed = self.doomed.lock().unwrap();
            let at = doomed.iter().position(|(name, _)| now.name() == Some(name));
            match at {
                Some(at) if doomed[at].1 == 0 => {
                    doomed.swap_remove(at);
                    true
                }
                Some(at) => {
                    doomed[at].1 -= 1;
                    false
                }
                None => false,
            }
        };
        // Unlocked: the panic would poison the list.
        assert!(!doomed, "killed by the test");
        &*self.clock
    }
}

impl Clock for FailingClock {
    fn now(&self) -> Instant {
        self.read().now()
    }

    fn unix_ms(&self) -> u64 {
        self.read().unix_ms()
    }

    fn alarm(&self) -> Option<ClockAlarm> {
        self.read().alarm()
    }

    fn accept_date(&self) {
        self.clock.accept_date();
    }

    fn resume_after(&self, newest_ms: u64) {
        self.clock.resume_after(newest_ms);
    }

    fn wait(&self, shutdown: &Shutdown, until: Deadline) -> bool {
        self.clock.wait(shutdown, until)
    }
}

/// Starts a service with its configuration file below `dir`, these settings, and this clock.
pub fn start(dir: &Path, name: &str, clock: SharedClock, sets: &[(&str, &str)]) -> Running {
    let service = ron_services::find(name).expect("a service");
    let path = dir.join(name).join("config.toml");
    let text = std::fs::read_to_string(&path).expect("`ron init` wrote it");
    let flags: Vec<_> = sets
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let file = Some((path.as_path(), text.as_str()));
    let config = Config::load(service.table, file, &|_| None, &flags).expect("good settings");
    let mut parts = Parts::bind(&config).expect("free ports");
    parts.clock = clock;
    let running = (service.start)(config, parts).expect("it starts");
    let ready = running.wait_ready(Deadline::within(Duration::from_secs(30)));
    ready.expect("it gets ready");
    running
}
