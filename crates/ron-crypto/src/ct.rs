//! Comparison in a time that does not depend on where two secrets differ.

use subtle::ConstantTimeEq;

/// True when both are equal. The time it takes reveals only the lengths.
#[must_use]
pub fn eq(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

#[cfg(test)]
mod tests {
    use super::eq;

    #[test]
    fn equal_means_same_length_and_bytes() {
        assert!(eq(b"", b""));
        assert!(eq(b"same", b"same"));
        assert!(!eq(b"same", b"sama"));
        assert!(!eq(b"same", b"sam"));
        assert!(!eq(b"", b"s"));
    }
}
