//! Finds the first byte of a kind, eight bytes at a time, by arithmetic on whole words. Safe,
//! portable, and without a branch per byte.

/// The high bit of every byte.
const HIGH: u64 = 0x8080_8080_8080_8080;

/// `byte` in all eight positions.
const fn all(byte: u8) -> u64 {
    byte as u64 * 0x0101_0101_0101_0101
}

/// The eight bytes at `at`, the first lowest; `None` near the end.
pub fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|eight| u64::from_le_bytes(*eight))
}

/// The position of the lowest marked byte.
const fn first(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// Marks bytes that are at least `low`; all bytes must be below 128.
const fn at_least(word: u64, low: u8) -> u64 {
    word.wrapping_add(all(128 - low))
}

/// Marks all bytes but letters, `_`, and those from `0` to `last`: the nine, or the colon that
/// follows it in ASCII.
const fn foreign(word: u64, last: u8) -> u64 {
    let plain = word & !HIGH;
    let lower = plain | all(0x20);
    let letter = at_least(lower, b'a') & !at_least(lower, b'z' + 1);
    let digit = at_least(plain, b'0') & !at_least(plain, last + 1);
    let line = at_least(plain, b'_') & !at_least(plain, b'_' + 1);
    (!(letter | digit | line) | word) & HIGH
}

/// Marks bytes up to the space. The lowest mark is right; marks above a control byte may be wrong.
const fn blank(word: u64) -> u64 {
    !(at_least(word & !HIGH, b' ' + 1) | word) & HIGH
}

/// Marks quotes, backslashes and control bytes; the lowest mark is right.
const fn quote_or_escape(word: u64) -> u64 {
    let quote = word ^ all(b'"');
    let escape = word ^ all(b'\\');
    let control = !(at_least(word & !HIGH, b' ') | word);
    ((quote.wrapping_sub(all(1)) & !quote) | (escape.wrapping_sub(all(1)) & !escape) | control)
        & HIGH
}

/// The position of the first byte from `at` on that cannot be in a metric name; `None` when fewer
/// than eight bytes are left there.
#[inline]
pub fn name_end(bytes: &[u8], at: usize) -> Option<usize> {
    find(bytes, at, |word| foreign(word, b':'))
}

/// The same for a label's name, which cannot contain a colon.
#[inline]
pub fn label_end(bytes: &[u8], at: usize) -> Option<usize> {
    find(bytes, at, |word| foreign(word, b'9'))
}

/// The position of the first space or control byte from `at` on.
#[inline]
pub fn token_end(bytes: &[u8], at: usize) -> Option<usize> {
    find(bytes, at, blank)
}

/// The position of the first quote, backslash or control byte from `at` on.
#[inline]
pub fn quoted_end(bytes: &[u8], at: usize) -> Option<usize> {
    find(bytes, at, quote_or_escape)
}

#[inline]
fn find(bytes: &[u8], mut at: usize, marks: impl Fn(u64) -> u64) -> Option<usize> {
    loop {
        let found = marks(word(bytes, at)?);
        if found != 0 {
            return Some(at + first(found));
        }
        at += 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_in_every_place_is_judged_right() {
        for byte in 0..=255_u8 {
            for place in 0..8 {
                for around in [b'a', 0x7f, 0xff, b'Z', b'0'] {
                    let mut eight = [around; 8];
                    eight[place] = byte;
                    let word = u64::from_le_bytes(eight);
                    let check = |marks: u64, wanted: fn(u8) -> bool| {
                        let want = eight.iter().position(|b| wanted(*b));
                        let got = (marks != 0).then(|| first(marks));
                        assert_eq!(got, want, "{eight:?}");
                    };
                    check(foreign(word, b':'), |b| {
                        !(b.is_ascii_alphanumeric() || b == b'_' || b == b':')
                    });
                    check(foreign(word, b'9'), |b| {
                        !(b.is_ascii_alphanumeric() || b == b'_')
                    });
                    check(blank(word), |b| b <= b' ');
                    check(quote_or_escape(word), |b| {
                        b == b'"' || b == b'\\' || b < b' '
                    });
                }
            }
        }
    }
}
