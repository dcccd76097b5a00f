//! Payload policy `note`: texts of C2SP signed notes with one origin. Checkpoints of a log, recognised by their
//! second line, may only grow.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ron_proto::kms::NotePolicy;

/// Size and root that a checkpoint states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub size: u64,
    /// RFC 6962 root of those leaves.
    pub root: [u8; 32],
}

impl Checkpoint {
    /// Whether signing `next` after `self` keeps the log append-only, as far as two heads can show: `next` is larger,
    /// or the same head again.
    pub fn may_be_followed_by(&self, next: &Self) -> bool {
        next.size > self.size || next == self
    }
}

/// Checks that `text` is a note text of the policy's origin; `Some` when it is a checkpoint.
pub fn check(policy: &NotePolicy, text: &[u8]) -> Result<Option<Checkpoint>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "a note text must be UTF-8".to_owned())?;
    let Some(body) = text.strip_suffix('\n') else {
        return Err("a note text ends with a newline".into());
    };
    if body.chars().any(|c| c.is_control() && c != '\n') {
        return Err("a note text has no control characters but newlines".into());
    }
    let mut lines = body.split('\n');
    if lines.next() != Some(policy.origin.as_str()) {
        return Err("the first line is not the origin this key signs for".into());
    }
    if body.split('\n').any(|line| line.starts_with('\u{2014}')) {
        return Err("a note text may not contain signature lines".into());
    }
    let rest: Vec<&str> = lines.collect();
    match rest.first() {
        // If a lenient parser could read the second line as a size, the text must be a strict checkpoint.
        Some(second) if looks_like_size(second) => strict_checkpoint(&rest).map(Some),
        _ => Ok(None),
    }
}

/// The issuer of policy notes with this origin, `<issuer>/policy`; `None` for other origins.
pub fn issuer_of(policy: &NotePolicy) -> Option<&str> {
    policy.origin.strip_suffix("/policy")
}

/// The keys that a policy note lists for its readers: the second word of every line whose first is `key`.
pub fn listed_keys(text: &[u8]) -> impl Iterator<Item = &str> {
    second_words(text, &["key"])
}

/// The names that the issuer has and had, as a policy note states them: `issuer` and `was`.
pub fn names(text: &[u8]) -> impl Iterator<Item = &str> {
    second_words(text, &["issuer", "was"])
}

fn second_words<'a>(text: &'a [u8], first: &'static [&str]) -> impl Iterator<Item = &'a str> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    text.split('\n').filter_map(move |line| {
        let mut words = line.split(' ');
        let is_one = words.next().is_some_and(|word| first.contains(&word));
        is_one.then(|| words.next().unwrap_or_default())
    })
}

/// Version and hash of the issuer policy that a policy note names, in its only line whose first word is `policy`.
pub fn named_policy(text: &[u8]) -> Option<(u64, &str)> {
    let text = std::str::from_utf8(text).ok()?;
    let (version, hash) = only_line(text, "policy").ok()??.split_once(' ')?;
    Some((number(version)?, hash))
}

/// How far the issuer is, as a policy note states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of the last event of the revocation feed.
    version: u64,
    /// Tokens of earlier epochs are revoked.
    epoch: u64,
    /// Verifier key of the revocation log.
    log_key: Option<String>,
}

impl Progress {
    /// What a policy note states; `None` when it has no version or states something twice.
    pub fn of(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let epoch = only_line(text, "epoch").ok()?;
        Some(Self {
            version: number(only_line(text, "version").ok()??)?,
            epoch: epoch.map_or(Some(0), number)?,
            log_key: only_line(text, "revocations").ok()?.map(str::to_owned),
        })
    }

    /// Whether a note that states `next` may be signed after one that states `self`; the error says what went back.
    pub fn may_be_followed_by(&self, next: &Self) -> Result<(), &'static str> {
        if next.version < self.version {
            return Err("version");
        }
        if next.epoch < self.epoch {
            return Err("epoch");
        }
        if self.log_key.is_some() && next.log_key != self.log_key {
            return Err("key of the revocation log");
        }
        Ok(())
    }
}

/// The rest of the only line with this first word; an error when there are several.
fn only_line<'a>(text: &'a str, word: &str) -> Result<Option<&'a str>, ()> {
    let mut lines = text
        .split('\n')
        .filter_map(|line| match line.split_once(' ') {
            Some((first, rest)) => (first == word).then_some(rest),
            None => None,
        });
    let first = lines.next();
    lines.next().map_or(Ok(first), |_| Err(()))
}

/// A number of plain decimal digits.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

fn looks_like_size(line: &str) -> bool {
    let line = line.trim();
    line.starts_with(|c: char| c.is_numeric() || c == '+' || c == '-')
}

fn strict_checkpoint(rest: &[&str]) -> Result<Checkpoint, String> {
    let refuse = || "a checkpoint is origin, size, root and nothing more".to_owned();
    let [size, root] = rest else {
        return Err(refuse());
    };
    let plain =
        size.bytes().all(|b| b.is_ascii_digit()) && (*size == "0" || !size.starts_with('0'));
    let size = size
        .parse::<u64>()
        .ok()
        .filter(|_| plain)
        .ok_or_else(refuse)?;
    let root = STANDARD.decode(root).map_err(|_| refuse())?;
    Ok(Checkpoint {
        size,
        root: root.try_into().map_err(|_| refuse())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_table() {
        let policy = NotePolicy {
            origin: "example.org/log".into(),
        };
        let root = STANDARD.encode([9_u8; 32]);
        let check = |text: &str, want: Result<Option<u64>, ()>| {
            let got = super::check(&policy, text.as_bytes());
            let got = got.map(|c| c.map(|c| c.size)).map_err(|_| ());
            assert_eq!(got, want, "{text:?}");
        };
        check(&format!("example.org/log\n7\n{root}\n"), Ok(Some(7)));
        check(&format!("example.org/log\n0\n{root}\n"), Ok(Some(0)));
        check("example.org/log\npolicy text\n\nmore\n", Ok(None));
        check("example.org/log\n", Ok(None));
        check("", Err(()));
        check("example.org/log", Err(()));
        check("example.org/logs\ntext\n", Err(()));
        check("\nexample.org/log\n", Err(()));
        check(" example.org/log\ntext\n", Err(()));
        check("example.org/log\r\n7\n", Err(()));
        check("example.org/log\n\u{2014} someone AAAA\n", Err(()));
        check("example.org/log\ntext\0\n", Err(()));
        for odd in [
            "07",
            "+7",
            "-7",
            " 7",
            "7 ",
            "7x",
            "18446744073709551616",
            "٣",
        ] {
            check(&format!("example.org/log\n{odd}\n{root}\n"), Err(()));
        }
        check(&format!("example.org/log\n7\n{root}\nextension\n"), Err(()));
        check("example.org/log\n7\n", Err(()));
        check("example.org/log\n7\nAAAA\n", Err(()));
        check(
            &format!("example.org/log\n7\n{}\n", root.trim_end_matches('=')),
            Err(()),
        );
        assert!(super::check(&policy, b"example.org/log\n\xff\n").is_err());
    }

    #[test]
    fn the_keys_of_a_policy_note_are_found_wherever_its_readers_find_them() {
        let listed = |text: &str| -> Vec<String> {
            let keys = listed_keys(text.as_bytes());
            keys.map(str::to_owned).collect()
        };
        let text = "http://i/policy\nversion 1\nkey A EdDSA 1 - good\nkeys x\n key y\nkey B\nkey\nkey  C\n";
        assert_eq!(listed(text), ["A", "B", "", ""]);
        let policy = |origin: &str| NotePolicy {
            origin: origin.to_owned(),
        };
        assert_eq!(issuer_of(&policy("http://i/policy")), Some("http://i"));
        assert_eq!(issuer_of(&policy("example.org/log")), None);
    }

    #[test]
    fn a_policy_note_names_one_policy() {
        let named = |text: &str| named_policy(text.as_bytes()).map(|(v, h)| (v, h.to_owned()));
        let one = "http://i/policy\nversion 1\npolicy 7 b3:aa\nkey A EdDSA 1 - good\n";
        assert_eq!(named(one), Some((7, "b3:aa".to_owned())));
        for odd in [
            "http://i/policy\n",
            "policy 7\n",
            "policy +7 b3:aa\n",
            "policy  7 b3:aa\n",
            "policy 7 b3:aa\npolicy 8 b3:bb\n",
        ] {
            assert_eq!(named(odd), None, "{odd}");
        }
        assert_eq!(
            named("policy 7 b3:aa \n"),
            Some((7, "b3:aa ".to_owned())),
            "no known hash"
        );
    }

    #[test]
    fn policy_notes_do_not_go_back() {
        let progress = |lines: &str| Progress::of(format!("http://i/policy\n{lines}").as_bytes());
        let at = |lines: &str| progress(lines).expect("a note");
        let first = at("version 5\nepoch 2\nrevocations k\n");
        for (next, went_back) in [
            ("version 5\nepoch 2\nrevocations k\n", None),
            ("version 6\nepoch 3\nrevocations k\n", None),
            ("version 4\nepoch 2\nrevocations k\n", Some("version")),
            ("version 6\nepoch 1\nrevocations k\n", Some("epoch")),
            ("version 6\nrevocations k\n", Some("epoch")),
            (
                "version 6\nepoch 2\nrevocations j\n",
                Some("key of the revocation log"),
            ),
            ("version 6\nepoch 2\n", Some("key of the revocation log")),
        ] {
            let got = first.may_be_followed_by(&at(next)).err();
            assert_eq!(got, went_back, "{next}");
        }
        let next = at("version 1\nrevocations k\n");
        assert_eq!(at("version 1\n").may_be_followed_by(&next), Ok(()));
        for odd in [
            "",
            "version\n",
            "version +1\n",
            "version 18446744073709551616\n",
            "version 1\nversion 1\n",
            "version 1\nepoch x\n",
            "version 1\nepoch 1\nepoch 1\n",
            "version 1\nrevocations k\nrevocations k\n",
        ] {
            assert_eq!(progress(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_log_only_grows() {
        let at = |size, fill| Checkpoint {
            size,
            root: [fill; 32],
        };
        let check = |a: Checkpoint, b: Checkpoint, ok: bool| {
            assert_eq!(a.may_be_followed_by(&b), ok, "{} -> {}", a.size, b.size);
        };
        check(at(5, 1), at(6, 2), true);
        check(at(5, 1), at(5, 1), true);
        check(at(5, 1), at(5, 2), false);
        check(at(5, 1), at(4, 1), false);
    }
}
