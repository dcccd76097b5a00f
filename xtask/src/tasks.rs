//! The table of tasks.

use crate::bench;
use crate::bench_ledger;
use crate::bench_tokens;
use crate::builds;
use crate::clean_root;
use crate::fuzz;
use crate::long;
use crate::loom;
use crate::mutation;
use crate::parsers;
use crate::release;
use crate::task::{Group, Knob, Task};
use crate::ui;

const PROFILE: Knob = Knob::option(
    "profile",
    "release",
    "cargo's profile; dev builds quickly, to try the task",
);
const SECONDS_10: Knob = Knob::position("seconds", "10", "seconds per figure");

/// What a row of the table leaves out.
const REST: Task = Task {
    name: "",
    group: Group::Long,
    shows: "",
    length: "",
    needs: "",
    example: "",
    longer: None,
    knobs: &[],
    run: long::devices,
};

pub const TASKS: &[Task] = &[
    Task {
        name: "api-fuzz",
        group: Group::Step("API fuzzer"),
        shows: "schemathesis against the OpenAPI documents of the six services: no 500, no undocumented status, no schema violation",
        length: "1 min",
        example: "--phases fuzzing --examples 8",
        longer: Some(("--examples 500", "30 min")),
        knobs: &[
            Knob::rest(
                "services",
                "only these services; all six when none is named",
            ),
            Knob::option("examples", "15", "cases for each operation").variable("EXAMPLES"),
            Knob::option("seed", "", "seed of the cases; a run prints its own").variable("SEED"),
            Knob::option(
                "phases",
                "examples,coverage,fuzzing",
                "phases of schemathesis",
            )
            .variable("PHASES"),
            Knob::switch(
                "statuses",
                "print how often each operation was answered with what",
            )
            .variable("STATUSES"),
            Knob::option("ron", "", "this program instead of the release build").variable("RON"),
            Knob::option(
                "schemathesis",
                "",
                "this program instead of the one of scripts/setup.sh",
            )
            .variable("SCHEMATHESIS"),
        ],
        run: long::api_fuzz,
        ..REST
    },
    Task {
        name: "devices",
        group: Group::Step("keys in a PKCS#11 token and in a TPM"),
        shows: "the device backends against SoftHSM and swtpm, including hanging and absent devices",
        length: "2 min",
        run: long::devices,
        ..REST
    },
    Task {
        name: "columns",
        group: Group::Step("Parquet and Arrow files"),
        shows: "the importers against files from DuckDB and pyarrow, files cut at every length, altered bytes",
        length: "3 min cold",
        run: long::columns,
        ..REST
    },
    Task {
        name: "ui",
        group: Group::Step("user interface is built from its sources"),
        shows: "the committed page is the build of its sources; the page's own tests. `cargo xtask ui build` writes the page",
        length: "seconds",
        example: "check",
        knobs: &[Knob::position(
            "action",
            "check",
            "`check` compares ui/dist with its sources, `build` writes it",
        )],
        run: ui::ui,
        ..REST
    },
    Task {
        name: "loom",
        group: Group::Step("loom models"),
        shows: "protocols under loom (all interleavings of a few threads) and shuttle (samples of more), and mutants that both checkers must catch",
        length: "4 min",
        longer: Some(("--preemptions 3 --schedules 100000", "an hour and more")),
        knobs: &[
            Knob::option("preemptions", "2", "depth of loom").variable("LOOM_MAX_PREEMPTIONS"),
            Knob::option(
                "schedules",
                "4000",
                "schedules that shuttle samples of each model",
            )
            .variable("SHUTTLE_ITERATIONS"),
            Knob::option("models", "", "only models whose path contains this"),
            Knob::option(
                "profile",
                "bench",
                "cargo's profile: `bench` is release with the test harness, `test` builds for development",
            ),
        ],
        run: loom::loom,
        ..REST
    },
    Task {
        name: "soak",
        group: Group::Long,
        shows: "the whole loop under mixed load with kills, reloads, rotations and revocations: memory, threads and descriptors stay flat, no acknowledged operation is missing, every log verifies; prints the resources of each service",
        length: "30 min",
        example: "30",
        knobs: &[Knob::position("minutes", "2", "length of the run").variable("RON_SOAK_MINUTES")],
        run: long::soak,
        ..REST
    },
    Task {
        name: "crash",
        group: Group::Long,
        shows: "crash images and kills of the KMS: power cuts at random operations of the log and of record files on a simulated disk, and `kill -9` of the service; after each, everything acknowledged is there",
        length: "20 min",
        example: "10000 100",
        knobs: &[
            Knob::position("images", "10000", "power cuts").variable("RON_CRASH_IMAGES"),
            Knob::position("kills", "100", "kills of ron-kms").variable("RON_AUDIT_KILLS"),
            PROFILE,
        ],
        run: long::crash,
        ..REST
    },
    Task {
        name: "fleet-kills",
        group: Group::Long,
        shows: "kills of the fleet: nothing acknowledged is lost, nothing is paid twice",
        length: "50 min",
        example: "1000",
        knobs: &[Knob::position("rounds", "1000", "kills").variable("RON_KILL_ROUNDS")],
        run: long::fleet_kills,
        ..REST
    },
    Task {
        name: "wallet-kills",
        group: Group::Long,
        shows: "kills of the wallet: the same, with unknown outcomes",
        length: "50 min (a token lives an hour at most)",
        example: "1000 50",
        knobs: &[
            Knob::position("rounds", "1000", "kills").variable("RON_KILL_ROUNDS"),
            Knob::position("minutes", "50", "end of the run, whatever ROUNDS is")
                .variable("RON_KILL_MINUTES"),
        ],
        run: long::wallet_kills,
        ..REST
    },
    Task {
        name: "wallet-rounds",
        group: Group::Long,
        shows: "rounds of the wallet: many clients use the same keys and nonces at once",
        length: "20 min",
        example: "1000",
        knobs: &[Knob::position("rounds", "1000", "rounds").variable("RON_WALLET_ROUNDS")],
        run: long::wallet_rounds,
        ..REST
    },
    Task {
        name: "stage-kills",
        group: Group::Long,
        shows: "kills in every stage of the rewarder: each payee is paid once",
        length: "an hour",
        example: "500",
        knobs: &[Knob::position("kills", "500", "kills").variable("RON_STAGE_KILLS")],
        run: long::stage_kills,
        ..REST
    },
    Task {
        name: "run-histories",
        group: Group::Long,
        shows: "random run histories: runs survive crashes, lost calls and lost answers, on a virtual clock",
        length: "10 min",
        example: "10000",
        knobs: &[Knob::position("rounds", "10000", "histories").variable("RON_CHAOS_ROUNDS")],
        run: long::run_histories,
        ..REST
    },
    Task {
        name: "revocations",
        group: Group::Long,
        shows: "wallet and KMS act on 99 of 100 revocations within 5 s, also after the feed was cut and restored",
        length: "2 min",
        example: "200",
        knobs: &[Knob::position("count", "200", "revocations").variable("RON_REVOCATIONS")],
        run: long::revocations,
        ..REST
    },
    Task {
        name: "issuer-chaos",
        group: Group::Long,
        shows: "chaos of the issuer: no invalid token and no late answer, whatever the KMS does",
        length: "10 min",
        example: "10000",
        knobs: &[Knob::position("tokens", "10000", "tokens to issue").variable("RON_ISSUES")],
        run: long::issuer_chaos,
        ..REST
    },
    Task {
        name: "ledger-exhaustive",
        group: Group::Long,
        shows: "the ledger's core: every order of four operations agrees with the model, and so do more random cases",
        length: "an hour",
        knobs: &[Knob::option("cases", "10000", "random cases").variable("RON_LEDGER_CASES")],
        run: long::ledger_exhaustive,
        ..REST
    },
    Task {
        name: "nonces",
        group: Group::Long,
        shows: "no nonce of AES-GCM is used twice across kills of the KMS under load",
        length: "not measured",
        example: "200",
        knobs: &[Knob::position("rounds", "200", "kills").variable("RON_NONCE_ROUNDS")],
        run: long::nonces,
        ..REST
    },
    Task {
        name: "kms-replays",
        group: Group::Long,
        shows: "an operation with an id has the same answer from the KMS before and after a kill",
        length: "not measured",
        example: "100",
        knobs: &[Knob::position("rounds", "100", "kills").variable("RON_REPLAY_ROUNDS")],
        run: long::kms_replays,
        ..REST
    },
    Task {
        name: "kms-stress",
        group: Group::Long,
        shows: "signatures during rotations: no key version is wrong, missing or lower than one before",
        length: "not measured",
        example: "1000000",
        knobs: &[Knob::position("signatures", "1000000", "signatures").variable("RON_KMS_STRESS")],
        run: long::kms_stress,
        ..REST
    },
    Task {
        name: "fuzz",
        group: Group::Long,
        shows: "parsers and state machines survive any input: `request`, `chunked`, `routing`, `json`, `unpack`, `metrics`, `ledger`",
        length: "10 min per target",
        example: "600",
        knobs: &[
            Knob::position("seconds", "10", "seconds per target"),
            Knob::rest("targets", "only these targets; all when none is named"),
        ],
        run: fuzz::fuzz,
        ..REST
    },
    Task {
        name: "mutants",
        group: Group::Long,
        shows: "mutation testing: the tests of money and idempotency fail when an expression is changed",
        length: "10 to 15 s per mutant",
        needs: "cargo-mutants, which the task installs",
        example: "0/8",
        knobs: &[
            Knob::position("sample", "0/1", "k/n tries every n-th mutant from the k-th"),
            Knob::rest("options", "options of cargo mutants, behind --"),
            Knob::option("out", "target/mutants", "directory of the results"),
            Knob::option(
                "cases",
                "30",
                "cases of the comparison with the model, each mutant",
            )
            .variable("RON_LEDGER_CASES"),
        ],
        run: mutation::mutants,
        ..REST
    },
    Task {
        name: "advisories",
        group: Group::Long,
        shows: "no crate in use has a known vulnerability, by a copy of the RustSec database; without one it prints `not checked`",
        length: "seconds",
        needs: "a clone of github.com/rustsec/advisory-db",
        example: "advisory-db",
        knobs: &[
            Knob::position("database", "", "directory of the database").variable("ADVISORY_DB")
        ],
        run: release::advisories,
        ..REST
    },
    Task {
        name: "minimal-versions",
        group: Group::Long,
        shows: "the oldest dependency versions that the manifests allow compile",
        length: "10 min",
        knobs: &[
            Knob::option(
                "mode",
                "direct-minimal-versions",
                "minimal-versions: also the oldest of what dependencies depend on, whose bounds are not ours to correct",
            ),
            Knob::option(
                "target",
                "",
                "keeps the build in this directory, for a second run",
            ),
        ],
        run: builds::minimal_versions,
        ..REST
    },
    Task {
        name: "reproducible",
        group: Group::Long,
        shows: "two builds of the last commit in two directories give the same bytes",
        length: "two release builds",
        knobs: &[
            PROFILE,
            Knob::option("package", "", "builds this package only"),
            Knob::option("bin", "", "compares this program only; all when absent"),
        ],
        run: builds::reproducible,
        ..REST
    },
    Task {
        name: "clean-root",
        group: Group::Long,
        shows: "both commands of the README work on a machine with nothing installed; measures time and disk",
        length: "45 min",
        needs: "root and debootstrap for a fresh Debian; without them, an empty home directory",
        knobs: &[
            Knob::option(
                "mode",
                "",
                "`root` (a fresh Debian) or `home`; root when it is possible",
            ),
            Knob::option("commands", "up test", "the commands to run"),
            Knob::option(
                "mirror",
                "http://deb.debian.org/debian",
                "where Debian comes from",
            ),
            Knob::option("suite", "bookworm", "release of Debian"),
            Knob::switch(
                "dry",
                "make the root and copy the source, but compile nothing",
            ),
            Knob::switch("keep", "leave the root in place"),
        ],
        run: clean_root::clean_root,
        ..REST
    },
    Task {
        name: "bench",
        group: Group::Measurement,
        shows: "the fleet over HTTP, then its parts in process",
        example: "30",
        knobs: &[
            SECONDS_10,
            Knob::position("dir", "target/bench", "directory on the disk to measure"),
        ],
        run: bench::fleet,
        ..REST
    },
    Task {
        name: "bench-kms",
        group: Group::Measurement,
        shows: "signing, devices, fairness and envelopes, beside the signature library alone and a SoftHSM token alone",
        knobs: &[
            SECONDS_10,
            Knob::position("dir", "target/bench", "directory on the disk to measure"),
            PROFILE.variable("RON_BENCH_PROFILE"),
        ],
        run: bench_tokens::kms,
        ..REST
    },
    Task {
        name: "bench-parsec",
        group: Group::Measurement,
        shows: "the same PKCS#11 token through a PARSEC service; run it right after `bench-kms`",
        needs: "cmake, libclang-dev (`LIBCLANG_PATH` if it is elsewhere)",
        knobs: &[SECONDS_10],
        run: bench_tokens::parsec,
        ..REST
    },
    Task {
        name: "bench-passport",
        group: Group::Measurement,
        shows: "issuing and verifying over HTTP, beside npm oidc-provider; writes docs/bench/passport.md",
        needs: "wrk",
        example: "10 5",
        knobs: &[
            SECONDS_10,
            Knob::position("rounds", "5", "rounds"),
            Knob::position("processes", "2", "processes of the other issuer"),
            Knob::option("out", "docs/bench/passport.md", "the page"),
            Knob::option("ron", "", "this program instead of a release build"),
        ],
        run: bench::passport,
        ..REST
    },
    Task {
        name: "bench-ledger",
        group: Group::Measurement,
        shows: "transfers through the wallet and in the ledger alone, beside PostgreSQL on the same disk; writes docs/bench/ledger.md",
        needs: "postgresql-15",
        knobs: &[
            SECONDS_10,
            Knob::position(
                "entries",
                "10000000",
                "entries in the ledger before the first figure",
            ),
            Knob::position(
                "dir",
                "target/bench-ledger",
                "directory on the disk to measure; emptied",
            ),
            PROFILE,
            Knob::option("clients", "1,10,100,1000", "numbers of clients"),
            Knob::option("out", "docs/bench/ledger.md", "the page"),
            Knob::option(
                "postgres",
                "/usr/lib/postgresql/15/bin",
                "directory of PostgreSQL's programs",
            )
            .variable("PG_BIN"),
        ],
        run: bench_ledger::ledger,
        ..REST
    },
    Task {
        name: "bench-rewarder",
        group: Group::Measurement,
        shows: "epochs up to 50 million accounts with peak memory, beside DuckDB and Polars, and payouts into the ledger; writes docs/bench/rewarder.md",
        needs: "PyPI, 40 GB of disk",
        knobs: &[
            Knob::position(
                "dir",
                "target/bench-rewarder",
                "directory on the disk to measure; emptied",
            ),
            Knob::option(
                "sizes",
                "1000000,10000000",
                "accounts of the epochs, each beside DuckDB and Polars",
            ),
            Knob::option(
                "streamed",
                "50000000",
                "accounts of further epochs, without the others; empty for none",
            ),
            Knob::option(
                "settle",
                "1000000",
                "accounts of the epoch that is settled; 0 for none",
            ),
            Knob::option(
                "threads",
                "",
                "threads of all three; one per core when absent",
            ),
            PROFILE,
            Knob::option("out", "docs/bench/rewarder.md", "the page"),
            Knob::option(
                "venv",
                "",
                "an existing Python environment with duckdb and polars",
            ),
        ],
        run: bench::rewarder,
        ..REST
    },
    Task {
        name: "bench-log",
        group: Group::Measurement,
        shows: "proofs from large logs; docs/bench/log.md reports them",
        knobs: &[
            Knob::option("leaves", "10000000", "leaves of the log"),
            Knob::position(
                "dir",
                "target/bench-log",
                "directory on the disk to measure",
            ),
        ],
        run: bench::proofs,
        ..REST
    },
    Task {
        name: "flood",
        group: Group::Measurement,
        shows: "cheap requests from one address, and a client beside them, which must not suffer; writes docs/bench/flood.md",
        example: "60",
        knobs: &[
            Knob::position("seconds", "60", "length of the flood").variable("RON_FLOOD_SECONDS")
        ],
        run: long::flood,
        ..REST
    },
    Task {
        name: "rivals",
        group: Group::Measurement,
        shows: "the HTTP front, beside axum and tiny_http",
        needs: "wrk",
        example: "5 5",
        knobs: &[
            Knob::position("seconds", "5", "seconds per run"),
            Knob::position("rounds", "5", "rounds"),
        ],
        run: bench::rivals,
        ..REST
    },
    Task {
        name: "parsers",
        group: Group::Measurement,
        shows: "the metrics parser, beside other parsers in Rust and Go; the figures are processor time",
        needs: "Debian's packages of the Go parsers, else only those in Rust are measured",
        example: "5",
        knobs: &[Knob::position("seconds", "2", "seconds per figure")],
        run: parsers::parsers,
        ..REST
    },
    Task {
        name: "console",
        group: Group::Measurement,
        shows: "the console with 100 nodes of 500 series, then beside 100 nodes that hang",
        example: "60",
        knobs: &[Knob::position("seconds", "30", "seconds per figure")],
        run: bench::console,
        ..REST
    },
    Task {
        name: "package",
        group: Group::Files,
        shows: "Debian packages of programs that are built: one per service and one for `ron`, in `target/package`",
        length: "1 min",
        knobs: &[
            Knob::option("profile", "release", "profile whose programs are packed"),
            Knob::switch("fast", "compress less"),
        ],
        run: release::package,
        ..REST
    },
    Task {
        name: "sbom",
        group: Group::Files,
        shows: "the bill of materials in CycloneDX 1.6: every crate that is linked or runs at build time; the same tree gives the same bytes",
        length: "seconds",
        example: "sbom.json",
        knobs: &[
            Knob::position("file", "", "the file; standard output when absent"),
            Knob::option(
                "features",
                "",
                "features that are off by default, as ron-kms/pkcs11",
            ),
        ],
        run: release::sbom,
        ..REST
    },
];
