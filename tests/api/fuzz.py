"""Runs schemathesis, a property-based API fuzzer, against the OpenAPI documents of real services.

usage: fuzz.py RON SCHEMATHESIS [SERVICE...]     (cargo xtask api-fuzz finds both programs)

Starts `ron up` on a directory of its own with one more caller, known to every service by a service token that holds
all scopes (a passport would be revoked by the fuzzer itself), makes something of every kind there is (keys, money, a
hold, usage, an epoch), and asks each named service's `/openapi.json`, all six when none is named. It fails on a 5xx
that is not documented, on any 500, on a status, content type or body that the document does not have, on an answer
where the caller's identity was left out, and where a service has died or lost its log.

EXAMPLES   cases for each operation, 15 by default
SEED       of the cases; printed, random by default
PHASES     of schemathesis: examples,coverage,fuzzing by default
STATUSES   when set, how often each operation was answered with what
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
import urllib.error
import urllib.parse
import urllib.request
import uuid

# Scopes of a service's caller.
SCOPES = {
    "ron-kms": "kms:read kms:sign kms:verify kms:create kms:rotate kms:wrap kms:unwrap kms:audit kms:admin",
    "svc-passport": "passport:issue passport:revoke passport:introspect passport:admin",
    "ron-ledger": "ledger:read ledger:commit ledger:settle ledger:audit",
    "svc-wallet": "wallet:read wallet:issue wallet:transfer wallet:burn wallet:hold wallet:admin",
    "svc-rewarder": "rewarder:read rewarder:run rewarder:approve",
    "svc-admin": "admin:view admin:operate admin:admin",
}
# The policies of a new fleet name the operator; the KMS knows it already.
NAMES = {"ron-kms": "fuzzer"}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,ignored_auth,unsupported_method"
# The console accepts changes only with the header of its own page.
HEADERS = {"svc-admin": ["X-Ron-Console: fuzz"]}


def prepare(ron, directory):
    """A fleet's directory, with the fuzzer among the callers of each service; returns its tokens."""
    subprocess.run([ron, "init", "--data-dir", directory], check=True, stdout=subprocess.DEVNULL)
    secret = base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    tokens = {}
    for service, scopes in SCOPES.items():
        name = NAMES.get(service, "operator")
        tokens[service] = f"ron_{name}_{secret}"
        digest = hashlib.sha256(tokens[service].encode()).hexdigest()
        path = pathlib.Path(directory, service, "config.toml")
        text = path.read_text()
        if service == "svc-admin":
            text = "read_only = false\n" + text.replace("[auth]\n", '[auth]\nmode = "passport"\n')
        # Only the installation's own services write the ledger.
        tenant = "ron" if service == "ron-ledger" else "default"
        block = f'\n[[auth.principals]]\nname = "{name}"\ntenant = "{tenant}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes.split())}\n'
        # The fuzzer knows no Unix sockets.
        path.write_text("insecure_loopback = true\n" + text + block)
    return tokens


def start(ron, directory):
    """`ron up`, and the addresses of its services."""
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


class Caller:
    """The fuzzer's own calls, before the fuzzing."""

    def __init__(self, endpoints, tokens):
        self.endpoints, self.tokens = endpoints, tokens

    def call(self, service, method, path, body=None, media="application/json"):
        """The JSON and headers of a response; any status but success ends the run."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.tokens[service]}"}
        if data is not None:
            headers["Content-Type"] = media
        if service == "svc-wallet" and method == "POST":
            headers["Idempotency-Key"] = f"fuzz-{uuid.uuid4()}"
        request = urllib.request.Request(self.endpoints[service] + path, data, headers, method=method)
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read()), answer.headers
            except urllib.error.HTTPError as error:
                # On a busy machine; a retry is safe.
                if error.code not in (429, 503, 504) or time.monotonic() > until:
                    sys.exit(f"{method} {path} of {service}: {error.code} {error.read().decode()}")
            time.sleep(0.5)

    def post(self, service, path, body):
        return self.call(service, "POST", path, body)[0]


def keys(caller):
    """A key of each algorithm, under the native API and under Vault's; values that belong together, and whole requests."""
    algs = ["ed25519", "ecdsa-p256", "ml-dsa-65", "aes256-gcm", "x25519+ml-kem-768", "hmac-sha256", "ecdh-p256", "hkdf-sha256"]

    def make(purpose):
        made = []
        for alg in algs:
            body = {"tenant": "default", "purpose": purpose, "alg": alg, "op_id": f"01890a5d-ac96-774b-bcce-{os.urandom(6).hex()}"}
            made.append(caller.post("ron-kms", "/v1/kms/keys", {**body, "exportable": True})["key"])
        return made, dict(zip(("tenant", "purpose", "alg", "id"), map(list, zip(*(key.split("/") for key in made)))))

    made, parts = make("fuzz")
    known = {**parts, "key": made, "version": [1]}
    known |= {"index": ["0", "1", "2"], "tile": ["0/000.p/1", "0/000.p/2"], "bundle": ["000.p/1", "000.p/2"]}
    wholes = {**native(caller, dict(zip(algs, made))), **vault(caller)}
    paths = {path: {**known, "$wholes": requests} for path, requests in wholes.items()}
    for path in ("keys/{name}", "keys/{name}/rotate", "keys/{name}/config"):
        paths[f"/v1/transit/{path}"] = {"name": [f"fuzz-{kind}" for kind in KINDS]}
    # Separate keys, which the other cases do not use.
    mortal = make("mortal")[1]
    for end in ("retire", "destroy", "destroy/cancel"):
        paths[f"/v1/kms/keys/{{tenant}}/{{purpose}}/{{alg}}/{{id}}/{end}"] = mortal
    return {"*": known, "/v1/kms/keys": {"tenant": ["default"], "alg": algs}, **paths}


def native(caller, keys):
    """For each path the bodies of requests that succeed."""
    message = {"message": "aGVsbG8"}
    wholes = {}

    def add(path, body):
        wholes.setdefault(f"/v1/kms/{path}", []).append({"body": body})
        return caller.post("ron-kms", f"/v1/kms/{path}", body)

    for alg in ("ed25519", "ecdsa-p256", "ml-dsa-65"):
        signed = add("sign", {"key": keys[alg], **message})
        add("verify", {"key": keys[alg], **message, "signatures": signed["signatures"]})
    add("sign_batch", {"key": keys["ed25519"], "items": [message, message]})
    for alg in ("aes256-gcm", "x25519+ml-kem-768"):
        sealed = add("wrap", {"key": keys[alg], "plaintext": "aGVsbG8", "aad": "YWFk"})
        sealed = {"key": keys[alg], "ciphertext": sealed["ciphertext"], "aad": "YWFk"}
        add("unwrap", sealed)
        add("rewrap", sealed)
    add("datakey", {"key": keys["aes256-gcm"], "bytes": 32})
    mac = add("hmac", {"key": keys["hmac-sha256"], **message})["mac"]
    add("hmac/verify", {"key": keys["hmac-sha256"], **message, "mac": mac})
    peer = caller.call("ron-kms", "GET", f"/v1/kms/keys/{keys['ecdh-p256']}")[0]["versions"][0]["public_key"]
    for alg, inputs in (("ecdh-p256", {"peer_public": peer}), ("hkdf-sha256", {"salt": "c2FsdA"})):
        for output in ({"hmac": message}, {"wrap": {"key": keys["aes256-gcm"], "aad": "YWFk"}}):
            add("derive", {"key": keys[alg], "info": "aW5mbw", "output": output, **inputs})
    return wholes


KINDS = ["aes256-gcm96", "ed25519", "ecdsa-p256", "hmac"]


def vault(caller):
    """The same under Vault's paths."""
    wholes = {}

    def add(path, kind, body):
        named = {"name": f"fuzz-{kind}"}
        wholes.setdefault(f"/v1/transit/{path}", []).append({"path": named, "body": body})
        return caller.post("ron-kms", f"/v1/transit/{path.format(**named)}", body)["data"]

    for kind in KINDS:
        caller.post("ron-kms", f"/v1/transit/keys/fuzz-{kind}", {"type": kind})
    sealed = add("encrypt/{name}", "aes256-gcm96", {"plaintext": "aGVsbG8="})["ciphertext"]
    add("decrypt/{name}", "aes256-gcm96", {"ciphertext": sealed})
    add("decrypt/{name}", "aes256-gcm96", {"batch_input": [{"ciphertext": sealed}, {"ciphertext": sealed}]})
    add("rewrap/{name}", "aes256-gcm96", {"ciphertext": sealed})
    for kind in ("ed25519", "ecdsa-p256"):
        signed = add("sign/{name}", kind, {"input": "aGVsbG8="})["signature"]
        add("verify/{name}", kind, {"input": "aGVsbG8=", "signature": signed})
    mac = add("hmac/{name}", "hmac", {"input": "aGVsbG8="})["hmac"]
    add("verify/{name}", "hmac", {"input": "aGVsbG8=", "hmac": mac})
    more = {"hmac/{name}/{algorithm}": "algorithm", "sign/{name}/{hash}": "hash", "verify/{name}/{hash}": "hash"}
    for path, parameter in more.items():
        shorter = wholes[f"/v1/transit/{path.rsplit('/', 1)[0]}"]
        wholes[f"/v1/transit/{path}"] = [
            {"path": {**whole["path"], parameter: "sha2-256"}, "body": whole["body"]} for whole in shorter
        ]
    for kind in ("plaintext", "wrapped"):
        path = {"name": "fuzz-aes256-gcm96", "kind": kind}
        wholes.setdefault("/v1/transit/datakey/{kind}/{name}", []).append({"path": path, "body": {}})
    return wholes


def money(caller):
    """Accounts with money, a hold, and the results of these operations."""
    issue = {"to": "a", "asset": "ron", "amount_minor": "1000000"}
    first = caller.post("svc-wallet", "/v1/issue", issue)
    caller.post("svc-wallet", "/v1/issue", {**issue, "to": "b"})
    hold = {"from": "a", "asset": "ron", "amount_minor": "500", "nonce": 1, "expires_at": "2099-01-01T00:00:00.000Z"}
    hold = caller.post("svc-wallet", "/v1/hold", hold)["receipt"]["txid"]
    moved = {"from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "nonce": 2}
    moved = caller.post("svc-wallet", "/v1/transfer", moved)["receipt"]["txid"]
    accounts = {"account": ["a", "b"], "from": ["a", "b"], "to": ["b", "a"], "asset": ["ron"]}
    accounts |= {"txid": [first["receipt"]["txid"], moved, hold], "hold": [hold, moved], "nonce": [3, 1, 2]}
    accounts |= {"tenant": ["default"], "principal": ["operator"]}
    return accounts


def usage(caller, directory):
    """Usage under the fleet's reward policy, and an epoch that was computed from it."""
    policy = json.loads(pathlib.Path(directory, "policy", "reward.json").read_text())
    rows = [f"a,{metric},{n + 1}" for n, metric in enumerate(policy["metrics"])]
    text = "\n".join(["account,metric,amount", *rows, ""]).encode()
    cid = caller.call("svc-rewarder", "POST", "/rewarder/snapshots", text, "text/csv")[0]["cid"]
    tag = caller.call("svc-rewarder", "GET", f"/rewarder/policy/{policy['id']}")[1]["ETag"].strip('"')
    compute = {"snapshot": cid, "policy_id": policy["id"], "policy_hash": tag, "dry_run": True}
    caller.post("svc-rewarder", "/rewarder/epochs/fuzz:1/compute?wait=20", compute)
    named = {"snapshot": [cid], "cid": [cid], "policy_id": [policy["id"]], "policy_hash": [tag], "hash": [tag]}
    signed = caller.call("svc-rewarder", "GET", f"/rewarder/policy/{policy['id']}")[0]
    stored = {"path": {"id": policy["id"]}, "body": signed}
    epochs = {**named, "account": ["a"], "id": ["fuzz:1", "fuzz:2"], "wait": [0]}
    again = [{"path": {"id": epoch}, "body": compute} for epoch in ("fuzz:1", "fuzz:2", "fuzz:3")]
    return {
        "*": epochs,
        "/rewarder/epochs/{id}/compute": {**epochs, "$wholes": again},
        "/rewarder/policy/{id}": {**named, "id": [policy["id"]], "$wholes": [stored]},
    }


def furnish(caller, directory):
    """Makes an object of every kind; returns the values that the cases use, by service."""
    accounts = money(caller)
    holds = {**accounts, "id": accounts["hold"]}
    asked = {"subject_ref": "operator", "audience": "svc-wallet"}
    token = caller.post("svc-passport", "/v1/passport/issue", asked)["token"]
    passport = {"audience": ["svc-wallet", "ron-kms"], "subject_ref": ["operator"], "ttl_s": [60], "wait": [0]}
    passport |= {"token": [token], "subject_token": [token], "client_id": ["operator"]}
    client = json.loads(pathlib.Path(directory, "clients", "operator.json").read_text())
    basic = {"basic": [client["client_id"], client["client_secret"]]}
    exchange = {"subject_token": token, "subject_token_type": "urn:ietf:params:oauth:token-type:access_token"}
    forms = [
        {"grant_type": "client_credentials", "audience": "svc-wallet"},
        {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", **exchange},
    ]
    about = {**passport, "$wholes": [{"body": {"token": token}}, {**basic, "body": {"token": token}}]}
    return {
        "ron-kms": keys(caller),
        "svc-passport": {
            "*": passport,
            "/oauth2/token": {**passport, "$wholes": [{**basic, "body": form} for form in forms]},
            "/oauth2/introspect": about,
            "/oauth2/revoke": about,
        },
        "ron-ledger": {"*": {**accounts, "index": ["0", "1"], "tile": ["0/000.p/1"], "bundle": ["000.p/1"], "wait": [0]}},
        "svc-wallet": {"*": accounts, **{f"/v1/hold/{{id}}{more}": holds for more in ("", "/capture", "/release")}},
        "svc-rewarder": usage(caller, directory),
        "svc-admin": {"*": {"id": list(SCOPES), "confirm": list(SCOPES), "name": ["http_requests_total"]}},
    }


def fuzz(schemathesis, directory, service, base, token, seed):
    here = pathlib.Path(__file__).parent
    command = [schemathesis, "--config-file", str(here / "schemathesis.toml"), "run", base + "/openapi.json"]
    command += ["--checks", CHECKS, "--phases", os.environ.get("PHASES", "examples,coverage,fuzzing")]
    command += ["--max-examples", os.environ.get("EXAMPLES", "15"), "--seed", str(seed), "--no-color"]
    command += ["--request-timeout", "30", "--continue-on-failure", "--warnings", "off", "--generation-database", "none"]
    command += ["-H", f"Authorization: Bearer {token}"]
    for header in HEADERS.get(service, []):
        command += ["-H", header]
    known = pathlib.Path(directory, "known", f"{service}.json")
    env = {**os.environ, "FUZZ_KNOWN": str(known), "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(here)}
    return subprocess.run(command, cwd=directory, env=env).returncode == 0


def main():
    ron, schemathesis, *asked = sys.argv[1:]
    for needed, made_by in [(ron, "cargo build --release --workspace --bins"), (schemathesis, "scripts/setup.sh")]:
        if not os.access(needed, os.X_OK):
            sys.exit(f"{needed} is missing: run {made_by}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))  # so that the fleet is stopped too
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    failed = []
    with tempfile.TemporaryDirectory() as directory:
        tokens = prepare(ron, directory)
        fleet, endpoints = start(ron, directory)
        try:
            pathlib.Path(directory, "known").mkdir()
            for service, known in furnish(Caller(endpoints, tokens), directory).items():
                pathlib.Path(directory, "known", f"{service}.json").write_text(json.dumps(known))
            for service in asked or SCOPES:
                began = time.monotonic()
                print(f"== {service}, seed {seed}", flush=True)
                if not fuzz(os.path.abspath(schemathesis), directory, service, endpoints[service], tokens[service], seed):
                    failed.append(service)
                print(f"== {service}: {time.monotonic() - began:.0f} s", flush=True)
        finally:
            fleet.terminate()
            code = fleet.wait(timeout=60)
        if code != 0:
            sys.exit(f"ron up ended with {code}:\n" + pathlib.Path(directory, "up.log").read_text()[-4000:])
        for log in ("audit", "ledger"):
            subprocess.run([ron, log, "verify", "--data-dir", directory], check=True, stdout=subprocess.DEVNULL)
    if failed:
        sys.exit(f"found by the fuzzer (SEED={seed}): {', '.join(failed)}")


if __name__ == "__main__":
    main()
