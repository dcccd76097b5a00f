//! Secrets come from files that only their owner can read, or from a named environment variable;
//! never from flags.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ron_crypto::secret::SecretBytes;
use ron_files::Dir;
use zeroize::Zeroizing;

/// What a text begins with that names an environment variable instead of a file.
pub(super) const FROM_ENV: &str = "env:";

/// Maximum size of a secret file, in bytes.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Reads a secret file of at most 64 KiB; trailing line ends are removed. Refuses a file that group
/// or others can read or write, or that is not a regular file. Errors name the path and what to do,
/// never the content.
pub fn read_secret_file(path: &Path) -> Result<SecretBytes, String> {
    let name = path.display();
    let mut file =
        std::fs::File::open(path).map_err(|e| format!("secret file {name} cannot be read: {e}"))?;
    let meta = file
        .metadata()
        .map_err(|e| format!("secret file {name} cannot be examined: {e}"))?;
    if !meta.is_file() {
        return Err(format!("secret file {name} is not a regular file"));
    }
    if !ron_crypto::secret::is_private(path, &meta) {
        return Err(format!(
            "secret file {name} can be read by others (mode {:04o}); run: chmod 600 {name}",
            meta.mode() & 0o7777
        ));
    }
    if meta.len() > SECRET_BYTES_MAX {
        return Err(format!("secret file {name} is larger than 64 KiB"));
    }
    // Reserved up front: growing the buffer would leave copies of the secret in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX as usize + 1));
    file.by_ref()
        .take(SECRET_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("secret file {name} cannot be read: {e}"))?;
    let mut end = bytes.len();
    while end > 0 && matches!(bytes[end - 1], b'\n' | b'\r') {
        end -= 1;
    }
    if end == 0 {
        return Err(format!("secret file {name} is empty"));
    }
    Ok(SecretBytes::from(bytes[..end].to_vec()))
}

/// Reads a secret file of a directory that may be on another disk than that of the operating system, which has no modes that
/// could be too wide.
pub fn read_secret_in(dir: &Dir, name: &str) -> Result<SecretBytes, String> {
    if let Some(path) = dir.os_path(name) {
        return read_secret_file(&path);
    }
    let path = dir.file(name);
    let text = dir.read_small(name, SECRET_BYTES_MAX);
    match text {
        Ok(Some(text)) => Ok(SecretBytes::from(text)),
        Ok(None) => Err(format!("secret file {} is missing", path.display())),
        Err(e) => Err(format!(
            "secret file {} cannot be read: {e}",
            path.display()
        )),
    }
}

/// Reads `env:NAME` from the environment and anything else as a path.
pub fn secret_from_env_or_file(
    spec: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<SecretBytes, String> {
    match spec.strip_prefix(FROM_ENV) {
        Some(name) => env(name)
            .filter(|text| !text.is_empty())
            .map(|text| SecretBytes::from(text.into_bytes()))
            .ok_or_else(|| format!("environment variable {name} is not set")),
        None => read_secret_file(Path::new(spec)),
    }
}
