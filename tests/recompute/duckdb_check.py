#!/usr/bin/env python3
"""Recomputes payouts with DuckDB and compares them with what `ron rewarder` computes.

DuckDB reads the CSV, sums and weighs it and computes floor and remainder of every share, all in
128-bit integers (HUGEINT, which refuses to wrap); the largest remainders and the cap's rounds are
the few lines of Python in `payouts`. No code is shared with the service, nor with
rewarder_check.py.

    duckdb_check.py --ron target/debug/ron [--random 100] [--seed 1]

Takes the five epochs of examples/rocketpool and as many random ones. Exit code 0 when every payout
is equal. Needs duckdb and cryptography (tests/interop/requirements.txt).
"""

import argparse
import base64
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
from fractions import Fraction

import duckdb
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
LIMB = 32  # bits of the pool taken at a time


def b64url(raw):
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def public_key():
    return b64url(KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def sign(policy, path):
    """Canonical bytes, and the signature document beside them (docs/formats/rewarder.md)."""
    raw = json.dumps(policy, sort_keys=True, separators=(",", ":")).encode()
    inner = blake3(b"ron-policy/v1\0reward\0" + blake3(raw).digest()).digest()
    value = b64url(KEY.sign(b"ron-kms/v1/digest\0blake3\0" + inner))
    document = {"alg": "ed25519", "key": "check", "value": value}
    path.write_bytes(raw)
    sig = json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n"
    pathlib.Path(f"{path}.sig").write_text(sig)


def weigh(db, csv_path, policy):
    """A table of account and integer weight, over the common denominator of the weights."""
    ratios = {m: Fraction(rule["weight"]) for m, rule in policy["metrics"].items()}
    common = math.lcm(*(r.denominator for r in ratios.values()))
    factors = [(m, str(r * common)) for m, r in ratios.items()]
    db.execute("create or replace table factor(metric varchar, factor varchar)")
    db.executemany("insert into factor values (?, ?)", factors)
    db.execute(
        "create or replace table weight as "
        "select account, sum(amount::hugeint * factor::hugeint)::hugeint as w "
        "from read_csv(?, header = true, all_varchar = true) join factor using (metric) "
        "group by account having w > 0",
        [str(csv_path)],
    )


def shares(db, rest, left):
    """SQL for floor and remainder of w * left / rest, by long division in limbs of the pool, so
    that no value leaves 128 bits though the product does."""
    limbs = []
    while left:
        limbs.insert(0, left % (1 << LIMB))
        left >>= LIMB
    sql = "select account, w, 0::hugeint as q, 0::hugeint as r from weight"
    for limb in limbs:
        sql = (
            f"select account, w, q * {1 << LIMB}::hugeint + t // {rest}::hugeint as q, "
            f"t % {rest}::hugeint as r from (select *, "
            f"r * {1 << LIMB}::hugeint + w * {limb}::hugeint as t from ({sql}))"
        )
    return sql


def payouts(db, policy):
    pool = int(policy["pool"]["amount_minor"])
    cap = policy.get("caps", {}).get("account_minor")
    paid, left = {}, pool
    while True:
        rest = db.execute("select coalesce(sum(w), 0)::hugeint from weight").fetchone()[0]
        if not rest:
            break
        sql = shares(db, rest, left)
        if cap is not None and int(cap) < pool:
            over = db.execute(
                f"select account from ({sql}) where q > {cap}::hugeint or (q = {cap}::hugeint and r > 0)"
            ).fetchall()
            if over:
                paid.update({account: int(cap) for (account,) in over})
                left -= int(cap) * len(over)
                db.executemany("delete from weight where account = ?", over)
                continue
        rows = db.execute(f"select account, q, r from ({sql})").fetchall()
        units = left - sum(q for _, q, _ in rows)
        if policy["rule_set"] == "floor/1":
            units = 0
        rows.sort(key=lambda row: (-row[2], row[0].encode()))
        for at, (account, q, _) in enumerate(rows):
            paid[account] = q + (at < units)
        break
    least = max(1, int(policy.get("min_payout_minor", "0")))
    return {account: amount for account, amount in paid.items() if amount >= least}


def ours(ron, work, name, csv_path, policy, memory):
    sealed, run = work / f"{name}.sealed", work / f"{name}.run"
    sign(policy, work / "policy.json")
    call = lambda *args: subprocess.run([ron, "rewarder", *map(str, args)], check=True,
                                        capture_output=True, text=True).stdout
    call("import", csv_path, "--out", sealed, "--memory", memory)
    call("compute", name, "--snapshot", sealed, "--policy", work / "policy.json",
         "--policy-key", public_key(), "--out", run)
    rows = call("export", run).splitlines()
    assert rows[0] == "index,account,amount_minor"
    rows = [row.split(",") for row in rows[1:]]
    return {account: int(amount) for _, account, amount in rows}


def random_epoch(rng, path):
    """Rows of many sizes, with ties; a policy whose rules take effect."""
    size = rng.choice([1, 2, 7, 60, 400])
    metrics = rng.sample(["disk", "net", "up", "proof"], rng.randint(1, 4))
    top = rng.choice([3, 1000, 10**12])
    with open(path, "w") as out:
        out.write("account,metric,amount\n")
        for row in range(size):
            for metric in metrics:
                if rng.random() < 0.8:
                    out.write(f"acct:{rng.getrandbits(32):x}-{row},{metric},{rng.randint(0, top)}\n")
    weights = ["1", "2", "1/3", "7/5", "40"]
    pool = rng.choice([10, 10**6, 10**13, 10**18 + 7])
    policy = {
        "format": 1, "tenant": "default", "id": "random", "version": 1, "asset": "ron",
        "rule_set": rng.choice(["hamilton/1", "hamilton/1", "floor/1"]),
        "pool": {"account": "pool:default/r", "amount_minor": str(pool)},
        "metrics": {m: {"weight": rng.choice(weights), "class": "metering"} for m in metrics},
        "classes_allowed": ["metering"],
        "residual": {"owner": "pool:default/r"},
    }
    if rng.random() < 0.5:
        policy["caps"] = {"account_minor": str(max(1, pool // rng.choice([2, 5, 50, size])))}
    if rng.random() < 0.4:
        policy["min_payout_minor"] = str(max(1, pool // rng.choice([10, 100, 10000])))
    return policy


def compare(name, theirs, mine):
    if theirs == mine:
        return True
    for account in sorted(theirs.keys() | mine.keys()):
        if theirs.get(account) != mine.get(account):
            print(f"{name}: {account}: DuckDB {theirs.get(account)}, ron {mine.get(account)}")
            break
    return False


def main():
    parser = argparse.ArgumentParser(description="compare payouts with DuckDB")
    parser.add_argument("--ron", required=True)
    parser.add_argument("--random", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng, equal, payees = random.Random(arguments.seed), 0, 0
    with tempfile.TemporaryDirectory() as work:
        work, db = pathlib.Path(work), duckdb.connect()
        example = json.loads((ROOT / "examples/rocketpool/policy.json").read_text())
        epochs = [(path.stem, path, example)
                  for path in sorted((ROOT / "examples/rocketpool").glob("*.csv"))]
        assert len(epochs) == 5, "the five real epochs"
        for number in range(arguments.random):
            path = work / f"random-{number}.csv"
            epochs.append((f"random-{number}", path, random_epoch(rng, path)))
        for name, path, policy in epochs:
            weigh(db, path, policy)
            theirs = payouts(db, policy)
            # Little memory now and then, so that the import spills.
            memory = rng.choice(["512MiB", "4KiB"])
            mine = ours(arguments.ron, work, name, path, policy, memory)
            equal += compare(name, theirs, mine)
            payees += len(mine)
        print(f"{equal} of {len(epochs)} epochs equal, {payees} payouts")
    return 0 if equal == len(epochs) else 1


if __name__ == "__main__":
    sys.exit(main())
