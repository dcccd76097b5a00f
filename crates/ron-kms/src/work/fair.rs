//! Fair admission in front of the signers: one queue per tenant, served round robin.
//!
//! The kernel's bounded queue carries turns, not jobs: a signer that receives a turn takes the next job
//! by deficit round robin over the tenants. The deficit counts cost, so a batch of 1,000 counts as
//! 1,000 jobs. A tenant with a long queue delays only itself.
//!
//! Room is shared as well: a tenant's queue may be at most [`SHARE`] times as long as the room that is left, so one
//! busy tenant cannot fill the capacity and a quiet tenant always finds a place (dynamic thresholds).
//! Long jobs never occupy all signers at once: with two or more signers, one stays free for short jobs.

use std::collections::{BTreeMap, VecDeque};

use ron_kernel::{RankedMutex, Receiver, SendError, Sender, ThreadCtx};
use ron_proto::values::{Alg, Tenant};

use super::each_job;
use crate::topology::FAIR_LOCK;

/// Maximum length of one tenant's queue, as a multiple of the room that is left.
const SHARE: usize = 8;
/// Credit that a tenant gains per round, in Ed25519 signatures.
const QUANTUM: u64 = 16;
/// Jobs that cost more, in Ed25519 signatures, are long. Jobs up to this cost may occupy all signers at once, and then the next job
/// waits for the first of them, a few milliseconds at most.
const LONG: u64 = 128;

/// The right to take one job.
#[derive(Debug)]
pub struct Turn;

/// Cost of a signature, in Ed25519 signatures.
pub const fn cost_of(alg: Alg) -> u64 {
    match alg {
        Alg::MlDsa44 => 4,
        Alg::MlDsa65 | Alg::Ed25519MlDsa65 => 6,
        Alg::MlDsa87 => 8,
        Alg::EcdsaP384 | Alg::EcdsaSecp256k1 => 12,
        Alg::Rsa2048 => 40,
        Alg::Rsa3072 => 120,
        Alg::Rsa4096 => 280,
        _ => 1,
    }
}

struct TenantQueue<T> {
    jobs: VecDeque<(u64, T)>,
    deficit: u64,
}

struct TenantQueues<T> {
    by_tenant: BTreeMap<Tenant, TenantQueue<T>>,
    /// Tenants with jobs, in the order of their turns.
    ring: VecDeque<Tenant>,
    queued: usize,
    long_running: usize,
    /// Turns that found only long jobs while the maximum of long jobs ran. The end of a long job redeems one.
    deferred: usize,
}

/// Why a job was not queued; gives the job back.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// The queue is full.
    Full(T),
    /// The tenant's queue has reached its share of the capacity.
    Share(T),
    /// The service is stopping.
    Closed(T),
}

/// A running long job. Its drop decrements the count, also when the job panics.
struct LongJob<'a, T>(Option<&'a FairQueue<T>>);

impl<T> LongJob<'_, T> {
    /// Ends the job; true when a deferred turn can be redeemed now.
    fn done(mut self) -> bool {
        self.0.take().is_some_and(FairQueue::long_done)
    }
}

impl<T> Drop for LongJob<'_, T> {
    fn drop(&mut self) {
        // Still `Some` only after a panic. This thread cannot redeem the deferred turn any more; the next job that
        // ends does.
        if let Some(queue) = self.0.take()
            && queue.long_done()
        {
            queue.tenants.lock().deferred += 1;
        }
    }
}

/// One queue per tenant behind one bounded queue of turns.
pub struct FairQueue<T> {
    tenants: RankedMutex<TenantQueues<T>>,
    capacity: usize,
    long_max: usize,
    turns: Sender<Turn>,
}

impl<T> FairQueue<T> {
    /// Room for `capacity` jobs, served by `servers` threads that take turns from the receiving end of `turns`,
    /// which must have the same capacity.
    pub fn new(capacity: usize, servers: usize, turns: Sender<Turn>) -> Self {
        let tenants = TenantQueues {
            by_tenant: BTreeMap::new(),
            ring: VecDeque::new(),
            queued: 0,
            long_running: 0,
            deferred: 0,
        };
        Self {
            tenants: RankedMutex::new(&FAIR_LOCK, tenants),
            capacity,
            // One server stays free for short jobs; a single server has to run long ones too.
            long_max: servers.saturating_sub(1).max(1),
            turns,
        }
    }

    /// Appends a job to the tenant's queue and sends one turn for it.
    pub fn push(&self, tenant: &Tenant, cost: u64, job: T) -> Result<(), PushError<T>> {
        let mut tenants = self.tenants.lock();
        let length = tenants.by_tenant.get(tenant).map_or(0, |l| l.jobs.len());
        let room = self.capacity.saturating_sub(tenants.queued);
        if room == 0 {
            return Err(PushError::Full(job));
        }
        if length >= room.saturating_mul(SHARE) {
            return Err(PushError::Share(job));
        }
        tenants.push(tenant, cost.max(1), job);
        drop(tenants);
        // Unlocked first: no lock is held over a send. There are never more queued turns than jobs, so the
        // queue of turns has room.
        match self.turns.try_send(Turn) {
            Ok(()) => Ok(()),
            Err(SendError::Full(_)) => self.take_back(tenant, PushError::Full),
            Err(SendError::Closed(_)) => self.take_back(tenant, PushError::Closed),
        }
    }

    fn take_back(&self, tenant: &Tenant, why: fn(T) -> PushError<T>) -> Result<(), PushError<T>> {
        // The lock was released since the push, so the last job may be one that another thread has added
        // since: that one is refused instead, and the numbers of jobs and turns stay equal. No job at all
        // means that a server has taken it already.
        let job = self.tenants.lock().take_last(tenant);
        job.map_or(Ok(()), |job| Err(why(job)))
    }

    /// The next job, and whether it is long; `None` when only long jobs are left and the maximum of them runs.
    /// The turn is then deferred.
    fn pop(&self) -> Option<(T, bool)> {
        let mut tenants = self.tenants.lock();
        let long_ok = tenants.long_running < self.long_max;
        let next = tenants.pop(long_ok);
        match &next {
            Some((_, true)) => tenants.long_running += 1,
            Some((_, false)) => {}
            // The turn is used up but a job stays queued: the end of a long job makes up for it.
            None => tenants.deferred += 1,
        }
        next
    }

    /// Ends a long job; true when a deferred turn can be redeemed now.
    fn long_done(&self) -> bool {
        let mut tenants = self.tenants.lock();
        tenants.long_running = tenants.long_running.saturating_sub(1);
        let deferred = tenants.deferred > 0;
        tenants.deferred = tenants.deferred.saturating_sub(1);
        deferred
    }

    /// Serves one turn: runs the next job and, after a long one, a job whose turn was deferred because of it.
    pub fn serve(&self, mut work: impl FnMut(T)) {
        loop {
            let Some((job, long)) = self.pop() else {
                return;
            };
            if !long {
                return work(job);
            }
            // Created before the job runs, so that a panic ends the long job too.
            let running = LongJob(Some(self));
            work(job);
            if !running.done() {
                return;
            }
        }
    }

    /// The loop of one server.
    pub fn run(&self, turns: &Receiver<Turn>, ctx: &ThreadCtx, mut work: impl FnMut(T)) {
        each_job(turns, ctx, |Turn| self.serve(&mut work));
    }

    /// Whether no job is queued; running jobs do not count.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.tenants.lock().queued == 0
    }

    /// Estimated seconds until there is room, from the drain rate.
    pub fn retry_after_s(&self) -> u32 {
        self.turns.retry_after_s()
    }
}

impl<T> TenantQueues<T> {
    fn push(&mut self, tenant: &Tenant, cost: u64, job: T) {
        let tenant_queue = self
            .by_tenant
            .entry(tenant.clone())
            .or_insert_with(|| TenantQueue {
                jobs: VecDeque::new(),
                deficit: 0,
            });
        if tenant_queue.jobs.is_empty() {
            self.ring.push_back(tenant.clone());
        }
        tenant_queue.jobs.push_back((cost, job));
        self.queued += 1;
    }

    fn take_last(&mut self, tenant: &Tenant) -> Option<T> {
        let tenant_queue = self.by_tenant.get_mut(tenant)?;
        let (_, job) = tenant_queue.jobs.pop_back()?;
        self.queued -= 1;
        if tenant_queue.jobs.is_empty() {
            self.by_tenant.remove(tenant);
            self.ring.retain(|waiting| waiting != tenant);
        }
        Some(job)
    }

    /// Takes from the tenant at the front of the ring. A tenant that cannot pay gains [`QUANTUM`] and goes to the back;
    /// so does one whose next job is long while no more long jobs may run, without gaining.
    fn pop(&mut self, long_ok: bool) -> Option<(T, bool)> {
        let fits = |cost: u64| long_ok || cost <= LONG;
        let next =
            |tenant_queue: &TenantQueue<T>| tenant_queue.jobs.front().map_or(0, |(cost, _)| *cost);
        // Without a job that fits, the loop below would rotate for ever.
        if !self
            .by_tenant
            .values()
            .any(|tenant_queue| fits(next(tenant_queue)))
        {
            return None;
        }
        loop {
            let tenant = self.ring.front()?.clone();
            let tenant_queue = self.by_tenant.get_mut(&tenant)?;
            let cost = next(tenant_queue);
            if !fits(cost) {
                self.ring.rotate_left(1);
                continue;
            }
            if tenant_queue.deficit < cost {
                // The loop ends: some job fits, and its tenant gains credit in every round until it can pay.
                tenant_queue.deficit += QUANTUM;
                self.ring.rotate_left(1);
                continue;
            }
            tenant_queue.deficit -= cost;
            let (_, job) = tenant_queue.jobs.pop_front()?;
            self.queued -= 1;
            if tenant_queue.jobs.is_empty() {
                self.by_tenant.remove(&tenant);
                self.ring.pop_front();
            }
            return Some((job, cost > LONG));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::SIGN_QUEUE;
    use ron_kernel::queue::bare_queue;

    fn tenant(name: &str) -> Tenant {
        name.parse().expect("tenant")
    }

    fn queue(capacity: usize, servers: usize) -> (FairQueue<u64>, Receiver<Turn>) {
        let (tx, rx) = bare_queue(&SIGN_QUEUE, capacity);
        (FairQueue::new(capacity, servers, tx), rx)
    }

    /// What the next turn does.
    fn turn(queue: &FairQueue<u64>, turns: &Receiver<Turn>) -> Vec<u64> {
        turns.try_recv().expect("a turn");
        let mut done = Vec::new();
        queue.serve(|job| done.push(job));
        done
    }

    #[test]
    fn a_quiet_tenant_is_served_next_however_long_the_other_queue_is() {
        let (queue, turns) = queue(512, 2);
        for job in 0..400 {
            queue.push(&tenant("busy"), 1, job).expect("room");
        }
        turn(&queue, &turns);
        queue.push(&tenant("quiet"), 1, 9999).expect("room");
        let served: Vec<u64> = (0..40).flat_map(|_| turn(&queue, &turns)).collect();
        let at = served.iter().position(|job| *job == 9999).expect("served");
        assert!(at as u64 <= 2 * QUANTUM, "after {at} others");
    }

    #[test]
    fn cost_counts_not_jobs() {
        let (queue, turns) = queue(512, 4);
        for job in 0..20 {
            queue.push(&tenant("batches"), 50, job).expect("room");
        }
        for job in 0..200 {
            queue.push(&tenant("singles"), 1, 1000 + job).expect("room");
        }
        let served: Vec<u64> = (0..104).flat_map(|_| turn(&queue, &turns)).collect();
        let batches = served.iter().filter(|job| **job < 1000).count();
        let singles = served.len() - batches;
        assert!((1..=3).contains(&batches), "{batches} batches");
        assert!(
            singles >= 100,
            "{singles} singles beside {batches} batches of 50"
        );
    }

    #[test]
    fn everybody_finds_room_and_a_lone_tenant_nearly_all_of_it() {
        let (queue, _turns) = queue(512, 2);
        let fill = |name: &str| {
            let who = tenant(name);
            let mut taken = 0;
            loop {
                match queue.push(&who, 1, 0) {
                    Ok(()) => taken += 1,
                    Err(why) => return (taken, why),
                }
            }
        };
        let (first, why) = fill("a");
        assert_eq!(why, PushError::Share(0));
        assert!((440..512).contains(&first), "{first}");
        let (second, _) = fill("b");
        assert!(second >= 40, "{second}");
        let (third, _) = fill("c");
        assert!(third >= 3, "{third}");
    }

    #[test]
    fn a_small_queue_takes_what_its_capacity_says() {
        let (queue, _turns) = queue(4, 1);
        for job in 0..4 {
            queue.push(&tenant("a"), 1, job).expect("room");
        }
        assert_eq!(queue.push(&tenant("a"), 1, 4), Err(PushError::Full(4)));
        assert_eq!(queue.push(&tenant("b"), 1, 5), Err(PushError::Full(5)));
    }

    #[test]
    fn one_server_stays_for_short_jobs() {
        let (queue, turns) = queue(64, 2);
        let (busy, quiet) = (tenant("busy"), tenant("quiet"));
        for job in 0..3 {
            queue.push(&busy, 1000, job).expect("room");
        }
        turns.try_recv().expect("a turn");
        let mut order = Vec::new();
        queue.serve(|job| {
            order.push(job);
            if job < 77 && order.len() == 1 {
                // While the first long one runs, the other server passes over the long ones.
                queue.push(&quiet, 1, 77).expect("room");
                let mut beside = Vec::new();
                for _ in 0..3 {
                    turns.try_recv().expect("a turn");
                    queue.serve(|job| beside.push(job));
                }
                assert_eq!(beside, [77]);
            }
        });
        assert_eq!(
            order,
            [0, 1, 2],
            "the server of the long job redeems the deferred turns"
        );
        assert!(queue.is_empty());
    }

    #[test]
    fn a_closed_queue_gives_the_job_back() {
        let (queue, turns) = queue(8, 1);
        drop(turns);
        assert_eq!(queue.push(&tenant("a"), 1, 3), Err(PushError::Closed(3)));
        assert!(queue.is_empty());
    }
}
