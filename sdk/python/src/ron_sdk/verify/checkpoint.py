"""Checkpoints of logs (C2SP tlog-checkpoint), and what a reader demands of them (C2SP tlog-policy)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import VerificationError
from .encoding import decimal, from_b64
from .note import Note, VerifierKey

_POLICY_CHARS_MAX = 256 * 1024


@dataclass(frozen=True)
class Checkpoint:
    """A log's commitment to all of its entries below ``size``."""

    origin: str
    size: int
    root: bytes
    #: Names, within the policy, of the witnesses that cosigned it.
    cosigned_by: tuple[str, ...] = ()

    @classmethod
    def read_unverified(cls, note: str) -> "Checkpoint":
        """Reads a checkpoint without checking any signature."""
        lines = Note.parse(note).text[:-1].split("\n")
        if len(lines) < 3 or not all(lines):
            raise VerificationError("not a checkpoint: fewer than three lines, or an empty line")
        root = from_b64(lines[2], "the root of the checkpoint")
        if len(root) != 32:
            raise VerificationError("not a checkpoint: the root has not 32 bytes")
        return cls(lines[0], decimal(lines[1], "the size of the checkpoint"), root)


@dataclass(frozen=True)
class _Group:
    needed: int
    members: tuple[str, ...]


class Policy:
    """The logs whose checkpoints count, and the witnesses that must have cosigned them.

    Fails closed: without a known log, or without the demanded cosignatures, nothing verifies.
    """

    def __init__(self, *log_vkeys: str) -> None:
        """Accepts checkpoints of these logs (verifier key lines) and demands no cosignature."""
        self._logs: list[VerifierKey] = []
        self._witnesses: dict[str, VerifierKey] = {}
        self._groups: dict[str, _Group] = {}
        self._quorum: str | None = None
        for line in log_vkeys:
            self._add_log(line)

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Reads a policy file with the lines ``log``, ``witness``, ``group`` and ``quorum``."""
        policy = cls()
        quorum: str | None = None
        if len(text) > _POLICY_CHARS_MAX:
            raise VerificationError("the policy is too long")
        for number, line in enumerate(text.split("\n"), 1):
            words = line.replace("\t", " ").split()
            if not words or words[0].startswith("#"):
                continue
            try:
                match words:
                    case ["log", vkey] | ["log", vkey, _]:
                        policy._add_log(vkey)
                    case ["witness", name, vkey] | ["witness", name, vkey, _]:
                        policy._add_witness(name, vkey)
                    case ["group", name, needed, *members]:
                        policy._add_group(name, needed, members)
                    case ["quorum", name] if quorum is None:
                        quorum = name
                    case _:
                        raise VerificationError("not a line of a policy, or a second quorum")
            except VerificationError as error:
                raise VerificationError(f"line {number} of the policy: {error}") from error
        if quorum is None:
            raise VerificationError("the policy has no quorum line")
        if quorum != "none":
            policy._defined(quorum)
            policy._quorum = quorum
        return policy

    def check(self, note: str) -> Checkpoint:
        """The checkpoint of a signed note, if this policy accepts it."""
        checkpoint = Checkpoint.read_unverified(note)
        parsed = Note.parse(note)
        signed = parsed.signers(self._logs)
        if not any(key.name == checkpoint.origin for key in signed):
            raise VerificationError(f"no known key of the log {checkpoint.origin!r} signed the checkpoint")
        cosigned = {name for name, key in self._witnesses.items() if parsed.signed_by(key)}
        if self._quorum is not None and not self._holds(self._quorum, cosigned):
            missing = sorted(set(self._witnesses) - cosigned)
            raise VerificationError(f"too few witnesses have cosigned the checkpoint; without one of: {missing}")
        return Checkpoint(checkpoint.origin, checkpoint.size, checkpoint.root, tuple(sorted(cosigned)))

    def knows(self, key: VerifierKey) -> bool:
        """Whether this is the key of a log of the policy."""
        return key in self._logs

    def _add_log(self, line: str) -> None:
        key = VerifierKey.parse(line)
        if key.witness:
            raise VerificationError(f"the key of {key.name} is that of a witness, not of a log")
        if any(known.public == key.public for known in self._logs):
            raise VerificationError(f"the key of {key.name} is there twice")
        self._logs.append(key)

    def _add_witness(self, name: str, line: str) -> None:
        key = VerifierKey.parse(line)
        if not key.witness:
            raise VerificationError(f"the key of {key.name} is that of a log, not of a witness")
        # One witness must not count as two.
        if any(known.public == key.public for known in self._witnesses.values()):
            raise VerificationError(f"the key of {key.name} is there twice")
        self._undefined(name)
        self._witnesses[name] = key

    def _add_group(self, name: str, needed: str, members: Sequence[str]) -> None:
        self._undefined(name)
        for member in members:
            self._defined(member)
        if not members or len(set(members)) != len(members):
            raise VerificationError(f"the group {name} has no member, or one twice")
        count = {"all": len(members), "any": 1}.get(needed)
        count = decimal(needed, "the number of members") if count is None else count
        if not 1 <= count <= len(members):
            raise VerificationError(f"the group {name} demands {count} of {len(members)} members")
        self._groups[name] = _Group(count, tuple(members))

    def _undefined(self, name: str) -> None:
        if name == "none" or name in self._witnesses or name in self._groups:
            raise VerificationError(f"the name {name} is taken")

    def _defined(self, name: str) -> None:
        if name not in self._witnesses and name not in self._groups:
            raise VerificationError(f"no witness or group {name} stands above")

    def _holds(self, name: str, cosigned: set[str]) -> bool:
        """Groups have only members that stand above them, so the recursion ends."""
        group = self._groups.get(name)
        if group is None:
            return name in cosigned
        return sum(self._holds(member, cosigned) for member in group.members) >= group.needed
