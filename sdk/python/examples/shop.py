"""A small shop on ron: an order, its delivery in two parts with the fee split off, a refund, and receipts that the customer proves.

usage: shop.py DATA_DIR      (the data directory of a running `ron up`)

It needs nothing but this SDK and docs/sdk.md. The key of each write is made from the number of the order, so a shop that
is killed and started again sends the same writes again and pays nothing twice: run it a second time to see that.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ron_sdk import Capture, ClientCredentials, Done, Hold, Issue, Reverse, Transfer, VerificationError, Wallet
from ron_sdk.verify import Policy, ProvenReceipt, verify_receipt

ASSET = "eur"
SHOP, FEES, TAX = "acct:shop", "acct:shop-fees", "acct:shop-tax"
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

    def take(self, order: Order, expires_at: str) -> str:
        """Reserves the price of an order; returns the hold."""
        hold = Hold(order.customer, ASSET, order.price, expires_at, reference=order.number)
        return self.wallet.submit(hold, key=f"{order.number}.hold").receipt.txid

    def deliver(self, order: Order, hold: str, part: Part) -> Done:
        """Takes the price of a part out of the hold; then fee and tax leave the shop together, or not at all."""
        paid = self.wallet.submit(
            Capture(hold, SHOP, part.price, reference=order.number, metadata={"part": part.name}),
            key=f"{order.number}.{part.name}",
        )
        split = [
            Transfer(SHOP, FEES, ASSET, part.price * FEE_PERCENT // 100, reference=order.number),
            Transfer(SHOP, TAX, ASSET, part.price * TAX_PERCENT // (100 + TAX_PERCENT), reference=order.number),
        ]
        done = self.wallet.batch(split, key=f"{order.number}.{part.name}.split", linked=True)
        if any(item.receipt is None for item in done.results):
            raise SystemExit(f"the split of {order.number} was refused: {done.results}")
        return paid

    def refund(self, order: Order, paid: Done) -> Done:
        """Moves back what was paid for a part."""
        back = Reverse(paid.receipt.txid, reference=order.number)
        return self.wallet.submit(back, key=f"{order.number}.refund.{paid.receipt.seq}")


def prove(wallet: Wallet, done: Done, policy: Policy) -> ProvenReceipt:
    """What a customer does with the file of a receipt: check it, without the shop and without the ledger."""
    proven = verify_receipt(wallet.receipt(done.receipt.txid, wait=10), policy)
    if (proven.txid, proven.amount, proven.to) != (done.receipt.txid, done.receipt.amount, done.receipt.to):
        raise VerificationError("the receipt is not that of the payment")
    return proven


def main() -> None:
    data = Path(sys.argv[1])
    services = json.loads((data / "run/endpoints.json").read_text())["services"]
    sockets = {service["service"]: service["api_socket"] for service in services}
    token = ClientCredentials.from_file(
        sockets["svc-passport"], data / "clients/operator.json", audience="svc-wallet"
    )
    wallet = Wallet(sockets["svc-wallet"], token)
    policy = Policy(json.loads((data / "verifiers.json").read_text())["ledger_vkey"])
    shop = Shop(wallet)
    order = Order("1001", "acct:ada", (Part("book", 3_000), Part("lamp", 4_500)))
    book, lamp = order.parts

    wallet.submit(Issue(order.customer, ASSET, 10_000, memo="deposit"), key=f"{order.number}.deposit")
    hold = shop.take(order, expires_at="2099-01-01T00:00:00Z")
    paid_book = shop.deliver(order, hold, book)
    paid_lamp = shop.deliver(order, hold, lamp)
    refunded = shop.refund(order, paid_lamp)
    for done in (paid_book, paid_lamp, refunded):
        proven = prove(wallet, done, policy)
        print(f"{proven.op:10} {proven.source} -> {proven.to} {proven.amount} {proven.asset} {proven.shown.reference} proven")
    reversed = wallet.transaction(paid_lamp.receipt.txid).reversed
    print(f"reversed of the lamp: {reversed}")
    for account in (order.customer, SHOP, FEES, TAX):
        print(f"{account:16} {wallet.balance(account, ASSET).amount}")


if __name__ == "__main__":
    main()
