"""What reads ask for, and what they make of answers that leave something out or come in pages."""

import json
import unittest
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ron_sdk import Budget, HistoryEntry, Http, Passport, Private, StaticToken, UnexpectedAnswer, Wallet
from ron_sdk.http import Answer

from .test_outcomes import RECEIPT

ENTRY = {"seq": 7, "ts": "2026-11-25T00:00:00.000Z", "op": "transfer", "amount_minor": "5", "balance_minor": "-3", "to": "acct:b"}


class Scripted(Http):
    """Answers requests by a script, and keeps what was asked."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__("http://127.0.0.1:1")
        self.left = list(answers)
        self.asked: list[tuple[str, str, list[tuple[str, str]], Any]] = []

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        parts = urlsplit(path)
        self.asked.append((method, parts.path, parse_qsl(parts.query), None if body is None else json.loads(body)))
        return self.left.pop(0)


def says(body: Any, status: int = 200) -> Answer:
    return Answer(status, {}, json.dumps(body).encode())


class Reads(unittest.TestCase):
    def wallet(self, *answers: Answer) -> tuple[Wallet, Scripted]:
        http = Scripted(*answers)
        return Wallet(http, StaticToken("t")), http

    def test_a_transaction_is_shown_while_the_service_cannot_tell_its_reversals(self) -> None:
        wallet, _ = self.wallet(says({"receipt": RECEIPT}))
        found = wallet.transaction("tx_1")
        self.assertEqual((found.receipt.seq, found.private, found.reversed, found.reversals), (7, Private(), None, []))
        now = {"reversed_minor": "5", "reversals": ["tx_2"]}
        wallet, _ = self.wallet(says({"receipt": RECEIPT, "now": now}))
        found = wallet.transaction("tx_1")
        self.assertEqual((found.reversed, found.reversals), (5, ["tx_2"]))

    def test_a_token_of_a_subject_is_asked_for_as_the_api_wants_it(self) -> None:
        answer = {"token": "secret", "kid": "k", "alg": "EdDSA", "exp": 9, "caveats": ["asset=ron"], "epoch": 1}
        http = Scripted(says(answer), says(answer), says({"token": "secret"}))
        issuer = Passport(http, StaticToken("t"))
        whole = issuer.issue("ada", audience="svc-wallet", scope="wallet:read", ttl_s=60, caveats=["asset=ron"])
        self.assertEqual((whole.token, whole.exp, whole.caveats), ("secret", 9, ["asset=ron"]))
        self.assertNotIn("secret", repr(whole))
        issuer.issue("ada", audience="svc-wallet")
        asked = {"subject_ref": "ada", "audience": "svc-wallet", "caveats": []}
        more = {"scope": "wallet:read", "ttl_s": 60, "caveats": ["asset=ron"]}
        self.assertEqual([body for *_, body in http.asked], [asked | more, asked])
        self.assertEqual(http.asked[0][:2], ("POST", "/v1/passport/issue"))
        with self.assertRaises(UnexpectedAnswer):
            issuer.issue("ada", audience="svc-wallet")

    def test_filters_are_sent_as_the_api_wants_them(self) -> None:
        wallet, http = self.wallet(says({"entries": [ENTRY], "newer": 9}))
        page = wallet.history(
            "acct:a", since="s", until="u", direction="in", metadata={"a": "1", "b": "x=y"}, min_seq=7, limit=5
        )
        [(_, path, query, _)] = http.asked
        self.assertEqual(path, "/v1/account/acct%3Aa/history")
        self.assertEqual(sorted(query), [
            ("direction", "in"), ("from", "s"), ("limit", "5"), ("metadata", "a=1"), ("metadata", "b=x=y"), ("min_seq", "7"),
            ("until", "u"),
        ])
        [entry] = page.entries
        self.assertEqual((entry.seq, entry.amount, entry.balance, entry.source, entry.txid), (7, 5, -3, None, None))
        self.assertEqual(entry.raw, ENTRY)
        with self.assertRaises(UnexpectedAnswer):
            HistoryEntry.read({"seq": 7})

    def test_lists_follow_their_pages(self) -> None:
        statement = {
            "account": "a", "asset": "ron", "opening_minor": "-1", "closing_minor": "9", "credits_minor": "10",
            "debits_minor": "0",
        }
        wallet, http = self.wallet(
            says({**statement, "entries": [ENTRY], "next": 7}), says({**statement, "entries": [{**ENTRY, "seq": 8}]})
        )
        whole = wallet.statement("a", "ron", "s", "u", min_seq=8)
        self.assertEqual((whole.opening, whole.closing, [entry.seq for entry in whole.entries]), (-1, 9, [7, 8]))
        self.assertEqual([dict(query).get("after") for _, _, query, _ in http.asked], [None, "7"])
        self.assertEqual([dict(query)["min_seq"] for _, _, query, _ in http.asked], ["8", "8"])

        link = '</v1/account/a/statement?asset=ron&from=s&until=u&by=entry&format=csv&after=7&limit=500>; rel="next"'
        wallet, http = self.wallet(
            Answer(200, {"link": link}, b"seq,op\n,opening\n7,issue\n"), Answer(200, {}, b"seq,op\n8,burn\n,closing\n")
        )
        self.assertEqual(wallet.statement_csv("a", "ron", "s", "u"), "seq,op\n,opening\n7,issue\n8,burn\n,closing\n")
        self.assertEqual([dict(query).get("after") for _, _, query, _ in http.asked], [None, "7"])

        hold = {
            "hold": "tx_1", "from": "a", "asset": "ron", "amount_minor": "9", "remaining_minor": "0",
            "captured_minor": "4", "expires_at": "t", "state": "ended",
        }
        wallet, http = self.wallet(says({"holds": [hold], "older": 3}), says({"holds": [{**hold, "hold": "tx_0"}]}))
        self.assertEqual([(h.hold, h.captured) for h in wallet.holds("a", min_seq=1)], [("tx_1", 4), ("tx_0", 4)])
        self.assertEqual(dict(http.asked[1][2])["before"], "3")

    def test_a_webhook_is_resumed_without_a_key(self) -> None:
        doc = {"name": "shop", "url": "https://x/", "accounts": ["a*"], "state": "failing", "after": 5, "behind": 2}
        wallet, http = self.wallet(says(doc, 202), says(doc, 202), says({}))
        self.assertEqual(wallet.resume_webhook("shop", after=5).state, "failing")
        self.assertIsNone(wallet.resume_webhook("shop").failure)
        sent = [(method, path, body) for method, path, _, body in http.asked]
        path = "/v1/webhooks/shop/resume"
        self.assertEqual(sent, [("POST", path, {"after": 5}), ("POST", path, {})])
        self.assertEqual(wallet.budget(), Budget(None, None))


if __name__ == "__main__":
    unittest.main()
