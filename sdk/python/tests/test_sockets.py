"""Unix sockets, client files, and tokens that are renewed in time."""

import base64
import http.server
import json
import os
import socketserver
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ron_sdk import ClientCredentials, Http, Issue, Refused, RonError, StaticToken, Unreachable, Wallet


class Service:
    """A token endpoint and a wallet on one Unix socket."""

    def __init__(self, place: Path, lifetime: int) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.bearers: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = str(self.headers["Authorization"])
                status = 200
                answer: dict[str, Any]
                if self.path == "/oauth2/token":
                    status, answer = service.token(given, body, lifetime)
                else:
                    service.bearers.append(given)
                    receipt = {"txid": "tx_1", "op": "issue", "seq": 1, "ts": "t", "receipt_hash": "sha256:0"}
                    answer = {"receipt": receipt}
                raw = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self.url = f"unix:{place}/api.sock"
        self.server = Server(f"{place}/api.sock", Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def token(self, given: str, body: str, lifetime: int) -> tuple[int, dict[str, Any]]:
        self.forms.append(parse_qs(body))
        if given != "Basic " + base64.b64encode(b"shop:secret").decode():
            return 401, {"error": "invalid_client", "error_description": "no such client"}
        return 200, {"access_token": f"t{len(self.forms)}", "expires_in": lifetime, "token_type": "Bearer"}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Sockets(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def service(self, lifetime: int = 900) -> Service:
        service = Service(self.place, lifetime)
        self.addCleanup(service.close)
        return service

    def connect(self, url: str, **more: Any) -> Http:
        made = Http(url, **more)
        self.addCleanup(made.close)
        return made

    def client(self, service: Service, secret: str = "secret", mode: int = 0o600) -> ClientCredentials:
        path = self.place / "shop.json"
        path.write_text(json.dumps({"client_id": "shop", "client_secret": secret}))
        path.chmod(mode)
        return ClientCredentials.from_file(
            self.connect(service.url), path, audience="svc-wallet", scope="wallet:issue", ttl_s=60,
            caveats=["account=a", "asset=ron"],
        )

    def test_one_token_serves_many_calls_until_it_nears_its_end(self) -> None:
        service = self.service()
        wallet = Wallet(self.connect(service.url), self.client(service))
        for _ in range(3):
            wallet.submit(Issue("a", "ron", 1))
        self.assertEqual(service.bearers, ["Bearer t1"] * 3)
        self.assertEqual(service.forms, [{
            "grant_type": ["client_credentials"], "audience": ["svc-wallet"], "scope": ["wallet:issue"],
            "ttl_s": ["60"], "caveat": ["account=a", "asset=ron"],
        }])

    def test_an_expired_token_is_replaced(self) -> None:
        service = self.service(lifetime=0)
        wallet = Wallet(self.connect(service.url), self.client(service))
        for _ in range(2):
            wallet.submit(Issue("a", "ron", 1))
        self.assertEqual(service.bearers, ["Bearer t1", "Bearer t2"])

    def test_a_wrong_secret_is_a_refusal(self) -> None:
        service = self.service()
        with self.assertRaises(Refused) as caught:
            Wallet(self.connect(service.url), self.client(service, "wrong")).submit(Issue("a", "ron", 1))
        self.assertEqual((caught.exception.code, caught.exception.detail), ("invalid_client", "no such client"))
        self.assertEqual(service.bearers, [])

    def test_a_file_that_others_can_read_is_refused(self) -> None:
        with self.assertRaisesRegex(RonError, "chmod 600"):
            self.client(self.service(), mode=0o640)

    def test_nothing_is_written_to_a_socket_of_another_user(self) -> None:
        service = self.service()
        other = self.connect(service.url, peer_uids={os.getuid() + 1})
        with self.assertRaisesRegex(Unreachable, "peer_uids"):
            Wallet(other, StaticToken("t"), deadline=0.2).submit(Issue("a", "ron", 1))
        self.assertEqual(service.bearers, [])

    def test_secrets_are_not_printed(self) -> None:
        for credential in (self.client(self.service()), StaticToken("secret")):
            self.assertNotIn("secret", repr(credential))

    def test_urls_of_another_form_are_refused(self) -> None:
        for url in ("", "localhost:1", "ftp://h", "http://", "http://h/?a=b"):
            with self.subTest(url=url), self.assertRaises(ValueError):
                Http(url)


if __name__ == "__main__":
    unittest.main()
