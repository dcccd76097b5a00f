"""svc-passport: tokens for the subjects that the issuer policy allows the caller."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .service import Service, typed


@dataclass(frozen=True)
class IssuedToken:
    """A token of a subject, to be handed to it."""

    token: str = field(repr=False)
    #: When it expires, in seconds since 1970.
    exp: int
    #: All restrictions on it: those asked for, and those of the policy.
    caveats: list[str]


class Passport(Service):
    """Calls of svc-passport. The credential needs the audience ``svc-passport`` and the scope ``passport:issue``."""

    def issue(
        self,
        subject: str,
        *,
        audience: str,
        scope: str | None = None,
        ttl_s: int | None = None,
        caveats: Sequence[str] = (),
    ) -> IssuedToken:
        """A token of ``subject``, an opaque reference without personal data, for the service ``audience``.

        Without ``scope`` it has all scopes that the policy allows the caller there. An attempt without an answer is
        repeated: a token that nobody got expires unused.
        """
        body: dict[str, Any] = {"subject_ref": subject, "audience": audience, "caveats": list(caveats)}
        if scope is not None:
            body["scope"] = scope
        if ttl_s is not None:
            body["ttl_s"] = ttl_s
        raw = self._ask("/v1/passport/issue", body)
        return typed(lambda: IssuedToken(token=str(raw["token"]), exp=int(raw["exp"]), caveats=list(raw["caveats"])))
