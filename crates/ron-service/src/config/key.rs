//! One row of a configuration table, and the table: the source of help, example file, docs and
//! checks.

/// Type of a key, and its form in TOML.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    /// One of the listed words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// A whole number, 0 to 2^63-1 in a file.
    Count,
    /// `250ms 5s 1m 24h`.
    Duration,
    /// `64KiB 1MiB`.
    Size,
    /// A file system path; relative paths start at the process's working directory.
    Path,
    /// `127.0.0.1:7440` or `[::1]:7440`.
    Addr,
    /// A list of strings; comma-separated in the environment and on the command line.
    List,
    /// `[[name]]` blocks, each with these keys. Only a file can contain them.
    Tables(&'static [Key]),
}

impl Kind {
    /// The name of the type in help and docs.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Choice(_) => "choice",
            Kind::Bool => "boolean",
            Kind::Count => "number",
            Kind::Duration => "duration",
            Kind::Size => "size",
            Kind::Path => "path",
            Kind::Addr => "address",
            Kind::List => "list of text",
            Kind::Tables(_) => "blocks",
        }
    }
}

/// One key. Created by the `const` functions below, so that a table reads as one line per key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Full dotted name, such as `limits.max_body_bytes`.
    pub name: &'static str,
    pub kind: Kind,
    /// As typed (without quotes); empty means "not set".
    pub default: &'static str,
    /// Inclusive bounds, as typed; empty means no bound.
    pub min: &'static str,
    pub max: &'static str,
    /// Whether a reload may change it; `false` needs a restart.
    pub reload: bool,
    /// Never printed, never accepted from a flag.
    pub secret: bool,
    /// An unset value is a problem.
    pub required: bool,
    pub meaning: &'static str,
}

impl Key {
    pub const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            default,
            min: "",
            max: "",
            reload: false,
            secret: false,
            required: false,
            meaning,
        }
    }
    pub const fn text(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::Text, default, meaning)
    }
    /// `default` is one of `words`.
    pub const fn choice(
        name: &'static str,
        words: &'static [&'static str],
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self::new(name, Kind::Choice(words), default, meaning)
    }
    pub const fn bool(name: &'static str, default: bool, meaning: &'static str) -> Self {
        Self::new(
            name,
            Kind::Bool,
            if default { "true" } else { "false" },
            meaning,
        )
    }
    pub const fn count(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::Count, default, meaning)
    }
    pub const fn duration(
        name: &'static str,
        default: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self::new(name, Kind::Duration, default, meaning)
    }
    pub const fn size(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::Size, default, meaning)
    }
    pub const fn path(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::Path, default, meaning)
    }
    pub const fn addr(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::Addr, default, meaning)
    }
    /// `default` is comma separated.
    pub const fn list(name: &'static str, default: &'static str, meaning: &'static str) -> Self {
        Self::new(name, Kind::List, default, meaning)
    }
    pub const fn tables(name: &'static str, keys: &'static [Key], meaning: &'static str) -> Self {
        Self::new(name, Kind::Tables(keys), "", meaning)
    }
    /// Inclusive bounds, as typed.
    pub const fn range(mut self, min: &'static str, max: &'static str) -> Self {
        self.min = min;
        self.max = max;
        self
    }
    /// A reload may change this key.
    pub const fn reloadable(mut self) -> Self {
        self.reload = true;
        self
    }
    /// The value is never shown.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
    /// There is no default; an unset value is a problem.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

#[derive(Debug)]
pub struct Table {
    /// Name of the binary, such as `ron-kms`.
    pub service: &'static str,
    /// For example `RON_KMS_`; a key's variable is this plus its name in capitals, dots as
    /// underscores.
    pub env_prefix: &'static str,
    /// Groups of keys, [`super::CHASSIS_KEYS`] first. A later row of the same name replaces the
    /// earlier one (other default or range).
    pub keys: &'static [&'static [Key]],
}

impl Table {
    /// The rows in order, with replacements applied.
    pub fn rows(&self) -> Vec<&'static Key> {
        let mut rows: Vec<&'static Key> = Vec::new();
        for key in self.keys.iter().flat_map(|group| group.iter()) {
            match rows.iter_mut().find(|row| row.name == key.name) {
                Some(row) => *row = key,
                None => rows.push(key),
            }
        }
        rows
    }

    /// The environment variable of a key.
    pub fn env_name(&self, key: &str) -> String {
        format!(
            "{}{}",
            self.env_prefix,
            key.replace('.', "_").to_ascii_uppercase()
        )
    }

    /// The known name closest to `typed`: by edit distance, where the last part alone also counts
    /// (`max_body_bytes` means `limits.max_body_bytes`).
    pub fn nearest(&self, typed: &str) -> Option<&'static str> {
        nearest(&self.rows(), typed)
    }
}

/// The key that was probably meant: at most a third of the letters are wrong.
pub(super) fn nearest(rows: &[&'static Key], typed: &str) -> Option<&'static str> {
    let typed = typed.to_ascii_lowercase().replace('-', "_");
    let typed_last = typed.rsplit('.').next().unwrap_or(&typed);
    let score = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or(name);
        let full = close(name, &typed);
        // The right word in the wrong place counts as one more edit.
        let word = close(last, typed_last).map(|edits| edits.saturating_add(1));
        full.into_iter().chain(word).min()
    };
    let scored = rows
        .iter()
        .filter_map(|row| Some((score(row.name)?, row.name)));
    scored.min().map(|(_, name)| name)
}

/// The edit distance, if it is small for words of this length.
pub(crate) fn close(name: &str, typed: &str) -> Option<usize> {
    let edits = distance(name, typed);
    (edits <= name.len().min(typed.len()) / 3).then_some(edits)
}

/// The message for an unknown key.
pub(crate) fn unknown_key(near: Option<&str>) -> String {
    match near {
        Some(near) => format!("is not a known key; did you mean {near}?"),
        None => "is not a known key; print-example lists them all".to_owned(),
    }
}

/// Edit distance; a swap of adjacent letters counts as one edit.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (above[j] + 1)
                .min(row[j - 1] + 1)
                .min(above[j - 1] + differs);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    static ROWS: [Key; 4] = [
        Key::text("bind_addr", "", ""),
        Key::text("limits.max_body_bytes", "", ""),
        Key::text("log.level", "", ""),
        Key::text("auth.jwks_url", "", ""),
    ];

    #[test]
    fn nearest_names_what_was_meant() {
        static TABLE: Table = Table {
            service: "x",
            env_prefix: "X_",
            keys: &[&ROWS],
        };
        let table = &TABLE;
        let check =
            |typed: &str, meant: &str| assert_eq!(table.nearest(typed), Some(meant), "{typed}");
        check("bind_adr", "bind_addr");
        check("bindaddr", "bind_addr");
        check("bind-addr", "bind_addr");
        check("max_body_bytes", "limits.max_body_bytes");
        check("limit.max_body_byte", "limits.max_body_bytes");
        check("auth.jwk_url", "auth.jwks_url");
        check("log.lvl", "log.level");
        check("loglevel", "log.level");
        for far in ["colour", "x", "the_answer", "auth.password", ""] {
            assert_eq!(table.nearest(far), None, "{far}: nothing was meant");
        }
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("acb", "abc"), 1, "a swap is one edit");
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn a_later_row_replaces_the_earlier_in_place() {
        static LATER: [Key; 1] = [Key::text("bind_addr", "other", "")];
        static TABLE: Table = Table {
            service: "x",
            env_prefix: "X_",
            keys: &[&ROWS, &LATER],
        };
        let table = &TABLE;
        let rows = table.rows();
        assert_eq!(rows.len(), ROWS.len());
        assert_eq!(rows[0].default, "other");
        assert_eq!(
            table.env_name("limits.max_body_bytes"),
            "X_LIMITS_MAX_BODY_BYTES"
        );
    }
}
