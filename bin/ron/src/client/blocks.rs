//! Adds, changes and removes `[[clients]]` blocks in the text of svc-passport's configuration; everything else,
//! comments included, stays. Pure. The caller checks the result by reading it as the service does.

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table};

const BLOCKS: &str = "clients";

/// The text with a block of these lines behind its other ones.
pub fn add(text: &str, lines: &[String]) -> Result<String, String> {
    let parse = |text: &str| text.parse::<DocumentMut>().map_err(|e| format!("{e}"));
    let mut doc = parse(text)?;
    let mut block = parse(&(lines.join("\n") + "\n"))?.as_table().clone();
    block.decor_mut().set_prefix("\n");
    let blocks = doc
        .entry(BLOCKS)
        .or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    let blocks = blocks.as_array_of_tables_mut();
    blocks.ok_or("`clients` is no list of blocks")?.push(block);
    Ok(doc.to_string())
}

/// The text without the block of a client; `None` if it has none that is recognised.
pub fn remove(text: &str, id: &str) -> Option<String> {
    let mut doc: DocumentMut = text.parse().ok()?;
    let blocks = doc.get_mut(BLOCKS)?.as_array_of_tables_mut()?;
    blocks.remove(place(blocks, id)?);
    Some(doc.to_string())
}

/// The text with another list of secrets in the block of a client; `None` if its block, or the list in it, is not recognised.
/// `next` makes the new list of the old.
pub fn with_secrets(
    text: &str,
    id: &str,
    next: impl FnOnce(&[String]) -> Vec<String>,
) -> Option<String> {
    let mut doc: DocumentMut = text.parse().ok()?;
    let blocks = doc.get_mut(BLOCKS)?.as_array_of_tables_mut()?;
    let at = place(blocks, id)?;
    let list = blocks
        .get_mut(at)?
        .get_mut("secret_sha256")?
        .as_array_mut()?;
    let old = list.iter().map(|hash| hash.as_str().map(str::to_owned));
    let old: Vec<String> = old.collect::<Option<_>>()?;
    let decor = list.decor().clone();
    *list = next(&old).into_iter().collect::<Array>();
    *list.decor_mut() = decor;
    Some(doc.to_string())
}

fn place(blocks: &ArrayOfTables, id: &str) -> Option<usize> {
    let is = |block: &Table| block.get("id").and_then(Item::as_str) == Some(id);
    blocks.iter().position(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_and_go_and_all_else_stays() {
        let text = "issuer = \"i\"\n\n[[clients]] # ours\nid = \"operator\"\nsecret_sha256 = []\n\n[auth]\nissuer = \"i\"\n";
        let lines = ["id = \"shop\"".to_owned(), "certs = [\"ab\"]".to_owned()];
        let more = add(text, &lines).unwrap();
        assert_eq!(
            more,
            text.replace(
                "[auth]",
                "[[clients]]\nid = \"shop\"\ncerts = [\"ab\"]\n\n[auth]"
            )
        );
        assert_eq!(remove(&more, "shop").as_deref(), Some(text));
        let without = "issuer = \"i\"\n\n[auth]\nissuer = \"i\"\n";
        assert_eq!(remove(text, "operator").as_deref(), Some(without));
        assert_eq!(remove(text, "i"), None);
        assert_eq!(remove(text, "oper"), None);
        assert_eq!(
            add("a = 1", &lines[..1]).unwrap(),
            "a = 1\n\n[[clients]]\nid = \"shop\"\n"
        );
    }

    #[test]
    fn the_secrets_of_one_client_are_replaced() {
        let text = "[[clients]]\nid = \"a\"\nsecret_sha256 = [\"1\"] # first\n\n[[clients]]\nsecret_sha256 = [\"2\"]\nid = \"b\"\n\n[auth]\nx = 1\n";
        let add = |old: &[String]| [old, &["n".to_owned()]].concat();
        let of_a = text.replace("[\"1\"]", "[\"1\", \"n\"]");
        assert_eq!(with_secrets(text, "a", add), Some(of_a));
        let of_b = text.replace("[\"2\"]", "[\"2\", \"n\"]");
        assert_eq!(with_secrets(text, "b", add), Some(of_b));
        assert_eq!(with_secrets(text, "c", add), None);
        let keyed = "[[clients]]\nid = \"a\"\njwks = \"{}\"\n";
        assert_eq!(with_secrets(keyed, "a", add), None);
    }
}
