//! C2SP cosignatures: a witness's timestamped signature on a checkpoint, as a signature line of its
//! note. Pure.
//!
//! Implemented: Ed25519, type 0x04 (`cosignature/v1`), and ML-DSA-44, type 0x06 (`subtree/v1`,
//! whole trees only). The signature bytes are the time (seconds since 1970, 8 bytes big-endian) and
//! the signature: of Ed25519 over two header lines and the whole note text, of ML-DSA-44 over a
//! fixed structure with the cosigner's name, the time, and the checkpoint's three values.

use std::fmt;
use std::str::FromStr;

use ron_crypto::mldsa::{MlDsaKey, MlDsaSet, verify_mldsa};
use ron_crypto::secret::Secret32;
use ron_crypto::sign::{Ed25519Key, verify_ed25519_strict};

use crate::checkpoint::Checkpoint;
use crate::note::{Note, NoteError, NoteSignature, key_id, parse_vkey, print_vkey, valid_name};

/// Signature type byte of Ed25519 cosignatures.
pub const COSIGNATURE_ED25519: u8 = 0x04;

/// Signature type byte of ML-DSA-44 cosignatures.
pub const COSIGNATURE_ML_DSA_44: u8 = 0x06;
/// Bytes of an ML-DSA-44 public key.
const ML_DSA_44_PUBLIC: usize = MlDsaSet::L44.public_len();

/// Latest time allowed in a cosignature, in seconds since 1970.
const TIME_MAX: u64 = i64::MAX as u64;
/// Longest name or origin in an ML-DSA-44 cosignature, in bytes: its length takes one byte.
const TEXT_MAX: usize = 255;

/// The bytes that an Ed25519 cosigner signs.
fn message(time_s: u64, text: &str) -> Vec<u8> {
    format!("cosignature/v1\ntime {time_s}\n{text}").into_bytes()
}

/// The bytes that an ML-DSA-44 cosigner signs: the tree of a checkpoint as a subtree from 0. `None`
/// when a text is too long.
fn tree_message(name: &str, time_s: u64, checkpoint: &Checkpoint) -> Option<Vec<u8>> {
    let mut bytes = b"subtree/v1\n\0".to_vec();
    bytes.push(u8::try_from(name.len()).ok()?);
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&time_s.to_be_bytes());
    bytes.push(u8::try_from(checkpoint.origin.len()).ok()?);
    bytes.extend_from_slice(checkpoint.origin.as_bytes());
    bytes.extend_from_slice(&0_u64.to_be_bytes());
    bytes.extend_from_slice(&checkpoint.size.to_be_bytes());
    bytes.extend_from_slice(&checkpoint.root);
    Some(bytes)
}

/// The public key of a witness; printed and parsed as
/// `name+key id (8 hex)+base64(type || public key)`.
#[derive(Clone, PartialEq, Eq)]
pub struct CosignerKey {
    name: String,
    key_id: u32,
    public: Public,
}

#[derive(Clone, PartialEq, Eq)]
enum Public {
    Ed25519([u8; 32]),
    MlDsa44(Box<[u8; ML_DSA_44_PUBLIC]>),
}

impl Public {
    fn kind(&self) -> u8 {
        match self {
            Self::Ed25519(_) => COSIGNATURE_ED25519,
            Self::MlDsa44(_) => COSIGNATURE_ML_DSA_44,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Ed25519(public) => public,
            Self::MlDsa44(public) => &public[..],
        }
    }
}

impl CosignerKey {
    /// The Ed25519 key of a witness under its name.
    pub fn ed25519(name: &str, public: &[u8; 32]) -> Result<Self, NoteError> {
        Self::new(name, Public::Ed25519(*public))
    }

    /// The ML-DSA-44 key of a witness under its name.
    pub fn ml_dsa_44(name: &str, public: &[u8; ML_DSA_44_PUBLIC]) -> Result<Self, NoteError> {
        Self::new(name, Public::MlDsa44(Box::new(*public)))
    }

    fn new(name: &str, public: Public) -> Result<Self, NoteError> {
        if !valid_name(name) || name.len() > TEXT_MAX {
            return Err(NoteError::Key(
                "the name is empty, has a space or a plus, or more than 255 bytes",
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            key_id: key_id(name, public.kind(), public.bytes()),
            public,
        })
    }

    /// Parses a verifier key line; surrounding white space is ignored.
    pub fn parse(line: &str) -> Result<Self, NoteError> {
        let (name, kind, public) = parse_vkey(line)?;
        let public = match kind {
            COSIGNATURE_ED25519 => <[u8; 32]>::try_from(public)
                .map(Public::Ed25519)
                .map_err(|_| NoteError::Key("an Ed25519 key has 32 bytes"))?,
            COSIGNATURE_ML_DSA_44 => <[u8; ML_DSA_44_PUBLIC]>::try_from(public)
                .map(|public| Public::MlDsa44(Box::new(public)))
                .map_err(|_| NoteError::Key("an ML-DSA-44 key has 1312 bytes"))?,
            _ => {
                return Err(NoteError::Key(
                    "its type is not that of cosignatures (Ed25519 0x04, ML-DSA-44 0x06)",
                ));
            }
        };
        Self::new(name, public)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key id, as written in signature lines.
    pub fn key_id(&self) -> u32 {
        self.key_id
    }

    /// The raw public key.
    pub fn public(&self) -> &[u8] {
        self.public.bytes()
    }

    /// True when the line claims to be by this key.
    pub fn made(&self, line: &NoteSignature) -> bool {
        line.name == self.name && line.key_id == self.key_id
    }

    /// The time (seconds since 1970) at which this key cosigned `text` with `line`; `None` when it
    /// did not.
    pub fn verify(&self, text: &str, line: &NoteSignature) -> Option<u64> {
        let (time, signature) = line.signature.split_first_chunk::<8>()?;
        let time_s = u64::from_be_bytes(*time);
        // Checked before the signature, which is the expensive part.
        if !self.made(line) || !(1..=TIME_MAX).contains(&time_s) {
            return None;
        }
        let holds = match &self.public {
            Public::Ed25519(public) => {
                let signature: &[u8; 64] = signature.try_into().ok()?;
                verify_ed25519_strict(public, &message(time_s, text), signature)
            }
            Public::MlDsa44(public) => {
                let checkpoint = Checkpoint::parse_text(text).ok()?;
                let message = tree_message(&self.name, time_s, &checkpoint)?;
                verify_mldsa(MlDsaSet::L44, &public[..], &message, signature)
            }
        };
        holds.then_some(time_s)
    }

    /// The first valid cosignature of this key on a note, with its time.
    pub fn find<'a>(&self, note: &'a Note) -> Option<(u64, &'a NoteSignature)> {
        note.signatures
            .iter()
            .find_map(|line| Some((self.verify(&note.text, line)?, line)))
    }
}

impl fmt::Display for CosignerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_vkey(
            &self.name,
            self.public.kind(),
            self.public.bytes(),
        ))
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
    key: Key,
}

enum Key {
    Ed25519(Ed25519Key),
    MlDsa44(MlDsaKey),
}

impl Cosigner {
    /// Cosigns as `name` with `key`. One key must not serve two names: an Ed25519 cosignature does
    /// not commit to its name.
    pub fn new(name: &str, key: Ed25519Key) -> Result<Self, NoteError> {
        Ok(Self {
            verifier: CosignerKey::ed25519(name, &key.public())?,
            key: Key::Ed25519(key),
        })
    }

    /// Cosigns as `name` with the ML-DSA-44 key of a seed.
    pub fn ml_dsa_44(name: &str, seed: &Secret32) -> Result<Self, NoteError> {
        let key = MlDsaKey::from_seed(MlDsaSet::L44, seed);
        let public = key.public().try_into().expect("the length is the set's");
        Ok(Self {
            verifier: CosignerKey::ml_dsa_44(name, &public)?,
            key: Key::MlDsa44(key),
        })
    }

    pub fn verifier(&self) -> &CosignerKey {
        &self.verifier
    }

    /// Cosigns the text of a checkpoint at a time (seconds since 1970, not 0). The caller must have
    /// checked that the checkpoint extends the last one cosigned for its origin. `None` for a text
    /// that an ML-DSA-44 key cannot cosign: not a checkpoint, or an origin of more than 255 bytes.
    pub fn cosign(&self, text: &str, time_s: u64) -> Option<NoteSignature> {
        let mut signature = time_s.to_be_bytes().to_vec();
        match &self.key {
            Key::Ed25519(key) => signature.extend_from_slice(&key.sign(&message(time_s, text))),
            Key::MlDsa44(key) => {
                let checkpoint = Checkpoint::parse_text(text).ok()?;
                let message = tree_message(&self.verifier.name, time_s, &checkpoint)?;
                signature.extend_from_slice(&key.sign(&message));
            }
        }
        Some(NoteSignature {
            name: self.verifier.name.clone(),
            key_id: self.verifier.key_id,
            signature,
        })
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
    fn a_cosignature_round_trips_and_binds_time_text_and_name() {
        let witness = cosigner();
        let key = CosignerKey::parse(&witness.verifier().to_string()).expect("parses");
        assert_eq!(&key, witness.verifier());
        assert!(
            VerifierKey::parse(&key.to_string()).is_err(),
            "another type"
        );
        let text = "log.example\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
        let line = witness.cosign(text, 1_700_000_000).expect("signs");
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
        let timeless = witness.cosign(text, 0).expect("signs");
        assert_eq!(key.verify(text, &timeless), None, "no time");
    }

    #[test]
    fn ml_dsa_44_binds_name_time_and_tree_but_no_extension() {
        let seed = ron_crypto::Secret32::from_slice(&[9; 32]);
        let witness = Cosigner::ml_dsa_44("witness.example/pq", &seed).expect("name");
        let key = CosignerKey::parse(&witness.verifier().to_string()).expect("parses");
        assert_eq!(&key, witness.verifier());
        let text = "log.example\n3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";
        let line = witness.cosign(text, 77).expect("signs");
        assert_eq!(line.signature.len(), 8 + 2420);
        let line = parse_signature(&line.to_string()).expect("parses");
        assert_eq!(key.verify(text, &line), Some(77));
        assert_eq!(key.verify(&format!("{text}extension\n"), &line), Some(77));
        for other in [
            text.replace('3', "4"),
            text.replace("log", "lag"),
            text.replacen("AAA", "AAB", 1),
        ] {
            assert_eq!(key.verify(&other, &line), None, "{other}");
        }
        let mut later = line.clone();
        later.signature[7] += 1;
        assert_eq!(key.verify(text, &later), None);
        assert_eq!(witness.cosign("no checkpoint\n", 77), None);
    }

    /// The cosigned checkpoint of the specification. Its key is not published, so only form and
    /// time are compared.
    #[test]
    fn the_published_example_has_its_form() {
        let line = "\u{2014} witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==";
        let line = parse_signature(line).expect("parses");
        assert_eq!(line.key_id, 0x8d66_cf3f);
        assert_eq!(line.signature.len(), 72);
        assert_eq!(&line.signature[..8], 1_679_315_147_u64.to_be_bytes());
    }
}
