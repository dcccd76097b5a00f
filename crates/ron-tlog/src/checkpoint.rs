//! C2SP checkpoints: a log's origin, size and root hash as the text of a signed note. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::note::{Note, NoteError, NoteSigner, SignFailed, VerifierKey};
use crate::tree::Hash;

/// A commitment of a log to all entries below `size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's identity, a name like `example.com/log`.
    pub origin: String,
    pub size: u64,
    /// Root of the tree of that size.
    pub root: Hash,
}

/// Why a text is not a checkpoint, or not a trusted one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointFault {
    /// The note or its signatures are wrong.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text of the note is not a checkpoint.
    #[error("not a checkpoint: {0}")]
    Malformed(&'static str),
    /// It belongs to another log.
    #[error("the checkpoint belongs to the log `{0}`")]
    Origin(String),
}

/// Parses a decimal number without sign or leading zeros.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let plain = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// Parses the base64 of a 32-byte hash.
pub(crate) fn hash_base64(text: &str) -> Option<Hash> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

impl Checkpoint {
    /// The note text: three lines.
    pub fn to_text(&self) -> String {
        format!(
            "{}\n{}\n{}\n",
            self.origin,
            self.size,
            STANDARD.encode(self.root)
        )
    }

    /// Parses a note text. Our logs write no extension lines; those of other logs are ignored.
    pub fn parse_text(text: &str) -> Result<Self, CheckpointFault> {
        let body = text
            .strip_suffix('\n')
            .ok_or(CheckpointFault::Malformed("the last line has no newline"))?;
        let mut lines = body.split('\n');
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next())
        else {
            return Err(CheckpointFault::Malformed("it has fewer than three lines"));
        };
        if origin.is_empty() || lines.any(str::is_empty) {
            return Err(CheckpointFault::Malformed("it has an empty line"));
        }
        Ok(Self {
            origin: origin.to_owned(),
            size: decimal(size)
                .ok_or(CheckpointFault::Malformed("the size is not a plain number"))?,
            root: hash_base64(root).ok_or(CheckpointFault::Malformed(
                "the root is not 32 bytes of base64",
            ))?,
        })
    }

    /// Signs the checkpoint; the result is the complete note.
    pub fn sign(&self, signers: &[&dyn NoteSigner]) -> Result<String, SignFailed> {
        if self.origin.is_empty() || self.origin.contains('\n') {
            return Err(SignFailed("the origin is empty or has a newline".into()));
        }
        Ok(Note::sign(&self.to_text(), signers)?.to_string())
    }

    /// Opens a signed checkpoint: at least one of `keys` has signed it, none of their signatures is
    /// wrong, and its origin is `origin`, if given.
    pub fn open(
        note: &str,
        keys: &[VerifierKey],
        origin: Option<&str>,
    ) -> Result<Self, CheckpointFault> {
        let note = Note::parse(note)?;
        note.verify(keys)?;
        Self::of_origin(&note, origin)
    }

    /// Reads a signed checkpoint without checking its signatures. For notes that are trusted
    /// already.
    pub fn read_unverified(note: &str, origin: Option<&str>) -> Result<Self, CheckpointFault> {
        Self::of_origin(&Note::parse(note)?, origin)
    }

    fn of_origin(note: &Note, origin: Option<&str>) -> Result<Self, CheckpointFault> {
        let checkpoint = Self::parse_text(&note.text)?;
        if origin.is_some_and(|o| o != checkpoint.origin) {
            return Err(CheckpointFault::Origin(checkpoint.origin));
        }
        Ok(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::note::Ed25519NoteSigner;

    fn sample() -> Checkpoint {
        Checkpoint {
            origin: "log.example/a".into(),
            size: 70_000,
            root: [9; 32],
        }
    }

    #[test]
    fn a_checkpoint_round_trips_through_sign_and_open() {
        let signer =
            Ed25519NoteSigner::new("log.example/a", Ed25519Key::from_seed(&[1; 32])).expect("name");
        let note = sample().sign(&[&signer]).expect("signs");
        let keys = [signer.verifier().clone()];
        assert_eq!(
            Checkpoint::open(&note, &keys, Some("log.example/a")),
            Ok(sample())
        );
        assert_eq!(
            Checkpoint::open(&note, &keys, Some("log.example/b")),
            Err(CheckpointFault::Origin("log.example/a".into()))
        );
        assert!(Checkpoint::open(&note.replace("70000", "70001"), &keys, None).is_err());
    }

    #[test]
    fn odd_texts_are_refused() {
        let good = sample().to_text();
        assert_eq!(Checkpoint::parse_text(&good), Ok(sample()));
        assert_eq!(
            Checkpoint::parse_text(&format!("{good}extension\n")),
            Ok(sample())
        );
        for wrong in [
            good.replace("70000", "070000"),
            good.replace("70000", "+70000"),
            good.replace("70000", ""),
            good.replace("70000", "18446744073709551616"),
            good.replace("log.example/a", ""),
            good.replace("=\n", "\n"),
            format!("{good}\n"),
            good.trim_end().to_owned(),
            "a\n0\n".into(),
        ] {
            assert!(Checkpoint::parse_text(&wrong).is_err(), "{wrong:?}");
        }
    }
}
