"""Pays through the wallets of a list until its input is closed; prints the outcome of each payment."""

import os
import sys
import threading

from ron_sdk import Issue, OutcomeUnknown, Refused, StaticToken, Wallet

urls, amount = sys.argv[1:]
wallet = Wallet(urls.split(", "), StaticToken(os.environ["RON_TOKEN"]), deadline=90.0)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
number = 0
while not over.is_set():
    key = f"python-{number}"
    number += 1
    try:
        done = wallet.submit(Issue("account-python", "ron", int(amount)), key=key)
        print("done", key, done.receipt.seq, flush=True)
    except (Refused, OutcomeUnknown) as outcome:
        print("not done", key, repr(outcome), flush=True)
