"""Outcomes of calls that are no success: refused, or unknown."""

from typing import Any


class RonError(Exception):
    """Base of all errors of this package."""


class Refused(RonError):
    """The service refused the call, and nothing changed.

    ``retryable`` is true when the same request may succeed later; for a write, send it under the same key.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        details: Any = None,
        request_id: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(f"{code} ({status}): {detail}")
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable
        self.details = details
        self.request_id = request_id
        #: The idempotency key of the write; ``None`` for a read.
        self.key = key

    @property
    def expected(self) -> int | None:
        """After ``nonce_conflict``: the nonce that would be accepted, if the caller may read the account."""
        value = self.details.get("expected") if isinstance(self.details, dict) else None
        return value if isinstance(value, int) else None

    @property
    def active(self) -> str | None:
        """After ``not_active``: the URL of the node that does what a standby refused, if it is known."""
        value = self.details.get("active") if self.code == "not_active" and isinstance(self.details, dict) else None
        return value if isinstance(value, str) else None


class OutcomeUnknown(RonError):
    """The deadline passed before the service said whether the write happened.

    Never send the write under another key: it could happen twice. Send the same request with ``key`` again, now or
    after a restart of the program, or read ``Wallet.operation(key)``.
    """

    def __init__(self, key: str, cause: str) -> None:
        super().__init__(f"the outcome of {key} is not known yet ({cause}); send the same request with this key again")
        self.key = key
        self.cause = cause


class Unreachable(RonError):
    """A read got no answer before its deadline."""


class UnexpectedAnswer(RonError):
    """An answer that this version of the package cannot read."""


class VerificationError(RonError):
    """A proof, receipt or manifest that does not hold, or does not satisfy the policy."""
