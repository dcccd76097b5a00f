//! An issuer that is none of ours: `tests/interop/external.py` makes its keys and signs with other libraries.

use std::process::Command;

use serde_json::{Value, json};

use crate::tools::fed;
use crate::{ok, python, workspace};

/// Another issuer: keys of each kind, in a directory of their own.
pub struct Foreign {
    dir: tempfile::TempDir,
    /// Public keys by name.
    pub keys: Value,
}

impl Default for Foreign {
    fn default() -> Self {
        Self::new()
    }
}

impl Foreign {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let out = script().arg("keys").arg(dir.path()).output().unwrap();
        let keys = serde_json::from_str(&ok(&out)).unwrap();
        Self { dir, keys }
    }

    /// The key of a name, as a set for this use.
    pub fn set(&self, name: &str, usage: &str) -> Value {
        let mut key = self.keys[name].clone();
        key["use"] = usage.into();
        json!({ "keys": [key] })
    }

    /// Signs with a library: `(library, key, alg, header, claims)`.
    pub fn sign(&self, tokens: &[(&str, &str, &str, Value, Value)]) -> Vec<String> {
        let tokens: Vec<Value> = tokens
            .iter()
            .map(|(with, key, alg, header, claims)| {
                json!({"with": with, "key": key, "alg": alg, "header": header, "claims": claims})
            })
            .collect();
        let mut command = script();
        let out = fed(
            command.arg("sign").arg(self.dir.path()),
            json!(tokens).to_string(),
        );
        ok(&out).lines().map(str::to_owned).collect()
    }

    /// As [`Self::sign`], a single token.
    pub fn one(&self, with: &str, key: &str, alg: &str, header: Value, claims: Value) -> String {
        self.sign(&[(with, key, alg, header, claims)]).remove(0)
    }
}

fn script() -> Command {
    let mut command = Command::new(python());
    command.arg(workspace().join("tests/interop/external.py"));
    command
}
