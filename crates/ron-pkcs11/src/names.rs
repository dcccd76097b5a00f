//! Names in the fixed fields of the C interface.

use ron_crypto::hash::sha256;

/// Bytes of a token's label.
pub const LABEL: usize = 32;
/// Bytes of the hash suffix of a label that was cut, as hex digits.
const SUFFIX: usize = 8;

/// A label of at most 32 bytes: a longer text is cut and ends in a hyphen and eight hex digits of its SHA-256, so that two
/// long texts with the same beginning have two labels. Names of tenants and purposes are ASCII.
pub fn label(text: &str) -> String {
    if text.len() <= LABEL {
        return text.to_owned();
    }
    let mut cut = LABEL - SUFFIX - 1;
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let hash = hex::encode(sha256(text.as_bytes()));
    format!("{}-{}", &text[..cut], &hash[..SUFFIX])
}

/// The serial number of a token: 16 hex digits that depend on its name alone.
pub fn serial(name: &str) -> String {
    hex::encode(&sha256(name.as_bytes())[..8])
}

/// A text in a field of fixed length, filled up with spaces.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let length = text.len().min(N);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_keep_apart() {
        let check = |text: &str, want: &str| assert_eq!(label(text), want);
        check("default/web", "default/web");
        check(&"a".repeat(32), &"a".repeat(32));
        let (one, two) = (
            label(&format!("{}/one", "t".repeat(40))),
            label(&format!("{}/two", "t".repeat(40))),
        );
        assert_eq!((one.len(), two.len()), (LABEL, LABEL));
        assert_ne!(one, two);
        assert!(one.starts_with(&"t".repeat(23)), "{one}");
        assert!(label(&"\u{e9}".repeat(20)).len() <= LABEL);
    }

    #[test]
    fn fields_are_filled_with_spaces() {
        assert_eq!(&padded::<6>("abc"), b"abc   ");
        assert_eq!(&padded::<2>("abc"), b"ab");
        let serials = [serial("default/web"), serial("default/app")];
        assert!(serials.iter().all(|serial| serial.len() == 16));
        assert_ne!(serials[0], serials[1]);
    }
}
