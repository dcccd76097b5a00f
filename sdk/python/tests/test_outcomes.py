"""A write ends as done, refused or unknown, whatever the service and the network do; and is sent under one key."""

import http.server
import json
import threading
import unittest
from collections.abc import Callable
from typing import Any

from ron_sdk import (
    Burn, Capture, Hold, Issue, OutcomeUnknown, Refused, Release, Reverse, StaticToken, Transfer, Unreachable,
    Wallet,
)

RECEIPT = {
    "txid": "tx_1", "op": "transfer", "seq": 7, "ts": "2026-11-25T00:00:00.000Z", "receipt_hash": "b3:0",
    "from": "acct:a", "to": "acct:b", "asset": "ron", "amount_minor": "340282366920938463463374607431768211455",
}
Step = tuple[int, dict[str, Any]]
DONE: Step = (200, {"receipt": RECEIPT, "private": {"idem": "order-1"}})
BUSY: Step = (429, {"code": "busy", "retryable": True})
LATER: Step = (503, {"code": "retry_later", "retryable": True})
TIMEOUT: Step = (504, {"code": "deadline_exceeded", "retryable": True})
BROKEN: Step = (500, {"code": "internal", "retryable": False})
SHORT: Step = (409, {"code": "insufficient_funds", "retryable": False, "detail": "too little"})
MISMATCH: Step = (422, {"code": "idempotency_mismatch", "retryable": False})
DROP: Step = (0, {})

MOVE = Transfer("acct:a", "acct:b", "ron", 2**128 - 1)


class Stub:
    """A service that answers by a script; the last step repeats."""

    def __init__(self, *writes: Step, ops: Step = (404, {"code": "not_found"})) -> None:
        self.seen: list[tuple[str, str | None, str | None, bytes]] = []
        self.wallets: list[Wallet] = []
        script = list(writes)
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status: int, body: dict[str, Any]) -> None:
                if status == 0:
                    self.close_connection = True
                    return
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.seen.append((self.path, self.headers["Idempotency-Key"], self.headers["Authorization"], body))
                self.answer(*(script.pop(0) if len(script) > 1 else script[0]))

            def do_GET(self) -> None:
                self.answer(*ops)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "Stub":
        return self

    def __exit__(self, *_: object) -> None:
        for wallet in self.wallets:
            wallet.close()
        self.server.shutdown()
        self.server.server_close()

    def wallet(self, deadline: float = 5.0, credential: StaticToken = StaticToken("t")) -> Wallet:
        self.wallets.append(Wallet(self.url, credential, deadline=deadline))
        return self.wallets[-1]


class Outcomes(unittest.TestCase):
    def submit(self, stub: Stub, deadline: float = 5.0) -> Any:
        return stub.wallet(deadline).submit(MOVE, key="order-1")

    def one_request(self, stub: Stub, times: int) -> None:
        self.assertEqual(len(stub.seen), times)
        self.assertEqual(len(set(stub.seen)), 1, "another key or body was sent")
        path, key, credential, body = stub.seen[0]
        self.assertEqual((path, key, credential), ("/v1/transfer", "order-1", "Bearer t"))
        self.assertEqual(json.loads(body)["amount_minor"], str(2**128 - 1))

    def test_done_after_every_kind_of_failure(self) -> None:
        for script in [[DONE], [BUSY, DONE], [LATER, BUSY, DONE], [TIMEOUT, DONE], [DROP, DONE], [BROKEN, DONE],
                       [DROP, TIMEOUT, (409, {"code": "in_flight", "retryable": True}), DONE]]:
            with self.subTest(script=script), Stub(*script) as stub:
                done = self.submit(stub)
                self.assertEqual((done.key, done.receipt.seq, done.receipt.amount), ("order-1", 7, 2**128 - 1))
                self.assertEqual(done.private.idem, "order-1")
                self.one_request(stub, len(script))

    def test_refused_when_nothing_can_have_happened(self) -> None:
        for script in [[SHORT], [BUSY, SHORT], [LATER, SHORT], [(403, {"code": "forbidden"})], [MISMATCH],
                       [DROP, MISMATCH]]:
            with self.subTest(script=script), Stub(*script) as stub:
                with self.assertRaises(Refused) as caught:
                    self.submit(stub)
                self.assertEqual(caught.exception.key, "order-1")
                self.assertEqual(caught.exception.code, script[-1][1]["code"])

    def test_temporary_refusals_end_with_the_deadline(self) -> None:
        with Stub(BUSY) as stub:
            with self.assertRaises(Refused) as caught:
                self.submit(stub, deadline=0.4)
            self.assertTrue(caught.exception.retryable)
            self.assertGreater(len(stub.seen), 1)

    def test_unknown_when_the_deadline_passes_in_doubt(self) -> None:
        for script in [[TIMEOUT], [DROP], [DROP, BUSY], [TIMEOUT, LATER], [BROKEN]]:
            with self.subTest(script=script), Stub(*script) as stub:
                with self.assertRaises(OutcomeUnknown) as caught:
                    self.submit(stub, deadline=0.4)
                self.assertEqual(caught.exception.key, "order-1")
                self.one_request(stub, len(stub.seen))

    def test_a_refusal_in_doubt_is_confirmed_by_the_key(self) -> None:
        forbidden = (403, {"code": "forbidden", "retryable": False})
        # The refusal speaks of its own attempt: the first one may have moved the money.
        with Stub(DROP, forbidden) as stub, self.assertRaises(OutcomeUnknown):
            self.submit(stub)
        with Stub(DROP, SHORT, ops=(200, {"outcome": "refused", "code": "insufficient_funds"})) as stub:
            with self.assertRaises(Refused) as caught:
                self.submit(stub)
            self.assertEqual(caught.exception.code, "insufficient_funds")
        with Stub(DROP, forbidden, DONE, ops=(200, {"outcome": "done", "receipt": RECEIPT})) as stub:
            self.assertEqual(self.submit(stub).receipt.seq, 7)

    def test_a_service_with_several_nodes_is_called_where_it_answers(self) -> None:
        def submit(*urls: str) -> Wallet:
            wallet = Wallet(urls, StaticToken("t"), deadline=5.0)
            self.assertEqual(wallet.submit(MOVE, key="order-1").receipt.seq, 7)
            return wallet

        def standby(active: str) -> Step:
            return (503, {"code": "not_active", "retryable": True, "details": {"active": active}})

        with Stub(DONE) as good:
            for first, times in [((DROP,), 1), ((LATER,), 1), ((TIMEOUT, DONE), 2)]:
                # What was refused by a node is sent to the next; an outcome that a node does not know is asked for there.
                with self.subTest(first=first), Stub(*first) as node:
                    submit(node.url, good.url).close()
                    self.one_request(node, times)
            with Stub(standby(good.url + "/")) as node, Stub(SHORT) as other:
                wallet = submit(node.url, other.url, good.url)
                self.assertEqual((len(node.seen), len(other.seen)), (1, 0), "the active node is known")
                wallet.submit(MOVE, key="order-1")
                self.assertEqual(len(node.seen), 1, "calls stay at the active node")
                wallet.close()
            with Stub(standby(good.url)) as node, Stub(DONE) as other:
                before = len(good.seen)
                submit("http://127.0.0.1:1", node.url, other.url).close()
                self.assertEqual((len(other.seen), len(good.seen)), (1, before), "no other URL gets a credential")
            self.assertEqual(len(set(good.seen)), 1, "another key or body was sent")

    def test_nothing_was_sent_is_not_unknown(self) -> None:
        wallet = Wallet("http://127.0.0.1:1", StaticToken("t"), deadline=0.3)
        with self.assertRaises(Unreachable):
            wallet.submit(MOVE)

    def test_a_wrong_nonce_is_replaced_under_the_same_key(self) -> None:
        conflict = (409, {"code": "nonce_conflict", "retryable": False, "details": {"expected": 9}})
        move = Transfer("acct:a", "acct:b", "ron", 1, nonce=4)
        with Stub(conflict, DONE) as stub:
            with self.assertRaises(Refused) as caught:
                stub.wallet().submit(move, key="order-2")
            self.assertEqual(caught.exception.expected, 9)
        with Stub(conflict, DONE) as stub:
            stub.wallet().submit(move, key="order-2", renumber=True)
            self.assertEqual([key for _, key, _, _ in stub.seen], ["order-2", "order-2"])
            self.assertEqual([json.loads(body)["nonce"] for *_, body in stub.seen], [4, 9])

    def test_a_refused_token_is_renewed_once(self) -> None:
        class Counting(StaticToken):
            renewed = 0

            def token(self) -> str:
                return f"t{self.renewed}"

            def renew(self) -> None:
                self.renewed += 1

        refused = (401, {"code": "unauthorized", "retryable": False})
        with Stub(refused, DONE) as stub:
            stub.wallet(credential=Counting("")).submit(MOVE)
            self.assertEqual([credential for _, _, credential, _ in stub.seen], ["Bearer t0", "Bearer t1"])
        with Stub(refused) as stub, self.assertRaises(Refused):
            stub.wallet(credential=Counting("")).submit(MOVE)

    def test_amounts_are_checked_before_they_are_sent(self) -> None:
        for amount in (-1, 2**128, True, 1.5, "1"):
            with self.subTest(amount=amount), self.assertRaises(ValueError):
                Transfer("a", "b", "ron", amount).body()  # type: ignore[arg-type]

    def test_each_operation_is_sent_as_the_api_wants_it(self) -> None:
        about: dict[str, Any] = {
            "memo": "m", "reference": "r", "share_reference": False, "metadata": {"a": "b"}, "effective_at": "e",
        }
        for operation, path, body in (
            (Issue("b", "ron", 5), "/v1/issue", {"to": "b", "asset": "ron", "amount_minor": "5"}),
            (Issue("b", "ron", 5, **about), "/v1/issue", {"to": "b", "asset": "ron", "amount_minor": "5", **about}),
            (Transfer("a", "b", "ron", 5, nonce=1, **about), "/v1/transfer",
             {"from": "a", "to": "b", "asset": "ron", "amount_minor": "5", "nonce": 1, **about}),
            (Burn("a", "ron", 5), "/v1/burn", {"from": "a", "asset": "ron", "amount_minor": "5"}),
            (Hold("a", "ron", 5, "t", nonce=2), "/v1/hold",
             {"from": "a", "asset": "ron", "amount_minor": "5", "expires_at": "t", "nonce": 2}),
            (Capture("tx_1/", "b", 5, **about), "/v1/hold/tx_1%2F/capture", {"to": "b", "amount_minor": "5", **about}),
            (Capture("tx_1", "b", final=True), "/v1/hold/tx_1/capture", {"to": "b", "final": True}),
            (Reverse("tx_1"), "/v1/tx/tx_1/reverse", {}),
            (Reverse("tx_1", 5, **about), "/v1/tx/tx_1/reverse", {"amount_minor": "5", **about}),
            (Release("tx_1", memo="m"), "/v1/hold/tx_1/release", {"memo": "m"}),
        ):
            with self.subTest(operation=operation), Stub(DONE) as stub:
                stub.wallet().submit(operation)
                [(sent_to, _, _, sent)] = stub.seen
                self.assertEqual((sent_to, json.loads(sent)), (path, body))

    def test_generated_keys_differ(self) -> None:
        with Stub(DONE) as stub:
            made: Callable[[], str] = lambda: stub.wallet().submit(MOVE).key
            self.assertNotEqual(made(), made())


if __name__ == "__main__":
    unittest.main()
