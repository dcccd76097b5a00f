"""Offline verification: what a fleet proved verifies, and nothing that was altered does."""

import base64
import hashlib
import json
import os
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ron_sdk import VerificationError
from ron_sdk.verify import AuditEntry, Policy, Shown, TlogProof, verify_audit, verify_manifest, verify_payout, verify_receipt
from ron_sdk.verify.encoding import canonical
from ron_sdk.verify.tlog import check_inclusion, leaf_hash

#: Files of a fleet, as `tests/e2e/sdk.rs` collects them.
VECTORS = Path(os.environ.get("RON_SDK_VECTORS") or Path(__file__).parents[2] / "vectors")
KEYS = json.loads((VECTORS / "verifiers.json").read_bytes())


def vector(name: str) -> bytes:
    return (VECTORS / name).read_bytes()


def altered(raw: bytes) -> list[bytes]:
    """All texts in which one byte differs: in its lowest bit, in its highest bit, or in the bit of letter case."""
    return [raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1:] for at in range(len(raw)) for bit in (0x01, 0x20, 0x80)]


def without(value: object, hints: tuple[str, ...]) -> object:
    """The document without these members, at any depth."""
    if isinstance(value, list):
        return [without(item, hints) for item in value]
    if isinstance(value, dict):
        return {name: without(item, hints) for name, item in value.items() if name not in hints}
    return value


class Case(unittest.TestCase):
    def refuse(self, call: Callable[[], object], words: str = "") -> None:
        with self.assertRaises(VerificationError) as caught:
            call()
        self.assertIn(words, str(caught.exception))

    def refuse_altered(self, name: str, check: Callable[[bytes], object], *, hints: tuple[str, ...] = ()) -> None:
        """``hints`` are members of the file that nothing authenticates."""
        raw = vector(name)
        check(raw)
        for changed in altered(raw):
            try:
                check(changed)
            except VerificationError:
                continue
            self.assertTrue(hints, f"{name} is accepted as {changed!r}")
            self.assertEqual(*(without(json.loads(text), hints) for text in (raw, changed)))


class Audit(Case):
    policy = Policy.parse(vector("policy").decode())

    def check(self, entry: bytes, proof: bytes) -> object:
        return verify_audit(entry, proof.decode("utf-8", "surrogateescape"), self.policy)

    def test_an_entry_is_verified_with_its_cosigned_checkpoint(self) -> None:
        found = verify_audit(vector("entry.json"), vector("entry.tlog-proof").decode(), self.policy)
        self.assertEqual((found.op, found.result, found.checkpoint.cosigned_by), ("sign", "ok", ("w",)))
        signed = json.loads(vector("signed.json"))
        message, signature = signed["message"].encode(), base64.b64decode(signed["signature"])
        self.assertTrue(found.records_signature(message, [signature]))
        self.assertFalse(found.records_signature(message + b"0", [signature]))
        self.assertFalse(found.records_signature(message, [signature[::-1]]))

    def test_a_manifest_names_the_further_assets_of_its_epoch(self) -> None:
        assets = Path(__file__).parents[2] / "vectors" / "assets"
        proof = json.loads((assets / "payout.json").read_bytes())
        key = json.loads((assets / "verifiers.json").read_bytes())["manifest_public_key"]
        payout = verify_payout(canonical(proof), key)
        self.assertEqual((payout.account, payout.manifest.asset), ("acct:node-00006", "ron"))
        manifest = proof["manifest"]
        self.assertEqual([also.asset for also in payout.manifest.also], ["usd"])
        self.assertEqual(payout.manifest.also[0].commitment, manifest["also"][0]["commitment"])
        for also in ([], [{"asset": "eur", "commitment": manifest["commitment"]}]):
            other = {**manifest, "also": also}
            self.refuse(lambda: verify_payout(canonical({**proof, "manifest": other}), key))

    def test_every_altered_byte_is_refused(self) -> None:
        entry, proof = vector("entry.json"), vector("entry.tlog-proof")
        self.refuse_altered("entry.json", lambda changed: self.check(changed, proof))
        self.refuse_altered("entry.tlog-proof", lambda changed: self.check(entry, changed))

    def test_a_policy_fails_closed(self) -> None:
        entry, proof = vector("entry.json"), vector("entry.tlog-proof").decode()
        verify_audit(entry, proof, Policy(KEYS["audit_vkey"]))
        self.refuse(lambda: verify_audit(entry, proof, Policy()), "no known key")
        self.refuse(lambda: verify_audit(entry, proof, Policy(KEYS["ledger_vkey"])), "no known key")
        other = Signer("other.example/witness", 4)
        both = f"{vector('policy').decode()}".replace("quorum w", f"witness o {other.vkey}\ngroup g all w o\nquorum g")
        self.refuse(lambda: verify_audit(entry, proof, Policy.parse(both)), "too few witnesses")
        verify_audit(entry, proof, Policy.parse(both.replace("group g all", "group g any")))
        alone = "\n".join(line for line in proof.split("\n") if "witness" not in line)
        verify_audit(entry, alone, Policy(KEYS["audit_vkey"]))
        self.refuse(lambda: verify_audit(entry, alone, self.policy), "too few witnesses")

    def test_an_entry_of_another_form_is_refused_even_with_a_proof(self) -> None:
        signer = Signer("log.example", 1)
        for entry in (b'{"v":1}', b'{"a":1, "v":1}', b"\xff", b"[]", b'{"v":1.5}', b'{"v":1,"v":1}', b"[" * 100_000):
            self.refuse(lambda: verify_audit(entry, signer.proof(entry), Policy(signer.vkey)))

    def test_an_entry_has_a_request_id_since_format_2(self) -> None:
        signer = Signer("log.example", 1)

        def check(**changed: object) -> AuditEntry:
            members = json.loads(vector("entry.json"))
            members.pop("request_id", None)
            entry = canonical({**members, **changed})
            return verify_audit(entry, signer.proof(entry), Policy(signer.vkey))

        self.assertIsNone(check(v=1).request_id)
        self.assertIsNone(check(v=2).request_id)
        self.assertEqual(check(v=2, request_id="find-me-42").request_id, "find-me-42")
        for changed in ({"v": 1, "request_id": "a"}, {"v": 2, "request_id": 7}, {"v": 0}, {"v": 3}):
            self.refuse(lambda: check(**changed))


class Signer:
    """A log or witness of the tests."""

    def __init__(self, name: str, kind: int) -> None:
        self.name = name
        self.key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
        raw = bytes([kind]) + self.key.public_key().public_bytes_raw()
        self.id = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
        self.vkey = f"{name}+{self.id.hex()}+{base64.b64encode(raw).decode()}"

    def line(self, text: str) -> str:
        return f"\u2014 {self.name} {base64.b64encode(self.id + self.key.sign(text.encode())).decode()}\n"

    def cosign(self, text: str, time: int = 1_700_000_000) -> str:
        made = self.key.sign(f"cosignature/v1\ntime {time}\n{text}".encode())
        return f"\u2014 {self.name} {base64.b64encode(self.id + time.to_bytes(8, 'big') + made).decode()}\n"

    def proof(self, entry: bytes, more: str = "") -> str:
        """The proof of the only entry of a log."""
        text = f"{self.name}\n1\n{base64.b64encode(leaf_hash(entry)).decode()}\n"
        return f"c2sp.org/tlog-proof@v1\nindex 0\n\n{text}\n{self.line(text)}{more}"


class Notes(Case):
    def test_a_wrong_signature_beside_a_right_one_is_refused(self) -> None:
        log, other = Signer("log.example", 1), Signer("other.example", 1)
        proof = log.proof(b"e", other.line("another text\n"))
        TlogProof.parse(proof).check(b"e", Policy(log.vkey))
        self.refuse(lambda: TlogProof.parse(proof).check(b"e", Policy(log.vkey, other.vkey)), "is wrong")

    def test_a_key_of_another_log_does_not_vouch_for_this_one(self) -> None:
        log, other = Signer("log.example", 1), Signer("other.example", 1)
        proof = log.proof(b"e")
        text = proof.split("\n\n")[1] + "\n"
        forged = proof.replace(log.line(text), other.line(text))
        self.refuse(lambda: TlogProof.parse(forged).check(b"e", Policy(log.vkey, other.vkey)), "no known key")

    def test_cosignatures_without_a_time_do_not_count(self) -> None:
        log, witness = Signer("log.example", 1), Signer("w.example", 4)
        policy = Policy.parse(f"log {log.vkey}\nwitness w {witness.vkey}\nquorum w\n")
        text = log.proof(b"e").split("\n\n")[1] + "\n"
        TlogProof.parse(log.proof(b"e", witness.cosign(text))).check(b"e", policy)
        for line in (witness.cosign(text, 0), witness.cosign(text, 2**63), witness.line(text), witness.cosign("x\n")):
            self.refuse(lambda: TlogProof.parse(log.proof(b"e", line)).check(b"e", policy), "too few witnesses")

    def test_odd_policies_are_refused(self) -> None:
        log, a, b = Signer("log.example", 1), Signer("a.example", 4), Signer("b.example", 4)
        start = f"log {log.vkey}\nwitness a {a.vkey}\nwitness b {b.vkey}\n"
        Policy.parse(f"# comment\n\n{start}group g 2 a b\nquorum g\n")
        for wrong in ("", start, f"{start}quorum c\n", f"{start}group g 3 a b\nquorum g\n",
                      f"{start}group g 0 a b\nquorum g\n", f"{start}group g all\nquorum g\n",
                      f"{start}group g any a a\nquorum g\n", f"{start}quorum a\nquorum none\n",
                      f"{start}group g any h\ngroup h any a\nquorum g\n", f"{start}witness c {a.vkey}\nquorum a\n",
                      f"{start}witness a {Signer('c', 4).vkey}\nquorum a\n", f"{start}log {log.vkey}\nquorum a\n",
                      f"log {a.vkey}\nquorum none\n", f"witness l {log.vkey}\nquorum none\n", "rule x\nquorum none\n"):
            self.refuse(lambda: Policy.parse(wrong))

    def test_odd_keys_and_proofs_are_refused(self) -> None:
        log = Signer("log.example", 1)
        name, key_id, key = log.vkey.split("+")
        other_type = Signer("log.example", 6).vkey
        for vkey in ("", name, f"{name}+{key_id}", f"+{key_id}+{key}", f"{name}+00000000+{key}", f"x{log.vkey}",
                     f"{name}+{key_id}+{key[:-1]}", other_type):
            self.refuse(lambda: Policy(vkey))
        good = log.proof(b"e")
        for wrong in (good.replace("@v1", "@v2"), good.replace("index 0", "index 00"), good.replace("index 0\n", ""),
                      good.replace("index 0", "index -1"), good.replace("index 0", "extra !\nindex 0"),
                      good.replace("index 0", f"index {'9' * 5000}"), good.replace("\n\n", "\nAAAA\n\n", 1),
                      good.rstrip("\n"), good.replace("\u2014", "-"), "", good.replace("\n1\n", "\n2\n")):
            self.refuse(lambda: TlogProof.parse(wrong).check(b"e", Policy(log.vkey)))


class Receipts(Case):
    policy = Policy.parse(vector("policy").decode())

    def test_a_payee_proves_a_payment_and_learns_nothing_private_of_the_payer(self) -> None:
        mine, theirs = (verify_receipt(vector(f"{name}.receipt.json"), self.policy) for name in ("payer", "payee"))
        self.assertEqual(replace(mine, shown=Shown(), checkpoint=theirs.checkpoint), replace(theirs, shown=Shown()))
        self.assertEqual((theirs.op, theirs.source, theirs.to, theirs.asset, theirs.amount),
                         ("transfer", "acct:py-payer", "acct:py-payee", "ron", 250))
        self.assertEqual(theirs.checkpoint.cosigned_by, ("w",))
        self.assertEqual(theirs.shown, Shown(reference="order-17"))
        self.assertEqual(replace(mine.shown, key=None, nonce=None), Shown(
            tenant="default", principal="operator", effective_at="2026-11-25T00:00:00.000Z", memo="two books",
            metadata={"basket": "b-1", "channel": "web"}, reference="order-17",
        ))
        for secret in ("operator", "two books", "b-1", str(mine.shown.key)):
            raw = vector("payee.receipt.json")
            self.assertNotIn(secret.encode(), raw)
            self.assertNotIn(base64.b64encode(secret.encode())[:8], raw)

    def test_every_altered_byte_is_refused(self) -> None:
        for name in ("payer.receipt.json", "payee.receipt.json"):
            self.refuse_altered(name, lambda raw: verify_receipt(raw, self.policy))

    def test_a_policy_fails_closed(self) -> None:
        file = vector("payee.receipt.json")
        verify_receipt(file, Policy(KEYS["ledger_vkey"]))
        self.refuse(lambda: verify_receipt(file, Policy()), "no known key")
        self.refuse(lambda: verify_receipt(file, Policy(KEYS["audit_vkey"])), "no known key")
        value = json.loads(file)
        alone = "\n".join(line for line in value["checkpoint"].split("\n") if "witness" not in line)
        self.refuse(lambda: verify_receipt(canonical({**value, "checkpoint": alone}), self.policy), "too few witnesses")
        # A key that is trusted for another log.
        both = Policy(KEYS["ledger_vkey"], KEYS["audit_vkey"])
        verify_receipt(file, both)
        self.refuse(lambda: verify_receipt(canonical({**value, "vkey": KEYS["audit_vkey"]}), both), "not trusted")

    def test_other_members_and_forms_are_refused(self) -> None:
        value = json.loads(vector("payer.receipt.json"))
        verify_receipt(json.dumps(value, indent=4).encode(), self.policy)
        parts = value["private"]
        for wrong in ({**value, "more": 1}, {**value, "private": {**parts, "more": 1}}, {**value, "private": {}},
                      {**value, "private": {**parts, "salt": parts["memo"]["salt"]}},
                      {**value, "private": {name: part for name, part in parts.items() if name != "memo"}},
                      {**value, "private": {**parts, "memo": parts["reference"], "reference": parts["memo"]}},
                      {**value, "private": {**parts, "memo": {**parts["memo"], "hash": "AAAA"}}},
                      {**value, "path": value["path"][:-1]}, {**value, "path": [1]}, {**value, "format": "ron-receipt/v2"}):
            self.refuse(lambda: verify_receipt(canonical(wrong), self.policy))
        twice = vector("payer.receipt.json").replace(b'"format"', b'"format":"ron-receipt/v1","format"', 1)
        self.refuse(lambda: verify_receipt(twice, self.policy), "twice")
        # Without its private parts the entry is proven all the same.
        bare = canonical({name: member for name, member in value.items() if name != "private"})
        self.assertEqual(verify_receipt(bare, self.policy).shown, Shown())

    def test_leaves_of_another_form_are_refused_even_with_a_proof(self) -> None:
        log = Signer("log.example", 1)

        def check(leaf: bytes) -> object:
            text = f"{log.name}\n1\n{base64.b64encode(leaf_hash(leaf)).decode()}\n"
            file = {"format": "ron-receipt/v1", "leaf": base64.b64encode(leaf).decode(), "path": [],
                    "checkpoint": f"{text}\n{log.line(text)}", "vkey": log.vkey}
            return verify_receipt(canonical(file), Policy(log.vkey)).amount

        def leaf(**changes: bytes) -> bytes:
            fields = {"version": b"\1", "kind": b"\2", "seq": b"\0", "ts": b"\1", "link": b"\0", "outcome": b"\0",
                      "present": b"\x0f", "from": b"\1a", "to": b"\1b", "asset": b"\1c", "amount": b"\1\7",
                      "detail": b"", "hash": bytes(32)}
            return b"".join({**fields, **changes}.values())

        self.assertEqual(check(leaf()), 7)
        self.assertEqual(check(leaf(amount=b"\0", detail=b"more", link=b"\1\0\2")), 0)
        self.assertEqual(check(leaf(amount=b"\x10" + b"\xff" * 16)), 2**128 - 1)
        for wrong in (leaf(version=b"\2"), leaf(kind=b"\0"), leaf(kind=b"\x7f"), leaf(seq=b"\1"), leaf(seq=b"\x80\0"),
                      leaf(ts=b"\xff" * 9 + b"\1"), leaf(ts=b"\xff" * 9 + b"\2"), leaf(ts=b"\xff" * 11), leaf(link=b"\2"),
                      leaf(outcome=b"\1"), leaf(outcome=b"\xfe\1\1"), leaf(present=b"\x8f\1"), leaf(to=b"\1\xff"),
                      leaf(to=b"\xff\xff\xff\xff\xff\1b"), leaf(amount=b"\2\0\7"), leaf(amount=b"\x11" + b"\1" * 17),
                      leaf(hash=bytes(31)), leaf()[:10], b""):
            self.refuse(lambda: check(wrong))


class Trees(Case):
    def test_every_entry_of_small_trees_is_proven_at_its_place_only(self) -> None:
        leaves = [leaf_hash(bytes([n])) for n in range(20)]

        def node(left: bytes, right: bytes) -> bytes:
            return hashlib.sha256(b"\1" + left + right).digest()

        def split(n: int) -> int:
            return 1 << (n - 1).bit_length() - 1

        # By the recursive definitions of RFC 6962, which the verifier does not use.
        def root(part: list[bytes]) -> bytes:
            k = split(len(part)) if len(part) > 1 else 0
            return node(root(part[:k]), root(part[k:])) if k else part[0]

        def path(at: int, part: list[bytes]) -> list[bytes]:
            if len(part) == 1:
                return []
            k = split(len(part))
            return path(at, part[:k]) + [root(part[k:])] if at < k else path(at - k, part[k:]) + [root(part[:k])]

        for size in range(1, len(leaves) + 1):
            tree = leaves[:size]
            for at in range(size):
                good = path(at, tree)
                check_inclusion(leaves[at], at, size, good, root(tree))
                for wrong in [good[:-1], good + [leaves[0]], good[::-1]]:
                    if wrong != good:
                        self.refuse(lambda: check_inclusion(leaves[at], at, size, wrong, root(tree)))
                for index in range(size + 2):
                    if index != at:
                        self.refuse(lambda: check_inclusion(leaves[at], index, size, good, root(tree)))


class Manifests(Case):
    key = KEYS["manifest_public_key"]

    def test_a_payout_is_proven_down_from_the_signed_manifest(self) -> None:
        manifest = verify_manifest(vector("run.json"), vector("run.sig.json"), self.key)
        payout = verify_payout(vector("payout.json"), self.key)
        self.assertEqual(payout.manifest, manifest)
        assert manifest.payouts is not None
        self.assertEqual(payout.total, manifest.payouts.total)
        self.assertEqual((payout.account, payout.amount), ("acct:bob", 2_209_737_827_715_355_805))

    def test_a_payout_that_is_claimed_elsewhere_has_the_proof_for_the_contract(self) -> None:
        # Not collected again with the other files: an epoch with claims has a policy of its own.
        claims = Path(__file__).parents[2] / "vectors" / "claims"
        proof = json.loads((claims / "payout.json").read_bytes())
        key = json.loads((claims / "verifiers.json").read_bytes())["manifest_public_key"]
        payout = verify_payout(canonical(proof), key)
        self.assertEqual(list(payout.claim), proof["claim"])
        assert payout.manifest.claims is not None
        self.assertEqual(payout.manifest.claims.account, "claims:bridge")
        manifest = proof["manifest"]
        other = {**manifest, "claims": {**manifest["claims"], "account": "claims:other"}}
        for changes in ({"claim": ["0x12"]}, {"manifest": other}, {"claim": [1]}):
            self.refuse(lambda: verify_payout(canonical({**proof, **changes}), key))

    def test_a_correction_says_what_was_paid_before(self) -> None:
        correction = Path(__file__).parents[2] / "vectors" / "correction"
        proof = json.loads((correction / "payout.json").read_bytes())
        key = json.loads((correction / "verifiers.json").read_bytes())["manifest_public_key"]
        payout = verify_payout(canonical(proof), key)
        self.assertEqual((payout.account, payout.amount, payout.manifest.adjusts), ("acct:bob", 250, "e"))
        found = payout.manifest.correction
        assert found is not None
        self.assertEqual((found.paid, found.due_payout, found.overpaid, found.overpaid_accounts), (1000, 1000, 250, 1))
        manifest = proof["manifest"]
        for changes in ({"paid_minor": "999"}, {"overpaid": 2}, {"of": manifest["commitment"]}):
            other = {**manifest, "correction": {**manifest["correction"], **changes}}
            self.refuse(lambda: verify_payout(canonical({**proof, "manifest": other}), key))

    def test_every_altered_byte_is_refused(self) -> None:
        run, signature = vector("run.json"), vector("run.sig.json")
        self.refuse_altered("run.json", lambda raw: verify_manifest(raw, signature, self.key))
        # The receipt helps to find the audit entry of the signature; nothing signs it.
        self.refuse_altered("run.sig.json", lambda raw: verify_manifest(run, raw, self.key), hints=("receipt",))
        self.refuse_altered("payout.json", lambda raw: verify_payout(raw, self.key), hints=("receipt",))

    def test_another_key_is_refused(self) -> None:
        run, signature = vector("run.json"), vector("run.sig.json")
        name, alone = self.key.split("=")
        verify_manifest(run, signature, alone)
        other = KEYS["policy_public_key"].split("=")[1]
        self.refuse(lambda: verify_manifest(run, signature, other), "is wrong")
        self.refuse(lambda: verify_manifest(run, signature, f"{name}={other}"), "is wrong")
        self.refuse(lambda: verify_manifest(run, signature, f"{name}0={alone}"), "another key version")
        for key in ("", "AAAA", self.key + "=", " " + self.key, " " + alone, "=" + alone):
            self.refuse(lambda: verify_manifest(run, signature, key))

    def test_a_proof_of_another_shape_is_refused(self) -> None:
        proof = json.loads(vector("payout.json"))
        path = proof["path"]

        def refused(**changes: object) -> None:
            self.refuse(lambda: verify_payout(canonical({**proof, **changes}), self.key))

        for wrong in (path[:-1], path + path[:1], path[::-1] if len(path) > 1 else []):
            refused(path=wrong)
        refused(path=[{**path[0], "side": "left" if path[0]["side"] == "right" else "right"}, *path[1:]])
        refused(path=[{**path[0], "sum_minor": str(2**128 - 1)}, *path[1:]])
        refused(extra=1)
        refused(signatures=[])
        refused(manifest={**proof["manifest"], "asset": "other"})
        [signature] = proof["signatures"]
        wrong = {**signature, "value": "A" * 86}
        refused(signatures=[wrong])
        verify_payout(canonical({**proof, "signatures": [wrong, signature]}), self.key)
        for index in range(5):
            if index != proof["payout"]["index"]:
                refused(payout={**proof["payout"], "index": index})


if __name__ == "__main__":
    unittest.main()
