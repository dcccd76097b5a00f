#!/usr/bin/env python3
"""The shares of an epoch and a tree of hashes over them, by DuckDB or by Polars.

    rivals.py duckdb|polars usage.csv|usage.parquet [--threads 2] [--digest]
    rivals.py parquet usage.csv usage.parquet

Reads the usage, weighs and adds it up per account, takes exact floor shares of the pool in 128-bit
integers, gives what is left to the largest remainders (ties by account), and hashes the payouts in
the order of the accounts into a binary tree that also adds them up. DuckDB hashes with SHA-256;
Polars has no such function, so it is let off with its 64-bit hash. Prints one JSON line: time,
peak memory, total, recipients, and with --digest a hash of all payouts to compare with ours.
"""

import hashlib
import json
import resource
import sys
import time

POOL = 50_000_000_000_000_000_000_000
# Twice the policy's weights 1, 1/2 and 40: whole numbers, and the same shares.
WEIGHTS = {"collateral": 2, "oracle": 1, "smoothing_pool": 80}


def by_duckdb(path, threads):
    import duckdb

    db = duckdb.connect()
    db.execute(f"set threads = {threads}")
    read = f"read_parquet('{path}')"
    if path.endswith(".csv"):
        columns = "{'account': 'varchar', 'metric': 'varchar', 'amount': 'hugeint'}"
        read = f"read_csv('{path}', header = true, columns = {columns})"
    weight = " ".join(f"when '{m}' then {w}" for m, w in WEIGHTS.items())
    db.execute(
        f"create table weighed as select account, sum(amount::hugeint * (case metric {weight} end)::hugeint)::hugeint as w "
        f"from {read} group by account"
    )
    total = db.execute("select sum(w)::hugeint from weighed").fetchone()[0]
    db.execute(
        f"create table shared as select account, (w * {POOL}::hugeint) // {total}::hugeint as floor, "
        f"(w * {POOL}::hugeint) % {total}::hugeint as rest from weighed"
    )
    left = POOL - db.execute("select sum(floor)::hugeint from shared").fetchone()[0]
    db.execute(
        "create table paid as select account, floor + (case when place <= ? then 1 else 0 end)::hugeint as amount from "
        "(select account, floor, row_number() over (order by rest desc, account) as place from shared)",
        [left],
    )
    db.execute("create table payouts as select account, amount from paid where amount > 0 order by account")
    db.execute(
        "create table level as select (row_number() over (order by account)) - 1 as i, "
        "sha256(account || ':' || amount::varchar) as h, amount from payouts"
    )
    count = recipients = db.execute("select count(*) from level").fetchone()[0]
    while count > 1:
        db.execute(
            "create table above as select i // 2 as i, sha256(coalesce(max(h) filter (i % 2 = 0), '') || "
            "coalesce(max(h) filter (i % 2 = 1), '') || sum(amount)::varchar) as h, "
            "sum(amount)::hugeint as amount from level group by i // 2"
        )
        db.execute("drop table level")
        db.execute("alter table above rename to level")
        count = (count + 1) // 2
    paid = db.execute("select amount from level").fetchone()[0]
    return recipients, paid, lambda: db.execute("select account, amount from payouts order by account")


def by_polars(path, threads):
    import os

    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl

    wide = pl.Int128
    if path.endswith(".csv"):
        rows = pl.scan_csv(path, schema={"account": pl.String, "metric": pl.String, "amount": wide})
    else:
        rows = pl.scan_parquet(path).with_columns(pl.col("amount").cast(wide))
    factor = pl.col("metric").replace_strict(WEIGHTS, return_dtype=wide)
    weighed = (
        rows.group_by("account").agg((pl.col("amount") * factor).sum().alias("w")).collect(engine="streaming")
    )
    total = weighed["w"].sum()
    product = pl.col("w") * pl.lit(POOL, wide)
    shared = weighed.select(
        "account", (product // pl.lit(total, wide)).alias("floor"), (product % pl.lit(total, wide)).alias("rest")
    )
    left = POOL - shared["floor"].sum()
    paid = shared.sort(["rest", "account"], descending=[True, False]).with_row_index("place")
    one = (pl.col("place") < left).cast(wide)
    payouts = paid.select("account", (pl.col("floor") + one).alias("amount")).filter(pl.col("amount") > 0).sort("account")
    level = payouts.select(pl.struct("account", "amount").hash().alias("h"), "amount")
    while level.height > 1:
        pair = (pl.int_range(pl.len()) // 2).alias("pair")
        level = (
            level.with_columns(pair)
            .group_by("pair", maintain_order=True)
            .agg(pl.col("h").first().alias("a"), pl.col("h").last().alias("b"), pl.col("amount").sum())
            .select(pl.struct("a", "b", "amount").hash().alias("h"), "amount")
        )
    return payouts.height, level["amount"][0], lambda: payouts


def digest(rows):
    hasher = hashlib.sha256()
    listed = rows.fetchall() if hasattr(rows, "fetchall") else rows.iter_rows()
    for account, amount in listed:
        hasher.update(f"{account},{amount}\n".encode())
    return hasher.hexdigest()


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    threads = 2
    if "--threads" in sys.argv:
        threads = int(sys.argv[sys.argv.index("--threads") + 1])
        words.remove(str(threads))
    if words[0] == "parquet":
        import duckdb

        columns = "{'account': 'varchar', 'metric': 'varchar', 'amount': 'ubigint'}"
        duckdb.execute(
            f"copy (select * from read_csv('{words[1]}', header = true, columns = {columns})) "
            f"to '{words[2]}' (format parquet)"
        )
        return
    began = time.monotonic()
    recipients, paid, payouts = {"duckdb": by_duckdb, "polars": by_polars}[words[0]](words[1], threads)
    took = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = {"rival": words[0], "file": words[1].rsplit(".", 1)[1], "total_us": int(took * 1e6), "peak_kib": peak}
    line |= {"recipients": recipients, "payout_minor": str(paid)}
    if "--digest" in sys.argv:
        line["digest"] = digest(payouts())
    print(json.dumps(line))


main()
