//! The user at the other end of a Unix socket: both sides ask the kernel.
#![allow(clippy::disallowed_methods)] // tests start their own clients

mod support;

use std::io::{BufRead as _, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ron_http::{
    Call, CallError, ClientConfig, Failure, HttpClient, Limits, Listen, Need, Response, Route,
    Router, UnixEndpoint,
};
use ron_kernel::{Deadline, OsNet};
use support::{private, router, serve_on};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(8))
}

fn routes() -> Router {
    router().add(Route::get("/hello", Need::Public, |request| {
        Ok(Response::text(200, format!("{:?}", request.transport)))
    }))
}

#[test]
fn a_socket_for_local_programs_is_distinguished_from_that_of_services() {
    let dir = private();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("mode");
    let path = dir.path().join("client.sock");
    let unix = UnixEndpoint::bind_for_clients(&OsNet, &path, &[]).expect("bound");
    let _served = serve_on(
        Listen::on(OsNet::shared()).unix(unix),
        routes(),
        Limits::default(),
        1,
    );
    let url = format!("unix:{}:/hello", path.display());
    let client = HttpClient::new(ClientConfig::default());
    let reply = client.call(Call::get(&url, soon())).expect("an answer");
    let uid = rustix::process::geteuid().as_raw();
    let said = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!(said, format!("ClientSocket {{ uid: {uid} }}"));
}

/// The result of a call with a credential to the socket, by a client that trusts servers of these
/// users.
fn call_trusting(uids: &[u32], path: &Path) -> Result<u16, CallError> {
    let client = HttpClient::new(ClientConfig {
        peer_uids: uids.to_vec(),
        ..ClientConfig::default()
    });
    let url = format!("unix:{}:/hello", path.display());
    let headers = [("authorization", "Bearer ron_svc-wallet_secret")];
    let reply = client.call(Call::get(&url, soon()).headers(&headers));
    reply.map(|reply| reply.status)
}

fn refuses_foreign(error: &CallError, path: &Path, found: u32) {
    assert_eq!(error.kind, Failure::Withheld);
    let words = [
        format!("{} runs as uid {found}", path.display()),
        "nothing was sent".to_owned(),
        "peer_uids".to_owned(),
    ];
    for words in words {
        assert!(error.detail.contains(&words), "{error}");
    }
}

#[test]
fn a_server_of_another_user_is_sent_nothing() {
    let dir = private();
    let path = dir.path().join("api.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let uid = rustix::process::geteuid().as_raw();
    let error = call_trusting(&[uid + 1], &path).expect_err("a server of ours, not of theirs");
    refuses_foreign(&error, &path, uid);
    let (mut stream, _) = listener.accept().expect("it connected");
    let mut sent = Vec::new();
    stream.read_to_end(&mut sent).expect("closed");
    assert_eq!(sent, b"", "before a byte");
    drop(listener);
    std::fs::remove_file(&path).expect("ours");
    let unix = UnixEndpoint::bind(&OsNet, &path, &[]).expect("bound");
    let _served = serve_on(
        Listen::on(OsNet::shared()).unix(unix),
        routes(),
        Limits::default(),
        1,
    );
    assert_eq!(call_trusting(&[], &path), Ok(200), "our own by default");
    assert_eq!(call_trusting(&[uid + 1, uid], &path), Ok(200));
}

/// Listens as another user, says so, and prints the number of bytes that its first caller sent.
const IMPOSTOR: &str = r#"
use IO::Socket::UNIX;
$| = 1;
my $listener = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die $!;
print "listening\n";
printf "%d\n", $listener->accept->sysread(my $bytes, 1);
"#;

#[test]
fn a_server_that_really_runs_as_another_user_is_recognised() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return; // only root can start a process of another user
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open).expect("mode");
    let path = dir.path().join("api.sock");
    let mut impostor = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups", "perl", "-e"])
        .arg(IMPOSTOR)
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("setpriv and perl are installed");
    let mut said = std::io::BufReader::new(impostor.stdout.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "listening\n");
    let error = call_trusting(&[], &path).expect_err("an impostor");
    refuses_foreign(&error, &path, NOBODY);
    line.clear();
    said.read_line(&mut line).expect("it speaks");
    assert_eq!(line, "0\n", "it saw a connection and no byte");
    assert!(impostor.wait().expect("it ends").success());
}

#[test]
fn users_that_are_not_in_the_list_are_cut_off_before_they_are_heard() {
    let dir = private();
    let path = dir.path().join("api.sock");
    let uid = rustix::process::geteuid().as_raw();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("mode");
    let unix = UnixEndpoint::bind_for_clients(&OsNet, &path, &[uid + 1]).expect("bound");
    let served = serve_on(
        Listen::on(OsNet::shared()).unix(unix),
        routes(),
        Limits::default(),
        1,
    );
    assert_eq!(served.addr().port(), 0, "no TCP");
    // Root may connect everywhere, so when the test runs as root another user connects.
    let ask = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die; $s->autoflush(1); \
               print $s \"GET /hello HTTP/1.1\\r\\nHost: t\\r\\n\\r\\n\"; print while <$s>;";
    let mut command = if uid == 0 {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", "perl"]);
        command
    } else {
        Command::new("perl")
    };
    let asked = command.arg("-e").arg(ask).arg(&path).output();
    let asked = asked.expect("setpriv and perl are installed");
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "");
    served.until("counted", |s| {
        s.metric("t_http_rejects_total{reason=\"unix_user\"}") == 1
    });
}
