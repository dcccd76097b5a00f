"""C2SP signed notes: verifier keys, signature lines, and witnesses' cosignatures (all Ed25519)."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from ..errors import VerificationError
from .encoding import from_b64

NOTE_CHARS_MAX = 256 * 1024
SIGNATURES_MAX = 64

_LOG = 0x01
_WITNESS = 0x04
_TIME_MAX = 2**63 - 1


def ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature holds."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class VerifierKey:
    """A line ``name+key id+key``: of a log (type 0x01), or of a witness (type 0x04)."""

    name: str
    key_id: bytes
    public: bytes
    witness: bool

    @classmethod
    def parse(cls, line: str) -> "VerifierKey":
        name, _, rest = line.strip().partition("+")
        key_id, _, encoded = rest.partition("+")
        if not _valid_name(name):
            raise VerificationError(f"not a verifier key line (name+key id+key): {line[:80]!r}")
        raw = from_b64(encoded, "the key of a verifier key line")
        if hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4].hex() != key_id:
            raise VerificationError(f"the key id of {name} does not belong to its name and key")
        if len(raw) != 33 or raw[0] not in (_LOG, _WITNESS):
            raise VerificationError(f"the key of {name} is not an Ed25519 key of a log (0x01) or a witness (0x04)")
        return cls(name, bytes.fromhex(key_id), raw[1:], raw[0] == _WITNESS)


@dataclass(frozen=True)
class Signature:
    name: str
    key_id: bytes
    value: bytes


@dataclass(frozen=True)
class Note:
    """A text and its signature lines, not verified."""

    text: str
    signatures: tuple[Signature, ...]

    @classmethod
    def parse(cls, note: str) -> "Note":
        if len(note) > NOTE_CHARS_MAX or any(c < " " and c != "\n" or "\ud800" <= c <= "\udfff" for c in note):
            raise VerificationError("not a signed note: too long, or with characters that no note has")
        # The last blank line: the text may contain others.
        text, blank, lines = note.rpartition("\n\n")
        if not blank or not lines.endswith("\n"):
            raise VerificationError("not a signed note: no blank line before the signatures, or no newline at the end")
        rows = lines[:-1].split("\n")
        if len(rows) > SIGNATURES_MAX:
            raise VerificationError("not a signed note: too many signatures")
        return cls(text + "\n", tuple(_signature(row) for row in rows))

    def signed_by(self, key: VerifierKey) -> bool:
        """Whether a key has signed the note.

        A wrong signature of a log's key is an error, even beside a right one: the note was altered.
        """
        found = False
        for signature in self.signatures:
            if (signature.name, signature.key_id) != (key.name, key.key_id):
                continue
            if key.witness:
                found = found or _cosigned(key, self.text, signature.value)
            elif ed25519(key.public, self.text.encode(), signature.value):
                found = True
            else:
                raise VerificationError(f"the signature of {key.name} is wrong")
        return found

    def signers(self, keys: Sequence[VerifierKey]) -> list[VerifierKey]:
        return [key for key in keys if self.signed_by(key)]


def _cosigned(key: VerifierKey, text: str, value: bytes) -> bool:
    time = int.from_bytes(value[:8], "big")
    message = f"cosignature/v1\ntime {time}\n{text}".encode()
    return len(value) == 72 and 0 < time <= _TIME_MAX and ed25519(key.public, message, value[8:])


def _valid_name(name: str) -> bool:
    return bool(name) and not any(c.isspace() or c == "+" or not c.isprintable() for c in name)


def _signature(line: str) -> Signature:
    dash, _, rest = line.partition(" ")
    name, _, value = rest.partition(" ")
    if dash != "\u2014" or not _valid_name(name):
        raise VerificationError("not a signed note: a signature line of another form")
    raw = from_b64(value, "a signature")
    if len(raw) < 5:
        raise VerificationError("not a signed note: a signature is too short")
    return Signature(name, raw[:4], raw[4:])
