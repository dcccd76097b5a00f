//! The `Date` header: seconds since 1970 as an IMF-fixdate (RFC 9110, section 5.6.7).

const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// Seconds since 1970-01-01 UTC as 29 bytes of text; years up to 9999.
pub fn http_date(unix_s: u64) -> [u8; 29] {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    let mut out = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let weekday = (days % 7) as usize * 3;
    out[..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    two(&mut out[5..], day);
    let name = (month as usize - 1) * 3;
    out[8..11].copy_from_slice(&MONTHS[name..name + 3]);
    two(&mut out[12..], year / 100 % 100);
    two(&mut out[14..], year % 100);
    two(&mut out[17..], second / 3600);
    two(&mut out[20..], second / 60 % 60);
    two(&mut out[23..], second % 60);
    out
}

fn two(out: &mut [u8], value: u64) {
    out[0] = b'0' + (value / 10) as u8;
    out[1] = b'0' + (value % 10) as u8;
}

/// Year, month and day of a day count since 1970. Works in years that start in March, so that the
/// leap day is the last of its year, and in eras of 400 years, which all have 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let (era, in_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let check = |seconds: u64, want: &str| {
            assert_eq!(std::str::from_utf8(&http_date(seconds)), Ok(want));
        };
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT");
        check(1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT");
        check(4_102_444_800, "Fri, 01 Jan 2100 00:00:00 GMT");
    }
}
