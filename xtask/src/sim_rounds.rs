//! Long runs of the worlds under the simulator: rounds, each of seeds behind those of the round before, until there were so many
//! operations. What all rounds did is a line for each world in a file, so that a later run goes on after them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::cmd::Cmd;
use crate::files;
use crate::loom::{all_names, checked};
use crate::sim::{Totals, WORLD};
use crate::task::{Args, Failure, Outcome};

/// The first seeds of two rounds are so far apart: no world has more seeds in a round.
const APART: u64 = 1_000_000;
/// Longest run of a world, in seconds.
const WORLD_SECONDS: &str = "7200";

pub fn sim_rounds(args: &Args) -> Outcome {
    let wanted: u64 = args.text("total").parse().map_err(|_| {
        Failure("how many operations is a number: cargo xtask sim-rounds 10000000".to_owned())
    })?;
    let record = match args.text("record") {
        "" => files::target().join("sim-rounds.txt"),
        _ => args.path("record")?,
    };
    let program = WORLD.build(args, "sim", &all_names()?)?;
    let worlds = worlds(&program, args.text("models"))?;
    let start = Instant::now();
    let mut rounds = Rounds::read(&record)?;
    let before = rounds.operations();
    while rounds.operations() < wanted {
        let first = rounds.next_first();
        let lines = round(args, &program, &worlds, first)?;
        rounds.add(&record, first, &lines)?;
        let (done, seconds) = (rounds.operations(), start.elapsed().as_secs());
        println!(
            "== sim-rounds: {done} operations of {wanted}, {} in {seconds} s",
            done - before
        );
    }
    rounds.print();
    Ok(())
}

/// The names of the worlds, and of the program's other tests, whose path contains `filter`.
fn worlds(program: &Path, filter: &str) -> Outcome<Vec<String>> {
    let list = Cmd::new(program)
        .args(["--list", "--format", "terse"])
        .arg(filter);
    let list = list.output()?;
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Failure(format!("no world has `{filter}` in its path")));
    }
    Ok(names)
}

/// Runs each world under the seeds from `first` on; a line for each. Each has a process of its own, because the threads of
/// processes that were killed in it stay until it ends.
fn round(args: &Args, program: &Path, worlds: &[String], first: u64) -> Outcome<Vec<String>> {
    let file = files::target().join("sim-round");
    files::write(&file, "")?;
    let next = AtomicUsize::new(0);
    let run_all = || -> Outcome {
        while let Some(world) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            checked(args, program, WORLD_SECONDS)
                .env("RON_SIM_FIRST", first.to_string())
                .env("RON_SIM_HASHES", file.display().to_string())
                .args(["--exact", world])
                .run()?;
        }
        Ok(())
    };
    // Two at a time, each of which takes one core.
    let ended = thread::scope(|scope| {
        let other = scope.spawn(run_all);
        [run_all(), other.join().expect("it does not panic")]
    });
    ended.into_iter().collect::<Outcome>()?;
    Ok(files::read(&file)?.lines().map(str::to_owned).collect())
}

/// What each world did in all rounds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rounds(BTreeMap<String, World>);

/// What one world did in all rounds.
#[derive(Debug, Default, PartialEq, Eq)]
struct World {
    /// The first seed of its last round.
    first: u64,
    totals: Totals,
}

impl Rounds {
    fn read(record: &Path) -> Outcome<Self> {
        if !record.exists() {
            return Ok(Self::default());
        }
        let text = files::read(record)?;
        let mut rounds = Self::default();
        for line in text.lines() {
            let read = line.split_once(' ').and_then(|(first, rest)| {
                rounds.count(first.parse().ok()?, rest);
                Some(())
            });
            read.ok_or_else(|| Failure(format!("{} is not of this task", record.display())))?;
        }
        Ok(rounds)
    }

    /// Adds the line of a world in a round.
    fn count(&mut self, first: u64, line: &str) {
        let name = line.split(' ').next().unwrap_or_default();
        let world = self.0.entry(name.to_owned()).or_default();
        world.first = world.first.max(first);
        world.totals.add(line);
    }

    fn next_first(&self) -> u64 {
        let last = self.0.values().map(|world| world.first).max();
        last.map_or(0, |first| first + APART)
    }

    fn add(&mut self, record: &Path, first: u64, lines: &[String]) -> Outcome {
        for line in lines {
            self.count(first, line);
        }
        files::write(record, &self.to_string())
    }

    fn operations(&self) -> u64 {
        let all = self.0.values().map(|world| world.totals.operations);
        all.sum()
    }

    fn print(&self) {
        let mut all = Totals::default();
        for (name, World { first, totals }) in &self.0 {
            let (operations, switches) = (totals.operations, totals.switches);
            let rounds = first / APART + 1;
            println!("  {operations:>9}  {switches:>11} switches, {rounds} rounds  {name}");
            all.merge(totals);
        }
        all.print();
    }
}

/// A line for each world, as one of a round: the hash and the number of points, which do not add up, are not in it.
impl fmt::Display for Rounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, World { first, totals }) in &self.0 {
            writeln!(out, "{first} {name} - - {totals}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_add_up_in_one_line_for_each_world() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.next_first(), 0);
        rounds.count(0, "a::b 00ff 10 3 7 a_cut=2");
        rounds.count(0, "a::c 00ff 10 3 1 ");
        rounds.count(1_000_000, "a::b 00ff 10 4 5 a_cut=3,a_kill=1");
        assert_eq!((rounds.next_first(), rounds.operations()), (2_000_000, 13));
        let text = "1000000 a::b - - 7 12 a_cut=5,a_kill=1\n0 a::c - - 3 1 \n";
        assert_eq!(rounds.to_string(), text);
        let dir = tempfile::tempdir().expect("a directory");
        let record = dir.path().join("record");
        files::write(&record, text).expect("written");
        assert_eq!(Rounds::read(&record).ok(), Some(rounds));
        files::write(&record, "a::b 00ff").expect("written");
        assert!(Rounds::read(&record).is_err());
    }
}
