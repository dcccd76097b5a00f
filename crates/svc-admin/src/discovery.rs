//! Nodes from Prometheus-style discovery files: JSON or YAML lists of targets with labels, read
//! periodically.
//!
//! A file that cannot be read or parsed leaves its previous nodes in place: an editor that is still
//! saving must not empty the page. The fault makes the console report itself as degraded.

use std::path::{Path, PathBuf};

use yaml_rust2::{Yaml, YamlLoader};

use crate::settings::{NodeSpec, base_url};

/// Maximum size of a discovery file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum nodes of one file.
const NODES_MAX: usize = 5_000;

/// The nodes of each file when it was last readable.
#[derive(Debug, Default)]
pub struct Discovered {
    files: Vec<(PathBuf, Vec<NodeSpec>)>,
}

impl Discovered {
    /// Reads all files again. Returns the faults of those that could not be read.
    pub fn read(&mut self, paths: &[PathBuf]) -> Vec<String> {
        let mut problems = Vec::new();
        let before = std::mem::take(&mut self.files);
        for path in paths {
            match read_file(path) {
                Ok(nodes) => self.files.push((path.clone(), nodes)),
                Err(why) => {
                    problems.push(format!("{}: {why}", path.display()));
                    let known = before.iter().find(|(known, _)| known == path);
                    self.files.extend(known.cloned());
                }
            }
        }
        problems
    }

    /// The nodes of all files. A node is skipped if its id is used by the configuration or by an
    /// earlier file.
    pub fn beside(&self, configured: &[NodeSpec]) -> Vec<NodeSpec> {
        let mut all = configured.to_vec();
        let mut taken: std::collections::BTreeSet<String> =
            all.iter().map(|node| node.id.clone()).collect();
        for node in self.files.iter().flat_map(|(_, nodes)| nodes) {
            if taken.insert(node.id.clone()) {
                all.push(node.clone());
            }
        }
        all
    }
}

fn read_file(path: &Path) -> Result<Vec<NodeSpec>, String> {
    let size = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
    if size > FILE_BYTES_MAX {
        return Err("is larger than 4 MiB".to_owned());
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    parse(&text)
}

/// The nodes of a discovery text. One parser reads both formats: JSON is valid YAML.
pub fn parse(text: &str) -> Result<Vec<NodeSpec>, String> {
    // A YAML alias can make a small text huge, and no generator of such files writes one.
    if text
        .lines()
        .any(|line| line.trim_start_matches(['-', ' ']).starts_with('*'))
    {
        return Err("has a YAML alias, which is not taken here".to_owned());
    }
    if text.contains('\0') {
        return Err("is not text".to_owned());
    }
    let docs = YamlLoader::load_from_str(text).map_err(|e| e.to_string())?;
    let groups = match docs.first() {
        None | Some(Yaml::Null) => return Ok(Vec::new()),
        Some(Yaml::Array(groups)) => groups,
        Some(_) => return Err("is not a list of groups with targets".to_owned()),
    };
    let mut nodes = Vec::new();
    for group in groups {
        let targets = group["targets"]
            .as_vec()
            .ok_or("has a group without targets")?;
        let labels = Labels(&group["labels"]);
        for target in targets {
            let target = target.as_str().ok_or("has a target that is not text")?;
            nodes.push(node(target, &labels, targets.len() > 1)?);
            if nodes.len() > NODES_MAX {
                return Err(format!("names more than {NODES_MAX} targets"));
            }
        }
    }
    Ok(nodes)
}

struct Labels<'a>(&'a Yaml);

impl Labels<'_> {
    fn get(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| match &self.0[*name] {
            Yaml::String(text) if !text.is_empty() => Some(text.clone()),
            Yaml::Integer(number) => Some(number.to_string()),
            Yaml::Real(text) => Some(text.clone()),
            _ => None,
        })
    }
}

/// One target as a node. Its id is the label `id` or `instance` if the group has a single target,
/// otherwise the target itself.
fn node(target: &str, labels: &Labels<'_>, shared: bool) -> Result<NodeSpec, String> {
    let scheme = labels
        .get(&["__scheme__"])
        .unwrap_or_else(|| "http".to_owned());
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(format!("{target}: the scheme is http or https"));
    }
    if target.contains('/') {
        return Err(format!("{target}: a target is host:port"));
    }
    let health_url =
        base_url(&format!("{scheme}://{target}")).map_err(|why| format!("{target}: {why}"))?;
    let named = labels.get(&["id", "instance"]).filter(|_| !shared);
    let name = named.unwrap_or_else(|| target.to_owned());
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let id: String = name.chars().take(64).map(plain).collect();
    let job = labels.get(&["job"]);
    Ok(NodeSpec {
        display_name: match (&job, name == target) {
            (Some(job), true) => format!("{job} {target}"),
            _ => name,
        },
        id,
        health_url,
        api_url: None,
        environment: labels
            .get(&["environment", "env"])
            .unwrap_or_else(|| "dev".to_owned()),
        log: None,
        credential: None,
        metrics_path: labels
            .get(&["__metrics_path__"])
            .filter(|path| path.starts_with('/'))
            .unwrap_or_else(|| "/metrics".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(text: &str) -> Result<Vec<String>, String> {
        parse(text).map(|nodes| nodes.into_iter().map(|node| node.id).collect())
    }

    #[test]
    fn json_and_yaml_name_nodes() {
        let json = r#"[{"targets": ["10.0.0.1:9100", "10.0.0.2:9100"], "labels": {"job": "node", "env": "prod"}}]"#;
        let yaml = "- targets:\n    - 10.0.0.1:9100\n    - '10.0.0.2:9100'\n  labels: {job: node, env: prod}\n";
        assert_eq!(parse(json), parse(yaml));
        let nodes = parse(yaml).expect("valid");
        assert_eq!(nodes[0].id, "10.0.0.1-9100");
        assert_eq!(nodes[0].display_name, "node 10.0.0.1:9100");
        assert_eq!(nodes[0].environment, "prod");
        assert_eq!(nodes[1].health_url, "http://10.0.0.2:9100");
        let named = "- targets: [a:1]\n  labels: {instance: web 1, __metrics_path__: /m}\n";
        let node = &parse(named).expect("valid")[0];
        assert_eq!(
            (node.id.as_str(), node.metrics_path.as_str()),
            ("web-1", "/m")
        );
        let secure = "- targets: [a:1]\n  labels: {__scheme__: https}\n";
        let node = &parse(secure).expect("valid")[0];
        assert_eq!(node.health_url, "https://a:1");
        assert_eq!(ids("").as_deref(), Ok(&[][..]));
        assert_eq!(ids("[]").as_deref(), Ok(&[][..]));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for text in [
            "a: 1",
            "- labels: {}",
            "- targets: [[a]]",
            "- targets: ['http://x']",
            "- targets: [a:1]\n  labels: {__scheme__: ftp}",
            "- targets: [",
            "- &a targets: [x:1]\n- *a",
            "\u{0}",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_broken_file_keeps_what_it_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("n.yml");
        let paths = [path.clone()];
        let mut found = Discovered::default();
        std::fs::write(&path, "- targets: [a:1]\n").expect("written");
        assert_eq!(found.read(&paths), [] as [String; 0]);
        std::fs::write(&path, "- targets: [").expect("written");
        assert_eq!(found.read(&paths).len(), 1);
        assert_eq!(found.beside(&[]).len(), 1);
        std::fs::write(&path, "[]").expect("written");
        assert_eq!(found.read(&paths), [] as [String; 0]);
        assert_eq!(found.beside(&[]), []);
    }
}
