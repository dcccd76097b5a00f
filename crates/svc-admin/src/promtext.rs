//! A zero-copy reader of the Prometheus and OpenMetrics text formats.
//!
//! It reads or skips, and never fails: a scrape from a foreign exporter may hold lines this code has never
//! seen. Nothing is allocated; a sample borrows its name and labels from the body, and label values are
//! unescaped only when somebody asks for them.
//!
//! Sources of the grammar: the Prometheus text exposition format 0.0.4 and OpenMetrics 1.0.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name and label block exactly as written, such as `up{job="x"}`. The identity of the series.
    pub key: &'a str,
    /// The metric name.
    pub name: &'a str,
    /// What stands between the braces, still escaped; empty when there are none. Well-formed.
    pub labels: &'a str,
    /// The value; `NaN` and infinities are values too.
    pub value: f64,
    /// The time stamp as written (milliseconds in Prometheus text, seconds in OpenMetrics).
    pub timestamp: Option<f64>,
}

/// What a `# TYPE` line says about a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    pub name: &'a str,
    /// `counter`, `gauge`, `histogram`, ... as written.
    pub kind: &'a str,
}

/// One readable line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    Sample(Sample<'a>),
    Family(Family<'a>),
}

/// Iterates over the readable lines of a scrape.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    skipped: u64,
}

impl<'a> Reader<'a> {
    /// Starts at the first line of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self {
            rest: body,
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
        while !self.rest.is_empty() {
            let line = match memchr(b'\n', self.rest) {
                Some(end) => {
                    let line = &self.rest[..end];
                    self.rest = &self.rest[end + 1..];
                    line
                }
                None => std::mem::take(&mut self.rest),
            };
            match read_line(line) {
                Line::Item(item) => return Some(item),
                Line::Blank => {}
                Line::End => self.rest = &[],
                Line::Odd => self.skipped += 1,
            }
        }
        None
    }
}

enum Line<'a> {
    Item(Item<'a>),
    /// A comment, a help text, a unit or nothing.
    Blank,
    /// OpenMetrics' `# EOF`: what follows is not part of the scrape.
    End,
    /// Not understood.
    Odd,
}

fn read_line(line: &[u8]) -> Line<'_> {
    let line = trim_end(trim_start(line));
    match line.first() {
        None => Line::Blank,
        Some(b'#') => read_comment(&line[1..]),
        Some(_) => read_sample(line).map_or(Line::Odd, |sample| Line::Item(Item::Sample(sample))),
    }
}

fn read_comment(rest: &[u8]) -> Line<'_> {
    let rest = trim_start(rest);
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
    let name_end = rest.iter().position(|b| is_space(*b)).unwrap_or(rest.len());
    let (name, kind) = (&rest[..name_end], trim_start(&rest[name_end..]));
    let named = name_len(name) == name.len() && !name.is_empty();
    match (std::str::from_utf8(name), std::str::from_utf8(kind)) {
        (Ok(name), Ok(kind)) if named && !kind.is_empty() => {
            Line::Item(Item::Family(Family { name, kind }))
        }
        _ => Line::Odd,
    }
}

fn read_sample(line: &[u8]) -> Option<Sample<'_>> {
    let name_end = name_len(line);
    if name_end == 0 {
        return None;
    }
    let mut at = name_end + spaces(&line[name_end..]);
    let spaced = at > name_end;
    let (labels, key_end) = if line.get(at) == Some(&b'{') {
        let inner = at + 1;
        let close = inner + label_block_len(&line[inner..])?;
        at = close + 1;
        (&line[inner..close], close + 1)
    } else if spaced {
        (&line[..0], name_end)
    } else {
        return None; // without a brace only white space can end the name
    };
    let rest = trim_start(&line[at..]);
    let value_end = rest.iter().position(|b| is_space(*b)).unwrap_or(rest.len());
    let value = read_value(&rest[..value_end])?;
    let tail = trim_start(&rest[value_end..]);
    let timestamp = match tail.first() {
        None | Some(b'#') => None,
        Some(_) => {
            let end = tail.iter().position(|b| is_space(*b)).unwrap_or(tail.len());
            let after = trim_start(&tail[end..]);
            if !after.is_empty() && after[0] != b'#' {
                return None;
            }
            Some(read_value(&tail[..end])?)
        }
    };
    let key = std::str::from_utf8(&line[..key_end]).ok()?;
    Some(Sample {
        key,
        name: &key[..name_end],
        labels: std::str::from_utf8(labels).ok()?,
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

fn read_value(token: &[u8]) -> Option<f64> {
    if let Some(whole) = read_whole(token) {
        return Some(whole);
    }
    let text = std::str::from_utf8(token).ok()?;
    // `f64::from_str` knows inf, infinity and nan in any case, and refuses hexadecimal and underscores.
    text.parse().ok()
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
    /// `block` is what stands between the braces.
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
            // The format leaves other escapes open; both characters are kept.
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

/// For each byte, where in a name it may stand.
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    /// Reads `body`; gives the samples as `key=value` and the count of skipped lines.
    fn check(body: &str, samples: &[&str], skipped: u64) {
        let mut reader = Reader::new(body.as_bytes());
        let mut got = Vec::new();
        for item in reader.by_ref() {
            if let Item::Sample(s) = item {
                got.push(format!("{}={}", s.key, s.value));
            }
        }
        assert_eq!(got, samples, "samples of {body:?}");
        assert_eq!(reader.skipped(), skipped, "skipped lines of {body:?}");
    }

    #[test]
    fn reads_what_exporters_write() {
        check("up 1\n", &["up=1"], 0);
        check("up 1", &["up=1"], 0);
        check("  up\t 1 \r\n", &["up=1"], 0);
        check("a:b{} 2 1395066363000\n", &["a:b{}=2"], 0);
        check("a{b=\"c\",} 1.5e3\n", &["a{b=\"c\",}=1500"], 0);
        check(
            "a { b = \"c\" , d=\"e\" } -0.5\n",
            &["a { b = \"c\" , d=\"e\" }=-0.5"],
            0,
        );
        check("a{b=\"}\"}3\n", &["a{b=\"}\"}=3"], 0);
        check("a +Inf\nb -Inf\nc NaN\n", &["a=inf", "b=-inf", "c=NaN"], 0);
        check(
            "# HELP a help # text\n# TYPE a counter\n\na 1\n",
            &["a=1"],
            0,
        );
        check(
            "a_bucket{le=\"0.1\"} 8 # {trace_id=\"x\"} 0.07 1520879607.789\n",
            &["a_bucket{le=\"0.1\"}=8"],
            0,
        );
        check("a 1 12 # {x=\"y\"} 1\n", &["a=1"], 0);
        check("a 1\n# EOF\nb 2\n", &["a=1"], 0);
        check("a 123456789012345678\n", &["a=123456789012345680"], 0);
    }

    #[test]
    fn skips_what_it_does_not_understand() {
        for odd in [
            "9a 1",
            "a",
            "a{",
            "a{b}",
            "a{b=c} 1",
            "a{b=\"c} 1",
            "a{b=\"c\\\"} 1",
            "a x",
            "a 1 2 3",
            "a 0x1",
            "a 1_0",
            "{a=\"b\"} 1",
            "a{:b=\"c\"} 1",
            "a{,} 1",
            "a{b=\"c\"d=\"e\"} 1",
            "é 1",
            "<html>",
            "a{b=\"c\"}",
            "a 1e",
            "# TYPE a",
            "a-b 1",
        ] {
            check(&format!("{odd}\nok 1\n"), &["ok=1"], 1);
        }
        let mut reader = Reader::new(b"a{b=\"\xff\"} 1\nok 1\n");
        assert_eq!(reader.by_ref().count(), 1, "bad UTF-8 loses its line only");
        assert_eq!(reader.skipped(), 1);
    }

    #[test]
    fn labels_are_unescaped_on_demand() {
        let body = r#"a{x="1",path="C:\\d\"q\"\nend",odd="\t",empty=""} 1"#;
        let Some(Item::Sample(sample)) = Reader::new(body.as_bytes()).next() else {
            panic!("a sample")
        };
        assert!(matches!(
            label(sample.labels, "x"),
            Some(Cow::Borrowed("1"))
        ));
        assert_eq!(
            label(sample.labels, "path").as_deref(),
            Some("C:\\d\"q\"\nend")
        );
        assert_eq!(label(sample.labels, "odd").as_deref(), Some("\\t"));
        assert_eq!(label(sample.labels, "empty").as_deref(), Some(""));
        assert_eq!(label(sample.labels, "none"), None);
    }

    #[test]
    fn families_are_read() {
        let got: Vec<_> = Reader::new(b"#  TYPE  x_total  counter\n# TYPEx y z\n").collect();
        assert_eq!(
            got,
            [Item::Family(Family {
                name: "x_total",
                kind: "counter"
            })]
        );
    }

    fn escaped(value: &str) -> String {
        value
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    }

    proptest! {
        #[test]
        fn never_panics_on_bytes(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut reader = Reader::new(&body);
            for item in reader.by_ref() {
                if let Item::Sample(s) = item { let _ = Labels::new(s.labels).count(); }
            }
        }

        #[test]
        fn never_panics_on_almost_metrics(body in "([a-z_]{0,3}[{} =\",\\\\#\n0-9.eE+\\-é]{0,6}){0,20}") {
            let _ = Reader::new(body.as_bytes()).count();
        }

        #[test]
        fn what_is_written_is_read(
            rows in proptest::collection::vec(
                ("[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", proptest::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,6}", any::<String>()), 0..4), any::<f64>(), proptest::option::of(any::<i64>())),
                0..12,
            )
        ) {
            let mut body = String::new();
            for (name, labels, value, time) in &rows {
                let block: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escaped(v))).collect();
                let block = if labels.is_empty() { String::new() } else { format!("{{{}}}", block.join(",")) };
                let time = time.map(|t| format!(" {t}")).unwrap_or_default();
                writeln!(body, "{name}{block} {value}{time}").expect("writing to a string");
            }
            let mut reader = Reader::new(body.as_bytes());
            for (name, labels, value, time) in &rows {
                let Some(Item::Sample(got)) = reader.next() else { panic!("a sample for {name} in {body:?}") };
                prop_assert_eq!(got.name, name);
                prop_assert!(got.value.to_bits() == value.to_bits() || (got.value.is_nan() && value.is_nan()));
                prop_assert_eq!(got.timestamp.is_some(), time.is_some());
                let pairs: Vec<(String, String)> = Labels::new(got.labels).map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
                prop_assert_eq!(&pairs, labels);
            }
            prop_assert!(reader.next().is_none());
            prop_assert_eq!(reader.skipped(), 0);
        }
    }
}
