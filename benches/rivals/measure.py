"""Loads the three servers in turn with wrk and prints the medians as Markdown.

Usage: measure.py DIR_OF_BINARIES SECONDS ROUNDS
"""
import os
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SERVERS = ["ours", "axum", "tiny"]
NAMES = {"ours": "ron-http", "axum": "axum 0.8", "tiny": "tiny_http 0.12"}
ROUTES = ["hello", "echo"]
LOADS = [16, 128, 1000]
# Worker threads of ron-http, as many as axum's runtime has.
WORKERS = "2"
TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")


def cpu_us(pid):
    """User and system time of a process so far, in microseconds."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


def status(pid):
    """Threads, and resident KiB."""
    with open(f"/proc/{pid}/status") as f:
        lines = dict(line.split(":", 1) for line in f if ":" in line)
    return int(lines["Threads"]), int(lines["VmRSS"].split()[0])


def one(addr, pid, route, conns, seconds):
    """One run: requests/s, p50 and p99 in us, CPU us per request, threads, resident KiB, errors."""
    seen = []

    def look():
        time.sleep(seconds * 0.7)
        seen.append(status(pid))

    watcher = threading.Thread(target=look)
    env = dict(os.environ, RIVAL_ROUTE=route)
    command = ["wrk", "-t2", f"-c{conns}", f"-d{seconds}s", "--timeout", "10s",
               "-s", os.path.join(HERE, "load.lua"), f"http://{addr}/"]
    before = cpu_us(pid)
    watcher.start()
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    after = cpu_us(pid)
    watcher.join()
    line = next(l for l in out.splitlines() if l.startswith("FIGURES "))
    requests, duration, p50, p99, errors = map(int, line.split()[1:])
    if requests == 0:  # nobody was answered in all that time
        requests, p50, p99, errors = 1, duration, duration, errors + 1
    threads, rss = seen[0]
    return (requests * 1e6 / duration, p50, p99, (after - before) / requests, threads, rss, errors)


def main():
    directory, seconds, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    children, addrs = {}, {}
    figures = {}
    try:
        for server in SERVERS:
            command = [os.path.join(directory, f"rival-{server}"), "127.0.0.1:0", WORKERS]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            children[server] = child
            addrs[server] = child.stdout.readline().strip()
        print(f"load average before: {os.getloadavg()[0]:.2f}", file=sys.stderr)
        for n in range(rounds):
            # Another order in each round, so that no server always runs first.
            order = SERVERS[n % 3:] + SERVERS[:n % 3]
            for conns in LOADS:
                for route in ROUTES:
                    for server in order:
                        run = one(addrs[server], children[server].pid, route, conns, seconds)
                        figures.setdefault((route, conns, server), []).append(run)
                        time.sleep(0.3)
            print(f"round {n + 1} of {rounds} done", file=sys.stderr)
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    table(figures)


def table(figures):
    for route, title in [("hello", "GET, small JSON"),
                         ("echo", "POST, 1 KiB JSON through a bounded queue")]:
        print(f"\n### {title}\n")
        print("| connections | server | requests/s | p50 ms | p99 ms | CPU us/request | threads | RSS MiB | errors |")
        print("|--:|---|--:|--:|--:|--:|--:|--:|--:|")
        for conns in LOADS:
            for server in SERVERS:
                runs = figures[(route, conns, server)]
                rate, p50, p99, cpu, threads, rss, _ = (
                    statistics.median(column) for column in zip(*runs))
                errors = sum(run[6] for run in runs)
                print(f"| {conns:,} | {NAMES[server]} | {rate:,.0f} | {p50 / 1000:.2f} | "
                      f"{p99 / 1000:.2f} | {cpu:.1f} | {threads:.0f} | {rss / 1024:.1f} | {errors} |")


main()
