//! People: `ron login` at a company's OpenID provider (npm oidc-provider) through a browser, the commands that act with
//! its passport, and `ron logout`.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ron_tests::issuer::claims;
use ron_tests::tools::{Desktop, Process, wait_listening};
use ron_tests::{Fleet, free_port, ok, ron_binary, workspace};
use serde_json::json;

/// The secret of the application that has one: its characters must be encoded.
const SECRET: &str = "a%b:c+d/e f";

/// A company's provider, for the application `ron`, and for `ron-with-secret`, which proves itself by this method.
fn company(method: &str) -> (Process, String) {
    let port = free_port();
    let mut command = Command::new("node");
    let script = workspace().join("tests/interop/company.mjs");
    command.arg(script).arg(port.to_string());
    command.args(["ron", SECRET, method]);
    let process = Process::start(command.stderr(Stdio::null()));
    wait_listening(("127.0.0.1", port));
    (process, format!("http://127.0.0.1:{port}"))
}

/// A person at a terminal, who keeps logins in a home of their own.
struct Person<'a> {
    fleet: &'a Fleet,
    home: tempfile::TempDir,
}

impl Person<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(ron_binary());
        command.args(line.split(' '));
        command.env("XDG_STATE_HOME", self.home.path());
        command
    }

    fn ron(&self, line: &str) -> Output {
        let mut command = self.command(line);
        let dir = self.fleet.dir();
        command.arg("--data-dir").arg(dir).output().unwrap()
    }

    fn refused(&self, line: &str, words: &str) {
        let out = self.ron(line);
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(
            !out.status.success() && why.contains(words),
            "{line}: {why}"
        );
    }

    /// The file of the only login.
    fn login(&self) -> Option<PathBuf> {
        let found = std::fs::read_dir(self.home.path().join("ron-login")).ok()?;
        let mut found: Vec<PathBuf> = found.map(|entry| entry.unwrap().path()).collect();
        assert!(found.len() < 2, "{found:?}");
        found.pop()
    }

    /// Signs in with a browser, which `login.mjs` steers; the output of the command and the last page.
    fn signs_in(&self, args: &[&str], steps: &[&str]) -> (Output, String) {
        let mut command = self.command("login --no-browser --data-dir");
        command.arg(self.fleet.dir()).args(args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Process(child.spawn().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (mut first, mut page) = (String::new(), String::new());
        lines.read_line(&mut first).unwrap();
        assert_eq!(first, "sign in at:\n");
        lines.read_line(&mut page).unwrap();
        let browser = Command::new("node")
            .arg(workspace().join("tests/browser/login.mjs"))
            .arg(page.trim())
            .args(steps)
            .output();
        let shown = ok(&browser.unwrap());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        lines.read_to_end(&mut stdout).unwrap();
        let errors = child.stderr.as_mut().unwrap();
        errors.read_to_end(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        let out = Output {
            status,
            stdout,
            stderr,
        };
        (out, shown)
    }
}

fn token_in(path: &Path) -> String {
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn a_person_signs_in_at_the_company_and_acts_with_the_passport_until_logout() {
    let fleet = Fleet::start();
    let (_company, issuer) = company("client_secret_basic");
    let add = format!(
        "client add treasurer --audience svc-wallet --scope wallet:read --issuer {issuer} --jwks-url {issuer}/jwks \
         --issuer-audience ron --claim groups=payments-admins"
    );
    ok(&fleet.ron(&add.split(' ').collect::<Vec<_>>()));
    fleet.add_wallet_rules([
        json!({"tenant": "default", "principal": "treasurer", "accounts": ["acct:*"],
        "assets": ["ron"], "actions": ["read"]}),
    ]);
    let home = tempfile::tempdir().unwrap();
    let ada = Person {
        fleet: &fleet,
        home,
    };
    let read = "wallet balance acct:alice --asset ron";
    let write = "wallet issue acct:alice 5 --asset ron";
    ok(&ada.ron(write));
    let groups = ["--issuer", &issuer, "--openid-scope", "openid groups"];

    // A person whom the policy maps to no client gets nothing; nor does one without the claim.
    for (args, name) in [(&groups[..], "guest-1"), (&groups[..2], "ada")] {
        let (out, page) = ada.signs_in(args, &[name]);
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(page.contains("go back to the terminal"), "{page}");
        assert!(
            why.contains("maps the token to no client") && !out.status.success(),
            "{why}"
        );
        assert_eq!(ada.login(), None);
    }
    let (out, page) = ada.signs_in(&groups, &["ada", "deny"]);
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(page.contains("has not signed you in"), "{page}");
    assert!(why.contains("the provider refused: access_denied"), "{why}");

    let (out, page) = ada.signs_in(&groups, &["ada"]);
    assert!(page.contains("go back to the terminal"), "{page}");
    let said = ok(&out);
    assert!(
        said.contains("(client treasurer) for svc-wallet with wallet:read"),
        "{said}"
    );
    let kept = ada.login().expect("a login");
    let token = token_in(&kept);
    let claims = claims(&token);
    assert_eq!(claims["client_id"], "treasurer");
    let subject = claims["sub"].as_str().unwrap();
    assert!(said.contains(&format!("signed in as {subject} ")), "{said}");
    // The file names the issuer too, so that a login at another one leaves it.
    let issuer = claims["iss"].as_str().unwrap();
    let name = format!("{}@svc-wallet.token", ron_client::encode(issuer));
    assert!(kept.ends_with(&name), "{} {name}", kept.display());
    assert!(!said.contains(&token));

    // Commands act as the treasurer, who may read; a client that is named wins; another data directory has its own.
    ok(&ada.ron(read));
    ada.refused(write, "lacks the scope");
    ok(&ada.ron(&format!("{write} --client operator")));
    ok(&ada.ron("token issued --client treasurer"));
    let file = kept.display().to_string();
    ada.refused(&format!("{write} --token {file}"), "lacks the scope");

    let said = ok(&ada.command("logout").output().unwrap());
    assert!(
        said.contains("forgot the passport for svc-wallet"),
        "{said}"
    );
    assert_eq!(ada.login(), None);
    ok(&ada.ron(write));
    let said = ok(&ada.command("logout").output().unwrap());
    assert_eq!(said, "nobody is signed in\n");
}

#[test]
fn an_application_that_has_a_secret_proves_itself_as_the_provider_takes_it() {
    let fleet = Fleet::start();
    for method in ["client_secret_basic", "client_secret_post"] {
        let (_company, issuer) = company(method);
        let name = method.replace('_', "-");
        let add = format!(
            "client add {name} --audience svc-wallet --scope wallet:read --issuer {issuer} --jwks-url {issuer}/jwks \
             --issuer-audience ron-with-secret --subject ada"
        );
        ok(&fleet.ron(&add.split(' ').collect::<Vec<_>>()));
        let ada = Person {
            fleet: &fleet,
            home: tempfile::tempdir().unwrap(),
        };
        let sign_in = |secret: &str| {
            let file = ada.home.path().join("secret");
            std::fs::write(&file, secret).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            let file = file.to_str().unwrap();
            let of_app = ["--client-id", "ron-with-secret", "--client-secret-file"];
            let args = [&["--issuer", &*issuer], &of_app[..], &[file]].concat();
            ada.signs_in(&args, &["ada"])
        };
        let (out, _) = sign_in("another");
        let why = String::from_utf8_lossy(&out.stderr);
        assert!(why.contains("invalid_client"), "{method}: {why}");
        let (out, _) = sign_in(SECRET);
        let said = ok(&out);
        assert!(said.contains(&format!("(client {name})")), "{said}");
    }
}

#[test]
fn a_login_is_refused_before_a_person_gives_a_password_or_ends_in_time() {
    let fleet = Fleet::start();
    let (_company, issuer) = company("client_secret_basic");
    let home = tempfile::tempdir().unwrap();
    let ada = Person {
        fleet: &fleet,
        home,
    };
    ada.refused(
        "login --no-browser --issuer http://login.example.com",
        "neither https nor http on this host",
    );
    ada.refused(
        &format!("login --issuer {issuer}/"),
        "as the provider writes it",
    );
    let http = fleet.api("svc-passport");
    ada.refused(
        &format!("login --no-browser --issuer {issuer} --url {http}"),
        "over https or to a Unix socket alone",
    );
    ada.refused(
        &format!("login --issuer {issuer} --openid-scope profile"),
        "it must have openid",
    );
    let since = Instant::now();
    let desktop = Desktop::new();
    let mut command = ada.command(&format!("login --issuer {issuer} --wait 4s --data-dir"));
    let out = desktop.on(command.arg(fleet.dir())).output().unwrap();
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(why.contains("nobody has signed in in time"), "{why}");
    assert!(since.elapsed() < Duration::from_secs(20));
    let shown = String::from_utf8_lossy(&out.stdout);
    let (_, state) = shown.split_once("&state=").expect("an address");
    let state = state.split('&').next().unwrap();
    let (arguments, page) = desktop.opened();
    assert!(!arguments.contains(state), "{arguments}");
    assert!(page.contains(state), "{page}");
    assert_eq!(desktop.pages(), 0, "the page stays");
}
