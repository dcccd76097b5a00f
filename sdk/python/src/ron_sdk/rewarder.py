"""svc-rewarder: what an epoch paid, and the proofs of it."""

from dataclasses import dataclass
from typing import Any

from .service import Service, segment, typed


@dataclass(frozen=True)
class Epoch:
    epoch_id: str
    state: str
    dry_run: bool
    #: Present once it is computed.
    commitment: str | None
    #: Why the run is held, quarantined or failed.
    reason: str | None


class Rewarder(Service):
    """Reads of svc-rewarder. The answers of ``manifest`` and ``proof`` are the bytes that offline verification takes."""

    def epoch(self, epoch_id: str) -> Epoch:
        raw = self._read(f"/rewarder/epochs/{segment(epoch_id)}").json()
        return typed(lambda: Epoch(
            epoch_id=raw["epoch_id"], state=raw["state"], dry_run=raw["dry_run"], commitment=raw.get("commitment"),
            reason=raw["reason"]["detail"] if raw.get("reason") else None,
        ))

    def manifest(self, epoch_id: str) -> bytes:
        """The manifest, byte for byte as it is signed."""
        return self._read(f"/rewarder/epochs/{segment(epoch_id)}/manifest").body

    def proof(self, epoch_id: str, account: str) -> bytes:
        """The proof of an account's payout and of the epoch's total, up to the signed manifest."""
        return self._read(f"/rewarder/epochs/{segment(epoch_id)}/proof/{segment(account)}").body

    def claims(self, epoch_id: str) -> dict[str, Any]:
        """The claim tree of an epoch with claims, in the form of OpenZeppelin's ``StandardMerkleTree``."""
        raw: dict[str, Any] = self._read(f"/rewarder/epochs/{segment(epoch_id)}/claims").json()
        return raw

    def explanation(self, epoch_id: str, account: str) -> dict[str, Any]:
        """Why the account gets what it gets, as docs/formats/rewarder.md describes it."""
        raw: dict[str, Any] = self._read(f"/rewarder/epochs/{segment(epoch_id)}/explain/{segment(account)}").json()
        return raw
