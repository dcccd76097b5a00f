"""Values for schemathesis beyond the documents (tests/api/fuzz.py starts it with this module).

Names of things that exist: of random ones nearly every answer would be 404. The file in FUZZ_KNOWN has values for the
parameters and members of these names, and whole requests that would succeed; half of the cases get the ones or the
others, of one thing all that belongs to it, and keep some of what was made up for them. And the two text formats of
usage, which a schema cannot describe.
"""

import atexit
import collections
import csv
import hashlib
import io
import json
import os
import pathlib

import schemathesis
from hypothesis import strategies as st

KNOWN = json.loads(pathlib.Path(os.environ["FUZZ_KNOWN"]).read_text())


def known_for(path):
    """Name -> values; those for one path come before those for all paths."""
    return {**KNOWN.get("*", {}), **KNOWN.get(path, {})}


def put(tree, names, turn):
    """Puts known values into the members of these names, at any depth."""
    if isinstance(tree, list):
        for item in tree:
            put(item, names, turn)
    if not isinstance(tree, dict):
        return
    for name, value in tree.items():
        if name in names and not isinstance(value, (dict, list)):
            tree[name] = names[name][turn % len(names[name])]
        else:
            put(value, names, turn)


def begin(case, whole, turn):
    """Makes it a request that would succeed, except for one generated member."""
    made_up = case.body if isinstance(case.body, dict) else {}
    case.path_parameters.update(whole.get("path", {}))
    case.body = json.loads(json.dumps(whole["body"]))
    if made_up and turn % 3:
        name = sorted(made_up)[turn // 3 % len(made_up)]
        case.body[name] = made_up[name]


@schemathesis.hook
def before_call(_context, case, kwargs):
    names = known_for(case.operation.path)
    said = repr((case.method, case.operation.path, case.path_parameters, case.query, case.body))
    turn = int.from_bytes(hashlib.sha256(said.encode(errors="replace")).digest()[:6], "big")
    if not names or turn % 2 or case.method.upper() != case.operation.method.upper():
        return
    turn //= 2
    if "Idempotency-Key" in (case.headers or {}):
        case.headers["Idempotency-Key"] = f"{turn:x}"
    # With the identifier of another request it would count as a repetition of that one.
    names = {**names, "op_id": [f"01890a5d-ac96-774b-bcce-{turn:012x}"]}
    wholes = names.pop("$wholes", [])
    if wholes and turn % 2:
        whole = wholes[turn // 2 % len(wholes)]
        begin(case, whole, turn // 2)
        if "basic" in whole:  # goes before the header of the command line
            kwargs["auth"] = tuple(whole["basic"])
        names = {"op_id": names["op_id"]}
    for part in (case.path_parameters, case.query, case.body):
        put(part, names, turn)


SEEN = collections.Counter()


@schemathesis.hook
def after_call(_context, case, response):
    SEEN[case.operation.label, response.status_code] += 1


@atexit.register
def tell():
    """With STATUSES set, the number of responses per operation and status: an operation without a 2xx was not tested."""
    if not os.environ.get("STATUSES"):
        return
    for label in sorted({label for label, _ in SEEN}):
        counts = sorted((status, n) for (other, status), n in SEEN.items() if other == label)
        print(f"{label}: " + ", ".join(f"{status} x{n}" for status, n in counts))


def lines(rows, write):
    text = io.StringIO()
    write(text, rows)
    return text.getvalue().encode()


def as_csv(text, rows):
    out = csv.writer(text)
    out.writerow(["account", "metric", "amount"])
    out.writerows(rows)


def as_ndjson(text, rows):
    for account, metric, amount in rows:
        text.write(json.dumps({"account": account, "metric": metric, "amount": amount}) + "\n")


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "acct:c", "not an account", ""]),
        st.sampled_from(["bytes", "requests", "Odd Metric", ""]),
        st.one_of(st.integers(min_value=-2, max_value=2**130).map(str), st.just("1.5"), st.just("")),
    ),
    max_size=6,
)
for media, form in (("text/csv", as_csv), ("application/x-ndjson", as_ndjson)):
    good = ROWS.map(lambda rows, form=form: lines(rows, form))
    schemathesis.openapi.media_type(media, st.one_of(good, st.binary(max_size=60)))
