//! Caveats about keys: which ones, and what may be done with them.

use std::{fmt, str::FromStr};

use crate::values::{Alias, KeyOp, TagMatch};

/// Which keys: by name or the first parts of it, or by a label that the key service looks up when the token is used. With two
/// segments, `alias/...` and `tag/...` are always labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOrLabel {
    /// `tenant/purpose`, and further parts of a name.
    Name(String),
    /// `alias/<name>`: the key that the alias names then.
    Alias(Alias),
    /// `tag/<name>` or `tag/<name>=<value>`: the keys with this tag then.
    Tag(TagMatch),
}

impl FromStr for KeyOrLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("alias", alias)) if !alias.contains('/') => {
                let alias = alias.parse::<Alias>();
                return alias.map(Self::Alias).map_err(|e| e.to_string());
            }
            Some(("tag", tag)) if !tag.contains('/') => {
                let tag = tag.parse::<TagMatch>();
                return tag.map(Self::Tag).map_err(|e| e.to_string());
            }
            _ => {}
        }
        let fits = |byte: u8| {
            byte.is_ascii_lowercase()
                || byte.is_ascii_digit()
                || matches!(byte, b'.' | b'_' | b'-' | b'+')
        };
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(fits);
        let parts = text.split('/').count();
        if (2..=4).contains(&parts) && text.split('/').all(is_part) {
            return Ok(Self::Name(text.to_owned()));
        }
        Err("write the name of a key, tenant/purpose/algorithm/uuid, or two or three parts of it, alias/<name>, tag/<name> or tag/<name>=<value>".to_owned())
    }
}

impl fmt::Display for KeyOrLabel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::Alias(alias) => write!(out, "alias/{alias}"),
            Self::Tag(tag) => write!(out, "tag/{tag}"),
        }
    }
}

/// Operations, separated by commas, each once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyOps(Vec<KeyOp>);

impl KeyOps {
    pub fn contains(&self, op: KeyOp) -> bool {
        self.0.contains(&op)
    }
}

impl FromStr for KeyOps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ops = Vec::new();
        for name in text.split(',') {
            let op = name.parse()?;
            if ops.contains(&op) {
                return Err(format!("it names {op} twice"));
            }
            ops.push(op);
        }
        Ok(Self(ops))
    }
}

impl fmt::Display for KeyOps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|op| op.as_str()).collect();
        out.write_str(&names.join(","))
    }
}
