//! The end of a certificate's validity, read from its DER (RFC 5280, section 4.1).

use jiff::civil::DateTime;

/// The end of validity in Unix seconds; `None` when the bytes are not a certificate.
pub(crate) fn not_after(der: &[u8]) -> Option<i64> {
    let (SEQUENCE, certificate, _) = element(der)? else {
        return None;
    };
    let (SEQUENCE, mut rest, _) = element(certificate)? else {
        return None;
    };
    if let (VERSION, _, after) = element(rest)? {
        rest = after;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (SEQUENCE, validity, _) = element(rest)? else {
        return None;
    };
    let (_, _, end) = element(validity)?;
    match element(end)? {
        (UTC_TIME, text, _) => time(text, 2),
        (GENERALIZED_TIME, text, _) => time(text, 4),
        _ => None,
    }
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Tag and content of the first element, and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`; two-digit years below 50 are in this century.
fn time(text: &[u8], year_digits: usize) -> Option<i64> {
    let (digits, zone) = text.split_at_checked(year_digits + 10)?;
    if zone != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // At most four digits, so neither sum nor field overflows.
    let number = |part: &[u8]| part.iter().fold(0, |n, d| n * 10 + i16::from(d - b'0'));
    let (year, rest) = digits.split_at(year_digits);
    let year = match (year_digits, number(year)) {
        (2, short @ 0..50) => 2000 + short,
        (2, short) => 1900 + short,
        (_, full) => full,
    };
    let field = |at: usize| number(&rest[2 * at..2 * at + 2]) as i8;
    let time = DateTime::new(year, field(0), field(1), field(2), field(3), field(4), 0).ok()?;
    Some(time.duration_since(EPOCH).as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_real_certificate_is_read() {
        let mut params = rcgen::CertificateParams::new(vec!["x.example".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        for ((y, m, d), want) in [
            ((2031, 2, 28), 1_930_003_200),
            ((2049, 12, 31), 2_524_521_600),
            ((2050, 1, 1), 2_524_608_000),
        ] {
            params.not_after = rcgen::date_time_ymd(y, m, d);
            let cert = params.self_signed(&key).unwrap();
            assert_eq!(not_after(cert.der()), Some(want), "{y}-{m}-{d}");
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (text, digits, want) in [
            (&b"700101000000Z"[..], 2, 0),
            (b"000229120000Z", 2, 951_825_600),
            (b"491231235959Z", 2, 2_524_607_999),
            (b"20500101000000Z", 4, 2_524_608_000),
            (b"19700101000001Z", 4, 1),
        ] {
            assert_eq!(time(text, digits), Some(want), "{text:?}");
        }
        for bad in [
            &b"700101000000"[..],
            b"7001010000000",
            b"70010100000xZ",
            b"700230000000Z",
            b"",
        ] {
            assert_eq!(time(bad, 2), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bad in [
            &b""[..],
            b"\x30",
            b"\x30\x02\x30\x00",
            b"\x30\x85\xff",
            &[0xff; 64],
        ] {
            assert_eq!(not_after(bad), None, "{bad:?}");
        }
    }
}
