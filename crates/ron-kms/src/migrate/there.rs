//! From files to an engine.

use ron_custody::store::{FILE_NAME, KeyStore, Peeked, fill, peek, records_in, remove_from};
use ron_service::log_move::{Followed, MoveError, Show};
use ron_tlog::append::Migrated;
use ron_tlog::store::Transit;

use super::{KeyMove, beside, refused};
use crate::replay::remove;

impl KeyMove<'_> {
    /// Moves the service to the engine. It may run meanwhile; when all but the end of the log is copied, `show` is told that it has to
    /// stop, and the move goes on when it has.
    pub fn to_engine(&self, is_resumed: bool, show: Show<'_>) -> Result<Migrated, MoveError> {
        self.log.check()?;
        self.refuse_immovable()?;
        match self.log.follow(is_resumed, show)? {
            Followed::Copied(copied) => {
                let mut files = self.open_files()?;
                let newest = self.examine(&files)?;
                self.carry_keys(&mut files)?;
                self.carry_answers(&files, newest)?;
                // The file is overwritten and removed at the end, through a connection that nothing else keeps open.
                drop(files);
                let moved = self.log.close_files(*copied, show)?;
                self.open_keys()?;
                self.remove_files()?;
                Ok(moved)
            }
            Followed::Closed(_lock) => self.end_there(),
        }
    }

    /// The keys in files, as a start would accept them.
    fn open_files(&self) -> Result<KeyStore, MoveError> {
        let records = records_in(self.home(), false).map_err(refused)?;
        let store = records.map(|records| self.open(records)).transpose()?;
        let store = store.flatten().ok_or_else(|| {
            MoveError::Refused(format!("{} has no keys", self.home().path().display()))
        })?;
        if let Some(why) = store.immovable() {
            return Err(MoveError::Refused(why));
        }
        Ok(store)
    }

    /// Copies the keys, and opens the copy: the MAC of the store covers all of it but for operation ids and leaves, which are compared.
    fn carry_keys(&self, files: &mut KeyStore) -> Result<(), MoveError> {
        let rows = files.rows().map_err(beside)?;
        let from = Transit::Filling(self.log.place.to_owned());
        let mut records = self.records()?;
        fill(&mut *records, &rows, files.store_id(), &from).map_err(refused)?;
        drop(records);
        let copy = self.open(self.records()?)?;
        let copied = copy
            .map(|mut copy| copy.rows().map_err(beside))
            .transpose()?;
        if copied.as_ref() != Some(&rows) {
            let why = format!(
                "the database has other keys than the {} that were copied",
                rows.keys()
            );
            return Err(MoveError::Beside(why));
        }
        Ok(())
    }

    /// Opens the keys in the engine to nodes.
    fn open_keys(&self) -> Result<(), MoveError> {
        let store = self.open(self.records()?)?;
        let mut store = store.ok_or_else(|| {
            MoveError::Beside("the database has lost the keys that were copied".to_owned())
        })?;
        store.open_to_nodes().map_err(beside)
    }

    /// Removes what the engine has: the name of the keys goes last, so that it says whether this was done.
    pub(super) fn remove_files(&self) -> Result<(), MoveError> {
        let dir = self.journal_dir();
        let removed = remove(&dir);
        removed.map_err(|e| MoveError::Beside(format!("{}: {e}", dir.path().display())))?;
        remove_from(self.home()).map_err(beside)
    }

    /// Ends a move that was interrupted after the files were closed.
    fn end_there(&self) -> Result<Migrated, MoveError> {
        let head = self.log.head()?;
        let size_and_root = Migrated {
            size: head.size,
            root: head.root,
            ..Migrated::default()
        };
        let found = peek(&mut *self.records()?).map_err(refused)?;
        let left = self.left_in_files()?;
        let is_there = self.home().exists(FILE_NAME);
        let is_there = is_there.map_err(|e| MoveError::Refused(e.to_string()))?;
        let is_ours = |store_id| left.as_ref().is_none_or(|left| left.store_id == store_id);
        match found {
            Some(Peeked {
                transit: Some(Transit::Filling(_)),
                store_id,
            }) if is_ours(store_id) => {
                let moved = match head.transit() {
                    Some(Transit::Filling(_)) => self.log.end()?,
                    _ => size_and_root,
                };
                self.open_keys()?;
                self.remove_files()?;
                Ok(moved)
            }
            // Only the removal was interrupted.
            Some(Peeked {
                transit: None,
                store_id,
            }) if is_there && is_ours(store_id) => {
                self.remove_files()?;
                Ok(size_and_root)
            }
            _ => Err(MoveError::Refused(format!(
                "{} is the copy of a log that a database keeps, and no migration of it is to be ended",
                self.log.dir().display()
            ))),
        }
    }

    /// The keys that are still in files; `None` without any.
    pub(super) fn left_in_files(&self) -> Result<Option<Peeked>, MoveError> {
        let records = records_in(self.home(), false).map_err(refused)?;
        let peeked = records.map(|mut records| peek(&mut *records).map_err(refused));
        Ok(peeked.transpose()?.flatten())
    }
}
