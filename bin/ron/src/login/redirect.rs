//! The loopback address to which a provider sends the browser back (RFC 8252 section 7.3).

use std::sync::Arc;
use std::time::Duration;

use ron_crypto::ct;
use ron_http::{
    ApiInfo, DenyAll, FRONT_LOCKS, Front, FrontHandle, FrontSpec, Limits, Need, Request, Response,
    Route, Router,
};
use ron_kernel::net::{Address, SharedListener};
use ron_kernel::{
    Count, Deadline, KernelMetrics, Net as _, OsNet, OsRandom, Overflow, QueueSpec, Receiver, Recv,
    Registry, Sender, Shutdown, Stage, Supervisor, SystemClock, ThreadSpec, Topology, queue,
};
use ron_proto::Problem;
use zeroize::Zeroizing;

use super::provider::printable;

const PATH: &str = "/callback";
/// How long the browser may take to read the last answer.
const LAST_ANSWER: Duration = Duration::from_secs(2);
/// Browsers open connections ahead of use; more than these come from something else.
const CONNECTIONS_MAX: usize = 16;
const WORKERS_COUNT: usize = 2;

static POLL: ThreadSpec = ThreadSpec {
    name: "login-poll",
    count: Count::One,
    stage: Stage::Front,
    critical: true,
    job: "accepts and watches connections",
};
static WORKERS: ThreadSpec = ThreadSpec {
    name: "login-http-",
    count: Count::Pool("workers"),
    stage: Stage::Front,
    critical: false,
    job: "judge redirects",
};
static CONNECTIONS: QueueSpec = QueueSpec {
    name: "http",
    capacity: CONNECTIONS_MAX,
    overflow: Overflow::RejectNew,
    from: "login-poll",
    to: "login-http-*",
    when_full: "the connection is closed",
};
static OUTCOME: QueueSpec = QueueSpec {
    name: "outcome",
    capacity: 1,
    overflow: Overflow::RejectNew,
    from: "login-http-*",
    to: "the command",
    when_full: "409: the login has its answer",
};
static TOPOLOGY: Topology = Topology {
    service: "ron-login",
    threads: &[POLL, WORKERS],
    queues: &[CONNECTIONS, OUTCOME],
    locks: &FRONT_LOCKS,
};

/// What the redirect of this login has.
#[derive(Clone)]
pub struct Expected {
    pub state: String,
    pub issuer: String,
    /// The provider names itself in each redirect, so one without a name is of another.
    pub is_named: bool,
}

/// The end of a login: a code, or the reason that the provider gives.
type Outcome = Result<Zeroizing<String>, String>;

/// A loopback socket that waits for the browser.
pub struct Redirect {
    listener: SharedListener,
    uri: String,
}

impl Redirect {
    /// Binds the address; port 0 is a free one.
    pub fn listen(port: u16) -> Result<Self, String> {
        let address = Address::Tcp(([127, 0, 0, 1], port).into());
        let cannot = |e: std::io::Error| format!("cannot listen on 127.0.0.1:{port}: {e}");
        let listener = OsNet.bind(&address).map_err(cannot)?;
        let bound = listener.local_addr().ok_or("the listener has no address")?;
        Ok(Self {
            listener,
            uri: format!("http://{bound}{PATH}"),
        })
    }

    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Answers redirects from now on: that of this login, and refusals to others.
    pub fn serve(&self, expected: Expected) -> Result<Waiting, String> {
        let registry = Registry::new("login");
        let metrics = KernelMetrics::new(&registry);
        let clock = SystemClock::shared();
        let threads = Supervisor::new(&TOPOLOGY, metrics.clone(), clock.clone());
        let (outcomes, outcome) = queue(&OUTCOME, OUTCOME.capacity, &metrics);
        let spec = FrontSpec {
            poll: &POLL,
            workers: &WORKERS,
            queue: &CONNECTIONS,
            spans: None,
        };
        let limits = Limits {
            max_conns: CONNECTIONS_MAX,
            ..Limits::default()
        };
        let front = Front::start(
            &spec,
            self.listener.clone(),
            router(expected, outcomes),
            Arc::new(DenyAll),
            limits,
            WORKERS_COUNT,
            &threads,
            &registry,
            &metrics,
            clock,
            &OsRandom,
        );
        Ok(Waiting {
            front: front.map_err(|e| format!("cannot wait for the browser: {e}"))?,
            threads,
            outcome,
        })
    }
}

/// A login that waits for the browser.
pub struct Waiting {
    front: FrontHandle,
    threads: Supervisor,
    outcome: Receiver<Outcome>,
}

impl Waiting {
    /// Waits for the redirect of this login.
    pub fn outcome(self, by: Deadline) -> Outcome {
        let (_keep, never) = Shutdown::pair();
        let received = self.outcome.recv(&never, by);
        // The browser still gets its answer.
        self.front.stop_intake();
        self.threads.drain(LAST_ANSWER);
        match received {
            Recv::Item(outcome) => outcome,
            _ => Err("nobody has signed in in time; --wait gives more".to_owned()),
        }
    }
}

fn router(expected: Expected, outcomes: Sender<Outcome>) -> Router {
    let info = ApiInfo {
        title: "ron-login",
        version: env!("CARGO_PKG_VERSION"),
        description: "Takes the redirect of a login.",
    };
    let answer = move |request: &Request| {
        let outcome = judged(request, &expected)?;
        let text = match &outcome {
            Ok(_) => {
                "Close this page and go back to the terminal, which says whether you are signed in.\n"
            }
            Err(_) => "The provider has not signed you in; the terminal shows the reason.\n",
        };
        let taken = outcomes.try_send(outcome);
        taken.map_err(|_| Problem::conflict("the login has its answer already"))?;
        Ok(Response::text(200, text)
            .cache("no-store")
            .header("content-security-policy", "default-src 'none'")
            // The address of this page holds the code.
            .header("referrer-policy", "no-referrer"))
    };
    Router::new(info).add(Route::get(PATH, Need::Public, answer))
}

/// The outcome that a redirect brings; an error if it is not that of this login.
fn judged(request: &Request, expected: &Expected) -> Result<Outcome, Problem> {
    let state = request.query_one("state")?.unwrap_or_default();
    if !ct::eq(state.as_bytes(), expected.state.as_bytes()) {
        return Err(Problem::bad_request(
            "this is not the login that waits here",
        ));
    }
    match request.query_one("iss")? {
        Some(named) if named == expected.issuer => {}
        None if !expected.is_named => {}
        _ => return Err(Problem::bad_request("another provider answers (iss)")),
    }
    if let Some(error) = request.query_one("error")? {
        let more = request.query_one("error_description")?.unwrap_or_default();
        let why = format!("the provider refused: {error} {more}");
        return Ok(Err(printable(&why)));
    }
    let code = request.query_one("code")?.filter(|code| !code.is_empty());
    let code = code.ok_or_else(|| Problem::bad_request("there is no code"))?;
    Ok(Ok(Zeroizing::new(code.to_owned())))
}

#[cfg(test)]
mod tests {
    use ron_http::{Call, ClientConfig, HttpClient};

    use super::*;

    const GOOD: &str = "code=c1&state=abc&iss=https%3A%2F%2Flogin.example";
    const EVIL: &str = "code=c2&state=abc&iss=https%3A%2F%2Fevil.example";

    fn waiting(is_named: bool) -> (Waiting, String) {
        let redirect = Redirect::listen(0).expect("a free port");
        let expected = Expected {
            state: "abc".into(),
            issuer: "https://login.example".into(),
            is_named,
        };
        let waiting = redirect.serve(expected).expect("it serves");
        (waiting, redirect.uri().to_owned())
    }

    #[test]
    fn only_the_redirect_of_this_login_ends_it() {
        let http = HttpClient::new(ClientConfig::default());
        let check = |is_named: bool, refused: &[&str], good: &str, want: Result<&str, &str>| {
            let (waiting, uri) = waiting(is_named);
            let get = |query: &str| {
                let url = format!("{uri}?{query}");
                let call = Call::get(&url, Deadline::within(Duration::from_secs(20)));
                http.call(call).expect("an answer").status
            };
            for query in refused {
                assert_eq!(get(query), 400, "{query}");
            }
            assert_eq!((get(good), get(good)), (200, 409), "{good}");
            let outcome = waiting.outcome(Deadline::within(Duration::from_secs(20)));
            let outcome = outcome.as_ref().map(|code| code.as_str());
            assert_eq!(outcome.map_err(String::as_str), want);
        };
        let other = ["code=c1&state=abd", "code=c1", "code=c2&state=abc", EVIL];
        check(true, &other, GOOD, Ok("c1"));
        let broken = [
            "state=abc&iss=https%3A%2F%2Flogin.example",
            "state=abc&state=x&code=c1",
            "code=a&code=b&state=abc&iss=https%3A%2F%2Flogin.example",
        ];
        check(true, &broken, GOOD, Ok("c1"));
        check(false, &[EVIL], "code=c3&state=abc", Ok("c3"));
        check(
            false,
            &["error=access_denied&state=x"],
            "error=access_denied&error_description=Not%20today&state=abc",
            Err("the provider refused: access_denied Not today"),
        );
    }

    #[test]
    fn a_login_ends_when_nobody_comes() {
        let (waiting, _) = waiting(false);
        let outcome = waiting.outcome(Deadline::within(Duration::from_millis(20)));
        assert!(outcome.expect_err("nobody came").contains("--wait"));
    }

    #[test]
    fn the_table_is_sound() {
        assert_eq!(
            ron_service::topology_faults(&TOPOLOGY),
            Vec::<String>::new()
        );
    }
}
