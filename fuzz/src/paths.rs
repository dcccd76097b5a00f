//! The reference for routing: every pattern is tried, the most literal match wins.

/// A pattern with its method.
pub type Pattern = (&'static str, &'static str);

/// The result of routing a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Route(&'static str, Option<Vec<(&'static str, String)>>),
    OtherMethods(String),
    Nothing,
}

/// How literal a match is, segment by segment (0 literal, 1 parameter, 2 tail), and its values.
fn matched<'p>(pattern: &'static str, path: &'p str) -> Option<(Vec<u8>, Vec<&'p str>)> {
    let wanted: Vec<&str> = pattern[1..].split('/').collect();
    let path = path.strip_prefix('/')?;
    let given: Vec<&str> = path.split('/').collect();
    let (mut kinds, mut values) = (Vec::new(), Vec::new());
    for (n, segment) in wanted.iter().enumerate() {
        if segment.starts_with("{*") {
            let from = given.get(n)?.as_ptr().addr() - path.as_ptr().addr();
            kinds.push(2);
            values.push(&path[from..]);
            return (!path[from..].is_empty()).then_some((kinds, values));
        }
        let value = *given.get(n)?;
        if segment.starts_with('{') {
            if value.is_empty() {
                return None;
            }
            kinds.push(1);
            values.push(value);
        } else if *segment == value {
            kinds.push(0);
        } else {
            return None;
        }
    }
    (given.len() == wanted.len()).then_some((kinds, values))
}

/// The shape of a pattern: its parameters' names do not matter.
fn shape(pattern: &str) -> Vec<&str> {
    let blank = |segment| match segment {
        s if str::starts_with(s, "{*") => "{*}",
        s if str::starts_with(s, "{") => "{}",
        s => s,
    };
    pattern.split('/').map(blank).collect()
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first == b'%' {
            let digits = rest.get(..2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            out.push(*first);
        }
    }
    let decoded = String::from_utf8(out).ok()?;
    // The head check has accepted unescaped bytes; escaped ones must not decode to control characters.
    (!text.contains('%') || !decoded.chars().any(char::is_control)).then_some(decoded)
}

/// Finds the place of a request among the patterns.
pub fn find(patterns: &[Pattern], method: &str, path: &str) -> Place {
    let asked = if method == "HEAD" { "GET" } else { method };
    let best = |own: bool| {
        let all = patterns.iter().filter(|(m, _)| !own || *m == asked);
        let matches = all.filter_map(|(_, p)| Some((matched(p, path)?, *p)));
        matches.min_by(|a, b| a.0.0.cmp(&b.0.0))
    };
    if let Some(((_, values), pattern)) = best(true) {
        let names = pattern.split('/').filter_map(|segment| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            Some(name.trim_start_matches('*'))
        });
        let params = names.zip(values).map(|(n, v)| Some((n, decode(v)?)));
        return Place::Route(pattern, params.collect());
    }
    let Some((_, pattern)) = best(false) else {
        return Place::Nothing;
    };
    let same = patterns.iter().filter(|(_, p)| shape(p) == shape(pattern));
    let mut allow: Vec<&str> = same.map(|(m, _)| *m).collect();
    if allow.contains(&"GET") {
        allow.push("HEAD");
    }
    allow.push("OPTIONS");
    allow.sort_unstable();
    Place::OtherMethods(allow.join(", "))
}
