//! Points in time: milliseconds since 1970 internally, RFC 3339 in UTC on the wire: written with
//! milliseconds, read with or without them.

use std::{fmt, str::FromStr, time::Duration};

use jiff::{SignedDuration, civil::DateTime};

use super::{ValueError, string_value};

const WHAT: &str = "time";
const DAY_MS: u64 = 86_400_000;

/// Milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted. Written as
/// `2025-03-01T12:00:00.000Z`; `2025-03-01T12:00:00Z` is read as well, because most libraries write
/// whole seconds without a fraction.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The last millisecond of the year 9999, the last one RFC 3339 can express.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// Milliseconds since 1970.
    pub const fn unix_ms(self) -> u64 {
        self.0
    }

    /// Whole seconds since 1970.
    pub const fn unix_s(self) -> u64 {
        self.0 / 1000
    }

    /// This time plus `span`; at most [`Timestamp::MAX`].
    pub fn saturating_add(self, span: Duration) -> Self {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ms)).min(Self::MAX)
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The UTC day as days since 1970-01-01, the unit of daily limits.
    pub const fn utc_day(self) -> u64 {
        self.0 / DAY_MS
    }

    /// The start of a UTC day; at most [`Timestamp::MAX`].
    pub fn from_utc_day(day: u64) -> Self {
        Self(day.saturating_mul(DAY_MS)).min(Self::MAX)
    }
}

/// 1970-01-01T00:00:00 in UTC. A date and time of the calendar, because a `jiff::Timestamp` ends 26 hours before
/// [`Timestamp::MAX`].
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// The two forms that are read, with `0` for any digit; the first is the one that is written.
const FORMS: [&[u8]; 2] = [b"0000-00-00T00:00:00.000Z", b"0000-00-00T00:00:00Z"];

/// Milliseconds since 1970. The form is compared first, because the library reads many others and takes second 60.
fn parse(text: &str) -> Option<u64> {
    let fits = |(byte, form): (u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        mark => byte == *mark,
    };
    let has = |form: &&[u8]| text.len() == form.len() && text.bytes().zip(*form).all(fits);
    if !FORMS.iter().any(has) || &text[17..19] == "60" {
        return None;
    }
    let time: DateTime = text.strip_suffix('Z')?.parse().ok()?;
    time.duration_since(EPOCH).as_millis().try_into().ok()
}

impl FromStr for Timestamp {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text).map(Self).ok_or_else(|| {
            ValueError::new(
                WHAT,
                "write it in UTC with or without milliseconds, as in 2025-03-01T12:00:00.000Z, from 1970",
            )
        })
    }
}

/// A time after [`Timestamp::MAX`] is written as `MAX`.
impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = SignedDuration::from_millis((*self).min(Self::MAX).0 as i64);
        let time = EPOCH.checked_add(span).map_err(|_| fmt::Error)?;
        write!(out, "{time:.3}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(Timestamp, "a time in UTC", {
    "type": "string",
    "format": "date-time",
    "maxLength": 24,
    "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{3})?Z$"
});
