"""Measures issuing and verifying over HTTP: svc-passport with the audited KMS, and npm oidc-provider, in turn.

usage: measure.py RON SECONDS ROUNDS PROCESSES OUT     (cargo xtask bench-passport finds and builds what is needed)

Both get the same client, secret (in the form), scope, lifetime and algorithm; wrk loads them from the same machine. Writes
medians as Markdown to OUT.
"""

import json
import os
import pathlib
import platform
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).parent
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
CLIENTS = [1, 2, 4, 8, 16, 64, 256]
# More tokens than the issuer remembers the check of.
TOKENS = 10_000
# The part of the page from here on is hand-written and kept.
OWN = "<!-- kept when the page is regenerated -->"
OURS, RIVAL = "svc-passport", "oidc-provider"


def post(url, body, kind=FORM):
    request = urllib.request.Request(url, body.encode(), {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until_ready(process, log):
    until = time.monotonic() + 60
    while "ready" not in log.read_text().split():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit("not started:\n" + log.read_text())
        time.sleep(0.05)
    return process


def start_ours(ron, directory):
    log = pathlib.Path(directory, "up.log")
    subprocess.run([ron, "init", "--data-dir", f"{directory}/fleet"], check=True, stdout=subprocess.DEVNULL)
    with open(f"{directory}/fleet/svc-passport/config.toml", "a") as config:
        config.write("\n[verify]\nchecks_per_second = 0\n")
    command = [ron, "up", "--data-dir", f"{directory}/fleet", "--base-port", "0"]
    process = until_ready(subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT), log)
    endpoints = json.loads(pathlib.Path(directory, "fleet/run/endpoints.json").read_text())
    base = next(e["api"] for e in endpoints["services"] if e["service"] == "svc-passport")
    client = json.loads(pathlib.Path(directory, "fleet/clients/operator.json").read_text())
    who = f"client_id={client['client_id']}&client_secret={client['client_secret']}"
    ask = f"grant_type=client_credentials&audience=svc-wallet&scope=wallet:read&{who}&ttl_s="
    new = lambda _: post(f"{base}/oauth2/token", ask + "3600")["access_token"]
    new(0)  # the secret is checked once, at length; then it is known
    with ThreadPoolExecutor(16) as pool:
        tokens = list(pool.map(new, range(TOKENS)))
    bodies = [json.dumps({"token": token}) for token in tokens]
    lines, token = pathlib.Path(directory, "bodies"), tokens[0]
    lines.write_text("\n".join(bodies) + "\n")
    return process, {
        "token": (base, "/oauth2/token", FORM, ask + "900"),
        "introspect": (base, "/oauth2/introspect", FORM, f"token={token}&{who}"),
        "verify": (base, "/v1/passport/verify", JSON, bodies[0]),
        "verify many": (base, "/v1/passport/verify", JSON, lines),
    }


def start_rival(directory, processes):
    log, port, secret = pathlib.Path(directory, "rival.log"), free_port(), secrets.token_hex(24)
    command = ["node", str(HERE / "server.mjs"), str(port), "operator", secret, processes]
    env = dict(os.environ, NODE_ENV="production")
    process = until_ready(subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=env), log)
    base, who = f"http://127.0.0.1:{port}", f"client_id=operator&client_secret={secret}"
    ask = f"grant_type=client_credentials&scope={urllib.parse.quote('wallet:read')}&{who}&resource=urn:wallet:"
    assert post(f"{base}/token", ask + "jwt")["access_token"].count(".") == 2
    opaque = post(f"{base}/token", ask + "opaque")["access_token"]
    time.sleep(0.2)  # the other process hears of it
    for _ in range(8):
        assert post(f"{base}/token/introspection", f"token={opaque}&{who}")["active"]
    return process, {
        "token": (base, "/token", FORM, ask + "jwt"),
        "introspect": (base, "/token/introspection", FORM, f"token={opaque}&{who}"),
    }


def one(what, clients, seconds):
    """Requests per second, p50 and p99 in ms, and errors."""
    base, path, kind, body = what
    threads = min(2, clients)
    env = dict(os.environ, LOAD_PATH=path, LOAD_TYPE=kind, LOAD_THREADS=str(threads))
    env["LOAD_BODIES" if isinstance(body, pathlib.Path) else "LOAD_BODY"] = str(body)
    command = ["wrk", f"-t{threads}", f"-c{clients}", f"-d{seconds}s", "--timeout", "10s", "-s", str(HERE / "form.lua"), base]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    line = next(l for l in out.splitlines() if l.startswith("FIGURES "))
    requests, duration, p50, p99, errors = map(int, line.split()[1:])
    return requests * 1e6 / duration, p50 / 1000, p99 / 1000, errors


def machine():
    with open("/proc/cpuinfo") as f:
        cpu = next(l.split(":", 1)[1].strip() for l in f if l.startswith("model name"))
    with open("/proc/meminfo") as f:
        gib = int(f.readline().split()[1]) / (1 << 20)
    return f"{cpu}, {os.cpu_count()} cores, {gib:.0f} GB, Linux {platform.release().split('-')[0]}"


def table(figures, rows):
    lines = ["| figure | clients | issuer | per second | p50 ms | p99 ms | errors |", "|---|--:|---|--:|--:|--:|--:|"]
    for name, key, servers in rows:
        for clients in CLIENTS:
            for server in servers:
                runs = figures[(server, key, clients)]
                rate, p50, p99 = (statistics.median(run[i] for run in runs) for i in range(3))
                errors = sum(run[3] for run in runs)
                lines.append(f"| {name} | {clients} | {server} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {errors} |")
    return "\n".join(lines)


def main():
    ron, seconds, rounds, processes, out = sys.argv[1:]
    version = json.loads((HERE / "package.json").read_text())["dependencies"]["oidc-provider"]
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        started = []
        try:
            ours, what_ours = start_ours(ron, directory)
            started.append(ours)
            rival, what_rival = start_rival(directory, processes)
            started.append(rival)
            servers = [(OURS, what_ours), (RIVAL, what_rival)]
            for server, what in servers:  # warm: caches, and a compiler that learns while it runs
                for key in what:
                    one(what[key], 64, 2)
            for round_ in range(int(rounds)):
                for server, what in servers if round_ % 2 == 0 else servers[::-1]:
                    for key in what:
                        for clients in CLIENTS:
                            figures.setdefault((server, key, clients), []).append(one(what[key], clients, seconds))
            base, path, kind, body = what_ours["verify"]
            assert post(base + path, body, kind)["ok"], "the token ended before the last figure: fewer seconds or rounds"
        finally:
            for process in started:
                process.terminate()
                process.wait(timeout=60)
    rows = [("token issued (JWT, EdDSA)", "token", [OURS, RIVAL]), ("token introspected", "introspect", [OURS, RIVAL]),
            ("the same token verified, /v1/passport/verify", "verify", [OURS]),
            (f"{TOKENS:,} tokens in turn verified", "verify many", [OURS])]
    text = f"""# Passports beside oidc-provider

`cargo xtask bench-passport [seconds per figure] [rounds] [processes of the rival]` writes this page. wrk loads the two issuers in turn
from the same machine, the other one idle; rounds alternate which one begins; medians of {rounds} rounds of {seconds} s.

- **svc-passport**: `ron up` in its release build, default configuration but for `verify.checks_per_second = 0`, because all load comes from one address: the KMS signs every token over HTTP (waiting tokens share a
  call), and a token is answered after the leaf of its signature is durable in the audit log
- **oidc-provider {version}**: Node.js {subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()}, a cluster of {processes} processes, keep-alive, keys and records in memory;
  it signs in process, audits nothing and keeps nothing after a restart

Both: client_credentials with the secret in the form, one scope, 15 minutes, EdDSA. The introspected token is a JWT at
svc-passport (signature, claims, revocation), and an opaque token at oidc-provider, which introspects no JWTs. The issuer
caches the signature check of 4,096 tokens; it caches no check of the {TOKENS:,} tokens that are verified in turn.

Measured on {time.strftime("%Y-%m-%d")}: {machine()}.

{table(figures, rows)}
"""
    out, own = pathlib.Path(out), ""
    if out.exists() and OWN in (page := out.read_text()):
        own = "\n" + page[page.index(OWN):]
    out.write_text(text + own)
    print(text)


if __name__ == "__main__":
    main()
