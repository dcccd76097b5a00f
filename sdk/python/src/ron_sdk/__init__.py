"""Client of ron's services, and offline verification of what they promise."""

from .auth import ClientCredentials, Credential, StaticToken
from .errors import OutcomeUnknown, Refused, RonError, UnexpectedAnswer, Unreachable, VerificationError
from .http import Http
from .kms import Kms, LogReceipt, Signature, Signed
from .rewarder import Epoch, Rewarder
from .wallet import (
    Balance, BatchDone, Burn, Capture, Done, HistoryPage, Hold, HoldState, Issue, ItemResult, Outcome,
    Private, Receipt, Release, Reverse, Statement, Transaction, Transfer, Wallet, new_key,
)

__all__ = [
    "Balance", "BatchDone", "Burn", "Capture", "ClientCredentials", "Credential", "Done", "Epoch", "HistoryPage",
    "Hold", "HoldState", "Http", "Issue", "ItemResult", "Kms", "LogReceipt", "Outcome", "OutcomeUnknown", "Private", "Receipt",
    "Refused", "Release", "Reverse", "Rewarder", "RonError", "Signature", "Signed", "Statement", "StaticToken",
    "Transaction", "Transfer", "UnexpectedAnswer", "Unreachable", "VerificationError", "Wallet", "new_key",
]
