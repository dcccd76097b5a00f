//! Log lines on standard error, and where else a program wants them: JSON or compact text, one line per event, with
//! `ts level service event request_id`.
//!
//! Several services may share a process, so `service` belongs to the event: its own `service` field
//! if it has one, else the service that the logging thread works for, else the process's name. `request_id` is likewise
//! that of the event, else of the request that the thread works for.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ron_http::Trace;
use ron_kernel::{Clock, ServiceScope, SystemClock};
use ron_proto::Timestamp;
use ron_proto::values::is_control;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Config, LogFormat, LogLevel};

/// Maximum length of one field value, in bytes; longer values are cut.
const VALUE_BYTES_MAX: usize = 2048;

/// Changes the log level of a running process.
#[derive(Clone, Debug)]
pub struct LevelHandle(Arc<AtomicU8>);

impl LevelHandle {
    pub fn set(&self, level: LogLevel) {
        self.0.store(rank(tracing_level(level)), Ordering::Relaxed);
    }
}

const fn tracing_level(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

const fn rank(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Takes a line, on the thread that logs.
type Write = dyn Fn(&[u8]) + Send + Sync;

/// Where lines go, and which.
pub struct Output {
    format: LogFormat,
    level: Arc<AtomicU8>,
    write: Box<Write>,
}

impl Output {
    /// `write` gets each line with its line end, on the thread that logs: it must not wait.
    pub fn new(
        format: LogFormat,
        level: LogLevel,
        write: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Self {
        Self {
            format,
            level: Arc::new(AtomicU8::new(rank(tracing_level(level)))),
            write: Box::new(write),
        }
    }

    /// Writes to standard error, in which case a full pipe makes the logging thread wait.
    pub fn stderr(format: LogFormat, level: LogLevel) -> Self {
        Self::new(format, level, to_stderr)
    }

    fn takes(&self, level: Level) -> bool {
        rank(level) <= self.level.load(Ordering::Relaxed)
    }
}

/// Installs the process's logger; only binaries call this. A second call changes nothing.
pub fn init(process: &'static str, outputs: Vec<Output>) {
    let lines = Lines { process, outputs };
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
}

/// One write per line, so that lines of different threads do not mix. Errors are ignored: standard
/// error may be closed.
fn to_stderr(line: &[u8]) {
    let _ = std::io::stderr().write_all(line);
}

/// Installs the logger according to `log.format` and `log.level`.
pub fn init_from(config: &Config) -> LevelHandle {
    let settings = config.chassis();
    let stderr = Output::stderr(settings.log_format, settings.log_level);
    let handle = LevelHandle(stderr.level.clone());
    init(config.service(), vec![stderr]);
    handle
}

/// The layer that writes lines.
struct Lines {
    process: &'static str,
    outputs: Vec<Output>,
}

impl<S> Layer<S> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let mut outputs = self.outputs.iter();
        outputs.any(|output| output.takes(*metadata.level()))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Standard error may be a full pipe, and a blocked writer must not hold a lock. Checked in
        // debug builds only: a log line is not worth a dead thread in production.
        #[cfg(debug_assertions)]
        ron_kernel::assert_no_locks("a log line");
        let mut fields = Fields::default();
        event.record(&mut fields);
        let ts = Timestamp(SystemClock.unix_ms()).to_string();
        let level = *event.metadata().level();
        let takes = |output: &&Output| output.takes(level);
        let mut outputs = self.outputs.iter().filter(takes).peekable();
        while let Some(output) = outputs.next() {
            // Most processes have one output, which needs no copy.
            let fields = match outputs.peek() {
                Some(_) => fields.clone(),
                None => std::mem::take(&mut fields),
            };
            let line = render(output.format, self.process, &ts, level, fields);
            (output.write)(line.as_bytes());
        }
    }
}

/// The fields of one event, in the order given.
#[derive(Clone, Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        self.0.push((field.name(), value));
    }
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(field, _)| *field == name)?;
        match self.0.remove(at).1 {
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        }
    }
}

fn cut(mut text: String) -> Value {
    if text.len() > VALUE_BYTES_MAX {
        let mut end = VALUE_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str("...");
    }
    Value::String(text)
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, cut(value.to_owned()));
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, cut(format!("{value:?}")));
    }
}

/// Renders one line with its line end. The event's name is its `event` field, else its message.
fn render(
    format: LogFormat,
    process: &'static str,
    ts: &str,
    level: Level,
    mut fields: Fields,
) -> String {
    let service = fields
        .take("service")
        .unwrap_or_else(|| ServiceScope::current().unwrap_or(process).to_owned());
    let message = fields.take("message");
    let name = fields
        .take("event")
        .or_else(|| message.clone())
        .unwrap_or_else(|| "event".to_owned());
    let message = message.filter(|message| *message != name);
    let request_id = fields.take("request_id");
    let request_id = request_id.or_else(|| Some(Trace::current()?.id().to_owned()));
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    match format {
        LogFormat::Json => {
            let mut line = String::with_capacity(256);
            line.push('{');
            let mut head = vec![
                ("ts", ts),
                ("level", level),
                ("service", &service),
                ("event", &name),
            ];
            head.extend(request_id.as_deref().map(|id| ("request_id", id)));
            head.extend(message.as_deref().map(|message| ("message", message)));
            for (name, value) in head {
                let _ = write!(line, "\"{name}\":{},", Value::from(value));
            }
            let rest: Map<String, Value> = fields
                .0
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            for (name, value) in rest {
                let _ = write!(line, "{}:{value},", Value::from(name));
            }
            line.pop();
            line.push_str("}\n");
            line
        }
        LogFormat::Compact => {
            let mut line = format!("{ts} {level:<5} {service:<12} {}", one_line(&name));
            if let Some(message) = message {
                let _ = write!(line, " {}", one_line(&message));
            }
            for (name, value) in &fields.0 {
                match value {
                    Value::String(text) if plain(text) => _ = write!(line, " {name}={text}"),
                    value => _ = write!(line, " {name}={value}"),
                }
            }
            if let Some(id) = request_id {
                let _ = write!(line, " request_id={}", one_line(&id));
            }
            line.push('\n');
            line
        }
    }
}

fn plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'=')
}

/// Replaces control characters, so that a log line stays one line.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if is_control(c) { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, Value)]) -> Fields {
        Fields(pairs.to_vec())
    }

    #[test]
    fn json_lines_have_the_fixed_members_first_and_parse() {
        let event = fields(&[
            ("message", "hello \"you\"\n".into()),
            ("event", "started".into()),
            ("request_id", "r1".into()),
            ("port", 7440.into()),
            ("service", "ron-kms".into()),
        ]);
        let line = render(LogFormat::Json, "ron", "T", Level::INFO, event);
        assert_eq!(
            line,
            "{\"ts\":\"T\",\"level\":\"info\",\"service\":\"ron-kms\",\"event\":\"started\",\"request_id\":\"r1\",\"message\":\"hello \\\"you\\\"\\n\",\"port\":7440}\n"
        );
        serde_json::from_str::<Value>(&line).expect("a JSON line");
    }

    #[test]
    fn compact_lines_stay_one_line() {
        let event = fields(&[
            ("message", "a\nb\u{1b}[31m".into()),
            ("why", "x\ny".into()),
            ("n", 3.into()),
        ]);
        let line = render(LogFormat::Compact, "ron", "T", Level::WARN, event);
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(!line.contains('\u{1b}'), "{line:?}");
        assert!(line.contains("why=\"x\\ny\" n=3"), "{line:?}");
    }

    #[test]
    fn the_service_is_the_fields_then_the_threads_then_the_process() {
        let own = render(
            LogFormat::Json,
            "ron",
            "T",
            Level::INFO,
            fields(&[("service", "x".into())]),
        );
        assert!(own.contains("\"service\":\"x\""), "{own}");
        let process = || render(LogFormat::Json, "ron", "T", Level::INFO, fields(&[]));
        assert!(process().contains("\"service\":\"ron\""));
        let outer = ServiceScope::enter("svc-wallet");
        let inner = ServiceScope::enter("ron-kms");
        assert!(process().contains("\"service\":\"ron-kms\""));
        drop(inner);
        assert!(process().contains("\"service\":\"svc-wallet\""));
        drop(outer);
        assert!(process().contains("\"service\":\"ron\""));
    }

    #[test]
    fn the_request_is_the_fields_then_the_threads() {
        let line = |own: &[(&'static str, Value)]| {
            render(LogFormat::Compact, "ron", "T", Level::INFO, fields(own))
        };
        assert!(!line(&[]).contains("request_id"));
        let _scope = ron_http::TraceScope::enter(Trace::new("find-me-42"));
        assert!(line(&[]).ends_with(" request_id=find-me-42\n"));
        assert!(line(&[("request_id", "own".into())]).ends_with(" request_id=own\n"));
    }

    #[test]
    fn long_values_are_cut_on_a_character() {
        let Value::String(text) = cut("é".repeat(VALUE_BYTES_MAX)) else {
            panic!("text")
        };
        assert!(text.len() <= VALUE_BYTES_MAX + 3 && text.ends_with("..."));
    }

    #[test]
    fn each_output_has_the_events_of_its_level_in_its_format() {
        let written = Arc::new([(); 2].map(|()| AtomicU8::new(0)));
        let output = |n: usize, format, level, begin: &'static str| {
            let count = written.clone();
            Output::new(format, level, move |line| {
                assert!(line.starts_with(begin.as_bytes()), "{line:?}");
                count[n].fetch_add(1, Ordering::Relaxed);
            })
        };
        let few = output(0, LogFormat::Compact, LogLevel::Warn, "20");
        let handle = LevelHandle(few.level.clone());
        let more = output(1, LogFormat::Json, LogLevel::Info, "{\"ts\":");
        let lines = Lines {
            process: "test",
            outputs: vec![few, more],
        };
        let said = || {
            let [few, more] = &*written;
            (few.load(Ordering::Relaxed), more.load(Ordering::Relaxed))
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::debug!(event = "quiet");
            assert_eq!(said(), (0, 0));
            tracing::info!(event = "said", n = 1);
            assert_eq!(said(), (0, 1));
            tracing::warn!(event = "said to both", n = 1);
            assert_eq!(said(), (1, 2));
            handle.set(LogLevel::Debug);
            tracing::debug!(event = "said to the first");
            assert_eq!(said(), (2, 2));
        });
    }
}
