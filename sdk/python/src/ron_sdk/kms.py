"""ron-kms: signatures, and the audit log that records them."""

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import Refused
from .service import Service, typed
from .verify.encoding import b64url

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
        """The bytes of an audit entry about the caller's own keys and calls."""
        raw = self._read("/v1/kms/audit/entries", {"after": index, "limit": 1}).json()
        entries = typed(lambda: [(entry["index"], entry["leaf"].encode()) for entry in raw["entries"]])
        for found, leaf in entries:
            if found == index:
                return bytes(leaf)
        raise Refused(404, "not_found", f"the audit log has no entry {index}, or it is not the caller's to read")


def _unb64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
