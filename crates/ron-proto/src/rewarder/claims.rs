//! Claim trees: what an epoch whose payees are paid elsewhere commits to, in the form of OpenZeppelin's
//! `StandardMerkleTree`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::values::{Account, ValueError, string_value};

/// Who pays the payees of an epoch.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PayRule {
    /// The ledger pays every payee.
    #[default]
    Ledger,
    /// The ledger moves the total to the policy's `claims_account` and pays nobody; the payees, 0x
    /// addresses, claim their payouts elsewhere with the proofs of a claim tree.
    Claims,
}

/// A node of a claim tree: a Keccak-256 hash, written `0x` and 64 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimHash(pub [u8; 32]);

impl FromStr for ClaimHash {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::new("claim hash", "write 0x and 64 lower-case hex digits");
        let digits = text.strip_prefix("0x").ok_or_else(refuse)?;
        let mut bytes = [0; 32];
        let upper = digits.bytes().any(|byte| byte.is_ascii_uppercase());
        match hex::decode_to_slice(digits, &mut bytes) {
            Ok(()) if !upper => Ok(Self(bytes)),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for ClaimHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "0x{}", hex::encode(self.0))
    }
}

string_value!(ClaimHash, "claim hash", {
    "type": "string",
    "pattern": "^0x[0-9a-f]{64}$"
});

/// The claim tree of an epoch, and the account that holds what the payees claim.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimsRoot {
    /// Root of the tree over the payouts; 32 zero bytes for an epoch that pays nobody.
    pub root: ClaimHash,
    /// Account that the ledger moves the total to.
    pub account: Account,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_hash_has_one_spelling() {
        let good = format!("0x{}", "0a".repeat(32));
        let read: ClaimHash = good.parse().expect("a hash");
        assert_eq!(read.to_string(), good);
        for bad in [&good[2..], &good[..64], &good.to_uppercase(), "", "0x"] {
            assert!(bad.parse::<ClaimHash>().is_err(), "{bad}");
        }
    }
}
