//! The mount of Vault's Transit API: a value of the configuration.

use std::str::FromStr;

use ron_service::config::{Kind, Setting, Value, check};

/// First segments below `/v1/` that belong to this service or, in Vault, to no engine that an operator mounts.
pub const RESERVED: [&str; 6] = ["audit", "auth", "cubbyhole", "identity", "kms", "sys"];

/// Maximum bytes of a mount.
const BYTES_MAX: usize = 128;

/// The path between `/v1/` and the routes of Vault's Transit API, such as `transit` or `secrets/transit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultMount(String);

impl VaultMount {
    /// The path of the default mount, which the names of the routes have.
    pub const DEFAULT_PATH: &'static str = "/v1/transit/";

    /// The path below which the routes are served.
    pub fn path(&self) -> String {
        format!("/v1/{}/", self.0)
    }
}

impl FromStr for VaultMount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("is longer than {BYTES_MAX} bytes"));
        }
        // No dots, so that no proxy takes a segment for a relative path; no upper case, as in the service's other paths.
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        let mut segments = text.split('/');
        if !segments.all(|segment| !segment.is_empty() && segment.bytes().all(is_plain)) {
            return Err(
                "must be segments of a-z 0-9 - _ with one / between them, such as transit or secrets/transit".to_owned(),
            );
        }
        let first = text.split('/').next().unwrap_or_default();
        if RESERVED.contains(&first) {
            return Err(format!(
                "begins with {first}, below which other paths are: choose another one, such as transit"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Setting for VaultMount {
    const KIND: Kind = Kind::Parsed {
        word: "path",
        check: check::<Self>,
    };
    fn from_value(value: &Value) -> Result<Self, String> {
        match value {
            Value::Text(text) => text.parse(),
            found => Err(format!("has the unexpected value {}", found.to_toml())),
        }
    }
}

#[cfg(test)]
mod tests {
    use ron_service::Config;

    use super::*;
    use crate::settings::{Keys, TABLE};

    #[test]
    fn mounts_are_plain_paths_of_no_one_else() {
        let good = |text: &str| {
            let mount: VaultMount = text.parse().expect(text);
            assert_eq!(mount.path(), format!("/v1/{text}/"));
        };
        good("transit");
        good("secrets/transit");
        good("team-a/prod_1/transit/keys");
        good("kmsx");
        good("x/kms");
        good(&"a".repeat(128));
        let default = Config::from_pairs(&TABLE, &[]).expect("valid");
        let default: Keys = default.read().expect("valid");
        assert_eq!(default.vault_mount.path(), VaultMount::DEFAULT_PATH);
        let bad = |text: &str, word: &str| {
            let why = text.parse::<VaultMount>().expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        };
        bad(&"a".repeat(129), "128 bytes");
        for text in [
            "", "/", "/transit", "transit/", "a//b", "Transit", "a b", "a.b", "..", "a/../kms",
            "{name}", "a%2fb", "a?b", "\u{e4}", "a\n",
        ] {
            bad(text, "a-z 0-9");
        }
        for first in RESERVED {
            bad(first, first);
            bad(&format!("{first}/transit"), "other paths");
        }
    }
}
