//! The table of tasks: first the tests, here, then what measures or writes files, in [`products`].

use crate::builds;
use crate::clean_root;
use crate::fuzz;
use crate::instructions;
use crate::long;
use crate::loom;
use crate::mutation;
use crate::products;
use crate::release;
use crate::sdk;
use crate::sim;
use crate::sim_rounds;
use crate::suites;
use crate::task::{Group, REST, Run, Task};
use crate::ui;

/// Nothing but the libraries is built with these features.
const DEVICES: &str =
    "-p ron-custody -p ron-kms --features tpm --lib -- tests::devices backend:: --test-threads 2";

/// The unit tests of ron-pg, all of ron-ha (contracts of a log's store and of records, the model of the protocol, services over one database), and
/// the command that moves a ledger there.
const HA: &str = "-p ron -p ron-pg -p ron-ha --features ron/postgres,ron-ha/postgres --lib --test database --test keys --test claims --test stops -- --test-threads 3";
/// The same packages as above, or everything would be built again with other features.
const TAKEOVER: &str = "-p ron -p ron-pg -p ron-ha --features ron/postgres,ron-ha/postgres --test takeover -- --nocapture";

/// Every task, in the order of the list that `cargo xtask` prints.
pub fn tasks() -> impl Iterator<Item = &'static Task> {
    TESTS.iter().chain(products::PRODUCTS)
}

const TESTS: &[Task] = &[
    Task {
        name: "api-fuzz",
        group: Group::Step("API fuzzer"),
        shows: "schemathesis against the OpenAPI documents of the six services: no 500, no undocumented status, no schema violation",
        length: "1 min",
        example: "--phases fuzzing --examples 8",
        longer: Some(("--examples 500", "30 min")),
        args: &[
            "services... : only these services; all six when none is named",
            "--examples=15 EXAMPLES : cases for each operation",
            "--seed= SEED : seed of the cases; a run prints its own",
            "--phases=examples,coverage,fuzzing PHASES : phases of schemathesis",
            "--statuses STATUSES : print how often each operation was answered with what",
            "--ron= RON : this program instead of the release build",
            "--schemathesis= SCHEMATHESIS : this program instead of the one of scripts/setup.sh",
        ],
        run: Run::Steps(long::api_fuzz),
        ..REST
    },
    Task {
        name: "devices",
        group: Group::Step("in unit tests: keys in a PKCS#11 token and in a TPM"),
        shows: "the device backends against SoftHSM and swtpm, including hanging and absent devices",
        length: "2 min",
        run: Run::Crate(DEVICES),
        ..REST
    },
    Task {
        name: "ha",
        group: Group::Step("in unit and end-to-end tests: logs and records in PostgreSQL"),
        shows: "the contract of a log's store on a PostgreSQL primary with a synchronous standby: fencing, claims before reads, commits with a notice, a stopped standby, wrong settings, a failover that loses a provisional tail, ids that are used once; a log and a ledger's books of two nodes in an engine, under faults; the model of their protocol, with mutants; two ledgers that follow and take over, with a witness; the contract of records on SQLite and PostgreSQL; two wallets that answer for each other's open keys; a ledger that goes there and back; two key services with the same keys, as processes that are killed; services that stop while their database is silent",
        length: "3 min",
        run: Run::Crate(HA),
        ..REST
    },
    Task {
        name: "takeover",
        group: Group::Step("in end-to-end tests: clients that pay through takeovers of the ledger"),
        shows: "two ledgers and two wallets as processes on a PostgreSQL pair: the ledger that writes is killed or stands still while clients of ron-client and of the Python SDK pay through lists of URLs; every payment is made once and its caller is told so; then every process is stopped and started again in turn, as in an upgrade; prints the time until another ledger is active, until all clients are paid again, and the slowest payment of the upgrade",
        length: "1 min",
        longer: Some(("--rounds 50", "20 min")),
        args: &[
            "--rounds=1 RON_ROUNDS : takeovers of each kind",
            "--upgrade-to= RON_UPGRADE_TO : programs of another version, built with the feature `postgres`, that the processes are started with at the end",
        ],
        run: Run::Crate(TAKEOVER),
        ..REST
    },
    Task {
        name: "columns",
        group: Group::Step("in unit and end-to-end tests: Parquet and Arrow files"),
        shows: "the importers against files from DuckDB and pyarrow, files cut at every length, altered bytes",
        length: "3 min cold",
        run: Run::Crate(
            "-p svc-rewarder --features parquet --lib --test columns -- columns thrift parquet",
        ),
        ..REST
    },
    Task {
        name: "suites",
        group: Group::Step("unit tests, end-to-end tests"),
        shows: "the test programs that `cargo test --no-run --message-format json-render-diagnostics` has named pass; those of ron-ha, which wait for databases, run beside the others",
        length: "as its tests",
        example: "target/unit-tests.json",
        args: &[
            "messages=target/tests.json : what cargo printed",
            "--threads=3 : tests of a program that run at one time",
        ],
        run: Run::Steps(suites::suites),
        ..REST
    },
    Task {
        name: "instructions",
        group: Group::Step("instructions of the hot paths"),
        shows: "steps of the hot paths take no more instructions than docs/bench/instructions.md says, or at most a tenth more; counted by Valgrind. `cargo xtask instructions write` writes the page",
        length: "30 s",
        args: &[
            "action=check : `check` compares with the page, `write` writes it",
            "--out=docs/bench/instructions.md : the page",
        ],
        run: Run::Steps(instructions::instructions),
        ..REST
    },
    Task {
        name: "ui",
        group: Group::Step("user interface is built from its sources"),
        shows: "the committed page is the build of its sources; the page's own tests. `cargo xtask ui build` writes the page",
        length: "seconds",
        example: "check",
        args: &["action=check : `check` compares ui/dist with its sources, `build` writes it"],
        run: Run::Steps(ui::ui),
        ..REST
    },
    Task {
        name: "sdk",
        group: Group::Step("SDKs"),
        shows: "types and tests of the SDKs for Python and TypeScript; the committed verification page is the build of its sources. `cargo xtask sdk build` writes the page",
        length: "20 s",
        example: "check",
        args: &[
            "action=check : `check` tests and compares, `build` writes sdk/verify-page/verify.html",
        ],
        run: Run::Steps(sdk::sdk),
        ..REST
    },
    Task {
        name: "loom",
        group: Group::Step("loom models"),
        shows: "protocols under loom (all interleavings of a few threads) and shuttle (samples of more), and mutants that both checkers must catch",
        length: "4 min",
        longer: Some(("--preemptions 3 --schedules 100000", "an hour and more")),
        args: &[
            "--preemptions=2 LOOM_MAX_PREEMPTIONS : depth of loom",
            "--schedules=4000 SHUTTLE_ITERATIONS : schedules that shuttle samples of each model",
            "--models= : only models whose path contains this",
            "--profile=bench : cargo's profile: `bench` is release with the test harness, `test` builds for development",
        ],
        run: Run::Steps(loom::loom),
        ..REST
    },
    Task {
        name: "sim",
        group: Group::Step("simulation"),
        shows: "the kernel's models, the ledger on a simulated disk with faults, power cuts and kills, the HTTP front, and all six services on a simulated network, on real threads under seeds, in virtual time: two processes give the same traces, and every mutant is caught",
        length: "1 min, and 4 min cold",
        longer: Some(("--seeds 20000 --operations 100000", "30 min")),
        args: &[
            "--seeds=200 RON_SIM_SEEDS : seeds of each model",
            "--operations=2000 RON_SIM_OPERATIONS : operations of each world",
            "--first=0 RON_SIM_FIRST : first seed of each world, so that long runs add up",
            "--seed= RON_SIM_SEED : this seed alone, with its output and without mutants",
            "--schedule= RON_SIM_SCHEDULE : the decisions that a failing run has printed, in place of the seed's own",
            "--trace RON_SIM_TRACE : print the time line of that seed: every operation of a model, the story of a world",
            "--models= : only models whose path contains this",
            "--profile=bench : cargo's profile: `bench` is release with the test harness, `test` builds for development",
        ],
        run: Run::Steps(sim::sim),
        ..REST
    },
    Task {
        name: "sim-rounds",
        shows: "the worlds of `sim` for long: rounds of new seeds until all worlds together have done so many operations, with the faults that they met; a bug is printed as a story with its seed",
        length: "hours",
        example: "10000000",
        args: &[
            "total=100000 : operations of all rounds of all worlds together",
            "--operations=20000 RON_SIM_OPERATIONS : operations of each world in a round",
            "--models= : only worlds whose path contains this",
            "--record= : file in which rounds are recorded (target/sim-rounds.txt); a later run with it goes on after them",
            "--profile=bench : cargo's profile: `bench` is release with the test harness, `test` builds for development",
        ],
        run: Run::Steps(sim_rounds::sim_rounds),
        ..REST
    },
    Task {
        name: "soak",
        shows: "the whole loop under mixed load with kills, reloads, rotations and revocations: memory, threads and descriptors stay flat, no acknowledged operation is missing, every log verifies; prints the resources of each service",
        length: "30 min",
        example: "30",
        args: &["minutes=2 RON_SOAK_MINUTES : length of the run"],
        run: Run::Fleet("--test soak -- --nocapture"),
        ..REST
    },
    Task {
        name: "crash",
        shows: "crash images and kills of the KMS: power cuts at random operations of the log and of record files on a simulated disk, and `kill -9` of the service; after each, everything acknowledged is there",
        length: "20 min",
        example: "10000 100",
        args: &[
            "images=10000 RON_CRASH_IMAGES : power cuts",
            "kills=100 RON_AUDIT_KILLS : kills of ron-kms",
        ],
        run: Run::Steps(long::crash),
        ..REST
    },
    Task {
        name: "pkcs11-threads",
        shows: "`libron_pkcs11.so` in a program with eight threads that forks while they sign: every signature verifies and has its leaf, and no memory, thread or open file is left",
        length: "1 min",
        example: "10000",
        args: &["operations=10000 RON_PKCS11_OPS : signatures"],
        run: Run::Fleet("--test e2e pkcs11::program::threads"),
        ..REST
    },
    Task {
        name: "fleet-kills",
        shows: "kills of the fleet: nothing acknowledged is lost, nothing is paid twice",
        length: "50 min",
        example: "1000",
        args: &["rounds=1000 RON_KILL_ROUNDS : kills"],
        run: Run::Fleet("--test crash kill::"),
        ..REST
    },
    Task {
        name: "wallet-kills",
        shows: "kills of the wallet: the same, with unknown outcomes",
        length: "50 min (a token lives an hour at most)",
        example: "1000 50",
        args: &[
            "rounds=1000 RON_KILL_ROUNDS : kills",
            "minutes=50 RON_KILL_MINUTES : end of the run, whatever ROUNDS is",
        ],
        run: Run::Fleet("--test e2e wallet_faults::killed_at"),
        ..REST
    },
    Task {
        name: "wallet-rounds",
        shows: "rounds of the wallet: many clients use the same keys and nonces at once",
        length: "20 min",
        example: "1000",
        args: &["rounds=1000 RON_WALLET_ROUNDS : rounds"],
        run: Run::Fleet("--test e2e wallet::"),
        ..REST
    },
    Task {
        name: "order-rounds",
        shows: "orders of every kind of operation over kills, drains, stalls and full disks, each request sent by many clients at once: nothing is lost, nothing is done twice",
        length: "an hour",
        example: "1000",
        args: &[
            "rounds=1000 RON_ORDER_ROUNDS : rounds",
            "--clients=64 RON_ORDER_CLIENTS : clients that send each request",
        ],
        run: Run::Fleet("--test crash orders::"),
        ..REST
    },
    Task {
        name: "stage-kills",
        shows: "kills in every stage of the rewarder: each payee is paid once",
        length: "an hour",
        example: "500",
        args: &["kills=500 RON_STAGE_KILLS : kills"],
        run: Run::Fleet("--test crash stages::"),
        ..REST
    },
    Task {
        name: "run-histories",
        shows: "random run histories: runs survive crashes, lost calls and lost answers, on a virtual clock",
        length: "10 min",
        example: "10000",
        args: &["rounds=10000 RON_CHAOS_ROUNDS : histories"],
        run: Run::Crate("-p svc-rewarder --lib chaos"),
        ..REST
    },
    Task {
        name: "revocations",
        shows: "wallet and KMS act on 99 of 100 revocations within 5 s, also after the feed was cut and restored",
        length: "2 min",
        example: "200",
        args: &["count=200 RON_REVOCATIONS : revocations"],
        run: Run::Fleet("--test e2e passport_spread -- --nocapture"),
        ..REST
    },
    Task {
        name: "issuer-chaos",
        shows: "chaos of the issuer: no invalid token and no late answer, whatever the KMS does",
        length: "10 min",
        example: "10000",
        args: &[
            "tokens=10000 RON_ISSUES : tokens to issue",
            "--quiet=1 RON_QUIET : tolerate no late answer, as on a machine without other work",
        ],
        run: Run::Fleet("--test e2e passport_chaos"),
        ..REST
    },
    Task {
        name: "ha-failover",
        shows: "PostgreSQL under Patroni and etcd on three hosts of one machine, configured by the files of docs/ha, while clients write to two ledgers: the primary's host is killed, or stopped and goes on, Patroni is frozen, the synchronous standby's host is killed, or stopped, etcd loses its majority, the database is switched over; with a network and a disk for each host, which needs root, the primary is parted from the other hosts, from all, or from clients, the synchronous standby is parted, the primary's disk is full; nothing acknowledged is lost or done twice; prints how long each stopped writes",
        length: "12 min a round",
        needs: "etcd and Patroni, which scripts/setup.sh installs",
        example: "10",
        args: &[
            "rounds=1 RON_HA_ROUNDS : rounds of each case",
            "--cases= RON_HA_CASES : only cases whose name contains this",
            "--record= RON_HA_RECORD : file in which rounds are recorded; a later run with it goes on after them, and prints the sums of all",
        ],
        run: Run::Crate(
            "-p ron-ha --features ron-ha/postgres --test failover -- --ignored --nocapture",
        ),
        ..REST
    },
    Task {
        name: "ha-pages",
        shows: "the commands of docs/ha/README.md as they stand: three database hosts, two ledgers and a wallet on this machine, which lose hosts, are switched over and lose no transfer",
        length: "5 min, and a build",
        needs: "etcd and Patroni, which scripts/setup.sh installs",
        run: Run::Steps(long::ha_pages),
        ..REST
    },
    Task {
        name: "drill",
        shows: "an on-call drill: a fleet of processes with faults, watched by a real Prometheus with the rules of docs/ops; seconds until the console, `ron status` and an alert name the cause; writes the table of docs/ops/drill.md",
        length: "50 min, and a build",
        needs: "prometheus, PostgreSQL and the Python environment of scripts/setup.sh; root for a full disk",
        args: &[
            "--faults= : only faults whose name contains this; the page is left alone",
            "--profile=release : cargo's profile; dev builds quickly",
            "--port=9600 : first of 70 free ports",
        ],
        run: Run::Steps(long::drill),
        ..REST
    },
    Task {
        name: "ledger-exhaustive",
        shows: "the ledger's core: every order of four operations agrees with the model, and so do more random cases",
        length: "an hour",
        args: &["--cases=10000 RON_LEDGER_CASES : random cases"],
        run: Run::Steps(long::ledger_exhaustive),
        ..REST
    },
    Task {
        name: "nonces",
        shows: "no nonce of AES-GCM is used twice across kills of the KMS under load",
        length: "not measured",
        example: "200",
        args: &["rounds=200 RON_NONCE_ROUNDS : kills"],
        run: Run::Fleet("--test crash nonces::"),
        ..REST
    },
    Task {
        name: "kms-replays",
        shows: "an operation with an id has the same answer from the KMS before and after a kill",
        length: "not measured",
        example: "100",
        args: &["rounds=100 RON_REPLAY_ROUNDS : kills"],
        run: Run::Fleet("--test e2e kms_custody::remembered"),
        ..REST
    },
    Task {
        name: "kms-stress",
        shows: "signatures during rotations: no key version is wrong, missing or lower than one before",
        length: "not measured",
        example: "1000000",
        args: &["signatures=1000000 RON_KMS_STRESS : signatures"],
        run: Run::Crate("-p ron-kms --lib race"),
        ..REST
    },
    Task {
        name: "fuzz",
        shows: "parsers and state machines survive any input: `request`, `chunked`, `routing`, `json`, `unpack`, `metrics`, `ledger`, `token`, `assertion`, `form`, `kms`, `transit`, `columns`, `usage`",
        length: "10 min per target",
        example: "600",
        args: &[
            "seconds=10 : seconds per target",
            "targets... : only these targets; all when none is named",
        ],
        run: Run::Steps(fuzz::fuzz),
        ..REST
    },
    Task {
        name: "mutants",
        shows: "mutation testing: the tests of money and idempotency fail when an expression is changed",
        length: "10 to 15 s per mutant",
        needs: "cargo-mutants, which the task installs",
        example: "0/8",
        args: &[
            "sample=0/1 : k/n tries every n-th mutant from the k-th",
            "options... : options of cargo mutants, behind --",
            "--out=target/mutants : directory of the results",
            "--cases=30 RON_LEDGER_CASES : cases of the comparison with the model, each mutant",
        ],
        run: Run::Steps(mutation::mutants),
        ..REST
    },
    Task {
        name: "advisories",
        shows: "no crate in use has a known vulnerability, by a copy of the RustSec database; without one it prints `not checked`",
        length: "seconds",
        needs: "a clone of github.com/rustsec/advisory-db",
        example: "advisory-db",
        args: &["database= ADVISORY_DB : directory of the database"],
        run: Run::Steps(release::advisories),
        ..REST
    },
    Task {
        name: "minimal-versions",
        shows: "the oldest dependency versions that the manifests allow compile",
        length: "10 min",
        args: &[
            "--mode=direct-minimal-versions : minimal-versions: also the oldest of what dependencies depend on, whose bounds are not ours to correct",
            "--target= : keeps the build in this directory, for a second run",
        ],
        run: Run::Steps(builds::minimal_versions),
        ..REST
    },
    Task {
        name: "reproducible",
        shows: "two builds of the last commit in two directories give the same bytes",
        length: "two release builds",
        args: &[
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
            "--package= : builds this package only",
            "--bin= : compares this program only; all when absent",
        ],
        run: Run::Steps(builds::reproducible),
        ..REST
    },
    Task {
        name: "clean-root",
        shows: "both commands of the README work on a machine with nothing installed; measures time and disk",
        length: "45 min",
        needs: "root and debootstrap for a fresh Debian; without them, an empty home directory",
        args: &[
            "--mode= : `root` (a fresh Debian) or `home`; root when it is possible",
            "--commands=up test : the commands to run",
            "--mirror=http://deb.debian.org/debian : where Debian comes from",
            "--suite=bookworm : release of Debian",
            "--dry : make the root and copy the source, but compile nothing",
            "--keep : leave the root in place",
        ],
        run: Run::Steps(clean_root::clean_root),
        ..REST
    },
];
