//! The few pieces of DER (X.690) that keys and signatures need.

pub const INTEGER: u8 = 0x02;
pub const BIT_STRING: u8 = 0x03;
pub const OCTET_STRING: u8 = 0x04;
pub const OBJECT_ID: u8 = 0x06;
pub const SEQUENCE: u8 = 0x30;
/// The value `NULL`, whole.
pub const NULL: &[u8] = &[0x05, 0];

/// A value under its tag. Its length is at most 65,535.
#[must_use]
pub fn tagged(tag: u8, value: &[u8]) -> Vec<u8> {
    let [.., high, low] = value.len().to_be_bytes();
    let length = match (high, low) {
        (0, 0..=0x7f) => vec![low],
        (0, _) => vec![0x81, low],
        _ => vec![0x82, high, low],
    };
    [&[tag][..], &length, value].concat()
}

/// A sequence of values that are encoded already.
#[must_use]
pub fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tagged(SEQUENCE, &parts.concat())
}

/// A number that is not negative, from big-endian bytes.
#[must_use]
pub fn unsigned(digits: &[u8]) -> Vec<u8> {
    let zeros = digits.iter().take_while(|byte| **byte == 0).count();
    let digits = &digits[zeros..];
    // A first bit that is set would make it negative, and zero has one byte.
    let sign: &[u8] = match digits.first() {
        Some(0..=0x7f) => &[],
        _ => &[0],
    };
    tagged(INTEGER, &[sign, digits].concat())
}

/// A string of whole bytes as bits.
#[must_use]
pub fn bits(bytes: &[u8]) -> Vec<u8> {
    tagged(BIT_STRING, &[&[0], bytes].concat())
}

/// The value under `tag` at the start of `text`, and the rest. Lengths must have their shortest form.
#[must_use]
pub fn read(tag: u8, text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = text.split_at_checked(2)?;
    if head[0] != tag {
        return None;
    }
    let (length, rest) = match head[1] {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => {
            let (long, rest) = rest.split_first()?;
            (usize::from(*long).max(0x80), rest)
        }
        0x82 => {
            let (long, rest) = rest.split_at_checked(2)?;
            let length = usize::from(u16::from_be_bytes([long[0], long[1]]));
            (length.max(0x100), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    // A length in a longer form than it needs was read as another length above.
    let whole = &text[..text.len() - rest.len()];
    (tagged(tag, value) == whole).then_some((value, rest))
}

/// The value under `tag`, which must be all of `text`.
#[must_use]
pub fn only(tag: u8, text: &[u8]) -> Option<&[u8]> {
    let (value, rest) = read(tag, text)?;
    rest.is_empty().then_some(value)
}

/// The number that is not negative at the start of `text`, without leading zeros, and the rest.
#[must_use]
pub fn read_unsigned(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (value, rest) = read(INTEGER, text)?;
    let digits = value.strip_prefix(&[0]).unwrap_or(value);
    (unsigned(digits) == text[..text.len() - rest.len()]).then_some((digits, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        for (digits, text) in [
            (&[][..], &[2, 1, 0][..]),
            (&[0, 0], &[2, 1, 0]),
            (&[0x7f], &[2, 1, 0x7f]),
            (&[0x80], &[2, 2, 0, 0x80]),
            (&[0, 1, 0], &[2, 2, 1, 0]),
        ] {
            assert_eq!(unsigned(digits), text);
            let (read, rest) = read_unsigned(text).expect("a number");
            assert!(rest.is_empty());
            assert_eq!(unsigned(read), text);
        }
        for odd in [
            &[][..],
            &[2],
            &[2, 0],
            &[2, 1],
            &[2, 1, 0x80],
            &[2, 2, 0, 1],
            &[3, 1, 1],
            &[2, 0x81, 1, 1],
        ] {
            assert_eq!(read_unsigned(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn lengths_have_one_form() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x101, 0xffff] {
            let text = tagged(4, &vec![7; length]);
            assert_eq!(only(4, &text), Some(&vec![7; length][..]), "{length}");
            assert_eq!(only(4, &text[..text.len() - 1]), None);
            assert_eq!(only(5, &text), None);
        }
        assert_eq!(read(4, &[4, 0x82, 0, 1, 9]), None);
        assert_eq!(read(4, &[4, 0x83, 0, 0, 1, 9]), None);
        assert_eq!(bits(&[5]), [3, 2, 0, 5]);
        assert_eq!(sequence(&[vec![5, 0]]), [0x30, 2, 5, 0]);
    }
}
