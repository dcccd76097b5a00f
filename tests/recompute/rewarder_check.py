#!/usr/bin/env python3
"""Recomputes a reward epoch from a CSV and a policy file alone, in plain Python.

Shares no code with the service: weights and caps are `fractions.Fraction`, everything else is
`int`. Needs the `blake3` package for content ids.

    rewarder_check.py --policy P --csv C --tenant T --epoch E           print the epoch as JSON
    ... --period X      of usage of this period
    ... --corrects D    of an epoch that corrects the one in that run directory
    ... --run-dir D     compare with a run directory (run.json, payouts.bin, snapshot.bin, correction.bin)
    ... --manifest F    compare with a manifest (`-` reads standard input)
    ... --payouts       add every payout to what is printed
    ... --out D         write snapshot.bin, payouts.bin, policy.json, run.json and correction.bin to D
    rewarder_check.py --golden FILE --policy P C1 C2 ...                write the golden file (epoch
                        = the CSV's name without its ending, tenant `default`); --check compares

Exit code 0 when everything is equal, 1 when not.
"""

import argparse
import csv
import json
import pathlib
import sys
from fractions import Fraction

try:
    from blake3 import blake3
except ImportError:
    sys.exit("this check needs the blake3 package: pip install blake3")

U128 = 1 << 128


def b3(*parts):
    h = blake3()
    for part in parts:
        h.update(part)
    return h.digest()


def cid(raw):
    return "b3:" + raw.hex()


def canonical(value):
    """RFC 8785 for the values in policies and manifests: ASCII keys, strings, integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_usage(path):
    usage, metrics = {}, set()
    with open(path, newline="") as source:
        rows = csv.reader(source)
        assert next(rows) == ["account", "metric", "amount"], "the header is account,metric,amount"
        for account, metric, amount in rows:
            totals = usage.setdefault(account, {})
            assert metric not in totals, f"line {rows.line_num}: a second total"
            assert amount.isdigit() and str(int(amount)) == amount and int(amount) < U128
            totals[metric] = int(amount)
            metrics.add(metric)
    return usage, sorted(metrics)


def sealed_snapshot(usage, metrics, period=""):
    accounts = sorted(usage, key=str.encode)
    width = max((len(a) for a in accounts), default=0)
    body = bytearray()
    for account in accounts:
        body += account.encode().ljust(width, b"\0")
        for metric in metrics:
            body += usage[account].get(metric, 0).to_bytes(16, "big")
    head = b"RONUSAG\x01" + width.to_bytes(4, "big") + len(metrics).to_bytes(4, "big")
    head += len(accounts).to_bytes(8, "big") + b3(bytes(body)) + period.encode().ljust(64, b"\0")
    for metric in metrics:
        amounts = [totals.get(metric, 0) for totals in usage.values()]
        head += metric.encode().ljust(64, b"\0")
        head += sum(1 for a in amounts if a).to_bytes(8, "big") + sum(amounts).to_bytes(16, "big")
    return head + bytes(body)


def eligible(account, totals, rules):
    if account in rules.get("exclude", []):
        return False
    prefixes = rules.get("prefixes", [])
    if prefixes and not any(account.startswith(p) for p in prefixes):
        return False
    return all(totals.get(m, 0) >= int(least) for m, least in rules.get("minimum", {}).items())


def fill(weights, money, caps):
    """Water-filling: money per key in proportion to weight, at most caps[key] where there is one."""
    got, open_keys = {}, {k for k, w in weights.items() if w}
    while open_keys:
        total = sum(weights[k] for k in open_keys)
        over = [k for k in open_keys if k in caps and weights[k] * money / total > caps[k]]
        if not over:
            got.update({k: weights[k] * money / total for k in open_keys})
            break
        for key in over:
            got[key] = Fraction(caps[key])
            money -= caps[key]
            open_keys.remove(key)
    return got


def shares(usage, policy):
    """Exact weights, caps, largest remainder. Returns {account: amount} without zeros."""
    pool = int(policy["pool"]["amount_minor"])
    caps = policy.get("caps", {})
    category_caps = {k: int(v) for k, v in caps.get("category_minor", {}).items()}
    weights = {m: Fraction(rule["weight"]) for m, rule in policy["metrics"].items()}
    category = {
        m: rule["category"] if rule.get("category") in category_caps else None
        for m, rule in policy["metrics"].items()
    }
    takes_part = {
        a: t for a, t in usage.items() if eligible(a, t, policy.get("eligibility", {}))
    }
    by_category = {}
    for totals in takes_part.values():
        for metric, amount in totals.items():
            key = category[metric]
            by_category[key] = by_category.get(key, 0) + amount * weights[metric]
    money = fill(by_category, Fraction(pool), category_caps)
    exact = {
        account: sum(
            (amount * weights[m] * money[category[m]] / by_category[category[m]]
             for m, amount in totals.items() if amount and weights[m]),
            Fraction(0),
        )
        for account, totals in takes_part.items()
    }
    spendable = sum(money.values(), Fraction(0))
    if caps.get("account_minor") is not None:
        cap = int(caps["account_minor"])
        exact = fill(exact, spendable, {a: cap for a in exact})
    spent = sum(exact.values(), Fraction(0))
    assert spent.denominator == 1, "capped shares add up to whole units"
    assert policy["rule_set"] in ("hamilton/1", "floor/1"), "an unknown rule set"
    got = {a: share.numerator // share.denominator for a, share in exact.items()}
    units = 0 if policy["rule_set"] == "floor/1" else int(spent) - sum(got.values())
    order = sorted(exact, key=lambda a: (-(exact[a] - got[a]), a.encode()))
    for account in order[:units]:
        got[account] += 1
    least = max(1, int(policy.get("min_payout_minor", "0")))
    return {a: amount for a, amount in got.items() if amount >= least}, pool


def payout_table(paid, residual, policy):
    rows = [(a, paid[a]) for a in sorted(paid, key=str.encode)]
    owner = policy["residual"]["owner"]
    flag = int(owner != policy["pool"]["account"] and residual > 0)
    if flag:
        rows.append((owner, residual))
    width = max((len(a) for a, _ in rows), default=0)
    body = b"".join(a.encode().ljust(width, b"\0") + n.to_bytes(16, "big") for a, n in rows)
    head = b"RONPAYS\x01" + width.to_bytes(4, "big") + flag.to_bytes(4, "big")
    head += len(rows).to_bytes(8, "big") + sum(n for _, n in rows).to_bytes(16, "big") + b3(body)
    return rows, head + body


def merkle_sum_root(rows):
    nodes = []
    for index, (account, amount) in enumerate(rows):
        raw = account.encode()
        leaf = b3(b"ron-rewarder/v1/leaf\0", index.to_bytes(8, "big"),
                  len(raw).to_bytes(4, "big"), raw, amount.to_bytes(16, "big"))
        nodes.append((leaf, amount))
    while len(nodes) > 1:
        above = []
        for at in range(0, len(nodes) - 1, 2):
            (lh, ls), (rh, rs) = nodes[at], nodes[at + 1]
            node = b3(b"ron-rewarder/v1/node\0", lh, ls.to_bytes(16, "big"), rh, rs.to_bytes(16, "big"))
            above.append((node, ls + rs))
        if len(nodes) % 2:
            above.append(nodes[-1])
        nodes = above
    top, total = nodes[0] if nodes else (bytes(32), 0)
    root = b3(b"ron-rewarder/v1/root\0", len(rows).to_bytes(8, "big"), total.to_bytes(16, "big"), top)
    return {"root": cid(root), "count": len(rows), "total_minor": str(total)}


def keccak256(raw):
    """Keccak-256 with the padding that Ethereum uses, by the definition in the Keccak reference."""
    words, mask = [[0] * 5 for _ in range(5)], (1 << 64) - 1
    rotate = lambda word, by: ((word << by) | (word >> (64 - by))) & mask if by else word
    padded = bytearray(raw + bytes(136 - len(raw) % 136))
    padded[len(raw)] |= 1
    padded[-1] |= 128
    for block in range(0, len(padded), 136):
        for at in range(17):
            word = padded[block + 8 * at:block + 8 * at + 8]
            words[at % 5][at // 5] ^= int.from_bytes(word, "little")
        register = 1
        for _ in range(24):
            column = [words[x][0] ^ words[x][1] ^ words[x][2] ^ words[x][3] ^ words[x][4] for x in range(5)]
            words = [[word ^ column[x - 1] ^ rotate(column[(x + 1) % 5], 1) for word in words[x]] for x in range(5)]
            x, y, current = 1, 0, words[1][0]
            for step in range(24):
                x, y = y, (2 * x + 3 * y) % 5
                current, words[x][y] = words[x][y], rotate(current, (step + 1) * (step + 2) // 2 % 64)
            for y in range(5):
                row = [words[x][y] for x in range(5)]
                for x in range(5):
                    words[x][y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5] & mask)
            for bit in range(7):
                register = (register << 1) ^ ((register >> 7) * 0x171)
                if register & 2:
                    words[0][0] ^= 1 << ((1 << bit) - 1)
    return b"".join(words[at % 5][at // 5].to_bytes(8, "little") for at in range(4))


def claim_root(rows):
    """The root of OpenZeppelin's StandardMerkleTree over (address, uint256)."""
    payees = [(bytes.fromhex(account.removeprefix("0x")), amount) for account, amount in rows]
    assert len({payee for payee, _ in payees}) == len(payees), "an address stands twice"
    leaves = sorted(keccak256(keccak256(bytes(12) + payee + amount.to_bytes(32, "big"))) for payee, amount in payees)
    nodes = [bytes(32)] * (len(leaves) - 1) + leaves[::-1] if leaves else [bytes(32)]
    for at in reversed(range(len(leaves) - 1)):
        nodes[at] = keccak256(b"".join(sorted(nodes[2 * at + 1:2 * at + 3])))
    return "0x" + nodes[0].hex()


def records(data, head, amounts):
    """The records of a file of fixed width: account and amounts."""
    width = int.from_bytes(data[8:12], "big")
    size = width + 16 * amounts
    for at in range(head, len(data), size):
        row = data[at:at + size]
        yield row[:width].rstrip(b"\0").decode(), *(
            int.from_bytes(row[width + 16 * n:width + 16 * n + 16], "big") for n in range(amounts))


def paid_by(run_dir):
    """What the epoch in a run directory, and those that it corrects, have paid to each account."""
    run_dir = pathlib.Path(run_dir)
    paid = {}
    if (run_dir / "correction.bin").exists():
        for account, due, before in records((run_dir / "correction.bin").read_bytes(), 120 + 2 * 88, 2):
            paid[account] = max(due, before)
    else:
        for account, amount in records((run_dir / "payouts.bin").read_bytes(), 72, 1):
            paid[account] = paid.get(account, 0) + amount
    return paid


def correct(manifest, paid, policy, run_dir):
    """Makes the manifest one of a correction; returns its rows, payouts.bin and correction.bin."""
    earlier = json.loads((pathlib.Path(run_dir) / "run.json").read_bytes())
    before, due, owner = paid_by(run_dir), dict(paid), policy["residual"]["owner"]
    residual = int(manifest["totals"]["residual_minor"])
    if owner != policy["pool"]["account"] and residual:
        due[owner] = due.get(owner, 0) + residual
    both = {a: {"due": due.get(a, 0), "paid": before.get(a, 0)} for a in due.keys() | before.keys()}
    accounts = sealed_snapshot(both, ["due", "paid"])
    pays = {a: n["due"] - n["paid"] for a, n in both.items() if n["due"] > n["paid"]}
    over = {a: n["paid"] - n["due"] for a, n in both.items() if n["paid"] > n["due"]}
    assert sum(due.values()) + sum(over.values()) == sum(before.values()) + sum(pays.values())
    rows, table = payout_table(pays, 0, policy)
    manifest["version"] = 3
    manifest["adjusts"] = earlier["epoch_id"]
    manifest["correction"] = {
        "of": earlier["commitment"],
        "accounts": cid(b3(accounts)),
        "due": manifest["totals"],
        "paid_minor": str(sum(before.values())),
        "overpaid_minor": str(sum(over.values())),
        "overpaid": len(over),
    }
    total = str(sum(pays.values()))
    manifest["totals"] = {
        "pool_minor": total, "payout_minor": total, "residual_minor": "0", "recipients": len(pays)}
    manifest["payouts"] = merkle_sum_root(rows)
    if "claims" in manifest:
        manifest["claims"]["root"] = claim_root(rows)
    return rows, table, accounts


def of_each_asset(policy):
    """One policy for each asset, which pays that asset alone; the first is of the policy's own members."""
    own = {name: member for name, member in policy.items() if name != "also"}
    yield own
    for also in policy.get("also", []):
        one = {name: member for name, member in own.items() if name not in ("min_payout_minor", "caps", "claims_account")}
        yield one | {name: member for name, member in also.items() if name != "guards"}


def recompute(csv_path, policy, tenant, epoch, period="", corrects=None):
    """The manifest of the first asset with its rows, and the files; those of further assets below their directories."""
    policy_hash, files, first, also = b3(canonical(policy)), {}, None, []
    for one in of_each_asset(policy):
        earlier = corrects if first is None or not corrects else pathlib.Path(corrects) / f"asset-{one['asset']}"
        manifest, rows, made = recompute_asset(csv_path, one, policy_hash, tenant, epoch, period, earlier)
        if first is None:
            first, files = (manifest, rows), made
            continue
        seal(manifest)
        also.append({"asset": one["asset"], "commitment": manifest["commitment"]})
        made["run.json"] = canonical(manifest)
        files |= {f"asset-{one['asset']}/{name}": content for name, content in made.items()}
    if also:
        first[0].update(version=4, also=also)
    seal(first[0])
    return *first, files


def seal(manifest):
    manifest["commitment"] = cid(b3(b"ron-rewarder/v1/commitment\0", canonical(manifest)))
    manifest["status"] = "ok"


def recompute_asset(csv_path, policy, policy_hash, tenant, epoch, period, corrects):
    usage, metrics = read_usage(csv_path)
    unknown = [m for m in metrics if m not in policy["metrics"]]
    assert not unknown, f"the policy does not name {unknown}"
    assert policy["tenant"] == tenant, "the policy is another tenant's"
    snapshot = sealed_snapshot(usage, metrics, period)
    paid, pool = shares(usage, policy)
    payout = sum(paid.values())
    rows, table = payout_table(paid, pool - payout, policy)
    adjusts = json.loads((pathlib.Path(corrects) / "run.json").read_bytes())["epoch_id"] if corrects else ""
    key = blake3(b"ron-rewarder/v1/run-key\0")
    for part in (tenant.encode(), epoch.encode(), b3(snapshot), policy_hash, policy["rule_set"].encode(),
                 adjusts.encode()):
        key.update(len(part).to_bytes(4, "big") + part)
    manifest = {
        "version": 1,
        "tenant": tenant,
        "epoch_id": epoch,
        "run_key": cid(key.digest()),
        "inputs": {
            "snapshot": cid(b3(snapshot)),
            "accounts": len(usage),
            "policy_id": policy["id"],
            "policy_version": policy["version"],
            "policy_hash": cid(policy_hash),
        },
        "rule_set": policy["rule_set"],
        "asset": policy["asset"],
        "pool_account": policy["pool"]["account"],
        "residual_owner": policy["residual"]["owner"],
        "totals": {
            "pool_minor": str(pool),
            "payout_minor": str(payout),
            "residual_minor": str(pool - payout),
            "recipients": len(paid),
        },
        "payouts": merkle_sum_root(rows),
    }
    if policy.get("pay") == "claims":
        manifest["version"] = 2
        manifest["claims"] = {"root": claim_root(rows), "account": policy["claims_account"]}
    files = {"snapshot.bin": snapshot}
    if corrects:
        rows, table, files["correction.bin"] = correct(manifest, paid, policy, corrects)
    files["payouts.bin"] = table
    return manifest, rows, files


def differences(ours, theirs, where="manifest"):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key), theirs.get(key), f"{where}.{key}")
    elif ours != theirs:
        yield f"{where}: recomputed {ours}, found {theirs}"


def compare_dir(run_dir, manifest, files):
    run_dir = pathlib.Path(run_dir)
    yield from differences(manifest, json.loads((run_dir / "run.json").read_bytes()))
    for name, ours in files.items():
        if (run_dir / name).read_bytes() != ours:
            yield f"{name}: the bytes differ from the recomputation"


def golden(arguments, policy):
    epochs = []
    for path in arguments.csvs:
        name = pathlib.Path(path).stem
        manifest, _, files = recompute(path, policy, "default", name)
        epochs.append({"epoch_id": name, "manifest": manifest, "payouts_cid": cid(b3(files["payouts.bin"]))})
    text = json.dumps(epochs, indent=1, sort_keys=True) + "\n"
    if not arguments.check:
        pathlib.Path(arguments.golden).write_text(text)
        return 0
    same = pathlib.Path(arguments.golden).read_text() == text
    print("golden epochs:", "equal" if same else "DIFFERENT")
    return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(description="recompute a reward epoch independently")
    parser.add_argument("--policy", required=True)
    parser.add_argument("--csv")
    parser.add_argument("--tenant", default="default")
    parser.add_argument("--epoch")
    parser.add_argument("--period", default="")
    parser.add_argument("--corrects")
    parser.add_argument("--run-dir")
    parser.add_argument("--manifest")
    parser.add_argument("--payouts", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--golden")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("csvs", nargs="*")
    arguments = parser.parse_args()
    policy = json.loads(pathlib.Path(arguments.policy).read_bytes())
    if arguments.golden:
        return golden(arguments, policy)
    if not arguments.csv or not arguments.epoch:
        parser.error("--csv and --epoch are needed")
    manifest, rows, files = recompute(
        arguments.csv, policy, arguments.tenant, arguments.epoch, arguments.period, arguments.corrects)
    found = []
    if arguments.run_dir:
        found += compare_dir(arguments.run_dir, manifest, files)
    if arguments.manifest:
        source = sys.stdin.buffer if arguments.manifest == "-" else open(arguments.manifest, "rb")
        found += differences(manifest, json.load(source))
    if arguments.run_dir or arguments.manifest:
        print("\n".join(found) if found else f"{arguments.epoch}: equal")
        return 1 if found else 0
    if arguments.out:
        out = pathlib.Path(arguments.out)
        files |= {"policy.json": canonical(policy), "run.json": canonical(manifest)}
        for name, content in files.items():
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).write_bytes(content)
    if arguments.payouts:
        manifest["payout_rows"] = [[a, str(n)] for a, n in rows]
    print(json.dumps(manifest, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
