//! The credential of a caller: a bearer token or none.

use std::path::Path;

use ron_crypto::secret::SecretBytes;

/// Maximum size of a token file, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 8 * 1024;
const SCHEME: &[u8] = b"Bearer ";

/// A bearer token, or none. Never printed; stored as the whole header value, so that no call makes
/// a copy.
pub struct Credential(Option<SecretBytes>);

impl Credential {
    pub fn none() -> Self {
        Self(None)
    }

    /// A token in memory.
    pub fn bearer(token: &str) -> Self {
        let mut value = SecretBytes::zeroed(SCHEME.len() + token.len());
        let (scheme, rest) = value.expose_mut().split_at_mut(SCHEME.len());
        scheme.copy_from_slice(SCHEME);
        rest.copy_from_slice(token.as_bytes());
        Self(Some(value))
    }

    /// A token from a file, which only its owner may be able to read.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let meta = std::fs::metadata(path).map_err(|e| format!("token file {name}: {e}"))?;
        if !ron_crypto::secret::is_private(path, &meta) {
            return Err(format!(
                "token file {name} can be read by others; run: chmod 600 {name}"
            ));
        }
        if meta.len() > TOKEN_FILE_BYTES_MAX {
            return Err(format!("token file {name} is larger than a token can be"));
        }
        let bytes = std::fs::read(path).map_err(|e| format!("token file {name}: {e}"))?;
        let bytes = SecretBytes::new(bytes);
        let token = std::str::from_utf8(bytes.expose())
            .map(str::trim)
            .unwrap_or_default();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("token file {name} does not hold one token"));
        }
        Ok(Self::bearer(token))
    }

    /// The value of the `Authorization` header.
    pub fn header(&self) -> Option<&str> {
        std::str::from_utf8(self.0.as_ref()?.expose()).ok()
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Credential(bearer)"
        } else {
            "Credential(none)"
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use ron_kernel::{OsRandom, Random as _};

    use super::*;

    #[test]
    fn tokens_come_from_private_files_only() {
        let path = std::env::temp_dir().join(format!("ron-token-{}", OsRandom.u64()));
        let check = |text: &[u8], mode: u32, good: bool| {
            std::fs::write(&path, text).expect("a file in the temporary directory");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
            let read = Credential::from_file(&path);
            assert_eq!(read.is_ok(), good, "{mode:o} {read:?}");
            if let Ok(credential) = read {
                assert_eq!(credential.header(), Some("Bearer ron_cli_abc"));
                assert_eq!(format!("{credential:?}"), "Credential(bearer)");
            }
        };
        check(b"ron_cli_abc", 0o600, true);
        check(b"ron_cli_abc\n", 0o400, true);
        check(b"ron_cli_abc", 0o640, false);
        check(b"ron_cli_abc", 0o604, false);
        check(b"", 0o600, false);
        check(b"two tokens", 0o600, false);
        check(b"\xff\xfe", 0o600, false);
        check(&[b'a'; 9000], 0o600, false);
        std::fs::remove_file(&path).expect("it was written");
        assert!(Credential::from_file(&path).is_err());
        assert_eq!(Credential::none().header(), None);
    }
}
