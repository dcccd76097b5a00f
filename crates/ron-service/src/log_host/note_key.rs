//! The key that signs a log's checkpoints when no KMS does: 32 random bytes in a file of mode
//! 0600.

use ron_crypto::{Ed25519Key, Secret32, SecretBytes};
use ron_files::Dir;
use ron_kernel::Random;
use ron_tlog::Ed25519NoteSigner;

use crate::config::read_secret_in;

/// Name of the secret key file in the data directory.
pub const KEY_FILE: &str = "note.key";
/// Length of its text.
const KEY_DIGITS: usize = 64;
/// Name of the public key file beside it; auditors pin its line.
pub const VKEY_FILE: &str = "log.vkey";

/// Reads the key, or creates it on first use. `fresh` means that no log exists yet that another key
/// has signed.
pub fn load_or_make(
    dir: &Dir,
    origin: &str,
    random: &dyn Random,
    fresh: bool,
) -> Result<Ed25519NoteSigner, String> {
    let path = dir.file(KEY_FILE);
    let there = dir
        .exists(KEY_FILE)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let seed = match (there, fresh) {
        (true, _) => read(dir)?,
        (false, true) => make(dir, random)?,
        (false, false) => {
            return Err(format!(
                "{} is missing, but the log exists; restore the key from a backup",
                path.display()
            ));
        }
    };
    let signer = named(origin, Ed25519Key::from_seed(seed.expose()))?;
    write_public(dir, &signer)?;
    Ok(signer)
}

/// A key for a log in memory.
pub fn ephemeral(origin: &str, random: &dyn Random) -> Result<Ed25519NoteSigner, String> {
    named(origin, Ed25519Key::generate(random))
}

fn named(origin: &str, key: Ed25519Key) -> Result<Ed25519NoteSigner, String> {
    Ed25519NoteSigner::new(origin, key).map_err(|e| format!("the log's origin: {e}"))
}

fn read(dir: &Dir) -> Result<Secret32, String> {
    let text = read_secret_in(dir, KEY_FILE)?;
    let mut seed = Secret32::zeroed();
    hex::decode_to_slice(text.expose(), seed.expose_mut()).map_err(|_| {
        let path = dir.file(KEY_FILE);
        format!(
            "{}: must hold 64 hex digits; restore it from a backup",
            path.display()
        )
    })?;
    Ok(seed)
}

fn make(dir: &Dir, random: &dyn Random) -> Result<Secret32, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", dir.file(KEY_FILE).display());
    let seed = Secret32::generate(random);
    let mut text = SecretBytes::zeroed(KEY_DIGITS);
    hex::encode_to_slice(seed.expose(), text.expose_mut()).expect("64 digits hold 32 bytes");
    dir.write(KEY_FILE, text.expose()).map_err(fail)?;
    Ok(seed)
}

fn write_public(dir: &Dir, signer: &Ed25519NoteSigner) -> Result<(), String> {
    let line = format!("{}\n", signer.verifier());
    let old = dir.read_small(VKEY_FILE, line.len() as u64);
    if old.is_ok_and(|old| old.as_deref() == Some(line.as_bytes())) {
        return Ok(());
    }
    dir.write_with_mode(VKEY_FILE, line.as_bytes(), 0o644)
        .map_err(|e| format!("{}: {e}", dir.file(VKEY_FILE).display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_kept_to_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let home = Dir::os(dir.path());
        let random = ron_kernel::SeededRandom::new(7);
        let first = load_or_make(&home, "t/log", &random, true).unwrap();
        let again = load_or_make(&home, "t/log", &random, false).unwrap();
        assert_eq!(first.verifier(), again.verifier());
        let path = dir.path().join(KEY_FILE);
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            load_or_make(&home, "t/log", &random, false)
                .unwrap_err()
                .contains("chmod 600")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(
            load_or_make(&home, "t/log", &random, false)
                .unwrap_err()
                .contains("missing")
        );
    }
}
