"""ron-kms: signatures, and the audit log that records them."""

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import Refused, UnexpectedAnswer
from .service import Service, typed
from .verify.checkpoint import Checkpoint
from .verify.encoding import b64url

#: Entries of a full bundle of the log.
_BUNDLE = 256


@dataclass(frozen=True)
class LogReceipt:
    """Where the audit log has the entry of an operation."""

    #: The log's origin line.
    log: str
    index: int


@dataclass(frozen=True)
class Signature:
    alg: str
    signature: bytes

    def body(self) -> dict[str, str]:
        return {"alg": self.alg, "signature": b64url(self.signature)}


@dataclass(frozen=True)
class Signed:
    """A signature, whose audit entry was durable before the answer was sent."""

    #: The operation id it was requested with.
    op_id: str
    key: str
    version: int
    #: One signature; two of a hybrid key.
    signatures: list[Signature]
    receipt: LogReceipt
    #: The proof of the audit entry (c2sp.org/tlog-proof@v1), when the call waited for it.
    proof: str | None


class Kms(Service):
    """Calls of ron-kms."""

    def sign(
        self, kms_key: str, message: bytes, *, context: str | None = None, op_id: str | None = None, wait: int = 0
    ) -> Signed:
        """Signs a message of at most 64 KiB.

        Repeated under the same operation id until the outcome is known, as writes of the wallet are. With ``wait`` the
        service waits up to so many seconds for a checkpoint and returns the proof of the audit entry.
        """
        op_id = str(uuid.uuid4()) if op_id is None else op_id
        body = {"key": kms_key, "message": b64url(message), "op_id": op_id}
        if context is not None:
            body["context"] = context
        headers = {"Prefer": f"wait={wait}"} if wait else {}
        raw = self._write("POST", "/v1/kms/sign", body, key=op_id, headers=headers).json()
        return typed(lambda: Signed(
            op_id=op_id, key=raw["key"], version=raw["version"],
            signatures=[Signature(s["alg"], _unb64url(s["signature"])) for s in raw["signatures"]],
            receipt=LogReceipt(raw["receipt"]["log"], raw["receipt"]["index"]), proof=raw.get("proof"),
        ))

    def verify(
        self, kms_key: str, message: bytes, signatures: Sequence[Signature], *, version: int | None = None
    ) -> bool:
        """Whether the service accepts the signatures. A wrong signature is an answer, not an error."""
        body: dict[str, Any] = {
            "key": kms_key, "message": b64url(message), "signatures": [s.body() for s in signatures],
        }
        if version is not None:
            body["version"] = version
        answer = self._ask("/v1/kms/verify", body)
        return typed(lambda: bool(answer["ok"]))

    def audit_vkey(self) -> str:
        """The verifier key line of the audit log, as the service says it. Pin it; do not ask for it each time."""
        return self._read("/audit/v1/vkey").body.decode().strip()

    def audit_checkpoint(self) -> str:
        """The newest checkpoint, a signed note."""
        return self._read("/audit/v1/checkpoint").body.decode()

    def audit_proof(self, index: int) -> str:
        """The proof of an audit entry (c2sp.org/tlog-proof@v1). Refused while no checkpoint covers the entry."""
        return self._read(f"/audit/v1/proof/{index}").body.decode()

    def audit_entry(self, index: int) -> bytes:
        """The bytes of an audit entry, from the log's entry bundles; a checkpoint must cover it."""
        size = Checkpoint.read_unverified(self.audit_checkpoint()).size
        bundle, at = divmod(index, _BUNDLE)
        width = min(size - bundle * _BUNDLE, _BUNDLE)
        if at >= width:
            raise Refused(404, "not_covered", f"the newest checkpoint covers {size} entries, not entry {index}")
        suffix = "" if width == _BUNDLE else f".p/{width}"
        content = self._read(f"/audit/v1/tile/entries/{_tile_index(bundle)}{suffix}").body
        for _ in range(at):
            content = content[2 + int.from_bytes(content[:2], "big"):]
        length = int.from_bytes(content[:2], "big")
        if len(content) < 2 + length or not length:
            raise UnexpectedAnswer("an entry bundle that ends early")
        return content[2:2 + length]


def _tile_index(n: int) -> str:
    """``1234067`` as ``x001/x234/067`` (C2SP tlog-tiles)."""
    digits = str(n)
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[i:i + 3] for i in range(0, len(digits), 3)]
    return "/".join(["x" + group for group in groups[:-1]] + groups[-1:])


def _unb64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
