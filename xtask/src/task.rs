//! What a task is: its row in the table, the arguments that it takes, and how their values are found.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::files;
use crate::tasks::TASKS;

/// Why a task failed: what happened, and what to do about it.
#[derive(Debug)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub type Outcome<T = ()> = Result<T, Failure>;

/// The table of docs/TESTING.md that a task is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// A step of scripts/test.sh, by the name that it has there.
    Step(&'static str),
    /// Tests that take too long for the test command.
    Long,
    /// Speed on a given machine; proves nothing.
    Measurement,
    /// Tasks that write files to ship or to commit.
    Files,
}

/// A row of the table.
pub struct Task {
    pub name: &'static str,
    pub group: Group,
    /// What a successful run proves, measures or writes. Markdown.
    pub shows: &'static str,
    /// On an otherwise idle machine with two cores, with `example` as the arguments. Empty where the arguments say it.
    pub length: &'static str,
    /// What must be installed besides what scripts/setup.sh installs; empty for nothing.
    pub needs: &'static str,
    /// The arguments of the usual run, as docs/TESTING.md shows them.
    pub example: &'static str,
    /// The arguments of a run for hours and its length, for a task whose usual run is a step of the test command.
    pub longer: Option<(&'static str, &'static str)>,
    pub knobs: &'static [Knob],
    pub run: fn(&Args) -> Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Position,
    Rest,
    Opt,
    Switch,
}

/// An argument of a task.
#[derive(Clone, Copy)]
pub struct Knob {
    name: &'static str,
    shape: Shape,
    default: &'static str,
    /// Read when the argument is absent, and set for the commands of the task. Empty for none.
    variable: &'static str,
    about: &'static str,
}

impl Knob {
    const fn new(
        shape: Shape,
        name: &'static str,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            shape,
            default,
            variable: "",
            about,
        }
    }

    /// An argument without a name; positions are filled in their order.
    pub const fn position(name: &'static str, default: &'static str, about: &'static str) -> Self {
        Self::new(Shape::Position, name, default, about)
    }

    /// All further arguments without a name.
    pub const fn rest(name: &'static str, about: &'static str) -> Self {
        Self::new(Shape::Rest, name, "", about)
    }

    /// An argument `--name VALUE`.
    pub const fn option(name: &'static str, default: &'static str, about: &'static str) -> Self {
        Self::new(Shape::Opt, name, default, about)
    }

    /// An argument `--name` without a value.
    pub const fn switch(name: &'static str, about: &'static str) -> Self {
        Self::new(Shape::Switch, name, "", about)
    }

    pub const fn variable(self, variable: &'static str) -> Self {
        Self { variable, ..self }
    }

    fn arg(&self) -> Arg {
        let mut about = self.about.to_owned();
        if !self.default.is_empty() {
            about = format!("{about} [default: {}]", self.default);
        }
        if !self.variable.is_empty() {
            about = format!("{about} [variable: {}]", self.variable);
        }
        let arg = Arg::new(self.name).help(about);
        match self.shape {
            Shape::Position => arg,
            Shape::Rest => arg.action(ArgAction::Append).num_args(0..),
            Shape::Opt => arg.long(self.name).value_name("VALUE"),
            Shape::Switch => arg.long(self.name).action(ArgAction::SetTrue),
        }
    }

    /// The values of the command line, else of the variable, else the default.
    fn values(&self, matches: &ArgMatches) -> Vec<String> {
        if self.shape == Shape::Switch {
            let set = matches.get_flag(self.name) || self.of_variable().is_some();
            return if set {
                vec!["1".to_owned()]
            } else {
                Vec::new()
            };
        }
        let given = matches.get_many::<String>(self.name);
        if let Some(values) = given {
            return values.cloned().collect();
        }
        let other = self.of_variable();
        let default = (!self.default.is_empty()).then(|| self.default.to_owned());
        other.or(default).into_iter().collect()
    }

    fn of_variable(&self) -> Option<String> {
        if self.variable.is_empty() {
            return None;
        }
        std::env::var(self.variable).ok().filter(|v| !v.is_empty())
    }
}

/// The values of a task's arguments.
pub struct Args {
    knobs: &'static [Knob],
    values: BTreeMap<&'static str, Vec<String>>,
}

impl Args {
    fn read(knobs: &'static [Knob], matches: &ArgMatches) -> Self {
        let values = knobs.iter().map(|k| (k.name, k.values(matches))).collect();
        Self { knobs, values }
    }

    pub fn many(&self, name: &str) -> &[String] {
        let values = self.values.get(name);
        values.unwrap_or_else(|| panic!("the table has no argument `{name}` for this task"))
    }

    /// Empty when nothing says a value.
    pub fn text(&self, name: &str) -> &str {
        self.many(name).first().map_or("", String::as_str)
    }

    pub fn is_set(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    pub fn number(&self, name: &str) -> Outcome<u64> {
        let text = self.text(name);
        let wrong = || Failure(format!("`{name}` is a whole number, not `{text}`"));
        text.parse().map_err(|_| wrong())
    }

    /// A path of the caller, who may be in another directory than the root of the tree.
    pub fn path(&self, name: &str) -> Outcome<PathBuf> {
        let text = self.text(name);
        let knob = self.knobs.iter().find(|k| k.name == name);
        if knob.is_some_and(|k| k.default == text) {
            return Ok(files::root().join(text));
        }
        std::path::absolute(Path::new(text))
            .map_err(|e| Failure(format!("`{name}` is a path, not `{text}`: {e}")))
    }

    /// The environment variables that tests and programs read, with the values of this run.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.knobs.iter().filter(|k| !k.variable.is_empty());
        let pairs = named.map(|k| (k.variable, self.text(k.name)));
        pairs.filter(|(_, value)| !value.is_empty())
    }
}

/// The command line, made from the table.
pub fn command() -> Command {
    let mut command = Command::new("cargo xtask")
        .bin_name("cargo xtask")
        .about("Long tests, measurements and packages. `cargo xtask TASK --help` shows the arguments of a task.")
        .disable_help_subcommand(true)
        .subcommand_value_name("TASK")
        .subcommand_help_heading("Tasks")
        .arg_required_else_help(true)
        .max_term_width(140);
    for task in TASKS {
        command = command.subcommand(subcommand(task));
    }
    command
}

fn subcommand(task: &Task) -> Command {
    let mut about = task.shows.replace('`', "");
    let mut after = format!("Example: {}", example(task, task.example));
    if !task.length.is_empty() {
        about = format!("{about} ({})", task.length);
        after = format!("{after} ({})", task.length);
    }
    if let Some((args, length)) = task.longer {
        after = format!("{after}\nLonger: {} ({length})", example(task, args));
    }
    if !task.needs.is_empty() {
        after = format!("{after}\nNeeds: {}", task.needs);
    }
    let command = Command::new(task.name)
        .about(about)
        .after_help(after)
        .max_term_width(140);
    command.args(task.knobs.iter().map(Knob::arg))
}

/// The command line of a task with these arguments.
pub fn example(task: &Task, args: &str) -> String {
    format!("cargo xtask {} {args}", task.name)
        .trim_end()
        .to_owned()
}

/// Runs the task that the command line names.
pub fn run(matches: &ArgMatches) -> Outcome {
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Failure("name a task: cargo xtask --help".to_owned()));
    };
    let task = TASKS.iter().find(|task| task.name == name);
    let task = task.ok_or_else(|| Failure(format!("there is no task `{name}`")))?;
    (task.run)(&Args::read(task.knobs, matches))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_takes_every_example_of_the_table() {
        command().debug_assert();
        for task in TASKS {
            let longer = task.longer.map(|(args, _)| args);
            for args in std::iter::once(task.example).chain(longer) {
                let line = example(task, args);
                let words = line.split(' ').skip(1);
                let taken = command().try_get_matches_from(words);
                assert!(taken.is_ok(), "{line}: {taken:?}");
            }
        }
    }

    #[test]
    fn names_of_tasks_are_unique() {
        for (at, task) in TASKS.iter().enumerate() {
            assert!(
                TASKS[..at].iter().all(|other| other.name != task.name),
                "{}",
                task.name
            );
        }
    }
}
