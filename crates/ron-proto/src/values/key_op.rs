//! The operations on a key that a caveat `op=` or a key policy may name.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! key_ops {
    ($($(#[$doc:meta])* $op:ident = $name:literal,)*) => {
        /// An operation on a key.
        #[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum KeyOp {
            $($(#[$doc])* $op,)*
        }

        impl KeyOp {
            /// Every operation, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$op),*];

            /// The name in caveats and policies.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)*
                }
            }
        }
    };
}

key_ops! {
    /// Read its document and versions; judged by scope and caveats alone.
    Read = "read",
    /// Verify signatures; judged by scope and caveats alone, so that signatures verify while others may not sign.
    Verify = "verify",
    /// Sign.
    Sign = "sign",
    /// Encrypt, also a new data key.
    Wrap = "wrap",
    /// Decrypt.
    Unwrap = "unwrap",
    /// Encrypt a ciphertext again under the head version.
    Rewrap = "rewrap",
    /// Make a data key and wrap it.
    Datakey = "datakey",
    /// Make a MAC.
    Hmac = "hmac",
    /// Check a MAC.
    HmacVerify = "hmac_verify",
    /// Derive a secret.
    Derive = "derive",
    /// Attest where the key is held.
    Attest = "attest",
    /// Make a new key.
    Create = "create",
    /// Make or publish the next version.
    Rotate = "rotate",
    /// Change settings, tags and description.
    Update = "update",
    /// Set, move and delete its aliases.
    Alias = "alias",
    /// End signing and wrapping.
    Retire = "retire",
    /// Order its destruction, or that of versions.
    Destroy = "destroy",
    /// Cancel a destruction.
    DestroyCancel = "destroy_cancel",
    /// Bring a key or a version.
    Import = "import",
    /// Export a version, wrapped.
    Export = "export",
    /// Change its policy.
    Policy = "policy",
    /// Make grants.
    Grant = "grant",
}

impl KeyOp {
    /// Whether a key policy decides about it; the others need scope and caveats alone, and a new key has no policy.
    pub const fn is_governed(self) -> bool {
        !matches!(self, Self::Read | Self::Verify | Self::Create)
    }

    /// Whether a grant may cover it: uses of the key, and never what changes it or hands rights on.
    pub const fn is_grantable(self) -> bool {
        matches!(
            self,
            Self::Sign
                | Self::Wrap
                | Self::Unwrap
                | Self::Rewrap
                | Self::Datakey
                | Self::Hmac
                | Self::HmacVerify
                | Self::Derive
                | Self::Attest
        )
    }
}

impl FromStr for KeyOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.iter().find(|op| op.as_str() == text);
        named.copied().ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|op| op.as_str()).collect();
            format!("operations are {}", known.join(", "))
        })
    }
}

impl fmt::Display for KeyOp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for op in KeyOp::ALL {
            assert_eq!(op.as_str().parse(), Ok(*op));
            let json = serde_json::to_value(op).expect("json");
            assert_eq!(json, op.as_str());
            // What hands rights on, or cannot be undone, is never granted.
            assert!(!op.is_grantable() || op.is_governed(), "{op}");
        }
        for op in [KeyOp::Destroy, KeyOp::Export, KeyOp::Policy, KeyOp::Grant] {
            assert!(!op.is_grantable(), "{op}");
        }
    }
}
