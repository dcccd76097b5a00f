//! `ron ha`: services whose log several nodes share.

use clap::{Args, Subcommand};
use ron_proto::Timestamp;
use ron_proto::status::{EngineDoc, LogNodeDoc};
use serde::Serialize;

use crate::fleet;
use crate::layout::Layout;
use crate::status::{self, Answer, Place, Reply, Services};
use crate::table::{Out, Table};

/// The service of whose nodes one writes for all.
const LEDGER: &str = "ron-ledger";
/// The services whose nodes have logs in a database.
const SHARING: [&str; 3] = [LEDGER, "svc-passport", "ron-kms"];
/// Transactions since the oldest one, from which the database has to be tended: half of what it can tell apart.
const OLD_TRANSACTION: u64 = 1 << 30;

/// Show the ledgers, issuers and key services of several hosts.
#[derive(Args)]
pub struct HaArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show which ledger writes and how far the others are behind, whether issuers and key services write, and what the database says
    /// of its standbys. Ends with code 1 when no ledger writes, an issuer or a key service does not, a node does not answer, or the
    /// database has no standby that writes wait for.
    Status(StatusArgs),
}

#[derive(Args)]
struct StatusArgs {
    #[command(flatten)]
    services: Services,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A node and what it has said.
#[derive(Serialize)]
struct NodeAnswer {
    /// Where it was asked.
    at: String,
    /// Empty when it did not answer.
    service: String,
    #[serde(flatten)]
    answer: NodeState,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NodeState {
    Log(Box<LogNodeDoc>),
    /// Its log is in files of its own.
    Files,
    Error(String),
}

impl NodeAnswer {
    fn log(&self) -> Option<&LogNodeDoc> {
        match &self.answer {
            NodeState::Log(log) => Some(log),
            NodeState::Files | NodeState::Error(_) => None,
        }
    }
}

/// Runs the command.
pub fn run(args: &HaArgs) -> Result<(), String> {
    let Command::Status(args) = &args.command;
    let found = ask(&args.services.places(&SHARING)?);
    if args.json {
        Out::json(&found)?;
    } else {
        print(&found);
    }
    let problems = problems(&found);
    if problems.is_empty() {
        return Ok(());
    }
    Err(problems.join("\n"))
}

/// Asks the nodes; but for services of this host that are in files where others have logs in a database.
fn ask(places: &[Place]) -> Vec<NodeAnswer> {
    let (mut shared, mut files) = (Vec::new(), Vec::new());
    for place in places {
        let mut found = answer(status::ask(place));
        // Also of one that does not answer. Its environment may have named a database.
        match place {
            Place::Host(layout, name) if found.log().is_none() && is_in_files(layout, name) => {
                (found.service, found.answer) = ((*name).to_owned(), NodeState::Files);
                files.push(found);
            }
            Place::Host(..) | Place::Url(_) => shared.push(found),
        }
    }
    if shared.is_empty() { files } else { shared }
}

/// Whether the configuration names no database; not of one that cannot be read.
fn is_in_files(layout: &Layout, name: &str) -> bool {
    fleet::load(layout, name, &[]).is_ok_and(|config| !fleet::names(&config, "log.url"))
}

fn answer(Answer { at, reply, .. }: Answer) -> NodeAnswer {
    let (service, answer) = match reply {
        Reply::Status(status) => {
            let files = NodeState::Files;
            let log = status
                .log
                .map_or(files, |log| NodeState::Log(Box::new(log)));
            (status.service, log)
        }
        Reply::Error(why) => (String::new(), NodeState::Error(why)),
    };
    NodeAnswer {
        at,
        service,
        answer,
    }
}

fn print(found: &[NodeAnswer]) {
    let mut nodes = Table::new(&[
        "service",
        "node",
        "role",
        "epoch",
        "entries",
        "behind",
        "active since",
    ]);
    for one in found {
        let Some(log) = one.log() else {
            continue;
        };
        let since = log.active_since_ms.map(|ms| Timestamp(ms).to_string());
        let role = if log.active {
            "active"
        } else if one.service == LEDGER {
            "standby"
        } else {
            "not active"
        };
        nodes.row([
            one.service.clone(),
            log.node.clone(),
            role.to_owned(),
            log.epoch.to_string(),
            log.entries.to_string(),
            log.behind.to_string(),
            since.unwrap_or_default(),
        ]);
    }
    if !nodes.rows.is_empty() {
        nodes.lines().iter().for_each(|line| println!("{line}"));
    }
    let Some(engine) = newest_engine(found) else {
        return;
    };
    println!();
    let mut servers = Table::new(&["database", "role", "behind bytes"]);
    servers.row([engine.server.clone(), "primary".to_owned(), String::new()]);
    for standby in &engine.standbys {
        let role = if standby.synchronous {
            "synchronous standby"
        } else {
            "asynchronous standby"
        };
        let behind = standby.behind_bytes.map(|bytes| bytes.to_string());
        servers.row([
            standby.name.clone(),
            role.to_owned(),
            behind.unwrap_or_default(),
        ]);
    }
    servers.lines().iter().for_each(|line| println!("{line}"));
    println!(
        "oldest transaction: {} of 2147483648 ago; partitions ahead: {}; seen {}",
        engine.oldest_transaction,
        engine.partitions_ahead,
        Timestamp(engine.seen_ms),
    );
}

fn newest_engine(found: &[NodeAnswer]) -> Option<&EngineDoc> {
    let engines = found.iter().filter_map(|one| one.log()?.engine.as_ref());
    engines.max_by_key(|engine| engine.seen_ms)
}

/// What an operator has to do something about.
fn problems(found: &[NodeAnswer]) -> Vec<String> {
    let mut problems = Vec::new();
    for one in found {
        let (at, service) = (&one.at, &one.service);
        match &one.answer {
            NodeState::Error(why) => problems.push(format!("{at}: {why}")),
            NodeState::Files => problems.push(format!(
                "{at}: {service} keeps its log in files of its own; docs/two-hosts.md says how nodes share one"
            )),
            // Each of the other services writes by itself.
            NodeState::Log(log) if !log.active && service != LEDGER => problems.push(format!(
                "{service} {}: it does not write its log, and its /readyz says why",
                log.node
            )),
            NodeState::Log(_) => {}
        }
    }
    let ledgers = found.iter().filter(|one| one.service == LEDGER);
    let logs: Vec<_> = ledgers.filter_map(NodeAnswer::log).collect();
    let writes = logs.iter().any(|log| log.active);
    // A node that is not asked here may be the one.
    let elsewhere = logs.iter().find_map(|log| {
        let holder = log.holder.as_ref()?;
        (!logs.iter().any(|other| other.node == *holder)).then_some(holder)
    });
    if !logs.is_empty() && !writes && elsewhere.is_none() {
        problems.push("no node writes: writes are refused until one has taken over".to_owned());
    }
    if let Some(engine) = newest_engine(found) {
        if !engine.standbys.iter().any(|standby| standby.synchronous) {
            problems.push(
                "the database has no standby that writes wait for: they are refused until it has one, \
                 unless its storage is replicated (log.durability = \"storage\")"
                    .to_owned(),
            );
        }
        if engine.oldest_transaction > OLD_TRANSACTION {
            problems.push(format!(
                "the database's oldest transaction is {} ago: have VACUUM FREEZE run, before the database stops",
                engine.oldest_transaction
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use ron_proto::status::EngineStandbyDoc;

    use super::*;

    fn node(name: &str, active: bool, holder: Option<&str>, synchronous: bool) -> NodeAnswer {
        let standby = EngineStandbyDoc {
            name: "s1".to_owned(),
            synchronous,
            behind_bytes: None,
        };
        let log = LogNodeDoc {
            node: name.to_owned(),
            active,
            epoch: 2,
            holder: holder.map(str::to_owned),
            entries: 5,
            behind: 0,
            active_since_ms: active.then_some(7),
            engine: Some(EngineDoc {
                seen_ms: 9,
                server: "10.0.0.1:5432".to_owned(),
                standbys: vec![standby],
                oldest_transaction: 12,
                partitions_ahead: 1,
            }),
        };
        NodeAnswer {
            at: name.to_owned(),
            service: LEDGER.to_owned(),
            answer: NodeState::Log(Box::new(log)),
        }
    }

    fn of(service: &str, node: NodeAnswer) -> NodeAnswer {
        NodeAnswer {
            service: service.to_owned(),
            ..node
        }
    }

    #[test]
    fn problems_are_those_that_an_operator_can_repair() {
        let check = |found: &[NodeAnswer], wanted: &[&str]| {
            let problems = problems(found);
            assert_eq!(problems.len(), wanted.len(), "{problems:?}");
            for (problem, start) in problems.iter().zip(wanted) {
                assert!(problem.starts_with(start), "{problem}");
            }
        };
        check(
            &[
                node("a", true, Some("a"), true),
                node("b", false, Some("a"), true),
            ],
            &[],
        );
        check(&[node("b", false, Some("a"), true)], &[]);
        check(
            &[
                node("a", false, None, true),
                node("b", false, Some("a"), true),
            ],
            &["no node writes"],
        );
        check(
            &[node("a", true, Some("a"), false)],
            &["the database has no standby"],
        );
        check(
            &[
                node("a", true, Some("a"), true),
                of("svc-passport", node("b", false, None, true)),
                of("ron-kms", node("c", true, None, true)),
                of("ron-kms", node("d", false, None, true)),
            ],
            &[
                "svc-passport b: it does not write",
                "ron-kms d: it does not write",
            ],
        );
        // Without a ledger there is none to write.
        check(&[of("ron-kms", node("c", true, Some("c"), true))], &[]);
        let files = NodeAnswer {
            at: "http://b".to_owned(),
            service: "ron-kms".to_owned(),
            answer: NodeState::Files,
        };
        check(&[files], &["http://b: ron-kms keeps its log in files"]);
        let gone = NodeAnswer {
            at: "http://c".to_owned(),
            service: String::new(),
            answer: NodeState::Error("not reached".to_owned()),
        };
        check(
            &[node("a", true, Some("a"), true), gone],
            &["http://c: not reached"],
        );
    }

    #[test]
    fn a_host_is_asked_for_what_it_has() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(Some(dir.path())).expect("its layout");
        let services = Services {
            data_dir: Some(dir.path().to_owned()),
            health: Vec::new(),
        };
        let check = |wanted: &[(&str, bool)]| {
            let found = ask(&services.places(&SHARING).unwrap_or_default());
            let found: Vec<_> = found
                .iter()
                .map(|one| (one.at.as_str(), matches!(one.answer, NodeState::Files)))
                .collect();
            assert_eq!(found, wanted);
        };
        let configure = |name: &str, text: &str| {
            let file = layout.config(name);
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
            std::fs::write(file, format!("insecure_loopback = true\n{text}")).expect("a file");
            fleet::load(&layout, name, &[]).expect("it is accepted");
        };
        check(&[]);
        configure("ron-kms", "");
        check(&[("ron-kms", true)]);
        // It does not answer, and that is all that is wrong.
        let url =
            "[log]\nurl = \"postgresql://ron@10.0.0.9/ron\"\nnode = \"http://10.0.0.1:7460\"\n";
        configure("ron-ledger", url);
        check(&[("ron-ledger", false)]);
    }
}
