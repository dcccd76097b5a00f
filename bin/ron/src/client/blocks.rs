//! Adds and removes `[[clients]]` blocks in the text of svc-passport's configuration; everything else,
//! comments included, stays. Pure. The caller checks the result by reading it as the service does.

const HEADER: &str = "[[clients]]";

/// The text with a block at its end.
pub fn add(text: &str, lines: &[String]) -> String {
    let gap = if text.ends_with('\n') { "\n" } else { "\n\n" };
    format!("{text}{gap}{HEADER}\n{}\n", lines.join("\n"))
}

/// The text without the block of a client; `None` if it has none that is recognised.
pub fn remove(text: &str, id: &str) -> Option<String> {
    let (mut start, mut found) = (None, false);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let word = line.trim_start();
        if word.starts_with('[') {
            if let (Some(start), true) = (start, found) {
                return Some(format!("{}{}", &text[..start], &text[at..]));
            }
            let header = word.split('#').next().unwrap_or(word).trim();
            start = (header == HEADER).then_some(at);
        } else if start.is_some() && is_id(word, id) {
            found = true;
        }
        at += line.len();
    }
    start
        .filter(|_| found)
        .map(|start| text[..start].to_owned())
}

/// The text with another list of secrets in the block of a client; `None` if its block or the line of
/// the list, which must hold the whole list, is not recognised. `next` makes the new list of the old.
pub fn with_secrets(
    text: &str,
    id: &str,
    next: impl FnOnce(&[String]) -> Vec<String>,
) -> Option<String> {
    let (mut inside, mut found, mut list) = (false, false, None);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let word = line.trim_start();
        if word.starts_with('[') {
            if found {
                break;
            }
            inside = word.split('#').next().unwrap_or(word).trim() == HEADER;
            list = None;
        } else if inside && is_id(word, id) {
            found = true;
        } else if inside {
            let value = word.split_once('=');
            let value = value.filter(|(key, _)| key.trim() == "secret_sha256");
            list = value.map(|(_, value)| (at, line, value)).or(list);
        }
        at += line.len();
    }
    let (at, line, value) = list.filter(|_| found)?;
    // Neither hashes nor ends of validity have a # in them.
    let value = value.split('#').next().unwrap_or(value).trim();
    let old: Vec<String> = serde_json::from_str(value).ok()?;
    let new = serde_json::Value::from(next(&old));
    let (before, after) = (&text[..at], &text[at + line.len()..]);
    Some(format!("{before}secret_sha256 = {new}\n{after}"))
}

/// Whether a line is `id = "<id>"`.
fn is_id(line: &str, id: &str) -> bool {
    let Some((key, value)) = line.split_once('=') else {
        return false;
    };
    let value = value.trim_start();
    let quoted = [format!("\"{id}\""), format!("'{id}'")];
    key.trim() == "id"
        && quoted
            .iter()
            .any(|quoted| value.starts_with(quoted.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_and_go_and_all_else_stays() {
        let text = "issuer = \"i\"\n\n[[clients]] # ours\nid = \"operator\"\nsecret_sha256 = []\n\n[auth]\nissuer = \"i\"\n";
        let lines = ["id = \"shop\"".to_owned(), "certs = [\"ab\"]".to_owned()];
        let more = add(text, &lines);
        assert_eq!(
            more,
            format!("{text}\n[[clients]]\nid = \"shop\"\ncerts = [\"ab\"]\n")
        );
        assert_eq!(
            remove(&more, "shop").as_deref(),
            Some(&*format!("{text}\n"))
        );
        let without = "issuer = \"i\"\n\n[auth]\nissuer = \"i\"\n";
        assert_eq!(remove(text, "operator").as_deref(), Some(without));
        assert_eq!(remove(text, "i"), None);
        assert_eq!(remove(text, "oper"), None);
        assert_eq!(
            add("a = 1", &lines[..1]),
            "a = 1\n\n[[clients]]\nid = \"shop\"\n"
        );
    }

    #[test]
    fn the_secrets_of_one_client_are_replaced() {
        let text = "[[clients]]\nid = \"a\"\nsecret_sha256 = [\"1\"] # first\n\n[[clients]]\nsecret_sha256 = [\"2\"]\nid = \"b\"\n\n[auth]\nx = 1\n";
        let add = |old: &[String]| [old, &["n".to_owned()]].concat();
        let of_a = text.replace("[\"1\"] # first", "[\"1\",\"n\"]");
        assert_eq!(with_secrets(text, "a", add), Some(of_a));
        let of_b = text.replace("[\"2\"]", "[\"2\",\"n\"]");
        assert_eq!(with_secrets(text, "b", add), Some(of_b));
        assert_eq!(with_secrets(text, "c", add), None);
        let keyed = "[[clients]]\nid = \"a\"\njwks = \"{}\"\n";
        assert_eq!(with_secrets(keyed, "a", add), None);
    }
}
