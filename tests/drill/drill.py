"""An on-call drill: faults in a fleet of separate processes, watched by a real Prometheus with the rules of docs/ops; the last ones in a
fleet whose ledger runs on two hosts over a PostgreSQL with a standby.

For each fault: seconds until the console, `ron status` and an alert name the service that has it, and what else was blamed.
Prints a table, and writes the page with --out. Started by `cargo xtask drill`; needs the Python environment of scripts/setup.sh, prometheus,
PostgreSQL, and for some faults root or faketime, without which they are skipped and said to be.
"""

import argparse
import datetime
import http.client
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# The second ledger, of another host.
SECOND = "ledger-b"
SERVICES = ["ron-kms", "svc-passport", "ron-ledger", "svc-wallet", "svc-rewarder", "svc-admin"]
# What a service needs, so that it is rightly degraded without it.
NEEDS = {
    "svc-passport": {"ron-kms"},
    "ron-ledger": {"svc-passport"},
    "ron-kms": {"svc-passport"},
    "svc-wallet": {"ron-ledger", "svc-passport"},
    "svc-rewarder": {"ron-ledger", "ron-kms", "svc-passport"},
    "svc-admin": set(),
    SECOND: {"svc-passport"},
}
# Alerts about the past or the future, or that the console raises about the node that has the fault: no service is blamed by them.
HISTORY = {"RonProcessRestarts", "RonThreadsRestart", "RonConsoleSeesNodesDown", "RonReloadRefused", "RonDiskFills", "RonCheckpointLate"}
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
PATIENCE = 420
CALM = 180


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(self.path)


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


class Fleet:
    def __init__(self, binaries, root, base):
        self.binaries, self.base = binaries, base
        root.mkdir(mode=0o700)
        self.dir = root / "ron"
        self.processes, self.load = {}, None
        self.ron("init", "--base-port", str(base))

    def ron(self, *words):
        command = [self.binaries / "ron", *words, "--data-dir", self.dir]
        return subprocess.run(command, capture_output=True, text=True, timeout=90)

    def services(self):
        return SERVICES

    def health(self, service):
        return self.base + 10 * SERVICES.index(service) + 5

    def named(self, address):
        """The service at an address of a health port."""
        ports = {str(self.health(service)): service for service in self.services()}
        return ports.get(address.rsplit(":", 1)[-1], address)

    def log_of(self, service):
        return self.dir.parent / f"{service}.log"

    def start(self, service, env=None):
        log = open(self.log_of(service), "ab")
        program = "ron-ledger" if service == SECOND else service
        command = [self.binaries / program, "--config", self.dir / service / "config.toml"]
        self.processes[service] = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | (env or {}))

    def start_all(self):
        for service in reversed(SERVICES):
            self.start(service)

    def restart(self, service, env=None):
        self.stop(service)
        self.start(service, env)

    def stop(self, service):
        process = self.processes[service]
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.wait(timeout=30)

    def signal(self, service, number):
        self.processes[service].send_signal(number)

    def kill(self, service):
        self.signal(service, signal.SIGKILL)
        self.processes[service].wait()

    def token(self, audience):
        done = self.ron("token", "--audience", audience, "--ttl", "1h")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask(self, service, method, path, token, body=None, headers=None):
        connection = UnixConnection(self.dir / "run" / service / "api.sock")
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class TwoHosts(Fleet):
    """A fleet with a second ledger, whose log is in a database with a standby."""

    def __init__(self, binaries, root, base):
        super().__init__(binaries, root, base)
        self.database = Database(base + 62)
        first, second = self.dir / "ron-ledger", self.dir / SECOND
        plain = (first / "config.toml").read_text()
        for ended in ("log", "derived", "projection.sqlite"):  # the log begins in the database
            path = first / "data" / ended
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (second / "data").mkdir(parents=True, mode=0o700)
        second.chmod(0o700)
        (self.dir / "run" / SECOND).mkdir(mode=0o700)
        for name in ("note.key", "log.vkey"):
            shutil.copy2(first / "data" / name, second / "data" / name)
        moved = plain.replace(f"run/ron-ledger", f"run/{SECOND}").replace("ron-ledger/data", f"{SECOND}/data")
        moved = moved.replace(f":{base + 20}", f":{base + 60}").replace(f":{base + 25}", f":{base + 61}")
        for path, text, port in ((first, plain, base + 20), (second, moved, base + 60)):
            log = f'[log]\nurl = "{self.database.url}"\nnode = "http://127.0.0.1:{port}"\n\n'
            (path / "config.toml").write_text(text.replace("[auth]\n", log + "[auth]\n", 1))
            (path / "config.toml").chmod(0o600)
        console = self.dir / "svc-admin" / "config.toml"
        node = f'[[nodes]]\nid = "{SECOND}"\nhealth_url = "unix:{self.dir}/run/{SECOND}/health.sock"\n\n'
        console.write_text(console.read_text().replace("[[nodes]]", node + "[[nodes]]", 1))

    def start_all(self):
        super().start_all()
        by = time.monotonic() + 60
        while True:  # until the first is the one that writes
            try:
                if get(f"http://127.0.0.1:{self.health('ron-ledger')}/api/v1/status").get("log", {}).get("active"):
                    break
            except OSError:
                pass
            assert time.monotonic() < by, "the first ledger does not become active"
            time.sleep(0.2)
        self.start(SECOND)

    def services(self):
        return [*SERVICES, SECOND]

    def health(self, service):
        return self.base + 61 if service == SECOND else super().health(service)


class Database:
    """A PostgreSQL with a synchronous standby, on this port and the next."""

    SETTINGS = [
        "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60", "shared_buffers=32MB",
        "wal_keep_size=256MB", "wal_sender_timeout=0", "wal_receiver_timeout=0", "wal_retrieve_retry_interval=100ms", "cluster_name=s1",
    ]

    def __init__(self, port):
        self.port, self.url = port, f"postgresql://ron@127.0.0.1:{port}/postgres"
        installed = pathlib.Path("/usr/lib/postgresql").glob("*/bin")
        self.programs = max(installed, key=lambda path: int(path.parent.name))
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="drill-", dir="/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self.dir, "postgres", "postgres")
        self.run("initdb", "-U", "ron", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D", self.dir / "a")
        self.primary = self.serve("a", port)
        self.until(port, "SELECT 't'")
        source = f"hostaddr=127.0.0.1 port={port} user=ron dbname=postgres"
        self.run("pg_basebackup", "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source, "-D", self.dir / "b")
        self.standby = self.serve("b", port + 1)
        self.ask(port, "ALTER SYSTEM SET synchronous_standby_names = 's1'")
        self.ask(port, "SELECT pg_reload_conf()")
        self.wait()

    def command(self, program, *words):
        """As an unprivileged user, who may not be in the present directory."""
        own = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        return [*own, self.programs / program, *words]

    def run(self, program, *words):
        done = subprocess.run(self.command(program, *words), cwd="/", capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def serve(self, name, port):
        settings = [word for setting in self.SETTINGS for word in ("-c", setting)]
        log = open(self.dir / f"{name}.log", "ab")
        return subprocess.Popen(self.command("postgres", "-D", self.dir / name, "-p", str(port), *settings), cwd="/", stdout=log, stderr=log)

    def ask(self, port, sql):
        """An administrator's statement, which does not wait for the standby."""
        source = f"hostaddr=127.0.0.1 port={port} user=ron dbname=postgres options='-c synchronous_commit=local'"
        return self.run("psql", "-X", "-A", "-t", "-d", source, "-c", sql)

    def until(self, port, sql):
        by = time.monotonic() + 60
        while True:
            try:
                if self.ask(port, sql) == "t":
                    return
            except AssertionError:  # it does not accept connections yet
                pass
            assert time.monotonic() < by, sql
            time.sleep(0.2)

    def wait(self):
        """Until writes wait for the standby."""
        self.until(self.port, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def lose_standby(self):
        self.standby.send_signal(signal.SIGQUIT)
        self.standby.wait()

    def regain_standby(self):
        self.standby = self.serve("b", self.port + 1)
        self.wait()

    def stop(self):
        for server in (self.standby, self.primary):
            if server.poll() is None:
                server.send_signal(signal.SIGQUIT)
            server.wait(timeout=30)
        shutil.rmtree(self.dir)


class Load:
    """Some requests a second, so that there is traffic to judge."""

    def __init__(self, fleet):
        self.fleet, self.stopped = fleet, threading.Event()
        self.tokens = {service: fleet.token(service) for service in ("svc-wallet", "ron-ledger")}
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        number = 0
        while not self.stopped.wait(0.2):
            number += 1
            for ask in (self.transfer, self.read, self.read_newest):
                try:
                    ask(number)
                except (OSError, ValueError, KeyError, http.client.HTTPException):
                    pass  # a fault

    def transfer(self, number):
        body = {"to": "acct:drill", "asset": "ron", "amount_minor": "1"}
        self.fleet.ask("svc-wallet", "POST", "/v1/issue", self.tokens["svc-wallet"], body, {"Idempotency-Key": f"drill-{number}"})

    def read(self, _):
        self.fleet.ask("ron-ledger", "GET", "/v1/ledger/entries", self.tokens["ron-ledger"])

    def read_newest(self, _):
        """A client that wants to see its own entry is told to retry while the ledger's history lacks it."""
        _, head = self.fleet.ask("ron-ledger", "GET", "/v1/ledger/head", self.tokens["ron-ledger"])
        path = f"/v1/ledger/entries?min_seq={json.loads(head)['seq']}"
        self.fleet.ask("ron-ledger", "GET", path, self.tokens["ron-ledger"])

    def stop(self):
        self.stopped.set()
        self.thread.join()


class Prometheus:
    def __init__(self, rules, root, fleet, port):
        self.url, self.fleet = f"http://127.0.0.1:{port}", fleet
        labels = {SECOND: "ron-ledger"}
        targets = "".join(
            f'      - targets: ["127.0.0.1:{fleet.health(s)}"]\n        labels: {{ service: {labels.get(s, s)} }}\n' for s in fleet.services()
        )
        config = root / "prometheus.yml"
        config.write_text(
            "global:\n  scrape_interval: 5s\n  evaluation_interval: 5s\n"
            f"rule_files: [{rules}]\nscrape_configs:\n  - job_name: ron\n    static_configs:\n{targets}"
        )
        log = open(root / "prometheus.log", "ab")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={root}/tsdb", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log,
        )

    def firing(self):
        """Pairs of alert and service."""
        alerts = get(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        found = {(a["labels"]["alertname"], a["labels"].get("service", ""), a["labels"].get("instance")) for a in alerts if a["state"] == "firing"}
        return {(name, self.fleet.named(instance) if instance else service) for name, service, instance in found}


class Watch:
    """What the three observers say of each service, polled until told to stop."""

    def __init__(self, fleet, prometheus):
        self.fleet, self.prometheus = fleet, prometheus

    def console(self):
        said = {}
        for node in get(f"http://127.0.0.1:{self.fleet.base + 50}/api/overview")["nodes"]:
            node = node["summary"]
            # A restart is shown for as long as the window of the console, also when all is well again.
            now = [reason for reason in node["reasons"] if reason["code"] != "process_restarted"]
            state = node["state"] if now or not node["reasons"] else "healthy"
            said[node["id"]] = (state, json.dumps(now))
        return said

    def status(self):
        """With the addresses of all hosts."""
        places = [f"--health=http://127.0.0.1:{self.fleet.health(service)}" for service in self.fleet.services()]
        command = [self.fleet.binaries / "ron", "status", "--json", *places]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        return {self.fleet.named(one["at"]): (one["state"], json.dumps(one["problems"])) for one in json.loads(done.stdout)}

    def calm(self, within):
        """Waits until nothing is wrong; what still is, after that time."""
        by = time.monotonic() + within
        while True:
            try:
                console = {s for s, (state, _) in self.console().items() if state != "healthy"}
                status = {s for s, (state, _) in self.status().items() if state != "healthy"}
                alerts = {a for a in self.prometheus.firing() if a[0] not in HISTORY}
                left = {"console": console, "status": status, "alerts": alerts}
            except (OSError, ValueError) as error:
                left = {"error": str(error)}
            if not any(left.values()) or time.monotonic() > by:
                return left
            time.sleep(1)


def judge(watch, fault, before):
    """Seconds until each observer named the cause, and who was blamed beside it."""
    cause, word = fault["cause"], fault.get("word", "")
    has_it = {cause} | fault.get("with", set())
    began = time.monotonic()
    seen, blamed = {}, set()
    wanted = fault["alerts"]

    def names(said):
        state, text = said.get(cause, ("healthy", ""))
        return state != "healthy" and (word in text or state in ("down", "no answer"))

    while time.monotonic() - began < PATIENCE:
        now = time.monotonic() - began
        for name, look in (("console", watch.console), ("status", watch.status)):
            try:
                said = look()
            except (OSError, ValueError):
                continue
            if name not in seen and names(said):
                seen[name] = now
            for service, (state, _) in said.items():
                if state in ("down", "no answer") and service not in has_it and cause not in needs(service):
                    blamed.add(f"{service} by {name}")
        try:
            firing = watch.prometheus.firing() - before
        except OSError:
            firing = set()
        for alert, service in firing:
            if "alert" not in seen and alert in wanted and service == cause:
                seen["alert"] = now
                seen["name"] = alert
            if alert not in HISTORY and service not in has_it | {""} and cause not in needs(service):
                blamed.add(f"{service} by {alert}")
        if {"console", "status", "alert"} <= seen.keys():
            break
        time.sleep(0.5)
    return seen, sorted(blamed)


def needs(service):
    """All services without which this one is rightly degraded."""
    found, todo = set(), [service]
    while todo:
        for one in NEEDS.get(todo.pop(), ()):
            if one not in found:
                found.add(one)
                todo.append(one)
    return found


def stutter(fleet, service, stop):
    """Lets a service run for a tenth of the time."""
    while not stop.wait(0.1):
        fleet.signal(service, signal.SIGSTOP)
        stop.wait(0.9)
        fleet.signal(service, signal.SIGCONT)


def certificate(path, seconds):
    """A self-signed certificate that ends so many seconds from now."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "drill")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(seconds=seconds))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False).sign(key, hashes.SHA256())
    )
    (path / "drill.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = path / "drill.key"
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    secret.chmod(0o600)


def faults_of_two_hosts(fleet):
    """What is lost when redundancy is: a node that takes over, or the second copy of the log."""
    return [
        {"name": "the ledger's second node is killed", "cause": SECOND, "alerts": {"RonServiceDown"}, "do": lambda: fleet.kill(SECOND), "undo": lambda: fleet.start(SECOND)},
        {"name": "the database of the ledger loses its standby", "cause": "ron-ledger", "with": {SECOND}, "word": "standby", "alerts": {"RonNoDatabaseStandby"}, "do": lambda: fleet.database.lose_standby(), "undo": lambda: fleet.database.regain_standby()},
    ]


def faults(fleet, root):
    """The faults: what is done, which service has it, by which word it is known, and what ends it."""
    stop = threading.Event()

    def slow():
        stop.clear()
        threading.Thread(target=stutter, args=(fleet, "ron-ledger", stop)).start()

    def fast():
        stop.set()
        time.sleep(1.5)
        fleet.signal("ron-ledger", signal.SIGCONT)

    data = fleet.dir / "ron-ledger" / "data"

    def fill():
        free = os.statvfs(data)
        with open(data / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (8 << 20))

    wallet = fleet.dir / "svc-wallet" / "config.toml"
    plain = wallet.read_text()

    def expire():
        certificate(fleet.dir / "svc-wallet", 40)
        paths = fleet.dir / "svc-wallet"
        wallet.write_text(f'{plain}\n[tls]\nenabled = true\ncert_path = "{paths}/drill.pem"\nkey_path = "{paths}/drill.key"\n')
        fleet.restart("svc-wallet")
        time.sleep(41)

    def renew():
        wallet.write_text(plain)
        fleet.restart("svc-wallet")

    policy = fleet.dir / "policy" / "wallet.json"
    right = policy.read_bytes()

    def spoil():
        policy.write_text('{"version": 99, "rules": [{"principal": "shop", "action": ["read"]}]}')
        fleet.signal("svc-wallet", signal.SIGHUP)

    def repair():
        policy.write_bytes(right)
        fleet.signal("svc-wallet", signal.SIGHUP)

    date = root / "date"

    def jump():
        date.write_text("+0")
        env = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(date), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        fleet.restart("svc-passport", env)
        time.sleep(10)
        date.write_text("+7200")

    held = []

    def hold():
        """Keeps the ledger's history from being written; it can still be read."""
        held.append(sqlite3.connect(data / "projection.sqlite", isolation_level=None))
        held[0].execute("BEGIN IMMEDIATE")

    def let_go():
        held.pop().close()

    down = {"RonServiceDown"}
    ready = {"RonNotReady", "RonServiceDegraded"}
    return [
        {"name": "a ledger is killed", "cause": "ron-ledger", "alerts": down, "do": lambda: fleet.kill("ron-ledger"), "undo": lambda: fleet.start("ron-ledger")},
        {"name": "an issuer hangs", "cause": "svc-passport", "alerts": down, "do": lambda: fleet.signal("svc-passport", signal.SIGSTOP), "undo": lambda: fleet.signal("svc-passport", signal.SIGCONT)},
        {"name": "a ledger runs a tenth of the time", "cause": "ron-ledger", "word": "kept from running", "alerts": ready, "do": slow, "undo": fast},
        {"name": "the ledger's disk is full", "cause": "ron-ledger", "word": "disk", "alerts": ready | {"RonDiskFull"}, "do": fill, "undo": lambda: (data / "ballast").unlink(), "if": os.path.ismount(data) or "needs root"},
        {"name": "the wallet's certificate has expired", "cause": "svc-wallet", "word": "certificate", "alerts": {"RonCertificateEnds"}, "do": expire, "undo": renew},
        {"name": "a wrong policy is loaded", "cause": "svc-wallet", "word": "policy", "alerts": {"RonReloadRefused"}, "do": spoil, "undo": repair},
        {"name": "the key service is killed", "cause": "ron-kms", "alerts": down, "do": lambda: fleet.kill("ron-kms"), "undo": lambda: fleet.start("ron-kms")},
        {"name": "the issuer's clock jumps by two hours", "cause": "svc-passport", "word": "clock", "alerts": ready, "do": jump, "undo": lambda: fleet.restart("svc-passport"), "if": os.path.exists(FAKETIME) or "needs faketime"},
        {"name": "some of the ledger's answers are errors", "cause": "ron-ledger", "word": "server errors", "alerts": {"RonServerErrors"}, "do": hold, "undo": let_go},
    ]


def small_disk(path, megabytes):
    """Puts a file system of its own under a directory, if this process may."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "drill", path], capture_output=True)
    return done.returncode == 0


def cell(seconds):
    if isinstance(seconds, str):
        return seconds
    return "not in time" if seconds is None else f"{seconds:.0f} s"


def report(rows):
    lines = [
        "| fault | console | `ron status` | alert | healthy services blamed | calm again after |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for name, seen, blamed, calm in rows:
        if seen is None:
            lines.append(f"| {name} | skipped: {blamed} | | | | |")
            continue
        alert = cell(seen.get("alert")) + (f" (`{seen['name']}`)" if "name" in seen else "")
        lines.append(f"| {name} | {cell(seen.get('console'))} | {cell(seen.get('status'))} | {alert} | {', '.join(blamed) or 'none'} | {calm} |")
    return "\n".join(lines) + "\n"


def page(path, table):
    """Replaces the table of the page."""
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    said = f"Measured on {datetime.date.today()} on {os.cpu_count()} cores of {model}, Linux {platform.release()}.\n\n{table}"
    text = path.read_text()
    path.write_text(re.sub(r"(<!-- measured -->\n).*?(<!-- /measured -->)", lambda m: f"{m[1]}{said}{m[2]}", text, flags=re.S))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="directory of the programs")
    parser.add_argument("--rules", type=pathlib.Path, required=True, help="alert rules")
    parser.add_argument("--faults", default="", help="only faults whose name contains this")
    parser.add_argument("--out", type=pathlib.Path, help="page whose table is replaced")
    parser.add_argument("--port", type=int, default=9600, help="first of 70 free ports")
    args = parser.parse_args()
    # So that everything that was started ends with this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="drill-") as root:
        drill(args, pathlib.Path(root))


def chosen(args, faults):
    return [fault for fault in faults if args.faults in fault["name"]]


def drill(args, root):
    """The faults of a fleet on one host, then those of one on two."""
    rows = []
    fleet = Fleet(args.bin.resolve(), root / "one", args.port)
    data = fleet.dir / "ron-ledger" / "data"
    kept = root / "ledger-data"
    subprocess.run(["cp", "-a", data, kept], check=True)
    mounted = small_disk(data, 1600)
    try:
        if mounted:
            subprocess.run(["cp", "-a", f"{kept}/.", data], check=True)
        exercise(args, fleet, chosen(args, faults(fleet, root)), rows)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", data], check=True)
    if chosen(args, faults_of_two_hosts(None)):
        fleet = TwoHosts(args.bin.resolve(), root / "two", args.port)
        try:
            exercise(args, fleet, chosen(args, faults_of_two_hosts(fleet)), rows)
        finally:
            fleet.database.stop()
    table = report(rows)
    print(table)
    if args.out:
        page(args.out, table)


def exercise(args, fleet, faults, rows):
    """Runs the fleet, and gives it one fault after the other."""
    if not faults:
        return
    root = fleet.dir.parent
    prometheus = None
    try:
        fleet.start_all()
        done = fleet.ron("status", "--wait", "60")
        assert done.returncode == 0, done.stdout
        fleet.load = Load(fleet)
        prometheus = Prometheus(args.rules.resolve(), root, fleet, args.port + 65)
        watch = Watch(fleet, prometheus)
        left = watch.calm(CALM)
        assert not any(left.values()), left
        time.sleep(15)  # three scrapes, so that counters have values from before the first fault
        for fault in faults:
            if isinstance(fault.get("if"), str):
                rows.append((fault["name"], None, fault["if"], ""))
                continue
            print(f"== {fault['name']}", flush=True)
            before = prometheus.firing()
            fault["do"]()
            seen, blamed = judge(watch, fault, before)
            began = time.monotonic()
            fault["undo"]()
            left = watch.calm(CALM + PATIENCE)
            calm = f"{time.monotonic() - began:.0f} s" if not any(left.values()) else f"not in time: {left}"
            rows.append((fault["name"], seen, blamed, calm))
            print(report(rows[-1:]), flush=True)
    finally:
        if fleet.load:
            fleet.load.stop()
        for service in fleet.processes:
            fleet.stop(service)
        if prometheus:
            prometheus.process.terminate()
            prometheus.process.wait()


main()
