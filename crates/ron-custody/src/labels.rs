//! How a key is found and described beside its name: aliases, tags and a description.

use std::collections::{BTreeMap, BTreeSet};

use ron_proto::values::{Alias, TagMatch, TagName, TagValue};
use serde::{Deserialize, Serialize};

/// Stored with the metadata of the key, so that its MAC covers them. An alias is in the labels of one key of a tenant.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Labels {
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub aliases: BTreeSet<Alias>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<TagName, TagValue>,
}

impl Labels {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the key has the tag, with the value if one is asked for.
    pub fn match_tag(&self, tag: &TagMatch) -> bool {
        let value = self.tags.get(&tag.name);
        value.is_some_and(|value| tag.value.as_ref().is_none_or(|wanted| wanted == value))
    }
}
