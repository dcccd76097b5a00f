//! Words that stand in one place only, or nowhere.

use std::fs;
use std::process::Command;

use crate::tree::{Source, sources};
use crate::{report, root};

/// Places where `word` stands in the code of files that `watch` accepts.
fn places(all: &[&Source], word: &str, watch: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in all.iter().filter(|s| watch(s)) {
        for (n, line) in source.code.iter().enumerate() {
            if line.contains(word) {
                found.push(format!("{}:{}: {}", source.path, n + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn only_the_kernel_touches_threads_and_time() {
    let all = sources(&["crates", "bin"]);
    for word in [
        "crossbeam_channel",
        "parking_lot",
        "arc_swap",
        "std::thread",
        "thread::spawn",
        "Instant::now",
        "SystemTime::now",
        "std::sync::Mutex",
        "std::sync::RwLock",
        "std::sync::Condvar",
        "sync::mpsc",
        "available_parallelism",
    ] {
        report(
            &format!("`{word}` stands outside ron-kernel"),
            "threads are named and drained, time is a value, locks have ranks, queues have bounds: in one place",
            // The simulator stands below the kernel, in the place of the machine.
            &places(&all, word, |s| {
                !["ron-kernel", "ron-sim"].contains(&s.krate())
            }),
        );
    }
    report(
        "an unbounded channel",
        "every queue is bounded and says what it does when it is full",
        &places(&all, "unbounded(", |_| true),
    );
}

/// In the kernel itself only `sync` and what waits in the operating system do: everything else runs on the simulator.
#[test]
fn the_kernel_takes_time_and_waits_from_sync() {
    let all = sources(&["crates"]);
    let kernel = |s: &Source| {
        s.path.starts_with("crates/ron-kernel/src/")
            && !s.path.starts_with("crates/ron-kernel/src/sync/")
            && s.path != "crates/ron-kernel/src/net/os.rs"
            && s.path != "crates/ron-kernel/src/signals.rs"
    };
    for word in [
        "Instant::now",
        "SystemTime::now",
        ".elapsed()",
        "crossbeam_channel",
        "arc_swap",
        "std::thread",
    ] {
        let found = places(&all, word, kernel);
        // The virtual clock of tests has a method of that name.
        let allowed = |line: &String| line.contains("self.elapsed()");
        let found: Vec<_> = found.into_iter().filter(|line| !allowed(line)).collect();
        report(
            &format!("`{word}` in ron-kernel outside of `sync`"),
            "the real code of the kernel runs on the simulator, whose clock is virtual and whose waits no machine ends",
            &found,
        );
    }
}

/// What a simulated world must replace, beside threads and time: where it is taken from the machine.
struct Machine {
    words: &'static [&'static str],
    /// Crates and files that may name it; the list of each only shrinks.
    places: &'static [&'static str],
    why: &'static str,
}

const MACHINE: [Machine; 5] = [
    Machine {
        words: &[
            "getrandom",
            "OsRandom",
            "SystemRandom",
            "new_v4",
            "now_v7",
            "rand::fill",
            "available_parallelism",
            "ron_kernel::cores",
        ],
        places: &[
            "bin/",
            "crates/ron-crypto/src/ecdsa.rs",
            "crates/ron-http/src/client.rs",
            "crates/ron-kernel/src/lib.rs",
            "crates/ron-kernel/src/random.rs",
            "crates/ron-kernel/src/sync/real.rs",
            "crates/ron-kms/src/embedded.rs",
            "crates/ron-ledger/src/engine.rs",
            "crates/ron-service/src/chassis/parts.rs",
            "crates/ron-sim/src/machine.rs",
            "crates/ron-tlog/src/append/log.rs",
        ],
        why: "a service receives randomness and the number of cores from outside (`Parts`), so that a run can be repeated; these are the \
              defaults of processes and embedders",
    },
    Machine {
        words: &[
            "TcpListener",
            "TcpStream",
            "UnixListener",
            "UnixStream",
            "UdpSocket",
            "rustix::net",
            "rustix::event",
        ],
        places: &["crates/ron-kernel/src/net/os.rs"],
        why: "sockets come from outside (`Parts::net`, `ClientConfig::net`), so that a network in memory can take their place",
    },
    Machine {
        words: &[
            "OpenOptions",
            " File::create",
            "(File::create",
            "fs::write",
            "fs::rename",
            "hard_link",
        ],
        places: &[
            "bin/",
            "crates/ron-files/src/disk.rs",
            "crates/ron-service/src/store/mod.rs",
            "crates/ron-sim/src/steered.rs",
        ],
        why: "a service writes its files through ron-files, whose disk in memory tests crashes, or makes the file of its database; the simulator notes hashes of runs",
    },
    Machine {
        words: &["OsDisk", "Dir::os"],
        places: &[
            "bin/",
            "crates/ron-custody/src/store/source.rs",
            "crates/ron-files/src/dir.rs",
            "crates/ron-files/src/disk.rs",
            "crates/ron-files/src/lib.rs",
            "crates/ron-kms/src/audit/verify.rs",
            "crates/ron-kms/src/embedded.rs",
            "crates/ron-ledger/src/backup.rs",
            "crates/ron-ledger/src/erase.rs",
            "crates/ron-service/src/chassis/parts.rs",
            "crates/ron-service/src/store/trial.rs",
            "crates/ron-tlog/src/append/pick.rs",
            "crates/ron-tlog/src/append/verify.rs",
            "crates/svc-rewarder/src/home.rs",
            "crates/svc-rewarder/src/library.rs",
        ],
        why: "a service takes its disk from outside (`Parts::disk`, `Dir`), so that tests crash it; these are the default of processes, \
              command-line modules, files of operators, and amnesia on a RAM disk",
    },
    Machine {
        words: &["HashMap", "HashSet", "RandomState"],
        places: &[
            "crates/ron-auth/src/cache.rs",
            "crates/ron-auth/src/meter.rs",
            "crates/ron-auth/src/proofs.rs",
            "crates/ron-kernel/src/metrics/sampled.rs",
            "crates/ron-kernel/src/rate.rs",
            "crates/ron-kms/src/replay/mod.rs",
            "crates/ron-ledger/src/table.rs",
            "crates/svc-admin/src/rings.rs",
            "crates/svc-rewarder/src/inputs/import/table.rs",
        ],
        why: "the order of a hash map differs between runs: use a BTreeMap, or look up only and never iterate into an output",
    },
];

#[test]
fn the_machine_is_touched_in_few_places() {
    let all = sources(&["crates", "bin"]);
    for machine in &MACHINE {
        let allowed = |s: &Source| machine.places.iter().find(|at| s.path.starts_with(**at));
        for word in machine.words {
            report(
                &format!("`{word}` at a new place"),
                machine.why,
                &places(&all, word, |s| allowed(s).is_none()),
            );
        }
        let touches = |at: &&str| {
            machine
                .words
                .iter()
                .any(|word| !places(&all, word, |s| s.path.starts_with(*at)).is_empty())
        };
        let gone: Vec<_> = machine.places.iter().filter(|at| !touches(at)).collect();
        let gone: Vec<_> = gone.iter().map(ToString::to_string).collect();
        report(
            "a place that the list names and that needs it no more",
            "the list only shrinks: delete the line",
            &gone,
        );
    }
}

/// A module that decides from its input alone.
fn is_pure(source: &Source) -> bool {
    let path = &source.path;
    let tree = ["tree", "note", "checkpoint", "tile", "proof"];
    path.contains("/src/core/")
        || path.contains("/src/calculus/")
        || tree
            .iter()
            .any(|m| path.contains(&format!("ron-tlog/src/{m}")))
        || source.krate() == "ron-proto"
}

#[test]
fn pure_modules_stay_pure() {
    let all = sources(&["crates"]);
    assert!(
        all.iter().filter(|s| is_pure(s)).count() > 10,
        "the pure modules were not found"
    );
    for word in [
        "ron_kernel",
        "ron_http",
        "ron_service",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
        "HashMap",
        "HashSet",
        "RandomState",
        "ron_crypto::rand",
        "OsRandom",
        "getrandom",
        "new_v4",
        "now_v7",
    ] {
        report(
            &format!("`{word}` in a pure module"),
            "cores decide from their input alone, so that the same input gives the same bytes everywhere",
            &places(&all, word, is_pure),
        );
    }
    let near_money = |s: &Source| {
        [
            "/src/core/",
            "/src/calculus/",
            "svc-rewarder/src/manifest",
            "svc-wallet/src/policy",
            "ron-proto/src/ledger",
            "ron-proto/src/wallet",
        ]
        .iter()
        .any(|part| s.path.contains(part))
    };
    for word in ["f32", "f64"] {
        report(
            "a float near money",
            "amounts are exact",
            &places(&all, word, near_money),
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    let all = sources(&["crates", "bin", "benches", "xtask"]);
    for word in ["todo!(", "unimplemented!(", "dbg!("] {
        report(
            &format!("`{word}`"),
            "what is not built is not there",
            &places(&all, word, |_| true),
        );
    }
    report(
        "`.unwrap()` outside tests",
        "an impossible case is proven by its `expect`, a possible one is an error",
        &places(&all, ".unwrap()", |s| !s.path.starts_with("benches/")),
    );
}

#[test]
fn the_project_speaks_of_itself_alone() {
    let out = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output();
    let Ok(out) = out else { return };
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("../sha", "red"),
        concat!("sub", "agent"),
        concat!("issue ", "#"),
    ];
    let mut found = Vec::new();
    for name in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(text) = fs::read_to_string(root().join(name)) else {
            continue;
        };
        for (n, line) in text.lines().enumerate() {
            if words.iter().any(|w| line.contains(w)) {
                found.push(format!("{name}:{}", n + 1));
            }
        }
    }
    report(
        "words about places and people outside the project",
        "the text must make sense to somebody who has the repository alone",
        &found,
    );
}
