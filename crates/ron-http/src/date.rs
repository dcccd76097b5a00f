//! The `Date` header: seconds since 1970 as an IMF-fixdate (RFC 9110, section 5.6.7).

use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second of the year 9999; `HttpDate` panics above it.
const UNIX_S_MAX: u64 = 253_402_300_799;

/// Appends a time, in seconds since 1970-01-01 UTC, as 29 bytes; from the year 10000 on, the end of 9999.
pub fn push_http_date(out: &mut Vec<u8>, unix_s: u64) {
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(UNIX_S_MAX));
    // A write to a Vec cannot fail.
    let _ = write!(out, "{}", HttpDate::from(time));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let check = |seconds: u64, want: &str| {
            let mut out = Vec::new();
            push_http_date(&mut out, seconds);
            assert_eq!(std::str::from_utf8(&out), Ok(want));
        };
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT");
        check(1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT");
        check(4_102_444_800, "Fri, 01 Jan 2100 00:00:00 GMT");
        check(UNIX_S_MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
        check(u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
