"""Prints what the prometheus_client parser reads from a scrape on standard input, one sample per line.

Each line is a JSON list: name, sorted [label, value] pairs, the value as Python's repr, for comparison with svc-admin's
own parser. Exit code 3: the parser refused the text.
"""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

text = sys.stdin.buffer.read().decode("utf-8")
try:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            print(json.dumps([sample.name, sorted(sample.labels.items()), repr(float(sample.value))]))
except ValueError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
