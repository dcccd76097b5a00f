//! Points in time: milliseconds since 1970 internally, RFC 3339 in UTC with milliseconds on the
//! wire.

use std::{fmt, str::FromStr, time::Duration};

use super::{ValueError, string_value};

const WHAT: &str = "time";
const DAY_MS: u64 = 86_400_000;

/// Milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted. On the wire
/// `2025-03-01T12:00:00.000Z`, in this form only.
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
}

/// Year, month and day of a day number, in the proleptic Gregorian calendar. Counts in eras of 400
/// years that begin on 1 March, so that the leap day is the last day of its year.
fn civil_of_day(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (
        era * 400 + year_of_era + u64::from(month <= 2),
        month,
        day_of_month,
    )
}

/// The inverse of [`civil_of_day`], for years from 1970.
fn day_of_civil(year: u64, month: u64, day: u64) -> u64 {
    let march_year = if month <= 2 { year - 1 } else { year };
    let march_month = if month <= 2 { month + 9 } else { month - 3 };
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    march_year * 365 + march_year / 4 - march_year / 100 + march_year / 400 + day_of_year - 719_468
}

/// Decimal digits at fixed positions, or `None`.
fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |sum, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })
}

fn parse(text: &[u8; 24]) -> Option<u64> {
    let marks = [
        (4, b'-'),
        (7, b'-'),
        (10, b'T'),
        (13, b':'),
        (16, b':'),
        (19, b'.'),
        (23, b'Z'),
    ];
    if marks.iter().any(|&(at, mark)| text[at] != mark) {
        return None;
    }
    let (year, month, day) = (
        digits(&text[..4])?,
        digits(&text[5..7])?,
        digits(&text[8..10])?,
    );
    let (hour, minute) = (digits(&text[11..13])?, digits(&text[14..16])?);
    let (second, ms) = (digits(&text[17..19])?, digits(&text[20..23])?);
    let in_range = year >= 1970
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !in_range {
        return None;
    }
    let days = day_of_civil(year, month, day);
    // 31 February would silently become 3 March; only a real date is returned unchanged.
    (civil_of_day(days) == (year, month, day))
        .then(|| ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + ms)
}

impl FromStr for Timestamp {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        <&[u8; 24]>::try_from(text.as_bytes())
            .ok()
            .and_then(parse)
            .map(Self)
            .ok_or_else(|| {
                ValueError::new(
                    WHAT,
                    "write it in UTC with milliseconds, as in 2025-03-01T12:00:00.000Z, from 1970",
                )
            })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = civil_of_day(self.0 / DAY_MS);
        let ms = self.0 % DAY_MS;
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        let ms = ms % 1000;
        write!(
            out,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z"
        )
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(Timestamp, "a time in UTC with milliseconds", {
    "type": "string",
    "format": "date-time",
    "maxLength": 24,
    "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z$"
});
