//! Loads a [`Config`]: parses the TOML with positions, applies environment and flags, and reports
//! all problems at once, each with its file and line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ron_auth::AuthConfig;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::chassis::ChassisSettings;
use super::key::{Key, Kind};
use super::problem::{ConfigProblem, Origin};
use super::setting::{Settings, SubTable, Value};
use super::table::{Table, nearest, unknown_key};
use super::values;

/// A validated configuration. A service reads its own settings with
/// [`ServiceSettings::from_config`](super::ServiceSettings::from_config).
#[derive(Clone, Debug)]
pub struct Config {
    table: &'static Table,
    values: SubTable,
    origins: BTreeMap<&'static str, Origin>,
    source: Source,
    chassis: Arc<ChassisSettings>,
    auth: Arc<AuthConfig>,
}

/// The settings of a service.
pub trait ServiceSettings: Sized + Send + Sync + 'static {
    /// Reads the settings and checks keys that depend on each other; all problems are reported.
    fn from_config(config: &Config) -> Result<Self, Vec<ConfigProblem>>;
}

/// What [`Config::reread`] needs to load the same configuration again.
#[derive(Clone, Debug, Default)]
struct Source {
    file: Option<PathBuf>,
    env: BTreeMap<String, String>,
    flags: Vec<(String, String)>,
    rewrite: Option<Rewrite>,
}

/// A transformation of the file's text before it is parsed.
#[derive(Clone)]
struct Rewrite(Arc<dyn Fn(&str) -> String + Send + Sync>);

impl fmt::Debug for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rewrite")
    }
}

impl Config {
    /// Loads and validates. `file` is its path (for messages) and text; `env` returns the value of
    /// a variable; `flags` are `(key, value)` pairs in the order given. All problems are reported,
    /// in the order file, environment, flags.
    pub fn load(
        table: &'static Table,
        file: Option<(&Path, &str)>,
        env: &dyn Fn(&str) -> Option<String>,
        flags: &[(String, String)],
    ) -> Result<Self, Vec<ConfigProblem>> {
        let rows = table.rows();
        let mut loader = Loader {
            rows,
            dir: PathBuf::new(),
            values: BTreeMap::new(),
            origins: BTreeMap::new(),
            problems: Vec::new(),
        };
        if let Some((path, text)) = file {
            loader.file(path, text);
        }
        let env = loader.env(table, env);
        loader.flags(flags);
        loader.defaults();
        if !loader.problems.is_empty() {
            return Err(loader.problems);
        }
        let source = Source {
            file: file.map(|(path, _)| path.to_owned()),
            env,
            flags: flags.to_vec(),
            rewrite: None,
        };
        let values = SubTable {
            values: loader.values,
        };
        let (chassis, auth) = super::chassis::read(table.service, &values, &loader.origins)?;
        Ok(Self {
            table,
            values,
            origins: loader.origins,
            source,
            chassis: Arc::new(chassis),
            auth: Arc::new(auth),
        })
    }

    /// The defaults plus these values, for tests and embedding: `Config::from_pairs(&TABLE,
    /// &[("log.level", "debug")])`.
    pub fn from_pairs(
        table: &'static Table,
        pairs: &[(&str, &str)],
    ) -> Result<Self, Vec<ConfigProblem>> {
        let flags: Vec<(String, String)> = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Self::load(table, None, &|_| None, &flags)
    }

    /// From the text of a TOML file alone, without environment and flags.
    pub fn from_toml(
        table: &'static Table,
        path: &Path,
        text: &str,
    ) -> Result<Self, Vec<ConfigProblem>> {
        Self::load(table, Some((path, text)), &|_| None, &[])
    }

    /// Registers a transformation of the file's text for every reread; the caller has already
    /// applied it to the loaded text. It must keep line numbers, so that problems name the right
    /// lines.
    #[must_use]
    pub fn rewritten_by(
        mut self,
        rewrite: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        self.source.rewrite = Some(Rewrite(Arc::new(rewrite)));
        self
    }

    /// Reads the same file again with the same environment and flags.
    pub fn reread(&self) -> Result<Self, Vec<ConfigProblem>> {
        let rewrite = &self.source.rewrite;
        let text = match &self.source.file {
            None => None,
            Some(path) => {
                let mut text = read_file(path)?;
                if let Some(rewrite) = rewrite {
                    text = rewrite.0(&text);
                }
                Some((path.as_path(), text))
            }
        };
        let file = text.as_ref().map(|(path, text)| (*path, text.as_str()));
        let mut config = Self::load(
            self.table,
            file,
            &|name| self.source.env.get(name).cloned(),
            &self.source.flags,
        )?;
        config.source.rewrite.clone_from(rewrite);
        config.check_writers()?;
        Ok(config)
    }

    pub fn table(&self) -> &'static Table {
        self.table
    }
    /// The service's name, such as `ron-kms`.
    pub fn service(&self) -> &'static str {
        self.table.service
    }
    /// The file that it was loaded from.
    pub fn file(&self) -> Option<&Path> {
        self.source.file.as_deref()
    }
    /// The settings of the chassis.
    pub fn chassis(&self) -> &ChassisSettings {
        &self.chassis
    }
    /// The settings of the authorizer: the keys `auth.*`.
    pub fn auth(&self) -> &Arc<AuthConfig> {
        &self.auth
    }
    /// A group of the table's keys.
    pub fn read<S: Settings>(&self) -> Result<S, ConfigProblem> {
        S::read(&self.values)
    }
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values
            .values
            .iter()
            .map(|(name, value)| (*name, value))
    }
    /// A problem found by a service's own checks, with the place where the key was set.
    pub fn problem(&self, key: &str, why: impl Into<String>) -> ConfigProblem {
        ConfigProblem {
            origin: self.origin(key).clone(),
            key: key.to_owned(),
            why: why.into(),
        }
    }
}

/// Reads a configuration file of at most 1 MiB.
pub(crate) fn read_file(path: &Path) -> Result<String, Vec<ConfigProblem>> {
    let fail = |why: String| {
        vec![ConfigProblem {
            origin: Origin::Default,
            key: String::new(),
            why: format!("{}: {why}", path.display()),
        }]
    };
    let size = std::fs::metadata(path)
        .map_err(|e| fail(format!("cannot be read: {e}")))?
        .len();
    if size > 1 << 20 {
        return Err(fail(
            "is larger than 1 MiB; is this really a configuration file?".into(),
        ));
    }
    std::fs::read_to_string(path).map_err(|e| fail(format!("cannot be read: {e}")))
}

struct Loader {
    rows: Vec<Key>,
    /// Where relative paths in the file begin; absolute.
    dir: PathBuf,
    values: BTreeMap<&'static str, Value>,
    origins: BTreeMap<&'static str, Origin>,
    problems: Vec<ConfigProblem>,
}

impl Loader {
    fn problem(&mut self, origin: Origin, key: &str, why: impl Into<String>) {
        self.problems.push(ConfigProblem {
            origin,
            key: key.to_owned(),
            why: why.into(),
        });
    }

    fn set(&mut self, key: &Key, origin: Origin, value: Result<Value, String>) {
        match value {
            Ok(value) => {
                self.values.insert(key.name, value);
                self.origins.insert(key.name, origin);
            }
            Err(why) => self.problem(origin, key.name, why),
        }
    }

    fn file(&mut self, path: &Path, text: &str) {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.dir = absolute.parent().map(Path::to_owned).unwrap_or_default();
        let lines = Lines::of(text);
        let at = |offset: usize| Origin::File {
            path: path.to_owned(),
            line: lines.line(offset),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let offset = error.span().map_or(0, |span| span.start);
            // The parser's first line names the problem; the rest quotes the file, which may
            // contain secrets.
            let why = error
                .message()
                .lines()
                .next()
                .unwrap_or("is not TOML")
                .to_owned();
            self.problem(at(offset), "", format!("not valid TOML: {why}"));
        }
        if errors.is_empty() {
            self.walk("", table.get_ref(), &at);
        }
    }

    fn walk(&mut self, prefix: &str, table: &DeTable<'_>, at: &dyn Fn(usize) -> Origin) {
        for (name, value) in table {
            let full = if prefix.is_empty() {
                name.get_ref().to_string()
            } else {
                format!("{prefix}.{}", name.get_ref())
            };
            let origin = at(name.span().start);
            if let Some(key) = &self.rows.iter().copied().find(|row| row.name == full) {
                let read = match (key.kind, value.get_ref()) {
                    (Kind::Tables(keys), DeValue::Array(items)) => {
                        self.blocks(key, keys, items, at)
                    }
                    _ => values::from_toml(key, value.get_ref(), &self.dir),
                };
                self.set(key, origin, read);
                continue;
            }
            match value.get_ref() {
                DeValue::Table(inner) if self.is_group(&full) || !inner.is_empty() => {
                    self.walk(&full, inner, at);
                }
                _ => {
                    let near = nearest(&self.rows, &full);
                    self.problem(origin, &full, unknown_key(near));
                }
            }
        }
    }

    fn is_group(&self, name: &str) -> bool {
        self.rows.iter().any(|row| {
            row.name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// Reads `[[blocks]]`: each item is a small table of its own. Problems inside are recorded
    /// here; the returned value has the valid blocks, so that one pass finds all problems.
    fn blocks(
        &mut self,
        key: &Key,
        keys: &'static [Key],
        items: &[Spanned<DeValue<'_>>],
        at: &dyn Fn(usize) -> Origin,
    ) -> Result<Value, String> {
        let mut tables = Vec::new();
        for item in items {
            let DeValue::Table(table) = item.get_ref() else {
                return Err(format!("must be [[{}]] blocks", key.name));
            };
            let mut inner = Loader {
                rows: keys.to_vec(),
                dir: self.dir.clone(),
                values: BTreeMap::new(),
                origins: BTreeMap::new(),
                problems: Vec::new(),
            };
            inner.walk("", table, at);
            inner.defaults();
            let here = at(item.span().start);
            for problem in &mut inner.problems {
                if problem.origin == Origin::Default {
                    problem.origin = here.clone();
                }
                problem.key = format!("{}.{}", key.name, problem.key);
            }
            self.problems.append(&mut inner.problems);
            tables.push(SubTable {
                values: inner.values,
            });
        }
        Ok(Value::Tables(tables))
    }

    /// Returns the variables that were set, so that a reload uses the same ones.
    fn env(
        &mut self,
        table: &Table,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> BTreeMap<String, String> {
        let mut seen = BTreeMap::new();
        for key in self.rows.clone() {
            let name = table.env_name(key.name);
            if let Some(text) = env(&name) {
                self.set(
                    &key,
                    Origin::Env(name.clone()),
                    values::from_text(&key, &text),
                );
                seen.insert(name, text);
            }
        }
        seen
    }

    fn flags(&mut self, flags: &[(String, String)]) {
        for (name, text) in flags {
            match self.rows.iter().copied().find(|row| row.name == *name) {
                Some(key) if key.secret => self.problem(
                    Origin::Flag,
                    name,
                    "is a secret and is never taken from the command line, where other users can read it; use a file or the environment",
                ),
                Some(key) => self.set(&key, Origin::Flag, values::from_text(&key, text)),
                None => {
                    let near = nearest(&self.rows, name);
                    self.problem(Origin::Flag, name, unknown_key(near));
                }
            }
        }
    }

    fn defaults(&mut self) {
        for key in self.rows.clone() {
            let named = self.problems.iter().any(|problem| problem.key == key.name);
            if !named && !self.values.contains_key(key.name) {
                self.set(&key, Origin::Default, values::default_of(&key));
            }
        }
    }
}

/// Byte offsets of line starts.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(
            std::iter::once(0)
                .chain(text.match_indices('\n').map(|(at, _)| at + 1))
                .collect(),
        )
    }
    /// The line of this byte, counted from 1.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset).max(1)
    }
}
