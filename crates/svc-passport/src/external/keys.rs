//! Reads the keys of other issuers from their URLs: one thread, never a request. The last good keys stay in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ron_auth::ForeignKeys;
use ron_http::{Call, HttpClient};
use ron_kernel::{Deadline, KernelMetrics, Receiver, Recv, SharedClock, Snapshot, ThreadCtx};
use ron_proto::passport::ExternalIssuer;
use ron_service::ReadyBoard;

use super::use_of;
use crate::sync::InForce;

/// Maximum time of one read, connecting included.
const FETCH: Duration = Duration::from_secs(3);
/// How often keys are read again.
const EVERY: Duration = Duration::from_secs(300);
/// Minimum time between two reads of one issuer's keys, also when tokens name a key that is not known.
const GAP: Duration = Duration::from_secs(5);
/// How often the policy is compared with what was read.
const TICK: Duration = Duration::from_secs(1);
/// Maximum bytes of a key set.
pub const BYTES_MAX: u64 = 256 << 10;

/// The keys that were read, by the issuer's name.
#[derive(Debug, Default)]
pub struct FetchedKeys(BTreeMap<String, Fetched>);

#[derive(Clone, Debug)]
struct Fetched {
    url: String,
    keys: Arc<ForeignKeys>,
}

impl FetchedKeys {
    /// The keys of an issuer; `None` before the first good read of its present URL.
    pub fn of(&self, issuer: &ExternalIssuer) -> Option<&ForeignKeys> {
        let known = self.0.get(&issuer.issuer)?;
        let same = issuer.jwks_url.as_ref() == Some(&known.url);
        same.then_some(&*known.keys)
    }
}

/// The thread's state.
pub struct KeyReader {
    /// With a bounded answer, and without a breaker: the thread paces itself.
    pub http: HttpClient,
    pub policy: Arc<Snapshot<Option<InForce>>>,
    pub keys: Arc<Snapshot<FetchedKeys>>,
    pub ready: ReadyBoard,
    pub km: KernelMetrics,
    pub clock: SharedClock,
}

/// When an issuer's keys were read last, and whether that worked.
#[derive(Clone, Copy)]
struct LastRead {
    at: Instant,
    good: bool,
}

impl KeyReader {
    /// The thread's loop. `asked` has the issuers of tokens that no known key has signed.
    pub fn run(&self, ctx: &ThreadCtx, asked: &Receiver<String>) {
        let mut reads = BTreeMap::new();
        let mut wanted: Option<String> = None;
        loop {
            self.pass(ctx, &mut reads, wanted.take().as_deref());
            match asked.recv(&ctx.shutdown, Deadline::within(TICK)) {
                Recv::Item(issuer) => wanted = Some(issuer),
                Recv::Timeout => {}
                Recv::Closed => {
                    if ctx.shutdown.wait(Deadline::within(TICK)) {
                        return;
                    }
                }
                Recv::Shutdown => return,
            }
        }
    }

    /// Reads the keys that are due.
    fn pass(
        &self,
        ctx: &ThreadCtx,
        reads: &mut BTreeMap<(String, String), LastRead>,
        wanted: Option<&str>,
    ) {
        let issuers: Vec<(String, String)> = self.policy.with(|in_force| {
            let all = in_force.iter().flat_map(|one| &one.policy.issuers);
            all.filter_map(|one| Some((one.issuer.clone(), one.jwks_url.clone()?)))
                .collect()
        });
        reads.retain(|place, _| issuers.contains(place));
        let known = self.keys.load();
        if known
            .0
            .keys()
            .any(|name| !issuers.iter().any(|(issuer, _)| issuer == name))
        {
            self.change(|keys| {
                keys.retain(|name, _| issuers.iter().any(|(issuer, _)| issuer == name));
            });
        }
        drop(known);
        let mut failed = Vec::new();
        for place in issuers {
            if ctx.shutdown.is_set() {
                return; // each read may take its full time
            }
            let (issuer, url) = &place;
            let due = reads.get(&place).is_none_or(|last| {
                let since = self.clock.now().saturating_duration_since(last.at);
                let soon = !last.good || wanted == Some(issuer);
                since >= if soon { GAP } else { EVERY }
            });
            if due {
                let read = self.read(issuer, url);
                if let Err(why) = &read {
                    tracing::warn!(service = "svc-passport", event = "issuer_keys_failed", issuer = %issuer, why = %why);
                }
                let (at, good) = (self.clock.now(), read.is_ok());
                reads.insert(place.clone(), LastRead { at, good });
            }
            if reads.get(&place).is_some_and(|last| !last.good) {
                failed.push(issuer.clone());
            }
        }
        if failed.is_empty() {
            self.ready.clear("issuers");
        } else {
            let why = format!("the keys of {} cannot be read", failed.join(", "));
            self.ready.degrade("issuers", why);
        }
    }

    fn read(&self, issuer: &str, url: &str) -> Result<(), String> {
        let call = Call::get(url, Deadline::within(FETCH));
        let reply = self.http.call(call).map_err(|e| {
            self.km.upstream_fail.with_label_values(&["issuer"]).inc();
            e.detail
        })?;
        if reply.status != 200 {
            return Err(format!("its URL answers {}", reply.status));
        }
        let usage = self.policy.with(|in_force| {
            let mut all = in_force.iter().flat_map(|one| &one.policy.issuers);
            all.find(|one| one.issuer == issuer).map(use_of)
        });
        let Some(usage) = usage else {
            return Ok(()); // a newer policy no longer names it
        };
        let keys = ForeignKeys::parse(&reply.body, usage).map_err(|e| e.to_string())?;
        self.change(|all| {
            let (url, keys) = (url.to_owned(), Arc::new(keys));
            all.insert(issuer.to_owned(), Fetched { url, keys });
        });
        Ok(())
    }

    /// This thread is the only writer.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Fetched>)) {
        let mut all = self.keys.with(|keys| keys.0.clone());
        change(&mut all);
        self.keys.store(FetchedKeys(all));
    }
}
