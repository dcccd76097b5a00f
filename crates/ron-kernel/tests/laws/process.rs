//! Law 4 on a real process: a signal starts the drain, a second one ends the process at once, and
//! the exit code reports the result. The process is this test binary, run as one of its own tests.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use ron_kernel::{Deadline, Shutdown, Signal, Signals, exit};
use rustix::process::{Pid, Signal as Sent, kill_process};

use crate::{WORKERS, WRITER, far, rig, until};

/// Environment variable with the behaviour of the child.
const MODE: &str = "LAWS_CHILD";

/// Not a test of its own: the body of the child process.
#[test]
#[ignore = "run by the other tests of this file"]
fn child() {
    let Ok(mode) = std::env::var(MODE) else {
        return;
    };
    let signals = Signals::install().expect("signals can be installed");
    let rig = rig();
    rig.sup.spawn(&WRITER, |ctx| {
        ctx.shutdown.wait(far());
    });
    if mode == "deaf" {
        rig.sup.spawn_pool(&WORKERS, 1, |_| {
            let (_trigger, never) = Shutdown::pair();
            never.wait(far());
        });
    }
    println!("ready");
    loop {
        match signals.recv(Deadline::within(Duration::from_millis(20))) {
            Some(Signal::Reload) => println!("reload"),
            Some(Signal::Terminate) => break,
            None => {}
        }
    }
    println!("draining");
    if mode == "slow" {
        std::thread::sleep(Duration::from_secs(30));
    }
    let report = rig.sup.drain(Duration::from_millis(300));
    println!("stragglers {:?}", report.stragglers);
    std::process::exit(i32::from(rig.sup.exit_code(&report)));
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(mode: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "process::child", "--ignored", "--nocapture"])
            .env(MODE, mode)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this binary runs again");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut process = Self { child, lines };
        process.says("ready");
        process
    }

    /// Reads until a line ends with `word`; the end of the output fails the test.
    fn says(&mut self, word: &str) {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        assert!(lines.any(|l| l.ends_with(word)), "never said `{word}`");
    }

    fn send(&self, signal: Sent) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is alive");
    }

    fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status.expect("it ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn law_4_terminate_drains_and_reload_does_not() {
    for signal in [Sent::TERM, Sent::INT] {
        let mut process = Process::start("clean");
        process.send(Sent::HUP);
        process.says("reload");
        process.send(signal);
        process.says("stragglers []");
        assert_eq!(process.ends().code(), Some(i32::from(exit::OK)));
    }
}

#[test]
fn law_4_a_straggler_is_named_and_the_exit_code_is_3() {
    let mut process = Process::start("deaf");
    process.send(Sent::TERM);
    process.says("stragglers [\"l-work-0\"]");
    assert_eq!(process.ends().code(), Some(3));
}

#[test]
fn law_4_a_second_signal_ends_the_process_at_once() {
    let mut process = Process::start("slow");
    process.send(Sent::TERM);
    process.says("draining");
    process.send(Sent::INT);
    assert_eq!(process.ends().code(), Some(130));
}
