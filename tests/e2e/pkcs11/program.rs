//! A program of ours: every failure has the return value of `docs/pkcs11-module.md`, and threads and forks leave nothing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use ron_tests::tools::{Process, signal};
use ron_tests::{Fleet, json, number, ok, pkcs11_module, python, until, workspace};
use serde_json::json;

use super::Rig;
use crate::kms_custody::service::{op_id, write_private};
use crate::newcomer::expired;

const OK: u64 = 0;
const ARGUMENTS_BAD: u64 = 0x7;
const DEVICE_ERROR: u64 = 0x30;
const DEVICE_MEMORY: u64 = 0x31;
const DEVICE_REMOVED: u64 = 0x32;
const KEY_HANDLE_INVALID: u64 = 0x60;
const KEY_FUNCTION_NOT_PERMITTED: u64 = 0x68;
const USER_NOT_LOGGED_IN: u64 = 0x101;
const FUNCTION_REJECTED: u64 = 0x200;

/// Runs in one process while things happen to the service.
struct Program {
    #[expect(dead_code, reason = "ended on drop")]
    child: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn script(command: &mut Command) -> &mut Command {
    let script = workspace().join("tests/interop/pkcs11_program.py");
    command.arg(script)
}

impl Program {
    fn start(mut command: Command) -> Self {
        let child = script(&mut command)
            .arg("lines")
            .arg(pkcs11_module())
            .arg("ec");
        let mut child = child
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child: Process(child),
        }
    }

    fn of(rig: &Rig) -> Self {
        let mut program = Self::start(rig.program(super::text(&python())));
        // Repeated where a test gives a call little time.
        until("the keys are found", || program.ask("find") == OK);
        program
    }

    /// The return value of a command.
    fn ask(&mut self, command: &str) -> u64 {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let hex = line.trim().trim_start_matches("0x");
        u64::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("{command}: {line}"))
    }
}

#[test]
fn a_service_that_is_killed_or_hangs_and_keys_that_change_are_told_apart() {
    let mut rig = Rig::start_with("", "timeout_ms = 5000");
    let mut program = Program::of(&rig);
    assert_eq!(program.ask("sign"), OK);
    assert_eq!(program.ask("random"), OK);
    assert_eq!(program.ask("nulls"), ARGUMENTS_BAD);
    assert_eq!(program.ask("sign"), OK);
    let pid = rig.service.pid();
    signal(pid, "-STOP");
    assert_eq!(program.ask("sign"), DEVICE_ERROR);
    signal(pid, "-CONT");
    assert_eq!(program.ask("sign"), OK);
    rig.service.kill();
    assert_eq!(program.ask("sign"), DEVICE_REMOVED);
    assert_eq!(program.ask("find"), DEVICE_REMOVED);
    rig.service.again();
    assert_eq!(program.ask("find"), OK);
    assert_eq!(program.ask("sign"), OK);
    // The object was a version that signs no more; a new search finds the next one.
    let _ = ok(&rig.service.ron(&["rotate", rig.key("ec")]));
    assert_eq!(program.ask("sign"), KEY_HANDLE_INVALID);
    assert_eq!(program.ask("find"), OK);
    assert_eq!(program.ask("sign"), OK);
}

#[test]
fn a_full_queue_is_told_apart() {
    // No second attempt within the time of a call.
    let rig = Rig::start_with("queues.sign = 1", "timeout_ms = 100");
    let hash = json!({"alg": "sha256", "value": "ab".repeat(32)});
    let batch = json!({"key": rig.key("rsa"), "items": vec![json!({"prehash": hash}); 500]});
    let mut program = Program::of(&rig);
    let full = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !full.load(Ordering::Relaxed) {
                    let _ = rig.service.try_post("sign_batch", &batch);
                }
            });
        }
        until("the queue was full", || {
            let value = program.ask("sign");
            assert!(
                [OK, DEVICE_ERROR, DEVICE_MEMORY].contains(&value),
                "{value:#x}"
            );
            value == DEVICE_MEMORY
        });
        full.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_token_file_is_read_at_each_call() {
    let fleet = Fleet::start();
    let body = json!({
        "tenant": "default", "purpose": "web", "alg": "ecdsa-p256", "payload": "prehash", "op_id": op_id(1),
    });
    let (keys, all) = (
        format!("{}/v1/kms/keys", fleet.api("ron-kms")),
        fleet.token("ron-kms", None),
    );
    let made = json(&fleet.post(&keys, Some(&all), &body.to_string(), &[]), 201);
    let token = fleet.dir().join("web.token");
    let config = format!(
        "url = \"{}\"\ntoken_file = \"{}\"\n[[token]]\ntenant = \"default\"\npurpose = \"web\"\n[token.keys]\nec = \"{}\"\n",
        fleet.api_socket("ron-kms"),
        token.display(),
        made["key"].as_str().unwrap()
    );
    let path = fleet.dir().join("pkcs11.toml");
    std::fs::write(&path, config).unwrap();
    write_private(&token, &fleet.token("ron-kms", Some("kms:read kms:sign")));
    let mut command = Command::new(python());
    command.env("RON_PKCS11_CONFIG", &path);
    let mut program = Program::start(command);
    assert_eq!(program.ask("find"), OK);
    assert_eq!(program.ask("sign"), OK);
    // Random bytes need a right of their own, `kms:wrap`.
    assert_eq!(program.ask("random"), FUNCTION_REJECTED);
    write_private(&token, &expired(&fleet, "ron-kms"));
    assert_eq!(program.ask("sign"), USER_NOT_LOGGED_IN);
    assert_eq!(program.ask("find"), USER_NOT_LOGGED_IN);
    write_private(&token, &fleet.token("ron-kms", Some("kms:read")));
    assert_eq!(program.ask("find"), OK);
    assert_eq!(program.ask("sign"), KEY_FUNCTION_NOT_PERMITTED);
    std::fs::remove_file(&token).unwrap();
    assert_eq!(program.ask("sign"), USER_NOT_LOGGED_IN);
    write_private(&token, &fleet.token("ron-kms", Some("kms:read kms:sign")));
    assert_eq!(program.ask("sign"), OK);
}

/// 400 signatures, or as many as `RON_PKCS11_OPS` says, by eight threads, with some thirty children that sign too.
#[test]
fn threads_and_forks_sign_and_leave_nothing() {
    let rig = Rig::start();
    let count = number("RON_PKCS11_OPS", 400).to_string();
    let mut program = rig.program(super::text(&python()));
    script(&mut program)
        .arg("threads")
        .arg(pkcs11_module())
        .args(["ec", &count, "8"]);
    let said = ok(&program.output().unwrap());
    let made: u64 = said.trim().parse().unwrap();
    rig.logged("ec", made);
}
