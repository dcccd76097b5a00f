//! The tail of latencies with an open loop; writes docs/bench/tail.md.

use crate::bench::{build, built};
use crate::cmd::Cmd;
use crate::files::{self, Removed};
use crate::task::{Args, Outcome};

pub fn tail(args: &Args) -> Outcome {
    let profile = args.text("profile");
    build(profile, "-p ron -p ron-benches --bins")?;
    let place = Removed(args.path("dir")?);
    files::fresh_dir(&place.0)?;
    let seconds = args.text("seconds");
    let measured = Cmd::with_descriptors(8192, &built(profile).join("load"))
        .args(["tail", "--seconds", seconds, "--clients"])
        .arg(args.text("clients"))
        .args(["--shares", args.text("shares"), "--dir"])
        .arg(&place.0)
        .measured()?;
    let date = Cmd::new("date").args(["-u", "+%F"]).output()?;
    let note = match args.text("note") {
        "" => String::new(),
        note => format!("{note}\n\n"),
    };
    let out = args.path("out")?;
    let page = format!(
        "# Tail of latencies

Written by `cargo xtask bench-tail {seconds}` on {date}, {profile} profile. The load generator runs on the same cores as the services.

{note}{HOW}

{measured}
"
    );
    files::write(&out, &page)?;
    println!("wrote {}", out.display());
    Ok(())
}

/// How the figures are made.
const HOW: &str = "Each client is a connection. The peak of so many clients is measured first with a closed loop: a client sends the next request when the last one is answered. Such a loop sends nothing
during a pause of the service, so that the pause is charged to as many requests as there are clients (*coordinated omission*), and its latencies are not shown.

The other rows are measured with an open loop: requests are due at equal distances, whether or not earlier ones are answered, and the latency of each counts from when it was due. A pause is charged to
every request that was due meanwhile. A request that is due while all clients are busy waits for one; two threads serve the clients, and what they add (a wake-up, at most one request's distance) is in the
latencies.

- *due per second* is the given rate, *answered per second* the successes until the last answer. When the second is smaller, the service has fallen behind and caught up after the last request was due.
- *above 20 ms* counts answers that came later than that.
- *refused* counts answers that were no success, the first of them in parentheses. A client that is told when to retry (429, 503) waits so long and repeats the request, whose latency still counts from when it was due.
- *lost* counts requests without a success: refused for good, not answered 5 s after the last was due, or not sent, because as many waited for a client as are due in one second. They count as
  slower than all answers; a quantile that is among them is shown as `lost`.

A pause is a time in which requests were due and none succeeded. What was seen meanwhile is what the services and the kernel counted between two readings, 0.1 s apart, around it; the events of the
services within it; and whether a thread of the load generator that only slept in steps of 5 ms woke up late, which is the scheduler's or the host's doing.";
