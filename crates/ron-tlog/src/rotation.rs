//! Rotation of a log's signing key: the statement that the old and the new key both sign, and the
//! chain of all statements, which leads a verifier that pinned an old key to the new one. Pure.
//!
//! ```text
//! ron-tlog/v1/key-rotation                        a statement is a C2SP signed note of these eight lines
//! <origin>
//! <number of the new key: 2 for the first rotation>
//! <entries that were durable: the one that records this statement has this index or a later one>
//! <Unix milliseconds>
//! <verifier key of the old key>
//! <verifier key of the new key>
//! ml-dsa-44 <SHA-256 of the verifier key line of the new second key, hex>    or `-` where there is none
//!
//! — <origin> <signature of the old key>
//! — <origin> <signature of the new key>
//! ```
//! A statement cannot be taken for a checkpoint, whose third line is a hash, nor a checkpoint for a
//! statement.

use std::fmt;
use std::sync::Arc;

use crate::checkpoint::decimal;
use crate::note::{Note, NoteError, NoteSigner, SignFailed, VerifierKey};
use crate::tree::Hash;

/// First line of every statement.
pub const HEADER: &str = "ron-tlog/v1/key-rotation";
/// Maximum number of rotations of one log.
pub const ROTATIONS_MAX: usize = 256;
/// Longest chain that is parsed, in bytes.
pub const CHAIN_BYTES_MAX: usize = 1024 * 1024;

/// Why a statement or a chain is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RotationFault {
    /// The text is not in the format.
    #[error("not a key rotation: {0}")]
    Malformed(&'static str),
    /// A signature is missing or wrong.
    #[error("key rotation {number}: {fault}")]
    Signature {
        /// Number of its new key.
        number: u32,
        fault: NoteError,
    },
    /// The statement does not follow the one before.
    #[error("key rotation {number} does not follow the one before: {why}")]
    Order {
        /// Number of its new key.
        number: u32,
        why: &'static str,
    },
}

/// The contents of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Number of the new key, from 2.
    pub number: u32,
    /// Entries that were durable when it was made.
    pub size: u64,
    /// Unix milliseconds.
    pub time_ms: u64,
    /// The key before; its name is the origin.
    pub old: VerifierKey,
    /// The key from now on; has the same name.
    pub new: VerifierKey,
    /// SHA-256 of the verifier key line of the new second (ML-DSA-44) key.
    pub second: Option<Hash>,
}

impl Rotation {
    pub fn origin(&self) -> &str {
        self.old.name()
    }

    pub fn to_text(&self) -> String {
        let second = self.second.map_or_else(|| "-".to_owned(), hex::encode);
        format!(
            "{HEADER}\n{}\n{}\n{}\n{}\n{}\n{}\nml-dsa-44 {second}\n",
            self.origin(),
            self.number,
            self.size,
            self.time_ms,
            self.old,
            self.new
        )
    }

    /// Parses a note text; checks only the form.
    pub fn parse_text(text: &str) -> Result<Self, RotationFault> {
        let bad = RotationFault::Malformed;
        let lines: Vec<&str> = text
            .strip_suffix('\n')
            .ok_or(bad("the last line has no newline"))?
            .split('\n')
            .collect();
        let [header, origin, number, size, time, old, new, second] = lines[..] else {
            return Err(bad("it has other than eight lines"));
        };
        let key = |line| {
            let key = VerifierKey::parse(line).map_err(|_| bad("a key is no verifier key"))?;
            let exact = key.to_string() == line && key.name() == origin;
            exact
                .then_some(key)
                .ok_or(bad("a key is of another origin"))
        };
        let second = match second.strip_prefix("ml-dsa-44 ") {
            Some("-") => None,
            Some(digits) => {
                let mut hash = Hash::default();
                hex::decode_to_slice(digits, &mut hash).map_err(|_| bad("the last line"))?;
                Some(hash)
            }
            None => return Err(bad("the last line")),
        };
        let number = decimal(number).and_then(|n| u32::try_from(n).ok());
        let rotation = Self {
            number: number.ok_or(bad("the number"))?,
            size: decimal(size).ok_or(bad("the size"))?,
            time_ms: decimal(time).ok_or(bad("the time"))?,
            old: key(old)?,
            new: key(new)?,
            second,
        };
        // Compared as a whole: only the canonical spelling is accepted.
        if header != HEADER || rotation.number < 2 || rotation.to_text() != text {
            return Err(bad("the header or a number"));
        }
        Ok(rotation)
    }

    /// Signs the statement with both keys; the result is the complete note.
    pub fn sign(&self, old: &dyn NoteSigner, new: &dyn NoteSigner) -> Result<String, SignFailed> {
        Ok(Note::sign(&self.to_text(), &[old, new])?.to_string())
    }

    /// Opens a statement: the old key and the new one must both have signed it.
    pub fn open(note: &str) -> Result<Self, RotationFault> {
        let parsed = Note::parse(note).map_err(|_| RotationFault::Malformed("it is no note"))?;
        let rotation = Self::parse_text(&parsed.text)?;
        let number = rotation.number;
        if parsed.to_string() != note {
            return Err(RotationFault::Malformed("a signature line"));
        }
        for key in [&rotation.old, &rotation.new] {
            parsed
                .verify(std::slice::from_ref(key))
                .map_err(|fault| RotationFault::Signature { number, fault })?;
        }
        Ok(rotation)
    }
}

/// All keys that a log has had, each signed by the one before it.
///
/// As text: the verifier key line of the first key, then each statement after an empty line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChain {
    keys: Vec<VerifierKey>,
    rotations: Vec<(Rotation, Arc<str>)>,
}

impl KeyChain {
    /// The chain of a log that has not rotated its key yet.
    pub fn new(first: VerifierKey) -> Self {
        Self {
            keys: vec![first],
            rotations: Vec::new(),
        }
    }

    /// Adds a statement, which must be valid and follow the last one.
    pub fn push(&mut self, note: &str) -> Result<(), RotationFault> {
        let rotation = Rotation::open(note)?;
        let number = rotation.number;
        let order = |why| Err(RotationFault::Order { number, why });
        if number as usize != self.keys.len() + 1 {
            return order("its number");
        }
        if self.keys.len() > ROTATIONS_MAX {
            return order("there are too many");
        }
        if rotation.old != *self.newest() {
            return order("its old key");
        }
        // A replaced key may be compromised and must not return.
        if self.keys.contains(&rotation.new) {
            return order("its new key was used before");
        }
        if let Some((last, _)) = self.rotations.last()
            && (rotation.size < last.size || rotation.time_ms < last.time_ms)
        {
            return order("its size or time");
        }
        self.keys.push(rotation.new.clone());
        self.rotations.push((rotation, note.into()));
        Ok(())
    }

    /// Parses a chain and checks every statement in it.
    pub fn parse(text: &str) -> Result<Self, RotationFault> {
        let bad = RotationFault::Malformed;
        if text.len() > CHAIN_BYTES_MAX {
            return Err(bad("the chain is too long"));
        }
        // A statement has exactly one empty line: the one before its signatures.
        let body = text
            .strip_suffix('\n')
            .ok_or(bad("the last line has no newline"))?;
        let mut parts = body.split("\n\n");
        let first = parts.next().unwrap_or_default();
        let key =
            VerifierKey::parse(first).map_err(|_| bad("the first line is no verifier key"))?;
        if key.to_string() != first {
            return Err(bad("the first line"));
        }
        let mut chain = Self::new(key);
        while let Some(statement) = parts.next() {
            let signatures = parts.next().ok_or(bad("a statement has no signatures"))?;
            chain.push(&format!("{statement}\n\n{signatures}\n"))?;
        }
        Ok(chain)
    }

    pub fn origin(&self) -> &str {
        self.keys[0].name()
    }

    /// The key that signs now.
    pub fn newest(&self) -> &VerifierKey {
        &self.keys[self.keys.len() - 1]
    }

    /// All keys, oldest first.
    pub fn keys(&self) -> &[VerifierKey] {
        &self.keys
    }

    /// All statements, oldest first, with their notes.
    pub fn rotations(&self) -> &[(Rotation, Arc<str>)] {
        &self.rotations
    }

    /// The keys from a pinned key on, including it; `None` when the log never had that key.
    pub fn since(&self, pin: &VerifierKey) -> Option<&[VerifierKey]> {
        let at = self.keys.iter().position(|key| key == pin)?;
        Some(&self.keys[at..])
    }

    /// True when this chain is `other` or continues it.
    pub fn extends(&self, other: &Self) -> bool {
        self.keys[0] == other.keys[0] && self.rotations.starts_with(&other.rotations)
    }
}

impl fmt::Display for KeyChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.keys[0])?;
        for (_, note) in &self.rotations {
            write!(f, "\n{note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::note::Ed25519NoteSigner;

    fn signer(seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new("log.example/a", Ed25519Key::from_seed(&[seed; 32])).expect("name")
    }

    fn rotation(number: u32) -> Rotation {
        let key = |n: u32| signer(n as u8).verifier().clone();
        Rotation {
            number,
            size: 100 * u64::from(number),
            time_ms: 1_700_000_000_000,
            old: key(number - 1),
            new: key(number),
            second: number.is_multiple_of(2).then_some([7; 32]),
        }
    }

    fn statement(number: u32) -> String {
        let by = |n: u32| signer(n as u8);
        let signed = rotation(number).sign(&by(number - 1), &by(number));
        signed.expect("signs")
    }

    fn chain(keys: u32) -> KeyChain {
        let mut chain = KeyChain::new(signer(1).verifier().clone());
        (2..=keys).for_each(|n| chain.push(&statement(n)).expect("follows"));
        chain
    }

    #[test]
    fn a_chain_round_trips_and_leads_from_any_pinned_key() {
        for keys in 1..6 {
            let chain = chain(keys);
            assert_eq!(KeyChain::parse(&chain.to_string()), Ok(chain.clone()));
            assert_eq!(chain.newest(), signer(keys as u8).verifier());
            for pin in 1..=keys {
                let led = chain.since(signer(pin as u8).verifier()).expect("known");
                assert_eq!(led.len() as u32, keys - pin + 1);
            }
            assert_eq!(chain.since(signer(99).verifier()), None);
            assert!(chain.extends(&self::chain(1)) && chain.extends(&chain));
            assert!(!self::chain(keys).extends(&self::chain(keys + 1)));
        }
    }

    /// Every byte of a chain matters.
    #[test]
    fn a_changed_chain_is_refused() {
        let good = chain(3).to_string();
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] ^= 1;
            let Ok(text) = String::from_utf8(bytes) else {
                continue;
            };
            assert!(KeyChain::parse(&text).is_err(), "byte {at}: {text}");
        }
        for cut in 0..good.len() {
            let Some(text) = good.get(..cut) else {
                continue;
            };
            // Cut before a statement, the text is an older chain, which is valid.
            let whole = KeyChain::parse(text).is_ok();
            assert_eq!(
                whole,
                cut == chain(1).to_string().len() || cut == chain(2).to_string().len()
            );
        }
    }

    #[test]
    fn statements_need_both_signatures_and_their_order() {
        let signed = |r: &Rotation, by: &[u8]| {
            let signers: Vec<_> = by.iter().map(|n| signer(*n)).collect();
            let all: Vec<&dyn NoteSigner> = signers.iter().map(|s| s as &dyn NoteSigner).collect();
            Note::sign(&r.to_text(), &all).expect("signs").to_string()
        };
        let r = rotation(2);
        assert_eq!(Rotation::open(&signed(&r, &[1, 2])), Ok(r.clone()));
        for by in [&[1][..], &[2], &[1, 3], &[3, 2], &[3]] {
            let fault = Rotation::open(&signed(&r, by)).expect_err("one is missing");
            assert!(
                matches!(fault, RotationFault::Signature { number: 2, .. }),
                "{fault}"
            );
        }
        let check = |what: &str, note: String| {
            let fault = chain(2).push(&note).expect_err(what);
            assert!(
                matches!(fault, RotationFault::Order { .. }),
                "{what}: {fault}"
            );
        };
        check("again", statement(2));
        check("one left out", statement(4));
        let change = |change: &dyn Fn(&mut Rotation)| {
            let mut r = rotation(3);
            change(&mut r);
            r
        };
        let fork = change(&|r| r.old = signer(1).verifier().clone());
        check("from another key", signed(&fork, &[1, 3]));
        let back = change(&|r| r.new = signer(1).verifier().clone());
        check("back to an old key", signed(&back, &[2, 1]));
        check("an earlier size", signed(&change(&|r| r.size = 0), &[2, 3]));
        check(
            "an earlier time",
            signed(&change(&|r| r.time_ms = 0), &[2, 3]),
        );
    }

    #[test]
    fn a_statement_is_no_checkpoint_and_a_checkpoint_no_statement() {
        assert!(Checkpoint::parse_text(&rotation(2).to_text()).is_err());
        let checkpoint = Checkpoint {
            origin: HEADER.into(),
            size: 2,
            root: [0; 32],
        };
        assert!(Rotation::parse_text(&checkpoint.to_text()).is_err());
    }
}
