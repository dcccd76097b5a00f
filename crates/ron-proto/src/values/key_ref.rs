//! What requests and caveats name keys by, beside their names: aliases and tags.

use std::{fmt, str::FromStr};

use super::{Alias, Kid, TagName, TagValue, ValueError, string_value};

/// The first segment of an alias where a key may stand. No key's name has two segments.
const ALIAS: &str = "alias/";

/// A key, by its name or by an alias in the caller's tenant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyRef {
    /// `tenant/purpose/alg/uuid`
    Kid(Kid),
    /// `alias/<name>`
    Alias(Alias),
}

impl KeyRef {
    /// The key's name, if it is named by that.
    pub const fn kid(&self) -> Option<&Kid> {
        match self {
            Self::Kid(kid) => Some(kid),
            Self::Alias(_) => None,
        }
    }
}

impl From<Kid> for KeyRef {
    fn from(kid: Kid) -> Self {
        Self::Kid(kid)
    }
}

impl From<&Kid> for KeyRef {
    fn from(kid: &Kid) -> Self {
        Self::Kid(kid.clone())
    }
}

impl From<Alias> for KeyRef {
    fn from(alias: Alias) -> Self {
        Self::Alias(alias)
    }
}

impl FromStr for KeyRef {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.strip_prefix(ALIAS) {
            Some(alias) if !alias.contains('/') => alias.parse().map(Self::Alias),
            _ => text.parse().map(Self::Kid),
        }
    }
}

impl fmt::Display for KeyRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kid(kid) => kid.fmt(out),
            Self::Alias(alias) => write!(out, "{ALIAS}{alias}"),
        }
    }
}

impl fmt::Debug for KeyRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

string_value!(KeyRef, "a key name tenant/purpose/alg/uuid, or alias/name", {
    "type": "string",
    "maxLength": 200,
    "pattern": "^(alias/[a-z0-9._-]{1,64}|[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}/[a-z0-9+-]{1,32}/[0-9a-f-]{36})$"
});

/// Keys with a tag: `name` with any value, or `name=value`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TagMatch {
    pub name: TagName,
    /// `None` matches every value.
    pub value: Option<TagValue>,
}

impl FromStr for TagMatch {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.parse()?)),
            None => (text, None),
        };
        let name = name.parse()?;
        Ok(Self { name, value })
    }
}

impl fmt::Display for TagMatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(out, "{}={value}", self.name),
            None => self.name.fmt(out),
        }
    }
}

impl fmt::Debug for TagMatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_aliases_have_one_spelling_each() {
        let kid = "acme/app/ed25519/00000000-0000-0000-0000-000000000001";
        for text in [kid, "alias/app", "alias/a.b_c-1"] {
            let read: KeyRef = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
        }
        // A tenant may be called `alias`.
        let of_tenant = "alias/app/ed25519/00000000-0000-0000-0000-000000000001";
        assert!(
            of_tenant
                .parse::<KeyRef>()
                .expect(of_tenant)
                .kid()
                .is_some()
        );
        for bad in [
            "",
            "alias",
            "alias/",
            "alias/A",
            "alias/a/b",
            "alias/..",
            "app",
        ] {
            assert!(bad.parse::<KeyRef>().is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_are_matched_by_name_or_by_value() {
        for text in ["team", "team=web", "env=eu-1:b"] {
            assert_eq!(text.parse::<TagMatch>().expect(text).to_string(), text);
        }
        for bad in ["", "=", "team=", "=web", "Team", "team=a=b", "team=a b"] {
            assert!(bad.parse::<TagMatch>().is_err(), "{bad}");
        }
    }
}
