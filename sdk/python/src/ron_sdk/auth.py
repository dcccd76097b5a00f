"""Credentials: tokens of the issuer for an OAuth client, or a fixed token."""

import base64
import json
import os
import stat
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

from .errors import RonError, UnexpectedAnswer
from .http import Http

#: A token is replaced when it has less than this many seconds left.
RENEW_BEFORE_S = 30.0


class Credential(Protocol):
    """Anything that has a bearer token for the next request."""

    def token(self) -> str: ...

    def renew(self) -> None:
        """Called after a service refused the token: the next one must be fresh."""


class StaticToken:
    """A token that the program got elsewhere, for instance a passport of an end user, or a service token."""

    def __init__(self, token: str) -> None:
        self._token = token

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "StaticToken":
        return cls(_private_text(Path(path)).strip())

    def token(self) -> str:
        return self._token

    def renew(self) -> None:
        pass

    def __repr__(self) -> str:
        return "StaticToken(...)"


class ClientCredentials:
    """Tokens for an OAuth client that authenticates with its secret (client_credentials), renewed before they expire.

    ``issuer`` is the address of svc-passport, or those of its nodes, as for :class:`ron_sdk.http.Http`. The issuer accepts secrets on its Unix
    socket and over TLS only.
    """

    def __init__(
        self,
        issuer: Http | str | Sequence[str],
        client_id: str,
        client_secret: str,
        *,
        audience: str,
        scope: str | None = None,
        ttl_s: int | None = None,
        caveats: Sequence[str] = (),
        deadline: float = 10.0,
    ) -> None:
        self._http = issuer if isinstance(issuer, Http) else Http(issuer)
        pair = f"{client_id}:{client_secret}".encode()
        self._headers = {
            "Authorization": "Basic " + base64.b64encode(pair).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        form = [("grant_type", "client_credentials"), ("audience", audience)]
        form += [("scope", scope)] if scope is not None else []
        form += [("ttl_s", str(ttl_s))] if ttl_s is not None else []
        form += [("caveat", caveat) for caveat in caveats]
        self._form = urlencode(form).encode()
        self._deadline = deadline
        self._lock = threading.Lock()
        self._token = ""
        self._good_until = 0.0

    @classmethod
    def from_file(
        cls,
        issuer: Http | str | Sequence[str],
        path: str | os.PathLike[str],
        *,
        audience: str,
        scope: str | None = None,
        ttl_s: int | None = None,
        caveats: Sequence[str] = (),
    ) -> "ClientCredentials":
        """Reads ``client_id`` and ``client_secret`` from a file as ``ron init`` and ``ron client secret`` write it."""
        file = json.loads(_private_text(Path(path)))
        return cls(
            issuer,
            file["client_id"],
            file["client_secret"],
            audience=audience,
            scope=scope,
            ttl_s=ttl_s,
            caveats=caveats,
        )

    def token(self) -> str:
        # Under the lock, so that threads that need a token at the same time get the same one.
        with self._lock:
            if time.monotonic() >= self._good_until:
                self._fetch()
            return self._token

    def renew(self) -> None:
        with self._lock:
            self._good_until = 0.0

    def _fetch(self) -> None:
        answer = self._http.repeat(
            "POST",
            "/oauth2/token",
            headers=self._headers,
            body=self._form,
            deadline=self._deadline,
            attempt_timeout=self._deadline / 2,
        )
        if answer.status != 200:
            raise answer.refusal()
        granted = answer.json()
        try:
            self._token = str(granted["access_token"])
            lifetime = float(granted["expires_in"])
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(f"not the answer of a token endpoint: {error!r}") from error
        # A token that lives for less than twice the margin is used for half of its life.
        self._good_until = time.monotonic() + max(lifetime - RENEW_BEFORE_S, lifetime / 2)

    def __repr__(self) -> str:
        return "ClientCredentials(...)"


def _private_text(path: Path) -> str:
    """The content of a file with a secret, which other users may not be able to read."""
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RonError(f"{path} can be read by others; run: chmod 600 {path}")
    return path.read_text(encoding="utf-8")
