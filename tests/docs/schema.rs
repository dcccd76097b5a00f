//! Renders JSON schemas for readers: a short word for a type, a table of fields.

use std::fmt::Write as _;

use serde_json::Value;

use crate::links::anchor;

/// Text for one line of a table: no line breaks, no bars; links to Rust items become code.
pub fn line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut out = words.join(" ").replace('|', "\\|");
    while let Some(begin) = out.find("[`") {
        let Some(end) = out[begin..].find("`]").map(|at| begin + at) else {
            break;
        };
        let item = out[begin + 1..=end].to_owned();
        let mut after = end + 2;
        if out[after..].starts_with('(') {
            after += out[after..].find(')').map_or(0, |at| at + 1);
        }
        out.replace_range(begin..after, &item);
    }
    out
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema[name].as_str().unwrap_or("")
}

/// A schema in a word or two, with its bounds; named types are links.
pub fn word(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", anchor(name));
    }
    if !schema["const"].is_null() {
        return format!("`{}`", schema["const"]);
    }
    if let Some(values) = schema["enum"].as_array() {
        let shown: Vec<_> = values.iter().map(|v| format!("`{v}`")).collect();
        return shown.join(", ");
    }
    for kind in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = schema[kind].as_array() {
            let join = if kind == "allOf" { " with " } else { " or " };
            let words: Vec<_> = choices.iter().map(word).collect();
            return words.join(join);
        }
    }
    match &schema["type"] {
        Value::Array(kinds) => {
            let one = |kind: &Value| {
                let mut single = schema.clone();
                single["type"] = kind.clone();
                word(&single)
            };
            kinds.iter().map(one).collect::<Vec<_>>().join(" or ")
        }
        Value::String(kind) => bounded(kind, schema),
        _ => "any JSON".to_owned(),
    }
}

fn bounded(kind: &str, schema: &Value) -> String {
    let plain = match kind {
        "array" => {
            let of = match &schema["items"] {
                Value::Null => "any JSON".to_owned(),
                items => word(items),
            };
            format!("list of {of}")
        }
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", word(&schema["additionalProperties"]))
        }
        "string" => "text".to_owned(),
        other => other.to_owned(),
    };
    let mut notes = Vec::new();
    let (low, high) = match kind {
        "array" => ("minItems", "maxItems"),
        "string" => ("minLength", "maxLength"),
        _ => ("minimum", "maximum"),
    };
    match (schema[low].as_i64(), schema[high].as_i64()) {
        (Some(low), Some(high)) => notes.push(format!("{low} to {high}")),
        // A lower bound of 0 says no more than the type itself.
        (Some(low), None) if low > 0 => notes.push(format!("at least {low}")),
        (None, Some(high)) => notes.push(format!("at most {high}")),
        _ => {}
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        notes.push(format!("`{}`", pattern.replace('|', "\\|")));
    }
    if notes.is_empty() {
        return plain;
    }
    format!("{plain} ({})", notes.join("; "))
}

/// The body of a section about a named type.
pub fn section(schema: &Value) -> String {
    let mut out = String::new();
    let about = line(text(schema, "description"));
    if !about.is_empty() {
        let _ = writeln!(out, "{about}\n");
    }
    let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
    if schema["properties"].is_object() {
        out.push_str(&fields(schema));
        if choices.is_none() {
            return out;
        }
        out.push('\n');
    }
    match choices {
        Some(choices) if choices.iter().all(|c| !c["properties"].is_object()) => {
            out.push_str("| value | meaning |\n|---|---|\n");
            for choice in choices {
                let about = line(text(choice, "description"));
                let _ = writeln!(out, "| {} | {about} |", word(choice));
            }
        }
        Some(choices) => {
            for choice in choices {
                let about = line(text(choice, "description"));
                let _ = writeln!(out, "Either: {about}\n");
                if choice["properties"].is_object() {
                    out.push_str(&fields(choice));
                } else {
                    let _ = writeln!(out, "{}", word(choice));
                }
                out.push('\n');
            }
        }
        None => {
            let _ = writeln!(out, "{}.", word(schema));
        }
    }
    out
}

/// The fields of an object.
fn fields(schema: &Value) -> String {
    let mut out = String::from("| field | type | required | meaning |\n|---|---|---|---|\n");
    let none = Vec::new();
    let required = schema["required"].as_array().unwrap_or(&none);
    for (name, field) in schema["properties"].as_object().unwrap() {
        let must = if required.iter().any(|r| r == name) {
            "yes"
        } else {
            ""
        };
        let about = line(text(field, "description"));
        let _ = writeln!(out, "| `{name}` | {} | {must} | {about} |", word(field));
    }
    out
}

#[test]
fn types_are_rendered_in_words() {
    let told = |schema: Value| word(&schema);
    let json = serde_json::json!({"type": ["string", "null"], "minLength": 1, "maxLength": 9});
    assert_eq!(told(json), "text (1 to 9) or null");
    let json =
        serde_json::json!({"type": "array", "items": {"$ref": "#/components/schemas/KeyDoc"}});
    assert_eq!(told(json), "list of [KeyDoc](#keydoc)");
    let json = serde_json::json!({"type": "integer", "format": "uint32", "minimum": 0});
    assert_eq!(told(json), "integer");
    assert_eq!(
        line("At most\n [`MAX`](a::MAX), see [`B`]."),
        "At most `MAX`, see `B`."
    );
    let schema = serde_json::json!({"type": "object", "required": ["a"],
        "properties": {"a": {"type": "boolean", "description": "Whether\n so."}, "b": true}});
    let table = section(&schema);
    assert!(
        table.contains("| `a` | boolean | yes | Whether so. |"),
        "{table}"
    );
    assert!(table.contains("| `b` | any JSON |  |  |"), "{table}");
}
