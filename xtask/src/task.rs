//! What a task is: its row in the table, the arguments that it takes, and how their values are found.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::files;
use crate::long;
use crate::tasks::tasks;

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
    /// A step of scripts/test.sh or a part of one, by its name.
    Step(&'static str),
    /// Tests that take too long for the test command.
    Long,
    /// Speed on a given machine; proves nothing.
    Measurement,
    /// Tasks that write files to ship or to commit.
    Files,
}

/// What a task does.
#[derive(Clone, Copy)]
pub enum Run {
    /// Tests of a package, with the arguments as variables.
    Crate(&'static str),
    /// Tests of `ron-tests`, which start the programs of the workspace.
    Fleet(&'static str),
    Steps(fn(&Args) -> Outcome),
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
    /// One argument a line, see [`Knob::read`].
    pub args: &'static [&'static str],
    pub run: Run,
}

/// What a row of the table leaves out.
pub const REST: Task = Task {
    name: "",
    group: Group::Long,
    shows: "",
    length: "",
    needs: "",
    example: "",
    longer: None,
    args: &[],
    run: Run::Crate(""),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Position,
    Rest,
    Opt,
    Switch,
}

/// An argument of a task.
#[derive(Clone, Copy)]
struct Knob {
    name: &'static str,
    shape: Shape,
    default: &'static str,
    /// Read when the argument is absent, and set for the commands of the task. Empty for none.
    variable: &'static str,
    about: &'static str,
}

impl Knob {
    /// Reads `WHAT [VARIABLE] : ABOUT`, where WHAT is `name=default` for a position (filled in their order), `name...` for all
    /// further positions, `--name=default` for an option, or `--name` for a switch.
    fn read(line: &'static str) -> Self {
        let (what, about) = line.split_once(" : ").expect("`WHAT [VARIABLE] : ABOUT`");
        let is_variable = |word: &str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let (what, variable) = match what.rsplit_once(' ') {
            Some((what, last)) if is_variable(last) => (what, last),
            _ => (what, ""),
        };
        let (name, default) = what.split_once('=').unwrap_or((what, ""));
        let (name, shape) = match (name.strip_prefix("--"), name.strip_suffix("...")) {
            (Some(name), _) if what.contains('=') => (name, Shape::Opt),
            (Some(name), _) => (name, Shape::Switch),
            (None, Some(name)) => (name, Shape::Rest),
            (None, None) => (name, Shape::Position),
        };
        Self {
            name,
            shape,
            default,
            variable,
            about,
        }
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
        let named = Some(self.variable).filter(|name| !name.is_empty());
        let variable = named.and_then(|name| std::env::var(name).ok());
        let variable = variable.filter(|value| !value.is_empty());
        if self.shape == Shape::Switch {
            let is_set = matches.get_flag(self.name) || variable.is_some();
            return is_set.then(|| "1".to_owned()).into_iter().collect();
        }
        if let Some(values) = matches.get_many::<String>(self.name) {
            return values.cloned().collect();
        }
        let default = Some(self.default).filter(|text| !text.is_empty());
        let other = variable.or(default.map(str::to_owned));
        other.into_iter().collect()
    }
}

/// The values of a task's arguments.
pub struct Args(Vec<(Knob, Vec<String>)>);

impl Args {
    fn read(task: &Task, matches: &ArgMatches) -> Self {
        let knobs = task.args.iter().map(|line| Knob::read(line));
        Self(knobs.map(|knob| (knob, knob.values(matches))).collect())
    }

    fn of(&self, name: &str) -> &(Knob, Vec<String>) {
        let found = self.0.iter().find(|(knob, _)| knob.name == name);
        found.unwrap_or_else(|| panic!("the table has no argument `{name}` for this task"))
    }

    pub fn many(&self, name: &str) -> &[String] {
        &self.of(name).1
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
        if self.of(name).0.default == text {
            return Ok(files::root().join(text));
        }
        std::path::absolute(Path::new(text))
            .map_err(|e| Failure(format!("`{name}` is a path, not `{text}`: {e}")))
    }

    /// The environment variables that tests and programs read, with the values of this run.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.0.iter().filter(|(knob, _)| !knob.variable.is_empty());
        named.filter_map(|(knob, values)| Some((knob.variable, values.first()?.as_str())))
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
    for task in tasks() {
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
    command.args(task.args.iter().map(|line| Knob::read(line).arg()))
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
    let task = tasks().find(|task| task.name == name);
    let task = task.ok_or_else(|| Failure(format!("there is no task `{name}`")))?;
    let args = Args::read(task, matches);
    match task.run {
        Run::Crate(tests) => long::crate_tests(&args, tests),
        Run::Fleet(tests) => long::fleet_tests(&args, tests),
        Run::Steps(steps) => steps(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_takes_every_example_of_the_table() {
        command().debug_assert();
        for task in tasks() {
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
        for (at, task) in tasks().enumerate() {
            assert!(
                tasks().take(at).all(|other| other.name != task.name),
                "{}",
                task.name
            );
        }
    }
}
