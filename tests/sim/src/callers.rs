//! What callers do in every world of services: they work while there are faults, wait for the services, and read the log.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ron_client::{ClientError, LedgerClient};
use ron_http::{Call, HttpClient};
use ron_kernel::Deadline;
use ron_proto::ledger::Event;
use ron_sim::thread::JoinHandle;
use ron_sim::{ensure, thread, time};

use crate::chance::{below, ms};

/// Longest time of a call of this module.
const CALL: Duration = Duration::from_secs(2);

/// A caller that acts on a thread of its own until there are no faults any more, within these bounds of its number of acts.
pub fn works<C: Send + 'static>(
    name: impl Into<String>,
    over: &Arc<AtomicBool>,
    acts: Range<usize>,
    mut caller: C,
    act: impl Fn(&mut C) + Send + 'static,
) -> JoinHandle<C> {
    let over = over.clone();
    let body = move || {
        for number in 0..acts.end {
            if number >= acts.start && over.load(Ordering::SeqCst) {
                break;
            }
            act(&mut caller);
        }
        caller
    };
    thread::spawn_named(name.into(), body).expect("a thread")
}

/// An act, and a rest after it, which is below so many milliseconds.
pub fn paced<C>(act: fn(&mut C), rest_ms: u64) -> impl Fn(&mut C) {
    move |caller| {
        act(caller);
        time::sleep(ms(below(rest_ms)));
    }
}

/// The services at these addresses say that they are ready.
pub fn all_are_ready_before(http: &HttpClient, services: &[IpAddr], by: Instant) {
    for ip in services {
        let url = format!("http://{ip}:81/readyz");
        loop {
            let reply = http.call(Call::get(&url, Deadline::within(CALL)));
            if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                break;
            }
            let text = reply.map(|reply| String::from_utf8_lossy(&reply.body).into_owned());
            let late = format!("10 s after the last fault {ip} is not ready: {text:?}");
            ensure(time::now() < by, &late);
            time::sleep(ms(50));
        }
    }
}

/// A ledger's whole log, if the ledger answers.
pub fn log_if_answered(ledger: &LedgerClient) -> Result<Vec<Event>, ClientError> {
    let (mut events, mut after) = (Vec::new(), 0);
    loop {
        let page = ledger.events(after, Duration::ZERO, Deadline::within(CALL))?;
        if page.events.is_empty() {
            return Ok(events);
        }
        after = page.next;
        events.extend(page.events);
    }
}

/// A ledger's whole log.
pub fn log_of(ledger: &LedgerClient) -> Vec<Event> {
    log_if_answered(ledger).unwrap_or_else(|error| {
        ensure(false, &format!("the log cannot be read: {error}"));
        unreachable!("the run has ended")
    })
}
