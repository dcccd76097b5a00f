#!/usr/bin/env python3
"""Measures the rewarder beside DuckDB and Polars and writes the figures as Markdown.

    measure.py --bin target/release --dir scratch --python venv/bin/python --out docs/bench/rewarder.md
               [--sizes 1000000,10000000] [--streamed 50000000] [--settle 1000000] [--threads 2]

Every part is a process of its own, one after the other on the same machine; times and peak memory
are those that the processes report. Used by `cargo xtask bench-rewarder`.
"""

import argparse
import csv
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import time
import urllib.error
import urllib.request


def call(*command, **more):
    out = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **more)
    return out.stdout


def part(*command):
    """The last line of a part, which is JSON; None if the process ran out of memory or was killed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def seconds(line, key="total_us"):
    return f"{line[key] / 1e6:.2f} s" if line else "failed"


def memory(line):
    return f"{line['peak_kib'] / 1024:.0f} MiB" if line else "-"


def our_digest(ron, run):
    """The same hash of all payouts as rivals.py makes."""
    hasher = hashlib.sha256()
    child = subprocess.Popen([ron, "rewarder", "export", run], stdout=subprocess.PIPE, text=True)
    for row in csv.DictReader(child.stdout):
        hasher.update(f"{row['account']},{row['amount_minor']}\n".encode())
    assert child.wait() == 0
    return hasher.hexdigest()


def epoch(args, accounts, rivals):
    """Our figures and, on request, the rivals', for this many accounts."""
    work = args.dir / str(accounts)
    work.mkdir(parents=True)
    ours = args.bin / "examples/compute_time"
    call(ours, "make", accounts, work)
    figures = {"import": part(ours, "import", work), "run": part(ours, "run", work, args.threads), "rivals": []}
    if rivals:
        script = pathlib.Path(__file__).with_name("rivals.py")
        usage, packed = work / "usage.csv", work / "usage.parquet"
        call(args.python, script, "parquet", usage, packed)
        check = ["--digest"] if accounts <= 1_000_000 else []
        for rival in ("duckdb", "polars"):
            for file in (usage, packed):
                line = part(args.python, script, rival, file, "--threads", args.threads, *check)
                figures["rivals"].append((rival, file.suffix[1:], line))
        figures["same"] = compare(args, work, figures) if check else None
    shutil.rmtree(work)
    return figures


def compare(args, work, figures):
    """True if the rivals compute the same payouts, payee by payee."""
    ours = our_digest(args.bin / "ron", work / "run")
    lines = [line for _, _, line in figures["rivals"] if line]
    assert all(line["payout_minor"] == figures["run"]["payout_minor"] for line in lines), lines
    assert all(line["digest"] == ours for line in lines), "the payouts differ"
    return len(lines)


def settlement(args):
    """Payouts a second into the real ledger, as the rewarder makes them over HTTP."""
    work = args.dir / "settle"
    work.mkdir(parents=True)
    ron, data = args.bin / "ron", work / "fleet"
    call(args.bin / "examples/compute_time", "make", args.settle, work)
    call(ron, "rewarder", "import", work / "usage.csv", "--out", work / "usage.sealed")
    fleet = subprocess.Popen([ron, "up", "--base-port", "0", "--data-dir", data], stdout=subprocess.PIPE, text=True)
    try:
        while fleet.stdout.readline().strip() != "ready":
            assert fleet.poll() is None, "the fleet ended"
        return settle(args, work, ron, data)
    finally:
        fleet.terminate()
        fleet.wait()
        shutil.rmtree(work)


def settle(args, work, ron, data):
    services = json.loads((data / "run/endpoints.json").read_text())["services"]
    url = {service["service"]: service for service in services}
    token = lambda audience: call(ron, "token", "--audience", audience, "--data-dir", data).strip()
    policy = data / "policy/reward.json"
    pool = json.loads(policy.read_text())
    body = {"to": pool["pool"]["account"], "asset": pool["asset"], "amount_minor": pool["pool"]["amount_minor"]}
    ask(url["svc-wallet"]["api"] + "/v1/issue", token("svc-wallet"), body, {"Idempotency-Key": "bench"})
    bearer = token("svc-rewarder")
    child = subprocess.Popen(
        [ron, "rewarder", "compute", "bench", "--snapshot", work / "usage.sealed", "--policy", policy,
         "--data-dir", data, "--wait", "3600"], stdout=subprocess.DEVNULL)
    began = None
    while True:
        try:
            run = ask(url["svc-rewarder"]["api"] + "/rewarder/epochs/bench", bearer)
        except urllib.error.HTTPError:
            run = {"state": "unknown"}
        if began is None and run.get("progress", {}).get("intents_settled", 0) > 0:
            began, first = time.monotonic(), run["progress"]["intents_settled"]
        if run["state"] == "settled":
            break
        assert run["state"] not in ("failed", "quarantined"), run
        time.sleep(0.02)
    took = time.monotonic() - began if began else 0
    assert child.wait() == 0
    total = run["progress"]["intents_settled"]
    return {"payouts": total, "rate": int((total - first) / took) if took else 0, "seconds": took}


def ask(url, token, body=None, more={}):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | more
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        return json.load(answer)


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return f"{os.cpu_count()} cores of {model}, {kib >> 20} GiB of memory, Linux {platform.release()}"


def report(args, epochs, settled):
    lines = [
        "# Figures of the rewarder", "",
        f"`cargo xtask bench-rewarder` on {machine()}; everything in one run, one part after the other, {args.threads} threads. "
        "Usage of N accounts with three metrics and realistic skew, the same text on every machine. DuckDB and Polars read the same "
        "usage (as CSV, and as Parquet that DuckDB wrote), compute the same exact shares in 128-bit integers, and hash the payouts "
        "into a tree: DuckDB with SHA-256, Polars, which has no such function, with its 64-bit hash.", "",
        "## Ours: cost by accounts", "",
        "| accounts | import and seal the CSV | its peak memory | read and check sealed | compute, table, tree, manifest | "
        "artifacts durable | one proof | sealed to proof | per million | peak memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for accounts, figures in epochs:
        sealed, run = figures["import"], figures["run"]
        if not run:
            lines.append(f"| {accounts:,} | {seconds(sealed, 'import_us')} | failed | | | | | | | |")
            continue
        each = run["total_us"] / accounts
        lines.append(
            f"| {accounts:,} | {seconds(sealed, 'import_us')} | {memory(sealed)} | {seconds(run, 'read_us')} | "
            f"{seconds(run, 'compute_us')} | {seconds(run, 'artifacts_us')} | {run['prove_us'] / 1000:.1f} ms | "
            f"{seconds(run)} | {each:.3f} s | {memory(run)} |")
    lines += ["", "## Beside DuckDB and Polars", "",
              "| accounts | program | from | to a root over all payouts | peak memory |", "|---|---|---|---|---|"]
    for accounts, figures in epochs:
        if not figures["rivals"]:
            continue
        sealed, run = figures["import"], figures["run"]
        lines.append(f"| {accounts:,} | ours | sealed snapshot | {seconds(run)} (durable, with a proof) | {memory(run)} |")
        both = {"total_us": sealed["import_us"] + run["total_us"]}
        peak = {"peak_kib": max(sealed["peak_kib"], run["peak_kib"])}
        lines.append(f"| {accounts:,} | ours | CSV, sealed first | {seconds(both)} | {memory(peak)} |")
        for rival, file, line in figures["rivals"]:
            name = {"duckdb": "DuckDB", "polars": "Polars"}[rival]
            lines.append(f"| {accounts:,} | {name} | {'CSV' if file == 'csv' else 'Parquet'} | {seconds(line)} | {memory(line)} |")
        if figures["same"]:
            lines.append(f"| {accounts:,} | | | all {figures['same']} pay every payee the same amount as ours | |")
    lines += ["", "## Settlement", ""]
    if settled:
        lines.append(f"{settled['payouts']:,} payouts by the fleet of `ron up` through HTTP into the ledger, in batches of 1,000, "
                     f"each durable before it is acknowledged: {settled['rate']:,} payouts/s.")
    lines += ["", "## How to repeat", "", "`cargo xtask bench-rewarder` (needs PyPI for DuckDB and Polars, and about 40 GB of disk "
              "for 50 million accounts); for a quick trial: `cargo xtask bench-rewarder --sizes 10000 --streamed= --settle 2000 --profile dev --out /tmp/rewarder.md`.", ""]
    args.out.write_text("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--dir", type=lambda p: pathlib.Path(p).resolve(), required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    numbers = lambda text: [int(word) for word in text.split(",") if word]
    parser.add_argument("--sizes", type=numbers, default=[1_000_000, 10_000_000])
    parser.add_argument("--streamed", type=numbers, default=[50_000_000])
    parser.add_argument("--settle", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    epochs = [(size, epoch(args, size, True)) for size in args.sizes]
    epochs += [(size, epoch(args, size, False)) for size in args.streamed]
    report(args, epochs, settlement(args) if args.settle else None)
    print(args.out.read_text())


main()
