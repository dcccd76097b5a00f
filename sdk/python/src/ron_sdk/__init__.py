"""Client of ron's services, and offline verification of what they promise."""

from .auth import ClientCredentials, Credential, StaticToken
from .errors import OutcomeUnknown, Refused, RonError, UnexpectedAnswer, Unreachable, VerificationError
from .http import Http
from .kms import Kms, LogReceipt, Signature, Signed
from .operations import Burn, Capture, Details, Hold, Issue, Release, Reverse, Transfer
from .rewarder import Epoch, Rewarder
from .wallet import (
    Account, AccountBalance, Asset, Balance, BatchDone, ClassTotal, Done, HistoryPage, HoldState, ItemResult, Limits,
    Outcome, Private, Receipt, Statement, Transaction, TrialBalance, Wallet, new_key,
)

__all__ = [
    "Account", "AccountBalance", "Asset", "Balance", "BatchDone", "Burn", "Capture", "ClassTotal", "ClientCredentials",
    "Credential", "Details", "Done", "Epoch", "HistoryPage", "Hold", "HoldState", "Http", "Issue", "ItemResult", "Kms", "Limits", "LogReceipt", "Outcome", "OutcomeUnknown", "Private", "Receipt",
    "Refused", "Release", "Reverse", "Rewarder", "RonError", "Signature", "Signed", "Statement", "StaticToken",
    "Transaction", "Transfer", "TrialBalance", "UnexpectedAnswer", "Unreachable", "VerificationError", "Wallet", "new_key",
]
