"""What svc-wallet answers, as values of Python. Amounts are minor units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import UnexpectedAnswer
from .service import typed


def optional_int(text: Any) -> int | None:
    """An amount that may be absent."""
    return None if text is None else int(text)


@dataclass(frozen=True)
class Receipt:
    """What the ledger recorded. It never changes."""

    txid: str
    op: str
    seq: int
    ts: str
    receipt_hash: str
    source: str | None
    to: str | None
    asset: str | None
    amount: int | None
    #: The hold that was captured, released or expired.
    hold: str | None
    #: The transaction id of the first item of its batch.
    batch: str | None
    #: The transaction that it reverses.
    reverses: str | None
    #: The JSON that it was read from, with members that this version of the package does not name.
    raw: dict[str, Any]

    @classmethod
    def read(cls, raw: Any) -> "Receipt":
        return typed(lambda: cls(
            txid=raw["txid"], op=raw["op"], seq=raw["seq"], ts=raw["ts"], receipt_hash=raw["receipt_hash"],
            source=raw.get("from"), to=raw.get("to"), asset=raw.get("asset"),
            amount=optional_int(raw.get("amount_minor")), hold=raw.get("hold"), batch=raw.get("batch"),
            reverses=raw.get("reverses"), raw=raw,
        ), "not a receipt")


@dataclass(frozen=True)
class Private:
    """What the caller may see of an entry beside its receipt: all of it for its maker, the reference at most for others."""

    idem: str | None = None
    nonce: int | None = None
    memo: str | None = None
    metadata: Mapping[str, str] | None = None
    reference: str | None = None
    effective_at: str | None = None

    @classmethod
    def read(cls, raw: Any) -> "Private":
        names = ("idem", "nonce", "memo", "metadata", "reference", "effective_at")
        return typed(lambda: cls(**{name: raw.get(name) for name in names}))


@dataclass(frozen=True)
class Transaction:
    receipt: Receipt
    private: Private
    #: How much of it was reversed so far; ``None`` while the service cannot tell, and ``reversals`` is empty then.
    reversed: int | None
    #: The transactions that reversed it, oldest first, at most 100.
    reversals: list[str]


@dataclass(frozen=True)
class Done:
    """A write that took effect."""

    #: The idempotency key it was sent with.
    key: str
    receipt: Receipt
    private: Private
    #: True when an earlier request with this key had taken effect already.
    replayed: bool


@dataclass(frozen=True)
class ItemResult:
    """The outcome of one item of a batch: a receipt, or the code of its refusal."""

    receipt: Receipt | None
    code: str | None
    #: What the maker sees beside the receipt; empty when the item was refused.
    private: Private = Private()

    @classmethod
    def read(cls, raw: Any) -> "ItemResult":
        match raw:
            case {"outcome": "done", "receipt": receipt}:
                return cls(Receipt.read(receipt), None, Private.read(raw.get("private") or {}))
            case {"outcome": "refused", "code": str(code)}:
                return cls(None, code)
        raise UnexpectedAnswer(f"not the outcome of an item: {raw!r}")


@dataclass(frozen=True)
class BatchDone:
    """A batch that was decided."""

    key: str
    results: list[ItemResult]
    replayed: bool


@dataclass(frozen=True)
class Outcome:
    """What is known of a key."""

    outcome: Literal["done", "refused", "batch", "open"]
    receipt: Receipt | None
    code: str | None
    results: list[ItemResult]
    private: Private = Private()


@dataclass(frozen=True)
class Balance:
    account: str
    asset: str
    #: Below zero when the account is overdrawn.
    amount: int
    #: What the next debit may take: the balance and the credit limit, less what is held.
    available: int
    #: The last nonce that was used; unknown for a balance of the past.
    nonce: int | None
    as_of: str
    as_of_seq: int
    stale_ms: int


@dataclass(frozen=True)
class AccountBalance:
    """Balance of an account in one asset, in minor units."""

    #: Below zero when the account is overdrawn.
    amount: int
    #: Reserved by open holds.
    held: int
    #: What the next debit may take.
    available: int
    #: All that was ever credited and debited.
    credits: int
    debits: int
    credit_limit: int
    max_balance: int | None


@dataclass(frozen=True)
class OpenHold:
    """A hold that still reserves money of an account."""

    hold: str
    asset: str
    remaining: int
    expires_at: str


@dataclass(frozen=True)
class Account:
    account: str
    closed: bool
    #: The sides that are frozen: ``none``, ``debits``, ``credits`` or ``both``.
    frozen: str
    #: Label by which trial balances sum.
    label: str | None
    #: The last nonce used.
    nonce: int
    #: Whether every debit has to carry the next nonce.
    require_nonce: bool
    balances: dict[str, AccountBalance]
    #: Oldest first, at most 1,000; :meth:`Wallet.holds` lists all.
    holds: list[OpenHold]


@dataclass(frozen=True)
class ListedAccount:
    """An account in a list; balances are those that the caller may read."""

    account: str
    closed: bool
    #: The sides that are frozen: ``none``, ``debits``, ``credits`` or ``both``.
    frozen: str
    #: Label by which trial balances sum.
    label: str | None
    #: Whether every debit has to carry the next nonce.
    require_nonce: bool
    balances: dict[str, AccountBalance]


@dataclass(frozen=True)
class Limits:
    """Limits of an account in one asset; they are set together."""

    asset: str
    #: How far the account may be overdrawn.
    credit_limit: int = 0
    max_balance: int | None = None


@dataclass(frozen=True)
class Asset:
    asset: str
    #: Decimal places between a minor unit and the unit that people write; ``None`` for an asset that is not registered.
    scale: int | None
    title: str | None


@dataclass(frozen=True)
class ClassTotal:
    """Sums over the accounts of one class, in minor units."""

    accounts: int
    credits: int
    debits: int
    #: Credits less debits.
    balance: int


@dataclass(frozen=True)
class TrialBalance:
    asset: str
    #: What was issued and not burned; the sum of all balances.
    supply: int
    #: All that was ever issued and burned.
    issued: int
    burned: int
    credits: int
    debits: int
    #: By class; ``None`` stands for accounts without one.
    classes: dict[str | None, ClassTotal]
    seq: int


@dataclass(frozen=True)
class HoldState:
    hold: str
    source: str
    asset: str
    amount: int
    remaining: int
    #: What was paid out of it; ``None`` when the hold has ended and the history does not have its end yet.
    captured: int | None
    expires_at: str
    state: str


@dataclass(frozen=True)
class HistoryEntry:
    """An entry that concerned an account."""

    seq: int
    ts: str
    op: str
    #: ``None`` for an attempt that was refused, which only its maker sees.
    txid: str | None
    #: The code of the refusal.
    refused: str | None
    source: str | None
    to: str | None
    asset: str | None
    amount: int | None
    #: Balance of the account after the entry, below zero when it is overdrawn; only in answers about one account.
    balance: int | None
    nonce: int | None
    #: The hold that was captured, released or expired.
    hold: str | None
    #: The transaction id of the first item of its batch.
    batch: str | None
    #: The transaction that it reverses.
    reverses: str | None
    reference: str | None
    memo: str | None
    metadata: Mapping[str, str] | None
    effective_at: str | None
    #: The JSON that it was read from, with members that this version of the package does not name.
    raw: dict[str, Any]

    @classmethod
    def read(cls, raw: Any) -> "HistoryEntry":
        return typed(lambda: cls(
            seq=raw["seq"], ts=raw["ts"], op=raw["op"], source=raw.get("from"), amount=optional_int(raw.get("amount_minor")),
            balance=optional_int(raw.get("balance_minor")), raw=raw,
            **{name: raw.get(name) for name in (
                "txid", "refused", "to", "asset", "nonce", "hold", "batch", "reverses", "reference", "memo", "metadata",
                "effective_at",
            )},
        ))


@dataclass(frozen=True)
class HistoryPage:
    #: Newest first. A page may have fewer entries than asked for, also none, and still be followed by others.
    entries: list[HistoryEntry]
    #: ``before`` for older entries; None when there are none.
    older: int | None
    #: ``after`` for newer entries, also for those to come.
    newer: int


@dataclass(frozen=True)
class Statement:
    account: str
    asset: str
    opening: int
    credits: int
    debits: int
    closing: int
    #: Oldest first.
    entries: list[HistoryEntry]


@dataclass(frozen=True)
class Allowance:
    """A limit of a token, and what is left of it, in minor units."""

    limit: int
    left: int


@dataclass(frozen=True)
class Budget:
    """What a token may still spend; ``None`` where it has no such limit."""

    #: Over its life.
    total: Allowance | None
    #: On this UTC day.
    daily: Allowance | None


@dataclass(frozen=True)
class Webhook:
    """A webhook endpoint, and how far it is."""

    name: str
    url: str
    #: Accounts whose entries it gets: exact, or a prefix ending in ``*``.
    accounts: list[str]
    #: ``active``, ``failing`` or ``disabled``.
    state: str
    #: The cursor: entries up to this sequence were delivered or do not concern the endpoint.
    after: int
    #: Entries of the ledger that it has yet to look at.
    behind: int
    failing_since: str | None
    failure: str | None

    @classmethod
    def read(cls, raw: Any) -> "Webhook":
        return typed(lambda: cls(
            name=raw["name"], url=raw["url"], accounts=raw["accounts"], state=raw["state"], after=raw["after"],
            behind=raw["behind"], failing_since=raw.get("failing_since"), failure=raw.get("failure"),
        ))
