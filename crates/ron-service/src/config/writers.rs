//! Who may change the files that a service trusts: its own user and root, nobody else.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::chassis::ChassisSettings;
use super::load::Config;
use super::problem::{ConfigProblem, Origin};
use super::values::Value;

/// The key with the directory of signed policies, in the tables that have one.
const POLICY_DIR: &str = "policy.dir";

impl Config {
    /// Refuses a configuration file, data directory or policy file that another user could change.
    /// What does not exist is not judged.
    pub fn check_writers(&self) -> Result<(), Vec<ConfigProblem>> {
        let file = self.file().and_then(writer_fault).map(|why| ConfigProblem {
            origin: Origin::Default,
            key: String::new(),
            why,
        });
        let data_dir = self.chassis().data_dir.as_deref().and_then(writer_fault);
        let data_dir = data_dir.map(|why| self.problem(ChassisSettings::data_dir, why));
        let dir = self.values().find_map(|(key, value)| match value {
            Value::Path(dir) if key == POLICY_DIR => Some(dir.as_path()),
            _ => None,
        });
        let policies = dir.map(with_files).unwrap_or_default();
        let policies = policies.iter().filter_map(|path| writer_fault(path));
        let policies = policies.map(|why| self.problem(POLICY_DIR, why));
        let problems: Vec<_> = file.into_iter().chain(data_dir).chain(policies).collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// A directory and its policies and signatures, in order.
fn with_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let signed = |path: &PathBuf| {
        let ending = path.extension();
        ending.is_some_and(|ending| ending == "json" || ending == "sig")
    };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.path()).filter(signed).collect();
    paths.sort();
    paths.insert(0, dir.to_owned());
    paths
}

/// Why another user could change a file or directory, and what to do; `None` when no other user can,
/// or there is nothing.
pub fn writer_fault(path: &Path) -> Option<String> {
    let name = path.display();
    // Of the target of a symbolic link: that is what is read.
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("{name} cannot be examined: {error}")),
    };
    let user = rustix::process::geteuid().as_raw();
    fault(&name.to_string(), meta.mode() & 0o7777, meta.uid(), user)
}

/// Why another user than `user` could change what has this mode and owner, and what to do.
fn fault(name: &str, mode: u32, owner: u32, user: u32) -> Option<String> {
    if owner != user && owner != 0 {
        return Some(format!(
            "{name} belongs to user {owner}, who could change it; run: chown {user} {name}"
        ));
    }
    (mode & 0o022 != 0).then(|| {
        format!("{name} can be changed by other users (mode {mode:04o}); run: chmod go-w {name}")
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::{Settings as _, Table};

    crate::settings! {
        #[allow(dead_code)] // the test reads the table
        struct Own {
            /// Directory of the signed policies.
            "policy.dir" => policy_dir: Option<PathBuf>, restart(Files);
        }
    }
    static TABLE: Table = Table {
        service: "ron-trial",
        defaults: &[],
        keys: Own::GROUPS,
    };

    #[test]
    fn an_owner_other_than_the_service_and_root_is_refused_with_the_remedy() {
        for (owner, user, refused) in [
            (7, 7, false),
            (0, 7, false),
            (0, 0, false),
            (8, 7, true),
            (8, 0, true),
        ] {
            let remedy =
                format!("x belongs to user {owner}, who could change it; run: chown {user} x");
            let want = refused.then_some(remedy);
            assert_eq!(fault("x", 0o700, owner, user), want, "{owner} {user}");
        }
        if rustix::process::geteuid().is_root() {
            let dir = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(dir.path(), Some(8), None).unwrap();
            let why = writer_fault(dir.path()).expect("another owner");
            assert!(why.contains("belongs to user 8"), "{why}");
        }
    }

    #[test]
    fn what_another_user_could_change_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (data, policies) = (at("data"), at("policy"));
        let text = format!(
            "data_dir = \"{}\"\npolicy.dir = \"{}\"\n",
            data.display(),
            policies.display()
        );
        let config = Config::from_toml(&TABLE, &at("config.toml"), &text).unwrap();
        config.check_writers().expect("nothing is there yet");
        for made in [&data, &policies] {
            fs::create_dir(made).unwrap();
        }
        let files = ["config.toml", "policy/x.json", "policy/x.json.sig"];
        for name in files.into_iter().chain(["policy/notes.txt"]) {
            fs::write(at(name), &text).unwrap();
        }
        let set = |name: &str, mode| {
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        };
        set("policy/notes.txt", 0o666); // no service reads it
        let places = files.into_iter().chain(["data", "policy"]);
        places.clone().for_each(|name| set(name, 0o755));
        config.check_writers().expect("others may read");
        for name in places {
            for mode in [0o775, 0o757, 0o666] {
                set(name, mode);
                let problems = config.check_writers().unwrap_err();
                let why = problems[0].to_string();
                let remedy = format!("(mode {mode:04o}); run: chmod go-w {}", at(name).display());
                assert!(problems.len() == 1 && why.ends_with(&remedy), "{why}");
                set(name, 0o755);
            }
        }
    }
}
