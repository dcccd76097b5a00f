"""What the clients of all services share: authorised reads, and writes that are repeated until their outcome is known."""

import http.client
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from .auth import Credential
from .errors import OutcomeUnknown, Refused, RonError, UnexpectedAnswer, Unreachable
from .http import NOT_SENT, PAUSE_FIRST, PAUSE_MAX, Answer, Http

T = TypeVar("T")


class Service:
    """A client of one service: an address, or those of its nodes, and a credential."""

    def __init__(
        self,
        http: Http | str | Sequence[str],
        credential: Credential | None = None,
        *,
        deadline: float = 30.0,
        attempt_timeout: float = 10.0,
    ) -> None:
        """``deadline`` bounds each call with all its attempts, ``attempt_timeout`` each attempt, in seconds."""
        self.http = http if isinstance(http, Http) else Http(http)
        self._credential = credential
        self._deadline = deadline
        self._attempt_timeout = attempt_timeout

    def close(self) -> None:
        """Closes the idle connections."""
        self.http.close()

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        headers = dict(more or {})
        if self._credential is not None:
            headers["Authorization"] = "Bearer " + self._credential.token()
        return headers

    def _read(
        self, path: str, query: Mapping[str, str | int | Sequence[str] | None] | None = None, *, wait: int = 0
    ) -> Answer:
        """A GET; returns its answer of success and raises Refused for any other one.

        A list is a parameter with several values. ``wait`` is the time in seconds that the service may wait, which comes
        on top of the deadline.
        """
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        return self._repeat("GET", path + ("?" + urlencode(asked, doseq=True) if asked else ""), None, wait)

    def _ask(self, path: str, body: Any) -> Any:
        """A POST that may be sent any number of times, such as a verification."""
        return self._repeat("POST", path, json.dumps(body).encode(), 0).json()

    def _repeat(self, method: str, path: str, body: bytes | None, wait: int) -> Answer:
        more = {} if body is None else {"Content-Type": "application/json"}
        if wait:
            more["Prefer"] = f"wait={wait}"

        def once() -> Answer:
            return self.http.repeat(
                method,
                path,
                headers=self._headers(more),
                body=body,
                deadline=self._deadline + wait,
                attempt_timeout=self._attempt_timeout + wait,
            )

        answer = once()
        if answer.status == 401 and self._credential is not None:
            self._credential.renew()
            answer = once()
        if answer.status not in (200, 202):
            raise answer.refusal()
        return answer

    def _write(
        self,
        method: str,
        path: str,
        body: Any,
        *,
        key: str,
        headers: Mapping[str, str] | None = None,
        repair: Callable[[Refused], Any] | None = None,
    ) -> Answer:
        """Sends the same bytes under the same key until the outcome is known or the deadline passes.

        Returns an answer of success. Raises Refused when nothing changed, and OutcomeUnknown otherwise. ``repair``
        may make another body for the same key after a refusal that left the key unused.
        """
        sent = json.dumps(body).encode()
        end = time.monotonic() + self._deadline
        #: Why an earlier attempt may have taken effect; empty when none can have.
        doubt = ""
        renewed = False
        pause = PAUSE_FIRST
        while True:
            wait = pause * random.uniform(0.8, 1.2)
            pause = min(pause * 2, PAUSE_MAX)
            refusal = None
            try:
                answer = self._attempt(method, path, sent, headers, end)
            except NOT_SENT as error:
                reason = repr(error)
            except (OSError, http.client.HTTPException) as error:
                reason = doubt = repr(error)
            except RonError as error:
                if doubt:
                    raise OutcomeUnknown(key, f"{doubt}; then no token: {error}") from error
                raise
            else:
                if answer.status == 200:
                    return answer
                refusal = answer.refusal(key)
                reason = f"{refusal.code} ({refusal.status})"
                wait = max(wait, answer.retry_after())
                if refusal.status in (500, 502, 504) or refusal.code == "in_flight":
                    doubt = reason
                elif refusal.code == "idempotency_mismatch":
                    raise refusal
                elif repair is not None and (repaired := repair(refusal)) is not None:
                    sent = json.dumps(repaired).encode()
                elif refusal.status == 401 and self._credential is not None and not renewed:
                    self._credential.renew()
                    renewed, wait = True, 0.0
                elif not refusal.retryable:
                    if not doubt:
                        raise refusal
                    self._confirm(key, doubt, refusal)
            if time.monotonic() + wait > end:
                if doubt:
                    raise OutcomeUnknown(key, doubt)
                raise refusal or Unreachable(f"{method} {path}: {reason}; nothing was sent")
            time.sleep(wait)

    def _attempt(self, method: str, path: str, body: bytes, headers: Mapping[str, str] | None, end: float) -> Answer:
        authorised = self._headers({"Content-Type": "application/json", **(headers or {})})
        timeout = max(min(self._attempt_timeout, end - time.monotonic()), 0.1)
        return self.http.send(method, path, headers=authorised, body=body, timeout=timeout)

    def _confirm(self, key: str, doubt: str, refusal: Refused) -> None:
        """Called for a final refusal after an attempt that may have taken effect.

        The refusal speaks of its own attempt, so the outcome stays unknown unless a service can tell it by the key:
        returns when the same request shall be sent again.
        """
        raise OutcomeUnknown(key, f"{doubt}; then {refusal.code} ({refusal.status})")


def segment(text: str) -> str:
    """One segment of a path."""
    return quote(text, safe="")


def typed(read: Callable[[], T], fault: str = "an answer without what was expected") -> T:
    """The typed form of an answer; ``fault`` is what an answer of another form is called."""
    try:
        return read()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(f"{fault}: {error!r}") from error
