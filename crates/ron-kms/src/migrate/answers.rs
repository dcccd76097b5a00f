//! The answers that are remembered for a day: in files a journal, in an engine rows with the sealed answers.

use std::collections::BTreeMap;
use std::time::Duration;

use ron_crypto::hash::sha256;
use ron_custody::store::{KeyStore, OP_ID_MS};
use ron_kernel::Deadline;
use ron_service::log_move::MoveError;
use ron_tlog::store::{CarriedId, LogUpkeep, Once};

use super::KeyMove;
use crate::audit::engine_appender::SCOPE;
use crate::replay::{Answered, CarriedAnswer, OnceId, remove};

/// Maximum time of one call to the engine.
const CALL: Duration = Duration::from_secs(60);
/// Answers, and bytes of them, that one call carries.
const RUN: usize = 512;
const RUN_BYTES: usize = 4 << 20;
/// An answer that is carried is kept so long at least, so that none expires before it was read back.
const LEFT_MIN_MS: u64 = 600_000;

/// What was carried and is to be read back: the hash of each request and of its sealed answer.
type Carried = BTreeMap<String, ([u8; 32], [u8; 32])>;

fn lost(why: impl std::fmt::Display) -> MoveError {
    MoveError::Beside(format!("the remembered answers: {why}"))
}

impl KeyMove<'_> {
    /// Copies the answers to the engine, and reads them back.
    pub(super) fn carry_answers(
        &self,
        files: &KeyStore,
        newest: Option<Answered>,
    ) -> Result<(), MoveError> {
        let (replay, mut journal) = self.journal(files)?;
        if let Some(newest) = &newest {
            journal.expect(newest);
        }
        if !journal.losses().is_empty() {
            let losses = journal.losses().join("; ");
            let why = format!(
                "some are lost ({losses}): restore the files, or start the service and accept the loss (`replay` in /readyz), then try again"
            );
            return Err(lost(why));
        }
        let now_ms = self.clock.unix_ms();
        let sealer = files.answers();
        let mut upkeep = self.log.upkeep()?;
        let (mut carried, mut run, mut bytes) = (Carried::new(), Vec::new(), 0);
        for answer in replay.carried(now_ms) {
            let CarriedAnswer {
                id,
                made_ms,
                answer,
            } = answer.map_err(lost)?;
            let sealed = sealer.seal(&id.about(), &answer.unwrap_or_default());
            carried.insert(id.key(), (id.body, sha256(&sealed)));
            bytes += sealed.len();
            let left_ms = (made_ms + OP_ID_MS).saturating_sub(now_ms);
            run.push(CarriedId {
                once: Once {
                    scope: SCOPE.to_owned(),
                    key: id.key(),
                    body_hash: id.body,
                    answer: sealed,
                },
                left: Duration::from_millis(left_ms.max(LEFT_MIN_MS)),
            });
            if run.len() >= RUN || bytes >= RUN_BYTES {
                upkeep.carry_ids(&run, Deadline::within(CALL))?;
                (run, bytes) = (Vec::new(), 0);
            }
        }
        if !run.is_empty() {
            upkeep.carry_ids(&run, Deadline::within(CALL))?;
        }
        read_back(&mut *upkeep, carried)
    }

    /// Copies the answers of all nodes to a new journal. `newest` is the newest operation that a start looks for: its answer may be
    /// more than a day old, and not in the engine any more.
    pub(super) fn bring_answers(
        &self,
        keys: &KeyStore,
        newest: Option<Answered>,
    ) -> Result<(), MoveError> {
        let now_ms = self.clock.unix_ms();
        let sealer = keys.answers();
        let mut found = Vec::new();
        for_each(&mut *self.log.upkeep()?, &mut |carried| {
            let Once {
                key,
                body_hash,
                answer,
                ..
            } = carried.once;
            let id = OnceId::of_key(&key, body_hash);
            let id = id.ok_or_else(|| lost(format!("{key} is no id")))?;
            let answer = sealer.open(&id.about(), &answer);
            let answer = answer.ok_or_else(|| {
                lost(format!(
                    "the one of {key} is damaged; try again when it is a day old"
                ))
            })?;
            let left_ms = u64::try_from(carried.left.as_millis()).unwrap_or(OP_ID_MS);
            found.push(CarriedAnswer {
                id,
                made_ms: (now_ms + left_ms).saturating_sub(OP_ID_MS),
                answer: Some(answer),
            });
            Ok(())
        })?;
        if let Some(newest) = newest
            && !found
                .iter()
                .any(|carried| carried.id.key() == newest.id().key())
        {
            found.push(CarriedAnswer {
                id: newest.id(),
                made_ms: newest.ts,
                answer: None,
            });
        }
        // The journal forgets in this order.
        found.sort_by_key(|carried| carried.made_ms);
        remove(&self.journal_dir()).map_err(lost)?;
        let (replay, mut journal) = self.journal(keys)?;
        let kept = replay.take_over(&mut journal, found, now_ms);
        kept.map_err(lost)?;
        drop(journal);
        let (_, again) = self.journal(keys)?;
        match again.losses() {
            [] => Ok(()),
            losses => Err(lost(losses.join("; "))),
        }
    }
}

/// Calls `each` with the ids of this service that the engine has.
fn for_each(
    upkeep: &mut dyn LogUpkeep,
    each: &mut dyn FnMut(CarriedId) -> Result<(), MoveError>,
) -> Result<(), MoveError> {
    let mut after = String::new();
    loop {
        let page = upkeep.ids_after(SCOPE, &after, RUN, Deadline::within(CALL))?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after.clone_from(&last.once.key);
        page.into_iter().try_for_each(&mut *each)?;
    }
}

fn read_back(upkeep: &mut dyn LogUpkeep, mut expected: Carried) -> Result<(), MoveError> {
    for_each(upkeep, &mut |CarriedId { once, .. }| {
        let found = (once.body_hash, sha256(&once.answer));
        match expected.remove(&once.key) {
            Some(carried) if carried != found => Err(lost(format!(
                "the database has another one of {}",
                once.key
            ))),
            // One that an earlier use of the database has left: it is still what was answered.
            _ => Ok(()),
        }
    })?;
    match expected.len() {
        0 => Ok(()),
        count => Err(lost(format!("{count} of them cannot be read back"))),
    }
}
