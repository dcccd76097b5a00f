"""A small shop on ron: an order, its delivery in two parts with the fee split off, a refund, receipts that the customer proves, a
statement, and the trial balance of the month.

usage: shop.py DATA_DIR      (the data directory of a running `ron up`)

It needs nothing but this SDK and docs/sdk.md. The key of each write is made from the number of the order, so a shop that
is killed and started again sends the same writes again and pays nothing twice: run it a second time to see that.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ron_sdk import (
    Capture, ClientCredentials, Hold, Issue, Receipt, Refused, Reverse, Transfer, VerificationError, Wallet,
)
from ron_sdk.verify import Policy, ProvenReceipt, verify_receipt

ASSET = "eur"
SHOP, FEES, TAX = "acct:shop", "acct:shop-fees", "acct:shop-tax"
#: Labels by which the trial balance sums accounts.
CLASSES = {SHOP: "sales", FEES: "fees", TAX: "tax"}
FEE_PERCENT, TAX_PERCENT = 3, 19


@dataclass(frozen=True)
class Part:
    """A part of an order, with its price in cents."""

    name: str
    price: int


@dataclass(frozen=True)
class Order:
    number: str
    customer: str
    parts: tuple[Part, ...]

    @property
    def price(self) -> int:
        return sum(part.price for part in self.parts)


class Shop:
    """What a shop does with orders. Every step may be repeated."""

    def __init__(self, wallet: Wallet) -> None:
        self.wallet = wallet

    def open(self) -> None:
        """Registers the currency and labels the shop's accounts."""
        self.wallet.set_asset(ASSET, 2, "Euro", key="shop.asset")
        for account, label in CLASSES.items():
            self.wallet.set_account(account, label=label, key=f"shop.{label}")

    def take(self, order: Order, expires_at: str) -> str:
        """Reserves the price of an order; returns the hold."""
        hold = Hold(order.customer, ASSET, order.price, expires_at, reference=order.number)
        return self.wallet.submit(hold, key=f"{order.number}.hold").receipt.txid

    def deliver(self, order: Order, hold: str, part: Part) -> Receipt:
        """Takes the price of a part out of the hold, and fee and tax out of it: all together, or nothing."""
        done = self.wallet.batch([
            Capture(hold, SHOP, part.price, reference=order.number, metadata={"part": part.name}),
            Transfer(SHOP, FEES, ASSET, part.price * FEE_PERCENT // 100, reference=order.number),
            Transfer(SHOP, TAX, ASSET, part.price * TAX_PERCENT // (100 + TAX_PERCENT), reference=order.number),
        ], key=f"{order.number}.{part.name}", linked=True)
        paid = done.results[0].receipt
        if paid is None:
            raise SystemExit(f"the delivery of {part.name} was refused: {done.results}")
        return paid

    def refund(self, order: Order, paid: Receipt) -> Receipt:
        """Moves back what was paid for a part."""
        back = Reverse(paid.txid, reference=order.number)
        return self.wallet.submit(back, key=f"{order.number}.refund.{paid.seq}").receipt


def prove(wallet: Wallet, paid: Receipt, policy: Policy) -> ProvenReceipt:
    """What a customer does with the file of a receipt: check it, without the shop and without the ledger."""
    proven = verify_receipt(wallet.receipt(paid.txid, wait=10), policy)
    if (proven.txid, proven.amount, proven.to) != (paid.txid, paid.amount, paid.to):
        raise VerificationError("the receipt is not that of the payment")
    return proven


def main() -> None:
    data = Path(sys.argv[1])
    services = json.loads((data / "run/endpoints.json").read_text())["services"]
    sockets = {service["service"]: service["api_socket"] for service in services}
    client = data / "clients/operator.json"
    token = ClientCredentials.from_file(sockets["svc-passport"], client, audience="svc-wallet")
    wallet = Wallet(sockets["svc-wallet"], token)
    policy = Policy(json.loads((data / "verifiers.json").read_text())["ledger_vkey"])
    shop = Shop(wallet)
    order = Order("1001", "acct:ada", (Part("book", 3_000), Part("lamp", 4_500)))
    book, lamp = order.parts
    # A token for the customer: it reads what concerns this account, and moves nothing.
    narrow = ClientCredentials.from_file(
        sockets["svc-passport"], client, audience="svc-wallet", scope="wallet:read",
        caveats=[f"account={order.customer}"],
    )
    customer = Wallet(sockets["svc-wallet"], narrow)

    shop.open()
    wallet.submit(Issue(order.customer, ASSET, 10_000, memo="deposit"), key=f"{order.number}.deposit")
    hold = shop.take(order, expires_at="2099-01-01T00:00:00Z")
    paid_book = shop.deliver(order, hold, book)
    paid_lamp = shop.deliver(order, hold, lamp)
    refunded = shop.refund(order, paid_lamp)
    for paid in (paid_book, paid_lamp, refunded):
        proven = prove(customer, paid, policy)
        print(f"{proven.op:10} {proven.source} -> {proven.to} {proven.amount} {proven.asset} {proven.shown.reference} proven")
    try:
        customer.balance(SHOP, ASSET)
        raise SystemExit("the customer reads the shop's account")
    except Refused as refusal:
        print(f"the customer is refused what is the shop's: {refusal.code}")
    reversed = wallet.transaction(paid_lamp.txid).reversed
    print(f"reversed of the lamp: {reversed}")
    statement = wallet.statement(SHOP, ASSET, "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z")
    print(f"{'opening':10} {statement.opening}")
    for entry in statement.entries:
        print(f"{entry.op:10} {entry.amount:>5} {entry.balance:>5}")
    print(f"{'closing':10} {statement.closing}")
    month = wallet.trial_balance(ASSET, at=refunded.seq, min_seq=refunded.seq)
    for label, total in month.classes.items():
        print(f"{label or 'customers':10} {total.credits:>5} {total.debits:>5} {total.balance:>5}")
    print(f"{'all':10} {month.credits:>5} {month.debits:>5} {month.supply:>5}")


if __name__ == "__main__":
    main()
