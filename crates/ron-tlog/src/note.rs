//! C2SP signed notes: a text with signature lines, the verifier keys that check them, the signers
//! that make them. Pure.
//!
//! ```text
//! <text, ends in a newline>
//! <blank line>
//! — <key name> <base64(key id, 4 bytes big-endian || signature)>
//! ```
//! Implemented here: Ed25519 signatures of type 0x01; the timestamped signatures of witnesses are
//! in `cosignature`. Lines of unknown keys are kept and ignored, as the format requires, so
//! cosignatures stay on a note that is parsed and printed.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ron_crypto::hash::sha256;
use ron_crypto::sign::{Ed25519Key, verify_ed25519_strict};

/// Largest note that is parsed, in bytes.
pub const NOTE_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of signature lines of a note.
pub const SIGNATURES_MAX: usize = 64;
/// Signature type byte of Ed25519 over the note text.
pub const ED25519: u8 = 0x01;

/// Why a note, a key or a signature is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// The text is not a note.
    #[error("not a signed note: {0}")]
    Malformed(&'static str),
    /// The verifier key line is not usable.
    #[error("not a usable verifier key: {0}")]
    Key(&'static str),
    /// The signature of a known key is wrong: the note was altered or forged.
    #[error("the signature of `{0}` is wrong")]
    BadSignature(String),
    /// No signature is by a known key.
    #[error("no signature by a known key")]
    Unverified,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteSignature {
    /// Name of the key.
    pub name: String,
    /// The key id, which with the name identifies the key.
    pub key_id: u32,
    /// The signature bytes, without the key id.
    pub signature: Vec<u8>,
}

/// A signed note: a text and its signature lines, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The signed text; ends in a newline.
    pub text: String,
    /// At least one signature.
    pub signatures: Vec<NoteSignature>,
}

/// True for a name that is allowed in a signature line.
pub fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && !name
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || c == '+')
}

/// Key id of an Ed25519 key (type 0x01) under a name.
pub fn ed25519_key_id(name: &str, public: &[u8; 32]) -> u32 {
    key_id(name, ED25519, public)
}

/// Key id of a key of any type under a name.
pub(crate) fn key_id(name: &str, kind: u8, public: &[u8]) -> u32 {
    let mut bytes = Vec::with_capacity(name.len() + 2 + public.len());
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&[b'\n', kind]);
    bytes.extend_from_slice(public);
    let hash = sha256(&bytes);
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// Parses a verifier key line and checks its key id: name, type and public key.
pub(crate) fn parse_vkey(line: &str) -> Result<(&str, u8, Vec<u8>), NoteError> {
    let mut parts = line.trim().splitn(3, '+');
    let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(NoteError::Key("it is not `name+id+key`"));
    };
    if !valid_name(name) {
        return Err(NoteError::Key("the name is empty or has a space or a plus"));
    }
    let bytes = STANDARD
        .decode(key)
        .map_err(|_| NoteError::Key("the key is not base64"))?;
    let (kind, public) = bytes
        .split_first()
        .ok_or(NoteError::Key("the key is empty"))?;
    if format!("{:08x}", key_id(name, *kind, public)) != id {
        return Err(NoteError::Key(
            "the key id does not belong to this name and key",
        ));
    }
    Ok((name, *kind, public.to_vec()))
}

/// Prints a verifier key line.
pub(crate) fn print_vkey(name: &str, kind: u8, public: &[u8]) -> String {
    let mut key = vec![kind];
    key.extend_from_slice(public);
    format!(
        "{name}+{:08x}+{}",
        key_id(name, kind, public),
        STANDARD.encode(key)
    )
}

impl Note {
    /// Makes a note of `text` with the signatures of all `signers`.
    pub fn sign(text: &str, signers: &[&dyn NoteSigner]) -> Result<Self, SignFailed> {
        if !text.ends_with('\n') || text.chars().any(|c| c < ' ' && c != '\n') {
            return Err(SignFailed(
                "the text must end in a newline and hold no control characters".into(),
            ));
        }
        let mut signatures = Vec::with_capacity(signers.len());
        for signer in signers {
            if !valid_name(signer.name()) {
                return Err(SignFailed(
                    "the key name is empty or has a space or a plus".into(),
                ));
            }
            signatures.push(NoteSignature {
                name: signer.name().to_owned(),
                key_id: signer.key_id(),
                signature: signer.sign(text.as_bytes())?,
            });
        }
        if signatures.is_empty() {
            return Err(SignFailed("a note needs at least one signer".into()));
        }
        Ok(Self {
            text: text.to_owned(),
            signatures,
        })
    }

    /// Splits a note into text and signature lines; checks the form, not the signatures.
    pub fn parse(note: &str) -> Result<Self, NoteError> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(NoteError::Malformed("it is too long"));
        }
        if note.chars().any(|c| c < ' ' && c != '\n') {
            return Err(NoteError::Malformed("it holds control characters"));
        }
        // The last blank line: the text itself may contain others.
        let blank = note
            .rfind("\n\n")
            .ok_or(NoteError::Malformed("no blank line before signatures"))?;
        let (text, lines) = (&note[..=blank], &note[blank + 2..]);
        let lines = lines
            .strip_suffix('\n')
            .ok_or(NoteError::Malformed("the last line has no newline"))?;
        let mut signatures = Vec::new();
        for line in lines.split('\n') {
            if signatures.len() == SIGNATURES_MAX {
                return Err(NoteError::Malformed("too many signatures"));
            }
            signatures.push(parse_signature(line)?);
        }
        Ok(Self {
            text: text.to_owned(),
            signatures,
        })
    }

    /// Checks the signatures of the keys in `keys`. At least one must be present and all of them
    /// must be valid. Returns the positions in `keys` of the keys that signed, without repeats.
    pub fn verify(&self, keys: &[VerifierKey]) -> Result<Vec<usize>, NoteError> {
        let mut signed = Vec::new();
        for signature in &self.signatures {
            let known = keys
                .iter()
                .position(|k| k.name == signature.name && k.key_id == signature.key_id);
            let Some(at) = known else { continue };
            // Refused even when another key's signature is valid: the note was altered.
            if !keys[at].verify(self.text.as_bytes(), &signature.signature) {
                return Err(NoteError::BadSignature(signature.name.clone()));
            }
            if !signed.contains(&at) {
                signed.push(at);
            }
        }
        if signed.is_empty() {
            return Err(NoteError::Unverified);
        }
        Ok(signed)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        for signature in &self.signatures {
            writeln!(f, "{signature}")?;
        }
        Ok(())
    }
}

impl fmt::Display for NoteSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.key_id.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.signature);
        write!(f, "\u{2014} {} {}", self.name, STANDARD.encode(bytes))
    }
}

/// Parses one signature line (without its newline).
pub fn parse_signature(line: &str) -> Result<NoteSignature, NoteError> {
    let rest = line
        .strip_prefix("\u{2014} ")
        .ok_or(NoteError::Malformed("a signature line starts otherwise"))?;
    let (name, value) = rest
        .split_once(' ')
        .ok_or(NoteError::Malformed("a signature line has two words"))?;
    if !valid_name(name) {
        return Err(NoteError::Malformed(
            "a key name is empty or has a space or a plus",
        ));
    }
    let bytes = STANDARD
        .decode(value)
        .map_err(|_| NoteError::Malformed("a signature is not base64"))?;
    let Some((id, signature)) = bytes.split_first_chunk::<4>() else {
        return Err(NoteError::Malformed("a signature is too short"));
    };
    if signature.is_empty() {
        return Err(NoteError::Malformed("a signature is too short"));
    }
    Ok(NoteSignature {
        name: name.to_owned(),
        key_id: u32::from_be_bytes(*id),
        signature: signature.to_vec(),
    })
}

/// A public key that checks notes; printed and parsed as
/// `name+key id (8 hex)+base64(type || public key)`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct VerifierKey {
    name: String,
    key_id: u32,
    public: [u8; 32],
}

impl VerifierKey {
    /// The verifier of an Ed25519 key under a name.
    pub fn ed25519(name: &str, public: &[u8; 32]) -> Result<Self, NoteError> {
        if !valid_name(name) {
            return Err(NoteError::Key("the name is empty or has a space or a plus"));
        }
        Ok(Self {
            name: name.to_owned(),
            key_id: ed25519_key_id(name, public),
            public: *public,
        })
    }

    /// Parses a verifier key line; surrounding white space is ignored.
    pub fn parse(line: &str) -> Result<Self, NoteError> {
        let (name, kind, public) = parse_vkey(line)?;
        if kind != ED25519 {
            return Err(NoteError::Key("its type is not Ed25519 (0x01)"));
        }
        let public: [u8; 32] = public
            .try_into()
            .map_err(|_| NoteError::Key("an Ed25519 key has 32 bytes"))?;
        Self::ed25519(name, &public)
    }

    /// The key's name; for a log, its origin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key id, as written in signature lines.
    pub fn key_id(&self) -> u32 {
        self.key_id
    }

    /// The raw Ed25519 public key.
    pub fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// Whether `signature` (64 bytes) is this key's over `text`.
    pub fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        <&[u8; 64]>::try_from(signature).is_ok_and(|s| verify_ed25519_strict(&self.public, text, s))
    }
}

impl fmt::Display for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print_vkey(&self.name, ED25519, &self.public))
    }
}

impl fmt::Debug for VerifierKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifierKey({self})")
    }
}

impl FromStr for VerifierKey {
    type Err = NoteError;
    fn from_str(line: &str) -> Result<Self, NoteError> {
        Self::parse(line)
    }
}

/// A signer could not sign now, with the reason; nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot sign the note: {0}")]
pub struct SignFailed(pub String);

/// Signs notes. May be slow or fail (a key in another process), so logs with such a signer call it
/// on another thread than the appending one.
pub trait NoteSigner: Send + Sync {
    /// Name in the signature line.
    fn name(&self) -> &str;
    /// Key id in the signature line.
    fn key_id(&self) -> u32;
    /// The signature bytes over the note text (without the key id).
    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed>;
}

/// A [`NoteSigner`] that holds an Ed25519 key in this process.
pub struct Ed25519NoteSigner {
    verifier: VerifierKey,
    key: Ed25519Key,
}

impl Ed25519NoteSigner {
    /// Signs as `name` with `key`.
    pub fn new(name: &str, key: Ed25519Key) -> Result<Self, NoteError> {
        Ok(Self {
            verifier: VerifierKey::ed25519(name, &key.public())?,
            key,
        })
    }

    /// The verifier key that belongs to this signer.
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }
}

impl fmt::Debug for Ed25519NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ed25519NoteSigner({})", self.verifier)
    }
}

impl NoteSigner for Ed25519NoteSigner {
    fn name(&self) -> &str {
        self.verifier.name()
    }
    fn key_id(&self) -> u32 {
        self.verifier.key_id()
    }
    fn sign(&self, text: &[u8]) -> Result<Vec<u8>, SignFailed> {
        Ok(self.key.sign(text).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signer(name: &str, seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new(name, Ed25519Key::from_seed(&[seed; 32])).expect("a legal name")
    }

    #[test]
    fn a_note_round_trips() {
        let (a, b) = (signer("log.example/a", 1), signer("witness.example/b", 2));
        let note = Note::sign("first\n\nsecond\n", &[&a, &b]).expect("signs");
        let printed = note.to_string();
        let parsed = Note::parse(&printed).expect("parses");
        assert_eq!(parsed, note);
        assert_eq!(parsed.text, "first\n\nsecond\n");
        assert_eq!(
            parsed.verify(&[b.verifier().clone(), a.verifier().clone()]),
            Ok(vec![1, 0])
        );
        assert_eq!(
            parsed.verify(&[signer("x.example", 3).verifier().clone()]),
            Err(NoteError::Unverified)
        );
    }

    #[test]
    fn a_changed_text_or_signature_is_refused() {
        let a = signer("log.example/a", 1);
        let printed = Note::sign("text\n", &[&a]).expect("signs").to_string();
        let keys = [a.verifier().clone()];
        for changed in [
            printed.replacen("text", "Text", 1),
            printed.replace("log.example/a", "log.example/b"),
        ] {
            let verdict = Note::parse(&changed).expect("still a note").verify(&keys);
            assert!(verdict.is_err(), "{changed}");
        }
        let mut note = Note::parse(&printed).expect("parses");
        note.signatures[0].signature[63] ^= 0x20;
        assert_eq!(
            note.verify(&keys),
            Err(NoteError::BadSignature("log.example/a".into()))
        );
    }

    #[test]
    fn malformed_notes_are_refused() {
        let good = Note::sign("text\n", &[&signer("a", 1)])
            .expect("signs")
            .to_string();
        let cases = [
            String::new(),
            "text\n".into(),
            "text\n\n".into(),
            good.trim_end().to_owned(),
            good.replace('\u{2014}', "-"),
            good.replace("\u{2014} a ", "\u{2014} a b "),
            good.replace("\u{2014} a ", "\u{2014}  "),
            good.replace("\u{2014} a ", "\u{2014} a+ "),
            good.replace("text", "te\txt"),
            good.replace("text", "te\rxt"),
            format!("{good}\n"),
            "text\n\n\u{2014} a AAAA\n".into(),
            "text\n\n\u{2014} a AAAAAA==\n".into(),
            format!("{}{}", good, "\u{2014} a AAAAAAA=\n".repeat(SIGNATURES_MAX)),
        ];
        for case in cases {
            assert!(Note::parse(&case).is_err(), "{case:?}");
        }
    }

    #[test]
    fn verifier_keys_print_and_parse() {
        let key = signer("log.example/a", 7).verifier().clone();
        assert_eq!(VerifierKey::parse(&key.to_string()), Ok(key.clone()));
        assert_eq!(VerifierKey::parse(&format!("{key}\n")), Ok(key.clone()));
        let line = key.to_string();
        for wrong in [
            line.replacen("log", "lag", 1),
            line.replacen('+', "+0", 1),
            line.to_uppercase(),
            "a+b".into(),
            String::new(),
        ] {
            assert!(VerifierKey::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_published_note_verifies() {
        // The verifier key and checkpoint of the Go checksum database's own documentation use the
        // same format.
        let key = VerifierKey::parse(
            "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        )
        .expect("key");
        let note = "If you think cryptography is the answer to your problem,\n\
                    then you don't know what your problem is.\n\n\
                    \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";
        let note = Note::parse(note).expect("a note");
        assert_eq!(note.verify(&[key]), Ok(vec![0]));
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in ".{0,200}") {
            let _ = Note::parse(&text);
            let _ = VerifierKey::parse(&text);
            let _ = Note::parse(&format!("a\n\n\u{2014} {text}\n"));
        }
    }
}
