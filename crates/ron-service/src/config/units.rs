//! Durations (`250ms 5s 1m 24h`) and sizes (`64KiB 1MiB`): one strict form each, for parsing and
//! printing.

use std::time::Duration;

/// Parses `250ms`, `5s`, `1m`, `24h` or `7d`: digits, then one unit, nothing else.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const HINT: &str = "must be a duration such as 250ms, 5s, 1m, 24h or 7d";
    let (number, unit) = split(text).ok_or(HINT)?;
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(HINT.into()),
    };
    let ms = number
        .checked_mul(ms_per_unit)
        .ok_or("the duration is too long")?;
    Ok(Duration::from_millis(ms))
}

/// Parses `512B`, `64KiB`, `1MiB` or `2GiB`; the result is in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const HINT: &str = "must be a size such as 512B, 64KiB, 1MiB or 2GiB";
    let (number, unit) = split(text).ok_or(HINT)?;
    let bytes_per_unit: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(HINT.into()),
    };
    number
        .checked_mul(bytes_per_unit)
        .ok_or_else(|| "the size is too large".into())
}

/// Digits without sign or leading zeros (a single `0` is allowed), then the unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(end);
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    Some((digits.parse().ok()?, unit))
}

/// The shortest exact form that [`parse_duration`] accepts.
pub fn show_duration(value: Duration) -> String {
    let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
    for (unit, per) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ] {
        // `24h` reads better than `1d`; days start at two.
        if ms >= per && ms % per == 0 && !(unit == "d" && ms == per) {
            return format!("{}{unit}", ms / per);
        }
    }
    format!("{ms}ms")
}

/// The shortest exact form that [`parse_size`] accepts.
pub fn show_size(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_spellings() {
        let check = |text: &str, ms: u64| {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        };
        check("250ms", 250);
        check("5s", 5_000);
        check("1m", 60_000);
        check("24h", 86_400_000);
        check("0s", 0);
        let check = |text: &str, bytes: u64| assert_eq!(parse_size(text), Ok(bytes), "{text}");
        check("1MiB", 1 << 20);
        check("0B", 0);
        check("64KiB", 65_536);
    }

    #[test]
    fn bad_spellings_are_refused_with_the_right_form() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.5s",
            "01s",
            "1 s",
            "5S",
            "5sec",
            "99999999999999999999s",
            "1s1s",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?} was accepted");
        }
        for text in [
            "",
            "5",
            "1MB",
            "1mib",
            "-1B",
            "1.5MiB",
            "007B",
            "1M",
            "99999999999TiB",
        ] {
            assert!(parse_size(text).is_err(), "{text:?} was accepted");
        }
        assert!(parse_size("1MB").unwrap_err().contains("1MiB"));
    }

    proptest! {
        #[test]
        fn shown_values_read_back(ms in 0..u64::MAX / 86_400_000, bytes in any::<u64>()) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC{0,24}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
