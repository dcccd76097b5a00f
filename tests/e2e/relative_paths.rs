//! A configuration with relative paths means the directory of its file: wherever the service starts, and in a copy of the directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ron_http::Call;
use ron_kernel::Deadline;
use ron_tests::tools::{Process, service};
use ron_tests::{CALL, copy_tree, http_client, ok, ron_binary, until};

const CONFIG: &str =
    "uds_path = \"api.sock\"\nhealth_uds_path = \"health.sock\"\ndata_dir = \"data\"\n";

/// The verifier key of the ledger that a configuration file in `dir` describes, started in `elsewhere`.
fn vkey(dir: &Path, config: &Path, elsewhere: &Path) -> String {
    let mut command = service("ron-ledger", config, ["log.level=warn"]);
    let mut process = Process::start(command.current_dir(elsewhere));
    let http = http_client();
    let get = |socket: &str, path: &str| {
        let url = format!("unix:{}:{path}", dir.join(socket).display());
        http.call(Call::get(&url, Deadline::within(CALL)))
    };
    until("it is ready", || {
        get("health.sock", "/readyz").is_ok_and(|reply| reply.status == 200)
    });
    let lock = fs::read_to_string(dir.join("data/LOCK")).unwrap();
    assert_eq!(lock.trim(), process.id().to_string());
    let key = get("api.sock", "/log/v1/vkey").unwrap().body;
    assert_eq!(process.stop(), Some(0));
    String::from_utf8(key).unwrap()
}

#[test]
fn a_copy_of_a_directory_has_its_own_data_wherever_the_service_starts() {
    let place = tempfile::tempdir().unwrap();
    let [one, two, elsewhere] = ["one", "two", "elsewhere"].map(|name| place.path().join(name));
    for dir in [&one, &elsewhere] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
    }
    fs::write(one.join("config.toml"), CONFIG).unwrap();
    let relative = PathBuf::from("../one/config.toml");
    let made = vkey(&one, &relative, &elsewhere);
    copy_tree(&one, &two);
    let lock = || fs::read(one.join("data/LOCK")).unwrap();
    let before = lock();
    assert_eq!(vkey(&two, &two.join("config.toml"), &elsewhere), made);
    assert_eq!(before, lock(), "the original was not opened");

    let run = |command: &mut Command| ok(&command.current_dir(&elsewhere).output().unwrap());
    let none: [&str; 0] = [];
    let shown = run(service("ron-ledger", &relative, none).arg("check-config"));
    let data = elsewhere.join("../one/data");
    let line = format!("data_dir = \"{}\"", data.display());
    assert!(shown.contains(&line), "{shown}");
    let mut doctor = Command::new(ron_binary());
    doctor.args(["doctor", "--service", "ron-ledger", "--config"]);
    let found = run(doctor.arg(&relative));
    let room = format!("free under {}", data.display());
    assert!(found.contains(&room), "{found}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}
