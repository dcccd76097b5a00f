//! Precedence, problems with their lines, golden texts, reload.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use ron_proto::Amount;
use ron_tlog::note::VerifierKey;

use super::*;

crate::settings! {
    struct Node {
        /// The name of the node.
        "id" => id: String, range("1", "8");
        /// How often it is read.
        "every" => every: Duration = "5s", range("1s", "1m");
    }
}
crate::settings! {
    struct Own {
        /// Jobs waiting to be signed.
        "queue.sign" => sign: usize = "512", range("1", "65536"), restart(Queues);
        /// The PIN of the vault.
        "vault.pin" => pin: Option<String>, secret, restart(Devices);
        /// Largest amount of one entry.
        "limits.amount" => amount: Amount = "1000", reloadable;
        /// The nodes to watch.
        "nodes" => nodes: Blocks<Node>, restart(Threads);
    }
}
static TABLE: Table = Table {
    service: "ron-test",
    defaults: &[
        (ChassisSettings::bind_addr, "127.0.0.1:7440"),
        (ChassisSettings::health_addr, "127.0.0.1:7445"),
    ],
    keys: Own::GROUPS,
};

fn load(text: &str) -> Result<Config, String> {
    Config::from_toml(&TABLE, Path::new("ron.toml"), text).map_err(|problems| join(&problems))
}

fn join(problems: &[ConfigProblem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_tables_have_no_faults() {
    assert_eq!(table_faults(&TABLE.rows()), Vec::<String>::new());
}

#[test]
fn every_spec_key_of_the_chassis_is_there_and_reloads_as_it_should() {
    let rows = TABLE.rows();
    let find = |name: &str| {
        rows.iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| panic!("{name} is missing"))
    };
    for name in [
        "bind_addr",
        "health_addr",
        "uds_path",
        "uds_only",
        "health_uds_path",
        "uds_allow_uids",
        "client_uds_path",
        "client_allow_uids",
        "peer_uids",
        "insecure_loopback",
        "max_conns",
        "read_timeout",
        "write_timeout",
        "idle_timeout",
        "request_deadline",
        "limits.max_body_bytes",
        "limits.decompress_ratio_cap",
        "http.workers",
        "data_dir",
        "amnesia",
        "tls.enabled",
        "tls.cert_path",
        "tls.key_path",
        "tls.client_ca_path",
        "tls.peer_ca_path",
        "log.format",
    ] {
        assert!(
            matches!(find(name).reload, Reload::No(_)),
            "{name} needs a restart"
        );
    }
    for name in [
        "drain_deadline",
        "limits.rate_per_second",
        "limits.burst",
        "limits.read_share_percent",
        "log.level",
        "auth.issuer",
        "auth.jwks_url",
        "auth.note_vkey",
        "auth.refresh_interval",
        "auth.region",
        "auth.principals",
        "actions.enable_reload",
        "actions.enable_shutdown",
    ] {
        assert_eq!(find(name).reload, Reload::Yes, "{name} reloads");
    }
    assert_eq!(
        find("bind_addr").default,
        "127.0.0.1:7440",
        "the service's own default"
    );
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let file = "read_timeout = \"1s\"\nwrite_timeout = \"1s\"\nidle_timeout = \"1s\"\n";
    let env = |name: &str| match name {
        "RON_TEST_WRITE_TIMEOUT" | "RON_TEST_IDLE_TIMEOUT" => Some("2s".to_owned()),
        _ => None,
    };
    let flags = [("idle_timeout".to_owned(), "3s".to_owned())];
    let config = Config::load(&TABLE, Some((Path::new("f.toml"), file)), &env, &flags).unwrap();
    let check = |key: &str, value: Duration, seconds: u64, origin: &str| {
        assert_eq!(value, Duration::from_secs(seconds), "{key}");
        assert_eq!(config.origin(key).to_string(), origin, "{key}");
    };
    let chassis = config.chassis();
    check("request_deadline", chassis.request_deadline, 5, "default");
    check("read_timeout", chassis.read_timeout, 1, "f.toml:1");
    check(
        "write_timeout",
        chassis.write_timeout,
        2,
        "environment RON_TEST_WRITE_TIMEOUT",
    );
    check("idle_timeout", chassis.idle_timeout, 3, "command line");
}

#[test]
fn every_problem_is_reported_with_its_line_and_what_to_do() {
    let text = "bind_adr = \"127.0.0.1:1\"\n\
                read_timeout = 5\n\
                write_timeout = \"5 s\"\n\
                max_conns = 0\n\
                amnesia = \"yes\"\n\
                http.workers = -1\n\
                uds_allow_uids = \"0\"\n\
                \n\
                [limits]\n\
                max_body_bytes = \"1GiB\"\n\
                max_bodybytes = \"1MiB\"\n\
                [log]\n\
                level = \"loud\"\n\
                [lgo]\n\
                level = \"info\"\n\
                [node]\n\
                [[nodes]]\n\
                id = \"a\"\n\
                evry = \"5s\"\n\
                [[nodes]]\n\
                every = \"2m\"\n";
    assert_eq!(
        load(text).unwrap_err(),
        "ron.toml:5: amnesia must be true or false, not string\n\
         ron.toml:1: bind_adr is not a known key; did you mean bind_addr?\n\
         ron.toml:6: http.workers must be a whole number, zero or more\n\
         ron.toml:15: lgo.level is not a known key; did you mean log.level?\n\
         ron.toml:10: limits.max_body_bytes must be between 1KiB and 64MiB\n\
         ron.toml:11: limits.max_bodybytes is not a known key; did you mean limits.max_body_bytes?\n\
         ron.toml:13: log.level must be one of error, warn, info, debug, trace\n\
         ron.toml:4: max_conns must be between 1 and 100000\n\
         ron.toml:16: node is not a known key; did you mean nodes?\n\
         ron.toml:19: nodes.evry is not a known key; did you mean every?\n\
         ron.toml:21: nodes.every must be between 1s and 1m\n\
         ron.toml:20: nodes.id is required\n\
         ron.toml:2: read_timeout must be a duration such as \"5s\" in quotes, not integer\n\
         ron.toml:7: uds_allow_uids must be a list such as [\"a\", \"b\"], not string\n\
         ron.toml:3: write_timeout must be a duration such as 250ms, 5s, 1m, 24h or 7d"
    );
}

#[test]
fn text_that_is_not_toml_is_located_and_not_quoted() {
    let error = load("a = 1\n[vault]\npin = \"12\"34\"\n").unwrap_err();
    assert!(error.starts_with("ron.toml:3: not valid TOML"), "{error}");
    assert!(!error.contains("34"), "{error}");
    let error = load("log.level = \"info\"\nlog.level = \"debug\"\n").unwrap_err();
    assert!(error.starts_with("ron.toml:2: not valid TOML"), "{error}");
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let check = |text: &str, wanted: &str| {
        let error = load(text).expect_err(wanted);
        assert!(error.contains(wanted), "{error}");
    };
    check(
        "amnesia = true\ndata_dir = \"/x\"\n",
        "ron.toml:2: data_dir is set, but amnesia = true",
    );
    check("tls.enabled = true\n", "tls.cert_path must be set too");
    check("tls.enabled = true\n", "tls.key_path must be set too");
    check("tls.key_path = \"/k\"\n", "tls.cert_path must be set too");
    check(
        "tls.client_ca_path = \"/c\"\n",
        "ron.toml:1: tls.client_ca_path is set, but tls.enabled is false",
    );
    check(
        "uds_allow_uids = [\"0\"]\n",
        "ron.toml:1: uds_allow_uids is set, but neither uds_path nor health_uds_path is",
    );
    check(
        "client_allow_uids = [\"0\"]\n",
        "ron.toml:1: client_allow_uids is set, but client_uds_path is not",
    );
    check(
        "uds_path = \"/x\"\nclient_uds_path = \"/x\"\n",
        "ron.toml:2: client_uds_path is the same path as uds_path",
    );
    check(
        "peer_uids = [\"root\"]\n",
        "ron.toml:1: peer_uids has entry 1, which is no user id",
    );
    check("uds_only = true\n", "uds_path must be set too");
    check(
        "uds_path = \"/x\"\nuds_only = true\n[tls]\nenabled = true\n",
        "tls.enabled is true, but uds_only leaves no TCP address",
    );
    check(
        "uds_path = \"/x\"\nuds_allow_uids = [\"root\"]\n",
        "ron.toml:2: uds_allow_uids has entry 1, which is no user id",
    );
    check(
        "auth.issuer = \"http://x\"\n",
        "auth.jwks_url must be set too",
    );
    let issuer = "[auth]\nissuer = \"http://x\"\njwks_url = \"http://x/j\"\n";
    check(issuer, "auth.note_vkey must be set where auth.issuer is");
    check(
        &format!("{issuer}note_vkey = [\"a+b\"]\n"),
        "ron.toml:4: auth.note_vkey has entry 1, not a usable verifier key",
    );
    let pin = VerifierKey::ed25519("http://x/policy", &[7; 32]).unwrap();
    check(
        &format!("{issuer}note_vkey = [\"{pin}\"]\nunpinned = true\n"),
        "ron.toml:5: auth.unpinned is true, but auth.note_vkey is set",
    );
    assert!(load(&format!("{issuer}unpinned = true\n")).is_ok());
    let block = |name: &str, sha: &str| {
        format!("[[auth.principals]]\nname = \"{name}\"\nsha256 = \"{sha}\"\n")
    };
    let sha = "ab".repeat(32);
    check(
        &format!("{}{}", block("a", &sha), block("a", &sha)),
        "two blocks named a",
    );
    check(&block("a", &"zz".repeat(32)), "64 hex digits");
    check(&block("a", "ab"), "64 hex digits");
    check(
        "[[auth.principals]]\nname = \"a\"\ncerts = [\"AB:CD\"]\n",
        "64 hex digits",
    );
    // That of a file begins at the file's directory.
    let flags = [("uds_path".to_owned(), "x.sock".to_owned())];
    let problems = Config::load(&TABLE, None, &|_| None, &flags).expect_err("relative");
    assert!(join(&problems).contains("uds_path must be absolute"));
}

#[test]
fn the_settings_of_the_authorizer_are_read_with_their_blocks() {
    let sha = "ab".repeat(32);
    let text = format!(
        "[auth]\nissuer = \"http://i\"\njwks_url = \"http://i/jwks.json\"\nunpinned = true\nrefresh_interval = \"5s\"\n\
         [[auth.principals]]\nname = \"svc-wallet\"\nsha256 = \"{sha}\"\nscopes = [\"ledger:commit\", \"ledger:read\"]\n"
    );
    let config = load(&text).unwrap();
    let auth = config.auth();
    let issuer = auth.issuer.as_ref().unwrap();
    assert_eq!(issuer.jwks_url, "http://i/jwks.json");
    assert_eq!(issuer.refresh, Duration::from_secs(5));
    let caller = &auth.principals[0];
    assert_eq!(caller.name, "svc-wallet");
    assert_eq!(caller.tenant.to_string(), "default");
    assert_eq!(caller.scopes.len(), 2);
    assert_eq!(caller.sha256, Some([0xab; 32]));
}

#[test]
fn secrets_are_never_shown_and_never_taken_from_flags() {
    let config = load("[vault]\npin = \"12345\"\n").unwrap();
    let pin = config.read::<Own>().unwrap().pin;
    assert_eq!(pin.as_deref(), Some("12345"));
    assert!(
        !config.render_effective().contains("12345"),
        "{}",
        config.render_effective()
    );
    let other = load("[vault]\npin = \"54321\"\n").unwrap();
    assert_eq!(
        config.diff(&other).summary(),
        "vault.pin: [redacted] -> [redacted]"
    );
    let error = join(&Config::from_pairs(&TABLE, &[("vault.pin", "12345")]).unwrap_err());
    assert!(
        error.contains("never taken from the command line") && !error.contains("12345"),
        "{error}"
    );
}

/// The whole texts; `RON_UPDATE_DOCS=1` rewrites the files after a change that is meant.
#[test]
fn golden_example_help_markdown_and_effective() {
    let effective = load("log.level = \"debug\"\n[[nodes]]\nid = \"p\"\n").unwrap();
    for (name, text) in [
        ("example.toml", render_example(&TABLE)),
        ("markdown.txt", render_markdown(&TABLE)),
        ("help.txt", render_help(&TABLE)),
        ("effective.toml", effective.render_effective()),
    ] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/golden");
        let path = dir.join(name);
        if std::env::var_os("RON_UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{}", path.display());
    }
}

#[test]
fn a_value_with_a_syntax_of_its_own_is_checked_where_it_is_set() {
    let error = load("limits.amount = \"1.5\"\n").unwrap_err();
    assert!(error.starts_with("ron.toml:1: limits.amount "), "{error}");
    let own = load("").unwrap().read::<Own>().unwrap();
    assert_eq!((own.amount, own.sign), (Amount(1000), 512));
    assert!(own.nodes.is_empty());
    let nodes = load("[[nodes]]\nid = \"p\"\n")
        .unwrap()
        .read::<Own>()
        .unwrap()
        .nodes;
    assert_eq!((nodes[0].id.as_str(), nodes[0].every.as_secs()), ("p", 5));
}

/// The example with its key lines uncommented, and the effective text, are files that load to the
/// same values.
#[test]
fn what_is_printed_loads_again() {
    let defaults = Config::from_pairs(&TABLE, &[]).unwrap();
    let example = render_example(&TABLE);
    let uncommented: Vec<&str> = example
        .lines()
        .take_while(|line| !line.contains("[["))
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.contains(" = ") && !rest.ends_with(')'))
                .unwrap_or(line)
        })
        .collect();
    let reloaded = load(&uncommented.join("\n")).unwrap();
    assert!(
        reloaded.diff(&defaults).is_empty(),
        "{}",
        reloaded.diff(&defaults).summary()
    );
    assert!(
        uncommented
            .iter()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'))
            .count()
            > 30
    );
    let again = load(&defaults.render_effective()).unwrap();
    assert!(again.diff(&defaults).is_empty());
}

#[test]
fn a_diff_names_what_needs_a_restart() {
    let old = load("max_conns = 10\n[log]\nlevel = \"info\"\n[[nodes]]\nid = \"a\"\n").unwrap();
    let new = load("max_conns = 11\n[log]\nlevel = \"debug\"\n[[nodes]]\nid = \"b\"\n").unwrap();
    let diff = old.diff(&new);
    assert_eq!(
        diff.summary(),
        "max_conns: 10 -> 11; log.level: \"info\" -> \"debug\"; nodes: 1 blocks -> 1 blocks, edited"
    );
    assert_eq!(
        diff.needs_restart(),
        [("max_conns", Restart::Front), ("nodes", Restart::Threads)]
    );
    assert!(old.diff(&old).is_empty());
}

#[test]
fn reread_sees_the_file_again_under_the_same_flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, "max_conns = 10\nread_timeout = \"1s\"\n").unwrap();
    let flags = [("read_timeout".to_owned(), "9s".to_owned())];
    let config = Config::load(
        &TABLE,
        Some((&path, &std::fs::read_to_string(&path).unwrap())),
        &|_| None,
        &flags,
    )
    .unwrap();
    std::fs::write(&path, "max_conns = 11\nread_timeout = \"2s\"\n").unwrap();
    let again = config.reread().unwrap();
    assert_eq!(
        (again.chassis().max_conns, again.chassis().read_timeout),
        (11, Duration::from_secs(9))
    );
    std::fs::remove_file(&path).unwrap();
    assert!(join(&config.reread().unwrap_err()).contains("cannot be read"));
}

#[test]
fn what_is_done_to_a_file_is_done_again_when_it_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let write = |text: &str| std::fs::write(&path, text).unwrap();
    let double = |text: &str| text.replace("= 1", "= 2");
    write("max_conns = 11\n");
    let text = double(&std::fs::read_to_string(&path).unwrap());
    let config = Config::from_toml(&TABLE, &path, &text)
        .unwrap()
        .rewritten_by(double);
    write("max_conns = 12\n");
    let once = config.reread().unwrap();
    write("max_conns = 13\n");
    let twice = once.reread().unwrap();
    let conns = [&config, &once, &twice].map(|c| c.chassis().max_conns);
    assert_eq!(conns, [21, 22, 23]);
}

#[test]
fn secret_files_must_be_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "s3cret\n").unwrap();
    let mode =
        |mode: u32| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o600);
    assert_eq!(read_secret_file(&path).unwrap().expose(), b"s3cret");
    for open in [0o640, 0o604, 0o620, 0o666] {
        mode(open);
        let error = read_secret_file(&path).unwrap_err();
        assert!(
            error.contains("chmod 600") && !error.contains("s3cret"),
            "{error}"
        );
    }
    mode(0o600);
    std::fs::write(&path, "\n").unwrap();
    assert!(read_secret_file(&path).unwrap_err().contains("empty"));
    assert!(
        read_secret_file(dir.path())
            .unwrap_err()
            .contains("regular")
    );
    assert!(
        read_secret_file(Path::new("/no/such"))
            .unwrap_err()
            .contains("/no/such")
    );
    let env = |name: &str| (name == "PIN").then(|| "1234".to_owned());
    assert_eq!(
        secret_from_env_or_file("env:PIN", &env).unwrap().expose(),
        b"1234"
    );
    assert!(
        secret_from_env_or_file("env:NONE", &env)
            .unwrap_err()
            .contains("NONE")
    );
}

#[test]
fn settings_of_another_table_are_an_error() {
    static OTHER: Table = Table {
        service: "ron-other",
        defaults: &[],
        keys: &[],
    };
    let config = Config::from_pairs(&OTHER, &[]).unwrap();
    let error = config.read::<Own>().unwrap_err().to_string();
    assert_eq!(error, "queue.sign is not a key of this table");
}

#[test]
fn relative_paths_of_a_file_begin_at_its_directory() {
    crate::settings! {
        struct Inner {
            /// Path of a module.
            "module" => module: PathBuf;
        }
    }
    crate::settings! {
        struct Places {
            /// Path of a file.
            "file" => file: Option<PathBuf>, restart(Files);
            /// Paths of other files.
            "files" => files: Paths, reloadable;
            /// Where the secret is.
            "pin" => pin: Option<SecretSource>, restart(Files);
            /// Blocks with paths in them.
            "blocks" => blocks: Blocks<Inner>, restart(Files);
        }
    }
    static PLACES: Table = Table {
        service: "ron-places",
        defaults: &[],
        keys: Places::GROUPS,
    };
    let text = "data_dir = \"data\"\nfile = \"../policy\"\nfiles = [\"a.json\", \"/b.json\"]\npin = \"my.pin\"\n\
                [[blocks]]\nmodule = \"m.so\"\n[[blocks]]\nmodule = \"/m.so\"\n";
    let read = |path: &str, text: &str, set: &[(&str, &str)]| {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let flags: Vec<_> = set.iter().map(own).collect();
        let is_named = path == "/etc/ron/x.toml";
        let env =
            |name: &str| (is_named && name == "RON_PLACES_FILE").then(|| "variable".to_owned());
        let config = Config::load(&PLACES, Some((Path::new(path), text)), &env, &flags);
        let config = config.map_err(|problems| join(&problems)).unwrap();
        (config.read::<Places>().unwrap(), config)
    };
    let (there, config) = read("/etc/ron/x.toml", text, &[]);
    let data_dir = |config: &Config| config.chassis().data_dir.clone();
    assert_eq!(data_dir(&config), Some("/etc/ron/data".into()));
    let all = [Path::new("/etc/ron/a.json"), Path::new("/b.json")];
    assert_eq!(there.files.0, all);
    let modules = there.blocks.iter().map(|one| one.module.as_path());
    let all = [Path::new("/etc/ron/m.so"), Path::new("/m.so")];
    assert_eq!(modules.collect::<Vec<_>>(), all);
    assert_eq!(there.pin, Some(SecretSource("/etc/ron/my.pin".to_owned())));
    // Variables and flags mean the working directory.
    assert_eq!(there.file, Some("variable".into()));
    let shown = config.render_effective();
    assert!(shown.contains("data_dir = \"/etc/ron/data\""), "{shown}");

    let (there, config) = read("x.toml", text, &[]);
    let here = std::env::current_dir().unwrap();
    assert_eq!(data_dir(&config), Some(here.join("data")));
    assert_eq!(there.file, Some(here.join("../policy")));
    let unset = "file = \"\"\nfiles = []\npin = \"env:PIN\"\n";
    let (there, _) = read("etc/x.toml", unset, &[]);
    assert_eq!((there.file, there.files.0.len()), (None, 0));
    assert_eq!(there.pin, Some(SecretSource("env:PIN".to_owned())));
    let (there, _) = read("x.toml", "", &[("file", "flag")]);
    assert_eq!(there.file, Some("flag".into()));
}

proptest! {
    #[test]
    fn no_file_text_panics(text in "[a-z\\[\\]=\"\\.\n 0-9#{}',-]{0,200}") {
        let _ = Config::from_toml(&TABLE, Path::new("x"), &text);
    }

    #[test]
    fn no_value_panics(key in prop::sample::select(TABLE.rows().iter().map(|row| row.name).collect::<Vec<_>>()), value in "\\PC{0,30}") {
        let _ = Config::from_pairs(&TABLE, &[(key, value.as_str())]);
    }
}
