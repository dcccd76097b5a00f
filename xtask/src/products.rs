//! The tasks that measure, and those that write files to ship or to commit.

use crate::bench;
use crate::bench_ledger;
use crate::bench_reads;
use crate::bench_tail;
use crate::bench_tokens;
use crate::parsers;
use crate::release;
use crate::site;
use crate::task::{Group, REST, Run, Task};

pub const PRODUCTS: &[Task] = &[
    Task {
        name: "bench",
        group: Group::Measurement,
        shows: "the fleet over HTTP, then its parts in process",
        example: "30",
        args: &[
            "seconds=10 : seconds per figure",
            "dir=target/bench : directory on the disk to measure",
        ],
        run: Run::Steps(bench::fleet),
        ..REST
    },
    Task {
        name: "bench-kms",
        group: Group::Measurement,
        shows: "signing, devices, fairness and envelopes, beside the signature library alone and a SoftHSM token alone",
        args: &[
            "seconds=10 : seconds per figure",
            "dir=target/bench : directory on the disk to measure",
            "--profile=release RON_BENCH_PROFILE : cargo's profile; dev builds quickly, to try the task",
        ],
        run: Run::Steps(bench_tokens::kms),
        ..REST
    },
    Task {
        name: "bench-parsec",
        group: Group::Measurement,
        shows: "the same PKCS#11 token through a PARSEC service; run it right after `bench-kms`",
        needs: "cmake, libclang-dev (`LIBCLANG_PATH` if it is elsewhere)",
        args: &["seconds=10 : seconds per figure"],
        run: Run::Steps(bench_tokens::parsec),
        ..REST
    },
    Task {
        name: "bench-passport",
        group: Group::Measurement,
        shows: "issuing and verifying over HTTP, beside npm oidc-provider; writes docs/bench/passport.md",
        needs: "wrk",
        example: "10 5",
        args: &[
            "seconds=10 : seconds per figure",
            "rounds=5 : rounds",
            "processes=2 : processes of the other issuer",
            "--out=docs/bench/passport.md : the page",
            "--ron= : this program instead of a release build",
        ],
        run: Run::Steps(bench::passport),
        ..REST
    },
    Task {
        name: "bench-ledger",
        group: Group::Measurement,
        shows: "transfers through the wallet and in the ledger alone, beside PostgreSQL on the same disk; writes docs/bench/ledger.md",
        needs: "postgresql-15",
        args: &[
            "seconds=10 : seconds per figure",
            "entries=10000000 : entries in the ledger before the first figure",
            "dir=target/bench-ledger : directory on the disk to measure; emptied",
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
            "--clients=1,16,64,1000 : numbers of clients",
            "--out=docs/bench/ledger.md : the page",
            "--postgres=/usr/lib/postgresql/15/bin PG_BIN : directory of PostgreSQL's programs",
        ],
        run: Run::Steps(bench_ledger::ledger),
        ..REST
    },
    Task {
        name: "bench-reads",
        group: Group::Measurement,
        shows: "each kind of read of the wallet in a ledger with many entries, and workers that debit one account; writes docs/bench/reads.md",
        example: "5 1000000",
        args: &[
            "seconds=5 : seconds per figure",
            "entries=1000000 : transfers in the ledger before the reads, up to 10000000",
            "dir=target/bench-reads : directory on the disk to measure; emptied",
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
            "--workers=1,16 : numbers of workers that debit one account",
            "--note= : what else was going on, for the page",
            "--out=docs/bench/reads.md : the page",
        ],
        run: Run::Steps(bench_reads::reads),
        ..REST
    },
    Task {
        name: "bench-tail",
        group: Group::Measurement,
        shows: "latencies of sign, issue and transfer up to the worst, with an open loop at 50 % and 90 % of the peak, and pauses above 20 ms; writes docs/bench/tail.md",
        example: "10",
        args: &[
            "seconds=3 : seconds per figure",
            "dir=target/bench-tail : directory on the disk to measure; emptied",
            "--clients=1,10,100,1000 : numbers of clients",
            "--shares=50,90 : loads in percent of the peak",
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
            "--note= : what else was going on, for the page",
            "--out=docs/bench/tail.md : the page",
        ],
        run: Run::Steps(bench_tail::tail),
        ..REST
    },
    Task {
        name: "bench-rewarder",
        group: Group::Measurement,
        shows: "epochs up to 50 million accounts with peak memory, beside DuckDB and Polars, and payouts into the ledger; writes docs/bench/rewarder.md",
        needs: "PyPI, 40 GB of disk",
        args: &[
            "dir=target/bench-rewarder : directory on the disk to measure; emptied",
            "--sizes=1000000,10000000 : accounts of the epochs, each beside DuckDB and Polars",
            "--streamed=50000000 : accounts of further epochs, without the others; empty for none",
            "--settle=1000000 : accounts of the epoch that is settled; 0 for none",
            "--threads= : threads of all three; one per core when absent",
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
            "--out=docs/bench/rewarder.md : the page",
            "--venv= : an existing Python environment with duckdb and polars",
        ],
        run: Run::Steps(bench::rewarder),
        ..REST
    },
    Task {
        name: "bench-log",
        group: Group::Measurement,
        shows: "proofs from large logs; docs/bench/log.md reports them",
        args: &[
            "--leaves=10000000 : leaves of the log",
            "dir=target/bench-log : directory on the disk to measure",
        ],
        run: Run::Steps(bench::proofs),
        ..REST
    },
    Task {
        name: "bench-ha",
        group: Group::Measurement,
        shows: "signatures, tokens and transfers of the fleet with 1, 64 and 1,000 clients, on files and on PostgreSQL with a synchronous standby on the same machine; appends to a log there in batches of 1, 64 and 512 entries; the bytes that an entry takes",
        args: &[
            "seconds=5 : seconds per figure",
            "--profile=release : cargo's profile; dev builds quickly, to try the task",
        ],
        run: Run::Steps(bench::ha),
        ..REST
    },
    Task {
        name: "flood",
        group: Group::Measurement,
        shows: "cheap requests from one address, and a client beside them, which must not suffer; writes docs/bench/flood.md",
        example: "60",
        args: &["seconds=60 RON_FLOOD_SECONDS : length of the flood"],
        run: Run::Fleet("--test http a_flood"),
        ..REST
    },
    Task {
        name: "rivals",
        group: Group::Measurement,
        shows: "the HTTP front, beside axum and tiny_http",
        needs: "wrk",
        example: "5 5",
        args: &["seconds=5 : seconds per run", "rounds=5 : rounds"],
        run: Run::Steps(bench::rivals),
        ..REST
    },
    Task {
        name: "parsers",
        group: Group::Measurement,
        shows: "the metrics parser, beside other parsers in Rust and Go; the figures are processor time",
        needs: "Debian's packages of the Go parsers, else only those in Rust are measured",
        example: "5",
        args: &["seconds=2 : seconds per figure"],
        run: Run::Steps(parsers::parsers),
        ..REST
    },
    Task {
        name: "console",
        group: Group::Measurement,
        shows: "the console with 100 nodes of 500 series, then beside 100 nodes that hang",
        example: "60",
        args: &["seconds=30 : seconds per figure"],
        run: Run::Steps(bench::console),
        ..REST
    },
    Task {
        name: "site",
        group: Group::Files,
        shows: "the documents as a site in `target/site`, made by mdbook from `docs/`; a link that leads nowhere fails the task. The test `docs::site` runs it",
        length: "seconds",
        run: Run::Steps(site::site),
        ..REST
    },
    Task {
        name: "pictures",
        group: Group::Files,
        shows: "the pictures of the console in `docs/img`, taken in Chromium of a fleet under load, healthy and with a killed ledger; look at them before they are committed, and write their date in docs/ops/console.md",
        length: "3 min",
        run: Run::Fleet("--test e2e pictures:: -- --ignored --nocapture"),
        ..REST
    },
    Task {
        name: "package",
        group: Group::Files,
        shows: "Debian packages of programs that are built: one per service and one for `ron`, in `target/package`",
        length: "1 min",
        args: &[
            "--profile=release : profile whose programs are packed",
            "--fast : compress less",
        ],
        run: Run::Steps(release::package),
        ..REST
    },
    Task {
        name: "sbom",
        group: Group::Files,
        shows: "the bill of materials in CycloneDX 1.6: every crate that is linked or runs at build time; the same tree gives the same bytes",
        length: "seconds",
        example: "sbom.json",
        args: &[
            "file= : the file; standard output when absent",
            "--features= : features that are off by default, as ron-kms/tpm",
        ],
        run: Run::Steps(release::sbom),
        ..REST
    },
];
