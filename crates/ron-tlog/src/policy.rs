//! C2SP tlog-policy: the known logs and witnesses, and the witnesses that must have cosigned a
//! checkpoint. Pure.
//!
//! ```text
//! log <vkey> [<url>]
//! witness <name> <vkey> [<url>]
//! group <name> all|any|<k> <member>...
//! quorum <name>|none
//! ```

use std::collections::BTreeMap;

use crate::checkpoint::{Checkpoint, CheckpointFault};
use crate::cosignature::CosignerKey;
use crate::note::{Note, NoteError, VerifierKey};

/// Longest policy file that is read, in bytes.
pub const POLICY_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of logs, of witnesses and of groups.
const LINES_MAX: usize = 256;

/// Why a policy file is refused, with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct PolicyError {
    /// Line number from 1; 0 for the file as a whole.
    pub line: usize,
    pub why: String,
}

/// Why a checkpoint does not satisfy a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFault {
    /// The checkpoint or the log's signature is wrong.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointFault),
    #[error("too few witnesses have cosigned it: {0}")]
    Quorum(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyLog {
    /// Key of the log's checkpoints; its name is the origin.
    pub key: VerifierKey,
    /// Address of the log.
    pub url: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWitness {
    /// Its name within the file.
    pub name: String,
    pub key: CosignerKey,
    pub url: Option<String>,
}

/// A witness or a group, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Witness(usize),
    Group(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    needed: usize,
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Known logs; empty when the application knows its log from elsewhere.
    pub logs: Vec<PolicyLog>,
    pub witnesses: Vec<PolicyWitness>,
    groups: Vec<Group>,
    quorum: Quorum,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Quorum {
    #[default]
    Unset,
    /// No cosignature is needed.
    NotNeeded,
    /// This witness or group must have cosigned.
    Of(Member),
}

/// The file as far as it was parsed.
#[derive(Default)]
struct Parser<'a> {
    logs: Vec<PolicyLog>,
    witnesses: Vec<PolicyWitness>,
    groups: Vec<Group>,
    names: BTreeMap<&'a [u8], Member>,
    listed: Vec<Member>,
    quorum: Quorum,
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn text<'a>(word: &'a [u8], what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(word).map_err(|_| format!("the {what} is not UTF-8"))
}

impl Policy {
    /// Parses a policy file.
    pub fn parse(file: &[u8]) -> Result<Self, PolicyError> {
        let whole = |why: &str| PolicyError {
            line: 0,
            why: why.to_owned(),
        };
        if file.len() > POLICY_BYTES_MAX {
            return Err(whole("the file is too long"));
        }
        let mut parser = Parser::default();
        let lines: Vec<&[u8]> = file.split(|b| *b == b'\n').collect();
        for (at, line) in lines.iter().enumerate() {
            let fail = |why: String| PolicyError { line: at + 1, why };
            if line
                .iter()
                .any(|b| (*b < 0x20 && *b != b'\t') || *b == 0x7f)
            {
                return Err(fail("control characters are not allowed".into()));
            }
            let words: Vec<&[u8]> = line
                .split(|b| *b == b' ' || *b == b'\t')
                .filter(|w| !w.is_empty())
                .collect();
            if words.is_empty() || words[0].starts_with(b"#") {
                continue;
            }
            if at + 1 == lines.len() {
                return Err(fail("the last line has no newline".into()));
            }
            parser.line(&words).map_err(fail)?;
        }
        if parser.quorum == Quorum::Unset {
            return Err(whole("there is no quorum line"));
        }
        Ok(Self {
            logs: parser.logs,
            witnesses: parser.witnesses,
            groups: parser.groups,
            quorum: parser.quorum,
        })
    }

    /// Checks a signed checkpoint: signed by a log of the policy (or by one of `known`, when the
    /// policy names no log), of `origin`, if given, and cosigned by a quorum.
    pub fn check(
        &self,
        note: &str,
        known: &[VerifierKey],
        origin: Option<&str>,
    ) -> Result<Checkpoint, PolicyFault> {
        let keys: Vec<VerifierKey> = match self.logs.as_slice() {
            [] => known.to_vec(),
            logs => logs.iter().map(|l| l.key.clone()).collect(),
        };
        let checkpoint = Checkpoint::open(note, &keys, origin)?;
        let note = Note::parse(note).map_err(CheckpointFault::from)?;
        // A key of another log must not vouch for this origin.
        let signed = note.verify(&keys).map_err(CheckpointFault::from)?;
        if !signed
            .iter()
            .any(|at| keys[*at].name() == checkpoint.origin)
        {
            return Err(CheckpointFault::from(NoteError::Unverified).into());
        }
        if self.witnessed(&note) {
            return Ok(checkpoint);
        }
        let cosigned = self.cosigners(&note);
        let names = |yes: bool| {
            let names = self.witnesses.iter().enumerate();
            let of = names.filter(|(at, _)| cosigned.contains(at) == yes);
            of.map(|(_, w)| w.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        Err(PolicyFault::Quorum(format!(
            "it has [{}], not [{}]",
            names(true),
            names(false)
        )))
    }

    /// Accepts later keys of a log like the named one: `keys` are those of one log, oldest first,
    /// each signed by the one before it (a [`crate::rotation::KeyChain`] from a trusted key on).
    pub fn follow(&mut self, keys: &[VerifierKey]) {
        let named = |key: &VerifierKey| self.logs.iter().position(|log| log.key == *key);
        let Some((at, log)) = keys
            .iter()
            .enumerate()
            .find_map(|(at, k)| Some((at, named(k)?)))
        else {
            return;
        };
        let url = self.logs[log].url.clone();
        for key in &keys[at + 1..] {
            if self.logs.iter().all(|log| log.key != *key) {
                let (key, url) = (key.clone(), url.clone());
                self.logs.push(PolicyLog { key, url });
            }
        }
    }

    /// Positions of the witnesses that have cosigned a note.
    pub fn cosigners(&self, note: &Note) -> Vec<usize> {
        let signed = |w: &PolicyWitness| w.key.find(note).is_some();
        let all = self.witnesses.iter().enumerate();
        all.filter(|(_, w)| signed(w)).map(|(at, _)| at).collect()
    }

    /// True when the quorum has cosigned a note.
    pub fn witnessed(&self, note: &Note) -> bool {
        match self.quorum {
            Quorum::Of(member) => self.holds(member, &self.cosigners(note)),
            Quorum::Unset | Quorum::NotNeeded => true,
        }
    }

    /// True when the policy requires any cosignature.
    pub fn needs_witnesses(&self) -> bool {
        matches!(self.quorum, Quorum::Of(_))
    }

    /// Whether a member has cosigned. Groups contain only members defined before them, so the
    /// recursion ends.
    fn holds(&self, member: Member, cosigned: &[usize]) -> bool {
        match member {
            Member::Witness(at) => cosigned.contains(&at),
            Member::Group(at) => {
                let group = &self.groups[at];
                let have = group.members.iter().filter(|m| self.holds(**m, cosigned));
                have.count() >= group.needed
            }
        }
    }
}

impl<'a> Parser<'a> {
    fn line(&mut self, words: &[&'a [u8]]) -> Result<(), String> {
        match words {
            [b"log", vkey] => self.log(vkey, None),
            [b"log", vkey, url] => self.log(vkey, Some(url)),
            [b"witness", name, vkey] => self.witness(name, vkey, None),
            [b"witness", name, vkey, url] => self.witness(name, vkey, Some(url)),
            [b"group", name, needed, members @ ..] => self.group(name, needed, members),
            [b"quorum", name] => self.set_quorum(name),
            [word, ..] => Err(format!(
                "`{}` with {} words is not known; lines are log, witness, group, quorum",
                shown(word),
                words.len() - 1
            )),
            [] => Ok(()),
        }
    }

    fn log(&mut self, vkey: &[u8], url: Option<&[u8]>) -> Result<(), String> {
        let key = VerifierKey::parse(text(vkey, "key")?).map_err(|e| e.to_string())?;
        if self.logs.iter().any(|l| l.key.public() == key.public()) {
            return Err("a log with this key stands above".into());
        }
        if self.logs.len() == LINES_MAX {
            return Err("there are too many logs".into());
        }
        let url = url.map(|u| text(u, "URL").map(str::to_owned)).transpose()?;
        self.logs.push(PolicyLog { key, url });
        Ok(())
    }

    fn witness(&mut self, name: &'a [u8], vkey: &[u8], url: Option<&[u8]>) -> Result<(), String> {
        let key = CosignerKey::parse(text(vkey, "key")?).map_err(|e| e.to_string())?;
        if self
            .witnesses
            .iter()
            .any(|w| w.key.public() == key.public())
        {
            return Err("a witness with this key stands above".into());
        }
        if self.witnesses.len() == LINES_MAX {
            return Err("there are too many witnesses".into());
        }
        self.define(name, Member::Witness(self.witnesses.len()))?;
        let url = url.map(|u| text(u, "URL").map(str::to_owned)).transpose()?;
        let name = shown(name);
        self.witnesses.push(PolicyWitness { name, key, url });
        Ok(())
    }

    fn group(&mut self, name: &'a [u8], needed: &[u8], members: &[&'a [u8]]) -> Result<(), String> {
        let n = members.len();
        if n == 0 {
            return Err("a group has at least one member".into());
        }
        if self.groups.len() == LINES_MAX {
            return Err("there are too many groups".into());
        }
        let needed = match needed {
            b"all" => n,
            b"any" => 1,
            digits if digits.iter().all(u8::is_ascii_digit) => {
                text(digits, "number")?.parse().unwrap_or(0)
            }
            _ => 0,
        };
        if !(1..=n).contains(&needed) {
            return Err(format!("the threshold is `all`, `any` or 1 to {n}"));
        }
        let mut found = Vec::with_capacity(n);
        for member in members {
            let member = self.known(member)?;
            if self.listed.contains(&member) || found.contains(&member) {
                return Err("each name can be a member once".into());
            }
            found.push(member);
        }
        self.listed.extend_from_slice(&found);
        self.define(name, Member::Group(self.groups.len()))?;
        self.groups.push(Group {
            needed,
            members: found,
        });
        Ok(())
    }

    fn set_quorum(&mut self, name: &[u8]) -> Result<(), String> {
        if self.quorum != Quorum::Unset {
            return Err("there is more than one quorum line".into());
        }
        self.quorum = match name {
            b"none" => Quorum::NotNeeded,
            name => Quorum::Of(self.known(name)?),
        };
        Ok(())
    }

    fn define(&mut self, name: &'a [u8], member: Member) -> Result<(), String> {
        if name == b"none" || self.names.contains_key(name) {
            return Err(format!("the name `{}` is taken", shown(name)));
        }
        self.names.insert(name, member);
        Ok(())
    }

    fn known(&self, name: &[u8]) -> Result<Member, String> {
        let found = self.names.get(name).copied();
        found.ok_or_else(|| format!("`{}` is not defined above", shown(name)))
    }
}

#[cfg(test)]
mod tests {
    use ron_crypto::sign::Ed25519Key;

    use super::*;
    use crate::cosignature::Cosigner;
    use crate::note::Ed25519NoteSigner;

    fn log() -> Ed25519NoteSigner {
        Ed25519NoteSigner::new("log.example", Ed25519Key::from_seed(&[1; 32])).expect("name")
    }

    fn witness(n: u8) -> Cosigner {
        Cosigner::new(
            &format!("w{n}.example"),
            Ed25519Key::from_seed(&[100 + n; 32]),
        )
        .expect("name")
    }

    fn lines(n: u8) -> String {
        let one = |n| {
            format!(
                "witness w{n} {} http://127.0.0.1:1/\n",
                witness(n).verifier()
            )
        };
        (1..=n).map(one).collect()
    }

    fn note(by: &[u8]) -> String {
        let checkpoint = Checkpoint {
            origin: "log.example".into(),
            size: 5,
            root: [3; 32],
        };
        let mut note = Note::parse(&checkpoint.sign(&[&log()]).expect("signs")).expect("parses");
        for n in by {
            note.signatures
                .extend(witness(*n).cosign(&note.text, 1_700_000_000));
        }
        note.to_string()
    }

    #[test]
    fn quorums_of_groups() {
        let nested = format!(
            "# two of three, and any of two\nlog {}\n\n{}group x 2 w1 w2 w3\n\tgroup y any w4 w5 \ngroup both all x y\nquorum both\n",
            log().verifier(),
            lines(5)
        );
        let check = |policy: &str, by: &[u8], holds: bool| {
            let policy = Policy::parse(policy.as_bytes()).expect("parses");
            let got = policy.check(&note(by), &[log().verifier().clone()], Some("log.example"));
            assert_eq!(got.is_ok(), holds, "{by:?}: {got:?}");
        };
        check(&nested, &[1, 2, 4], true);
        check(&nested, &[1, 2, 3, 4, 5], true);
        check(&nested, &[1, 4, 5], false);
        check(&nested, &[1, 2, 3], false);
        check(&nested, &[], false);
        check("quorum none\n", &[], true);
        check(&format!("{}quorum w2\n", lines(2)), &[2], true);
        check(&format!("{}quorum w2\n", lines(2)), &[1], false);
        let foreign = Ed25519NoteSigner::new("other.example", Ed25519Key::from_seed(&[9; 32]));
        let foreign = format!("log {}\nquorum none\n", foreign.expect("name").verifier());
        check(&foreign, &[], false);
    }

    #[test]
    fn odd_files_are_refused_with_their_line() {
        let w = lines(3);
        let check = |text: String, line: usize, word: &str| {
            let error = Policy::parse(text.as_bytes()).expect_err(&text);
            assert!(
                error.line == line && error.why.contains(word),
                "{error} in {text}"
            );
        };
        check(w.clone(), 0, "quorum");
        check(format!("{w}quorum w1\nquorum w2\n"), 5, "more than one");
        check(format!("{w}quorum w4\n"), 4, "not defined");
        check(format!("{w}group g 4 w1 w2 w3\nquorum g\n"), 4, "threshold");
        check(format!("{w}group g 0 w1\nquorum g\n"), 4, "threshold");
        check(format!("{w}group g all\nquorum g\n"), 4, "member");
        check(format!("{w}group g any w1 w1\nquorum g\n"), 4, "once");
        check(
            format!("{w}group g any w1\ngroup h any w1\nquorum h\n"),
            5,
            "once",
        );
        check(format!("{w}group w1 any w2\nquorum w1\n"), 4, "taken");
        check(format!("{w}group none any w2\nquorum none\n"), 4, "taken");
        check(format!("{w}group g any none\nquorum g\n"), 4, "not defined");
        check(
            format!("{w}{}quorum w1\n", lines(1).replace(" w1 ", " w9 ")),
            4,
            "this key",
        );
        check("quorum none\r\n".into(), 1, "control");
        check("quorum none".into(), 1, "newline");
        check("log x\nquorum none\n".into(), 1, "verifier key");
        check("qourum none\n".into(), 1, "not known");
    }
}
