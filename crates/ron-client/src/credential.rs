//! What a caller shows: nothing, or a bearer token.

use std::path::Path;

use ron_crypto::secret::SecretBytes;

/// Longest token file, in bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 8 * 1024;

/// A bearer token, or none. Never printed.
pub struct Credential(Option<SecretBytes>);

impl Credential {
    /// For public endpoints.
    pub fn none() -> Self {
        Self(None)
    }

    /// A token in hand.
    pub fn bearer(token: &str) -> Self {
        Self(Some(SecretBytes::from(token.as_bytes().to_vec())))
    }

    /// A token from a file that only its owner may read.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let meta = std::fs::metadata(path).map_err(|e| format!("token file {name}: {e}"))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            if meta.permissions().mode() & 0o077 != 0 {
                return Err(format!(
                    "token file {name} can be read by others; run: chmod 600 {name}"
                ));
            }
        }
        if meta.len() > TOKEN_FILE_BYTES_MAX {
            return Err(format!("token file {name} is larger than a token can be"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| format!("token file {name}: {e}"))?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!("token file {name} does not hold one token"));
        }
        Ok(Self::bearer(token))
    }

    /// The value of the `Authorization` header.
    pub(crate) fn header(&self) -> Option<String> {
        let token = self.0.as_ref()?;
        let text = std::str::from_utf8(token.expose()).ok()?;
        Some(format!("Bearer {text}"))
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
