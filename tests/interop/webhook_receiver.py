"""A receiver of webhooks that checks each message with the library of the Standard Webhooks project.

usage: webhook_receiver.py SECRET DIR
Writes its port to DIR/port. DIR/mode says how it answers: ok, fail, hang, drip, redirect URL, gone. Every
request adds a JSON line to DIR/seen: whether the library accepts it, its id, its body, and how it was answered.
"""

import json
import pathlib
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

secret, directory = sys.argv[1], pathlib.Path(sys.argv[2])


def mode():
    return (directory / "mode").read_text().split()


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            Webhook(secret).verify(body, dict(self.headers.items()))
            genuine = True
        except WebhookVerificationError as why:
            genuine = str(why)
        how = mode()
        seen = {"genuine": genuine, "id": self.headers["webhook-id"], "how": how[0], "body": json.loads(body)}
        with (directory / "seen").open("a") as out:
            out.write(json.dumps(seen) + "\n")
        if how[0] == "hang":
            time.sleep(30)
        status = {"fail": 500, "redirect": 307, "gone": 410, "drip": 200}.get(how[0], 204)
        try:
            self.send_response(status)
            if how[0] == "redirect":
                self.send_header("Location", how[1])
            if how[0] == "drip":
                self.send_header("Content-Length", "1000000000")
                self.end_headers()
                for _ in range(300):
                    self.wfile.write(b"x")
                    time.sleep(0.1)
            else:
                if status not in (200, 204):
                    self.send_header("Content-Length", "0")
                self.end_headers()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the sender's deadline


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
part = directory / "port.part"
part.write_text(str(server.server_address[1]))
part.rename(directory / "port")
server.serve_forever()
