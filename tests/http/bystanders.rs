//! Ordinary clients that keep working while the server is abused: their latency is the measure of
//! the abuse.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sound;
use crate::wire::Wire;

/// Clients at once, each with a kept connection.
const CLIENTS: usize = 8;
/// Pause between a response and the next request.
const PAUSE: Duration = Duration::from_millis(4);
/// A response later than this counts as none.
const PATIENCE: Duration = Duration::from_secs(5);

/// The observations of all of them.
#[derive(Debug)]
pub struct Observations {
    /// In order of length.
    pub latencies: Vec<Duration>,
    /// Responses other than 200, and connections that ended.
    pub failures: Vec<String>,
}

impl Observations {
    /// The latency that this share of the responses did not exceed, in milliseconds.
    pub fn quantile_ms(&self, percent: usize) -> f64 {
        let last = self.latencies.len() - 1;
        self.latencies[last * percent / 100].as_secs_f64() * 1e3
    }
}

/// They work until their observations are collected.
pub struct Bystanders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Observations>>,
}

impl Bystanders {
    pub fn start(addr: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let stop = stop.clone();
            std::thread::spawn(move || work(addr, &stop))
        };
        let threads = (0..CLIENTS).map(client).collect();
        Self { stop, threads }
    }

    pub fn finish(self) -> Observations {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Observations {
            latencies: Vec::new(),
            failures: Vec::new(),
        };
        for thread in self.threads {
            let mut seen = thread.join().expect("a bystander ends");
            all.latencies.append(&mut seen.latencies);
            all.failures.append(&mut seen.failures);
        }
        all.latencies.sort_unstable();
        assert!(!all.latencies.is_empty(), "{:?}", all.failures);
        all
    }
}

fn work(addr: SocketAddr, stop: &AtomicBool) -> Observations {
    let mut seen = Observations {
        latencies: Vec::new(),
        failures: Vec::new(),
    };
    let requests = [sound::get("bystander"), sound::post()];
    let mut wire = Wire::connect(addr);
    for request in requests.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let sent = Instant::now();
        match wire.send(request).answer(PATIENCE) {
            Ok(answer) if answer.status == 200 => seen.latencies.push(sent.elapsed()),
            Ok(answer) => seen.failures.push(format!("{}", answer.status)),
            Err(end) => {
                seen.failures.push(format!("{end:?}"));
                wire = Wire::connect(addr);
            }
        }
        std::thread::sleep(PAUSE);
    }
    seen
}
