//! Where the rows are: in a file of this host, or in an engine that several hosts reach. The statements are the same.

use std::time::Duration;

use ron_files::DiskRoom;
use ron_kernel::{Deadline, DiskWatch};
use ron_service::Store;
use ron_service::records::{FileRecords, RecordError, RecordStore, Row, Statements, Writer};

use super::StoreError;

/// Maximum wait for one transaction in an engine; a file does not wait.
const ENGINE_WAIT: Duration = Duration::from_secs(5);

pub(super) enum Db {
    File(Box<FileRecords>),
    Engine(Box<dyn RecordStore>),
}

impl Db {
    pub fn of_file(store: Store) -> Self {
        Self::File(Box::new(FileRecords::new(store)))
    }

    pub fn records(&mut self) -> &mut dyn RecordStore {
        match self {
            Self::File(records) => &mut **records,
            Self::Engine(records) => &mut **records,
        }
    }

    /// Whether other nodes may change the rows.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Engine(_))
    }

    /// The file, for what an engine cannot do: overwriting, and watching its disk.
    pub fn file(&mut self) -> Option<&mut Store> {
        match self {
            Self::File(records) => Some(records.store()),
            Self::Engine(_) => None,
        }
    }

    pub fn watch_disk(&mut self, watch: DiskWatch) {
        if let Some(file) = self.file() {
            // Room is checked before a change is planned; a change that has begun may use the reserve.
            file.watch_disk(watch, DiskRoom::unlimited());
        }
    }

    /// Queries of one moment; `work` may run several times. What it returns cannot vanish any more.
    pub fn read<T>(
        &mut self,
        work: impl FnMut(&mut dyn Statements) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::within(ENGINE_WAIT);
        let records = self.records();
        let found = records.read(deadline, work)?;
        // Until a write of ours has followed, an engine may lose with its primary what was read.
        records.confirm(deadline)?;
        Ok(found)
    }

    /// One transaction, durable when this returns; `work` may run several times.
    pub fn write(
        &mut self,
        work: impl FnMut(&mut dyn Statements) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let deadline = Deadline::within(ENGINE_WAIT);
        self.records().write(Writer::Shared, deadline, work)
    }

    /// Finds out what became of a transaction whose outcome is unknown, if there is one. Reads afterwards show it or not.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        match self.records().resolve(Deadline::within(ENGINE_WAIT)) {
            // Nothing is unknown.
            Ok(_) | Err(RecordError::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// An integer that was never negative.
pub(super) fn unsigned(row: &Row, column: usize) -> Result<u64, StoreError> {
    Ok(row.int(column)?.cast_unsigned())
}

/// As [`unsigned`], or `None` for NULL.
pub(super) fn optional(row: &Row, column: usize) -> Result<Option<u64>, StoreError> {
    if row.is_null(column) {
        return Ok(None);
    }
    unsigned(row, column).map(Some)
}

/// The number of a version.
pub(super) fn number(row: &Row, column: usize) -> Result<u32, StoreError> {
    let found = row.int(column)?;
    u32::try_from(found).map_err(|_| StoreError::Tampered(format!("the number {found}")))
}

/// Bytes of a fixed length.
pub(super) fn bytes<const N: usize>(row: &Row, column: usize) -> Result<[u8; N], StoreError> {
    let found = row.blob(column)?;
    let found = found.try_into();
    found.map_err(|_| StoreError::Tampered("a value of another length".into()))
}
