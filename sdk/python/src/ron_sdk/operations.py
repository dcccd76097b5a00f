"""Operations that a wallet takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .service import segment

AMOUNT_MAX = 2**128 - 1


def amount_of(minor: int) -> str:
    if isinstance(minor, bool) or not isinstance(minor, int) or not 0 <= minor <= AMOUNT_MAX:
        raise ValueError(f"an amount is an int of minor units from 0 to 2^128-1, not {minor!r}")
    return str(minor)


def debited(minor: "int | Literal['max']") -> str:
    return "max" if minor == "max" else amount_of(minor)


def present(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a caller says about an operation. No decision depends on it.

    Its maker sees all of it, and so do readers of the debited account in the maker's tenant; a payee sees the reference,
    unless ``share_reference`` is false.
    """

    #: Text for people.
    memo: str | None = None
    #: The caller's own reference, such as the number of an order.
    reference: str | None = None
    #: Whether the payee sees the reference, in histories and in its copy of the receipt.
    share_reference: bool = True
    #: At most 16 members.
    metadata: Mapping[str, str] | None = None
    #: The time for statements (RFC 3339, UTC).
    effective_at: str | None = None

    def body(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "memo": self.memo, "reference": self.reference, "effective_at": self.effective_at,
            "metadata": None if self.metadata is None else dict(self.metadata),
            "share_reference": None if self.share_reference else False,
        }
        return present(given)


@dataclass(frozen=True)
class Issue(Details):
    """Creates money in ``to``."""

    to: str
    asset: str
    amount: int

    def body(self) -> dict[str, Any]:
        return {"to": self.to, "asset": self.asset, "amount_minor": amount_of(self.amount), **super().body()}


@dataclass(frozen=True)
class Transfer(Details):
    """Moves money. ``nonce``, where it is given, must be the next one of ``source``."""

    source: str
    to: str
    asset: str
    #: Minor units, or ``"max"``: all that is available.
    amount: int | Literal["max"]
    nonce: int | None = field(default=None, kw_only=True)

    def body(self) -> dict[str, Any]:
        return present({
            "from": self.source, "to": self.to, "asset": self.asset, "amount_minor": debited(self.amount),
            "nonce": self.nonce, **super().body(),
        })


@dataclass(frozen=True)
class Burn(Details):
    """Destroys money of ``source``."""

    source: str
    asset: str
    #: Minor units, or ``"max"``: all that is available.
    amount: int | Literal["max"]
    nonce: int | None = field(default=None, kw_only=True)

    def body(self) -> dict[str, Any]:
        return present({
            "from": self.source, "asset": self.asset, "amount_minor": debited(self.amount), "nonce": self.nonce,
            **super().body(),
        })


@dataclass(frozen=True)
class Hold(Details):
    """Reserves money of ``source`` until ``expires_at`` (RFC 3339, UTC)."""

    source: str
    asset: str
    #: Minor units, or ``"max"``: all that is available.
    amount: int | Literal["max"]
    expires_at: str
    nonce: int | None = field(default=None, kw_only=True)

    def body(self) -> dict[str, Any]:
        return present({
            "from": self.source, "asset": self.asset, "amount_minor": debited(self.amount),
            "expires_at": self.expires_at, "nonce": self.nonce, **super().body(),
        })


@dataclass(frozen=True)
class Capture(Details):
    """Pays out of a hold: ``amount``, or all that is left of it. The rest stays reserved, unless it is ``final``."""

    hold: str
    to: str
    amount: int | None = None
    final: bool = field(default=False, kw_only=True)

    def body(self) -> dict[str, Any]:
        return present({
            "to": self.to, "amount_minor": None if self.amount is None else amount_of(self.amount),
            "final": self.final or None, **super().body(),
        })


@dataclass(frozen=True)
class Release(Details):
    """Ends a hold; the rest becomes available again."""

    hold: str


@dataclass(frozen=True)
class Reverse(Details):
    """Moves back what a transfer, capture or payout moved: ``amount``, or all that earlier reversals left of it."""

    txid: str
    amount: int | None = None

    def body(self) -> dict[str, Any]:
        return present({"amount_minor": None if self.amount is None else amount_of(self.amount), **super().body()})


#: An operation that :meth:`Wallet.submit` sends.
Operation = Issue | Transfer | Burn | Hold | Capture | Release | Reverse
#: An operation that may be an item of a batch. In a linked batch the ``hold`` of a capture or release may be ``"#i"``, the
#: hold that item ``i`` (from 0) makes.
Item = Operation


def path_of(operation: Operation) -> str:
    match operation:
        case Capture(hold=hold):
            return f"/v1/hold/{segment(hold)}/capture"
        case Release(hold=hold):
            return f"/v1/hold/{segment(hold)}/release"
        case Reverse(txid=txid):
            return f"/v1/tx/{segment(txid)}/reverse"
    return "/v1/" + _name(operation)


def item_of(item: Item) -> dict[str, Any]:
    body = {"op": _name(item), **item.body()}
    match item:
        case Capture(hold=hold) | Release(hold=hold):
            body["hold"] = hold
        case Reverse(txid=txid):
            body["txid"] = txid
    return body


def _name(operation: Operation) -> str:
    return type(operation).__name__.lower()
