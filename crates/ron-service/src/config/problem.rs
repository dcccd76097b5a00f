//! Problems of a configuration, with the place of each.

use std::fmt;
use std::path::PathBuf;

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Env(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::Flag => f.write_str("command line"),
        }
    }
}

/// One problem of the configuration. Displays as `origin: key: what to do`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    pub origin: Origin,
    /// The key, or the text that is not a key.
    pub key: String,
    pub why: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => {}
            origin => write!(f, "{origin}: ")?,
        }
        if self.key.is_empty() {
            f.write_str(&self.why)
        } else {
            write!(f, "{} {}", self.key, self.why)
        }
    }
}
