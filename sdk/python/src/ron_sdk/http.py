"""HTTP/1.1 over TCP, TLS and Unix sockets with the standard library."""

import http.client
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .errors import Refused, UnexpectedAnswer, Unreachable

#: Largest answer that is read, in bytes.
ANSWER_BYTES_MAX = 16 * 1024 * 1024
#: Connections that are kept open between calls.
KEPT_MAX = 16
#: Errors of a connection that was not made: nothing was sent.
NOT_SENT = (ConnectionRefusedError, FileNotFoundError, PermissionError)
#: First and longest pause between two attempts, in seconds.
PAUSE_FIRST, PAUSE_MAX = 0.05, 1.0


@dataclass(frozen=True)
class Answer:
    """A complete answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise UnexpectedAnswer(f"the answer of status {self.status} is not JSON: {error}") from error

    def retry_after(self) -> float:
        """Seconds of the header Retry-After; 0 without one."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isascii() and text.isdigit() else 0.0

    def refusal(self, key: str | None = None) -> Refused:
        """The problem document (RFC 9457) or OAuth error of an answer that is no success."""
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        problem: dict[str, Any] = body if isinstance(body, dict) else {}
        return Refused(
            self.status,
            str(problem.get("code") or problem.get("error") or "unexpected_status"),
            str(problem.get("detail") or problem.get("error_description") or problem.get("title") or ""),
            retryable=problem.get("retryable") is True,
            details=problem.get("details"),
            request_id=problem.get("request_id"),
            key=key,
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, peer_uids: frozenset[int], timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path
        self._peer_uids = peer_uids

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        # Before anything is written: another user may have put a socket of their own in this place.
        if hasattr(socket, "SO_PEERCRED"):
            credentials = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            uid = struct.unpack("3i", credentials)[1]
            if uid not in self._peer_uids:
                raise PermissionError(f"the socket {self._path} belongs to user {uid}; name it in peer_uids to accept it")


class _Node:
    """The address of a node, with its idle connections."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, peer_uids: frozenset[int]) -> None:
        self.url = url.rstrip("/")
        self._peer_uids = peer_uids
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        if url.startswith("unix:"):
            self._unix, self._host, self._port, self._base = url.removeprefix("unix:").removesuffix(":"), "", None, ""
            return
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not the URL of a service: {url!r} (unix:/path, http://host:port or https://host:port)")
        self._unix, self._host, self._port, self._base = "", parts.hostname, parts.port, parts.path.rstrip("/")
        if parts.scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        elif parts.scheme == "http":
            self._tls = None

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        connection = self._take(timeout)
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(timeout)
            connection.request(method, self._base + path, body=body, headers=dict(headers))
            response = connection.getresponse()
            content = response.read(ANSWER_BYTES_MAX + 1)
            if len(content) > ANSWER_BYTES_MAX:
                raise http.client.HTTPException(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            found = {name.lower(): value for name, value in response.getheaders()}
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return Answer(response.status, found, content)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, timeout: float) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        if self._unix:
            return _UnixConnection(self._unix, self._peer_uids, timeout)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle) < KEPT_MAX:
                self._idle.append(connection)
                return
        connection.close()


class Http:
    """Calls to one service, from any number of threads.

    ``url`` is ``unix:/path/to/api.sock``, ``http://host:port`` or ``https://host:port``, or a list of them for a service
    with several nodes: calls go to one node until it cannot be reached, does not answer, or takes no calls for now, and then
    to the node that it names as the active one or to the next. ``tls`` holds the authorities (and a client certificate) for
    https; by default those of the system. ``peer_uids`` are the users that may serve a Unix socket; by default the user of
    this program. (Checked on Linux.)
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        peer_uids: Collection[int] | None = None,
    ) -> None:
        own = {os.getuid()} if hasattr(os, "getuid") else set()
        uids = frozenset(own if peer_uids is None else peer_uids)
        self._nodes = [_Node(node, tls, uids) for node in ([url] if isinstance(url, str) else url)]
        if not self._nodes:
            raise ValueError("a service has at least one URL")
        self._at = 0

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        """One request, sent once to a node that takes it; raises OSError or http.client.HTTPException when no whole answer came.

        ``timeout`` bounds each wait for the network, in seconds.
        """
        for last in (left == 1 for left in range(len(self._nodes), 0, -1)):
            at = self._at
            try:
                answer = self._nodes[at].send(method, path, headers, body, timeout)
            except NOT_SENT:
                self._leave(at, None)
                if last:
                    raise
            except (OSError, http.client.HTTPException):
                self._leave(at, None)  # The next attempt goes to another node.
                raise
            else:
                if answer.status != 503:
                    return answer
                self._leave(at, answer.refusal().active)
                if last:
                    return answer
        raise AssertionError("the last node answers or raises")

    def _leave(self, node: int, active: str | None) -> None:
        """Sends calls to the active node, if it is one of these, else to the next. A credential goes to no other URL."""
        urls = [known.url for known in self._nodes]
        known = None if active is None or active.rstrip("/") not in urls else urls.index(active.rstrip("/"))
        if self._at == node:
            self._at = (node + 1) % len(urls) if known is None or known == node else known

    def repeat(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        deadline: float,
        attempt_timeout: float,
    ) -> Answer:
        """A request that changes nothing, repeated until it gets an answer other than "busy" or "unavailable".

        ``deadline`` bounds all attempts, ``attempt_timeout`` each of them, in seconds.
        """
        end = time.monotonic() + deadline
        pause = PAUSE_FIRST
        while True:
            timeout = max(min(attempt_timeout, end - time.monotonic()), 0.1)
            try:
                answer = self.send(method, path, headers=headers, body=body, timeout=timeout)
                if answer.status not in (429, 503, 504):
                    return answer
                wait = max(pause, answer.retry_after())
                if time.monotonic() + wait > end:
                    return answer
            except (OSError, http.client.HTTPException) as error:
                wait = pause
                if time.monotonic() + wait > end:
                    raise Unreachable(f"{method} {path}: {error!r}") from error
            time.sleep(wait)
            pause = min(pause * 2, PAUSE_MAX)

    def close(self) -> None:
        """Closes the idle connections."""
        for node in self._nodes:
            node.close()
