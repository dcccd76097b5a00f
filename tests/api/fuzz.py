"""Runs schemathesis, a property-based API fuzzer, against the OpenAPI documents of real services.

usage: fuzz.py RON SCHEMATHESIS [SERVICE...]     (scripts/api-fuzz.sh finds both programs)

Starts `ron up` on a directory of its own with one more caller, known to every service by a service token that holds
all scopes (a passport would be revoked by the fuzzer itself), and asks each named service's `/openapi.json`. It fails on
a 5xx that is not documented, on any 500, on a status, content type or body that the document does not have, and on
an answer where the caller's identity was left out.

EXAMPLES   cases for each operation, 15 by default
SEED       of the cases; printed, random by default
"""

import base64
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

# What a service's caller may do. A service joins the lane by a row here.
SCOPES = {
    "ron-kms": "kms:read kms:sign kms:verify kms:create kms:rotate kms:wrap kms:unwrap kms:admin",
    "svc-passport": "passport:issue passport:revoke passport:introspect",
    "ron-ledger": "ledger:read ledger:commit ledger:settle",
    "svc-wallet": "wallet:read wallet:issue wallet:transfer wallet:burn wallet:hold wallet:admin",
    "svc-rewarder": "rewarder:read rewarder:run",
    "svc-admin": "admin:view admin:operate admin:admin",
}
# Those that are held to it by default.
DEFAULT = ["svc-passport"]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth,unsupported_method"
# Long polls would only wait.
SLOW = {"svc-passport": ["/v1/passport/events"]}


def prepare(ron, directory):
    """A fleet's directory, with the fuzzer among the callers of each service; gives its token."""
    subprocess.run([ron, "init", "--data-dir", directory], check=True, stdout=subprocess.DEVNULL)
    token = "ron_fuzzer_" + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    digest = hashlib.sha256(token.encode()).hexdigest()
    for service, scopes in SCOPES.items():
        path = pathlib.Path(directory, service, "config.toml")
        block = f'\n[[auth.principals]]\nname = "fuzzer"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes.split())}\n'
        path.write_text(path.read_text() + block)
    return token


def start(ron, directory):
    """`ron up`, and where its services are."""
    log = open(pathlib.Path(directory, "up.log"), "wb")
    fleet = subprocess.Popen(
        [ron, "up", "--data-dir", directory, "--base-port", "0"], stdout=log, stderr=subprocess.STDOUT
    )
    endpoints = pathlib.Path(directory, "run", "endpoints.json")
    until = time.monotonic() + 60
    while True:
        if fleet.poll() is not None or time.monotonic() > until:
            sys.exit("ron up did not start:\n" + pathlib.Path(directory, "up.log").read_text())
        if endpoints.exists() and b"\nready" in pathlib.Path(directory, "up.log").read_bytes():
            return fleet, {e["service"]: e["api"] for e in json.loads(endpoints.read_text())["services"]}
        time.sleep(0.1)


def fuzz(schemathesis, directory, service, base, token, seed):
    config = str(pathlib.Path(__file__).with_name("schemathesis.toml"))
    command = [schemathesis, "--config-file", config, "run", base + "/openapi.json", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"]
    command += ["--max-examples", os.environ.get("EXAMPLES", "15"), "--seed", str(seed), "--no-color"]
    command += ["--request-timeout", "30", "--continue-on-failure", "--warnings", "off", "--generation-database", "none"]
    command += ["-H", f"Authorization: Bearer {token}"]
    for path in SLOW.get(service, []):
        command += ["--exclude-path", path]
    return subprocess.run(command, cwd=directory).returncode == 0


def main():
    ron, schemathesis, *asked = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that the fleet is stopped too
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        token = prepare(ron, directory)
        fleet, endpoints = start(ron, directory)
        try:
            for service in asked or DEFAULT:
                print(f"== {service}, seed {seed}", flush=True)
                if not fuzz(os.path.abspath(schemathesis), directory, service, endpoints[service], token, seed):
                    failed.append(service)
        finally:
            fleet.terminate()
            code = fleet.wait(timeout=60)
    if code != 0:
        sys.exit(f"ron up ended with {code}")
    if failed:
        sys.exit(f"found by the fuzzer (SEED={seed}): {', '.join(failed)}")


if __name__ == "__main__":
    main()
