"""svc-rewarder: what an epoch paid, and the proofs of it."""

from dataclasses import dataclass
from typing import Any

from .http import Answer
from .service import Service, segment, typed


@dataclass(frozen=True)
class Epoch:
    epoch_id: str
    state: str
    dry_run: bool
    #: Identifies the run: by its inputs and its policy.
    run_key: str
    #: Present once it is computed.
    commitment: str | None
    #: Why the run is held, quarantined or failed.
    reason: str | None


@dataclass(frozen=True)
class Paid:
    """What an account is paid of one asset."""

    asset: str
    #: Index of the payout in the asset's table and in the ledger.
    index: int
    amount: int


def _epoch(raw: Any) -> Epoch:
    return Epoch(
        epoch_id=raw["epoch_id"], state=raw["state"], dry_run=raw["dry_run"], run_key=raw["run_key"],
        commitment=raw.get("commitment"), reason=raw["reason"]["detail"] if raw.get("reason") else None,
    )


class Rewarder(Service):
    """Reads of svc-rewarder. The answers of ``manifest`` and ``proof`` are the bytes that offline verification takes.

    ``dry_run`` is the run key of a dry run. Without it, the live run is read or, while there is none, the newest dry run.
    ``asset`` is one of an epoch that pays several. Without it, the first of the policy is read.
    """

    def _of(self, epoch_id: str, what: str, dry_run: str | None, asset: str | None = None) -> Answer:
        query = {"asset": asset, "dry_run": dry_run}
        return self._read(f"/rewarder/epochs/{segment(epoch_id)}{what}", query)

    def epoch(self, epoch_id: str, *, dry_run: str | None = None) -> Epoch:
        raw = self._of(epoch_id, "", dry_run).json()
        return typed(lambda: _epoch(raw))

    def dry_runs(self, epoch_id: str) -> list[Epoch]:
        """The dry runs of an epoch that are kept, the newest first."""
        raw = self._of(epoch_id, "/dry-runs", None).json()
        return typed(lambda: [_epoch(run) for run in raw["epochs"]])

    def manifest(self, epoch_id: str, *, dry_run: str | None = None, asset: str | None = None) -> bytes:
        """The manifest, byte for byte as it is signed."""
        return self._of(epoch_id, "/manifest", dry_run, asset).body

    def payouts(self, epoch_id: str, account: str, *, dry_run: str | None = None) -> list[Paid]:
        """What an account is paid, one payout for each asset of the epoch."""
        raw = self._of(epoch_id, f"/payouts/{segment(account)}", dry_run).json()
        return typed(lambda: [Paid(one["asset"], one["index"], int(one["amount_minor"])) for one in raw["payouts"]])

    def proof(
        self, epoch_id: str, account: str, *, dry_run: str | None = None, asset: str | None = None
    ) -> bytes:
        """The proof of an account's payout and of the epoch's total, up to the signed manifest."""
        return self._of(epoch_id, f"/proof/{segment(account)}", dry_run, asset).body

    def claims(self, epoch_id: str, *, dry_run: str | None = None, asset: str | None = None) -> dict[str, Any]:
        """The claim tree of an epoch with claims, in the form of OpenZeppelin's ``StandardMerkleTree``."""
        raw: dict[str, Any] = self._of(epoch_id, "/claims", dry_run, asset).json()
        return raw

    def explanation(
        self, epoch_id: str, account: str, *, dry_run: str | None = None, asset: str | None = None
    ) -> dict[str, Any]:
        """Why the account gets what it gets, as docs/formats/rewarder.md describes it."""
        raw: dict[str, Any] = self._of(epoch_id, f"/explain/{segment(account)}", dry_run, asset).json()
        return raw
