//! Changes to a key during its life.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::KeyDoc;
use crate::receipt::LogReceipt;
use crate::values::{OpId, TagName, TagValue, Timestamp};

/// Maximum period, in seconds (ten years).
pub const PERIOD_S_MAX: u64 = 10 * 366 * 24 * 3600;

/// A period in whole seconds, written as a number with its unit: `90s`, `15m`, `24h`, `30d`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

/// The text is not a valid [`Period`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a period is a number with its unit, s, m, h or d, such as 90s, 24h or 30d, and at most ten years"
)]
pub struct PeriodError;

const UNITS: [(char, u64); 4] = [('d', 24 * 3600), ('h', 3600), ('m', 60), ('s', 1)];

impl Period {
    /// A period of 1 to [`PERIOD_S_MAX`] seconds.
    pub const fn from_s(seconds: u64) -> Option<Self> {
        match seconds {
            1..=PERIOD_S_MAX => Some(Self(seconds)),
            _ => None,
        }
    }

    /// The period in seconds.
    pub const fn as_s(self) -> u64 {
        self.0
    }

    /// The period in milliseconds.
    pub const fn as_ms(self) -> u64 {
        self.0 * 1000
    }
}

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let unit = text.chars().last().ok_or(PeriodError)?;
        let (_, factor) = UNITS.iter().find(|(u, _)| *u == unit).ok_or(PeriodError)?;
        let number = &text[..text.len() - 1];
        let plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
        let number: u64 = number.parse().map_err(|_| PeriodError)?;
        let seconds = number.checked_mul(*factor).filter(|_| plain);
        seconds.and_then(Self::from_s).ok_or(PeriodError)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor));
        let (unit, factor) = whole.expect("seconds divide everything");
        write!(out, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Debug for Period {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Automatic rotation of a key: a [`Period`], or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotateEvery {
    /// Only on request.
    Never,
    /// After this time at the latest.
    Every(Period),
}

impl RotateEvery {
    /// The period, if there is one.
    pub const fn period(self) -> Option<Period> {
        match self {
            Self::Never => None,
            Self::Every(period) => Some(period),
        }
    }
}

impl FromStr for RotateEvery {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        match text {
            "never" => Ok(Self::Never),
            other => other.parse().map(Self::Every),
        }
    }
}

impl fmt::Display for RotateEvery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => out.write_str("never"),
            Self::Every(period) => fmt::Display::fmt(period, out),
        }
    }
}

macro_rules! as_text {
    ($type:ty, $name:literal, $pattern:literal, $what:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "description": $what })
            }
        }
    };
}

as_text!(
    Period,
    "Period",
    "^[1-9][0-9]{0,9}[smhd]$",
    "a number with its unit, at most ten years"
);
as_text!(
    RotateEvery,
    "RotateEvery",
    "^(never|[1-9][0-9]{0,9}[smhd])$",
    "a number with its unit, or never"
);

/// `POST /keys/{t}/{p}/{alg}/{id}/rotate`: create a new head version, or make the waiting version
/// the head now.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    /// Expected head version; when it differs from the current one: 409 `stale_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_head: Option<u32>,
    /// Publish the next version for `rotation.prepublish` before it signs; the head signs meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub publish_first: bool,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// `PATCH /keys/{t}/{p}/{alg}/{id}`; absent members leave their setting unchanged.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateKey {
    /// The oldest version that verifies and unwraps: 1 to the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_verify_version: Option<u32>,
    /// The oldest version with which Vault's paths encrypt and make MACs: 0 (the head alone) to the head. The native API
    /// encrypts with the head whatever this says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_wrap_version: Option<u32>,
    /// Whether `DELETE` under Vault's paths may order the destruction of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_allowed: Option<bool>,
    /// Rotation period, or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_every: Option<RotateEvery>,
    /// Only `false`: permanently withdraws the permission to export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exportable: Option<bool>,
    /// What the key is for: at most 512 bytes without control characters; the empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Tags to set, or to remove where the value is null; other tags stay. A key has at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, Option<TagValue>>,
    /// Expected head version; when it differs from the current one: 409 `stale_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_head: Option<u32>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/retire` and `.../destroy/cancel`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetireKey {
    /// Expected head version; when it differs from the current one: 409 `stale_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_head: Option<u32>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// `POST /keys/{t}/{p}/{alg}/{id}/destroy`: stop using the key now, destroy its secrets later. With `below_version`: destroy the
/// secrets of old versions later; the key stays in use.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestroyKey {
    /// Destroy the secrets of the versions below this one only: 2 to `min_verify_version`. Not for keys in a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below_version: Option<u32>,
    /// Delay until destruction; `destroy.delay` when absent, at least `destroy.delay_min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Period>,
    /// Expected head version; when it differs from the current one: 409 `stale_head`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_head: Option<u32>,
    /// Idempotency key: a repetition with the same body returns the same response for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op_id: Option<OpId>,
}

/// Response of every change to a key except its creation.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyChanged {
    /// The operation id of the request, or the one generated for it.
    pub op_id: OpId,
    /// The key after the change.
    pub document: KeyDoc,
    /// Leaf of the audit log that records the change.
    pub receipt: LogReceipt,
}

/// Response of rotate.
pub type RotateAnswer = KeyChanged;

/// Automatic rotation of a key.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RotationDoc {
    /// Rotation period: a new version signs at least this often.
    pub every: Period,
    /// When the next version is planned to begin signing.
    pub next: Timestamp,
}

/// An ordered destruction of old versions.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrimDoc {
    /// The secrets of the versions below this one are destroyed.
    pub below_version: u32,
    /// When.
    pub destroy_at: Timestamp,
}

/// A version that is published but does not sign yet.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitingDoc {
    /// Version number, one above the head.
    pub version: u32,
    /// When it begins to sign, unless the key is rotated on request before.
    pub signs_from: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_strict_and_written_in_their_largest_unit() {
        let check = |text: &str, want: Option<(u64, &str)>| {
            let got = text.parse::<Period>().ok();
            let shown = got.map(|p| (p.as_s(), p.to_string()));
            assert_eq!(shown, want.map(|(s, t)| (s, t.to_owned())), "{text}");
        };
        check("90s", Some((90, "90s")));
        check("60s", Some((60, "1m")));
        check("24h", Some((86_400, "1d")));
        check("36h", Some((129_600, "36h")));
        check("3660d", Some((PERIOD_S_MAX, "3660d")));
        for bad in [
            "",
            "s",
            "0s",
            "01s",
            "+1s",
            "1",
            "1w",
            "1.5h",
            "3661d",
            "1 h",
            "99999999999999999999d",
            "1\u{e9}",
        ] {
            check(bad, None);
        }
        assert_eq!("never".parse(), Ok(RotateEvery::Never));
        assert_eq!(
            "30d".parse::<RotateEvery>().map(|r| r.to_string()),
            Ok("30d".into())
        );
        assert!("Never".parse::<RotateEvery>().is_err());
    }
}
