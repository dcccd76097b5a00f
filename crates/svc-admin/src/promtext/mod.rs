//! A zero-copy reader of the Prometheus and OpenMetrics text formats.
//!
//! It reads or skips, and never fails: a scrape from a foreign exporter may contain lines this code
//! does not know. Nothing is allocated: a sample borrows its name and labels from the body, and
//! label values are unescaped only on access.
//!
//! Sources of the grammar: the Prometheus text exposition format 0.0.4 and OpenMetrics 1.0.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

mod plain;
mod words;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name and label block exactly as written, such as `up{job="x"}`. Identifies the series.
    pub key: &'a str,
    pub name: &'a str,
    /// The text between the braces, still escaped; empty without braces. Well-formed.
    pub labels: &'a str,
    /// The value; `NaN` and infinities are valid.
    pub value: f64,
    /// The timestamp as written (milliseconds in Prometheus text, seconds in OpenMetrics).
    pub timestamp: Option<f64>,
}

/// The `# TYPE` line of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    pub name: &'a str,
    /// `counter`, `gauge`, `histogram`, ... as written.
    pub kind: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    Sample(Sample<'a>),
    Family(Family<'a>),
}

/// Iterates over the readable lines of a scrape.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    page: Page<'a>,
    /// Where the next line begins.
    at: usize,
    skipped: u64,
}

/// The whole scrape. Its UTF-8 is checked once; only a page that is not entirely UTF-8 is checked
/// again line by line.
#[derive(Clone, Copy, Debug)]
struct Page<'a> {
    bytes: &'a [u8],
    text: Option<&'a str>,
}

impl<'a> Page<'a> {
    /// The text of a range, if it is valid UTF-8.
    fn text(&self, from: usize, to: usize) -> Option<&'a str> {
        match self.text {
            Some(text) => text.get(from..to),
            None => std::str::from_utf8(&self.bytes[from..to]).ok(),
        }
    }
}

impl<'a> Reader<'a> {
    /// Starts at the first line of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            page: Page {
                bytes: body,
                text: std::str::from_utf8(body).ok(),
            },
            at: 0,
            skipped: 0,
        }
    }

    /// Lines so far that were neither a sample, a comment nor blank.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        while self.at < self.page.bytes.len() {
            let from = self.at;
            if let Some((item, next)) = plain::read_line(&self.page, from) {
                self.at = next;
                return Some(item);
            }
            let to = memchr(b'\n', &self.page.bytes[from..])
                .map_or(self.page.bytes.len(), |length| from + length);
            self.at = to + 1;
            match read_line(&self.page, from, to) {
                Line::Item(item) => return Some(item),
                Line::Blank => {}
                Line::End => self.at = self.page.bytes.len(),
                Line::Odd => self.skipped += 1,
            }
        }
        None
    }
}

enum Line<'a> {
    Item(Item<'a>),
    /// A comment, a help text, a unit or an empty line.
    Blank,
    /// OpenMetrics' `# EOF`: the following lines are not part of the scrape.
    End,
    /// Not understood; counted as skipped.
    Odd,
}

fn read_line<'a>(page: &Page<'a>, from: usize, to: usize) -> Line<'a> {
    let line = &page.bytes[from..to];
    let from = from + spaces(line);
    let line = trim_end(trim_start(line));
    match line.first() {
        None => Line::Blank,
        Some(b'#') => read_comment(page, &line[1..], from + 1),
        Some(_) => read_sample(page, line, from)
            .map_or(Line::Odd, |sample| Line::Item(Item::Sample(sample))),
    }
}

/// Reads what follows the `#` before `from` on the page.
fn read_comment<'a>(page: &Page<'a>, line: &[u8], from: usize) -> Line<'a> {
    let rest = trim_start(line);
    if rest == b"EOF" {
        return Line::End;
    }
    let Some(rest) = rest
        .strip_prefix(b"TYPE")
        .filter(|r| r.first().is_some_and(|b| is_space(*b)))
    else {
        return Line::Blank;
    };
    let rest = trim_start(rest);
    let from = from + line.len() - rest.len();
    let name_end = token_len(rest);
    let kind_start = name_end + spaces(&rest[name_end..]);
    if name_end == 0 || name_len(rest) != name_end || kind_start == rest.len() {
        return Line::Odd;
    }
    page.text(from, from + rest.len())
        .map_or(Line::Odd, |text| {
            Line::Item(Item::Family(Family {
                name: &text[..name_end],
                kind: &text[kind_start..],
            }))
        })
}

/// Reads the line that begins at `from` on the page; there is no white space around it.
fn read_sample<'a>(page: &Page<'a>, line: &[u8], from: usize) -> Option<Sample<'a>> {
    let name_end = name_len(line);
    if name_end == 0 {
        return None;
    }
    let at = name_end + spaces(&line[name_end..]);
    let (labels, key_end) = if line.get(at) == Some(&b'{') {
        let inner = at + 1;
        let close = inner + label_block_len(&line[inner..])?;
        (inner..close, close + 1)
    } else if at > name_end {
        (name_end..name_end, name_end)
    } else {
        return None; // without a brace only white space can end the name
    };
    let number = |at: usize, end: usize| {
        read_whole(&line[at..end]).or_else(|| {
            // `f64::from_str` accepts inf, infinity and nan in any case, and refuses hexadecimal
            // and underscores.
            page.text(from + at, from + end)?.parse().ok()
        })
    };
    let value_at = key_end + spaces(&line[key_end..]);
    let value_end = value_at + token_len(&line[value_at..]);
    let value = number(value_at, value_end)?;
    let tail = value_end + spaces(&line[value_end..]);
    let timestamp = match line.get(tail) {
        None | Some(b'#') => None,
        Some(_) => {
            let end = tail + token_len(&line[tail..]);
            let after = trim_start(&line[end..]);
            if !after.is_empty() && after[0] != b'#' {
                return None;
            }
            Some(number(tail, end)?)
        }
    };
    let key = page.text(from, from + key_end)?;
    Some(Sample {
        key,
        name: &key[..name_end],
        labels: &key[labels],
        value,
        timestamp,
    })
}

/// The length of the well-formed label block at the start of `bytes`, up to its closing brace.
fn label_block_len(bytes: &[u8]) -> Option<usize> {
    let mut at = spaces(bytes);
    loop {
        if bytes.get(at) == Some(&b'}') {
            return Some(at);
        }
        let name = label_name_len(&bytes[at..]);
        if name == 0 {
            return None;
        }
        at += name;
        at += spaces(&bytes[at..]);
        if bytes.get(at) != Some(&b'=') {
            return None;
        }
        at += 1;
        at += spaces(&bytes[at..]);
        if bytes.get(at) != Some(&b'"') {
            return None;
        }
        at += 1;
        at += quoted_len(&bytes[at..])? + 1;
        at += spaces(&bytes[at..]);
        match bytes.get(at) {
            Some(b',') => {
                at += 1;
                at += spaces(&bytes[at..]);
            }
            Some(b'}') => return Some(at),
            _ => return None,
        }
    }
}

/// The length of a quoted text up to its closing quote; `bytes` starts after the opening one.
fn quoted_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// The common case: a short run of digits, exact in a double.
fn read_whole(token: &[u8]) -> Option<f64> {
    if token.is_empty() || token.len() > 15 {
        return None;
    }
    let mut whole: u64 = 0;
    for byte in token {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        whole = whole * 10 + u64::from(digit);
    }
    Some(whole as f64)
}

/// Iterates over the pairs of a label block, as found in [`Sample::labels`].
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    rest: &'a str,
}

impl<'a> Labels<'a> {
    /// `block` is the text between the braces.
    pub fn new(block: &'a str) -> Self {
        Self { rest: block }
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.trim_start_matches([' ', '\t', ',']);
        let eq = rest.find('=')?;
        let name = rest[..eq].trim_matches([' ', '\t']);
        let after = rest[eq + 1..]
            .trim_start_matches([' ', '\t'])
            .strip_prefix('"')?;
        let end = quoted_len(after.as_bytes())?;
        self.rest = &after[end + 1..];
        Some((name, unescape(&after[..end])))
    }
}

/// The value of one label in a block, or `None` when it is absent.
pub fn label<'a>(block: &'a str, name: &str) -> Option<Cow<'a, str>> {
    Labels::new(block)
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn unescape(text: &str) -> Cow<'_, str> {
    if memchr(b'\\', text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some(known @ ('\\' | '"')) => out.push(known),
            // The format does not define other escapes; both characters are kept.
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    Cow::Owned(out)
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn spaces(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .position(|b| !is_space(*b))
        .unwrap_or(bytes.len())
}

/// The length of the text before the next white space.
fn token_len(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .position(|b| is_space(*b))
        .unwrap_or(bytes.len())
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    &bytes[spaces(bytes)..]
}

fn trim_end(mut bytes: &[u8]) -> &[u8] {
    while let [head @ .., b' ' | b'\t' | b'\r'] = bytes {
        bytes = head;
    }
    bytes
}

const NAME_START: u8 = 1;
const NAME_MORE: u8 = 2;
const COLON: u8 = 4;

/// For each byte, at which positions of a name it may appear.
const CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        if b.is_ascii_alphabetic() || b == b'_' {
            table[byte] = NAME_START | NAME_MORE;
        } else if b.is_ascii_digit() {
            table[byte] = NAME_MORE;
        } else if b == b':' {
            table[byte] = COLON;
        }
        byte += 1;
    }
    table
};

/// The length of the metric name at the start of `bytes`; 0 when there is none.
fn name_len(bytes: &[u8]) -> usize {
    run_len(bytes, NAME_START | COLON, NAME_MORE | COLON)
}

/// The length of the label name at the start of `bytes`; 0 when there is none.
fn label_name_len(bytes: &[u8]) -> usize {
    run_len(bytes, NAME_START, NAME_MORE)
}

fn run_len(bytes: &[u8], first: u8, more: u8) -> usize {
    if bytes
        .first()
        .is_none_or(|b| CLASS[usize::from(*b)] & first == 0)
    {
        return 0;
    }
    bytes
        .iter()
        .position(|b| CLASS[usize::from(*b)] & more == 0)
        .unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests;
