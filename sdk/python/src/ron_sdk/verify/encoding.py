"""Encodings that have exactly one form for each value, so that an altered byte never reads as the same value."""

import base64
import json
import re
from typing import Any

from ..errors import VerificationError

_DECIMAL = re.compile("0|[1-9][0-9]*", re.ASCII)
#: Amounts and indices have at most 39 digits, so that nobody makes the verifier convert megabytes of them.
_DIGITS_MAX = 39


def b64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_b64(text: str, what: str) -> bytes:
    """Decodes base64 with padding; refuses the forms that an encoder does not write."""
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise VerificationError(f"{what} is not base64") from error
    if base64.b64encode(raw).decode() != text:
        raise VerificationError(f"{what} is not in the canonical form of base64")
    return raw


def from_b64url(text: str, what: str) -> bytes:
    """Decodes base64url without padding; refuses the forms that an encoder does not write."""
    raw = from_b64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), what)
    if b64url(raw) != text:
        raise VerificationError(f"{what} is not in the canonical form of base64url")
    return raw


def decimal(text: str, what: str, *, below: int = 2**64) -> int:
    """A number without sign or leading zeros."""
    if len(text) > _DIGITS_MAX or not _DECIMAL.fullmatch(text) or int(text) >= below:
        raise VerificationError(f"{what} is not a plain number below {below}")
    return int(text)


def utf8(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VerificationError(f"{what} is not UTF-8") from error


def canonical(value: Any) -> bytes:
    """RFC 8785 for objects with ASCII names, texts, whole numbers, true, false and null."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def canonical_object(raw: bytes, what: str) -> dict[str, Any]:
    """Parses an object that must be in canonical form (RFC 8785), byte for byte."""
    value = json_object(raw, what)
    if canonical(value) != raw:
        raise VerificationError(f"{what} is not canonical JSON")
    return value


def json_object(raw: bytes, what: str) -> dict[str, Any]:
    """Parses an object without repeated names, and without fractions."""

    def members(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) != len(found):
            raise VerificationError(f"{what} has a member twice")
        return dict(found)

    def no_fraction(text: str) -> Any:
        raise VerificationError(f"{what} has a number that is not whole: {text[:20]}")

    try:
        value = json.loads(
            utf8(raw, what), object_pairs_hook=members, parse_float=no_fraction, parse_constant=no_fraction
        )
        canonical(value)  # Half a surrogate pair cannot be encoded.
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise VerificationError(f"{what} is not a JSON object")
    return value


class Members:
    """The members of an object, each read once with its type; none may be left over."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise VerificationError(f"{what} is not an object")
        self._left = dict(value)
        self._what = what

    def text(self, name: str) -> str:
        return self._take(name, str)  # type: ignore[no-any-return]

    def optional_text(self, name: str) -> str | None:
        return None if self._absent(name) else self.text(name)

    def whole(self, name: str) -> int:
        value = self._take(name, int)
        if isinstance(value, bool) or not 0 <= value < 2**53:
            raise VerificationError(f"{self._what}: {name} is not a whole number below 2^53")
        return int(value)

    def optional_whole(self, name: str) -> int | None:
        return None if self._absent(name) else self.whole(name)

    def amount(self, name: str) -> int:
        return decimal(self.text(name), f"{self._what}: {name}", below=2**128)

    def optional_list(self, name: str) -> list[Any] | None:
        return None if self._absent(name) else self.list(name)

    def list(self, name: str) -> list[Any]:
        return self._take(name, list)  # type: ignore[no-any-return]

    def object(self, name: str) -> "Members":
        return Members(self._take(name, dict), f"{self._what}: {name}")

    def raw_object(self, name: str) -> dict[str, Any]:
        return self._take(name, dict)  # type: ignore[no-any-return]

    def optional_object(self, name: str) -> "Members | None":
        return None if self._absent(name) else self.object(name)

    def end(self) -> None:
        if self._left:
            raise VerificationError(f"{self._what} has an unknown member {min(self._left)!r}")

    def _absent(self, name: str) -> bool:
        """Whether a member is missing or null."""
        return self._left.get(name) is None and self._left.pop(name, None) is None

    def _take(self, name: str, kind: type) -> Any:
        value = self._left.pop(name, None)
        if not isinstance(value, kind):
            raise VerificationError(f"{self._what} has no {name}, or one of another type")
        return value
