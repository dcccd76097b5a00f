//! The reference for strict JSON (RFC 8259): an independent reader with the rules of this system:
//! no repeated name, 32 levels, integers to 2^53.

use std::collections::BTreeSet;

use ron_proto::strict;
use serde_json::Value;

/// Why a text was refused, as far as the comparison needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum No {
    /// It is not JSON.
    Grammar,
    /// It is JSON that breaks a rule.
    Rule,
    /// An integer beyond 64 bits, or a number beyond a double.
    Huge,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The first broken rule; the grammar is checked to the end.
    broken: Option<No>,
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let got = strict::from_slice::<Value>(data);
    let lenient = serde_json::from_slice::<Value>(data);
    match check(data) {
        Ok(()) => assert!(got.is_ok(), "refused good JSON: {got:?}"),
        Err(No::Grammar) => {
            assert!(got.is_err(), "took what is not JSON: {got:?}");
            assert!(lenient.is_err(), "the reference is too strict");
        }
        Err(No::Rule) => assert!(got.is_err(), "took what breaks a rule: {got:?}"),
        // serde_json reads an integer beyond 64 bits as a float; a type that needs an integer
        // refuses it.
        Err(No::Huge) => {}
    }
    match (&got, lenient) {
        (Ok(got), Ok(lenient)) => assert_eq!(*got, lenient, "another value than serde_json's"),
        (Ok(got), Err(error)) => panic!("serde_json refuses {got}: {error}"),
        (Err(error), _) => {
            let text = String::from_utf8_lossy(data);
            let word = text
                .split(|c: char| !c.is_alphanumeric())
                .find(|w| w.len() > 24);
            assert!(
                word.is_none_or(|word| !error.reason.contains(word)),
                "the error repeats what was sent: {error}"
            );
        }
    }
    if let Ok(value) = &got {
        let again = serde_json::to_vec(value).expect("a value can be written");
        let again = strict::from_slice::<Value>(&again);
        assert!(again.is_ok(), "its own output is refused: {again:?}");
    }
}

/// Reads one document.
pub fn check(bytes: &[u8]) -> Result<(), No> {
    let mut reader = Reader {
        bytes,
        at: 0,
        broken: None,
    };
    reader.space();
    reader.value(0).ok_or(No::Grammar)?;
    reader.space();
    if reader.at < bytes.len() {
        return Err(No::Grammar);
    }
    reader.broken.map_or(Ok(()), Err)
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str) -> Option<()> {
        let here = self.bytes.get(self.at..)?;
        here.starts_with(word.as_bytes())
            .then(|| self.at += word.len())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn breaks(&mut self, no: No) {
        self.broken = self.broken.or(Some(no));
    }

    /// `depth` arrays and objects are open.
    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'n' => self.word("null"),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'"' => self.string().map(|_| ()),
            b'[' => self.list(depth + 1),
            b'{' => self.object(depth + 1),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<()> {
        self.take(b'[')?;
        if depth > 32 {
            self.breaks(No::Rule);
        }
        self.space();
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            self.space();
            self.value(depth)?;
            self.space();
            if self.take(b']').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.take(b'{')?;
        if depth > 32 {
            self.breaks(No::Rule);
        }
        self.space();
        if self.take(b'}').is_some() {
            return Some(());
        }
        let mut names = BTreeSet::new();
        loop {
            self.space();
            let name = self.string()?;
            if !names.insert(name) {
                self.breaks(No::Rule);
            }
            self.space();
            self.take(b':')?;
            self.space();
            self.value(depth)?;
            self.space();
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.take(b'"')?;
        let mut out = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(out).ok(),
                b'\\' => {
                    let character = self.escape()?;
                    out.extend(character.encode_utf8(&mut [0; 4]).bytes());
                }
                0..0x20 => return None,
                other => out.push(other),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                if (0xd800..0xdc00).contains(&first) {
                    self.word("\\u")?;
                    let second = self.unit()?;
                    if !(0xdc00..0xe000).contains(&second) {
                        return None;
                    }
                    let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                    char::from_u32(code)?
                } else {
                    char::from_u32(first)? // a low surrogate alone is none
                }
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u32> {
        let digits = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        let _ = self.take(b'-');
        if self.take(b'0').is_none() {
            self.digits()?;
        }
        let whole = self.at;
        if self.take(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if self.take(b'+').is_none() {
                let _ = self.take(b'-');
            }
            self.digits()?;
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at]).ok()?;
        let size = text.trim_start_matches('-');
        if whole == self.at {
            match size.parse::<u64>() {
                Ok(size) if size <= 1 << 53 => {}
                Ok(size) if text.starts_with('-') && size > 1 << 63 => self.breaks(No::Huge),
                Ok(_) => self.breaks(No::Rule),
                Err(_) => self.breaks(No::Huge),
            }
        } else if text.parse::<f64>().is_ok_and(f64::is_infinite) {
            self.breaks(No::Huge);
        }
        Some(())
    }
}
