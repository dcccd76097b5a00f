//! Runs the blocks that pages mark with `<!-- run -->`, unchanged, page by page.
//! (`tests/docs/commands.rs` checks that a page with the mark is here.)
//!
//! Only places are replaced: ports, `/srv/ron`, `/etc/ron` and `/tmp` become free ports and
//! temporary directories, and `cargo` and `apt-get` do nothing, because the programs they would
//! build or install exist already.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use ron_tests::{Fleet, SERVICES, base_port, free_port, ok, python, ron_binary, workspace};
use tempfile::TempDir;

/// The marked blocks of a page, in order, with their language.
fn marked(page: &str) -> Vec<(String, String)> {
    below(page, "<!-- run -->")
}

/// The blocks of a page that stand below a mark.
pub fn below(page: &str, mark: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(workspace().join(page)).unwrap();
    let parts = text.split(mark).skip(1);
    let block = |part: &str| {
        let (tag, rest) = part.trim_start().strip_prefix("```")?.split_once('\n')?;
        Some((tag.to_owned(), rest.split("\n```").next()?.to_owned()))
    };
    let blocks: Vec<_> = parts.map(|part| block(part).expect("a block")).collect();
    assert!(!blocks.is_empty(), "{page} has nothing to run");
    blocks
}

/// How each script begins: its jobs end with it.
const SHELL: &str = "set -euo pipefail\nset -m\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";

/// The environment of a page's blocks: a home directory with nothing but what the page makes.
pub struct Room {
    home: TempDir,
    /// Base port of the six services, in place of the page's default ports.
    base: u16,
}

impl Room {
    pub fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        for dir in ["etc/ron", "srv", "bin", "tmp", "state"] {
            fs::create_dir_all(home.path().join(dir)).unwrap();
        }
        let room = Self {
            home,
            base: base_port(),
        };
        let bin = ron_binary();
        for name in SERVICES {
            symlink(bin.with_file_name(name), room.path("bin").join(name)).unwrap();
        }
        let real = bin.display();
        // `init` and `up` get the free ports where the page leaves the port out.
        let ron = format!(
            "#!/bin/sh\ncase $1 in init | up) exec {real} \"$@\" --base-port {} ;; esac\nexec {real} \"$@\"\n",
            room.base
        );
        room.tool("ron", &ron);
        for name in ["cargo", "apt-get", "pip"] {
            room.tool(name, "#!/bin/sh\nexit 0\n");
        }
        room
    }

    fn tool(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub fn path(&self, inside: &str) -> PathBuf {
        self.home.path().join(inside)
    }

    /// The text with its places replaced.
    pub fn placed(&self, text: &str) -> String {
        let home = self.home.path().display();
        ported(text, self.base)
            .replace("/tmp/", &format!("{home}/tmp/"))
            .replace("/srv/ron", &format!("{home}/srv/ron"))
            .replace("/etc/ron", &format!("{home}/etc/ron"))
            .replace("$PWD/target/release", &format!("{home}/bin"))
            .replace("./target/release", &format!("{home}/bin"))
    }

    /// The marked blocks of shell of a page as one script.
    fn script(&self, page: &str) -> String {
        let blocks = marked(page).into_iter().map(|(tag, text)| {
            assert_eq!(tag, "sh", "{page}");
            text
        });
        self.placed(&blocks.collect::<Vec<_>>().join("\n"))
    }

    /// A shell in `cwd` with the environment of a page's blocks.
    pub fn command(&self, cwd: &Path, script: &str) -> Command {
        let path = std::env::var("PATH").unwrap();
        let python = python();
        let venv = python.parent().unwrap().display();
        let mut bash = Command::new("bash");
        bash.args(["-c", script])
            .current_dir(cwd)
            .env(
                "PATH",
                format!("{}:{venv}:{path}", self.path("bin").display()),
            )
            .env("XDG_STATE_HOME", self.path("state"));
        bash
    }

    /// Runs shell in `cwd`, and ends what it has left running; returns its output.
    fn shell(&self, cwd: &Path, script: &str) -> String {
        let mut bash = self.command(cwd, &format!("{SHELL}{script}"));
        ok(&bash.output().unwrap())
    }
}

/// The text with the default ports, 7440 to 7495, moved to `base`.
fn ported(text: &str, base: u16) -> String {
    let digit = |c: char| c.is_ascii_digit();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(digit) {
        let end = rest[at..]
            .find(|c| !digit(c))
            .map_or(rest.len(), |n| at + n);
        out.push_str(&rest[..at]);
        match rest[at..end].parse::<u16>() {
            Ok(port @ 7440..=7495) => out.push_str(&(base + port - 7440).to_string()),
            _ => out.push_str(&rest[at..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}

#[test]
fn ports_are_moved_once() {
    assert_eq!(
        ported("a:7440 7445, 74400 x7495", 17_400),
        "a:17400 17405, 74400 x17455"
    );
}

/// Runs all marked blocks of shell of a page as one script in the workspace.
fn run_page(room: &Room, page: &str) -> String {
    room.shell(&workspace(), &room.script(page))
}

#[test]
fn separate_processes_run_the_loop_and_end() {
    let room = Room::new();
    // `jobs -p` after the last command: all six were signalled, and the test waits for them.
    let blocks = marked("docs/separate-processes.md");
    let script = format!(
        "{}\nfor job in $(jobs -p); do wait $job; done\necho ended\n",
        room.placed(&blocks[0].1)
    );
    let said = room.shell(&workspace(), &script);
    assert!(said.contains("eyJ"), "a token: {said}");
    assert!(
        said.trim_end().ends_with("ended"),
        "each exits with 0: {said}"
    );
}

#[test]
fn a_witness_starts_as_the_page_says() {
    let room = Room::new();
    let said = run_page(&room, "docs/witness.md");
    assert!(said.contains("witness"), "{said}");
}

#[test]
fn a_token_is_made_as_the_page_says() {
    let room = Room::new();
    let tokens = room.path("tokens");
    fs::create_dir(&tokens).unwrap();
    let conf = room.path("softhsm2.conf");
    fs::write(
        &conf,
        format!("directories.tokendir = {}\n", tokens.display()),
    )
    .unwrap();
    let text = &marked("docs/backends.md")[0].1;
    let script = format!(
        "export SOFTHSM2_CONF={}\n{}\nsofthsm2-util --show-slots",
        conf.display(),
        room.placed(text)
    );
    let said = room.shell(&workspace(), &script);
    let label = |line: &str| line.trim().starts_with("Label:") && line.trim().ends_with(" ron");
    assert!(said.lines().any(label), "{said}");
    let pin = fs::metadata(room.path("etc/ron/hsm.pin")).unwrap();
    assert_eq!(pin.permissions().mode() & 0o777, 0o600);
}

#[test]
fn vault_clients_work_as_the_page_says() {
    let room = Room::new();
    let fleet = Fleet::start();
    let blocks = marked("docs/vault-transit.md");
    assert_eq!(blocks[0].0, "python");
    let usual = "http://127.0.0.1:7440";
    assert!(blocks[0].1.contains(usual), "{}", blocks[0].1);
    let script = room.path("tmp/page.py");
    fs::write(&script, blocks[0].1.replace(usual, &fleet.api("ron-kms"))).unwrap();
    symlink(fleet.dir(), room.path("state/ron")).unwrap();
    let run = format!("{} {}", python().display(), script.display());
    room.shell(&room.path("tmp"), &run);
    let listed = fleet.get(
        &format!("{}/v1/transit/keys?list=true", fleet.api("ron-kms")),
        Some(&fleet.token("ron-kms", None)),
    );
    assert!(String::from_utf8_lossy(&listed.body).contains("mail"));
}

#[test]
fn an_epoch_is_recomputed_as_the_page_says() {
    let said = run_page(&Room::new(), "examples/rocketpool/README.md");
    assert!(
        said.contains("commitment") || said.contains("b3:"),
        "{said}"
    );
}

#[test]
fn the_files_for_prometheus_are_checked_as_the_page_says() {
    let said = run_page(&Room::new(), "docs/ops/README.md");
    assert!(said.contains("SUCCESS"), "{said}");
}

/// A `cargo` that runs the binaries built before.
const CARGO_RUN: &str = "#!/bin/sh\nwhile [ \"$1\" != --bin ]; do shift; done\nname=$2\nshift 3\nexec \"$name\" \"$@\"\n";

/// An environment in which `cargo run --bin NAME` finds the programs of `examples/embed`.
fn embedding_room() -> Room {
    let room = Room::new();
    for part in ["custody", "ledger", "passport", "rewards"] {
        let name = format!("embed-{part}");
        let program = ron_binary().with_file_name(&name);
        assert!(program.exists(), "{name}: cargo build --workspace --bins");
        symlink(program, room.path("bin").join(name)).unwrap();
    }
    room.tool("cargo", CARGO_RUN);
    room
}

#[test]
fn embedded_programs_run_as_the_page_says() {
    let said = run_page(&embedding_room(), "docs/embedding.md");
    for words in ["2 signatures", "3 entries verified", "a forged proof fails"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_passport_is_judged_as_the_page_says() {
    let (room, fleet) = (embedding_room(), Fleet::start());
    symlink(fleet.dir(), room.path("state/ron")).unwrap();
    let blocks = below("docs/embedding.md", "<!-- run by: documented -->");
    // The issuer's name stays the default one, whatever its port is.
    let text = blocks[0]
        .1
        .replace("/tmp/", &format!("{}/", room.path("tmp").display()));
    let said = room.shell(&workspace(), &text);
    assert!(said.contains("let in: "), "{said}");
}

/// Most commands that the page about a Flask application may ask for.
const COMMANDS_MAX: usize = 14;

#[test]
fn an_api_is_protected_and_called_as_the_page_says() {
    let page = "docs/protect-an-api.md";
    let room = Room::new();
    let (usual, port) = (":5000", format!(":{}", free_port()));
    let placed = |text: &str| {
        let state = format!("{}/", room.path("state").display());
        let text = room.placed(text).replace("~/.local/state/", &state);
        text.replace(usual, &port)
            .replace("--port 5000", &format!("--port {}", &port[1..]))
    };
    let blocks: Vec<String> = marked(page).into_iter().map(|(_, text)| text).collect();
    let lines = blocks.iter().flat_map(|text| text.lines());
    assert!(lines.count() <= COMMANDS_MAX, "{page} asks for too much");
    let app = below(page, "<!-- run by: documented -->");
    let (language, app) = &app[0];
    assert_eq!(
        (language.as_str(), app.matches("7450").count()),
        ("python", 1)
    );
    fs::write(room.path("tmp/orders.py"), placed(app)).unwrap();
    // What the page says of revoking and of asking why comes after its commands.
    let script = format!("{}\n{AFTERWARDS}", placed(&blocks.join("\n")));
    let said = room.shell(&room.path("tmp"), &script);
    for words in [
        r#"{"error":"Bearer"}"#,
        r#"{"caller":"ci","orders":[17,18]}"#,
        r#"insufficient_scope\", scope=\"orders:write\""#,
        "statuses: 401 401 403 200 401 503",
        "client ci is removed",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn services_in_three_languages_verify_tokens_as_the_page_shows() {
    let page = "docs/verify-tokens.md";
    let room = Room::new();
    let dir = room.path("tmp");
    let names = [
        ("python", "check.py"),
        ("js", "check.mjs"),
        ("go", "check.go"),
    ];
    let programs = below(page, "<!-- run by: documented -->");
    assert_eq!(programs.len(), names.len());
    for ((language, program), (tag, name)) in programs.iter().zip(names) {
        assert_eq!(
            (language.as_str(), program.matches("7450").count()),
            (tag, 1)
        );
        fs::write(dir.join(name), room.placed(program)).unwrap();
    }
    symlink(
        workspace().join("tests/interop/node_modules"),
        dir.join("node_modules"),
    )
    .unwrap();
    let script = format!(
        "export GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE={}\n{}\n{OTHERS}",
        std::env::temp_dir().join("ron-go-cache").display(),
        room.script(page)
    );
    let said = room.shell(&dir, &script);
    assert_eq!(said.matches("good: ci").count(), 3, "{said}");
    // Python, Node, Go; for each kind of token.
    let kinds = [
        "bound",
        "condition",
        "altered",
        "other",
        "scopeless",
        "list",
        "none",
    ];
    for kind in kinds {
        let line = format!("{kind}: refused refused refused");
        assert!(said.contains(&line), "{kind}: {said}");
    }
}

/// Tokens that each program has to refuse: bound to a key, with a condition, altered, for another audience, without the scope, of
/// another type, not signed.
const OTHERS: &str = r#"
of() { ron token --client ci --audience https://orders.example.org/ "$@"; }
ron audience add reports --scope read > /dev/null
ron client add ci --audience reports --scope read > /dev/null
ron client add writer --audience https://orders.example.org/ --scope orders:write --secret > /dev/null
ron token key holder > /dev/null
of --key holder > bound
of --caveat region=eu > condition
head -c -20 token > altered; printf 'AAAAAAAAAAAAAAAAAAAA' >> altered
ron token --client ci --audience reports > other
ron token --client writer --audience https://orders.example.org/ > scopeless
uri=$(python -c "import jwt, sys; print(jwt.decode(sys.stdin.read().strip(), options={'verify_signature': False})['status']['status_list']['uri'])" < token)
curl -s $uri > list
printf '%s.%s.' "$(printf '{"alg":"none","typ":"at+jwt"}' | base64 -w0 | tr -d '=')" "$(cut -d. -f2 token)" > none
verdict() { if "$@" > said 2>&1; then echo good; elif grep -q ^refused: said; then echo refused; else cat said; fi; }
go build -o check check.go
for kind in bound condition altered other scopeless list none; do
  echo "$kind: $(verdict python check.py < $kind) $(verdict node check.mjs < $kind) $(verdict ./check < $kind)"
done
"#;

#[test]
fn a_pod_gets_a_passport_for_its_service_account_token() {
    let page = "docs/workloads.md";
    let room = Room::new();
    let dir = room.path("tmp");
    let commands = room
        .script(page)
        .replace("/var/run/secrets/ron/token", "pod.token");
    // In place of the cluster: its keys, and the token of a pod, made by PyJWT.
    room.tool("kubectl", "#!/bin/sh\ncat keys.json\n");
    let script = format!(
        "python - <<'PY'\n{CLUSTER}PY\n{commands}\n{}",
        "python -c \"import jwt, sys; print(jwt.decode(sys.stdin.read().strip(), options={'verify_signature': False}))\" < passport"
    );
    let said = room.shell(&dir, &script);
    for words in [
        "'sub': 'worker'",
        "'scope': 'orders:read'",
        "https://orders.example.org/",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

const CLUSTER: &str = r#"
import json, time
import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

key = rsa.generate_private_key(65537, 2048)
public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
json.dump({"keys": [{**public, "kid": "cluster-1", "use": "sig", "alg": "RS256"}]}, open("keys.json", "w"))
now = int(time.time())
claims = {"iss": "https://kubernetes.default.svc.cluster.local", "sub": "system:serviceaccount:prod:worker", "aud": ["ron"],
          "iat": now, "nbf": now, "exp": now + 3600, "jti": "pod-1",
          "kubernetes.io": {"namespace": "prod", "serviceaccount": {"name": "worker"}}}
open("pod.token", "w").write(jwt.encode(claims, key, algorithm="RS256", headers={"kid": "cluster-1"}))
"#;

/// Without a token, with one of another audience, without the scope, and with a good one; with one that is bound; while the
/// issuer is down and its keys were not read yet.
const AFTERWARDS: &str = r#"
api=$(sed -n 's/^ *\* Running on //p' flask.log)/orders
status() { curl -s -o /dev/null -w '%{http_code}' "$@" $api; }
other=$(ron token --audience svc-wallet)
ron token key holder > /dev/null
bound=$(ron token --client ci --audience https://orders.example.org/ --key holder)
seen="$(status) $(status -H "Authorization: Bearer $other") $(status -X POST -H "Authorization: Bearer $TOKEN")"
seen="$seen $(status -H "Authorization: Bearer $TOKEN") $(status -H "Authorization: Bearer $bound")"
ron client remove ci
kill %1; wait %1 || true
kill %2; wait %2 || true
port=${api##*:}
flask --app orders run --port ${port%%/*} > again.log 2>&1 &
until curl -s -o /dev/null $api; do sleep 1; done
echo "statuses: $seen $(status -H "Authorization: Bearer $TOKEN")"
"#;
