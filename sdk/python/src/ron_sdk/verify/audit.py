"""Entries of the audit log of ron-kms."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import VerificationError
from .checkpoint import Checkpoint, Policy
from .encoding import Members, canonical_object
from .tlog import TlogProof

#: The newest format, and the first in which an entry may have a request id.
_VERSION = 2
_REQUEST_ID_SINCE = 2


@dataclass(frozen=True)
class AuditEntry:
    """An operation of the key service, done or refused, and the checkpoint that proves it."""

    index: int
    checkpoint: Checkpoint
    op: str
    #: ``ok``, or the code of the refusal.
    result: str
    actor: str
    tenant: str
    #: Unix milliseconds.
    ts: int
    key: str | None
    version: int | None
    alg: str | None
    purpose: str | None
    context: str | None
    op_id: str | None
    input_sha256: str | None
    output_sha256: str | None
    key_op_counter: int | None
    prev_store_version: int
    #: The id of the request, as the client sent it in ``X-Request-Id`` or the service made it.
    request_id: str | None

    def records_signature(self, message: bytes, signatures: Sequence[bytes]) -> bool:
        """Whether the entry is that of these signatures over this message (of a key that signs messages as they are)."""
        return (
            self.op == "sign"
            and self.result == "ok"
            and self.input_sha256 == hashlib.sha256(message).hexdigest()
            and self.output_sha256 == hashlib.sha256(b"".join(signatures)).hexdigest()
        )


def verify_audit(entry: bytes, proof: str, policy: Policy) -> AuditEntry:
    """Checks an audit entry, byte for byte, with its proof; returns what it says."""
    parsed = TlogProof.parse(proof)
    checkpoint = parsed.check(entry, policy)
    leaf = Members(canonical_object(entry, "the audit entry"), "the audit entry")
    version = leaf.whole("v")
    if not 1 <= version <= _VERSION:
        raise VerificationError("the audit entry has a format that this version of the package does not know")
    found = AuditEntry(
        index=parsed.index,
        checkpoint=checkpoint,
        op=leaf.text("op"),
        result=leaf.text("result"),
        actor=leaf.text("actor"),
        tenant=leaf.text("tenant"),
        ts=leaf.whole("ts"),
        key=leaf.optional_text("key"),
        version=leaf.optional_whole("version"),
        alg=leaf.optional_text("alg"),
        purpose=leaf.optional_text("purpose"),
        context=leaf.optional_text("context"),
        op_id=leaf.optional_text("op_id"),
        input_sha256=leaf.optional_text("input_sha256"),
        output_sha256=leaf.optional_text("output_sha256"),
        key_op_counter=leaf.optional_whole("key_op_counter"),
        prev_store_version=leaf.whole("prev_store_version"),
        request_id=leaf.optional_text("request_id") if version >= _REQUEST_ID_SINCE else None,
    )
    leaf.end()
    return found
