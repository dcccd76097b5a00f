//! Texts made from a table: `--help`, the example file, the docs page, and the effective
//! configuration.

use std::fmt::Write as _;

use super::key::{Key, Kind, Reload};
use super::load::Config;
use super::table::Table;
use super::values::{Value, default_of};

/// The default as typed in a file.
fn default_toml(key: &Key) -> String {
    match default_of(key) {
        Ok(value) => value.to_toml(),
        Err(_) if matches!(key.kind, Kind::List(_) | Kind::Paths) => "[\"...\"]".into(),
        Err(_) => "\"...\"".into(),
    }
}

fn range(key: &Key) -> String {
    match (key.kind, key.min, key.max) {
        (Kind::Choice(words), _, _) => words.join(", "),
        (_, "", "") => String::new(),
        (Kind::Text | Kind::Parsed { .. } | Kind::SecretSource, min, max) => {
            format!("length {min} to {max}")
        }
        (_, min, "") => format!("at least {min}"),
        (_, "", max) => format!("at most {max}"),
        (_, min, max) => format!("{min} to {max}"),
    }
}

/// Every key with type, default and meaning: the end of `--help`.
pub fn render_help(table: &Table) -> String {
    let mut out = format!(
        "Configuration keys (--set KEY=VALUE, environment {}KEY, or the file; * = a reload may change it):\n",
        table.env_prefix()
    );
    for key in &table.rows() {
        let star = if key.reload == Reload::Yes { "*" } else { " " };
        let _ = writeln!(out, "  {star} {} ({})", key.name, describe(key));
        let _ = writeln!(out, "      {}", key.meaning);
        if let Kind::Tables(inner) = key.kind {
            for key in inner {
                let _ = writeln!(
                    out,
                    "        .{} ({}): {}",
                    key.name,
                    describe(key),
                    key.meaning
                );
            }
        }
    }
    out
}

fn describe(key: &Key) -> String {
    let mut parts = vec![key.kind.word().to_owned()];
    if key.required {
        parts.push("required".into());
    } else if !key.default.is_empty() {
        parts.push(format!("default {}", key.default));
    }
    let range = range(key);
    if !range.is_empty() {
        parts.push(range);
    }
    parts.join(", ")
}

/// A file with every key commented out at its default: uncommenting all of it changes nothing.
pub fn render_example(table: &Table) -> String {
    let mut out = format!(
        "# {} configuration. Every key is shown with its default.\n# Precedence: flags, then the environment ({}...), then this file, then the defaults. Relative paths in this file begin at its directory.\n",
        table.service,
        table.env_prefix()
    );
    let rows = table.rows();
    let group = |key: &Key| key.name.rsplit_once('.').map_or("", |(group, _)| group);
    let plain = |key: &&Key| !matches!(key.kind, Kind::Tables(_));
    let mut groups: Vec<&str> = rows.iter().filter(plain).map(group).collect();
    groups.sort_by_key(|name| !name.is_empty()); // stable: top-level keys first, as TOML needs it
    groups = dedup(groups);
    for name in groups {
        if !name.is_empty() {
            let _ = write!(out, "\n[{name}]\n");
        }
        for key in rows.iter().filter(plain).filter(|key| group(key) == name) {
            let short = key.name.rsplit('.').next().unwrap_or(key.name);
            let _ = write!(
                out,
                "\n# {} ({}{})\n",
                key.meaning,
                describe(key),
                restart(key)
            );
            let _ = writeln!(out, "# {short} = {}", default_toml(key));
        }
    }
    for key in &rows {
        let Kind::Tables(inner) = key.kind else {
            continue;
        };
        let _ = write!(
            out,
            "\n# {} Repeat the block for each.\n# [[{}]]\n",
            key.meaning, key.name
        );
        for field in inner {
            let _ = writeln!(
                out,
                "#   {} = {}  # {} ({})",
                field.name,
                default_toml(field),
                field.meaning,
                describe(field)
            );
        }
    }
    out
}

fn dedup(names: Vec<&str>) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    for name in names {
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

fn restart(key: &Key) -> &'static str {
    match key.reload {
        Reload::Yes => "",
        Reload::No(_) | Reload::Unstated => "; needs a restart",
    }
}

/// The table of keys for the docs, in Markdown.
pub fn render_markdown(table: &Table) -> String {
    let mut out = String::from(
        "| key | type | default | range | reload | meaning |\n|---|---|---|---|---|---|\n",
    );
    let row = |out: &mut String, name: &str, key: &Key, reload: Reload| {
        let default = match (key.required, key.default) {
            (true, _) => "required".to_owned(),
            (_, "") => String::new(),
            (_, text) => format!("`{text}`"),
        };
        let reload = match reload {
            Reload::Yes => "yes".to_owned(),
            Reload::No(why) => format!("restart: {}", why.reason()),
            Reload::Unstated => "restart".to_owned(),
        };
        let _ = writeln!(
            out,
            "| `{name}` | {} | {default} | {} | {reload} | {} |",
            key.kind.word(),
            range(key),
            // A bar would end the cell, and a bracket would begin a tag.
            key.meaning.replace('|', "\\|").replace('<', "\\<")
        );
    };
    for key in &table.rows() {
        row(&mut out, key.name, key, key.reload);
        if let Kind::Tables(inner) = key.kind {
            for field in inner {
                row(
                    &mut out,
                    &format!("{}[].{}", key.name, field.name),
                    field,
                    key.reload,
                );
            }
        }
    }
    out
}

impl Config {
    /// Every value with its origin, as TOML; secrets are printed as `[redacted]`.
    pub fn render_effective(&self) -> String {
        let mut out = String::new();
        let mut blocks = String::new();
        for key in self.table().rows() {
            let Some((_, value)) = self.values().find(|(name, _)| *name == key.name) else {
                continue;
            };
            if let (Value::Tables(tables), Kind::Tables(inner)) = (value, key.kind) {
                for table in tables {
                    let _ = write!(blocks, "\n[[{}]]  # {}\n", key.name, self.origin(key.name));
                    for field in inner {
                        let shown = match table.values.get(field.name) {
                            Some(value) if !field.secret => value.to_toml(),
                            Some(_) => "\"[redacted]\"".into(),
                            None => continue,
                        };
                        let _ = writeln!(blocks, "{} = {shown}", field.name);
                    }
                }
                continue;
            }
            let shown = match value {
                Value::Unset => "\"\"".into(),
                Value::Text(text) if text.is_empty() => "\"\"".into(), // also for a secret: that it is unset is not secret
                _ if key.secret => "\"[redacted]\"".into(),
                value => value.to_toml(),
            };
            let _ = write!(out, "{} = {shown}  # {}", key.name, self.origin(key.name));
            if let Reload::No(why) = key.reload {
                let _ = write!(out, "; needs a restart: {}", why.reason());
            }
            out.push('\n');
        }
        out + &blocks
    }
}
