//! What `ron ledger migrate` and its siblings have in common: arguments, progress and reports. A service goes from files to
//! PostgreSQL, or back.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use ron_kernel::{Clock as _, SystemClock};
use ron_service::config::{Setting as _, Value};
use ron_service::log_move::{MoveError, Show, Step};
use ron_service::records::{Engine, EngineDurability};
use ron_tlog::append::Migrated;

use crate::check::{bar, show};

/// Where a service is that is in no database.
const FILES: &str = "files";

#[derive(Args)]
pub struct MigrateArgs {
    /// Where it goes: a database, as `log.url` names it (postgresql://...), or `files`.
    #[arg(long, value_name = "URL|files")]
    pub to: String,
    /// With `--to files`: the database that it is in.
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    /// Schema in the database, as `log.schema`; the default of that key when absent.
    #[arg(long)]
    pub schema: Option<String>,
    /// What makes an entry durable beyond one host, as `log.durability`: standby, quorum or storage.
    #[arg(long, default_value = "standby", value_parser = durability)]
    pub durability: EngineDurability,
    /// Go on with a migration that was interrupted. What was copied is compared again.
    #[arg(long)]
    pub resume: bool,
    /// Copy the log as far as it is signed by now to a schema of its own, report time and rate, and
    /// remove the copy. The service goes on as it is.
    #[arg(long, conflicts_with_all = ["resume", "from"])]
    pub rehearse: bool,
}

fn durability(word: &str) -> Result<EngineDurability, String> {
    EngineDurability::from_value(&Value::Text(word.to_owned()))
}

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    There,
    Rehearsal,
    Back,
}

/// What a service moves, by [`MigrateArgs`].
pub struct Order<'a> {
    pub way: Way,
    pub is_resumed: bool,
    pub engine: &'a Engine,
    /// How nodes on other hosts are told of the data directory.
    pub place: &'a str,
}

/// A service that can be moved.
pub trait Moves {
    /// What it is called in messages: `ledger`.
    const NAME: &'static str;
    /// Default of `log.schema`.
    const SCHEMA: &'static str;

    /// The data directory.
    fn data(&self) -> &Path;

    fn carry_out(&self, order: &Order<'_>, show: Show<'_>) -> Result<Migrated, MoveError>;

    /// What the operator does after the move to the engine: the keys to set.
    fn after_there(&self, engine: &Engine) -> String;

    /// What the operator does after the move to files.
    fn after_back(&self) -> String;
}

impl MigrateArgs {
    pub fn is_back(&self) -> bool {
        self.to == FILES
    }

    fn way(&self) -> Way {
        match (self.is_back(), self.rehearse) {
            (true, _) => Way::Back,
            (false, true) => Way::Rehearsal,
            (false, false) => Way::There,
        }
    }

    fn engine<M: Moves>(&self) -> Result<Engine, String> {
        let url = match &self.from {
            Some(_) if !self.is_back() => return Err("--from goes with --to files".to_owned()),
            Some(from) => from,
            None if self.is_back() => {
                let name = M::NAME;
                return Err(format!("say with --from which database the {name} is in"));
            }
            None => &self.to,
        };
        let schema = self.schema.clone();
        Ok(Engine {
            url: url.clone(),
            schema: schema.unwrap_or_else(|| M::SCHEMA.to_owned()),
            durability: self.durability,
        })
    }
}

/// Moves a service, and reports that.
pub fn run<M: Moves>(args: &MigrateArgs, service: &M) -> Result<(), String> {
    let engine = args.engine::<M>()?;
    let place = place_of(service.data())?;
    let order = Order {
        way: args.way(),
        is_resumed: args.resume,
        engine: &engine,
        place: &place,
    };
    let (name, progress) = (M::NAME, bar(M::NAME));
    let mut step = |step| match step {
        Step::Entries(done, of) => show(&progress, done, of),
        Step::Stop(by) => {
            let stop = format!("all but the end is copied; stop the {name} now ({by})");
            let then = "The command goes on when it has stopped; new entries are copied until then";
            progress.suspend(|| eprintln!("{stop}. {then}"));
        }
        Step::Wait(why) => progress.suspend(|| eprintln!("{why}; the command goes on then")),
    };
    let begun = SystemClock.now();
    let moved = service.carry_out(&order, &mut step);
    progress.finish_and_clear();
    let moved = moved.map_err(|e| failed::<M>(&e.to_string(), order.way))?;
    let took = SystemClock.now().duration_since(begun);
    println!("{}", report(service, &order, &moved, took));
    Ok(())
}

/// A data directory, as nodes on other hosts name it.
fn place_of(data: &Path) -> Result<String, String> {
    let path = data.canonicalize();
    let path = path.map_err(|e| format!("{}: {e}", data.display()))?;
    let host = rustix::system::uname();
    let place = format!("{}:{}", host.nodename().to_string_lossy(), path.display());
    Ok(place.replace(char::is_control, "?"))
}

fn failed<M: Moves>(why: &str, way: Way) -> String {
    let name = M::NAME;
    let hint = if cfg!(not(feature = "postgres")) {
        "use the program of the packages, or build it with --features postgres".to_owned()
    } else if way == Way::Rehearsal {
        "nothing was changed; the next rehearsal removes what this one has left".to_owned()
    } else {
        format!(
            "nothing is lost: after an interruption run the command again with --resume; until then a refused start says where the {name} is"
        )
    };
    format!("migrate: {why}\nhint: {hint}")
}

fn report<M: Moves>(service: &M, order: &Order<'_>, moved: &Migrated, took: Duration) -> String {
    let root = ron_proto::b64::std(&moved.root);
    let (size, sent, mib) = (
        moved.size,
        moved.sent,
        moved.bytes as f64 / f64::from(1 << 20),
    );
    let data = service.data().display();
    match order.way {
        Way::Back => format!(
            "moved: {size} leaves, root {root}, are in files in {data}\n{}",
            service.after_back()
        ),
        Way::Rehearsal => {
            let seconds = took.as_secs_f64().max(0.001);
            format!(
                "rehearsed: {sent} leaves ({mib:.1} MiB), root {root}, were copied and read back in {seconds:.1} s: {:.0} a second; nothing of it is left in the database",
                sent as f64 / seconds
            )
        }
        Way::There => format!(
            "moved: {size} leaves, root {root}; {sent} of them ({mib:.1} MiB) were copied now\nthe log in {data} is this node's copy from now on. {}",
            service.after_there(order.engine)
        ),
    }
}

/// The table `log` of a configuration.
pub fn log_table(engine: &Engine) -> String {
    format!(
        "[log]\nurl = \"{}\"\nschema = \"{}\"\ndurability = \"{}\"",
        engine.url,
        engine.schema,
        engine.durability.as_str()
    )
}

#[cfg(test)]
pub(crate) use tests::refuses_a_database_that_it_cannot_use;

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of a move to a database.
    fn there() -> MigrateArgs {
        MigrateArgs {
            to: "postgresql://ron:secret@10.0.0.11/ron".to_owned(),
            from: None,
            schema: None,
            durability: EngineDurability::Standby,
            resume: false,
            rehearse: false,
        }
    }

    /// Each service refuses a password in the URL, and a program that has no database, before it looks at anything.
    pub(crate) fn refuses_a_database_that_it_cannot_use<M: Moves>(service: &M) {
        let refused = run(&there(), service).expect_err("the database cannot be used");
        let (why, hint) = if cfg!(feature = "postgres") {
            ("must not have a password", "hint: nothing is lost")
        } else {
            ("feature `postgres`", "hint: use the program")
        };
        assert!(
            refused.contains(why) && refused.contains(hint) && !refused.contains("secret"),
            "{refused}"
        );
    }
}
