//! Routes: one method on one path, its requirements, its body and answers, and its handler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ron_files::Dir;
use ron_kernel::DiskWatches;
use ron_proto::Problem;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::auth::Need;
use crate::head::Method;
use crate::request::{JSON, Request};
use crate::responder::Responder;
use crate::response::Response;

/// The content type of forms.
pub(crate) const FORM: &str = "application/x-www-form-urlencoded";

/// Runs for each request. It may answer at once or move the responder into a job.
pub type Handler = Arc<dyn Fn(Request, Responder) + Send + Sync>;

/// Makes a handler from a function that answers at once.
pub fn sync<F>(answer: F) -> impl Fn(Request, Responder) + Send + Sync + 'static
where
    F: Fn(&Request) -> Result<Response, Problem> + Send + Sync + 'static,
{
    move |request, responder| responder.send(answer(&request))
}

/// Adds the schema of a type to a document's components and returns a reference to it.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Gives an answer that is a problem the form of another API.
pub type ProblemsAs = fn(Response) -> Response;

/// The body that a route reads.
#[derive(Clone, Copy)]
pub(crate) enum Reads {
    Nothing,
    /// JSON of a type.
    Json(SchemaOf),
    /// A form with the fields of a type.
    Form(SchemaOf),
    /// Bytes of one of these content types; no types means any.
    Bytes(&'static [&'static str]),
}

/// The answer of a route under a status.
#[derive(Clone, Copy)]
pub(crate) enum Returns {
    /// JSON of a type.
    Json(SchemaOf),
    /// Bytes of a content type.
    Bytes(&'static str),
    Nothing,
}

/// The directory to which the bodies of a route are streamed, and their cap in bytes.
#[derive(Clone, Debug)]
pub(crate) struct SpoolTo {
    pub dir: Dir,
    pub cap: u64,
    pub disk: Option<DiskWatches>,
}

/// A query parameter, for the OpenAPI document.
#[derive(Clone, Copy)]
pub(crate) struct QueryParam {
    pub name: &'static str,
    pub required: bool,
    pub about: &'static str,
    pub schema: SchemaOf,
}

/// One method on one path, its requirements, and its body and answers.
#[derive(Clone)]
pub struct Route {
    pub(crate) method: Method,
    pub(crate) pattern: &'static str,
    /// Where the route is served, when that is not its pattern.
    moved_to: Option<String>,
    pub(crate) need: Need,
    pub(crate) handler: Handler,
    pub(crate) summary: &'static str,
    pub(crate) reads: Reads,
    pub(crate) any_content_type: bool,
    pub(crate) problems: Option<ProblemsAs>,
    pub(crate) returns: Vec<(u16, Returns)>,
    pub(crate) errors: Vec<u16>,
    pub(crate) query: Vec<QueryParam>,
    pub(crate) body_cap: Option<usize>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) long_poll: bool,
    pub(crate) bulk: bool,
    pub(crate) min_rate: Option<u64>,
    pub(crate) spool: Option<SpoolTo>,
    pub(crate) idempotency_key: bool,
    pub(crate) while_draining: bool,
    pub(crate) timed: bool,
}

impl Route {
    /// A route. The pattern's segments are literals, `{name}` parameters, and at the end possibly
    /// `{*name}`, which matches the rest of the path. Panics on `HEAD` and `OPTIONS`, which the
    /// router answers itself.
    pub fn new(
        method: Method,
        pattern: &'static str,
        need: Need,
        handler: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Self {
        assert!(
            pattern.starts_with('/'),
            "route pattern {pattern} must start with /"
        );
        assert!(
            !matches!(method, Method::HEAD | Method::OPTIONS),
            "HEAD and OPTIONS are given"
        );
        Self {
            method,
            pattern,
            moved_to: None,
            need,
            handler: Arc::new(handler),
            summary: "",
            reads: Reads::Nothing,
            any_content_type: false,
            problems: None,
            returns: Vec::new(),
            errors: Vec::new(),
            query: Vec::new(),
            body_cap: None,
            deadline: None,
            long_poll: false,
            bulk: false,
            min_rate: None,
            spool: None,
            idempotency_key: false,
            while_draining: false,
            timed: true,
        }
    }

    /// The route's name: the path that it answers, unless it was moved.
    pub const fn pattern(&self) -> &'static str {
        self.pattern
    }

    /// The path that it answers, with its parameters.
    pub(crate) fn path(&self) -> &str {
        self.moved_to.as_deref().unwrap_or(self.pattern)
    }

    /// Serves the route below `to` if its pattern is below `from`; both end in `/`. The pattern remains the route's name in
    /// metrics, logs and rights: the set of names is then the same in every configuration, and nothing that depends on a
    /// name has to know where the route is served. Panics when `to` has parameters, whose values no handler would find.
    #[must_use]
    pub fn moved(mut self, from: &str, to: &str) -> Self {
        let is_base = |path: &str| path.starts_with('/') && path.ends_with('/');
        assert!(
            is_base(from) && is_base(to) && !to.contains('{'),
            "{from} and {to} must start and end with / and have no parameters"
        );
        if let Some(rest) = self.pattern.strip_prefix(from) {
            self.moved_to = Some(format!("{to}{rest}"));
        }
        self
    }

    /// The same route at another path.
    #[must_use]
    pub fn at(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    /// `GET` answered at once.
    pub fn get<F>(pattern: &'static str, need: Need, answer: F) -> Self
    where
        F: Fn(&Request) -> Result<Response, Problem> + Send + Sync + 'static,
    {
        Self::new(Method::GET, pattern, need, sync(answer))
    }

    /// `POST` answered at once.
    pub fn post<F>(pattern: &'static str, need: Need, answer: F) -> Self
    where
        F: Fn(&Request) -> Result<Response, Problem> + Send + Sync + 'static,
    {
        Self::new(Method::POST, pattern, need, sync(answer))
    }

    /// One line for the OpenAPI document.
    pub fn summary(mut self, text: &'static str) -> Self {
        self.summary = text;
        self
    }

    /// Reads JSON of this type; other content types get 415 before the body is read.
    pub fn body<T: JsonSchema>(mut self) -> Self {
        self.reads = Reads::Json(schema_of::<T>);
        self
    }

    /// Reads a form (`application/x-www-form-urlencoded`) with the fields of this type; other
    /// content types get 415 before the body is read. The handler reads the fields, see
    /// [`crate::form_fields`].
    pub fn body_form<T: JsonSchema>(mut self) -> Self {
        self.reads = Reads::Form(schema_of::<T>);
        self
    }

    /// Reads bytes of one of these content types (415 otherwise); an empty list means any.
    pub fn body_bytes(mut self, content_types: &'static [&'static str]) -> Self {
        self.reads = Reads::Bytes(content_types);
        self
    }

    /// Reads the body whatever its `Content-Type` says, for an API whose clients send none.
    pub fn any_content_type(mut self) -> Self {
        self.any_content_type = true;
        self
    }

    /// Answers with problems in the form of another API: those of the handler, and those with which the front refuses a
    /// request of this route.
    pub fn problems(mut self, change: ProblemsAs) -> Self {
        self.problems = Some(change);
        self
    }

    /// Answers JSON of this type under the status.
    pub fn returns<T: JsonSchema>(mut self, status: u16) -> Self {
        self.returns.push((status, Returns::Json(schema_of::<T>)));
        self
    }

    /// Answers bytes of a content type under the status.
    pub fn returns_bytes(mut self, status: u16, content_type: &'static str) -> Self {
        self.returns.push((status, Returns::Bytes(content_type)));
        self
    }

    /// Answers without a body under the status.
    pub fn returns_nothing(mut self, status: u16) -> Self {
        self.returns.push((status, Returns::Nothing));
        self
    }

    /// The handler's own error statuses; those of the front are added to the document
    /// automatically.
    pub fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors.extend_from_slice(statuses);
        self
    }

    /// Documents a query parameter that is text.
    pub fn query(self, name: &'static str, required: bool, about: &'static str) -> Self {
        self.query_as::<String>(name, required, about)
    }

    /// Documents a query parameter of a type.
    pub fn query_as<T: JsonSchema>(
        mut self,
        name: &'static str,
        required: bool,
        about: &'static str,
    ) -> Self {
        self.query.push(QueryParam {
            name,
            required,
            about,
            schema: schema_of::<T>,
        });
        self
    }

    /// Sets the route's own body cap, in bytes.
    pub fn body_cap(mut self, bytes: usize) -> Self {
        self.body_cap = Some(bytes);
        self
    }

    /// Sets the route's own request deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Makes the route a long poll: `wait=S` and `Prefer: wait=S` lengthen the deadline by S
    /// seconds. When the service drains, waiting requests of this route are answered 503.
    pub fn long_poll(mut self) -> Self {
        self.long_poll = true;
        self
    }

    /// For large transfers: the body has no total deadline but must keep the minimum rate.
    pub fn bulk(mut self) -> Self {
        self.bulk = true;
        self
    }

    /// Sets the route's own minimum rate for large transfers, in bytes per second.
    pub fn min_rate(mut self, bytes_per_s: u64) -> Self {
        self.min_rate = Some(bytes_per_s);
        self
    }

    /// Writes the body to an unnamed file in `dir` as it arrives, at most `cap` bytes; the handler
    /// finds it in [`Request::upload`]. No worker waits for a slow client. When the disk is full
    /// the client gets 507. Compressed bodies are refused (415).
    pub fn streaming(mut self, dir: Dir, cap: u64) -> Self {
        self.spool = Some(SpoolTo {
            dir,
            cap,
            disk: None,
        });
        self.bulk()
    }

    /// Has the writes of a [`Route::streaming`] body watched, which workers make: while the disk hangs they
    /// are refused (503). With fewer watches than workers, at least one worker serves other requests.
    pub fn watch_disk(mut self, disk: DiskWatches) -> Self {
        if let Some(spool) = &mut self.spool {
            spool.disk = Some(disk);
        }
        self
    }

    /// True when the route has its own body cap.
    pub(crate) fn has_own_cap(&self) -> bool {
        self.spool.is_some() || self.body_cap.is_some()
    }

    /// Largest body in bytes.
    pub(crate) fn cap(&self, default: usize) -> u64 {
        match &self.spool {
            Some(spool) => spool.cap,
            None => self.body_cap.unwrap_or(default) as u64,
        }
    }

    /// Documents that `Idempotency-Key` is required.
    pub fn idempotency_key(mut self) -> Self {
        self.idempotency_key = true;
        self
    }

    /// Keeps the route served while the service drains: reads, health.
    pub fn while_draining(mut self) -> Self {
        self.while_draining = true;
        self
    }

    /// Measures no durations: only monitors call the route, and its buckets would be most of the
    /// series of a quiet service.
    pub fn untimed(mut self) -> Self {
        self.timed = false;
        self
    }

    /// Statuses from 500 on that the route declares as its answers, such as `/readyz` while not
    /// ready.
    pub(crate) fn documented_server_errors(&self) -> Vec<u16> {
        let statuses = self.returns.iter().map(|(status, _)| *status);
        statuses.filter(|status| *status >= 500).collect()
    }

    /// The method and pattern, such as `GET /v1/things/{id}`.
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.pattern)
    }

    /// 415 when the route does not read this content type.
    pub(crate) fn check_content_type(&self, value: Option<&str>) -> Result<(), Problem> {
        let is = |wanted: &str| value.is_some_and(|v| crate::request::is_media_type(v, wanted));
        match self.reads {
            _ if self.any_content_type => Ok(()),
            Reads::Json(_) if !is(JSON) => Err(crate::request::not_json()),
            Reads::Form(_) if !is(FORM) => Err(Problem::unsupported_media_type(format!(
                "send the body as Content-Type: {FORM}"
            ))),
            Reads::Bytes(types) if !types.is_empty() && !types.iter().any(|t| is(t)) => {
                Err(Problem::unsupported_media_type(format!(
                    "send the body as Content-Type: {}",
                    types.join(" or ")
                )))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Route({})", self.name())
    }
}
