//! Why a service did not start, with the exit code of each cause.

use std::fmt;

use ron_kernel::exit;

use crate::config::ConfigProblem;

/// A failed start. `Display` has one line per problem, ready for standard error.
#[derive(Debug)]
pub enum StartError {
    Config(Vec<ConfigProblem>),
    /// The host lacks something: port in use, directory in use or not writable.
    Io {
        what: String,
        /// What to do about it.
        hint: String,
    },
    Failed(String),
    /// A stop was requested before the service had started; why it had not.
    Stopped(String),
}

impl StartError {
    /// A configuration problem of which only the text is known.
    pub fn config_text(why: impl Into<String>) -> Self {
        let problem = ConfigProblem {
            origin: crate::config::Origin::Default,
            key: String::new(),
            why: why.into(),
        };
        Self::Config(vec![problem])
    }
    pub fn io(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Io {
            what: what.into(),
            hint: hint.into(),
        }
    }
    pub fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(why.to_string())
    }
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Io { .. } => exit::CONFIG,
            Self::Failed(_) => exit::FATAL,
            Self::Stopped(_) => exit::OK,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => {
                for (at, problem) in problems.iter().enumerate() {
                    if at > 0 {
                        writeln!(f)?;
                    }
                    write!(f, "{problem}")?;
                }
                Ok(())
            }
            Self::Io { what, hint } => write!(f, "{what} ({hint})"),
            Self::Failed(why) => f.write_str(why),
            Self::Stopped(why) => write!(f, "stopped before it had started: {why}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<Vec<ConfigProblem>> for StartError {
    fn from(problems: Vec<ConfigProblem>) -> Self {
        Self::Config(problems)
    }
}
