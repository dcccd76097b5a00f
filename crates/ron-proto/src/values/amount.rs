//! Amounts of an asset in minor units: unsigned 128-bit integers, decimal strings on the wire.

use std::{fmt, iter::Sum, str::FromStr};

use serde::de;

use super::ValueError;

const WHAT: &str = "amount";

/// A number of minor units. In JSON it is a decimal string (`"1500"`), because many readers lose
/// digits of numbers above 2^53; a JSON number is rejected.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub u128);

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// 2^128 - 1 minor units.
    pub const MAX: Self = Self(u128::MAX);

    /// True for zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// As [`Amount::is_zero`], for serde, which passes a reference.
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(crate) const fn is_zero_ref(&self) -> bool {
        self.is_zero()
    }

    /// The sum, or `None` above 2^128 - 1.
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` when `other` is larger.
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// The sum of all, or `None` above 2^128 - 1.
    pub fn checked_sum(amounts: impl IntoIterator<Item = Self>) -> Option<Self> {
        amounts.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }
}

impl From<u128> for Amount {
    fn from(minor: u128) -> Self {
        Self(minor)
    }
}

impl From<u64> for Amount {
    fn from(minor: u64) -> Self {
        Self(u128::from(minor))
    }
}

impl Sum for Amount {
    /// Panics on overflow; use [`Amount::checked_sum`] for parts of external origin.
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        Self::checked_sum(amounts).expect("the caller's parts come from one amount")
    }
}

impl FromStr for Amount {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = |why: &str| Err(ValueError::new(WHAT, why));
        if text.is_empty() {
            return refuse("it is empty; write minor units as decimal digits");
        }
        match text.as_bytes()[0] {
            b'-' | b'+' => return refuse("it has a sign; amounts are unsigned"),
            b'0' if text.len() > 1 && text.as_bytes()[1].is_ascii_digit() => {
                return refuse("it has leading zeros");
            }
            _ => {}
        }
        if text.bytes().any(|byte| matches!(byte, b'.' | b',')) {
            return refuse("it has a fraction or separator; write whole minor units");
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return refuse("only the digits 0 to 9 are allowed");
        }
        if text.len() > 39 {
            return Err(ValueError::new(
                WHAT,
                format!(
                    "it has {} digits; the largest amount, 2^128-1, has 39",
                    text.len()
                ),
            ));
        }
        // Most amounts fit into 64 bits, which are parsed several times faster.
        if let Ok(minor) = text.parse::<u64>() {
            return Ok(Self(minor.into()));
        }
        match text.parse() {
            Ok(minor) => Ok(Self(minor)),
            Err(_) => refuse("it is above the largest amount, 2^128-1"),
        }
    }
}

impl TryFrom<String> for Amount {
    type Error = ValueError;
    fn try_from(text: String) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl TryFrom<&str> for Amount {
    type Error = ValueError;
    fn try_from(text: &str) -> Result<Self, ValueError> {
        text.parse()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl serde::Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Amount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl AmountVisitor {
    fn number<E: de::Error>() -> E {
        E::custom(ValueError::new(
            WHAT,
            "it is a JSON number; write it as a decimal string of whole minor units",
        ))
    }
}

impl de::Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an amount as a decimal string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Amount, E> {
        Err(Self::number())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Amount, E> {
        Err(Self::number())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Amount, E> {
        Err(Self::number())
    }
}

/// A balance in minor units: below zero where an account is overdrawn. A decimal string, with a
/// minus sign below zero (`"-1500"`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignedAmount {
    amount: Amount,
    overdrawn: Amount,
}

impl SignedAmount {
    /// What is left of the credits after the debits.
    pub const fn of(credits: u128, debits: u128) -> Self {
        Self {
            amount: Amount(credits.saturating_sub(debits)),
            overdrawn: Amount(debits.saturating_sub(credits)),
        }
    }

    /// What is there; zero when the account is overdrawn.
    pub const fn amount(self) -> Amount {
        self.amount
    }

    /// What is missing to zero; zero when the account is not overdrawn.
    pub const fn overdrawn(self) -> Amount {
        self.overdrawn
    }
}

impl From<Amount> for SignedAmount {
    fn from(amount: Amount) -> Self {
        Self::of(amount.0, 0)
    }
}

impl fmt::Display for SignedAmount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.overdrawn.is_zero() {
            self.amount.fmt(out)
        } else {
            write!(out, "-{}", self.overdrawn)
        }
    }
}

impl FromStr for SignedAmount {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.strip_prefix('-') {
            None => text.parse::<Amount>().map(Self::from),
            Some("0") => Err(ValueError::new(WHAT, "zero has no sign")),
            Some(digits) => digits.parse().map(|Amount(n)| Self::of(0, n)),
        }
    }
}

super::string_value!(SignedAmount, "amount", { "type": "string", "minLength": 1, "maxLength": 40, "pattern": "^(0|-?[1-9][0-9]{0,38})$" });

/// What a debit moves: an amount, or `max`, which is all that is available of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebitAmount {
    Exactly(Amount),
    Max,
}

/// How [`DebitAmount::Max`] is written.
const MAX: &str = "max";

impl From<Amount> for DebitAmount {
    fn from(amount: Amount) -> Self {
        Self::Exactly(amount)
    }
}

impl FromStr for DebitAmount {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            MAX => Ok(Self::Max),
            text => text.parse().map(Self::Exactly),
        }
    }
}

impl fmt::Display for DebitAmount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(amount) => amount.fmt(out),
            Self::Max => out.write_str(MAX),
        }
    }
}

impl serde::Serialize for DebitAmount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for DebitAmount {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DebitAmountVisitor)
    }
}

struct DebitAmountVisitor;

impl de::Visitor<'_> for DebitAmountVisitor {
    type Value = DebitAmount;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an amount as a decimal string, or \"max\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<DebitAmount, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<DebitAmount, E> {
        Err(AmountVisitor::number())
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<DebitAmount, E> {
        Err(AmountVisitor::number())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<DebitAmount, E> {
        Err(AmountVisitor::number())
    }
}

impl schemars::JsonSchema for DebitAmount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DebitAmount".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Amount in minor units, at most 2^128-1, or `max`: all that is available of the account",
            "minLength": 1,
            "maxLength": 39,
            "pattern": "^(0|[1-9][0-9]{0,38}|max)$"
        })
    }
}

impl schemars::JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Amount in minor units: an unsigned integer, at most 2^128-1",
            "minLength": 1,
            "maxLength": 39,
            "pattern": "^(0|[1-9][0-9]{0,38})$"
        })
    }
}
