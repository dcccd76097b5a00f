//! The differences between two configurations, and which of them a running service can apply.

use std::fmt;

use super::key::{Reload, Restart};
use super::load::Config;
use super::values::Value;

/// One changed key, values as typed, secrets and blocks redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: &'static str,
    pub from: String,
    pub to: String,
    /// Why a running service cannot apply it.
    pub restart: Option<Restart>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.key, self.from, self.to)
    }
}

/// All changes, in the table's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    pub changes: Vec<Change>,
}

impl Diff {
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
    /// Changed keys that need a restart.
    pub fn needs_restart(&self) -> Vec<(&'static str, Restart)> {
        let changes = self.changes.iter();
        changes
            .filter_map(|change| Some((change.key, change.restart?)))
            .collect()
    }
    /// `key: old -> new; ...` for one log line.
    pub fn summary(&self) -> String {
        self.changes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Config {
    /// The changes from `self` to `new`. Both must be of the same table.
    pub fn diff(&self, new: &Config) -> Diff {
        let mut changes = Vec::new();
        for key in self.table().rows() {
            let find = |config: &Config| {
                config
                    .values()
                    .find(|(name, _)| *name == key.name)
                    .map_or(Value::Unset, |(_, value)| value.clone())
            };
            let (from, to) = (find(self), find(new));
            if from != to {
                let blocks = matches!(from, Value::Tables(_)) || matches!(to, Value::Tables(_));
                let show = |value: &Value| {
                    if key.secret {
                        "[redacted]".to_owned()
                    } else {
                        value.to_toml()
                    }
                };
                let (from, to) = if blocks && !key.secret && show(&from) == show(&to) {
                    (show(&from), format!("{}, edited", show(&to)))
                } else {
                    (show(&from), show(&to))
                };
                changes.push(Change {
                    key: key.name,
                    from,
                    to,
                    restart: match key.reload {
                        Reload::No(why) => Some(why),
                        Reload::Yes | Reload::Unstated => None,
                    },
                });
            }
        }
        Diff { changes }
    }
}
