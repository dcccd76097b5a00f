//! Cuts an input into pieces chosen by the fuzzer: the result must not depend on how the bytes arrive.

/// Splits off the first two bytes as the seed of the cuts; the rest, and its pieces.
pub fn cut(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (seed, rest) = data.split_at_checked(2)?;
    let mut state = u32::from(seed[0]) << 8 | u32::from(seed[1]) | 1 << 16;
    let mut pieces = Vec::new();
    let mut left = rest;
    while !left.is_empty() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let at = match state % 4 {
            0 => 1,
            1 => 2 + state as usize / 4 % 14,
            _ => 16 + state as usize / 4 % 256,
        };
        let (piece, more) = left.split_at(at.min(left.len()));
        pieces.push(piece);
        left = more;
    }
    Some((rest, pieces))
}
