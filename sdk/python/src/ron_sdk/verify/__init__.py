"""Offline verification: of payments, audit entries and payouts. Needs no service and no network."""

from .audit import AuditEntry, verify_audit
from .checkpoint import Checkpoint, Policy
from .manifest import AlsoPaid, Claims, Correction, Manifest, Payout, PayoutsRoot, verify_manifest, verify_payout
from .note import Note, VerifierKey
from .receipt import ProvenReceipt, Shown, verify_receipt
from .tlog import TlogProof

__all__ = [
    "AlsoPaid", "AuditEntry", "Checkpoint", "Claims", "Correction", "Manifest", "Note", "Payout", "PayoutsRoot", "Policy", "ProvenReceipt",
    "Shown", "TlogProof", "VerifierKey", "verify_audit", "verify_manifest", "verify_payout", "verify_receipt",
]
