//! Reads and changes `auth.note_vkey` in the text of a configuration file; everything else,
//! including comments, is kept. Pure.

use std::ops::Range;

const KEY: &str = "note_vkey";

/// `auth.issuer` of the file, if it has one.
pub fn issuer(text: &str) -> Result<Option<&str>, String> {
    let Some(section) = section(text)? else {
        return Ok(None);
    };
    let Some(at) = value(text, &section, "issuer") else {
        return Ok(None);
    };
    let rest = &text[at..section.end];
    let word = rest.strip_prefix('"').and_then(|rest| rest.split_once('"'));
    Ok(word.map(|(word, _)| word))
}

/// The pinned lines.
pub fn read(text: &str) -> Result<Vec<String>, String> {
    let Some(section) = section(text)? else {
        return Ok(Vec::new());
    };
    let Some(at) = value(text, &section, KEY) else {
        return Ok(Vec::new());
    };
    Ok(list(&text[at..section.end])?.1)
}

/// The text with these lines pinned, and nothing else changed.
pub fn write(text: &str, lines: &[String]) -> Result<String, String> {
    let section = section(text)?.ok_or("it has no [auth] section")?;
    let quoted: Vec<String> = lines.iter().map(|line| format!("\"{line}\"")).collect();
    let new = format!("[{}]", quoted.join(", "));
    let (range, new) = match value(text, &section, KEY) {
        Some(at) => (at..at + list(&text[at..section.end])?.0, new),
        None => (section.start..section.start, format!("{KEY} = {new}\n")),
    };
    let mut out = text.to_owned();
    out.replace_range(range, &new);
    Ok(out)
}

/// The range between the line `[auth]` and the next section.
fn section(text: &str) -> Result<Option<Range<usize>>, String> {
    let mut found: Option<Range<usize>> = None;
    let mut at = 0;
    let (mut open, mut root) = (false, true);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        at = end;
        let word = line.trim_start();
        if root && word.starts_with("auth.") {
            return Err("it has auth.* keys outside of [auth]; set auth.note_vkey by hand".into());
        }
        if word.starts_with('[') {
            root = false;
            open = word.split('#').next().unwrap_or(word).trim() == "[auth]";
            if open {
                found = Some(end..end);
            }
        } else if let Some(range) = found.as_mut().filter(|_| open) {
            range.end = end;
        }
    }
    Ok(found)
}

/// Start of the value of a key in a section.
fn value(text: &str, section: &Range<usize>, key: &str) -> Option<usize> {
    let mut at = section.start;
    for line in text[section.clone()].split_inclusive('\n') {
        if let Some((word, rest)) = line.split_once('=')
            && word.trim() == key
        {
            let blank = rest.len() - rest.trim_start_matches([' ', '\t']).len();
            return Some(at + line.len() - rest.len() + blank);
        }
        at += line.len();
    }
    None
}

/// A TOML array of plain strings at the beginning of a text: its length, and the strings.
fn list(text: &str) -> Result<(usize, Vec<String>), String> {
    let odd = || "auth.note_vkey is not a list of plain strings; set it by hand".to_owned();
    let inside = text.strip_prefix('[').ok_or_else(odd)?;
    let mut strings = Vec::new();
    let mut rest = inside;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n', ',']);
        let quote = rest.chars().next().ok_or_else(odd)?;
        rest = match quote {
            ']' => return Ok((text.len() - rest.len() + 1, strings)),
            '#' => rest.split_once('\n').ok_or_else(odd)?.1,
            '"' | '\'' => {
                let (string, after) = rest[1..].split_once(quote).ok_or_else(odd)?;
                if string.contains(['\\', '\n']) {
                    return Err(odd());
                }
                strings.push(string.to_owned());
                after
            }
            _ => return Err(odd()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[&str]) -> Vec<String> {
        all.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn pins_are_read_and_changed_and_all_else_stays() {
        let check = |before: &str, read_before: &[&str], after: &str| {
            assert_eq!(read(before).unwrap(), lines(read_before), "{before}");
            let new = write(before, &lines(&["n+1"])).unwrap();
            assert_eq!(new, after);
            assert_eq!(read(&new).unwrap(), lines(&["n+1"]));
            assert_eq!(issuer(&new), issuer(before));
        };
        check(
            "a = 1\n[auth] # who\nissuer = \"i\"\n\n[b]\nnote_vkey = [\"no\"]\n",
            &[],
            "a = 1\n[auth] # who\nnote_vkey = [\"n+1\"]\nissuer = \"i\"\n\n[b]\nnote_vkey = [\"no\"]\n",
        );
        check(
            "[auth]\nissuer = \"i\"\nnote_vkey = [\"http://[::1]/policy+a\", 'b'] # pins\n[[auth.principals]]\nname = \"x\"\n",
            &["http://[::1]/policy+a", "b"],
            "[auth]\nissuer = \"i\"\nnote_vkey = [\"n+1\"] # pins\n[[auth.principals]]\nname = \"x\"\n",
        );
        check(
            "[auth]\nnote_vkey = [\n  \"a\", # old ]\n  \"b\",\n]\nissuer = \"i\"",
            &["a", "b"],
            "[auth]\nnote_vkey = [\"n+1\"]\nissuer = \"i\"",
        );
        check("[auth]\n", &[], "[auth]\nnote_vkey = [\"n+1\"]\n");
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        assert_eq!(issuer("issuer = \"top\"\n[policy]\n"), Ok(None));
        assert_eq!(issuer("[auth]\nissuer = \"i\"\n"), Ok(Some("i")));
        assert!(issuer("a = 1\nauth.issuer = \"i\"\n").is_err());
        for text in ["a = 1\n", ""] {
            assert!(write(text, &lines(&["n"])).is_err(), "{text}");
        }
        for value in ["\"a\"", "[\"a\"", "[1]", "[\"a\\u0041\"]", ""] {
            let text = format!("[auth]\nnote_vkey = {value}\n");
            assert!(read(&text).is_err(), "{text}");
        }
    }
}
