"""HTTP/1.1 over TCP, TLS and Unix sockets with the standard library."""

import http.client
import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .errors import Refused, UnexpectedAnswer, Unreachable

#: Largest answer that is read, in bytes.
ANSWER_BYTES_MAX = 16 * 1024 * 1024
#: Connections that are kept open between calls.
KEPT_MAX = 16
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


class Http:
    """Calls to one service, from any number of threads.

    ``url`` is ``unix:/path/to/api.sock``, ``http://host:port`` or ``https://host:port``. ``tls`` holds the authorities
    (and a client certificate) for https; by default those of the system. ``peer_uids`` are the users that may serve a
    Unix socket; by default the user of this program. (Checked on Linux.)
    """

    def __init__(
        self, url: str, *, tls: ssl.SSLContext | None = None, peer_uids: Collection[int] | None = None
    ) -> None:
        own = {os.getuid()} if hasattr(os, "getuid") else set()
        self._peer_uids = frozenset(own if peer_uids is None else peer_uids)
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
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None, timeout: float
    ) -> Answer:
        """One request, sent once; raises OSError or http.client.HTTPException when no whole answer came.

        ``timeout`` bounds each wait for the network, in seconds.
        """
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

    def repeat(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        deadline: float,
    ) -> Answer:
        """A request that changes nothing, repeated until it gets an answer other than "busy" or "unavailable"."""
        end = time.monotonic() + deadline
        pause = PAUSE_FIRST
        while True:
            left = max(end - time.monotonic(), 0.1)
            try:
                answer = self.send(method, path, headers=headers, body=body, timeout=left)
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
