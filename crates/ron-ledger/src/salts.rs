//! Draws the salts of private records. The core takes them as input.

use ron_kernel::Random;

use crate::core::Salts;

/// The salts of one entry.
pub fn one(random: &dyn Random) -> Salts {
    let mut bytes = [0; Salts::BYTES];
    random.fill(&mut bytes);
    Salts::from_bytes(&bytes)
}

/// The salts of `n` entries, drawn at once.
pub fn many(random: &dyn Random, n: usize) -> Vec<Salts> {
    let mut bytes = vec![[0; Salts::BYTES]; n];
    random.fill(bytes.as_flattened_mut());
    bytes.iter().map(Salts::from_bytes).collect()
}
