//! `ron trace`: the log lines of one request, of all services, and its audit leaves, by time.

mod leaves;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use ron_proto::Timestamp;
use serde_json::{Map, Value, json};
use svc_wallet::OPERATION_FILES;

use crate::layout::Layout;
use crate::log_files::FILES;
use leaves::AuditLogs;

/// Show the log lines of a request, of all services, and its leaves in the audit log, oldest first. Ends with code 1 when there
/// are none.
///
/// The id is the one that the client sent as `X-Request-Id`, or the one that came with the answer, in the header of that
/// name and in an error's `request_id`. Every service that works for the request logs it. Where a service makes one call
/// for many requests, that call has an id of its own, which is followed.
#[derive(Args)]
pub struct TraceArgs {
    /// The id of the request.
    request_id: String,
    /// A file of log lines, JSON or text, of one or more services, in place of those of the data directory; `-` for
    /// standard input. May be repeated.
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Data directory, as given to `ron up`; the default directory when absent. Without `--log`, the lines that `ron up`
    /// keeps in `logs` there are read, and so are the wallet's records of operations and the audit log of the KMS. With
    /// `--log` and `--data-dir`, records and audit log are read beside the files given.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Print one JSON document per line.
    #[arg(long)]
    json: bool,
}

/// A log line that belongs to a request.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    at: String,
    /// Of the request, or of a call that was made for several.
    id: String,
    /// The requests that such a call was made for.
    requests: Vec<String>,
    members: Map<String, Value>,
    /// A line that was text already.
    text: Option<String>,
}

/// What is read, more than once: a line may name an id of which there were lines before it.
enum Source {
    File(PathBuf),
    /// A file of the data directory, which may be turned over meanwhile.
    Open(PathBuf, File),
    Input(Vec<u8>),
}

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<(), String> {
    if ron_http::Trace::new(&args.request_id).is_none() {
        return Err(
            "an id of a request is 1 to 64 letters, digits, `.`, `_` and `-`; take it from the header X-Request-Id of the answer"
                .to_owned(),
        );
    }
    let sources = sources(args)?;
    let audit = match layout(args)? {
        Some(layout) => AuditLogs::of(&layout)?,
        None => AuditLogs::default(),
    };
    let (lines, read) = find(&args.request_id, &sources, &audit)?;
    if lines.is_empty() {
        return Err(nothing(&args.request_id, (&sources, &audit), read));
    }
    let mut out = io::stdout().lock();
    for line in &lines {
        let text = if args.json { line.json() } else { line.text() };
        if writeln!(out, "{text}").is_err() {
            return Ok(()); // the reader of the lines has gone
        }
    }
    Ok(())
}

/// The lines and leaves of a request, oldest first, and the number of lines read.
fn find(id: &str, sources: &[Source], audit: &AuditLogs) -> Result<(Vec<Line>, u64), String> {
    let mut ids = BTreeSet::from([id.to_owned()]);
    let (mut lines, read) = loop {
        let known = ids.len();
        let found = search(sources, &mut ids)?;
        if ids.len() == known {
            break found;
        }
    };
    lines.extend(audit.find(&ids, &lines)?);
    // A stable sort: lines of one file and one millisecond stay in their order.
    lines.sort_by(|a, b| a.at.cmp(&b.at));
    Ok((lines, read))
}

/// The data directory, unless the files to read are named without it.
fn layout(args: &TraceArgs) -> Result<Option<Layout>, String> {
    let wanted = args.log.is_empty() || args.data_dir.is_some();
    wanted
        .then(|| Layout::new(args.data_dir.as_deref()))
        .transpose()
}

/// The files to read. One that was named has to exist.
fn sources(args: &TraceArgs) -> Result<Vec<Source>, String> {
    let mut all = Vec::new();
    if let Some(layout) = layout(args)? {
        if args.log.is_empty() {
            all.extend(open_files(&layout.logs(), &FILES)?);
        }
        let operations = layout.data("svc-wallet").join("audit");
        all.extend(open_files(&operations, &OPERATION_FILES)?);
    }
    let mut input = false;
    for path in &args.log {
        if path.as_os_str() != "-" {
            all.push(Source::File(path.clone()));
        } else if !std::mem::replace(&mut input, true) {
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|why| format!("standard input cannot be read: {why}"))?;
            all.push(Source::Input(bytes));
        }
    }
    Ok(all)
}

/// Files that are turned over, as far as they are there; `names` begins with the newest.
fn open_files(dir: &Path, names: &[&str]) -> Result<Vec<Source>, String> {
    let (mut files, mut known) = (Vec::new(), BTreeSet::new());
    // The newest first: a file that gets the next name meanwhile is met again and not missed.
    for name in names {
        let path = dir.join(name);
        let failed = |why: io::Error| format!("{} cannot be read: {why}", path.display());
        let file = match File::open(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        if known.insert(file.metadata().map_err(failed)?.ino()) {
            files.push(Source::Open(path, file));
        }
    }
    // The oldest first, so that lines of one millisecond stay in their order.
    files.reverse();
    Ok(files)
}

/// The lines with one of the ids, by time, and how many lines were read. Adds the ids of calls that were made for them.
fn search(sources: &[Source], ids: &mut BTreeSet<String>) -> Result<(Vec<Line>, u64), String> {
    let (mut found, mut read) = (Vec::new(), 0);
    for source in sources {
        let name = source.name();
        let mut each = |bytes: &[u8]| {
            read += 1;
            let Some(line) = Line::of(&String::from_utf8_lossy(bytes), &name) else {
                return;
            };
            // Not the other way round: the other requests of a call are other requests.
            if line.requests.iter().any(|request| ids.contains(request)) {
                ids.insert(line.id.clone());
            }
            if ids.contains(&line.id) {
                found.push(line);
            }
        };
        let done = match source {
            Source::File(path) => {
                File::open(path).and_then(|file| each_line(BufReader::new(file), &mut each))
            }
            Source::Open(_, file) => {
                let mut from = file;
                from.rewind()
                    .and_then(|()| each_line(BufReader::new(from), &mut each))
            }
            Source::Input(bytes) => each_line(bytes.as_slice(), &mut each),
        };
        done.map_err(|why| format!("{name} cannot be read: {why}"))?;
    }
    Ok((found, read))
}

fn each_line(mut from: impl BufRead, each: &mut impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        each(line.trim_ascii_end());
        line.clear();
    }
    Ok(())
}

fn nothing(id: &str, (sources, audit): (&[Source], &AuditLogs), read: u64) -> String {
    let names: Vec<String> = sources.iter().map(Source::name).collect();
    let lines = (!names.is_empty()).then(|| format!("{read} lines of {}", names.join(", ")));
    let read: Vec<String> = lines.into_iter().chain(audit.names()).collect();
    let read = match read.as_slice() {
        [] => "nothing was read".to_owned(),
        read => format!("read were {}", read.join(", ")),
    };
    format!(
        "no line and no leaf has the request id {id}: {read}. `ron up` keeps lines in its data directory (--data-dir); give other logs with --log FILE, or as in `journalctl -o cat -u 'ron-*' -u 'svc-*' | ron trace {id} --log -`; \
         at log.level \"info\" failed requests have lines, and under load a sample of the others; at \"debug\" all have"
    )
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::File(path) | Self::Open(path, _) => path.display().to_string(),
            Self::Input(_) => "standard input".to_owned(),
        }
    }
}

impl Line {
    /// A line with an id; `None` for another one.
    fn of(text: &str, source: &str) -> Option<Self> {
        // The journal puts host and process in front, unless it is told not to.
        let text = match text.split_once("]: ") {
            Some((_, rest)) if !text.starts_with(['{', '2']) => rest,
            _ => text,
        };
        if text.starts_with('{') {
            Self::of_json(text, source)
        } else {
            Self::of_text(text)
        }
    }

    fn of_json(text: &str, source: &str) -> Option<Self> {
        let mut members: Map<String, Value> = serde_json::from_str(text).ok()?;
        let text_of = |name: &str| members.get(name)?.as_str().map(str::to_owned);
        let (at, id) = (text_of("ts")?, text_of("request_id")?);
        let requests = text_of("requests").map(|all| words(&all));
        if !members.contains_key("service") && is_operations(source) {
            members.insert("service".to_owned(), "svc-wallet".into());
            members.insert("event".to_owned(), "operation".into());
        }
        Some(Self {
            at,
            id,
            requests: requests.unwrap_or_default(),
            members,
            text: None,
        })
    }

    fn of_text(text: &str) -> Option<Self> {
        let mut words_of_it = text.split_ascii_whitespace();
        let (at, level, service, event) = (
            words_of_it.next()?,
            words_of_it.next()?,
            words_of_it.next()?,
            words_of_it.next()?,
        );
        at.parse::<Timestamp>().ok()?;
        // The id is the last member of a line, so that no text in the others passes for it.
        let (rest, id) = text.rsplit_once(" request_id=")?;
        let requests = rest.split_once(" requests=").and_then(|(_, value)| {
            let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
            values.next()?.ok()
        });
        let members = json!({
            "ts": at, "level": level, "service": service, "event": event, "request_id": id, "line": text,
        });
        Some(Self {
            at: at.to_owned(),
            id: id.to_owned(),
            requests: requests.map(|all| words(&all)).unwrap_or_default(),
            members: members.as_object()?.clone(),
            text: Some(text.to_owned()),
        })
    }

    fn json(&self) -> String {
        Value::from(self.members.clone()).to_string()
    }

    /// In the form of the services' own text lines.
    fn text(&self) -> String {
        if let Some(text) = &self.text {
            return text.clone();
        }
        let first = ["ts", "level", "service", "event"];
        let [at, level, service, event] = first.map(|name| self.member(name));
        let mut text = format!("{at} {level:<5} {service:<12} {event}");
        let rest = self.members.iter();
        for (name, value) in
            rest.filter(|(name, _)| !first.contains(&name.as_str()) && *name != "request_id")
        {
            let value = match value {
                Value::String(word) if is_word(word) => word.clone(),
                value => value.to_string(),
            };
            let _ = write!(text, " {name}={value}");
        }
        text + " request_id=" + &self.id
    }

    fn member(&self, name: &str) -> &str {
        self.members
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("-")
    }
}

fn is_operations(source: &str) -> bool {
    let name = Path::new(source).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| OPERATION_FILES.contains(&name))
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'=')
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A joint call of three requests, read in an order that is not that of time.
    const LOG: &str = r#"{"ts":"2026-03-01T12:00:00.003Z","level":"info","service":"ron-ledger","event":"http_request","request_id":"joint-1","status":200}
2026-03-01T12:00:00.004Z info  svc-wallet   http_request status=200 request_id=b
not a line request_id=a
2026-03-01T12:00:00.001Z info  svc-wallet   joint_call requests="a b c" request_id=joint-1
Mar 01 12:00:00 host svc-wallet[7]: {"ts":"2026-03-01T12:00:00.005Z","level":"warn","service":"svc-wallet","event":"http_request","status":409,"request_id":"a"}
{"ts":"2026-03-01T12:00:00.000Z","level":"info","service":"ron-kms","event":"started"}
"#;

    fn traced(id: &str) -> Vec<String> {
        let sources = [Source::Input(LOG.into())];
        let (lines, read) = find(id, &sources, &AuditLogs::default()).unwrap();
        assert_eq!(read, 6);
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_request_is_followed_through_the_calls_that_were_made_for_it() {
        let joint = [
            "2026-03-01T12:00:00.001Z info  svc-wallet   joint_call requests=\"a b c\" request_id=joint-1",
            "2026-03-01T12:00:00.003Z info  ron-ledger   http_request status=200 request_id=joint-1",
        ];
        let a = "2026-03-01T12:00:00.005Z warn  svc-wallet   http_request status=409 request_id=a";
        let b = "2026-03-01T12:00:00.004Z info  svc-wallet   http_request status=200 request_id=b";
        assert_eq!(traced("a"), [joint[0], joint[1], a]);
        assert_eq!(traced("b"), [joint[0], joint[1], b]);
        assert_eq!(traced("c"), joint);
        assert_eq!(traced("joint-1"), joint, "its requests are other requests");
        assert!(traced("d").is_empty());
    }

    #[test]
    fn both_forms_of_a_line_are_json_with_the_same_first_members() {
        for text in LOG.lines() {
            let Some(line) = Line::of(text, "log") else {
                continue;
            };
            let value: Value = serde_json::from_str(&line.json()).unwrap();
            for name in ["ts", "level", "service", "event", "request_id"] {
                assert!(value[name].is_string(), "{name} of {value}");
            }
        }
    }

    #[test]
    fn records_of_operations_are_lines_of_the_wallet() {
        let record = r#"{"ts":"2026-03-01T12:00:00.002Z","op":"transfer","key":"k","outcome":"done","seq":3,"request_id":"a"}"#;
        let line = Line::of(record, "/srv/ron/svc-wallet/audit/operations.jsonl").unwrap();
        assert_eq!(
            line.text(),
            "2026-03-01T12:00:00.002Z -     svc-wallet   operation key=k op=transfer outcome=done seq=3 request_id=a"
        );
    }
}
