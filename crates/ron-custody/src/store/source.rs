//! Sources of the seal key: a key file, a passphrase file, a blob that a TPM unseals, or random (memory backend).

use ron_proto::kms::KeyBackend;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ron_crypto::kdf::{Argon2Params, argon2id};
use ron_crypto::secret::{Secret32, SecretBytes};
use ron_files::Dir;
use ron_kernel::{Deadline, Random};
use ron_service::config::{read_secret_file, read_secret_in};

use super::{StoreError, StoreSettings};
use crate::backend::{Backends, DeviceError};

/// Maximum time for the TPM to unseal the seal key.
const TPM_WAIT: Duration = Duration::from_secs(3);

/// Where the seal key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealSource {
    /// A file of 64 hex digits; made when the store is new and `may_create` is set.
    KeyFile {
        path: PathBuf,
        /// True only for the default path inside the data directory.
        may_create: bool,
    },
    /// A passphrase for Argon2id.
    Passphrase(PathBuf),
    /// A blob that only this TPM unseals; made when the store is new.
    Tpm(PathBuf),
    /// A random key that is never written.
    Ephemeral,
}

/// Reads or makes the seal key. `salt` is the store's; `new_store` allows making a key file
/// at the default path, or a TPM blob.
pub fn seal_key(
    settings: &StoreSettings,
    salt: &[u8; 16],
    new_store: bool,
    random: &dyn Random,
    backends: &Backends,
) -> Result<Secret32, StoreError> {
    match &settings.seal {
        SealSource::Tpm(path) => tpm_key(path, new_store, random, backends),
        SealSource::Ephemeral => Ok(Secret32::generate(random)),
        SealSource::Passphrase(path) => {
            let passphrase = read_secret_file(path).map_err(StoreError::SealKey)?;
            argon2id(passphrase.expose(), salt, Argon2Params::SEALING)
                .map_err(|e| StoreError::SealKey(format!("seal.passphrase_file: {e}")))
        }
        SealSource::KeyFile { path, may_create } => {
            // The default path is in the data directory, which may be on another disk than that of the operating system.
            let home = settings.home.as_ref().filter(|_| *may_create);
            let (dir, name) = match home {
                Some(home) => (home.clone(), file_name(path)),
                None => beside(path),
            };
            let there = dir.exists(&name);
            let there = there.map_err(|e| StoreError::SealKey(format!("{}: {e}", path.display())));
            // Never for an existing store, whose records a new key could not open.
            if *may_create && new_store {
                if there? {
                    // A start that was killed may have made it without the sync that makes it durable.
                    let kept = dir.sync();
                    kept.map_err(|e| StoreError::SealKey(format!("{}: {e}", path.display())))?;
                } else {
                    make_key_file(&dir, &name, random)?;
                }
            }
            let text = read_secret_in(&dir, &name);
            parse_hex(path, &text.map_err(StoreError::SealKey)?)
        }
    }
}

/// The seal key from a blob that only this TPM unseals; made with a new store.
fn tpm_key(
    path: &Path,
    new_store: bool,
    random: &dyn Random,
    backends: &Backends,
) -> Result<Secret32, StoreError> {
    let tpm = backends.holder(&KeyBackend::Tpm.into());
    let failed = |e: DeviceError| StoreError::SealKey(format!("seal.tpm_file: {e}"));
    if new_store && !path.exists() {
        let key = Secret32::generate(random);
        let secret = SecretBytes::from_slice(key.expose());
        let blob = tpm
            .seal(&secret, Deadline::within(TPM_WAIT))
            .map_err(failed)?;
        let (dir, name) = beside(path);
        write_new(&dir, &name, hex::encode(blob).as_bytes())?;
        return Ok(key);
    }
    let unreadable =
        || StoreError::SealKey(format!("{} does not hold a sealed key", path.display()));
    let text = read_secret_file(path).map_err(StoreError::SealKey)?;
    let blob = hex::decode(text.expose()).map_err(|_| unreadable())?;
    let secret = tpm
        .unseal(&blob, Deadline::within(TPM_WAIT))
        .map_err(failed)?;
    let raw: &[u8; 32] = secret.expose().try_into().map_err(|_| unreadable())?;
    Ok(Secret32::from_slice(raw))
}

fn parse_hex(path: &Path, text: &SecretBytes) -> Result<Secret32, StoreError> {
    let mut key = Secret32::zeroed();
    hex::decode_to_slice(text.expose(), key.expose_mut()).map_err(|_| {
        StoreError::SealKey(format!(
            "seal key file {} must hold 64 hex digits; make one with: openssl rand -hex 32",
            path.display()
        ))
    })?;
    Ok(key)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Directory and name of a file of the operating system.
fn beside(path: &Path) -> (Dir, String) {
    let dir = path.parent().unwrap_or(Path::new("."));
    (Dir::os(dir), file_name(path))
}

fn make_key_file(dir: &Dir, name: &str, random: &dyn Random) -> Result<(), StoreError> {
    let key = Secret32::generate(random);
    let text = zeroize::Zeroizing::new(hex::encode(key.expose()));
    write_new(dir, name, text.as_bytes())
}

/// Writes a new file that only its owner can read, durably: without it the store is lost.
fn write_new(dir: &Dir, name: &str, text: &[u8]) -> Result<(), StoreError> {
    dir.write(name, text).map_err(|e| {
        let path = dir.file(name);
        StoreError::SealKey(format!(
            "seal key file {} cannot be made: {e}",
            path.display()
        ))
    })
}
