//! The reference for the metrics text: each line read byte by byte by the grammar, everything
//! owned. The target compares it with the console's reader, whose parts borrow from the page.

use crate::promtext::{Item, Labels, Reader, label};

/// A sample as the reference reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    /// In the order of the line, unescaped.
    pub labels: Vec<(String, String)>,
    /// As bits: NaN is a value too.
    pub value: u64,
    pub timestamp: Option<u64>,
}

fn ours(page: &[u8]) -> (Vec<Row>, u64) {
    let mut reader = Reader::new(page);
    let mut rows = Vec::new();
    for item in reader.by_ref() {
        let Item::Sample(sample) = item else { continue };
        let labels: Vec<(String, String)> = Labels::new(sample.labels)
            .map(|(name, value)| (name.to_owned(), value.into_owned()))
            .collect();
        // A lookup by name returns the first label of that name.
        for (name, _) in &labels {
            let first = labels.iter().find(|(other, _)| other == name);
            assert_eq!(
                label(sample.labels, name).as_deref(),
                first.map(|(_, v)| v.as_str())
            );
        }
        // The key is a slice of the line: name, optional space, optional label block.
        let rest = sample
            .key
            .strip_prefix(sample.name)
            .expect("the key begins with the name");
        let block = rest.trim_start_matches([' ', '\t']);
        assert!(
            block.is_empty() || block == format!("{{{}}}", sample.labels),
            "{}",
            sample.key
        );
        rows.push(Row {
            name: sample.name.to_owned(),
            labels,
            value: bits(sample.value),
            timestamp: sample.timestamp.map(bits),
        });
    }
    (rows, reader.skipped())
}

/// Tries one input.
pub fn run(data: &[u8]) {
    let whole = ours(data);
    assert_eq!(whole, read(data));
    // A torn page gives the same samples up to its last whole line.
    let torn = &data[..data.len() / 2];
    let lines = torn
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |at| at + 1);
    let (before, _) = ours(&torn[..lines]);
    assert!(whole.0.starts_with(&before));
}

/// All samples of a page, and the number of lines that were not understood.
pub fn read(page: &[u8]) -> (Vec<Row>, u64) {
    let (mut rows, mut odd) = (Vec::new(), 0);
    for line in page.split(|b| *b == b'\n') {
        let mut line = line.to_vec();
        while matches!(line.last(), Some(b' ' | b'\t' | b'\r')) {
            line.pop();
        }
        while matches!(line.first(), Some(b' ' | b'\t')) {
            line.remove(0);
        }
        if line.is_empty() {
            continue;
        }
        if line[0] == b'#' {
            match comment(&line[1..]) {
                Comment::End => break,
                Comment::Odd => odd += 1,
                Comment::Fine => {}
            }
            continue;
        }
        match sample(&line) {
            Some(row) => rows.push(row),
            None => odd += 1,
        }
    }
    (rows, odd)
}

enum Comment {
    Fine,
    Odd,
    End,
}

fn comment(text: &[u8]) -> Comment {
    let text = unspaced(text);
    if text == b"EOF" {
        return Comment::End;
    }
    let Some(rest) = text
        .strip_prefix(b"TYPE")
        .filter(|rest| matches!(rest.first(), Some(b' ' | b'\t')))
    else {
        return Comment::Fine;
    };
    let rest = unspaced(rest);
    let end = rest.iter().position(|b| matches!(b, b' ' | b'\t'));
    let (name, kind) = rest.split_at(end.unwrap_or(rest.len()));
    let kind = unspaced(kind);
    let named = name
        .iter()
        .enumerate()
        .all(|(at, b)| name_byte(*b, at, true))
        && !name.is_empty();
    if named && !kind.is_empty() && std::str::from_utf8(kind).is_ok() {
        Comment::Fine
    } else {
        Comment::Odd
    }
}

fn unspaced(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|b| !matches!(b, b' ' | b'\t'));
    &text[start.unwrap_or(text.len())..]
}

fn name_byte(byte: u8, at: usize, colon: bool) -> bool {
    byte.is_ascii_alphabetic()
        || byte == b'_'
        || (colon && byte == b':')
        || (at > 0 && byte.is_ascii_digit())
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) -> bool {
        let start = self.at;
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        self.at > start
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn name(&mut self, colon: bool) -> Option<String> {
        let start = self.at;
        while self
            .peek()
            .is_some_and(|b| name_byte(b, self.at - start, colon))
        {
            self.at += 1;
        }
        let name = self.bytes[start..self.at].to_vec();
        (!name.is_empty()).then(|| String::from_utf8(name).expect("ASCII"))
    }

    fn token(&mut self) -> Vec<u8> {
        let start = self.at;
        while self.peek().is_some_and(|b| !matches!(b, b' ' | b'\t')) {
            self.at += 1;
        }
        self.bytes[start..self.at].to_vec()
    }

    fn quoted(&mut self) -> Option<String> {
        self.take(b'"')?;
        let mut out = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(out).ok(),
                b'\\' => {
                    let next = self.peek()?;
                    self.at += 1;
                    match next {
                        b'n' => out.push(b'\n'),
                        b'\\' | b'"' => out.push(next),
                        other => out.extend([b'\\', other]),
                    }
                }
                other => out.push(other),
            }
        }
    }

    fn labels(&mut self) -> Option<Vec<(String, String)>> {
        let mut labels = Vec::new();
        self.space();
        loop {
            if self.take(b'}').is_some() {
                return Some(labels);
            }
            let name = self.name(false)?;
            self.space();
            self.take(b'=')?;
            self.space();
            labels.push((name, self.quoted()?));
            self.space();
            if self.take(b'}').is_some() {
                return Some(labels);
            }
            self.take(b',')?;
            self.space();
        }
    }
}

fn number(token: &[u8]) -> Option<u64> {
    let value: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    Some(bits(value))
}

/// The bits of a value; all NaN are one.
pub fn bits(value: f64) -> u64 {
    if value.is_nan() {
        f64::NAN.to_bits()
    } else {
        value.to_bits()
    }
}

fn sample(line: &[u8]) -> Option<Row> {
    let mut cursor = Cursor { bytes: line, at: 0 };
    let name = cursor.name(true)?;
    let spaced = cursor.space();
    let labels = if cursor.take(b'{').is_some() {
        cursor.labels()?
    } else if spaced {
        Vec::new()
    } else {
        return None;
    };
    cursor.space();
    let value = number(&cursor.token())?;
    cursor.space();
    let timestamp = match cursor.peek() {
        None | Some(b'#') => None,
        Some(_) => {
            let token = cursor.token();
            cursor.space();
            if !matches!(cursor.peek(), None | Some(b'#')) {
                return None;
            }
            Some(number(&token)?)
        }
    };
    Some(Row {
        name,
        labels,
        value,
        timestamp,
    })
}
