"""A collector of traces that reads each request by OpenTelemetry's own schema.

usage: otlp_collector.py DIR
Writes its port to DIR/port. While DIR/away exists it answers 503. Every span adds a JSON line to DIR/seen: service, trace,
span, parent, name, attributes, start, end. A request that the schema does not have is answered 400 and adds a line with the
reason.
"""

import base64
import json
import pathlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

directory = pathlib.Path(sys.argv[1])
IDS = ("traceId", "spanId", "parentSpanId")


def as_protobuf(document):
    """OTLP's JSON has ids in hex, the JSON of protobuf in base64; nothing else differs."""
    for spans in (s["spans"] for r in document["resourceSpans"] for s in r["scopeSpans"]):
        for span in spans:
            for name in IDS:
                if name in span:
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def attributes(of):
    return {a.key: a.value.string_value or a.value.int_value for a in of.attributes}


def lines(request):
    for resource in request.resource_spans:
        service = attributes(resource.resource)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert len(span.trace_id) == 16 and len(span.span_id) == 8, "lengths of ids"
                yield {
                    "service": service, "trace": span.trace_id.hex(), "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(), "name": span.name, "kind": span.kind,
                    "start": span.start_time_unix_nano, "end": span.end_time_unix_nano,
                    "failed": span.status.code == 2, "attributes": attributes(span),
                }


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        status, seen = 200, []
        if (directory / "away").exists():
            status = 503
        else:
            try:
                assert self.path == "/v1/traces" and self.headers["content-type"] == "application/json"
                seen = list(lines(as_protobuf(json.loads(body))))
            except Exception as why:
                status, seen = 400, [{"refused": repr(why)}]
        with (directory / "seen").open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in seen)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


(directory / "seen").touch()
server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
(directory / "port.part").write_text(str(server.server_port))
(directory / "port.part").rename(directory / "port")
server.serve_forever()
