//! The DER of P-256 signatures (RFC 3279), as Vault writes them; the native API has `r || s`. Names nothing of this crate,
//! so that a fuzz target can compile it alone.

/// `r || s` as the DER of RFC 3279.
pub fn der(raw: [u8; 64]) -> Vec<u8> {
    let mut body = Vec::with_capacity(72);
    for half in raw.chunks(32) {
        let start = half.iter().position(|byte| *byte != 0).unwrap_or(31);
        let digits = &half[start..];
        let sign = usize::from(digits[0] >= 0x80);
        body.extend_from_slice(&[2, (digits.len() + sign) as u8]);
        body.extend_from_slice(&[0][..sign]);
        body.extend_from_slice(digits);
    }
    [&[0x30, body.len() as u8][..], &body].concat()
}

/// The `r || s` of a DER signature. Strict: every signature has exactly one accepted encoding.
pub fn from_der(text: &[u8]) -> Option<[u8; 64]> {
    let [0x30, length, body @ ..] = text else {
        return None;
    };
    if usize::from(*length) != body.len() {
        return None;
    }
    let mut raw = [0; 64];
    let mut rest = body;
    for half in raw.chunks_mut(32) {
        let [2, length, tail @ ..] = rest else {
            return None;
        };
        let (digits, tail) = tail.split_at_checked(usize::from(*length))?;
        let digits = digits.strip_prefix(&[0]).unwrap_or(digits);
        half[32_usize.checked_sub(digits.len())?..].copy_from_slice(digits);
        rest = tail;
    }
    (rest.is_empty() && der(raw) == text).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_has_one_form() {
        let mut raw = [0_u8; 64];
        (raw[0], raw[31], raw[63]) = (0x80, 1, 5);
        let text = der(raw);
        assert_eq!(
            text[..5],
            [0x30, 38, 2, 33, 0],
            "a high first bit needs a zero in front"
        );
        assert_eq!(text[37..], [2, 1, 5], "leading zeros go");
        assert_eq!(from_der(&text), Some(raw));
        assert_eq!(from_der(&der([0; 64])), Some([0; 64]));
        for at in 0..text.len() {
            assert!(from_der(&text[..at]).is_none(), "cut at {at}");
        }
        let mut long = text.clone();
        long.push(0);
        assert!(from_der(&long).is_none());
        // The same numbers with a zero more in front.
        let padded = [&[0x30, 39, 2, 33, 0][..], &raw[..32], &[2, 2, 0, 5]].concat();
        assert!(from_der(&padded).is_none());
    }
}
