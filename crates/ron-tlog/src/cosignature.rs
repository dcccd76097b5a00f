//! C2SP cosignatures: a witness's timestamped signature on a checkpoint, as a signature line of its note. Pure.
//!
//! Implemented: Ed25519, type 0x04 (`cosignature/v1`). The signature bytes are the time (seconds since 1970, 8 bytes big-endian)
//! and the Ed25519 signature over two header lines and the whole note text.

use crate::note::{Note, NoteError, NoteSignature, key_id, parse_vkey, print_vkey, valid_name};
use ron_crypto::sign::{Ed25519Key, verify_ed25519_strict};
use std::fmt;
use std::str::FromStr;

/// Signature type byte of Ed25519 cosignatures.
pub const COSIGNATURE_ED25519: u8 = 0x04;

/// Latest time that may stand in a cosignature.
const TIME_MAX: u64 = i64::MAX as u64;

/// What a cosigner signs at a time.
fn message(time_s: u64, text: &str) -> Vec<u8> {
    format!("cosignature/v1\ntime {time_s}\n{text}").into_bytes()
}

/// The public key of a witness; printed and parsed as `name+key id (8 hex)+base64(0x04 || public key)`.
#[derive(Clone, PartialEq, Eq)]
pub struct CosignerKey {
    name: String,
    key_id: u32,
    public: [u8; 32],
}

impl CosignerKey {
    /// The key of a witness under its name.
    pub fn ed25519(name: &str, public: &[u8; 32]) -> Result<Self, NoteError> {
        if !valid_name(name) {
            return Err(NoteError::Key("the name is empty or has a space or a plus"));
        }
        Ok(Self {
            name: name.to_owned(),
            key_id: key_id(name, COSIGNATURE_ED25519, public),
            public: *public,
        })
    }

    /// Parses a verifier key line; surrounding white space is ignored.
    pub fn parse(line: &str) -> Result<Self, NoteError> {
        let (name, kind, public) = parse_vkey(line)?;
        if kind != COSIGNATURE_ED25519 {
            return Err(NoteError::Key(
                "its type is not that of Ed25519 cosignatures (0x04)",
            ));
        }
        let public: [u8; 32] = public
            .try_into()
            .map_err(|_| NoteError::Key("an Ed25519 key has 32 bytes"))?;
        Self::ed25519(name, &public)
    }

    /// The witness's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key id, as it stands in signature lines.
    pub fn key_id(&self) -> u32 {
        self.key_id
    }

    /// The raw Ed25519 public key.
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// True when the line claims to be by this key.
    pub fn made(&self, line: &NoteSignature) -> bool {
        line.name == self.name && line.key_id == self.key_id
    }

    /// The time (seconds since 1970) at which this key cosigned `text` with `line`; `None` when it did not.
    pub fn verify(&self, text: &str, line: &NoteSignature) -> Option<u64> {
        let (time, signature) = line.signature.split_first_chunk::<8>()?;
        let signature: &[u8; 64] = signature.try_into().ok()?;
        let time_s = u64::from_be_bytes(*time);
        let holds = self.made(line)
            && (1..=TIME_MAX).contains(&time_s)
            && verify_ed25519_strict(&self.public, &message(time_s, text), signature);
        holds.then_some(time_s)
    }

    /// The first cosignature of this key on a note that holds, with its time.
    pub fn find<'a>(&self, note: &'a Note) -> Option<(u64, &'a NoteSignature)> {
        note.signatures
            .iter()
            .find_map(|line| Some((self.verify(&note.text, line)?, line)))
    }
}

impl fmt::Display for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_vkey(&self.name, COSIGNATURE_ED25519, &self.public))
    }
}

impl fmt::Debug for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CosignerKey({self})")
    }
}

impl FromStr for CosignerKey {
    type Err = NoteError;
    fn from_str(line: &str) -> Result<Self, NoteError> {
        Self::parse(line)
    }
}

/// A witness's key pair.
pub struct Cosigner {
    verifier: CosignerKey,
    key: Ed25519Key,
}

impl Cosigner {
    /// Cosigns as `name` with `key`. One key must not serve two names: an Ed25519 cosignature does not commit to its name.
    pub fn new(name: &str, key: Ed25519Key) -> Result<Self, NoteError> {
        Ok(Self {
            verifier: CosignerKey::ed25519(name, &key.public())?,
            key,
        })
    }

    /// The public half.
    pub fn verifier(&self) -> &CosignerKey {
        &self.verifier
    }

    /// Cosigns the text of a checkpoint at a time (seconds since 1970, not 0). Whoever calls has checked that the checkpoint
    /// extends the last one that was cosigned for its origin, and has stored it.
    pub fn cosign(&self, text: &str, time_s: u64) -> NoteSignature {
        let mut signature = time_s.to_be_bytes().to_vec();
        signature.extend_from_slice(&self.key.sign(&message(time_s, text)));
        NoteSignature {
            name: self.verifier.name.clone(),
            key_id: self.verifier.key_id,
            signature,
        }
    }
}

impl fmt::Debug for Cosigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cosigner({})", self.verifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::{VerifierKey, parse_signature};

    fn cosigner() -> Cosigner {
        Cosigner::new("witness.example/w1", Ed25519Key::from_seed(&[8; 32])).expect("name")
    }

    #[test]
    fn a_cosignature_survives_print_and_parse_and_binds_time_text_and_name() {
        let witness = cosigner();
        let key = CosignerKey::parse(&witness.verifier().to_string()).expect("parses");
        assert_eq!(&key, witness.verifier());
        assert!(
            VerifierKey::parse(&key.to_string()).is_err(),
            "another type"
        );
        let text = "log.example\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
        let line = witness.cosign(text, 1_700_000_000);
        let line = parse_signature(&line.to_string()).expect("parses");
        assert_eq!(key.verify(text, &line), Some(1_700_000_000));
        assert_eq!(key.verify(&text.replace('3', "4"), &line), None);
        for at in 0..line.signature.len() {
            let mut bad = line.clone();
            bad.signature[at] ^= 1;
            assert_eq!(key.verify(text, &bad), None, "byte {at}");
        }
        let mut renamed = line.clone();
        renamed.name = "witness.example/w2".into();
        assert_eq!(key.verify(text, &renamed), None);
        assert_eq!(key.verify(text, &witness.cosign(text, 0)), None, "no time");
    }

    /// The cosigned checkpoint that the specification prints. Its key is not printed there, so only form and time are compared.
    #[test]
    fn the_published_example_has_its_form() {
        let line = "\u{2014} witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==";
        let line = parse_signature(line).expect("parses");
        assert_eq!(line.key_id, 0x8d66_cf3f);
        assert_eq!(line.signature.len(), 72);
        assert_eq!(&line.signature[..8], 1_679_315_147_u64.to_be_bytes());
    }
}
