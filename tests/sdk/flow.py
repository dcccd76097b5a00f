"""The Python SDK against a running fleet: every call, every outcome, and the files that prove what happened.

usage: flow.py DATA_DIR OUT     (DATA_DIR of a running `ron up`; files are written to OUT)
"""

import base64
import json
import pathlib
import sys
import time

from ron_sdk import (
    Allowance, Budget, Burn, Capture, ClientCredentials, Details, Hold, Issue, Kms, Limits, OutcomeUnknown, Passport,
    Private, Refused, Release, Reverse, Rewarder, StaticToken, Transfer, Unreachable, VerificationError, Wallet, new_key,
)
from ron_sdk.verify import Policy, Shown, verify_audit, verify_manifest, verify_payout, verify_receipt

data, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
services = json.loads((data / "run/endpoints.json").read_text())["services"]
sockets = {service["service"]: service["api_socket"] for service in services}
ports = {service["service"]: service["api"] for service in services}
verifiers = json.loads((data / "verifiers.json").read_text())


def refused(code, call):
    try:
        call()
    except Refused as refusal:
        assert refusal.code == code, refusal
        return refusal
    raise AssertionError(f"not refused with {code}")


def eventually(call):
    for _ in range(100):
        try:
            return call()
        except VerificationError:
            pass  # The witness has not seen it yet.
        except Refused as refusal:
            if refusal.status not in (404, 409):
                raise
        time.sleep(0.1)
    return call()


def in_an_hour():
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + 3600))


# A token by the client's secret, for the wallet on its socket and on its port.
token = ClientCredentials.from_file(
    sockets["svc-passport"], data / "clients/operator.json", audience="svc-wallet"
)
wallet = Wallet(sockets["svc-wallet"], token)
other = Wallet(ports["svc-wallet"], token)

payer, payee = "acct:py-payer", "acct:py-payee"
issued = wallet.submit(Issue(payer, "ron", 10_000), key=new_key())
assert (issued.receipt.op, issued.receipt.amount, issued.replayed) == ("issue", 10_000, False)
key = new_key()
about = {"basket": "b-1", "channel": "web"}
when = "2026-11-25T00:00:00.000Z"
pay = Transfer(payer, payee, "ron", 250, memo="two books", reference="order-17", metadata=about, effective_at=when)
paid = wallet.submit(pay, key=key)
assert paid.private == Private(
    idem=key, memo="two books", reference="order-17", metadata=about, effective_at=when
), paid.private
again = other.submit(pay, key=key)
assert again.replayed and again.receipt == paid.receipt, "a repetition is the same payment"
refused("idempotency_mismatch", lambda: wallet.submit(Transfer(payer, payee, "ron", 251), key=key))
short = refused("insufficient_funds", lambda: wallet.submit(Transfer(payer, payee, "ron", 10**9)))
known = wallet.operation(short.key)
assert known.outcome == "refused" and known.code == "insufficient_funds"
assert wallet.operation(key).receipt == paid.receipt
assert wallet.operation(new_key()) is None

# Nonces are optional. A conflict leaves the key unused, and the next nonce is taken under the same key.
wallet.submit(Transfer(payer, payee, "ron", 5, nonce=1))
conflict = refused("nonce_conflict", lambda: wallet.submit(Transfer(payer, payee, "ron", 5, nonce=7)))
assert conflict.expected == 2 and wallet.operation(conflict.key) is None
wallet.submit(Transfer(payer, payee, "ron", 5, nonce=7), key=conflict.key, renumber=True)
assert wallet.balance(payer, "ron").nonce == 2

hold = wallet.submit(Hold(payer, "ron", 600, in_an_hour())).receipt.txid
first = wallet.submit(Capture(hold, payee, 200)).receipt
assert first.hold == hold and (wallet.hold(hold).remaining, wallet.hold(hold).state) == (400, "open")
wallet.submit(Capture(hold, payee, 100, final=True))
assert wallet.hold(hold).state == "ended"
hold = wallet.submit(Hold(payer, "ron", 30, in_an_hour())).receipt.txid
wallet.submit(Release(hold, memo="not wanted"))
hold = wallet.submit(Hold(payer, "ron", 40, in_an_hour())).receipt.txid
assert wallet.submit(Capture(hold, payee)).receipt.amount == 40, "all that is left"
wallet.submit(Burn(payer, "ron", 50))

whole = wallet.batch([Transfer(payer, payee, "ron", 1), Transfer(payer, "acct:py-fee", "ron", 2)], linked=True)
assert [item.receipt.amount for item in whole.results] == [1, 2]
assert wallet.operation(whole.key).results == whole.results and whole.results[0].private.idem.startswith(whole.key)
assert {item.receipt.batch for item in whole.results} == {whole.results[0].receipt.txid}
apart = wallet.batch([Issue(payer, "ron", 1), Transfer(payer, payee, "ron", 10**9)])
assert apart.results[0].receipt is not None and apart.results[1].code == "insufficient_funds"

# Items of every kind: a hold of the batch itself, all that is available, and a payment moved back.
saver = "acct:py-other"
wallet.submit(Issue(saver, "ron", 9))
both = wallet.batch([Hold(saver, "ron", 5, in_an_hour()), Capture("#0", "acct:py-fee", 2), Release("#0")], linked=True).results
assert [item.receipt.amount for item in both] == [5, 2, 3] and both[1].receipt.hold == both[0].receipt.txid
rest = wallet.batch([Transfer(saver, "acct:py-fee", "ron", "max"), Reverse(both[1].receipt.txid, 1)]).results
assert [item.receipt.amount for item in rest] == [7, 1]
assert wallet.submit(Burn(saver, "ron", "max")).receipt.amount == 1

# A payment moved back in part, and then the rest of it.
back = wallet.submit(Reverse(paid.receipt.txid, 50, reference="return of order-17"))
assert (back.receipt.source, back.receipt.to, back.receipt.reverses) == (payee, payer, paid.receipt.txid)
refused("reversal_too_large", lambda: wallet.submit(Reverse(paid.receipt.txid, 201)))
assert wallet.submit(Reverse(paid.receipt.txid)).receipt.amount == 200
found = wallet.transaction(paid.receipt.txid)
assert (found.receipt, found.private, found.reversed) == (paid.receipt, paid.private, 250)

# A key that is given up stays refused.
given_up = new_key()
assert wallet.abandon(given_up).code == "abandoned"
refused("abandoned", lambda: wallet.submit(Issue(payer, "ron", 1), key=given_up))

mine, theirs = wallet.balance(payer, "ron"), wallet.balance(payee, "ron")
assert (mine.amount, mine.available) == (10_000 - 10 - 300 - 40 - 50 - 3 + 1,) * 2, mine
assert theirs.amount == 10 + 300 + 40 + 1, theirs
page = wallet.history(payee, min_seq=theirs.as_of_seq, limit=2)
seen = [entry.seq for entry in page.entries]
while page.older is not None:
    page = wallet.history(payee, before=page.older, limit=2)
    seen += [entry.seq for entry in page.entries]
assert paid.receipt.seq in seen and seen == sorted(seen, reverse=True), seen
[entry] = wallet.history(payer, since="2020-01-01T00:00:00Z", direction="out", kind="transfer", metadata=about).entries
assert (entry.txid, entry.source, entry.to, entry.amount) == (paid.receipt.txid, payer, payee, 250), entry
assert (entry.reference, entry.memo, entry.metadata, entry.effective_at) == ("order-17", "two books", about, when), entry
assert wallet.history(payer, metadata={**about, "channel": "shop"}).entries == []
assert [entry.txid for entry in wallet.find("order-17").entries] == [paid.receipt.txid]
[reversal] = wallet.find("return of order-17", min_seq=back.receipt.seq).entries
assert (reversal.reverses, reversal.balance) == (paid.receipt.txid, None), reversal
assert wallet.balance(payee, "ron", at=paid.receipt.seq).amount > wallet.balance(payee, "ron", at=paid.receipt.seq - 1).amount
always = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z")
whole = wallet.statement(payee, "ron", *always, min_seq=theirs.as_of_seq)
assert (whole.opening, whole.closing) == (0, theirs.amount) and whole.credits - whole.debits == theirs.amount, whole
assert whole.entries[-1].balance == theirs.amount, whole.entries[-1]
lines = wallet.statement_csv(payee, "ron", *always, min_seq=theirs.as_of_seq).splitlines()
assert len(lines) == len(whole.entries) + 3 and lines[0].startswith("seq,") and ",closing," in lines[-1], lines
assert wallet.accounts(payee, min_seq=theirs.as_of_seq)[payee].balances["ron"].amount == theirs.amount
ended = wallet.holds(payer, asset="ron", state="ended", min_seq=theirs.as_of_seq)
assert [(hold.state, hold.captured) for hold in ended] == [("ended", 40), ("ended", 0), ("ended", 300)], ended
events, following = wallet.events(payee)
done = [event.seq for event in events]
assert set(done) < set(seen) and done == sorted(done) and following >= seen[0], "refused attempts are no events"
first, following = wallet.events(payee, limit=1)
assert [event.seq for event in first] == done[:1] and following < done[1], first

# What is set for accounts and assets.
kept = "acct:py-kept"
asset = "py-coin"
refused("not_found", lambda: wallet.asset(asset))
assert (wallet.account(kept).balances, wallet.account(kept).holds) == ({}, [])
wallet.set_asset(asset, 2, "Coin of the tests", details=Details(memo="new"))
assert (wallet.asset(asset).scale, wallet.asset(asset).title) == (2, "Coin of the tests")
[listed] = [found for found in wallet.assets() if found.asset == asset]
assert (listed.scale, listed.title) == (2, "Coin of the tests"), listed
wallet.set_account(kept, label="py-kept", limits=Limits(asset, credit_limit=40, max_balance=500))
wallet.submit(Issue(kept, asset, 500))
refused("max_balance", lambda: wallet.submit(Issue(kept, asset, 1)))
wallet.set_account(kept, require_nonce=True)
refused("nonce_conflict", lambda: wallet.submit(Burn(kept, asset, 1)))
assert wallet.account(kept).require_nonce
wallet.set_account(kept, require_nonce=False)
wallet.freeze(kept)
refused("account_frozen", lambda: wallet.submit(Burn(kept, asset, 1)))
wallet.freeze(kept, "credits", details=Details(memo="case 9"))
assert wallet.account(kept).frozen == "both"
wallet.unfreeze(kept, "debits")
wallet.submit(Transfer(kept, "acct:py-paid", asset, 520))
wallet.submit(Burn("acct:py-paid", asset, 30))
reserved = wallet.submit(Hold(kept, asset, 5, in_an_hour())).receipt
shown = wallet.account(kept, min_seq=reserved.seq)
assert (shown.frozen, shown.closed, shown.label) == ("credits", False, "py-kept"), shown
held = shown.balances[asset]
assert held.held == 5, held
assert (held.amount, held.available, held.credits, held.debits, held.credit_limit, held.max_balance) == (
    -20, 15, 500, 520, 40, 500), held
assert [(hold.hold, hold.remaining) for hold in shown.holds] == [(reserved.txid, 5)], shown
sums = wallet.trial_balance(asset, min_seq=reserved.seq)
assert (sums.issued, sums.burned) == (500, 30), sums
assert (sums.classes["py-kept"].accounts, sums.classes["py-kept"].balance) == (1, -20), sums
closed = wallet.set_account("acct:py-closed", closed=True)
assert wallet.account("acct:py-closed", min_seq=closed.receipt.seq).closed
wallet.set_account("acct:py-closed", closed=False)

# A token that can spend 20 and no more, and the tenant's webhook endpoint, which is not there.
assert wallet.budget() == Budget(None, None)
capped = Wallet(sockets["svc-wallet"], StaticToken((out / "capped.token").read_text().strip()))
assert capped.budget() == Budget(Allowance(20, 20), None)
capped.submit(Transfer(payer, "acct:py-fee", "ron", 5))
assert capped.budget().total == Allowance(20, 15)
refused("limits_exceeded", lambda: capped.submit(Transfer(payer, "acct:py-fee", "ron", 16)))
[hook] = wallet.webhooks()
assert (hook.name, hook.accounts) == ("sdk", ["acct:py-hooked"]) and hook.state in ("active", "failing"), hook
assert wallet.resume_webhook("sdk", after=1).name == "sdk"
wallet.resume_webhook("sdk")
refused("not_found", lambda: wallet.resume_webhook("other"))

# Callers without a right, and services that are not there.
narrow = ClientCredentials.from_file(
    sockets["svc-passport"], data / "clients/operator.json", audience="svc-wallet", scope="wallet:read"
)
assert Wallet(sockets["svc-wallet"], narrow).balance(payee, "ron").amount == theirs.amount
refused("forbidden", lambda: Wallet(sockets["svc-wallet"], narrow).submit(Issue(payer, "ron", 1)))
refused("unauthorized", lambda: Wallet(sockets["svc-wallet"], StaticToken("wrong")).balance(payer, "ron"))
try:
    Wallet(f"unix:{out}/nowhere.sock", token, deadline=0.2).submit(Issue(payer, "ron", 1))
except Unreachable:
    pass

# The payee may read the account that was paid, and nothing else: no operator's passport, no right at the ledger.
kms = Kms(sockets["ron-kms"], StaticToken.from_file(data / "clients/operator.kms.token"))
right = ClientCredentials.from_file(
    sockets["svc-passport"], data / "clients/operator.json", audience="svc-passport", scope="passport:issue"
)
issuer = Passport(sockets["svc-passport"], right)
granted = issuer.issue("payee", audience="svc-wallet", scope="wallet:read", ttl_s=600, caveats=["asset=ron"])
assert 0 < granted.exp - time.time() <= 601 and "asset=ron" in granted.caveats, granted
assert granted.token not in repr(granted)
refused("forbidden", lambda: issuer.issue("somebody", audience="svc-wallet"))
reader_token = issuer.issue("payee", audience="svc-wallet", scope="wallet:read").token
reader = Wallet(sockets["svc-wallet"], StaticToken(reader_token))
refused("forbidden", lambda: reader.balance(payer, "ron"))
held = Wallet(sockets["svc-wallet"], StaticToken(granted.token))
assert held.balance(payee, "ron").amount == theirs.amount
refused("forbidden", lambda: held.balance(payee, "eur"))
assert reader.transaction(paid.receipt.txid).private == Private(reference="order-17")

# Both have a receipt that verifies alone; the policy wants it cosigned.
policy = Policy.parse((out / "policy").read_text())


def receipt_of(client):
    file = client.receipt(paid.receipt.txid, wait=10)
    return file, verify_receipt(file, policy)


own_file, proven = eventually(lambda: receipt_of(wallet))
their_file, shared = eventually(lambda: receipt_of(reader))
for proof in (proven, shared):
    assert (proof.txid, proof.source, proof.to, proof.amount) == (paid.receipt.txid, payer, payee, 250), proof
    assert proof.receipt_hash == paid.receipt.receipt_hash
assert (proven.shown.key, proven.shown.principal, proven.shown.memo) == (key, "operator", "two books"), proven
assert shared.shown == Shown(reference="order-17"), shared
(out / "payer.receipt.json").write_bytes(own_file)
(out / "payee.receipt.json").write_bytes(their_file)
(out / "payee.token").write_text(reader_token)

# A signature, its audit entry and the proof of it.
signing_key = (out / "signing-key").read_text()
message = b"invoice 17: 250 minor units"
signed = kms.sign(signing_key, message, wait=5)
assert kms.verify(signing_key, message, signed.signatures)
assert not kms.verify(signing_key, message + b"0", signed.signatures)
assert kms.audit_vkey() == verifiers["audit_vkey"]
entry = kms.audit_entry(signed.receipt.index)
def cosigned():
    text = kms.audit_proof(signed.receipt.index)
    return text, verify_audit(entry, text, policy)


audit_proof, found = eventually(cosigned)
assert found.index == signed.receipt.index and found.op_id == signed.op_id
assert found.records_signature(message, [s.signature for s in signed.signatures])
try:
    Kms(sockets["ron-kms"], StaticToken("wrong"), deadline=1).sign(signing_key, message)
    raise AssertionError("signed for a caller without a credential")
except Refused as refusal:
    assert refusal.status == 401
except OutcomeUnknown as unknown:
    raise AssertionError("a refusal was taken for an unknown outcome") from unknown

# A payee's payout, whose proof ends in the signed manifest; and the manifest with the signature from the run's directory.
rewarder = Rewarder(sockets["svc-rewarder"], ClientCredentials.from_file(
    sockets["svc-passport"], data / "clients/operator.json", audience="svc-rewarder", scope="rewarder:read"
))
assert rewarder.epoch("sdk:1").state == "settled"
run, payout = rewarder.manifest("sdk:1"), rewarder.proof("sdk:1", "acct:bob")
manifest = verify_manifest(run, (out / "run.sig.json").read_bytes(), verifiers["manifest_public_key"])
assert verify_payout(payout, verifiers["manifest_public_key"]).amount == wallet.balance("acct:bob", manifest.asset).amount
why = rewarder.explanation("sdk:1", "acct:bob")
assert int(why["paid_minor"]) == verify_payout(payout, verifiers["manifest_public_key"]).amount
refused("not_found", lambda: rewarder.proof("sdk:1", "acct:nobody"))
[rehearsal] = rewarder.dry_runs("sdk:1")
assert rehearsal.dry_run and rewarder.epoch("sdk:1", dry_run=rehearsal.run_key) == rehearsal
rehearsed = rewarder.explanation("sdk:1", "acct:bob", dry_run=rehearsal.run_key)
assert rehearsed["paid_minor"] == why["paid_minor"]
refused("not_found", lambda: rewarder.manifest("sdk:1", dry_run="b3:" + "0" * 64))

(out / "run.json").write_bytes(run)
(out / "payout.json").write_bytes(payout)
(out / "signed.json").write_text(json.dumps({
    "message": message.decode(), "signature": base64.b64encode(signed.signatures[0].signature).decode(),
}) + "\n")
(out / "entry.json").write_bytes(entry)
(out / "entry.tlog-proof").write_text(audit_proof)
print("python: everything as expected")
