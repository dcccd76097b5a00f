"""Receipt files: the proof of one entry of a ledger, for anyone who knows the key of its log (docs/formats/receipt.md)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from ..errors import VerificationError
from .checkpoint import Checkpoint, Policy
from .encoding import Members, from_b64, json_object, utf8
from .leaf import Leaf, Reader
from .note import Note, VerifierKey
from .tlog import HASHES_MAX, check_inclusion

_FORMAT = "ron-receipt/v1"
_PARTS = {"caller": 1, "memo": 2, "metadata": 3, "reference": 4}
#: Budgets of the token that made an entry, and of those that it was exchanged from.
_BUDGETS_MAX = 17
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Shown:
    """The parts of the private record that a file shows; ``None`` for what it hides, and for what there is not."""

    tenant: str | None = None
    principal: str | None = None
    key: str | None = None
    nonce: int | None = None
    effective_at: str | None = None
    memo: str | None = None
    metadata: Mapping[str, str] | None = None
    reference: str | None = None


@dataclass(frozen=True)
class ProvenReceipt:
    """An entry that took effect, proven by a file."""

    txid: str
    op: str
    source: str | None
    to: str | None
    asset: str | None
    amount: int | None
    ts: str
    seq: int
    hold: str | None
    batch: str | None
    reverses: str | None
    receipt_hash: str
    shown: Shown
    checkpoint: Checkpoint


def verify_receipt(file: bytes, policy: Policy) -> ProvenReceipt:
    """Checks a receipt file under a policy that names the ledger's log; returns what it proves."""
    members = Members(json_object(file, "the receipt file"), "the receipt file")
    if members.text("format") != _FORMAT:
        raise VerificationError("not a receipt file of a format that this version of the package knows")
    vkey, note = members.text("vkey"), members.text("checkpoint")
    key = VerifierKey.parse(vkey)
    checkpoint = policy.check(note)
    if vkey != vkey.strip() or not policy.knows(key) or not Note.parse(note).signed_by(key):
        raise VerificationError("the key that the receipt file names is not trusted, or did not sign its checkpoint")
    leaf = Leaf.decode(from_b64(members.text("leaf"), "the leaf"))
    path = [_bytes(node, "a hash of the path", 32) for node in members.list("path")]
    if len(path) > HASHES_MAX:
        raise VerificationError("the path has too many hashes")
    check_inclusion(leaf.leaf_hash, leaf.seq, checkpoint.size, path, checkpoint.root)
    private = members.optional_object("private")
    members.end()
    return ProvenReceipt(
        txid=leaf.txid, op=leaf.op, source=leaf.source, to=leaf.to, asset=leaf.asset, amount=leaf.amount,
        ts=_rfc3339(leaf.ts), seq=leaf.seq, hold=leaf.hold, batch=leaf.batch, reverses=leaf.reverses,
        receipt_hash="sha256:" + leaf.leaf_hash.hex(),
        shown=Shown() if private is None else _shown(private, leaf.private_hash), checkpoint=checkpoint,
    )


def _shown(private: Members, expected: bytes) -> Shown:
    """The shown parts, if all parts together have the hash in the leaf."""
    hashed = hashlib.sha256(_bytes(private.text("salt"), "the salt", 16))
    shown: dict[str, bytes] = {}
    for name, tag in _PARTS.items():
        part = private.object(name) if name == "caller" else private.optional_object(name)
        if part is None:
            continue
        given = part.optional_text("hash")
        if given is not None:
            hashed.update(bytes([tag]) + _bytes(given, "the hash of a part", 32))
        else:
            salt = _bytes(part.text("salt"), "the salt of a part", 16)
            shown[name] = from_b64(part.text("bytes"), f"the part {name}")
            hashed.update(bytes([tag]) + hashlib.sha256(salt + shown[name]).digest())
        part.end()
    private.end()
    if hashed.digest() != expected:
        raise VerificationError("the private parts of the receipt file are not those of the entry")
    caller = _caller(shown["caller"]) if "caller" in shown else Shown()
    return replace(
        caller,
        memo=utf8(shown["memo"], "the memo") if "memo" in shown else None,
        metadata=_metadata(shown["metadata"]) if "metadata" in shown else None,
        reference=utf8(shown["reference"], "the reference") if "reference" in shown else None,
    )


def _caller(raw: bytes) -> Shown:
    read = Reader(raw, "the caller")
    present = read.varint()
    if present >= 1 << 9:
        raise VerificationError("the caller has fields that this version of the package does not know")
    tenant, principal = read.text(), read.text()
    key = read.text() if present & 1 else None
    nonce = read.varint() if present & 2 else None
    effective_at = _rfc3339(read.time()) if present & 4 else None
    if present & 8:
        read.varint()
        read.take(16)
    if present & 16:
        read.amount()
    for _ in range(min(read.varint(), _BUDGETS_MAX) if present & 64 else 0):
        read.take(16)
        for _ in range(2):
            if read.byte():
                read.amount()
        read.varint()
    if present & 128:
        read.amount()
    if present & 256:
        _terms(read)
    read.end()
    return Shown(tenant, principal, key, nonce, effective_at)


def _terms(read: Reader) -> None:
    """What was set for an account: closed, frozen sides, required nonces, class, limits; each is there or not."""
    for _ in range(3):
        if read.byte():
            read.byte()
    if read.byte():
        read.text()
    if read.byte():
        read.text()
        read.amount()
        if read.byte():
            read.amount()


def _metadata(raw: bytes) -> dict[str, str]:
    read = Reader(raw, "the metadata")
    pairs = [(read.text(), read.text()) for _ in range(min(read.varint(), len(raw)))]
    read.end()
    names = [name.encode() for name, _ in pairs]
    if names != sorted(set(names)):
        raise VerificationError("the metadata is not in the order of its names")
    return dict(pairs)


def _bytes(text: object, what: str, length: int) -> bytes:
    if not isinstance(text, str):
        raise VerificationError(f"{what} is not a text")
    raw = from_b64(text, what)
    if len(raw) != length:
        raise VerificationError(f"{what} has not {length} bytes")
    return raw


def _rfc3339(ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
