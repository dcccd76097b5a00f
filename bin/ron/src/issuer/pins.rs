//! Reads and changes `auth.note_vkey` in the text of a configuration file; everything else,
//! including comments, is kept. Pure.

use toml_edit::{Array, DocumentMut, Item, Value};

const SECTION: &str = "auth";
const KEY: &str = "note_vkey";

/// `auth.issuer` of the file, if it has one.
pub fn issuer(text: &str) -> Result<Option<String>, String> {
    let doc = parse(text)?;
    let issuer = value(&doc, "issuer").and_then(Item::as_str);
    Ok(issuer.map(str::to_owned))
}

/// The pinned lines.
pub fn read(text: &str) -> Result<Vec<String>, String> {
    let doc = parse(text)?;
    let Some(list) = value(&doc, KEY) else {
        return Ok(Vec::new());
    };
    let lines = list.as_array().and_then(|list| {
        let lines = list.iter().map(|line| line.as_str().map(str::to_owned));
        lines.collect::<Option<Vec<_>>>()
    });
    lines.ok_or_else(|| "auth.note_vkey is not a list of strings".to_owned())
}

/// The text with these lines pinned, and nothing else changed.
pub fn write(text: &str, lines: &[String]) -> Result<String, String> {
    let mut doc = parse(text)?;
    if doc
        .get(SECTION)
        .is_none_or(|section| !section.is_table_like())
    {
        return Err("it has no [auth] section".to_owned());
    }
    let mut list = Value::Array(lines.iter().map(String::as_str).collect::<Array>());
    if let Some(old) = value(&doc, KEY).and_then(Item::as_value) {
        *list.decor_mut() = old.decor().clone();
    }
    doc[SECTION][KEY] = Item::Value(list);
    Ok(doc.to_string())
}

fn parse(text: &str) -> Result<DocumentMut, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn value<'a>(doc: &'a DocumentMut, key: &str) -> Option<&'a Item> {
    doc.get(SECTION)?.get(key)
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
            "a = 1\n[auth] # who\nissuer = \"i\"\nnote_vkey = [\"n+1\"]\n\n[b]\nnote_vkey = [\"no\"]\n",
        );
        check(
            "[auth]\nissuer = \"i\"\nnote_vkey = [\"http://[::1]/policy+a\", 'b'] # pins\n[[auth.principals]]\nname = \"x\"\n",
            &["http://[::1]/policy+a", "b"],
            "[auth]\nissuer = \"i\"\nnote_vkey = [\"n+1\"] # pins\n[[auth.principals]]\nname = \"x\"\n",
        );
        check(
            "[auth]\nnote_vkey = [\n  \"a\", # old ]\n  \"b\",\n]\nissuer = \"i\"",
            &["a", "b"],
            "[auth]\nnote_vkey = [\"n+1\"]\nissuer = \"i\"\n",
        );
        check("[auth]\n", &[], "[auth]\nnote_vkey = [\"n+1\"]\n");
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        assert_eq!(issuer("issuer = \"top\"\n[policy]\n"), Ok(None));
        assert_eq!(issuer("[auth]\nissuer = \"i\"\n"), Ok(Some("i".to_owned())));
        let dotted = "a = 1\nauth.issuer = \"i\"\n";
        assert_eq!(issuer(dotted), Ok(Some("i".to_owned())));
        for text in ["a = 1\n", ""] {
            assert!(write(text, &lines(&["n"])).is_err(), "{text}");
        }
        for value in ["\"a\"", "[\"a\"", "[1]", ""] {
            let text = format!("[auth]\nnote_vkey = {value}\n");
            assert!(read(&text).is_err(), "{text}");
        }
    }
}
