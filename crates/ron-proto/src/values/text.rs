//! Names with a closed alphabet: accounts, assets, tenants, purposes, epochs, keys and ids.

use std::{fmt, str::FromStr};

use smol_str::{SmolStr, StrExt as _};
use uuid::Uuid;

use super::{ValueError, string_value};

/// True for a control character and for one that changes the direction of the text around it. Names
/// and free texts hold neither: a list would show something else than what is stored.
pub fn is_control(c: char) -> bool {
    let directs = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    directs || c.is_control()
}

/// Checks length and alphabet; all names are ASCII, so bytes are characters.
fn check(
    what: &'static str,
    text: &str,
    max: usize,
    alphabet: &str,
    allowed: impl Fn(u8) -> bool,
) -> Result<(), ValueError> {
    if text.is_empty() {
        return Err(ValueError::new(
            what,
            format!("it is empty; 1 to {max} of {alphabet}"),
        ));
    }
    if text.len() > max {
        return Err(ValueError::new(
            what,
            format!("it has {} bytes; at most {max} of {alphabet}", text.len()),
        ));
    }
    if matches!(text, "." | "..") {
        // Clients remove such segments from a path before they send it.
        return Err(ValueError::new(
            what,
            "it is `.` or `..`, which a URL cannot name",
        ));
    }
    // Without an early exit at the first bad byte the compiler vectorises this loop.
    if text.bytes().fold(true, |good, byte| good & allowed(byte)) {
        return Ok(());
    }
    let at = text.bytes().position(|byte| !allowed(byte)).unwrap_or(0);
    Err(ValueError::new(
        what,
        format!("byte {} is not one of {alphabet}", at + 1),
    ))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:literal, $alphabet:literal, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(SmolStr);

        impl $type {
            /// Maximum length of the text, in bytes.
            pub const MAX_LEN: usize = $max;

            /// Checks the text without a copy of it.
            pub fn check(text: &str) -> Result<(), ValueError> {
                check($what, text, $max, $alphabet, $allowed)
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = ValueError;
            fn from_str(text: &str) -> Result<Self, ValueError> {
                Self::check(text)?;
                Ok(Self(SmolStr::new(text)))
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, out)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $type {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $type {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }

        string_value!($type, $what, {
            "type": "string",
            "minLength": 1,
            "maxLength": $max,
            "pattern": concat!("^", $alphabet, "+$")
        });
    };
}

name!(
    /// An account that holds money: 1 to 160 of `[A-Za-z0-9:/_-]`. Percent-encode it in URLs.
    Account, "account", 160, "[A-Za-z0-9:/_-]",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'/' | b'_' | b'-')
);
name!(
    /// A kind of money, such as `EUR` or `eth-wei`: 1 to 32 of `[A-Za-z0-9-]`. Two names that differ
    /// in case only never exist beside each other in one ledger.
    Asset, "asset", 32, "[A-Za-z0-9-]",
    |byte| byte.is_ascii_alphanumeric() || byte == b'-'
);
name!(
    /// A tenant, the owner of data: 1 to 64 of `[a-z0-9._-]`.
    Tenant, "tenant", 64, "[a-z0-9._-]", lower_name
);
name!(
    /// Purpose of a key: 1 to 64 of `[a-z0-9._-]`.
    Purpose, "purpose", 64, "[a-z0-9._-]", lower_name
);
name!(
    /// A second name of a key within its tenant: 1 to 64 of `[a-z0-9._-]`, written `alias/<name>` where a key may stand.
    Alias, "alias", 64, "[a-z0-9._-]", lower_name
);
name!(
    /// Name of a tag of a key: 1 to 64 of `[a-z0-9._-]`.
    TagName, "tag name", 64, "[a-z0-9._-]", lower_name
);
name!(
    /// Value of a tag of a key: 1 to 64 of `[A-Za-z0-9._:-]`.
    TagValue, "tag value", 64, "[A-Za-z0-9._:-]",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
);
name!(
    /// Name of a PKCS#11 token in the configuration of a key service: 1 to 32 of `[a-z0-9._-]`.
    TokenName, "token name", 32, "[a-z0-9._-]", lower_name
);
name!(
    /// Id of a reward period: 1 to 64 of `[A-Za-z0-9:._-]`.
    EpochId, "epoch id", 64, "[A-Za-z0-9:._-]",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'.' | b'_' | b'-')
);
name!(
    /// The caller's id of one mutation; a repetition with the same id returns the same response: 1
    /// to 64 of `[A-Za-z0-9._:-]`.
    IdemKey, "idempotency key", 64, "[A-Za-z0-9._:-]",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'.' | b'_' | b'-')
);
name!(
    /// Identifies one request in logs and responses: 1 to 64 of `[A-Za-z0-9._-]`.
    RequestId, "request id", 64, "[A-Za-z0-9._-]",
    |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
);

fn lower_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
}

impl Asset {
    /// The name in lower case: equal for two names that differ in case only.
    #[must_use]
    pub fn folded(&self) -> Self {
        if self.0.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Self(self.0.to_ascii_lowercase_smolstr())
        } else {
            self.clone()
        }
    }
}

impl Default for Tenant {
    /// The tenant of a caller whose credential names none.
    fn default() -> Self {
        Self(SmolStr::new_static("default"))
    }
}

impl Tenant {
    /// The system's own tenant, `ron`.
    pub fn system() -> Self {
        Self(SmolStr::new_static("ron"))
    }
}

impl RequestId {
    /// A time-ordered id (UUIDv7) from the clock and ten random bytes given by the caller.
    pub fn from_parts(unix_ms: u64, random: &[u8; 10]) -> Self {
        let id = uuid::Builder::from_unix_timestamp_millis(unix_ms, random).into_uuid();
        Self(SmolStr::new(
            id.hyphenated().encode_lower(&mut Uuid::encode_buffer()),
        ))
    }
}

/// Identifies one mutation so that it can be repeated safely: a UUID in hyphenated form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub Uuid);

impl OpId {
    /// A random (version 4) id from 16 random bytes given by the caller.
    pub fn from_random(random: [u8; 16]) -> Self {
        Self(uuid::Builder::from_random_bytes(random).into_uuid())
    }

    /// A fixed id derived from a name, for operations that must happen once in the life of a data
    /// directory (a version 5 id in the `ron` name space).
    pub fn from_name(name: &str) -> Self {
        let space = Uuid::new_v5(&Uuid::NAMESPACE_URL, b"urn:ron:op");
        Self(Uuid::new_v5(&space, name.as_bytes()))
    }
}

impl FromStr for OpId {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        // `Uuid` also accepts the braced, URN and bare forms; only one form is allowed on the wire.
        if text.len() != 36 {
            return Err(ValueError::new(
                "op_id",
                "it must be a UUID of 36 characters",
            ));
        }
        Uuid::try_parse(text)
            .map(Self)
            .map_err(|_| ValueError::new("op_id", "it must be a UUID of hex digits and hyphens"))
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(out)
    }
}

impl fmt::Debug for OpId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(out)
    }
}

string_value!(OpId, "op_id", {
    "type": "string",
    "format": "uuid",
    "maxLength": 36,
    "pattern": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"
});
