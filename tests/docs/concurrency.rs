//! `docs/concurrency/`: tables and diagrams of each service from its topology, its configuration keys and its metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ron_kernel::metrics::Family;
use ron_kernel::{Count, LockSpec, Stage, ThreadSpec, Topology};
use ron_service::{Kind, Table, topology_faults};

use crate::running::{Described, described};
use crate::{SERVICES, regions};

/// The generated regions that each page must have, once.
const PARTS: [&str; 7] = [
    "topology",
    "threads",
    "queues",
    "locks",
    "deadlines",
    "shutdown",
    "metrics",
];

#[test]
fn concurrency_pages_are_what_the_code_says() {
    for (service, described) in SERVICES.into_iter().zip(described()) {
        let topology = service.topology;
        let faults = topology_faults(topology);
        assert!(
            faults.is_empty(),
            "{}: {}",
            topology.service,
            faults.join("; ")
        );
        let name = format!("concurrency/{}.md", service.name());
        let mut found = regions::check(&name, "generated", |part| match part {
            "topology" => Some(flowchart(topology)),
            "threads" => Some(threads(topology)),
            "queues" => Some(queues(topology)),
            "locks" => Some(locks(topology)),
            "deadlines" => Some(deadlines(service.table)),
            "shutdown" => Some(shutdown(topology)),
            "metrics" => Some(metrics(&own(described), described.service)),
            _ => None,
        });
        found.sort();
        let mut wanted = PARTS;
        wanted.sort_unstable();
        assert_eq!(found, wanted, "docs/{name}: each part once");
    }
    regions::check("concurrency/README.md", "generated", |part| {
        (part == "metrics").then(|| metrics(&shared(), "<service>"))
    });
}

/// ron-service repeats the rows of ron-auth, because neither may depend on the other.
#[test]
fn every_service_lists_the_locks_of_the_authorizer() {
    let shown = |row: &LockSpec| (row.name, row.rank, row.guards);
    for service in SERVICES {
        let topology = service.topology;
        for lock in [
            ron_auth::CACHE_LOCK,
            ron_auth::METER_LOCK,
            ron_auth::NOTE_LOCK,
        ] {
            assert!(
                topology.locks.iter().any(|row| shown(row) == shown(&lock)),
                "{} has no row that equals {lock:?}",
                topology.service
            );
        }
    }
}

/// The number of threads of a row: 1, or the configuration key of the pool.
fn count(row: &ThreadSpec) -> String {
    match row.count {
        Count::One => "1".to_owned(),
        Count::Pool(key) => format!("`{key}`"),
    }
}

fn threads(topology: &Topology) -> String {
    let mut out = String::from(
        "| thread | number | stage | ends the process | what it does |\n|---|---|---|---|---|\n",
    );
    for row in topology.threads {
        let critical = if row.critical { "yes" } else { "" };
        let stage = row.stage.as_str();
        let _ = writeln!(
            out,
            "| `{}` | {} | {stage} | {critical} | {} |",
            row.name,
            count(row),
            row.job
        );
    }
    out
}

fn queues(topology: &Topology) -> String {
    let mut out = String::from(
        "| queue | capacity | when full | from | to | the caller sees |\n|---|--:|---|---|---|---|\n",
    );
    for row in topology.queues {
        let full = row.overflow.as_str();
        let _ = writeln!(
            out,
            "| `{}` | {} | {full} | {} | {} | {} |",
            row.name, row.capacity, row.from, row.to, row.when_full
        );
    }
    out
}

fn locks(topology: &Topology) -> String {
    let mut rows: Vec<_> = topology.locks.iter().collect();
    rows.sort_by_key(|row| row.rank);
    let mut out = String::from("| rank | lock | guards |\n|--:|---|---|\n");
    for row in rows {
        let _ = writeln!(out, "| {} | `{}` | {} |", row.rank, row.name, row.guards);
    }
    out
}

/// A row per configuration key of the kind duration.
fn deadlines(table: &Table) -> String {
    let mut out = String::from("| key | default | range | meaning |\n|---|---|---|---|\n");
    let times = table.rows();
    for key in times
        .iter()
        .filter(|key| matches!(key.kind, Kind::Duration))
    {
        let range = match (key.min, key.max) {
            ("", "") => String::new(),
            (min, max) => format!("{min} to {max}"),
        };
        let default = match key.default {
            "" => String::new(),
            set => format!("`{set}`"),
        };
        let meaning = key.meaning.replace('|', "\\|");
        let _ = writeln!(out, "| `{}` | {default} | {range} | {meaning} |", key.name);
    }
    out
}

fn metrics(families: &[Family], service: &str) -> String {
    let mut out = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    let prefix = format!("{}_", service.replace('-', "_"));
    for family in families {
        let name = &family.name;
        let shown = match service {
            "<service>" => name.clone(),
            _ => name.strip_prefix(&prefix).unwrap_or(name).to_owned(),
        };
        let labels = family.labels.join(", ");
        let _ = writeln!(
            out,
            "| `{shown}` | {} | {labels} | {} |",
            family.kind,
            family.help.replace('|', "\\|")
        );
    }
    out
}

/// Families by their name without the service's prefix, each with the number of services that have it.
fn by_name() -> BTreeMap<String, (usize, Family)> {
    let mut all: BTreeMap<String, (usize, Family)> = BTreeMap::new();
    for service in described() {
        for family in bare(service) {
            all.entry(family.name.clone()).or_insert((0, family)).0 += 1;
        }
    }
    all
}

fn bare(service: &Described) -> Vec<Family> {
    let prefix = format!("{}_", service.service.replace('-', "_"));
    // `process_*` metrics have no prefix.
    let name = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
    let strip = |family: &Family| Family {
        name: name(&family.name),
        ..family.clone()
    };
    service.metrics.iter().map(strip).collect()
}

/// Families that every service has.
fn shared() -> Vec<Family> {
    let all = by_name().into_values();
    let everywhere = all.filter(|(times, _)| *times == SERVICES.len());
    everywhere.map(|(_, family)| family).collect()
}

/// Families of one service that not every service has.
fn own(service: &Described) -> Vec<Family> {
    let all = by_name();
    let mut own = bare(service);
    own.retain(|family| all[&family.name].0 < SERVICES.len());
    own
}

/// An id that Mermaid takes.
fn id(name: &str) -> String {
    let word = name.trim_end_matches('-');
    word.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

fn label(row: &ThreadSpec) -> String {
    match row.count {
        Count::One => row.name.to_owned(),
        Count::Pool(key) => format!("{}N<br/>{key}", row.name),
    }
}

/// Threads by stage, queues between them.
fn flowchart(topology: &Topology) -> String {
    let mut out = String::from("```mermaid\nflowchart LR\n");
    for stage in Stage::ALL {
        let mut rows = topology.threads.iter().filter(|row| row.stage == stage);
        let Some(first) = rows.next() else { continue };
        let _ = writeln!(out, "  subgraph {}", stage.as_str());
        for row in std::iter::once(first).chain(rows) {
            let _ = writeln!(out, "    {}[\"{}\"]", id(row.name), label(row));
        }
        out.push_str("  end\n");
    }
    let mut outside = Vec::new();
    for queue in topology.queues {
        for from in ends(topology, queue.name, queue.from, &mut outside) {
            for to in ends(topology, queue.name, queue.to, &mut outside) {
                let _ = writeln!(
                    out,
                    "  {from} -->|\"{} {}\"| {to}",
                    queue.name, queue.capacity
                );
            }
        }
    }
    outside.sort();
    outside.dedup();
    for name in outside {
        let _ = writeln!(out, "  {}([\"{name}\"])", id(&name));
    }
    out.push_str("```\n");
    out
}

/// The ends of a queue as node ids: rows of the thread table, or callers from outside the service.
fn ends(topology: &Topology, queue: &str, text: &str, outside: &mut Vec<String>) -> Vec<String> {
    let bare = text.split(" (").next().unwrap();
    let one = |word: &str| {
        let word = match word.trim().trim_end_matches('*') {
            "API" | "API workers" | "http workers" | "request handlers" => "-http-",
            "ops workers" => "-ops-",
            word => word,
        };
        let wanted = word.trim_matches('-');
        let same = |row: &&ThreadSpec| {
            let name = row.name.trim_end_matches('-');
            name == wanted || name.split_once('-').is_some_and(|(_, rest)| rest == wanted)
        };
        match topology.threads.iter().find(same) {
            Some(row) => id(row.name),
            None if ["embedders", "all threads"].contains(&word) => {
                outside.push(word.to_owned());
                id(word)
            }
            None => panic!(
                "{}: queue {queue} names `{word}`, which is no row of the thread table",
                topology.service
            ),
        }
    };
    bare.split(',').map(one).collect()
}

/// The drain: stage after stage, each joined before the next is stopped.
fn shutdown(topology: &Topology) -> String {
    let of = |stage: Stage| -> Vec<String> {
        let rows = topology.threads.iter().filter(|row| row.stage == stage);
        rows.map(|row| row.name.to_owned()).collect()
    };
    let mut table = String::from("| step | stopped, then joined |\n|--:|---|\n");
    let mut picture = String::from("```mermaid\nsequenceDiagram\n  participant S as supervisor\n");
    let stages: Vec<_> = Stage::ALL
        .into_iter()
        .filter(|s| !of(*s).is_empty())
        .collect();
    for stage in &stages {
        let _ = writeln!(
            picture,
            "  participant {0} as {0}: {1}",
            stage.as_str(),
            of(*stage).join(", ")
        );
    }
    picture.push_str(
        "  Note over S: readiness off\n  S->>front: refuse new requests (503, Retry-After)\n",
    );
    picture.push_str(
        "  Note over front: requests in flight are answered, for up to 0.7 of drain_deadline\n",
    );
    for (n, stage) in stages.iter().enumerate() {
        let name = stage.as_str();
        let names: Vec<_> = of(*stage).iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(table, "| {} | {name}: {} |", n + 1, names.join(", "));
        let _ = writeln!(picture, "  S->>{name}: stop");
        let _ = writeln!(picture, "  {name}-->>S: joined, or named as stragglers");
    }
    picture.push_str("  Note over S: hooks (last checkpoint, lock of the data directory), exit 0, or 3 with stragglers\n```\n");
    format!("{table}\n{picture}")
}

/// The tables of errors are hand-written: the codes and metrics they name must exist.
#[test]
fn codes_and_metrics_of_the_error_tables_exist() {
    let sources = sources(&ron_tests::workspace().join("crates"));
    let mut lost = Vec::new();
    let mut seen = 0;
    for service in described() {
        let name = format!("docs/concurrency/{}.md", service.service);
        let page = std::fs::read_to_string(ron_tests::workspace().join(&name)).unwrap();
        let (_, rest) = page.split_once("## Errors of overload and time").unwrap();
        let table = rest.split("\n## ").next().unwrap();
        let metrics: Vec<String> = bare(service).into_iter().map(|f| f.name).collect();
        for row in table.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let spans = |cell: &str| -> Vec<String> {
                cell.split('`')
                    .skip(1)
                    .step_by(2)
                    .map(str::to_owned)
                    .collect()
            };
            for code in spans(cells[0]) {
                seen += 1;
                if !sources.contains(&format!("\"{code}\"")) {
                    lost.push(format!("{name}: code {code}"));
                }
            }
            for metric in spans(cells.last().unwrap()) {
                let bare = metric.split('{').next().unwrap().to_owned();
                let told = bare.contains('_') && !bare.starts_with('/');
                if told && !metrics.contains(&bare) {
                    lost.push(format!("{name}: metric {metric}"));
                }
            }
        }
    }
    assert!(seen > 20, "only {seen} codes");
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

/// All Rust text under a directory.
fn sources(dir: &std::path::Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "node_modules") {
                all.push_str(&sources(&path));
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            all.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    all
}
