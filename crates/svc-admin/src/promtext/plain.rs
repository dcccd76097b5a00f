//! The fast path: lines as exporters usually write them, read in one pass without searching for
//! their end first: a name, perhaps `{label="value",...}`, one space, a value, a line feed. Any
//! other line is left to the full reader, so both always agree.

use super::words::{label_end, name_end, quoted_end, token_end};
use super::{CLASS, COLON, Family, Item, NAME_START, Page, Sample, read_whole};

/// Reads the line at `from` if it has the usual form; returns it with the position of the next
/// line.
#[inline]
pub fn read_line<'a>(page: &Page<'a>, from: usize) -> Option<(Item<'a>, usize)> {
    let text = page.text?;
    let bytes = page.bytes;
    let first = *bytes.get(from)?;
    if CLASS[usize::from(first)] & (NAME_START | COLON) == 0 {
        return (first == b'#').then(|| read_family(text, bytes, from))?;
    }
    let name_end = name_end(bytes, from + 1)?;
    let (labels, key_end) = match bytes[name_end] {
        b'{' => {
            let close = read_labels(bytes, name_end + 1)?;
            (name_end + 1..close, close + 1)
        }
        b' ' => (name_end..name_end, name_end),
        _ => return None,
    };
    let value_at = key_end + 1;
    if *bytes.get(key_end)? != b' ' {
        return None;
    }
    let value_end = token_end(bytes, value_at)?;
    if bytes[value_end] != b'\n' {
        return None;
    }
    let value = match read_whole(&bytes[value_at..value_end]) {
        Some(whole) => whole,
        None => text.get(value_at..value_end)?.parse().ok()?,
    };
    let key = text.get(from..key_end)?;
    let sample = Sample {
        key,
        name: key.get(..name_end - from)?,
        labels: text.get(labels)?,
        value,
        timestamp: None,
    };
    Some((Item::Sample(sample), value_end + 1))
}

/// The position of the brace that ends the block which begins at `at`.
#[inline]
fn read_labels(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        if CLASS[usize::from(*bytes.get(at)?)] & NAME_START == 0 {
            return None;
        }
        let end = label_end(bytes, at + 1)?;
        if bytes.get(end..end + 2)? != b"=\"" {
            return None;
        }
        at = end + 2;
        loop {
            at = quoted_end(bytes, at)?;
            match bytes[at] {
                b'"' => break,
                b'\\' if *bytes.get(at + 1)? >= b' ' => at += 2,
                _ => return None,
            }
        }
        match *bytes.get(at + 1)? {
            b',' => at += 2,
            b'}' => return Some(at + 1),
            _ => return None,
        }
    }
}

/// `# TYPE name kind`.
#[inline]
fn read_family<'a>(text: &'a str, bytes: &[u8], from: usize) -> Option<(Item<'a>, usize)> {
    let name_at = from + 7;
    if bytes.get(from..name_at)? != b"# TYPE "
        || CLASS[usize::from(*bytes.get(name_at)?)] & (NAME_START | COLON) == 0
    {
        return None;
    }
    let name_end = name_end(bytes, name_at + 1)?;
    let kind_end = token_end(bytes, name_end + 1)?;
    if bytes[name_end] != b' ' || kind_end == name_end + 1 || bytes[kind_end] != b'\n' {
        return None;
    }
    let family = Family {
        name: text.get(name_at..name_end)?,
        kind: text.get(name_end + 1..kind_end)?,
    };
    Some((Item::Family(family), kind_end + 1))
}
