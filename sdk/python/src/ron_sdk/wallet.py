"""svc-wallet: money for holders of a passport."""

import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .answers import (
    Receipt, Private, Transaction, Done, ItemResult, BatchDone, Outcome, Balance, AccountBalance, OpenHold,
    Account, Limits, ListedAccount, Asset, ClassTotal, TrialBalance, HoldState, HistoryEntry, HistoryPage, Statement, Allowance,
    Budget, Webhook, optional_int,
)
from .errors import OutcomeUnknown, Refused, RonError, UnexpectedAnswer
from .http import Answer
from .operations import Details, Item, Operation, amount_of, item_of, path_of, present
from .service import Service, segment, typed


def new_key() -> str:
    """A fresh idempotency key. Store it with what the write is for, before the write is sent."""
    return str(uuid.uuid4())


class Wallet(Service):
    """Calls of svc-wallet.

    Every write has an idempotency key, given or generated. It happens at most once, however often it is sent.
    """

    def submit(self, operation: Operation, key: str | None = None, *, renumber: bool = False) -> Done:
        """Sends an operation until its outcome is known or the deadline passes.

        Raises :class:`~ron_sdk.Refused` when nothing changed, and :class:`~ron_sdk.OutcomeUnknown` when the deadline
        passed first. With ``renumber`` a nonce that is not the account's next one is replaced by that one, under the
        same key.
        """
        key = new_key() if key is None else key
        body = operation.body()

        def renumbered(refusal: Refused) -> dict[str, Any] | None:
            if not renumber or refusal.code != "nonce_conflict" or refusal.expected is None:
                return None
            body["nonce"] = refusal.expected
            return body

        return _done(key, self._write(
            "POST", path_of(operation), body, key=key, headers={"Idempotency-Key": key}, repair=renumbered
        ))

    def batch(self, items: Sequence[Item], key: str | None = None, *, linked: bool = False) -> BatchDone:
        """Sends up to 1,000 operations under one key; with ``linked`` all of them take effect, or none."""
        key = new_key() if key is None else key
        body = {"items": [item_of(item) for item in items], "linked": linked}
        answer = self._write("POST", "/v1/batch", body, key=key, headers={"Idempotency-Key": key})
        return BatchDone(key, _results(answer.json()), answer.headers.get("idempotency-replayed") == "true")

    def abandon(self, key: str) -> Outcome:
        """Gives a write with an unknown outcome up: returns its outcome, or makes the ledger refuse it for ever."""
        answer = self._write("POST", f"/v1/ops/{segment(key)}/abandon", {}, key=key)
        return _outcome(answer.json())

    def operation(self, key: str, *, min_seq: int | None = None) -> Outcome | None:
        """What became of the caller's write with this key; ``None`` when no request with it is known.

        ``None`` is no promise: a request that is still on its way may arrive later.
        """
        try:
            raw = self._read(f"/v1/ops/{segment(key)}", {"min_seq": min_seq}).json()
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise
        return _outcome(raw)

    def balance(
        self, account: str, asset: str, *, at: int | str | None = None, min_seq: int | None = None
    ) -> Balance:
        """The balance now, or after the last entry at or before ``at``, a sequence or a time.

        ``min_seq`` is the ``seq`` of a receipt that the answer must know.
        """
        query = {"account": account, "asset": asset, "at": at, "min_seq": min_seq}
        raw = self._read("/v1/balance", query).json()
        return typed(lambda: Balance(
            account=raw["account"], asset=raw["asset"], amount=_balance(raw),
            available=int(raw["available_minor"]), nonce=raw.get("nonce"), as_of=raw["as_of"],
            as_of_seq=raw["as_of_seq"], stale_ms=raw["stale_ms"],
        ))

    def account(self, account: str, *, min_seq: int | None = None) -> Account:
        """Balances in all assets, limits, class, and whether the account is frozen or closed."""
        raw = self._read(f"/v1/account/{segment(account)}", {"min_seq": min_seq}).json()
        return typed(lambda: Account(
            account=raw["account"], closed=raw["closed"], frozen=raw["frozen"], label=raw.get("class"), nonce=raw["nonce"],
            require_nonce=raw["require_nonce"],
            balances=_balances(raw),
            holds=[
                OpenHold(h["hold"], h["asset"], int(h["amount_minor"]), h["expires_at"]) for h in raw["holds"]
            ],
        ))

    def set_account(
        self, account: str, *, closed: bool | None = None, frozen: str | None = None, label: str | None = None,
        require_nonce: bool | None = None, limits: Limits | None = None, details: Details | None = None, key: str | None = None,
    ) -> Done:
        """Opens or closes an account, or sets frozen sides, class (``label``), whether debits require a nonce, or limits.

        What is not given stays as it is.
        """
        body = present({
            "closed": closed, "frozen": frozen, "class": label, "require_nonce": require_nonce,
            "limits": None if limits is None else present({
                "asset": limits.asset, "credit_limit_minor": amount_of(limits.credit_limit),
                "max_balance_minor": None if limits.max_balance is None else amount_of(limits.max_balance),
            }),
            **(details or Details()).body(),
        })
        return self._set("PUT", f"/v1/account/{segment(account)}", body, key)

    def freeze(self, account: str, sides: str = "debits", *, details: Details | None = None, key: str | None = None) -> Done:
        """Makes an account refuse ``debits``, ``credits`` or ``both``."""
        body = {"sides": sides, **(details or Details()).body()}
        return self._set("POST", f"/v1/account/{segment(account)}/freeze", body, key)

    def unfreeze(self, account: str, sides: str = "both", *, details: Details | None = None, key: str | None = None) -> Done:
        """Lets an account accept ``debits``, ``credits`` or ``both`` again."""
        body = {"sides": sides, **(details or Details()).body()}
        return self._set("POST", f"/v1/account/{segment(account)}/unfreeze", body, key)

    def asset(self, asset: str, *, min_seq: int | None = None) -> Asset:
        raw = self._read(f"/v1/assets/{segment(asset)}", {"min_seq": min_seq}).json()
        return typed(lambda: _asset(raw))

    def assets(self, *, min_seq: int | None = None) -> list[Asset]:
        """The assets in which the caller may read something, by name."""
        found: list[Asset] = []
        after = None
        while True:
            raw = self._read("/v1/assets", {"after": after, "limit": 500, "min_seq": min_seq}).json()
            found += typed(lambda: [_asset(asset) for asset in raw["assets"]])  # noqa: B023
            after = raw.get("next")
            if after is None:
                return found

    def set_asset(
        self, asset: str, scale: int, title: str | None = None, *, details: Details | None = None, key: str | None = None
    ) -> Done:
        """Registers an asset, or changes its title."""
        body = present({"scale": scale, "title": title, **(details or Details()).body()})
        return self._set("PUT", f"/v1/assets/{segment(asset)}", body, key)

    def trial_balance(self, asset: str, *, at: int | str | None = None, min_seq: int | None = None) -> TrialBalance:
        """Credits and debits by class of account, now or after the last entry at or before ``at``, a sequence or a time."""
        raw = self._read(f"/v1/assets/{segment(asset)}/trial-balance", {"at": at, "min_seq": min_seq}).json()
        return typed(lambda: TrialBalance(
            asset=raw["asset"], supply=int(raw["supply_minor"]), issued=int(raw["issued_minor"]),
            burned=int(raw["burned_minor"]), credits=int(raw["credits_minor"]),
            debits=int(raw["debits_minor"]), seq=raw["seq"],
            classes={c.get("class"): ClassTotal(
                c["accounts"], int(c["credits_minor"]), int(c["debits_minor"]), int(c["balance_minor"])
            ) for c in raw["classes"]},
        ))

    def hold(self, hold: str, *, min_seq: int | None = None) -> HoldState:
        raw = self._read(f"/v1/hold/{segment(hold)}", {"min_seq": min_seq}).json()
        return typed(lambda: _hold(raw))

    def transaction(self, txid: str, *, min_seq: int | None = None) -> Transaction:
        """A transaction, with what the caller may see of its private side, and what was reversed of it."""
        raw = self._read(f"/v1/tx/{segment(txid)}", {"min_seq": min_seq}).json()
        return typed(lambda: Transaction(
            receipt=Receipt.read(raw["receipt"]), private=Private.read(raw.get("private") or {}),
            reversed=int(raw["now"]["reversed_minor"]) if raw.get("now") else None,
            reversals=raw["now"]["reversals"] if raw.get("now") else [],
        ))

    def receipt(self, txid: str, *, wait: int = 5, min_seq: int | None = None) -> bytes:
        """The receipt as a file that verifies alone (:func:`ron_sdk.verify.verify_receipt`).

        The maker of the entry gets all of its private record, everybody else the shared reference at most. The service
        waits up to ``wait`` seconds for a checkpoint that covers the entry.
        """
        return self._read(f"/v1/tx/{segment(txid)}/receipt", {"min_seq": min_seq}, wait=wait).body

    def history(
        self, account: str, *, before: int | None = None, after: int | None = None, limit: int | None = None,
        min_seq: int | None = None, since: str | None = None, until: str | None = None, asset: str | None = None,
        kind: str | None = None, direction: Literal["in", "out"] | None = None, counterparty: str | None = None,
        reference: str | None = None, batch: str | None = None, hold: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> HistoryPage:
        """Entries of an account, newest first: those from ``since`` to before ``until`` (times) that match everything
        given. An entry matches ``metadata`` when it has all of these members."""
        members = None if metadata is None else [f"{name}={value}" for name, value in metadata.items()]
        query: dict[str, str | int | list[str] | None] = {
            "before": before, "after": after, "limit": limit, "min_seq": min_seq, "from": since, "until": until,
            "asset": asset, "kind": kind, "direction": direction, "counterparty": counterparty, "reference": reference,
            "batch": batch, "hold": hold, "metadata": members,
        }
        return _page(self._read(f"/v1/account/{segment(account)}/history", query).json())

    def find(
        self, reference: str, *, before: int | None = None, after: int | None = None, limit: int | None = None,
        min_seq: int | None = None, since: str | None = None, until: str | None = None, asset: str | None = None,
        kind: str | None = None, batch: str | None = None, hold: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> HistoryPage:
        """Transactions that were made with a reference and match everything given, newest first."""
        members = None if metadata is None else [f"{name}={value}" for name, value in metadata.items()]
        query: dict[str, str | int | list[str] | None] = {
            "reference": reference, "before": before, "after": after, "limit": limit, "min_seq": min_seq, "from": since,
            "until": until, "asset": asset, "kind": kind, "batch": batch, "hold": hold, "metadata": members,
        }
        return _page(self._read("/v1/tx", query).json())

    def statement(
        self, account: str, asset: str, since: str, until: str, *, by: str = "entry", min_seq: int | None = None
    ) -> Statement:
        """Opening balance, entries and closing balance of a range; ``by`` is ``entry`` or ``effective``.

        It reads all pages.
        """
        entries: list[HistoryEntry] = []
        opening, after = None, None
        while True:
            query = {
                "asset": asset, "from": since, "until": until, "by": by, "after": after, "min_seq": min_seq,
            }
            raw = self._read(f"/v1/account/{segment(account)}/statement", query).json()
            entries += typed(lambda: [HistoryEntry.read(entry) for entry in raw["entries"]])  # noqa: B023
            opening = typed(lambda: int(raw["opening_minor"])) if opening is None else opening  # noqa: B023
            after = raw.get("next")
            if after is None:
                break
        return typed(lambda: Statement(
            account=raw["account"], asset=raw["asset"], opening=opening, credits=int(raw["credits_minor"]),
            debits=int(raw["debits_minor"]), closing=int(raw["closing_minor"]), entries=entries,
        ))

    def statement_csv(
        self, account: str, asset: str, since: str, until: str, *, by: str = "entry", min_seq: int | None = None
    ) -> str:
        """The same as comma-separated values: a line for the opening balance, each entry and the closing balance."""
        query: dict[str, str | int | None] = {
            "asset": asset, "from": since, "until": until, "by": by, "min_seq": min_seq, "format": "csv",
        }
        path = f"/v1/account/{segment(account)}/statement"
        text = ""
        while True:
            answer = self._read(path, query)
            page = typed(lambda: answer.body.decode())  # noqa: B023
            # Every page begins with the headings.
            text += page if not text else page.partition("\n")[2]
            following = re.search(r"[?&]after=([0-9]+)[^>]*>; rel=\"next\"", answer.headers.get("link", ""))
            if following is None:
                return text
            query["after"] = int(following[1])

    def accounts(self, prefix: str = "", *, min_seq: int | None = None) -> dict[str, ListedAccount]:
        """The accounts that were ever opened, used or given terms and that the caller may read, by name."""
        found: dict[str, ListedAccount] = {}
        after = None
        while True:
            query = {"prefix": prefix or None, "after": after, "limit": 500, "min_seq": min_seq}
            raw = self._read("/v1/accounts", query).json()
            found |= typed(lambda: {listed["account"]: _listed(listed) for listed in raw["accounts"]})  # noqa: B023
            after = raw.get("next")
            if after is None:
                return found

    def holds(
        self, account: str, *, asset: str | None = None, state: str | None = None, min_seq: int | None = None
    ) -> list[HoldState]:
        """Holds of an account, newest first; ``state`` is ``open`` or ``ended``."""
        found: list[HoldState] = []
        before = None
        while True:
            query = {
                "account": account, "asset": asset, "state": state, "before": before, "limit": 500, "min_seq": min_seq,
            }
            raw = self._read("/v1/holds", query).json()
            found += typed(lambda: [_hold(hold) for hold in raw["holds"]])  # noqa: B023
            before = raw.get("older")
            if before is None:
                return found

    def events(
        self, account: str, after: int = 0, *, wait: int = 0, limit: int | None = None, min_seq: int | None = None
    ) -> tuple[list[HistoryEntry], int]:
        """What happened to an account after a sequence, oldest first and without gaps, and the next ``after``.

        The service waits up to ``wait`` seconds for something, 30 at most.
        """
        query: dict[str, str | int | None] = {"account": account, "after": after, "limit": limit, "min_seq": min_seq}
        raw = self._read("/v1/events", query, wait=wait).json()
        return typed(lambda: ([HistoryEntry.read(event) for event in raw["events"]], raw["next"]))

    def budget(self, *, min_seq: int | None = None) -> Budget:
        """What the caller's token may still spend: its caveats ``ceiling.total`` and ``ceiling.daily``."""
        raw = self._read("/v1/budget", {"min_seq": min_seq}).json()

        def allowance(name: str) -> Allowance | None:
            limit = raw.get(name)
            return None if limit is None else Allowance(int(limit["limit_minor"]), int(limit["left_minor"]))

        return typed(lambda: Budget(allowance("total"), allowance("daily")))

    def webhooks(self) -> list[Webhook]:
        """The webhook endpoints of the caller's tenant, in the order of the configuration."""
        raw = self._read("/v1/webhooks").json()
        return typed(lambda: [Webhook.read(webhook) for webhook in raw["webhooks"]])

    def resume_webhook(self, name: str, *, after: int | None = None) -> Webhook:
        """Sends to a disabled or failing endpoint again at once: from its cursor, or everything after a sequence."""
        return Webhook.read(self._ask(f"/v1/webhooks/{segment(name)}/resume", present({"after": after})))

    def _set(self, method: str, path: str, body: dict[str, Any], key: str | None) -> Done:
        key = new_key() if key is None else key
        return _done(key, self._write(method, path, body, key=key, headers={"Idempotency-Key": key}))

    def _confirm(self, key: str, doubt: str, refusal: Refused) -> None:
        try:
            known = self.operation(key)
        except RonError as error:
            raise OutcomeUnknown(key, f"{doubt}; then {refusal.code}; then {error}") from error
        if known is not None and known.outcome == "refused":
            raise Refused(refusal.status, known.code or refusal.code, refusal.detail, details=refusal.details, key=key)
        if known is None:
            super()._confirm(key, doubt, refusal)
        # Done, decided as a batch, or open: the same request gets the answer.


def _done(key: str, answer: Answer) -> Done:
    replayed = answer.headers.get("idempotency-replayed") == "true"
    raw = answer.json()
    return typed(lambda: Done(key, Receipt.read(raw["receipt"]), Private.read(raw.get("private") or {}), replayed))


def _asset(raw: Any) -> Asset:
    return Asset(raw["asset"], raw.get("scale"), raw.get("title"))


def _balances(raw: Any) -> dict[str, AccountBalance]:
    return {b["asset"]: AccountBalance(
        amount=_balance(b), held=int(b["held_minor"]), available=int(b["available_minor"]),
        credits=int(b["credits_minor"]), debits=int(b["debits_minor"]), credit_limit=int(b["credit_limit_minor"]),
        max_balance=optional_int(b.get("max_balance_minor")),
    ) for b in raw["balances"]}


def _listed(raw: Any) -> ListedAccount:
    return ListedAccount(
        account=raw["account"], closed=raw["closed"], frozen=raw["frozen"], label=raw.get("class"),
        require_nonce=raw["require_nonce"], balances=_balances(raw),
    )


def _balance(raw: Any) -> int:
    return int(raw["amount_minor"]) - int(raw["overdrawn_minor"])


def _hold(raw: Any) -> HoldState:
    return HoldState(
        hold=raw["hold"], source=raw["from"], asset=raw["asset"], amount=int(raw["amount_minor"]),
        remaining=int(raw["remaining_minor"]), captured=optional_int(raw.get("captured_minor")),
        expires_at=raw["expires_at"], state=raw["state"],
    )


def _page(raw: Any) -> HistoryPage:
    return typed(lambda: HistoryPage(
        entries=[HistoryEntry.read(entry) for entry in raw["entries"]], older=raw.get("older"), newer=raw["newer"]
    ))


def _results(raw: Any) -> list[ItemResult]:
    if not isinstance(raw, dict) or not isinstance(raw.get("results"), list):
        raise UnexpectedAnswer(f"not the answer of a batch: {raw!r}")
    return [ItemResult.read(item) for item in raw["results"]]


def _outcome(raw: Any) -> Outcome:
    match raw:
        case {"outcome": "done", "receipt": receipt}:
            return Outcome("done", Receipt.read(receipt), None, [], Private.read(raw.get("private") or {}))
        case {"outcome": "refused", "code": str(code)}:
            return Outcome("refused", None, code, [])
        case {"outcome": "batch"}:
            return Outcome("batch", None, None, _results(raw))
        case {"outcome": "open"}:
            return Outcome("open", None, None, [])
    raise UnexpectedAnswer(f"not an outcome: {raw!r}")
