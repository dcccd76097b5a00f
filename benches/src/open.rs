//! A load with an open loop: requests are due at fixed times, whether or not earlier ones are answered,
//! and the latency of each counts from when it was due. A closed loop sends nothing while it waits, so
//! that a pause of the service is charged to as many requests as there are clients ("coordinated
//! omission"); here it is charged to every request that was due meanwhile.

use std::collections::VecDeque;
use std::sync::{Barrier, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use ron_kernel::net::Event;

use crate::client::{Answer, LOOK, Maker, open, shares};

/// Time that requests have to be answered after the last was due.
pub const GRACE: Duration = Duration::from_secs(5);

/// Requests a second, for so long.
#[derive(Clone, Copy)]
pub struct Plan {
    pub rate: u64,
    pub time: Duration,
}

/// The due times of every `step`th request of a plan, from request `next` on.
struct Arrivals {
    plan: Plan,
    next: u64,
    step: u64,
}

impl Arrivals {
    /// When the next request is due, counted from the begin; `None` when none is left.
    fn next(&self) -> Option<Duration> {
        // From the number of the request each time, so that no rounding adds up.
        let nanos = u128::from(self.next) * 1_000_000_000 / u128::from(self.plan.rate);
        let due = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        (due < self.plan.time).then_some(due)
    }

    /// Takes the next request if it is due.
    fn take(&mut self, now: Duration) -> Option<Duration> {
        let due = self.next().filter(|due| *due <= now)?;
        self.next += self.step;
        Some(due)
    }
}

/// Which client sends which request, without a clock and without sockets.
struct Dispatch {
    arrivals: Arrivals,
    /// Requests that are due and wait for a client, oldest first; at most `room`.
    waiting: VecDeque<Duration>,
    room: usize,
    /// Requests for which there was no room.
    not_sent: u64,
    /// The clients without a request; the one that waits longest is the next to send.
    free: VecDeque<usize>,
}

impl Dispatch {
    /// As many requests may wait as are due in one second.
    fn new(arrivals: Arrivals, clients: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            room: arrivals.plan.rate.div_ceil(arrivals.step) as usize,
            not_sent: 0,
            free: (0..clients).collect(),
            arrivals,
        }
    }

    /// Lets all requests wait that are due.
    fn look(&mut self, now: Duration) {
        while let Some(due) = self.arrivals.take(now) {
            if self.waiting.len() < self.room {
                self.waiting.push_back(due);
            } else {
                self.not_sent += 1;
            }
        }
    }

    /// A client and when the request was due that it sends now.
    fn send(&mut self) -> Option<(usize, Duration)> {
        let due = *self.waiting.front()?;
        let client = self.free.pop_front()?;
        self.waiting.pop_front();
        Some((client, due))
    }
}

/// A request that was sent or waited, in microseconds since the begin.
#[derive(Clone, Copy)]
pub struct Sample {
    pub due: u32,
    /// When it was answered, or given up.
    pub end: u32,
    pub is_success: bool,
}

/// The result of a load.
#[derive(Default)]
pub struct Tail {
    /// By `end`.
    pub samples: Vec<Sample>,
    /// When the service refused a request, in microseconds since the begin. The request is repeated if the answer says when.
    pub refusals: Vec<u32>,
    pub refusal: Option<String>,
    /// Requests for which there was no room among those that wait for a client.
    not_sent: u64,
}

impl Tail {
    fn refuse(&mut self, answer: &Answer, at: u32) {
        self.refusals.push(at);
        self.refusal.get_or_insert_with(|| answer.start());
    }

    fn add(&mut self, part: Self) {
        self.samples.extend(part.samples);
        self.refusals.extend(part.refusals);
        self.refusal = self.refusal.take().or(part.refusal);
        self.not_sent += part.not_sent;
    }

    pub fn answered(&self) -> usize {
        self.samples.iter().filter(|s| s.is_success).count()
    }

    /// Requests without a success: not sent, not answered in time, refused for good.
    pub fn lost(&self) -> u64 {
        self.not_sent + (self.samples.len() - self.answered()) as u64
    }

    /// Time from the begin to the last answer; at least that of the plan.
    pub fn seconds(&self, plan: Plan) -> f64 {
        let last = self.samples.last().map_or(0, |s| s.end);
        plan.time.as_secs_f64().max(f64::from(last) / 1e6)
    }

    /// The latencies of the answers in microseconds, shortest first.
    pub fn latencies(&self) -> Vec<u32> {
        let answers = self.samples.iter().filter(|s| s.is_success);
        let mut all: Vec<u32> = answers.map(|s| s.end - s.due).collect();
        all.sort_unstable();
        all
    }
}

/// The latency that so many of a thousand requests do not exceed (nearest rank). Lost requests count as
/// slower than all answers: `None` when the rank is among them.
pub fn quantile(sorted: &[u32], lost: u64, per_mille: u64) -> Option<u32> {
    let all = sorted.len() as u64 + lost;
    let rank = (all * per_mille).div_ceil(1_000).max(1);
    sorted.get(rank as usize - 1).copied()
}

/// Lets `clients` call `host` by a plan. `meanwhile` runs on the calling thread, with the begin and a
/// function that says whether the load has ended.
pub fn load<T>(
    host: &str,
    clients: usize,
    plan: Plan,
    maker: impl Fn(usize) -> Maker,
    meanwhile: impl FnOnce(Instant, &dyn Fn() -> bool) -> T,
) -> Result<(Tail, T), String> {
    let makers = shares(clients, maker);
    let step = makers.len() as u64;
    let start = Barrier::new(makers.len() + 1);
    let begin = OnceLock::new();
    let (parts, seen) = std::thread::scope(|scope| {
        let (start, begin) = (&start, &begin);
        let drive = |(makers, next)| {
            let arrivals = Arrivals { plan, next, step };
            scope.spawn(move || drive(host, arrivals, makers, start, begin))
        };
        let running: Vec<_> = makers.into_iter().zip(0..).map(drive).collect();
        start.wait();
        let begin = *begin.get_or_init(Instant::now);
        let seen = meanwhile(begin, &|| running.iter().all(ScopedJoinHandle::is_finished));
        let join = running.into_iter().map(ScopedJoinHandle::join);
        let parts: Vec<_> = join
            .map(|part| part.expect("a driver does not panic"))
            .collect();
        (parts, seen)
    });
    let mut sum = Tail::default();
    for part in parts {
        sum.add(part?);
    }
    sum.samples.sort_unstable_by_key(|s| s.end);
    sum.refusals.sort_unstable();
    Ok((sum, seen))
}

fn micros(at: Duration) -> u32 {
    u32::try_from(at.as_micros()).unwrap_or(u32::MAX)
}

fn drive(
    host: &str,
    arrivals: Arrivals,
    makers: Vec<Maker>,
    start: &Barrier,
    begin: &OnceLock<Instant>,
) -> Result<Tail, String> {
    let opened = open(host, makers);
    start.wait();
    let begin = *begin.get_or_init(Instant::now);
    let (poller, mut clients) = opened?;
    let last = arrivals.plan.time + GRACE;
    let mut dispatch = Dispatch::new(arrivals, clients.len());
    let mut tail = Tail::default();
    let mut events: Vec<Event> = Vec::with_capacity(clients.len());
    let mut looked = begin;
    while begin.elapsed() < last {
        dispatch.look(begin.elapsed());
        while let Some((client, due)) = dispatch.send() {
            clients[client].send(begin + due)?;
        }
        let next = dispatch.arrivals.next();
        if next.is_none() && dispatch.free.len() == clients.len() {
            break;
        }
        events.clear();
        let until = next.map_or(LOOK, |due| due.saturating_sub(begin.elapsed()));
        poller.wait(&mut events, until.min(LOOK));
        for event in &events {
            let client = &mut clients[event.token as usize];
            let Some(answer) = client.take()? else {
                continue;
            };
            let end = micros(begin.elapsed());
            if !answer.is_success() {
                tail.refuse(&answer, end);
            }
            if !client.repeats() {
                let due = micros(client.since - begin);
                tail.samples.push(Sample {
                    due,
                    end,
                    is_success: answer.is_success(),
                });
                dispatch.free.push_back(event.token as usize);
            }
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            for client in &mut clients {
                client.repeat(looked)?;
            }
        }
    }
    let end = micros(begin.elapsed());
    let busy = (0..clients.len()).filter(|client| !dispatch.free.contains(client));
    let in_flight = busy.map(|client| clients[client].since - begin);
    let given_up = dispatch.waiting.iter().copied().chain(in_flight);
    tail.samples.extend(given_up.map(|due| Sample {
        due: micros(due),
        end,
        is_success: false,
    }));
    tail.not_sent = dispatch.not_sent;
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn arrivals(rate: u64, time: Duration, next: u64, step: u64) -> Arrivals {
        let plan = Plan { rate, time };
        Arrivals { plan, next, step }
    }

    fn all(mut arrivals: Arrivals) -> Vec<Duration> {
        std::iter::from_fn(|| arrivals.take(Duration::MAX)).collect()
    }

    #[test]
    fn requests_are_due_at_equal_distances_and_none_after_the_end() {
        let second = Duration::from_secs(1);
        assert_eq!(
            all(arrivals(4, second, 0, 1)),
            [0, 250, 500, 750].map(|at| MS * at)
        );
        let thirds = all(arrivals(3, second * 3, 0, 1));
        assert_eq!(thirds.len(), 9);
        assert_eq!(thirds[6], second * 2, "rounding does not add up");
    }

    #[test]
    fn two_threads_share_the_requests_of_a_plan() {
        let (rate, time) = (1_001, Duration::from_secs(2));
        let mut both = all(arrivals(rate, time, 0, 2));
        both.extend(all(arrivals(rate, time, 1, 2)));
        both.sort_unstable();
        assert_eq!(both, all(arrivals(rate, time, 0, 1)));
    }

    #[test]
    fn no_request_is_sent_before_it_is_due() {
        let mut dispatch = Dispatch::new(arrivals(100, Duration::from_secs(1), 0, 1), 8);
        dispatch.look(MS * 9);
        assert_eq!(dispatch.send(), Some((0, Duration::ZERO)));
        assert_eq!(dispatch.send(), None);
        dispatch.look(MS * 10);
        assert_eq!(dispatch.send(), Some((1, MS * 10)));
    }

    #[test]
    fn more_requests_than_are_due_in_a_second_do_not_wait() {
        let mut dispatch = Dispatch::new(arrivals(10, Duration::from_secs(9), 0, 1), 1);
        assert_eq!(dispatch.send(), None);
        dispatch.look(Duration::from_millis(2_000));
        assert_eq!((dispatch.waiting.len(), dispatch.not_sent), (10, 11));
        assert_eq!(
            dispatch.send(),
            Some((0, Duration::ZERO)),
            "the oldest goes first"
        );
        assert_eq!(dispatch.send(), None, "the only client is busy");
        dispatch.look(Duration::from_millis(2_100));
        assert_eq!((dispatch.waiting.len(), dispatch.not_sent), (10, 11));
    }

    /// One client, a request each millisecond, each answered at once but for a pause of 100 ms.
    fn with_a_pause() -> Vec<u32> {
        let mut dispatch = Dispatch::new(arrivals(1_000, Duration::from_secs(1), 0, 1), 1);
        let mut latencies = Vec::new();
        let mut now = Duration::ZERO;
        while latencies.len() < 1_000 {
            dispatch.look(now);
            let Some((client, due)) = dispatch.send() else {
                now += MS;
                continue;
            };
            if due == MS * 500 {
                now += MS * 100;
            }
            latencies.push(micros(now.saturating_sub(due)));
            dispatch.free.push_back(client);
        }
        latencies.sort_unstable();
        latencies
    }

    #[test]
    fn a_pause_is_charged_to_every_request_that_was_due_meanwhile() {
        let latencies = with_a_pause();
        let late = latencies.iter().filter(|took| **took > 0).count();
        assert_eq!(late, 100, "a closed loop would have charged it to one");
        assert_eq!(quantile(&latencies, 0, 500), Some(0));
        assert_eq!(quantile(&latencies, 0, 950), Some(50_000));
        assert_eq!(quantile(&latencies, 0, 999), Some(99_000));
        assert_eq!(quantile(&latencies, 0, 1_000), Some(100_000));
    }

    #[test]
    fn a_quantile_is_the_smallest_latency_that_the_share_does_not_exceed() {
        let latencies: Vec<u32> = (1..=1_000).collect();
        for share in [1, 500, 990, 999, 1_000] {
            assert_eq!(quantile(&latencies, 0, share), Some(share as u32));
        }
        assert_eq!(quantile(&[7], 0, 500), Some(7));
        assert_eq!(quantile(&[3, 7], 0, 501), Some(7));
        assert_eq!(quantile(&[], 0, 500), None);
    }

    #[test]
    fn lost_requests_are_slower_than_all_answers() {
        let latencies: Vec<u32> = (1..=990).collect();
        assert_eq!(quantile(&latencies, 10, 990), Some(990));
        assert_eq!(quantile(&latencies, 10, 999), None);
        assert_eq!(quantile(&[], 1, 500), None);
    }
}
