//! The table of all keys of a service, and the key that a misspelt name means.

use super::chassis::ChassisSettings;
use super::key::Key;
use super::setting::Settings as _;

/// All keys of a service: those of the chassis, then its own.
#[derive(Debug)]
pub struct Table {
    /// Name of the binary, such as `ron-kms`.
    pub service: &'static str,
    /// The service's own defaults of chassis keys: `(ChassisSettings::bind_addr, "127.0.0.1:7440")`.
    pub defaults: &'static [(&'static str, &'static str)],
    /// The service's own keys: [`Settings::GROUPS`].
    pub keys: &'static [&'static [Key]],
}

impl Table {
    /// The rows in order, with the service's own defaults.
    pub fn rows(&self) -> Vec<Key> {
        let chassis = ChassisSettings::GROUPS.iter();
        let mut rows: Vec<Key> = chassis.copied().flatten().copied().collect();
        for (name, default) in self.defaults {
            for row in rows.iter_mut().filter(|row| row.name == *name) {
                row.default = default;
            }
        }
        rows.extend(self.keys.iter().copied().flatten());
        rows
    }

    /// The beginning of the service's environment variables: `RON_KMS_`.
    pub fn env_prefix(&self) -> String {
        format!("{}_", self.service.replace('-', "_").to_ascii_uppercase())
    }

    /// The environment variable of a key: its name in capitals, dots as underscores.
    pub fn env_name(&self, key: &str) -> String {
        let name = key.replace('.', "_").to_ascii_uppercase();
        format!("{}{name}", self.env_prefix())
    }

    /// The known name closest to `typed`: by edit distance, where the last part alone also counts
    /// (`max_body_bytes` means `limits.max_body_bytes`).
    pub fn nearest(&self, typed: &str) -> Option<&'static str> {
        nearest(&self.rows(), typed)
    }
}

/// The key that was probably meant: at most a third of the letters are wrong.
pub(super) fn nearest(rows: &[Key], typed: &str) -> Option<&'static str> {
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

    static TABLE: Table = Table {
        service: "x",
        defaults: &[(ChassisSettings::bind_addr, "127.0.0.1:1")],
        keys: &[],
    };

    #[test]
    fn nearest_names_what_was_meant() {
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
    fn a_service_has_its_own_default_of_a_chassis_key() {
        let rows = TABLE.rows();
        let chassis: usize = ChassisSettings::GROUPS
            .iter()
            .map(|group| group.len())
            .sum();
        assert_eq!(rows.len(), chassis);
        assert_eq!(rows[0].default, "127.0.0.1:1");
        assert_eq!(
            TABLE.env_name("limits.max_body_bytes"),
            "X_LIMITS_MAX_BODY_BYTES"
        );
    }
}
