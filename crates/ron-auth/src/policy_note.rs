//! The issuer's policy note on the verifier's side: a C2SP signed note under a pinned key, and the
//! keys that it vouches for. Pure.
//!
//! Any process that occupies the issuer's port can serve a key set; the note is signed by a key
//! that was pinned beforehand. A key therefore counts only if the note lists its thumbprint.

use std::collections::BTreeMap;

use ron_proto::passport::SKEW_S;
use ron_tlog::note::{Note, NoteError, VerifierKey};

use crate::jwks::{JwksSnapshot, JwsAlg, VerifyKey};
use crate::names::IssuerNames;
use crate::revocation_log;

/// Maximum keys in a note: more than in a key set, because revoked keys stay listed.
const KEYS_MAX: usize = 1024;
/// Maximum former names of an issuer in a note.
pub const NAMES_MAX: usize = 16;

/// First line of an issuer's notes, and the name of the keys that sign them. Of an issuer that was moved to another name, this
/// stays the first one.
pub fn origin(issuer: &str) -> String {
    format!("{issuer}/policy")
}

/// Why a policy note was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteRefused {
    #[error("the policy note is no text")]
    NotText,
    #[error(
        "the policy note is signed by no key of auth.note_vkey; if the issuer's note key has changed, review it with `ron issuer trust`"
    )]
    NotPinned,
    #[error("the policy note: {0}")]
    Note(NoteError),
    #[error("the policy note belongs to another issuer than auth.issuer")]
    OtherIssuer,
    #[error("the policy note cannot be read: {0}")]
    Text(&'static str),
    #[error(
        "the policy note has version {got}, older than {kept}, which this service has seen; if the issuer was restored from a backup, accept it with `ron issuer trust`"
    )]
    RolledBack { got: u64, kept: u64 },
}

/// A note whose signature was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNote {
    pub version: u64,
    names: IssuerNames,
    keys: BTreeMap<String, ListedKey>,
    /// The key of the issuer's revocation log.
    pub log_key: Option<VerifierKey>,
    /// The pinned keys that signed it.
    pub signers: Vec<VerifierKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedKey {
    alg: String,
    /// Unix seconds.
    until_s: Option<u64>,
    good: bool,
}

/// Number of keys of a set that its note does not vouch for, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// The note does not list them under this thumbprint and algorithm.
    pub unlisted: u64,
    /// The note lists them as revoked.
    pub revoked: u64,
    /// The last of their tokens has expired.
    pub ended: u64,
}

impl PolicyNote {
    /// Opens a note of `issuer`, which is its first name, that a key of `pins` must have signed.
    pub fn open(bytes: &[u8], issuer: &str, pins: &[VerifierKey]) -> Result<Self, NoteRefused> {
        let text = std::str::from_utf8(bytes).map_err(|_| NoteRefused::NotText)?;
        let note = Note::parse(text).map_err(NoteRefused::Note)?;
        let signers = note.verify(pins).map_err(|error| match error {
            NoteError::Unverified => NoteRefused::NotPinned,
            error => NoteRefused::Note(error),
        })?;
        let mut read = Self::read(&note.text, issuer)?;
        read.signers = signers.into_iter().map(|at| pins[at].clone()).collect();
        Ok(read)
    }

    /// Parses the text without verifying it; lines with an unknown first word are skipped.
    pub fn read(text: &str, issuer: &str) -> Result<Self, NoteRefused> {
        let mut lines = text.lines();
        if lines.next() != Some(origin(issuer).as_str()) {
            return Err(NoteRefused::OtherIssuer);
        }
        let (mut version, mut named, mut log_key) = (None, None, None);
        let mut before = Vec::new();
        let mut keys = BTreeMap::new();
        for line in lines {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            let twice = match word {
                "version" => version.replace(number(rest)?).is_some(),
                "issuer" => named.replace(rest.to_owned()).is_some(),
                "was" => {
                    before.push(parse_former_name(rest)?);
                    false
                }
                "revocations" => {
                    let key = parse_log_key(rest, issuer)?;
                    log_key.replace(key).is_some()
                }
                "key" => {
                    let (kid, listed) = parse_key_line(rest)?;
                    keys.insert(kid, listed).is_some()
                }
                _ => false,
            };
            if twice {
                return Err(NoteRefused::Text(
                    "it repeats a line that may appear only once",
                ));
            }
            if keys.len() > KEYS_MAX {
                return Err(NoteRefused::Text("it lists more than 1024 keys"));
            }
            if before.len() > NAMES_MAX {
                return Err(NoteRefused::Text("it lists more than 16 former names"));
            }
        }
        Ok(Self {
            names: IssuerNames {
                now: named.ok_or(NoteRefused::Text("it names no issuer"))?,
                before,
            },
            version: version.ok_or(NoteRefused::Text("it has no version"))?,
            keys,
            log_key,
            signers: Vec::new(),
        })
    }

    /// Thumbprints of all keys that it lists.
    pub fn kids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Removes the keys that it does not vouch for. The thumbprint of the key itself counts, not
    /// the kid that the set gives it.
    pub fn narrow(&self, keys: &mut JwksSnapshot, now_s: u64) -> Ignored {
        let mut ignored = Ignored::default();
        keys.retain(|kid, key| {
            let listed = self.keys.get(kid);
            let same = |listed: &&ListedKey| kid == key.thumbprint() && listed.is_for(key);
            let Some(listed) = listed.filter(same) else {
                ignored.unlisted += 1;
                return false;
            };
            let ended = listed.until_s.is_some_and(|end| end + SKEW_S < now_s);
            ignored.revoked += u64::from(!listed.good);
            ignored.ended += u64::from(listed.good && ended);
            listed.good && !ended
        });
        keys.signed_off_by(&self.signers, self.version, &self.names);
        ignored
    }
}

impl ListedKey {
    fn is_for(&self, key: &VerifyKey) -> bool {
        JwsAlg::parse(&self.alg).is_some_and(|alg| key.takes(alg))
    }
}

fn number(text: &str) -> Result<u64, NoteRefused> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| plain);
    parsed.ok_or(NoteRefused::Text("a number is not plain decimal digits"))
}

fn parse_log_key(text: &str, issuer: &str) -> Result<VerifierKey, NoteRefused> {
    let key = text.parse::<VerifierKey>().ok();
    let own = key.filter(|key| key.name() == revocation_log::origin(issuer));
    own.ok_or(NoteRefused::Text(
        "the key of the revocation log is not a verifier key of this issuer's log",
    ))
}

/// Parses `<name> <second after which no token with it is valid>`.
fn parse_former_name(rest: &str) -> Result<(String, u64), NoteRefused> {
    let parts = rest.split_once(' ');
    let (name, end_s) = parts.ok_or(NoteRefused::Text("a former name has no end"))?;
    Ok((name.to_owned(), number(end_s)?))
}

/// Parses `<kid> <alg> <signs from> <verifies until, or -> <good or revoked>`.
fn parse_key_line(rest: &str) -> Result<(String, ListedKey), NoteRefused> {
    let words: Vec<&str> = rest.split(' ').collect();
    let [kid, alg, from, until, state] = words[..] else {
        return Err(NoteRefused::Text("a key line does not have five words"));
    };
    number(from)?;
    let until_s = match until {
        "-" => None,
        end => Some(number(end)?),
    };
    let good = match state {
        "good" => true,
        "revoked" => false,
        _ => return Err(NoteRefused::Text("a key is neither good nor revoked")),
    };
    let listed = ListedKey {
        alg: alg.to_owned(),
        until_s,
        good,
    };
    Ok((kid.to_owned(), listed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ron_crypto::sign::Ed25519Key;
    use ron_proto::b64;
    use ron_tlog::note::{Ed25519NoteSigner, NoteSigner};
    use serde_json::{Value, json};

    const ISSUER: &str = "http://issuer:1";
    const NOW: u64 = 1_000_000;

    fn signer(issuer: &str, seed: u8) -> Ed25519NoteSigner {
        Ed25519NoteSigner::new(&origin(issuer), Ed25519Key::from_seed(&[seed; 32])).unwrap()
    }

    fn key(seed: u8) -> (String, Value) {
        let x = Ed25519Key::from_seed(&[seed; 32]).public();
        let kid = ron_crypto::jwk::thumbprint_okp(&x);
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": b64::url(&x)});
        (kid, jwk)
    }

    fn set(jwks: &[Value]) -> JwksSnapshot {
        JwksSnapshot::parse(json!({"keys": jwks}).to_string().as_bytes()).unwrap()
    }

    fn text(lines: &str) -> String {
        format!("{ISSUER}/policy\nversion 7\nissuer {ISSUER}\n{lines}")
    }

    #[test]
    fn only_a_pinned_key_signs_and_all_pinned_signatures_must_hold() {
        let (ours, next, other) = (signer(ISSUER, 1), signer(ISSUER, 2), signer(ISSUER, 3));
        let sign = |signers: &[&dyn NoteSigner]| {
            Note::sign(&text(""), signers)
                .unwrap()
                .to_string()
                .into_bytes()
        };
        let pins = [ours.verifier().clone(), next.verifier().clone()];
        let open = |bytes: &[u8]| PolicyNote::open(bytes, ISSUER, &pins);
        let both = open(&sign(&[&ours, &other, &next])).unwrap();
        assert_eq!((both.version, both.signers), (7, pins.to_vec()));
        assert_eq!(open(&sign(&[&next])).unwrap().signers, pins[1..]);
        assert_eq!(open(&sign(&[&other])), Err(NoteRefused::NotPinned));
        let changed = String::from_utf8(sign(&[&ours])).unwrap();
        let changed = changed.replace("version 7", "version 8");
        assert!(matches!(
            open(changed.as_bytes()),
            Err(NoteRefused::Note(NoteError::BadSignature(_)))
        ));
        assert_eq!(open(b"\xff"), Err(NoteRefused::NotText));
        assert!(matches!(open(b"{}"), Err(NoteRefused::Note(_))));
        assert_eq!(
            PolicyNote::open(&sign(&[&ours]), "http://issuer:2", &pins),
            Err(NoteRefused::OtherIssuer)
        );
    }

    #[test]
    fn a_key_counts_only_under_its_own_thumbprint_while_it_is_good() {
        let keys: Vec<(String, Value)> = (1..=5).map(key).collect();
        let kid = |at: usize| &keys[at].0;
        let lines = format!(
            "key {} EdDSA 10 - good\nkey {} EdDSA 10 {} good\nkey {} EdDSA 10 - revoked\nkey {} ES256 10 - good\n",
            kid(0),
            kid(1),
            NOW - SKEW_S - 1,
            kid(2),
            kid(3)
        );
        let note = PolicyNote::read(&text(&lines), ISSUER).unwrap();
        assert_eq!(note.kids().count(), 4);
        let mut all = set(&keys.iter().map(|(_, jwk)| jwk.clone()).collect::<Vec<_>>());
        let ignored = note.narrow(&mut all, NOW);
        assert!(all.find(kid(0)).is_some() && all.len() == 1, "{all:?}");
        let wanted = Ignored {
            unlisted: 2, // one with another algorithm, one that is not listed
            revoked: 1,
            ended: 1,
        };
        assert_eq!(ignored, wanted);
        // A third party's key under a kid that the note lists.
        let mut forged = keys[4].1.clone();
        forged["kid"] = kid(0).as_str().into();
        let mut forged = set(&[forged]);
        assert_eq!(note.narrow(&mut forged, NOW).unlisted, 1);
        assert!(forged.is_empty());
    }

    #[test]
    fn a_moved_issuer_is_known_by_its_first_name_and_tokens_of_former_names_end() {
        let head = format!("{ISSUER}/policy\nversion 7\nissuer https://id.example\n");
        let names = |lines: &str, now_s: u64| {
            let note = PolicyNote::read(&format!("{head}{lines}"), ISSUER).unwrap();
            let (_, jwk) = key(1);
            let mut keys = set(&[jwk]);
            note.narrow(&mut keys, NOW);
            let names = keys.issuers(ISSUER, now_s);
            names.map(ToString::to_string).collect::<Vec<_>>()
        };
        let new = "https://id.example";
        assert_eq!(names("", NOW), [new]);
        let was = format!("was {ISSUER} {NOW}\nwas http://second {}\n", NOW + 9);
        assert_eq!(names(&was, NOW), [new, ISSUER, "http://second"]);
        assert_eq!(names(&was, NOW + SKEW_S), [new, ISSUER, "http://second"]);
        assert_eq!(names(&was, NOW + SKEW_S + 1), [new, "http://second"]);
        assert_eq!(names(&was, NOW + SKEW_S + 10), [new]);
        let other = PolicyNote::read(&head, new);
        assert_eq!(other, Err(NoteRefused::OtherIssuer));
        let (_, jwk) = key(1);
        let keys = set(&[jwk]);
        let names: Vec<_> = keys.issuers(ISSUER, NOW).collect();
        assert_eq!(names, [ISSUER], "without a note");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(lines in "([a-z]{0,8} ?[a-z0-9 -]{0,20}\n){0,6}") {
            let _ = PolicyNote::read(&text(&lines), ISSUER);
            let _ = PolicyNote::open(lines.as_bytes(), ISSUER, &[]);
        }
    }

    #[test]
    fn texts_that_say_too_little_or_two_things_are_refused() {
        let check = |text: &str| {
            assert!(PolicyNote::read(text, ISSUER).is_err(), "{text}");
        };
        let head = format!("{ISSUER}/policy\n");
        check("");
        check(&head);
        check(&format!("{head}version 1\n"));
        check(&format!("{head}issuer {ISSUER}\n"));
        check(&text("was http://other\n"));
        check(&text("was http://other soon\n"));
        check(&text(&"was http://other 1\n".repeat(NAMES_MAX + 1)));
        for version in ["", "+1", "-1", "1 ", "18446744073709551616"] {
            check(&format!("{head}version {version}\nissuer {ISSUER}\n"));
        }
        check(&text("version 8\n"));
        check(&text("issuer http://other\n"));
        check(&text("key k EdDSA 1 - good\nkey k EdDSA 1 - revoked\n"));
        check(&text("key k EdDSA 1 -\n"));
        check(&text("key k EdDSA 1 - unsure\n"));
        check(&text("key k EdDSA 1 soon good\n"));
        let log_key = |name: &str| {
            let key = VerifierKey::ed25519(name, &[7; 32]).unwrap();
            text(&format!("revocations {key}\n"))
        };
        check(&text("revocations x\n"));
        check(&log_key("http://other/revocations"));
        let own = PolicyNote::read(&log_key(&revocation_log::origin(ISSUER)), ISSUER);
        assert!(own.unwrap().log_key.is_some());
        assert!(PolicyNote::read(&text("later words\n\n"), ISSUER).is_ok());
    }
}
