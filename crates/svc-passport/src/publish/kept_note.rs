//! The last signed policy note, in a file beside the store: an issuer that restarts without the KMS still serves it, so
//! that services which start meanwhile learn its keys. The file is a cache: an unreadable one is replaced by the next note.

use std::io;

use ron_auth::PolicyNote;
use ron_files::Dir;
use ron_tlog::note::{Note, VerifierKey};

/// Name of the file.
const FILE_NAME: &str = "policy.note";
/// Maximum bytes of the file.
const BYTES_MAX: u64 = 1 << 20;
/// First line of the file. The verifier keys, an empty line and the note follow.
const FORMAT: &str = "ron-kept-note/v1";

/// A signed note, and the keys that verify it.
pub type SignedNote = (String, Vec<VerifierKey>);

/// The note in the file, if it is a valid note of this issuer.
pub fn load(home: &Dir, issuer: &str) -> Option<SignedNote> {
    let file = home.read_small(FILE_NAME, BYTES_MAX).ok()??;
    let file = String::from_utf8(file).ok();
    let read = file.and_then(|file| parse(&file, issuer));
    if read.is_none() {
        tracing::warn!(service = "svc-passport", event = "kept_note_unreadable");
    }
    read
}

fn parse(file: &str, issuer: &str) -> Option<SignedNote> {
    let (head, note) = file.split_once("\n\n")?;
    let keys = head.strip_prefix(FORMAT)?.strip_prefix('\n')?;
    let keys: Vec<VerifierKey> = keys
        .lines()
        .map(|line| line.parse().ok())
        .collect::<Option<_>>()?;
    let signers = PolicyNote::open(note.as_bytes(), issuer, &keys)
        .ok()?
        .signers;
    (signers.len() == keys.len()).then(|| (note.to_owned(), keys))
}

/// Replaces the file atomically; durable on return.
pub fn store(home: &Dir, note: &Note, keys: &[VerifierKey]) -> io::Result<()> {
    let lines: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let text = format!("{FORMAT}\n{}\n\n{note}", lines.join("\n"));
    home.write(FILE_NAME, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use ron_crypto::sign::Ed25519Key;
    use ron_tlog::note::Ed25519NoteSigner;

    #[test]
    fn a_note_is_found_again_and_nothing_else_is_taken_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let (home, path) = (Dir::os(dir.path()), dir.path().join(FILE_NAME));
        let signer = |seed| {
            Ed25519NoteSigner::new("http://i/policy", Ed25519Key::from_seed(&[seed; 32])).unwrap()
        };
        let (a, b) = (signer(1), signer(2));
        let note = Note::sign("http://i/policy\nversion 3\nissuer http://i\n", &[&a, &b]).unwrap();
        let keys = [a.verifier().clone(), b.verifier().clone()];
        assert!(load(&home, "http://i").is_none());
        store(&home, &note, &keys).unwrap();
        assert_eq!(
            load(&home, "http://i"),
            Some((note.to_string(), keys.to_vec()))
        );
        assert!(load(&home, "http://other").is_none());
        let whole = fs::read_to_string(&path).unwrap();
        for broken in [
            whole.replace("version 3", "version 4"),
            whole.replace("note/v1\n", "note/v2\n"),
            whole.replacen(&format!("{}\n", keys[0]), "", 2),
            whole[..whole.len() / 2].to_owned(),
            String::new(),
        ] {
            fs::write(&path, &broken).unwrap();
            let without_a =
                broken.contains(&keys[1].to_string()) && !broken.contains(&keys[0].to_string());
            assert_eq!(load(&home, "http://i").is_some(), without_a, "{broken}");
        }
    }
}
