"""Client of ron's services, and offline verification of what they promise."""

from .answers import (
    Account, AccountBalance, Allowance, Asset, Balance, BatchDone, Budget, ClassTotal, Done, HistoryEntry,
    HistoryPage, HoldState, ItemResult, Limits, ListedAccount, OpenHold, Outcome, Private, Receipt, Statement, Transaction,
    TrialBalance, Webhook,
)
from .auth import ClientCredentials, Credential, StaticToken
from .errors import OutcomeUnknown, Refused, RonError, UnexpectedAnswer, Unreachable, VerificationError
from .http import Http
from .kms import Kms, LogReceipt, Signature, Signed
from .operations import Burn, Capture, Details, Hold, Issue, Release, Reverse, Transfer
from .passport import IssuedToken, Passport
from .rewarder import Epoch, Paid, Rewarder
from .wallet import Wallet, new_key

__all__ = [
    "Account", "AccountBalance", "Allowance", "Asset", "Balance", "BatchDone", "Budget", "Burn", "Capture",
    "ClassTotal", "ClientCredentials", "Credential", "Details", "Done", "Epoch", "HistoryEntry", "HistoryPage", "Hold",
    "HoldState", "Http", "Issue", "IssuedToken", "ItemResult", "Kms", "Limits", "ListedAccount", "LogReceipt",
    "OpenHold", "Outcome", "OutcomeUnknown", "Paid", "Passport", "Private", "Receipt", "Refused", "Release", "Reverse",
    "Rewarder", "RonError", "Signature", "Signed", "Statement", "StaticToken", "Transaction", "Transfer",
    "TrialBalance", "UnexpectedAnswer", "Unreachable", "VerificationError", "Wallet", "Webhook", "new_key",
]
