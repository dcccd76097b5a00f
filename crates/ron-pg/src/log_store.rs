//! A log in PostgreSQL: one session, one statement for an append.

use std::sync::Arc;

use ron_kernel::Deadline;
use ron_tlog::store::{
    Appended, Batch, Head, LogStore, MakeBatch, Once, Place, Refusal, Repeat, StoreError,
    StoredBatch, Writer,
};
use ron_tlog::tree::Hash;

use crate::connection::{Param, PgError, Rows, Waiter};
use crate::session::{Commits, PgLogOptions, Session, of_read, of_write};
use crate::statements::{Right, Statements, append_params};

/// Batches that one read looks at, at most.
const READ_BATCHES: i64 = 1_024;

/// A claim without a known outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingClaim {
    seen: u64,
    /// An earlier claim of the same call was lost, and may still come into force.
    again: bool,
    /// True: the session still waits for its answer. False: the session is gone.
    is_sent: bool,
}

/// One log, through one session that is opened again when it is lost. At most one earlier session
/// of this store may still be waiting at the server: after an append without an outcome only a
/// claim is sent, and that claim is waited for as long as its server is the primary.
pub struct PgLogStore {
    options: PgLogOptions,
    waiter: Arc<Waiter>,
    session: Option<Session>,
    /// An append of an owner has no known outcome; a claim resolves it.
    unresolved: bool,
    claim: Option<PendingClaim>,
    sql: Statements,
}

impl PgLogStore {
    /// Connects with the first call. The tables are made by [`crate::Upkeep::install`].
    pub fn new(options: PgLogOptions, waiter: Arc<Waiter>) -> Self {
        Self {
            sql: Statements::of(&options.schema, options.guard.as_deref()),
            options,
            waiter,
            session: None,
            unresolved: false,
            claim: None,
        }
    }

    /// The session, opened if there is none.
    fn open(&mut self, deadline: Deadline) -> Result<&mut Session, StoreError> {
        if self.claim.is_some_and(|claim| claim.is_sent) {
            return Err(Refusal::Unresolved.into());
        }
        if self.session.is_none() {
            let commits = Commits::Replicated;
            let session = self.options.open(commits, &self.waiter, deadline)?;
            self.session = Some(session);
        }
        Ok(self.session.as_mut().expect("opened above"))
    }

    /// The session, for a write: refused unless its commits are durable beyond one host.
    fn writable(&mut self, deadline: Deadline) -> Result<&mut Session, StoreError> {
        let checked = self.open(deadline)?.check(deadline);
        if checked.is_err() {
            self.session = None; // another server may be the primary by the next call
        }
        checked?;
        self.open(deadline)
    }

    /// A query that changes nothing.
    fn read(
        &mut self,
        sql: impl Fn(&Statements) -> &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Rows, StoreError> {
        self.open(deadline)?;
        let (session, sql) = (self.session.as_mut().expect("opened above"), sql(&self.sql));
        let rows = session.connection.query(sql, params, deadline);
        self.kept(rows).map_err(of_read)
    }

    /// A statement that is a transaction of its own and changes something. An unknown outcome
    /// closes the session: its query is never cancelled, and nothing waits for it here.
    fn write(
        &mut self,
        sql: impl Fn(&Statements) -> &str,
        params: &[Param<'_>],
        deadline: Deadline,
    ) -> Result<Rows, StoreError> {
        self.writable(deadline)?;
        let (session, sql) = (self.session.as_mut().expect("opened above"), sql(&self.sql));
        let rows = session.connection.query(sql, params, deadline);
        let outcome = of_write(self.kept(rows));
        if matches!(outcome, Err(StoreError::Unknown(_))) {
            self.session = None;
        }
        outcome
    }

    /// Forgets the session after an error that has ended it or left it in the middle of a query.
    fn kept<T>(&mut self, outcome: Result<T, PgError>) -> Result<T, PgError> {
        if outcome.as_ref().is_err_and(PgError::ends_session) {
            self.session = None;
        }
        outcome
    }

    fn append_alone(
        &mut self,
        by: Right,
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<u64, StoreError> {
        let log = self.options.log.clone();
        let params = append_params(&log, by, batch);
        let rows = self.write(|sql| by.append(sql), &params, deadline)?;
        Ok(rows.changed())
    }

    /// What 0 rows of an append at `place` mean: where nothing is in the way of it any more, the guard was.
    fn not_appended(&mut self, by: Right, place: &Place, deadline: Deadline) -> StoreError {
        let lost = match by.writer {
            Writer::Owner { .. } => StoreError::Fenced,
            Writer::Shared => StoreError::Moved,
        };
        if by.version.is_none() {
            return lost;
        }
        let head = match self.head(deadline) {
            Ok(head) => head,
            Err(error) => return error,
        };
        let is_holder = match by.writer {
            Writer::Owner { epoch } => epoch == head.epoch,
            Writer::Shared => true,
        };
        if is_holder && (head.size, head.root) == (place.first, place.before) {
            return StoreError::Stale;
        }
        lost
    }

    /// Ids first, then the batch, in one transaction. Until COMMIT is sent nothing is unknown: a
    /// session that is lost before it rolls back.
    fn append_once(
        &mut self,
        by: Right,
        once: &[Once],
        make: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        self.writable(deadline)?;
        self.read(|_| "BEGIN", &[], deadline)?;
        let prepared = self.prepare(by, once, make, deadline);
        match prepared {
            Ok((appended @ Appended { place: Some(_), .. }, 1)) => {
                self.write(|_| "COMMIT", &[], deadline).and_then(|rows| {
                    // A failed transaction answers COMMIT with ROLLBACK.
                    if rows.tag == "COMMIT" {
                        return Ok(appended);
                    }
                    Err(Refusal::Rejected("the transaction was rolled back".into()).into())
                })
            }
            Ok((appended, _)) => {
                if let Err(error) = self.read(|_| "ROLLBACK", &[], deadline) {
                    // A write through another session would make nothing final of what was read through this one.
                    self.session = None;
                    return Err(error);
                }
                if let Some(place) = &appended.place {
                    return Err(self.not_appended(by, place, deadline));
                }
                // Before the confirmation, which makes what was read final.
                self.compare_guard(by, deadline)?;
                // Answers that were read are given only when they cannot vanish any more.
                self.confirm(deadline).map_err(|error| match error {
                    StoreError::Unknown(why) => Refusal::Unavailable(why).into(),
                    error => error,
                })?;
                Ok(appended)
            }
            Err(error) => {
                self.session = None; // the server rolls back
                Err(error)
            }
        }
    }

    /// Compares the guard where nothing is appended: a caller may answer what was done before only from the newest records.
    fn compare_guard(&mut self, by: Right, deadline: Deadline) -> Result<(), StoreError> {
        let Some(version) = by.version else {
            return Ok(());
        };
        let rows = self.read(|sql| sql.guard(), &[], deadline)?;
        if !rows.is_empty() && rows.count(0, 0).map_err(of_read)? == version {
            return Ok(());
        }
        Err(StoreError::Stale)
    }

    /// The statements of a transaction before its COMMIT, and the number of batches appended.
    fn prepare(
        &mut self,
        by: Right,
        once: &[Once],
        make: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<(Appended, u64), StoreError> {
        let scopes: Vec<&str> = once.iter().map(|id| id.scope.as_str()).collect();
        let keys: Vec<&str> = once.iter().map(|id| id.key.as_str()).collect();
        let hashes: Vec<&[u8]> = once.iter().map(|id| id.body_hash.as_slice()).collect();
        let answers: Vec<&[u8]> = once.iter().map(|id| id.answer.as_slice()).collect();
        let kept_ms = self.options.once_kept.as_millis() as i64;
        let ids = [
            Param::Texts(&scopes),
            Param::Texts(&keys),
            Param::BytesList(&hashes),
            Param::BytesList(&answers),
            Param::Int8(kept_ms),
        ];
        let taken = self.read(|sql| &sql.take_ids, &ids, deadline)?;
        let mut repeats = Vec::new();
        if taken.len() < once.len() {
            let fresh = (0..taken.len())
                .map(|row| Ok((taken.text(row, 0)?, taken.text(row, 1)?)))
                .collect::<Result<Vec<_>, PgError>>()
                .map_err(of_read)?;
            let stored = self.read(|sql| &sql.stored_ids, &ids[..2], deadline)?;
            for row in 0..stored.len() {
                let at = stored.count(row, 0).map_err(of_read)? as usize - 1;
                if fresh.contains(&(scopes[at], keys[at])) {
                    continue;
                }
                repeats.push(Repeat {
                    at,
                    same_body: stored.bytes(row, 1).map_err(of_read)? == once[at].body_hash,
                    answer: stored.bytes(row, 2).map_err(of_read)?.to_vec(),
                });
            }
        }
        if taken.len() + repeats.len() != once.len() {
            // Such a batch would be appended without having taken the id.
            return Err(Refusal::Unavailable("an id expired meanwhile".into()).into());
        }
        let batch = make(&repeats);
        let changed = match &batch {
            None => 0,
            Some(batch) => {
                let log = self.options.log.clone();
                let params = append_params(&log, by, batch);
                self.read(|sql| by.append(sql), &params, deadline)?
                    .changed()
            }
        };
        let place = batch.map(|batch| batch.place);
        Ok((Appended { place, repeats }, changed))
    }

    /// Leaves a claim that waits at a server which is no more the primary. A host that is stopped never answers it, and
    /// its connections stay open.
    fn leave_old_primary(&mut self, deadline: Deadline) {
        let (Some(claim), Some(waiting)) = (self.claim, &self.session) else {
            return;
        };
        // The other half is for the claim.
        let by = Deadline::within(deadline.remaining() / 2);
        let opened = self.options.open(Commits::Replicated, &self.waiter, by);
        if let Some(session) = opened.ok().filter(|now| now.server != waiting.server) {
            self.session = Some(session);
            self.claim = Some(PendingClaim {
                again: true,
                is_sent: false,
                ..claim
            });
        }
    }

    /// Sends a claim, or goes on with the one whose outcome is not known.
    fn send_claim(&mut self, seen: u64, deadline: Deadline) -> Result<(), StoreError> {
        if self
            .claim
            .is_some_and(|claim| claim.is_sent && claim.seen == seen)
        {
            self.leave_old_primary(deadline);
        }
        let (compared, again) = match self.claim {
            Some(claim) if claim.seen != seen => return Err(Refusal::Unresolved.into()),
            Some(claim) if claim.is_sent => return Ok(()),
            Some(_) => (self.own_epoch(seen, deadline)?.unwrap_or(seen), true),
            None => (seen, false),
        };
        self.writable(deadline)?;
        let session = self.session.as_mut().expect("opened above");
        let params = [
            Param::Text(&self.options.log),
            Param::Int8(compared as i64),
            Param::Text(&self.options.holder),
        ];
        let sent = session.connection.send(&self.sql.claim, &params);
        let is_sent = sent.is_ok();
        self.claim = Some(PendingClaim {
            seen,
            again,
            is_sent,
        });
        sent.map_err(|error| {
            self.session = None;
            StoreError::Unknown(error.to_string())
        })
    }

    /// The epoch of this holder, if it is past `seen`: a claim whose answer was lost is in force.
    fn own_epoch(&mut self, seen: u64, deadline: Deadline) -> Result<Option<u64>, StoreError> {
        let head = self.head(deadline)?;
        let is_ours = head.epoch > seen && head.holder == self.options.holder;
        Ok(is_ours.then_some(head.epoch))
    }

    /// The answer to the claim that was sent: `None` when its epoch was not the newest.
    fn finish_claim(&mut self, seen: u64, deadline: Deadline) -> Result<Option<Head>, StoreError> {
        let session = self.session.as_mut().expect("a claim is on its way");
        let outcome = session.connection.finish(deadline);
        if matches!(outcome, Err(PgError::TimedOut)) {
            // Waited for by the next call: a second claim would be fenced by the first.
            return Err(StoreError::Unknown("the claim waits at the server".into()));
        }
        let outcome = of_write(self.kept(outcome));
        if let Err(StoreError::Unknown(_)) = outcome {
            self.session = None;
            self.claim = Some(PendingClaim {
                seen,
                again: true,
                is_sent: false,
            });
        } else if let Some(claim) = &mut self.claim {
            claim.is_sent = false;
        }
        let rows = outcome?;
        (!rows.is_empty()).then(|| head(&rows)).transpose()
    }
}

fn hash(rows: &Rows, row: usize, column: usize) -> Result<Hash, StoreError> {
    let bytes = rows.bytes(row, column).map_err(of_read)?.try_into();
    bytes.map_err(|_| StoreError::Damaged("a root has not 32 bytes".into()))
}

fn head(rows: &Rows) -> Result<Head, StoreError> {
    if rows.is_empty() {
        return Err(Refusal::Rejected("the log has no row: install it first".into()).into());
    }
    Ok(Head {
        size: rows.count(0, 0).map_err(of_read)?,
        root: hash(rows, 0, 1)?,
        epoch: rows.count(0, 2).map_err(of_read)?,
        holder: rows.text(0, 3).map_err(of_read)?.to_owned(),
    })
}

impl LogStore for PgLogStore {
    fn head(&mut self, deadline: Deadline) -> Result<Head, StoreError> {
        let log = self.options.log.clone();
        head(&self.read(|sql| &sql.head, &[Param::Text(&log)], deadline)?)
    }

    fn claim(&mut self, seen: u64, deadline: Deadline) -> Result<Head, StoreError> {
        loop {
            self.send_claim(seen, deadline)?;
            let again = self.claim.is_some_and(|claim| claim.again);
            match self.finish_claim(seen, deadline) {
                Ok(None) => {}
                Ok(Some(head)) => {
                    (self.claim, self.unresolved) = (None, false);
                    return Ok(head);
                }
                Err(error) => {
                    if matches!(error, StoreError::Refused(_)) && !again {
                        self.claim = None; // nothing of it is left
                    }
                    return Err(error);
                }
            }
            // It may be fenced by its own holder: by the claim before it, which was lost. Each turn
            // finds a higher epoch, and there are only as many as claims were lost.
            if !again || self.own_epoch(seen, deadline)?.is_none() {
                self.claim = None;
                return Err(StoreError::Fenced);
            }
        }
    }

    fn append_guarded(
        &mut self,
        version: Option<u64>,
        writer: Writer,
        once: &[Once],
        batch: &mut MakeBatch<'_>,
        deadline: Deadline,
    ) -> Result<Appended, StoreError> {
        if version.is_some() && !self.sql.has_guard() {
            return Err(Refusal::Rejected("this store has no guard".into()).into());
        }
        let by = Right { writer, version };
        let is_owner = matches!(writer, Writer::Owner { .. });
        if is_owner && (self.unresolved || self.claim.is_some()) {
            return Err(Refusal::Unresolved.into());
        }
        let ids = once.iter().map(|id| (&id.scope, &id.key));
        if !ids.is_sorted_by(|one, next| one < next) {
            return Err(Refusal::Rejected("ids must be sorted and distinct".into()).into());
        }
        let outcome = if once.is_empty() {
            let Some(batch) = batch(&[]) else {
                return Ok(Appended {
                    place: None,
                    repeats: Vec::new(),
                });
            };
            match self.append_alone(by, &batch, deadline) {
                Ok(1) => Ok(Appended {
                    place: Some(batch.place),
                    repeats: Vec::new(),
                }),
                Ok(_) => Err(self.not_appended(by, &batch.place, deadline)),
                Err(error) => Err(error),
            }
        } else {
            self.append_once(by, once, batch, deadline)
        };
        self.unresolved |= is_owner && matches!(outcome, Err(StoreError::Unknown(_)));
        outcome
    }

    fn append_run(
        &mut self,
        epoch: u64,
        run: &[Batch],
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        if self.unresolved || self.claim.is_some() {
            return Err(Refusal::Unresolved.into());
        }
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(());
        };
        let (first, last) = (first.place, last.place);
        let each = |number: fn(&Place) -> String| -> Vec<String> {
            run.iter().map(|batch| number(&batch.place)).collect()
        };
        let (firsts, counts) = (
            each(|place| place.first.to_string()),
            each(|place| place.count.to_string()),
        );
        let firsts: Vec<&str> = firsts.iter().map(String::as_str).collect();
        let counts: Vec<&str> = counts.iter().map(String::as_str).collect();
        let befores: Vec<&[u8]> = run.iter().map(|b| b.place.before.as_slice()).collect();
        let roots: Vec<&[u8]> = run.iter().map(|b| b.place.root.as_slice()).collect();
        let frames: Vec<&[u8]> = run.iter().map(|b| b.frame.as_slice()).collect();
        let log = self.options.log.clone();
        let params = [
            Param::Text(&log),
            Param::Int8(first.first as i64),
            Param::Int8(last.end() as i64),
            Param::Bytes(&last.root),
            Param::Bytes(&first.before),
            Param::Int8(epoch as i64),
            Param::Texts(&firsts),
            Param::Texts(&counts),
            Param::BytesList(&befores),
            Param::BytesList(&roots),
            Param::BytesList(&frames),
        ];
        let written = self.write(|sql| &sql.append_run, &params, deadline);
        self.unresolved |= matches!(written, Err(StoreError::Unknown(_)));
        match written?.changed() {
            0 => Err(StoreError::Fenced),
            _ => Ok(()),
        }
    }

    fn read_from(
        &mut self,
        first: u64,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<Vec<StoredBatch>, StoreError> {
        let log = self.options.log.clone();
        let params = [
            Param::Text(&log),
            Param::Int8(first as i64),
            Param::Int8(i64::try_from(bytes_max).unwrap_or(i64::MAX)),
            Param::Int8(READ_BATCHES),
        ];
        let rows = self.read(|sql| &sql.read, &params, deadline)?;
        let mut next = first;
        let mut found = Vec::with_capacity(rows.len());
        for row in 0..rows.len() {
            let place = Place {
                first: rows.count(row, 0).map_err(of_read)?,
                count: rows.int4(row, 1).map_err(of_read)?.unsigned_abs(),
                before: hash(&rows, row, 5)?,
                root: hash(&rows, row, 3)?,
            };
            let root = found
                .last()
                .map(|stored: &StoredBatch| stored.batch.place.root);
            if place.first != next || root.is_some_and(|root| root != place.before) {
                return Err(StoreError::Damaged(format!(
                    "the batch at {} does not continue the one before, which ends at {next}",
                    place.first
                )));
            }
            next = place.end();
            let frame = rows.bytes(row, 4).map_err(of_read)?.to_vec();
            found.push(StoredBatch {
                batch: Batch { place, frame },
                epoch: rows.count(row, 2).map_err(of_read)?,
            });
        }
        Ok(found)
    }

    fn confirm(&mut self, deadline: Deadline) -> Result<(), StoreError> {
        // A record in the server's log and a commit, and nothing in a table.
        let sql = "SELECT pg_logical_emit_message(true, 'ron', '') IS NOT NULL";
        self.write(|_| sql, &[], deadline).map(|_| ())
    }

    fn put_checkpoint(
        &mut self,
        writer: Writer,
        size: u64,
        note: &str,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let log = self.options.log.clone();
        let epoch = match writer {
            Writer::Owner { epoch } => epoch as i64,
            Writer::Shared => -1,
        };
        let params = [
            Param::Text(&log),
            Param::Int8(size as i64),
            Param::Int8(epoch),
            Param::Bytes(note.as_bytes()),
        ];
        let rows = self.write(|sql| &sql.put_checkpoint, &params, deadline)?;
        if rows.changed() == 0 {
            return Err(StoreError::Fenced);
        }
        Ok(())
    }

    fn checkpoint(&mut self, deadline: Deadline) -> Result<Option<(u64, String)>, StoreError> {
        let log = self.options.log.clone();
        let rows = self.read(|sql| &sql.checkpoint, &[Param::Text(&log)], deadline)?;
        if rows.is_empty() {
            return Ok(None);
        }
        let size = rows.count(0, 0).map_err(of_read)?;
        let note = rows.text(0, 1).map_err(of_read)?.to_owned();
        Ok(Some((size, note)))
    }
}
