//! The leaves of a request in the audit log of ron-kms: what was signed, wrapped or changed for it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ron_files::OsDisk;
use ron_kms::Leaf;
use ron_proto::Timestamp;
use ron_tlog::append::LeafFiles;
use serde_json::{Map, Value};

use super::Line;
use crate::check::{bar, show};
use crate::layout::Layout;

/// How far leaves may lie from the lines of their request: clocks of hosts differ, and a line may be older than its request's end.
const MARGIN_MS: u64 = 60_000;

/// The audit log of a data directory, and the earlier ones that restores left beside it.
#[derive(Default)]
pub(super) struct AuditLogs(Vec<(PathBuf, LeafFiles<'static>)>);

impl AuditLogs {
    pub(super) fn of(layout: &Layout) -> Result<Self, String> {
        let home = layout.data("ron-kms");
        let mut logs = Vec::new();
        for dir in directories(&home)? {
            let files = LeafFiles::open(&OsDisk, &dir);
            let files = files.map_err(|why| format!("the audit log {}: {why}", dir.display()))?;
            logs.extend(files.map(|files| (dir, files)));
        }
        Ok(Self(logs))
    }

    /// What was read, for a message.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let name = |(dir, _): &(PathBuf, LeafFiles<'_>)| format!("the audit log {}", dir.display());
        self.0.iter().map(name)
    }

    /// The leaves with one of the ids. Where log lines of the request were found, the leaves of that time are read, otherwise all.
    pub(super) fn find(&self, ids: &BTreeSet<String>, lines: &[Line]) -> Result<Vec<Line>, String> {
        let member = |id: &String| format!("\"request_id\":\"{id}\"");
        let wanted = Wanted {
            members: ids.iter().map(member).collect(),
            time: time_of(lines),
        };
        let mut found = Vec::new();
        for (dir, files) in &self.0 {
            let bar = bar("audit log");
            let leaves = wanted.search(files, &mut |done, total| show(&bar, done, total));
            bar.finish_and_clear();
            let leaves = leaves.map_err(|why| {
                let dir = dir.display();
                format!("the audit log {dir}: {why}; check it with `ron audit verify`")
            })?;
            found.extend(leaves);
        }
        Ok(found)
    }
}

/// Directories of logs: `audit`, and `audit.N` of the time before a restore.
fn directories(home: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |why: io::Error| format!("{} cannot be read: {why}", home.display());
    let entries = match fs::read_dir(home) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_log = |name: &str| match name.strip_prefix("audit") {
            Some("") => true,
            Some(rest) => rest
                .strip_prefix('.')
                .is_some_and(|n| n.parse::<u32>().is_ok()),
            None => false,
        };
        if name.is_some_and(is_log) && path.is_dir() {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// The time of log lines, in Unix milliseconds.
fn time_of(lines: &[Line]) -> Option<(u64, u64)> {
    let times = lines.iter().filter_map(|line| line.at.parse().ok());
    let times: Vec<u64> = times.map(|at: Timestamp| at.0).collect();
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    Some((first.saturating_sub(MARGIN_MS), last + MARGIN_MS))
}

struct Wanted {
    /// The member of a leaf that has one of the ids.
    members: Vec<String>,
    time: Option<(u64, u64)>,
}

impl Wanted {
    /// The leaves of a log, in its order.
    fn search(
        &self,
        files: &LeafFiles<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<Line>, String> {
        let total = files.segments().len() as u64;
        let mut found = Vec::new();
        // The newest first: leaves are in the order of their times, so that none before the time has to be read.
        for (done, segment) in files.segments().iter().rev().enumerate() {
            progress(done as u64, total);
            let first = first_of(files, *segment)?.map(|leaf| leaf.ts);
            let Some(first) = first else {
                continue; // begun, and without a leaf yet
            };
            let (from, to) = self.time.unwrap_or((0, u64::MAX));
            if first <= to {
                found.push(self.read(files, *segment)?);
            }
            if first < from {
                break;
            }
        }
        Ok(found.into_iter().rev().flatten().collect())
    }

    fn read(&self, files: &LeafFiles<'_>, segment: u64) -> Result<Vec<Line>, String> {
        let mut found = Vec::new();
        let mut each = |index: u64, bytes: &[u8]| {
            // In the leaf's own texts the quotes are escaped, so only the member itself has these bytes.
            let text = std::str::from_utf8(bytes).unwrap_or_default();
            if self
                .members
                .iter()
                .any(|member| text.contains(member.as_str()))
            {
                found.push((index, bytes.to_vec()));
            }
            ControlFlow::Continue(())
        };
        files
            .read(segment, &mut each)
            .map_err(|why| why.to_string())?;
        let line = |(index, bytes): (u64, Vec<u8>)| {
            let leaf = Leaf::parse(&bytes).map_err(|why| format!("leaf {index}: {why}"))?;
            Ok(line(files.origin(), index, &leaf))
        };
        found.into_iter().map(line).collect()
    }
}

/// The first leaf of a segment.
fn first_of(files: &LeafFiles<'_>, segment: u64) -> Result<Option<Leaf>, String> {
    let mut first = None;
    let mut each = |index: u64, bytes: &[u8]| {
        first = Some(Leaf::parse(bytes).map_err(|why| format!("leaf {index}: {why}")));
        ControlFlow::Break(())
    };
    files
        .read(segment, &mut each)
        .map_err(|why| why.to_string())?;
    first.transpose()
}

/// A leaf as a log line of the service.
fn line(log: &str, index: u64, leaf: &Leaf) -> Line {
    let mut members = match serde_json::to_value(leaf) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    };
    let at = Timestamp(leaf.ts).to_string();
    for (name, value) in [
        ("ts", at.as_str().into()),
        ("service", "ron-kms".into()),
        ("event", "leaf".into()),
        ("log", log.into()),
        ("index", index.into()),
    ] {
        members.insert(name.to_owned(), value);
    }
    members.remove("v");
    Line {
        at,
        id: leaf
            .request_id
            .as_ref()
            .map(|id| id.id().to_owned())
            .unwrap_or_default(),
        requests: Vec::new(),
        members,
        text: None,
    }
}
