//! The ledger of a data directory as `ron ledger migrate` moves it: there is nothing beside its log.

use ron_files::Dir;
use ron_kernel::Random;
use ron_service::DataDir;
use ron_service::log_host::note_key;
use ron_service::log_move::MoveError;
use ron_tlog::append::{Migrated, from_copy};
use ron_tlog::{LogOptions, VerifierKey};

/// Directory of the log in the data directory.
pub const LOG: &str = "log";

/// Makes the copy of a node, which does not run, a ledger in files of its own when its engine is lost for good. What only the engine
/// had is lost with it.
pub fn without_engine(
    data: &Dir,
    vkey: &VerifierKey,
    random: &dyn Random,
) -> Result<Migrated, MoveError> {
    let log = data.path().join(LOG);
    let _lock = DataDir::at(data.clone())?;
    let signer = note_key::load_or_make(data, vkey.name(), random, false);
    let signer = signer.map_err(MoveError::Refused)?;
    if signer.verifier() != vkey {
        let why = format!(
            "{} is not the key that the log was signed with",
            data.file(note_key::KEY_FILE).display()
        );
        return Err(MoveError::Refused(why));
    }
    let options = LogOptions::new(vkey.name()).verified_by(vkey.clone());
    Ok(from_copy(data.disk().clone(), &log, options, &signer)?)
}
