"""Leaves of the ledger's log: the public facts of an entry, in binary (docs/formats/receipt.md)."""

from dataclasses import dataclass

from ..errors import VerificationError
from .encoding import utf8
from .tlog import leaf_hash

_VERSION = 1
#: The last millisecond of the year 9999.
_TIME_MAX = 253_402_300_799_999
_KINDS = {
    1: "issue", 2: "transfer", 3: "burn", 4: "hold", 5: "capture", 6: "release", 7: "expire", 8: "freeze",
    9: "unfreeze", 10: "epoch_open", 11: "payout", 12: "epoch_close", 14: "reverse",
    15: "account", 16: "asset", 17: "epoch_void",
}


class Reader:
    """Reads binary values of which only the shortest form counts."""

    def __init__(self, raw: bytes, what: str) -> None:
        self._left = raw
        self._what = what

    def take(self, count: int) -> bytes:
        taken, self._left = self._left[:count], self._left[count:]
        if len(taken) != count:
            raise VerificationError(f"{self._what} ends early")
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value, shift, byte = 0, 0, 0x80
        while byte >= 0x80 and shift < 70:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
        if byte >= 0x80 or value >= 2**64 or (shift > 7 and byte == 0):
            raise VerificationError(f"{self._what} has a number that is not in its shortest form")
        return value

    def time(self) -> int:
        value = self.varint()
        if value > _TIME_MAX:
            raise VerificationError(f"{self._what} has a time after the year 9999")
        return value

    def text(self) -> str:
        return utf8(self.take(self.varint()), self._what)

    def amount(self) -> int:
        length = self.byte()
        raw = self.take(length)
        if length > 16 or raw[:1] == b"\0":
            raise VerificationError(f"{self._what} has an amount that is not in its shortest form")
        return int.from_bytes(raw, "big")

    def txid(self) -> str:
        return "tx_" + self.take(16).hex()

    def rest(self) -> bytes:
        return self.take(len(self._left))

    def end(self) -> None:
        if self._left:
            raise VerificationError(f"{self._what} is longer than its fields")


@dataclass(frozen=True)
class Leaf:
    """The public facts of an entry that took effect."""

    op: str
    seq: int
    #: Unix milliseconds.
    ts: int
    source: str | None
    to: str | None
    asset: str | None
    amount: int | None
    hold: str | None
    batch: str | None
    reverses: str | None
    private_hash: bytes
    #: The hash of the leaf in the log's tree (RFC 6962).
    leaf_hash: bytes

    @property
    def txid(self) -> str:
        return f"tx_{self.seq:016x}{self.private_hash[:8].hex()}"

    @classmethod
    def decode(cls, raw: bytes) -> "Leaf":
        read = Reader(raw, "the leaf")
        if read.byte() != _VERSION:
            raise VerificationError("the leaf has a format that this version of the package does not know")
        op = _KINDS.get(read.byte())
        if op is None:
            raise VerificationError("the leaf is of a kind that this version of the package does not know")
        seq, ts, linked = read.varint(), read.time(), read.byte()
        if linked > 1:
            raise VerificationError("the leaf has a link that is neither 0 nor 1")
        for _ in range(2 * linked):
            read.varint()
        if read.byte():
            raise VerificationError("the entry was refused: there is no receipt")
        present = read.varint()
        if present >= 1 << 7:
            raise VerificationError("the leaf has facts that this version of the package does not know")
        source, to, asset = (read.text() if present & bit else None for bit in (1, 2, 4))
        amount = read.amount() if present & 8 else None
        hold, batch, reverses = (read.txid() if present & bit else None for bit in (16, 32, 64))
        # What else its kind has, then the hash.
        rest = read.rest()
        if len(rest) < 32:
            raise VerificationError("the leaf ends early")
        return cls(
            op, seq, ts, source, to, asset, amount, hold, batch, reverses, private_hash=rest[-32:],
            leaf_hash=leaf_hash(raw),
        )
