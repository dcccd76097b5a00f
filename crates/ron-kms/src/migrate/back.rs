//! From an engine to files.

use std::time::Duration;

use ron_custody::store::{KeyStore, Peeked, StoreError, fill, forget, peek, records_in};
use ron_kernel::{Deadline, Shutdown};
use ron_service::log_move::{MoveError, Show};
use ron_service::records::RecordStore;
use ron_tlog::append::Migrated;
use ron_tlog::store::Transit;

use super::{KeyMove, beside, refused};

/// How long a change of another node is waited for, whose leaf is not in its log yet.
const UNFINISHED: Duration = Duration::from_secs(10);
/// Pause before such a node is looked at again.
const AGAIN: Duration = Duration::from_millis(100);

impl KeyMove<'_> {
    /// Makes the data directory of this node, which does not run, a key service in files: its audit log, and the keys and the
    /// remembered answers of all nodes. No node signs any more; the logs of the others stay in the engine as they are.
    pub fn to_files(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        let is_copy = self.log.is_copy()?;
        let _lock = self.log.lock()?;
        let found = peek(&mut *self.records()?).map_err(refused)?;
        let found =
            found.ok_or_else(|| MoveError::Refused("the database has no keys".to_owned()))?;
        self.refuse_others(&found, is_resumed)?;
        let left = self.left_in_files()?;
        match &left {
            Some(left) if left.store_id != found.store_id => {
                let home = self.home().path().display();
                return Err(MoveError::Refused(format!(
                    "{home} has other keys: move them away"
                )));
            }
            // An earlier move back lacks nothing but its last step.
            Some(Peeked { transit: None, .. }) if !is_copy && found.transit.is_some() => {
                let moved = self.log.log_to_files(None, is_resumed, show)?;
                forget(&mut *self.records()?).map_err(beside)?;
                return Ok(moved);
            }
            Some(Peeked { transit: None, .. }) if !is_copy => {
                let home = self.home().path().display();
                return Err(MoveError::Refused(format!(
                    "{home} holds keys of its own already"
                )));
            }
            // Left by a move there: once the log is in files, nothing else tells that these are not the keys.
            _ if is_copy => self.remove_files()?,
            _ => {}
        }
        // Opened before anything is closed, to find a seal key that is missing.
        self.opened()?;
        let moved = self.log.log_to_files(None, is_resumed, show)?;
        let mut keys = self.opened()?;
        let newest = self.examine(&keys)?;
        self.close(&mut keys)?;
        self.bring_keys(&mut keys)?;
        self.bring_answers(&keys, newest)?;
        self.open_file()?;
        forget(&mut *self.records()?).map_err(beside)?;
        Ok(moved)
    }

    /// Refuses keys that another migration has.
    fn refuse_others(&self, found: &Peeked, is_resumed: bool) -> Result<(), MoveError> {
        let why = match &found.transit {
            None => return Ok(()),
            Some(Transit::Moved(at)) if at == self.log.place && is_resumed => return Ok(()),
            Some(Transit::Moved(at)) if at == self.log.place => {
                "an earlier migration has begun to move the keys here: go on with --resume"
                    .to_owned()
            }
            Some(transit) => format!("the keys in the database are not in use: {transit}"),
        };
        Err(MoveError::Refused(why))
    }

    fn opened(&self) -> Result<KeyStore, MoveError> {
        let keys = self.open(self.records()?)?;
        keys.ok_or_else(|| MoveError::Beside("the database has lost its keys".to_owned()))
    }

    /// Ends the use of the keys by all nodes.
    fn close(&self, keys: &mut KeyStore) -> Result<(), MoveError> {
        let to = Transit::Moved(self.log.place.to_owned());
        if peek(&mut *self.records()?)
            .map_err(beside)?
            .is_some_and(|found| found.transit.is_some())
        {
            return Ok(());
        }
        let (_trigger, never) = Shutdown::pair();
        let give_up = Deadline::within(UNFINISHED);
        loop {
            match keys.close_to_nodes(&to) {
                Err(StoreError::Unfinished(_)) if !give_up.expired() => {
                    never.wait(Deadline::within(AGAIN));
                    keys.refresh().map_err(beside)?;
                }
                closed => return closed.map_err(beside),
            }
        }
    }

    /// Copies the keys to a file, which no service opens yet, and compares them.
    fn bring_keys(&self, keys: &mut KeyStore) -> Result<(), MoveError> {
        let rows = keys.rows().map_err(beside)?;
        let from = Transit::Filling(self.log.engine.place());
        let mut records = self.file()?;
        fill(&mut *records, &rows, keys.store_id(), &from).map_err(beside)?;
        drop(records);
        let copy = self.open(self.file()?)?;
        let copied = copy
            .map(|mut copy| copy.rows().map_err(beside))
            .transpose()?;
        if copied.as_ref() != Some(&rows) {
            let why = format!(
                "keys.db has other keys than the {} that were copied",
                rows.keys()
            );
            return Err(MoveError::Beside(why));
        }
        Ok(())
    }

    /// The tables in the data directory.
    fn file(&self) -> Result<Box<dyn RecordStore>, MoveError> {
        let records = records_in(self.home(), true).map_err(beside)?;
        Ok(records.expect("they are made where they are missing"))
    }

    fn open_file(&self) -> Result<(), MoveError> {
        let opened = self.open(self.file()?)?;
        let mut opened = opened.ok_or_else(|| MoveError::Beside("keys.db is empty".to_owned()))?;
        opened.open_to_nodes().map_err(beside)
    }
}
