//! Ids of proofs and assertions that may be used once at all nodes of an issuer: records in an engine, taken by one thread.
//!
//! **Invariant:** an id counts as fresh only after its record is durable, and one node's transaction alone has inserted it.

use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_kernel::{Deadline, Receiver, Recv, ReplySender, Sender, SharedClock, ThreadCtx, reply};
use ron_proto::Problem;
use ron_service::records::{RecordError, RecordStore, Refusal, Value, Writer};
use ron_service::{Migration, ReadyBoard};

use crate::clients::UsedAssertion;

/// Maximum ids of one transaction.
const BATCH_MAX: usize = 256;
/// Maximum time of a transaction; the request waits that long, and occupies a worker meanwhile.
const WITHIN: Duration = Duration::from_secs(2);
/// How often expired ids are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(5);
/// Expired ids that are deleted at once, at most: a transaction that takes too long is refused, and so would the next one be.
const FORGET_MAX: i64 = 10_000;
/// Seconds after which an expired id is deleted: by then its proof is too old at every node, whatever their clocks say.
const KEPT_S: u64 = 600;
/// Readiness cause: the engine does not take ids.
pub const CAUSE: &str = "records";

pub static MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "used ids",
    sql: "
        CREATE TABLE used_id (id BLOB PRIMARY KEY, until_s INTEGER NOT NULL) WITHOUT ROWID;
        CREATE INDEX used_id_until ON used_id (until_s)
    ",
}];

/// An id that is to be used, and who waits for it.
#[derive(Debug)]
pub struct Use {
    /// Hash of what the id belongs to, and of the id.
    id: [u8; 32],
    until_s: u64,
    /// Whether it was fresh.
    answer: ReplySender<Result<bool, Problem>>,
}

/// Hands ids to the thread that records them.
#[derive(Debug)]
pub struct Once(pub Sender<Use>);

impl Once {
    /// Uses the id of `kind` that belongs to `holder`: false when it was used before, at any node.
    pub fn take(
        &self,
        kind: &str,
        (holder, id): (&str, &str),
        until_s: u64,
        deadline: Deadline,
    ) -> Result<bool, Problem> {
        let (answer, taken) = reply();
        let used = Use {
            id: hash(kind, (holder, id)),
            until_s,
            answer,
        };
        let sent = self.0.try_send(used);
        sent.map_err(|_| Problem::busy(self.0.retry_after_s()))?;
        let by = deadline.capped(WITHIN);
        taken.wait(by).unwrap_or_else(|_| Err(unknown()))
    }
}

fn hash(kind: &str, (holder, id): (&str, &str)) -> [u8; 32] {
    sha256(format!("{kind}\0{}\0{holder}\0{id}", holder.len()).as_bytes())
}

/// Of client assertions, of which a migration takes the ids along.
pub const ASSERTION: &str = "assertion";

/// Maximum time of a transaction of a migration.
const MOVED_WITHIN: Duration = Duration::from_secs(60);

/// Takes ids that were used before the records were.
pub fn carry(records: &mut dyn RecordStore, used: &[UsedAssertion]) -> Result<(), RecordError> {
    let by = Deadline::within(MOVED_WITHIN);
    records.write(Writer::Shared, by, |tx| {
        for one in used {
            let id = hash(ASSERTION, (&one.client, &one.jti));
            let row = [Value::from(&id[..]), Value::Int(one.until_s.cast_signed())];
            let sql = "INSERT INTO used_id (id, until_s) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
            tx.execute(sql, &row)?;
        }
        Ok(())
    })
}

/// When the last of the used ids ends, in Unix seconds; 0 without any.
pub fn last_end(records: &mut dyn RecordStore) -> Result<u64, RecordError> {
    let by = Deadline::within(MOVED_WITHIN);
    let rows = records.read(by, |tx| {
        tx.query(
            "SELECT until_s FROM used_id ORDER BY until_s DESC LIMIT 1",
            &[],
        )
    })?;
    let end = rows.first().map_or(Ok(0), |row| row.int(0))?;
    Ok(end.cast_unsigned())
}

/// The id may be used up.
fn unknown() -> Problem {
    let why = "it is not known whether another issuer has taken the same proof or assertion; make a new one";
    Problem::unavailable(why, 1)
}

/// Body of the thread: ends after shutdown, once the queue is empty.
pub fn run(
    ctx: &ThreadCtx,
    asked: &Receiver<Use>,
    records: &mut dyn RecordStore,
    (clock, ready): (&SharedClock, &ReadyBoard),
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut forget_at = Deadline::within(Duration::ZERO);
    loop {
        match asked.recv(&ctx.shutdown, Deadline::within(FORGET_EVERY)) {
            Recv::Item(one) => batch.push(one),
            Recv::Timeout => continue,
            Recv::Shutdown | Recv::Closed => {
                if asked.drain_into(&mut batch, BATCH_MAX) == 0 {
                    return;
                }
            }
        }
        let room = BATCH_MAX - batch.len();
        asked.drain_into(&mut batch, room);
        let now_s = clock.unix_ms() / 1000;
        let forget = forget_at.expired().then(|| now_s.saturating_sub(KEPT_S));
        let taken = take(records, &batch, forget);
        if forget.is_some() {
            forget_at = Deadline::within(FORGET_EVERY);
        }
        match &taken {
            Ok(_) => ready.clear(CAUSE),
            Err(why) => ready.degrade(CAUSE, format!("used ids cannot be recorded: {why}")),
        }
        for (at, one) in batch.drain(..).enumerate() {
            let fresh = taken.as_ref().map(|fresh| fresh[at]);
            let _ = one.answer.send(fresh.map_err(|_| unknown())); // a client that no longer waits has to make a new one
        }
    }
}

/// Which of the ids were fresh; all of them are used afterwards.
fn take(
    records: &mut dyn RecordStore,
    batch: &[Use],
    forget: Option<u64>,
) -> Result<Vec<bool>, RecordError> {
    let by = Deadline::within(WITHIN);
    let write = |records: &mut dyn RecordStore| {
        records.write(Writer::Shared, by, |tx| {
            if let Some(before) = forget {
                let before = Value::Int(before.cast_signed());
                let sql = "DELETE FROM used_id WHERE id IN
                    (SELECT id FROM used_id WHERE until_s < ?1 ORDER BY until_s LIMIT ?2)";
                tx.execute(sql, &[before, Value::Int(FORGET_MAX)])?;
            }
            // All nodes insert in one order, so that no two of their transactions wait for each other.
            let mut order: Vec<usize> = (0..batch.len()).collect();
            order.sort_by_key(|at| batch[*at].id);
            let mut fresh = vec![false; batch.len()];
            for at in order {
                let one = &batch[at];
                let row = [
                    Value::from(&one.id[..]),
                    Value::Int(one.until_s.cast_signed()),
                ];
                let sql =
                    "INSERT INTO used_id (id, until_s) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
                fresh[at] = tx.execute(sql, &row)? == 1;
            }
            Ok(fresh)
        })
    };
    match write(records) {
        Err(RecordError::Refused(Refusal::Unresolved)) => {
            // Those that waited for the earlier transaction were told to make new ones.
            records.resolve(by)?;
            write(records)
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use ron_kernel::queue::bare_queue;
    use ron_service::Store;
    use ron_service::records::FileRecords;

    use super::*;
    use crate::topology::ONCE_QUEUE;

    #[test]
    fn an_id_is_fresh_once_and_forgotten_in_time() {
        let store = Store::memory(&MIGRATIONS).unwrap();
        let mut records: Box<dyn RecordStore> = Box::new(FileRecords::new(store));
        let (queue, asked) = bare_queue(&ONCE_QUEUE, 8);
        let once = Once(queue);
        let ask = |kind: &str, holder: &str, id: &str, until_s| {
            let soon = Deadline::within(Duration::ZERO);
            assert!(
                once.take(kind, (holder, id), until_s, soon).is_err(),
                "nobody answers yet"
            );
            asked.try_recv().unwrap()
        };
        let batch = [
            ask("proof", "a", "bc", 50),
            ask("proof", "ab", "c", 50),
            ask("assertion", "a", "bc", 90),
            ask("proof", "a", "bc", 50),
        ];
        assert_eq!(
            take(&mut *records, &batch, None).unwrap(),
            [true, true, true, false]
        );
        assert_eq!(take(&mut *records, &batch, None).unwrap(), [false; 4]);
        assert_eq!(
            take(&mut *records, &batch, Some(60)).unwrap(),
            [true, true, false, false]
        );
    }
}
