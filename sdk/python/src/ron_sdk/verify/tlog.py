"""Inclusion of an entry in a log: Merkle trees of RFC 6962 and the text format c2sp.org/tlog-proof@v1."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import VerificationError
from .checkpoint import Checkpoint, Policy
from .encoding import decimal, from_b64

HEADER = "c2sp.org/tlog-proof@v1"
#: Levels of a tree whose size has 64 bits.
HASHES_MAX = 64


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\0" + entry).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def check_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """RFC 9162, 2.1.3.2: the leaf hash is that of the entry at ``index`` of the tree of this size and root."""
    if index >= size:
        raise VerificationError(f"the tree has {size} entries, and the proof is about entry {index}")
    node, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            raise VerificationError("the proof has too many hashes")
        if node & 1 or node == last:
            found = _node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = _node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise VerificationError("the proof has too few hashes")
    if found != root:
        raise VerificationError("the proof does not lead to the root of the checkpoint")


@dataclass(frozen=True)
class TlogProof:
    """A proof that can be checked with the entry, a policy and this text alone."""

    index: int
    path: tuple[bytes, ...]
    #: The signed checkpoint, as it is.
    checkpoint: str

    @classmethod
    def parse(cls, text: str) -> "TlogProof":
        head, blank, checkpoint = text.partition("\n\n")
        lines = head.split("\n")
        if not blank or lines.pop(0) != HEADER:
            raise VerificationError(f"not a proof: the first line is not {HEADER}, or there is no blank line")
        if lines and lines[0].startswith("extra "):
            # Not authenticated by anything, so it is not handed on.
            from_b64(lines.pop(0).removeprefix("extra "), "the extra data of the proof")
        if not lines or not lines[0].startswith("index "):
            raise VerificationError("not a proof: there is no index line")
        index = decimal(lines.pop(0).removeprefix("index "), "the index of the proof")
        path = tuple(from_b64(line, "a hash of the proof") for line in lines)
        if len(path) > HASHES_MAX or any(len(node) != 32 for node in path):
            raise VerificationError("not a proof: too many hashes, or one that has not 32 bytes")
        return cls(index, path, checkpoint)

    def check(self, entry: bytes, policy: Policy) -> Checkpoint:
        """Checks that ``entry`` is in a log that the policy accepts; returns the checkpoint that covers it."""
        checkpoint = policy.check(self.checkpoint)
        check_inclusion(leaf_hash(entry), self.index, checkpoint.size, self.path, checkpoint.root)
        return checkpoint
